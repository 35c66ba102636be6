// Fused optimizer steps over lists of tensors, and the pieces of gradient scaling.
//
// Everything that may change between steps (learning rate, betas, decay) is a run-time number;
// where torch branches on its value, a select keeps both meanings in one program. `found_inf` other
// than 0 leaves every tensor as it was.

#include "neuron/base/error.h"
#include "neuron/lowering/numerics.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

// A step's common parts: arguments are named by position.
class Step {
 public:
  Step(const OpCall& call, size_t grad_scale, size_t found_inf) : call_(call), b_(call.builder()) {
    if (call.has(grad_scale)) scale_ = b_.reshape(call.tensor(grad_scale), {});
    if (call.has(found_inf)) {
      const Value found = b_.reshape(call.tensor(found_inf), {});
      skip_ = b_.eq(found, b_.like(found, 1));
    }
  }

  Value number(size_t i, DType math) const { return b_.reshape(operand(call_, i, math), {}); }

  Value wide(size_t list, size_t k) const {
    const Value x = call_.tensors(list)[k];
    return b_.convert(x, opmath(x.dtype()));
  }

  Value in(Value x, DType math) const { return b_.convert(x, math); }

  // Divided by the gradient scale, if there is one. torch stores this back into the gradients.
  Value unscaled(size_t list, size_t k, DType math) const {
    const Value grad = b_.convert(call_.tensors(list)[k], math);
    return scale_.defined() ? b_.div(grad, b_.convert(scale_, math)) : grad;
  }

  bool scales() const { return scale_.defined(); }

  // The new value of a list's member, unless the step is skipped.
  Value kept(size_t list, size_t k, Value updated) const {
    const Value old = call_.tensors(list)[k];
    const Value rounded = b_.convert(updated, old.dtype());
    return skip_.defined() ? b_.select(skip_, old, rounded) : rounded;
  }

  // grad + decay * parameter; decay 0 hides a NaN in the parameter.
  Value decayed(Value grad, Value parameter, Value decay) const {
    return b_.select(b_.eq(decay, b_.like(decay, 0)), grad, b_.add(grad, b_.mul(parameter, decay)));
  }

 private:
  const OpCall& call_;
  Builder& b_;
  Value scale_, skip_;
};

// Results of list returns, list after list.
Values flattened(std::initializer_list<Values> lists) {
  Values all;
  for (const Values& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1, beta2,
// weight_decay, eps, amsgrad, maximize, grad_scale, found_inf
template <bool decoupled>
Values adam(Builder& b, const OpCall& call) {
  const Step step(call, 13, 14);
  const bool amsgrad = call.flag(11), maximize = call.flag(12);
  const size_t count = call.tensors(0).size();
  Values params, grads, averages, squares, peaks;
  for (size_t k = 0; k < count; ++k) {
    Value param = step.wide(0, k);
    const DType math = param.dtype();
    const Value one = b.constant(math, 1);
    const Value lr = step.number(6, math), beta1 = step.number(7, math);
    const Value beta2 = step.number(8, math), decay = step.number(9, math);
    const Value eps = step.number(10, math);
    const Value unscaled = step.unscaled(1, k, math);
    Value grad = maximize ? b.neg(unscaled) : unscaled;
    if (decoupled) {
      param = b.mul(param, b.sub(one, b.mul(lr, decay)));
    } else {
      grad = step.decayed(grad, param, decay);
    }
    const Value old_average = step.in(call.tensors(2)[k], math);
    const Value old_square = step.in(call.tensors(3)[k], math);
    const Value average = b.add(b.mul(beta1, old_average), b.mul(b.sub(one, beta1), grad));
    const Value square =
        b.add(b.mul(beta2, old_square), b.mul(b.mul(b.sub(one, beta2), grad), grad));
    // Corrections need more digits than 1 - beta^step leaves in f32.
    const Value steps = b.convert(b.reshape(call.tensors(5)[k], {}), DType::f64);
    const auto correction = [&](size_t beta) {
      return b.sub(b.constant(DType::f64, 1), b.pow(step.number(beta, DType::f64), steps));
    };
    const Value step_size = b.convert(b.div(step.number(6, DType::f64), correction(7)), math);
    const Value root = b.convert(b.sqrt(correction(8)), math);
    Value peak = square;
    if (amsgrad) {
      peak = b.max(step.in(call.tensors(4)[k], math), square);
      peaks.push_back(step.kept(4, k, peak));
    }
    const Value denominator = b.add(b.div(b.sqrt(peak), root), eps);
    param = b.sub(param, b.div(b.mul(step_size, average), denominator));
    params.push_back(step.kept(0, k, param));
    grads.push_back(step.scales() ? step.kept(1, k, unscaled) : call.tensors(1)[k]);
    averages.push_back(step.kept(2, k, average));
    squares.push_back(step.kept(3, k, square));
  }
  if (!amsgrad) peaks = call.tensors(4);
  return flattened({params, grads, averages, squares, peaks});
}

#define NEURON_ADAM_ARGUMENTS(lr)                                                               \
  "(Tensor[] self, Tensor[] grads, Tensor[] exp_avgs, Tensor[] exp_avg_sqs, Tensor[] "          \
  "max_exp_avg_sqs, Tensor[] state_steps, *, " lr                                               \
  " lr, float beta1, float beta2, float "                                                       \
  "weight_decay, float eps, bool amsgrad, bool maximize, Tensor? grad_scale=None, Tensor? "     \
  "found_inf=None) -> (Tensor[] self_out, Tensor[] grads_out, Tensor[] exp_avgs_out, Tensor[] " \
  "exp_avg_sqs_out, Tensor[] max_exp_avg_sqs_out)"
NEURON_LOWERING("aten::_fused_adam" NEURON_ADAM_ARGUMENTS("float"), adam<false>);
NEURON_LOWERING("aten::_fused_adam.tensor_lr" NEURON_ADAM_ARGUMENTS("Tensor"), adam<false>);
NEURON_LOWERING("aten::_fused_adamw" NEURON_ADAM_ARGUMENTS("float"), adam<true>);
NEURON_LOWERING("aten::_fused_adamw.tensor_lr" NEURON_ADAM_ARGUMENTS("Tensor"), adam<true>);
#undef NEURON_ADAM_ARGUMENTS

// self, grads, momentum_buffer_list, weight_decay, momentum, lr, dampening, nesterov, maximize,
// is_first_step, grad_scale, found_inf
Values sgd(Builder& b, const OpCall& call) {
  const Step step(call, 10, 11);
  const bool nesterov = call.flag(7), maximize = call.flag(8), first = call.flag(9);
  const bool has_momentum = !call.tensors(2).empty();
  const size_t count = call.tensors(0).size();
  Values params, grads, buffers;
  for (size_t k = 0; k < count; ++k) {
    Value param = step.wide(0, k);
    const DType math = param.dtype();
    const Value momentum = step.number(4, math), lr = step.number(5, math);
    const Value unscaled = step.unscaled(1, k, math);
    Value grad = maximize ? b.neg(unscaled) : unscaled;
    grad = step.decayed(grad, param, step.number(3, math));
    if (has_momentum) {
      Value buffer = grad;
      if (!first) {
        const Value rest = b.sub(b.constant(math, 1), step.number(6, math));
        buffer = b.add(b.mul(momentum, step.in(call.tensors(2)[k], math)), b.mul(rest, grad));
      }
      buffers.push_back(step.kept(2, k, buffer));
      grad = nesterov ? b.add(grad, b.mul(momentum, buffer)) : buffer;
    }
    param = b.sub(param, b.mul(lr, grad));
    params.push_back(step.kept(0, k, param));
    grads.push_back(step.scales() ? step.kept(1, k, unscaled) : call.tensors(1)[k]);
  }
  return flattened({params, grads, buffers});
}

#define NEURON_SGD_ARGUMENTS(lr)                                                                 \
  "(Tensor[] self, Tensor[] grads, Tensor[] momentum_buffer_list, *, float weight_decay, float " \
  "momentum, " lr                                                                                \
  " lr, float dampening, bool nesterov, bool maximize, bool is_first_step, "                     \
  "Tensor? grad_scale=None, Tensor? found_inf=None) -> (Tensor[] self_out, Tensor[] grads_out, " \
  "Tensor[] momentum_buffer_list_out)"
NEURON_LOWERING("aten::_fused_sgd" NEURON_SGD_ARGUMENTS("float"), sgd);
NEURON_LOWERING("aten::_fused_sgd.tensor_lr" NEURON_SGD_ARGUMENTS("Tensor"), sgd);
#undef NEURON_SGD_ARGUMENTS

// self, grads, state_sums, state_steps, lr, lr_decay, weight_decay, eps, maximize, grad_scale,
// found_inf. The overload with a tensor lr does not return the steps.
template <bool returns_steps>
Values adagrad(Builder& b, const OpCall& call) {
  const Step step(call, 9, 10);
  const bool maximize = call.flag(8);
  const size_t count = call.tensors(0).size();
  Values params, grads, sums;
  for (size_t k = 0; k < count; ++k) {
    Value param = step.wide(0, k);
    const DType math = param.dtype();
    const Value unscaled = step.unscaled(1, k, math);
    Value grad = maximize ? b.neg(unscaled) : unscaled;
    grad = step.decayed(grad, param, step.number(6, math));
    const Value one = b.constant(DType::f64, 1);
    const Value steps = b.convert(b.reshape(call.tensors(3)[k], {}), DType::f64);
    const Value slowed = b.add(one, b.mul(b.sub(steps, one), step.number(5, DType::f64)));
    const Value rate = b.convert(b.div(step.number(4, DType::f64), slowed), math);
    const Value sum = b.add(step.in(call.tensors(2)[k], math), b.mul(grad, grad));
    const Value denominator = b.add(b.sqrt(sum), step.number(7, math));
    param = b.sub(param, b.div(b.mul(rate, grad), denominator));
    params.push_back(step.kept(0, k, param));
    grads.push_back(step.scales() ? step.kept(1, k, unscaled) : call.tensors(1)[k]);
    sums.push_back(step.kept(2, k, sum));
  }
  return flattened({params, grads, sums, returns_steps ? call.tensors(3) : Values{}});
}

#define NEURON_ADAGRAD_ARGUMENTS(lr)                                                        \
  "(Tensor[] self, Tensor[] grads, Tensor[] state_sums, Tensor[] state_steps, *, " lr       \
  " lr, "                                                                                   \
  "float lr_decay, float weight_decay, float eps, bool maximize, Tensor? grad_scale=None, " \
  "Tensor? found_inf=None) -> (Tensor[] self_out, Tensor[] grads_out, Tensor[] state_sums_out"
NEURON_LOWERING(
    "aten::_fused_adagrad" NEURON_ADAGRAD_ARGUMENTS("float") ", Tensor[] state_steps_out)",
    adagrad<true>);
NEURON_LOWERING("aten::_fused_adagrad.tensor_lr" NEURON_ADAGRAD_ARGUMENTS("Tensor") ")",
                adagrad<false>);
#undef NEURON_ADAGRAD_ARGUMENTS

// --- Gradient scaling -------------------------------------------------------------------------

Values check_and_unscale(Builder& b, const OpCall& call) {
  const Value found = call.tensor(1);
  const Value inverse = b.reshape(call.tensor(2), {});
  Value any = b.constant_int(DType::pred, 0);
  Values results;
  for (const Value& grad : call.tensors(0)) {
    const Value wide = b.convert(grad, opmath(grad.dtype()));
    Dims dims;
    for (int64_t i = 0; i < wide.rank(); ++i) dims.push_back(i);
    any = either(b, any, b.reduce(hlo::ReduceKind::Or, b.logical_not(b.is_finite(wide)), dims));
    const Value factor = b.convert(inverse, wide.dtype());
    // A factor of 1 leaves the bits alone.
    results.push_back(b.select(b.eq(factor, b.like(factor, 1)), wide, b.mul(wide, factor)));
  }
  results.push_back(b.select(any, b.like(found, 1), found));
  return results;
}
NEURON_LOWERING(
    "aten::_amp_foreach_non_finite_check_and_unscale(Tensor[] self, Tensor found_inf, Tensor "
    "inv_scale) -> (Tensor[] self_out, Tensor found_inf_out)",
    check_and_unscale);

// self (scale), growth_tracker, found_inf, growth factor, backoff factor, growth interval
Values update_scale(Builder& b, const OpCall& call) {
  const Value scale = call.tensor(0), tracker = call.tensor(1);
  const Value found_inf = b.reshape(call.tensor(2), {});
  const Value found = b.ne(found_inf, b.like(found_inf, 0));
  const DType math = scale.dtype();
  const Value clean_steps = b.add(tracker, b.like(tracker, 1));
  const Value due = b.eq(clean_steps, b.constant_int(tracker.dtype(), call.integer(5)));
  const Value grown = b.mul(scale, call.scalar(3, math));
  // The scale never grows to infinity.
  const Value next = b.select(both(b, due, b.is_finite(grown)), grown, scale);
  const Value zero = b.like(tracker, 0);
  return {b.select(found, b.mul(scale, call.scalar(4, math)), next),
          b.select(either(b, found, due), zero, clean_steps)};
}
NEURON_LOWERING(
    "aten::_amp_update_scale(Tensor self, Tensor growth_tracker, Tensor found_inf, float "
    "scale_growth_factor, float scale_backoff_factor, int growth_interval) -> (Tensor, Tensor "
    "growth_tracker_out)",
    update_scale);

}  // namespace
}  // namespace neuron::lowering
