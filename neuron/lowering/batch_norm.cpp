// Batch normalization: per-channel statistics over every dim but 1, in f32 or wider.

#include "neuron/base/error.h"
#include "neuron/lowering/numerics.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

Value square(Builder& b, Value x) { return b.mul(x, x); }

// The input as seen per channel.
struct Channels {
  Value x;      // Widened.
  Dims others;  // Every dim but 1.
  int64_t count;

  DType math() const { return x.dtype(); }
  // A per-channel tensor, widened and shaped to broadcast against x.
  Value along_channels(Builder& b, Value parameter) const {
    return along(b, b.convert(parameter, math()), x.rank(), 1);
  }
  // Sum over everything but channels: [C].
  Value sum(Builder& b, Value y) const { return b.sum(y, others); }
};

Channels channels_of(Builder& b, Value input) {
  Channels c;
  c.x = b.convert(input, opmath(input.dtype()));
  for (int64_t i = 0; i < c.x.rank(); ++i) {
    if (i != 1) c.others.push_back(i);
  }
  c.count = count_of(c.x, c.others);
  return c;
}

struct BatchMoments {
  Value mean, variance;  // [C], biased.
};

BatchMoments batch_moments(Builder& b, const Channels& c) {
  const Value centre = mean(b, c.x, c.others, false);
  const Value gap = b.sub(c.x, c.along_channels(b, centre));
  return {centre, mean(b, square(b, gap), c.others, false)};
}

Value affine(Builder& b, const OpCall& call, const Channels& c, Value mean, Value invstd) {
  const Value scale = call.has(1) ? b.mul(invstd, b.convert(call.tensor(1), c.math())) : invstd;
  Value y = b.mul(b.sub(c.x, c.along_channels(b, mean)), c.along_channels(b, scale));
  if (call.has(2)) y = b.add(y, c.along_channels(b, call.tensor(2)));
  return b.convert(y, call.tensor(0).dtype());
}

// running * (1 - momentum) + value * momentum
Value moved(Builder& b, Value running, Value value, Value momentum) {
  const Value old = b.convert(running, value.dtype());
  const Value kept = b.mul(old, b.sub(b.like(momentum, 1), momentum));
  return b.add(kept, b.mul(value, momentum));
}

Value unbiased(Builder& b, Value variance, int64_t count) {
  const double factor = static_cast<double>(count) / static_cast<double>(count - 1);
  return b.mul(variance, b.like(variance, factor));
}

struct BatchNorm {
  Value output, save_mean, save_invstd, running_mean, running_var;
};

// Arguments 0..2 are input, weight, bias; `running` is the index of running_mean or -1.
BatchNorm batch_norm(const OpCall& call, int running, bool training, size_t momentum, size_t eps) {
  Builder& b = call.builder();
  const Channels c = channels_of(b, call.tensor(0));
  const Value epsilon = call.scalar(eps, c.math());
  Value running_mean, running_var;
  if (running >= 0) {
    running_mean = call.optional_tensor(static_cast<size_t>(running));
    running_var = call.optional_tensor(static_cast<size_t>(running) + 1);
  }
  BatchNorm n;
  n.running_mean = running_mean;
  n.running_var = running_var;
  if (training) {
    const BatchMoments m = batch_moments(b, c);
    n.save_mean = m.mean;
    n.save_invstd = b.rsqrt(b.add(m.variance, epsilon));
    const Value rate = call.scalar(momentum, c.math());
    if (running_mean.defined()) n.running_mean = moved(b, running_mean, m.mean, rate);
    if (running_var.defined()) {
      n.running_var = moved(b, running_var, unbiased(b, m.variance, c.count), rate);
    }
  } else {
    NEURON_CHECK(running_mean.defined() && running_var.defined(), kInvalid,
                 "Expected running_mean and running_var to be defined when training=False");
    n.save_mean = b.convert(running_mean, c.math());
    n.save_invstd = b.rsqrt(b.add(b.convert(running_var, c.math()), epsilon));
  }
  n.output = affine(b, call, c, n.save_mean, n.save_invstd);
  return n;
}

// Statistics that the caller keeps; outside training some forms keep nothing.
Value saved(Builder& b, const OpCall& call, size_t k, Value value) {
  const ResultType& expected = call.result(k);
  if (!expected.defined) return {};
  return count_elements(expected.dims) == 0 ? b.zeros(expected.dtype, expected.dims) : value;
}

Values native_batch_norm(Builder& b, const OpCall& call) {
  const BatchNorm n = batch_norm(call, 3, call.flag(5), 6, 7);
  return {n.output, saved(b, call, 1, n.save_mean), saved(b, call, 2, n.save_invstd),
          n.running_mean, n.running_var};
}
NEURON_LOWERING_WRITES(
    "aten::native_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, "
    "Tensor? running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
    native_batch_norm, "running_mean", "running_var");
NEURON_LOWERING(
    "aten::_native_batch_norm_legit_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor "
    "running_mean, Tensor running_var, bool training, float momentum, float eps) -> (Tensor, "
    "Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)",
    native_batch_norm);

Values batch_norm_no_stats(Builder& b, const OpCall& call) {
  const BatchNorm n = batch_norm(call, -1, true, 4, 5);
  return {n.output, saved(b, call, 1, n.save_mean), saved(b, call, 2, n.save_invstd)};
}
NEURON_LOWERING(
    "aten::_native_batch_norm_legit.no_stats(Tensor input, Tensor? weight, Tensor? bias, bool "
    "training, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
    batch_norm_no_stats);

Values batch_norm_no_training(Builder& b, const OpCall& call) {
  const BatchNorm n = batch_norm(call, 3, false, 5, 6);
  return {n.output, saved(b, call, 1, n.save_mean), saved(b, call, 2, n.save_invstd)};
}
NEURON_LOWERING(
    "aten::_native_batch_norm_legit_no_training(Tensor input, Tensor? weight, Tensor? bias, "
    "Tensor running_mean, Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, "
    "Tensor)",
    batch_norm_no_training);

// The fourth result is a workspace for other back ends: empty here.
Value reserve(Builder& b, const OpCall& call) {
  return b.zeros(call.result(3).dtype, call.result(3).dims);
}

Values batch_norm_with_update(Builder& b, const OpCall& call) {
  const BatchNorm n = batch_norm(call, 3, true, 5, 6);
  return {n.output,
          saved(b, call, 1, n.save_mean),
          saved(b, call, 2, n.save_invstd),
          reserve(b, call),
          n.running_mean,
          n.running_var};
}
NEURON_LOWERING(
    "aten::_batch_norm_with_update_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor "
    "running_mean, Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, "
    "Tensor, Tensor running_mean_out, Tensor running_var_out)",
    batch_norm_with_update);

Values batch_norm_no_update(Builder& b, const OpCall& call) {
  const bool training = !call.has(3);
  const BatchNorm n = batch_norm(call, 3, training, 5, 6);
  return {n.output, saved(b, call, 1, n.save_mean), saved(b, call, 2, n.save_invstd),
          reserve(b, call)};
}
NEURON_LOWERING(
    "aten::_batch_norm_no_update(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, "
    "Tensor? running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor)",
    batch_norm_no_update);

// grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, mask
Values batch_norm_backward(Builder& b, const OpCall& call) {
  const Channels c = channels_of(b, call.tensor(1));
  const DType math = c.math();
  const Value grad = b.convert(call.tensor(0), math);
  const bool training = call.flag(7);
  Value centre, invstd;
  if (training) {
    centre = b.convert(call.tensor(5), math);
    invstd = b.convert(call.tensor(6), math);
  } else {
    centre = b.convert(call.tensor(3), math);
    invstd = b.rsqrt(b.add(b.convert(call.tensor(4), math), call.scalar(8, math)));
  }
  const Dims mask = call.ints(9);
  const Value gap = b.sub(c.x, c.along_channels(b, centre));
  const Value sum_grad = c.sum(b, grad);
  const Value dot = c.sum(b, b.mul(grad, gap));
  Values grads(3);
  if (mask[0] != 0) {
    const Value scale = call.has(2) ? b.mul(invstd, b.convert(call.tensor(2), math)) : invstd;
    Value inner = grad;
    if (training) {
      const Value count = b.constant(math, static_cast<double>(c.count));
      const Value mean_grad = b.div(sum_grad, count);
      const Value slope = b.mul(b.div(dot, count), square(b, invstd));
      inner = b.sub(b.sub(grad, c.along_channels(b, mean_grad)),
                    b.mul(gap, c.along_channels(b, slope)));
    }
    grads[0] = b.mul(inner, c.along_channels(b, scale));
  }
  if (mask[1] != 0) grads[1] = b.mul(dot, invstd);
  if (mask[2] != 0) grads[2] = sum_grad;
  return grads;
}
NEURON_LOWERING(
    "aten::native_batch_norm_backward(Tensor grad_out, Tensor input, Tensor? weight, Tensor? "
    "running_mean, Tensor? running_var, Tensor? save_mean, Tensor? save_invstd, bool train, float "
    "eps, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
    batch_norm_backward);
// The same arguments with a workspace at the end, which is unused.
NEURON_LOWERING(
    "aten::batch_norm_backward(Tensor grad_out, Tensor input, Tensor weight, Tensor? running_mean, "
    "Tensor? running_var, Tensor? save_mean, Tensor? save_var, bool update, float eps, bool[3] "
    "output_mask, Tensor reserve) -> (Tensor, Tensor, Tensor)",
    batch_norm_backward);

// --- Pieces of synchronised batch norm --------------------------------------------------------

Values batch_norm_stats(Builder& b, const OpCall& call) {
  const Channels c = channels_of(b, call.tensor(0));
  const BatchMoments m = batch_moments(b, c);
  return {m.mean, b.rsqrt(b.add(m.variance, call.scalar(1, c.math())))};
}
NEURON_LOWERING("aten::batch_norm_stats(Tensor input, float eps) -> (Tensor, Tensor)",
                batch_norm_stats);

Values batch_norm_update_stats(Builder& b, const OpCall& call) {
  const Channels c = channels_of(b, call.tensor(0));
  const BatchMoments m = batch_moments(b, c);
  const Value rate = call.scalar(3, c.math());
  Values results = {m.mean, m.variance, {}, {}};
  if (call.has(1)) results[2] = moved(b, call.tensor(1), m.mean, rate);
  if (call.has(2)) {
    results[3] = moved(b, call.tensor(2), unbiased(b, m.variance, c.count), rate);
  }
  return results;
}
NEURON_LOWERING_WRITES(
    "aten::batch_norm_update_stats(Tensor input, Tensor? running_mean, Tensor? running_var, float "
    "momentum) -> (Tensor, Tensor)",
    batch_norm_update_stats, "running_mean", "running_var");

Values batch_norm_elemt(Builder& b, const OpCall& call) {
  const Channels c = channels_of(b, call.tensor(0));
  return {
      affine(b, call, c, b.convert(call.tensor(3), c.math()), b.convert(call.tensor(4), c.math()))};
}
NEURON_LOWERING(
    "aten::batch_norm_elemt(Tensor input, Tensor? weight, Tensor? bias, Tensor mean, Tensor "
    "invstd, float eps) -> Tensor",
    batch_norm_elemt);

// mean and invstd are [replicas, C]; counts holds the replicas' element counts.
Values gather_stats(const OpCall& call, Value counts) {
  Builder& b = call.builder();
  const Value means = b.convert(call.tensor(1), counts.dtype());
  const Value invstds = b.convert(call.tensor(2), counts.dtype());
  const DType math = counts.dtype();
  const Value eps = call.scalar(6, math);
  const Dims replicas{0};
  const Value weights = b.reshape(counts, Dims{counts.count(), 1});
  const Value total = b.sum(counts, replicas);
  const Value centre = b.div(b.sum(b.mul(means, weights), replicas), total);
  const Value variances = b.sub(b.div(b.like(invstds, 1), square(b, invstds)), eps);
  const Value gaps = b.sub(means, b.unsqueeze(centre, 0));
  const Value squares = b.sum(b.mul(b.add(variances, square(b, gaps)), weights), replicas);
  const Value variance = b.div(squares, total);
  const Value rate = call.scalar(5, math);
  Values results = {centre, b.rsqrt(b.add(variance, eps)), {}, {}};
  if (call.has(3)) results[2] = moved(b, call.tensor(3), centre, rate);
  if (call.has(4)) {
    const Value free = b.div(squares, b.sub(total, b.like(total, 1)));
    results[3] = moved(b, call.tensor(4), free, rate);
  }
  return results;
}

Values batch_norm_gather_stats(Builder& b, const OpCall& call) {
  const Value means = call.tensor(1);
  const DType math = opmath(means.dtype());
  return gather_stats(call,
                      b.constant(math, static_cast<double>(call.integer(7)), Dims{means.dim(0)}));
}
NEURON_LOWERING_WRITES(
    "aten::batch_norm_gather_stats(Tensor input, Tensor mean, Tensor invstd, Tensor? running_mean, "
    "Tensor? running_var, float momentum, float eps, int count) -> (Tensor, Tensor)",
    batch_norm_gather_stats, "running_mean", "running_var");

Values batch_norm_gather_stats_with_counts(Builder& b, const OpCall& call) {
  const Value counts = call.tensor(7);
  const Value wide = b.convert(counts, opmath(call.tensor(1).dtype()));
  return gather_stats(call, b.reshape(wide, Dims{counts.count()}));
}
NEURON_LOWERING_WRITES(
    "aten::batch_norm_gather_stats_with_counts(Tensor input, Tensor mean, Tensor invstd, Tensor? "
    "running_mean, Tensor? running_var, float momentum, float eps, Tensor counts) -> (Tensor, "
    "Tensor)",
    batch_norm_gather_stats_with_counts, "running_mean", "running_var");

// grad_out, input, mean, invstd, weight, input_g, weight_g, bias_g
Values batch_norm_backward_reduce(Builder& b, const OpCall& call) {
  const Channels c = channels_of(b, call.tensor(1));
  const DType math = c.math();
  const Value grad = b.convert(call.tensor(0), math);
  const Value gap = b.sub(c.x, c.along_channels(b, call.tensor(2)));
  const Value sum_grad = c.sum(b, grad);
  const Value dot = c.sum(b, b.mul(grad, gap));
  Values results(4);
  if (call.flag(5)) {
    results[0] = sum_grad;
    results[1] = dot;
  }
  if (call.flag(6)) results[2] = b.mul(dot, b.convert(call.tensor(3), math));
  if (call.flag(7)) results[3] = sum_grad;
  return results;
}
NEURON_LOWERING(
    "aten::batch_norm_backward_reduce(Tensor grad_out, Tensor input, Tensor mean, Tensor invstd, "
    "Tensor? weight, bool input_g, bool weight_g, bool bias_g) -> (Tensor, Tensor, Tensor, "
    "Tensor)",
    batch_norm_backward_reduce);

// grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count
Values batch_norm_backward_elemt(Builder& b, const OpCall& call) {
  const Channels c = channels_of(b, call.tensor(1));
  const DType math = c.math();
  const Value grad = b.convert(call.tensor(0), math);
  const Value invstd = b.convert(call.tensor(3), math);
  const Value counts = b.convert(call.tensor(7), math);
  Dims all;
  for (int64_t i = 0; i < counts.rank(); ++i) all.push_back(i);
  const Value total = b.sum(counts, all);
  const Value mean_grad = b.div(b.convert(call.tensor(5), math), total);
  const Value slope = b.mul(b.div(b.convert(call.tensor(6), math), total), square(b, invstd));
  const Value scale = call.has(4) ? b.mul(invstd, b.convert(call.tensor(4), math)) : invstd;
  const Value gap = b.sub(c.x, c.along_channels(b, call.tensor(2)));
  const Value inner =
      b.sub(b.sub(grad, c.along_channels(b, mean_grad)), b.mul(gap, c.along_channels(b, slope)));
  return {b.mul(inner, c.along_channels(b, scale))};
}
NEURON_LOWERING(
    "aten::batch_norm_backward_elemt(Tensor grad_out, Tensor input, Tensor mean, Tensor invstd, "
    "Tensor? weight, Tensor sum_dy, Tensor sum_dy_xmu, Tensor count) -> Tensor",
    batch_norm_backward_elemt);

}  // namespace
}  // namespace neuron::lowering
