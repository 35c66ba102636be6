// Layer, RMS, group and weight normalization. Statistics are computed in f32 or wider, two passes.

#include "neuron/base/error.h"
#include "neuron/lowering/numerics.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

Value square(Builder& b, Value x) { return b.mul(x, x); }

Value wide(Builder& b, Value x) { return x.defined() ? b.convert(x, opmath(x.dtype())) : x; }

// The last dims, as many as the normalized shape has.
Dims trailing_dims(Value x, size_t count) {
  Dims dims;
  for (int64_t i = x.rank() - static_cast<int64_t>(count); i < x.rank(); ++i) dims.push_back(i);
  return dims;
}

Dims leading_dims(Value x, size_t trailing) {
  Dims dims;
  for (int64_t i = 0; i < x.rank() - static_cast<int64_t>(trailing); ++i) dims.push_back(i);
  return dims;
}

struct Statistics {
  Value mean, rstd;  // With size-1 dims.
};

Statistics statistics(Builder& b, Value x, DimsRef dims, Value eps) {
  const Value centre = mean(b, x, dims, true);
  const Value variance = mean(b, square(b, b.sub(x, centre)), dims, true);
  return {centre, b.rsqrt(b.add(variance, eps))};
}

Values layer_norm(Builder& b, const OpCall& call) {
  const Value x = wide(b, call.tensor(0));
  const Dims dims = trailing_dims(x, call.ints(1).size());
  const auto [centre, rstd] = statistics(b, x, dims, call.scalar(4, x.dtype()));
  Value y = b.mul(b.sub(x, centre), rstd);
  if (call.has(2)) y = b.mul(y, b.convert(call.tensor(2), x.dtype()));
  if (call.has(3)) y = b.add(y, b.convert(call.tensor(3), x.dtype()));
  // Rounded to the input's type first; statistics in the type that the caller expects.
  return {b.convert(y, call.tensor(0).dtype()), b.reshape(centre, call.result(1).dims),
          b.reshape(rstd, call.result(2).dims)};
}
NEURON_LOWERING(
    "aten::native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? "
    "bias, float eps) -> (Tensor, Tensor, Tensor)",
    layer_norm);

// dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), g = dy * weight.
Value normalized_grad(Builder& b, Value g, Value normalized, Value rstd, DimsRef dims) {
  const Value mean_g = mean(b, g, dims, true);
  const Value mean_gx = mean(b, b.mul(g, normalized), dims, true);
  return b.mul(rstd, b.sub(b.sub(g, mean_g), b.mul(normalized, mean_gx)));
}

Values layer_norm_backward(Builder& b, const OpCall& call) {
  const Value x = wide(b, call.tensor(1));
  const DType math = x.dtype();
  const Value grad = b.convert(call.tensor(0), math);
  const size_t count = call.ints(2).size();
  const Dims inner = trailing_dims(x, count), outer = leading_dims(x, count);
  const Value centre = b.reshape(b.convert(call.tensor(3), math), kept_dims(x, inner));
  const Value rstd = b.reshape(b.convert(call.tensor(4), math), kept_dims(x, inner));
  const Value normalized = b.mul(b.sub(x, centre), rstd);
  const Dims mask = call.ints(7);
  Values grads(3);
  if (mask[0] != 0) {
    const Value g = call.has(5) ? b.mul(grad, b.convert(call.tensor(5), math)) : grad;
    grads[0] = normalized_grad(b, g, normalized, rstd, inner);
  }
  if (mask[1] != 0 && call.has(5)) grads[1] = b.sum(b.mul(grad, normalized), outer);
  if (mask[2] != 0 && call.has(6)) grads[2] = b.sum(grad, outer);
  return grads;
}
NEURON_LOWERING(
    "aten::native_layer_norm_backward(Tensor grad_out, Tensor input, SymInt[] normalized_shape, "
    "Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask) -> (Tensor, "
    "Tensor, Tensor)",
    layer_norm_backward);

// --- RMS norm ---------------------------------------------------------------------------------

Values rms_norm(Builder& b, const OpCall& call) {
  const Value x = wide(b, call.tensor(0));
  const Dims dims = trailing_dims(x, call.ints(1).size());
  const Value eps = call.has(3) ? call.scalar(3, x.dtype()) : b.like(x, epsilon_of(x.dtype()));
  const Value rstd = b.rsqrt(b.add(mean(b, square(b, x), dims, true), eps));
  Value y = b.mul(x, rstd);
  if (call.has(2)) y = b.mul(y, b.convert(call.tensor(2), x.dtype()));
  return {y, b.reshape(rstd, call.result(1).dims)};
}
NEURON_LOWERING(
    "aten::_fused_rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) -> "
    "(Tensor, Tensor)",
    rms_norm);

Values rms_norm_backward(Builder& b, const OpCall& call) {
  const Value x = wide(b, call.tensor(1));
  const DType math = x.dtype();
  const Value grad = b.convert(call.tensor(0), math);
  const size_t count = call.ints(2).size();
  const Dims inner = trailing_dims(x, count), outer = leading_dims(x, count);
  const Value rstd = b.reshape(b.convert(call.tensor(3), math), kept_dims(x, inner));
  const Value normalized = b.mul(x, rstd);
  const Dims mask = call.ints(5);
  Values grads(2);
  if (mask[0] != 0) {
    const Value g = call.has(4) ? b.mul(grad, b.convert(call.tensor(4), math)) : grad;
    const Value mean_gx = mean(b, b.mul(g, normalized), inner, true);
    grads[0] = b.mul(rstd, b.sub(g, b.mul(normalized, mean_gx)));
  }
  if (mask[1] != 0 && call.has(4)) grads[1] = b.sum(b.mul(grad, normalized), outer);
  return grads;
}
NEURON_LOWERING(
    "aten::_fused_rms_norm_backward(Tensor grad_out, Tensor input, int[] normalized_shape, Tensor "
    "rstd, Tensor? weight, bool[2] output_mask) -> (Tensor, Tensor)",
    rms_norm_backward);

// --- Group norm -------------------------------------------------------------------------------

// [N, C, spatial...] as [N, groups, channels of a group, spatial]; statistics over dims 2 and 3.
struct Groups {
  int64_t batch, channels, spatial, groups;
  Dims grouped() const { return {batch, groups, channels / groups, spatial}; }
  Dims statistics() const { return {batch, groups, 1, 1}; }
  // Per-channel parameters.
  Dims parameters() const { return {1, groups, channels / groups, 1}; }
};

Groups groups_of(const OpCall& call, size_t first) {
  return {call.integer(first), call.integer(first + 1), call.integer(first + 2),
          call.integer(first + 3)};
}

Values group_norm(Builder& b, const OpCall& call) {
  const Groups g = groups_of(call, 3);
  const Value x = b.reshape(wide(b, call.tensor(0)), g.grouped());
  const DType math = x.dtype();
  const auto [centre, rstd] = statistics(b, x, Dims{2, 3}, call.scalar(7, math));
  Value y = b.mul(b.sub(x, centre), rstd);
  if (call.has(1)) y = b.mul(y, b.reshape(b.convert(call.tensor(1), math), g.parameters()));
  if (call.has(2)) y = b.add(y, b.reshape(b.convert(call.tensor(2), math), g.parameters()));
  return {b.reshape(y, call.tensor(0).dims()), b.reshape(centre, call.result(1).dims),
          b.reshape(rstd, call.result(2).dims)};
}
NEURON_LOWERING(
    "aten::native_group_norm(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, "
    "SymInt HxW, int group, float eps) -> (Tensor, Tensor, Tensor)",
    group_norm);

Values group_norm_backward(Builder& b, const OpCall& call) {
  const Groups g = groups_of(call, 5);
  const Value x = b.reshape(wide(b, call.tensor(1)), g.grouped());
  const DType math = x.dtype();
  const Value grad = b.reshape(b.convert(call.tensor(0), math), g.grouped());
  const Value centre = b.reshape(b.convert(call.tensor(2), math), g.statistics());
  const Value rstd = b.reshape(b.convert(call.tensor(3), math), g.statistics());
  const Value normalized = b.mul(b.sub(x, centre), rstd);
  const Dims mask = call.ints(9);
  Values grads(3);
  if (mask[0] != 0) {
    const Value scaled =
        call.has(4) ? b.mul(grad, b.reshape(b.convert(call.tensor(4), math), g.parameters()))
                    : grad;
    grads[0] =
        b.reshape(normalized_grad(b, scaled, normalized, rstd, Dims{2, 3}), call.tensor(1).dims());
  }
  if (mask[1] != 0) {
    grads[1] = b.reshape(b.sum(b.mul(grad, normalized), Dims{0, 3}), Dims{g.channels});
  }
  if (mask[2] != 0) grads[2] = b.reshape(b.sum(grad, Dims{0, 3}), Dims{g.channels});
  return grads;
}
NEURON_LOWERING(
    "aten::native_group_norm_backward(Tensor grad_out, Tensor input, Tensor mean, Tensor rstd, "
    "Tensor? weight, SymInt N, SymInt C, SymInt HxW, int group, bool[3] output_mask) -> (Tensor, "
    "Tensor, Tensor)",
    group_norm_backward);

// --- Weight norm ------------------------------------------------------------------------------

Dims dims_except(Value x, int64_t kept) {
  Dims dims;
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (i != kept) dims.push_back(i);
  }
  return dims;
}

Values weight_norm(Builder& b, const OpCall& call) {
  const Value v = wide(b, call.tensor(0));
  const Value size = b.sqrt(b.sum(square(b, v), dims_except(v, call.dim(2, v.rank())), true));
  const Value g = b.convert(call.tensor(1), v.dtype());
  return {b.convert(b.mul(v, b.div(g, size)), call.tensor(0).dtype()),
          b.reshape(size, call.result(1).dims)};
}
NEURON_LOWERING("aten::_weight_norm_interface(Tensor v, Tensor g, int dim=0) -> (Tensor, Tensor)",
                weight_norm);

Values weight_norm_backward(Builder& b, const OpCall& call) {
  const Value v = wide(b, call.tensor(1));
  const DType math = v.dtype();
  const Dims dims = dims_except(v, call.dim(4, v.rank()));
  const Value grad = b.convert(call.tensor(0), math);
  const Value g = b.reshape(b.convert(call.tensor(2), math), kept_dims(v, dims));
  const Value size = b.reshape(b.convert(call.tensor(3), math), kept_dims(v, dims));
  const Value dot = b.sum(b.mul(grad, v), dims, true);
  const Value cube = b.mul(b.mul(size, size), size);
  const Value grad_v = b.mul(g, b.sub(b.div(grad, size), b.div(b.mul(v, dot), cube)));
  return {b.convert(grad_v, call.tensor(1).dtype()),
          b.reshape(b.div(dot, size), call.tensor(2).dims())};
}
NEURON_LOWERING(
    "aten::_weight_norm_interface_backward(Tensor grad_w, Tensor saved_v, Tensor saved_g, Tensor "
    "saved_norms, int dim) -> (Tensor, Tensor)",
    weight_norm_backward);

}  // namespace
}  // namespace neuron::lowering
