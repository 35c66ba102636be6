// Activation functions and their derivatives.

#include <numbers>

#include "neuron/base/error.h"
#include "neuron/lowering/numerics.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

using hlo::Op;

// The tensor operands of an activation in their common math type.
struct Operands {
  DType common;
  Value x, y, z;
};

Operands operands(const OpCall& call, std::initializer_list<size_t> tensors) {
  Operands result;
  result.common = result_type(call, tensors);
  Value* slots[] = {&result.x, &result.y, &result.z};
  size_t k = 0;
  for (size_t i : tensors) *slots[k++] = math_operand(call, i, result.common);
  return result;
}

// torch rounds once, to the common type.
#define NEURON_ROUNDED(of, value) {b.convert((value), (of).common)}

// --- Rectifiers -------------------------------------------------------------------------------

Values relu(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  return {maximum(b, x, b.like(x, 0))};
}
NEURON_LOWERING("aten::relu(Tensor self) -> Tensor", relu);

Values threshold(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0});
  const Value limit = math_operand(call, 1, of.common);
  const Value value = math_operand(call, 2, of.common);
  return NEURON_ROUNDED(of, b.select(b.le(of.x, limit), value, of.x));
}
NEURON_LOWERING("aten::threshold(Tensor self, Scalar threshold, Scalar value) -> Tensor",
                threshold);

Values threshold_backward(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0, 1});
  const Value limit = math_operand(call, 2, of.common);
  return NEURON_ROUNDED(of, b.select(b.le(of.y, limit), b.like(of.x, 0), of.x));
}
NEURON_LOWERING(
    "aten::threshold_backward(Tensor grad_output, Tensor self, Scalar threshold) -> Tensor",
    threshold_backward);

Values leaky_relu(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0});
  const Value slope = call.scalar(1, of.x.dtype());
  return NEURON_ROUNDED(of, b.select(b.gt(of.x, b.like(of.x, 0)), of.x, b.mul(of.x, slope)));
}
NEURON_LOWERING("aten::leaky_relu(Tensor self, Scalar negative_slope=0.01) -> Tensor", leaky_relu);

Values leaky_relu_backward(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0, 1});
  const Value slope = call.scalar(2, of.x.dtype());
  return NEURON_ROUNDED(of, b.select(b.gt(of.y, b.like(of.y, 0)), of.x, b.mul(of.x, slope)));
}
NEURON_LOWERING(
    "aten::leaky_relu_backward(Tensor grad_output, Tensor self, Scalar negative_slope, bool "
    "self_is_result) -> Tensor",
    leaky_relu_backward);

Values prelu(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0, 1});
  return NEURON_ROUNDED(of, b.select(b.gt(of.x, b.like(of.x, 0)), of.x, b.mul(of.y, of.x)));
}
NEURON_LOWERING("aten::_prelu_kernel(Tensor self, Tensor weight) -> Tensor", prelu);

Values prelu_backward(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0, 1, 2});
  const Value positive = b.gt(of.y, b.like(of.y, 0));
  const Value grad_x = b.select(positive, of.x, b.mul(of.z, of.x));
  const Value grad_weight = b.select(positive, b.like(of.x, 0), b.mul(of.y, of.x));
  return {b.convert(grad_x, of.common), b.convert(grad_weight, of.common)};
}
NEURON_LOWERING(
    "aten::_prelu_kernel_backward(Tensor grad_output, Tensor self, Tensor weight) -> (Tensor, "
    "Tensor)",
    prelu_backward);

Values rrelu_backward(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0, 1, 2});
  const double lower = call.number(3), upper = call.number(4);
  if (call.flag(5) && upper - lower > 1e-6) return NEURON_ROUNDED(of, b.mul(of.x, of.z));
  const Value slope = b.like(of.x, (lower + upper) / 2);
  return NEURON_ROUNDED(of, b.select(b.gt(of.y, b.like(of.y, 0)), of.x, b.mul(of.x, slope)));
}
NEURON_LOWERING(
    "aten::rrelu_with_noise_backward(Tensor grad_output, Tensor self, Tensor noise, Scalar lower, "
    "Scalar upper, bool training, bool self_is_result) -> Tensor",
    rrelu_backward);

// --- Piecewise linear -------------------------------------------------------------------------

Values hardtanh(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0});
  const Value low = math_operand(call, 1, of.common), high = math_operand(call, 2, of.common);
  return NEURON_ROUNDED(of, b.min(b.max(of.x, low), high));
}
NEURON_LOWERING("aten::hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor",
                hardtanh);

Values hardtanh_backward(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0, 1});
  const Value low = call.scalar(2, of.x.dtype()), high = call.scalar(3, of.x.dtype());
  const Value flat = either(b, b.le(of.y, low), b.ge(of.y, high));
  return NEURON_ROUNDED(of, b.select(flat, b.like(of.x, 0), of.x));
}
NEURON_LOWERING(
    "aten::hardtanh_backward(Tensor grad_output, Tensor self, Scalar min_val, Scalar max_val) -> "
    "Tensor",
    hardtanh_backward);

// min(max(x + 3, 0), 6)
Value ramp(Builder& b, Value x) {
  return b.min(b.max(b.add(x, b.like(x, 3)), b.like(x, 0)), b.like(x, 6));
}

Values hardsigmoid(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0});
  return NEURON_ROUNDED(of, b.div(ramp(b, of.x), b.like(of.x, 6)));
}
NEURON_LOWERING("aten::hardsigmoid(Tensor self) -> Tensor", hardsigmoid);

Values hardsigmoid_backward(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0, 1});
  const Value steep = both(b, b.gt(of.y, b.like(of.y, -3)), b.lt(of.y, b.like(of.y, 3)));
  return NEURON_ROUNDED(of, b.select(steep, b.mul(of.x, b.like(of.x, 1.0 / 6.0)), b.like(of.x, 0)));
}
NEURON_LOWERING("aten::hardsigmoid_backward(Tensor grad_output, Tensor self) -> Tensor",
                hardsigmoid_backward);

Values hardswish(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0});
  return NEURON_ROUNDED(of, b.div(b.mul(of.x, ramp(b, of.x)), b.like(of.x, 6)));
}
NEURON_LOWERING("aten::hardswish(Tensor self) -> Tensor", hardswish);

Values hardswish_backward(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0, 1});
  const Value slope = b.add(b.div(of.y, b.like(of.y, 3)), b.like(of.y, 0.5));
  const Value inner = b.select(b.lt(of.y, b.like(of.y, 3)), b.mul(of.x, slope), of.x);
  return NEURON_ROUNDED(of, b.select(b.le(of.y, b.like(of.y, -3)), b.like(of.x, 0), inner));
}
NEURON_LOWERING("aten::hardswish_backward(Tensor grad_output, Tensor self) -> Tensor",
                hardswish_backward);

// -lambd <= x <= lambd
Value within(Builder& b, Value x, Value lambd) {
  return both(b, b.ge(x, b.neg(lambd)), b.le(x, lambd));
}

Values hardshrink(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0});
  const Value lambd = math_operand(call, 1, of.common);
  return NEURON_ROUNDED(of, b.select(within(b, of.x, lambd), b.like(of.x, 0), of.x));
}
NEURON_LOWERING("aten::hardshrink(Tensor self, Scalar lambd=0.5) -> Tensor", hardshrink);

Values softshrink(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0});
  const Value lambd = call.scalar(1, of.x.dtype());
  const Value below = b.select(b.lt(of.x, b.neg(lambd)), b.add(of.x, lambd),
                               b.mul(of.x, b.like(of.x, 0)));  // NaN stays NaN.
  return NEURON_ROUNDED(of, b.select(b.gt(of.x, lambd), b.sub(of.x, lambd), below));
}
NEURON_LOWERING("aten::softshrink(Tensor self, Scalar lambd=0.5) -> Tensor", softshrink);

Values shrink_backward(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0, 1});
  const Value lambd = math_operand(call, 2, of.common);
  return NEURON_ROUNDED(of, b.select(within(b, of.y, lambd), b.like(of.x, 0), of.x));
}
NEURON_LOWERING("aten::hardshrink_backward(Tensor grad_out, Tensor self, Scalar lambd) -> Tensor",
                shrink_backward);
NEURON_LOWERING(
    "aten::softshrink_backward(Tensor grad_output, Tensor self, Scalar lambd) -> Tensor",
    shrink_backward);

// --- Sigmoids ---------------------------------------------------------------------------------

// Gradients of complex functions multiply by the conjugate of the derivative.
Value conjugated(Builder& b, Value x) {
  return is_complex(x.dtype()) ? b.complex(b.real(x), b.neg(b.imag(x))) : x;
}

Values sigmoid_backward(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0, 1});
  const Value y = conjugated(b, of.y);
  return NEURON_ROUNDED(of, b.mul(of.x, b.mul(b.sub(b.like(y, 1), y), y)));
}
NEURON_LOWERING("aten::sigmoid_backward(Tensor grad_output, Tensor output) -> Tensor",
                sigmoid_backward);

Values tanh_backward(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0, 1});
  const Value y = conjugated(b, of.y);
  return NEURON_ROUNDED(of, b.mul(of.x, b.sub(b.like(y, 1), b.mul(y, y))));
}
NEURON_LOWERING("aten::tanh_backward(Tensor grad_output, Tensor output) -> Tensor", tanh_backward);

Values silu(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0});
  const Value one = b.like(of.x, 1);
  return NEURON_ROUNDED(of, b.div(of.x, b.add(one, b.exp(b.neg(of.x)))));
}
NEURON_LOWERING("aten::silu(Tensor self) -> Tensor", silu);

Values silu_backward(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0, 1});
  const Value s = b.logistic(of.y), one = b.like(of.y, 1);
  const Value slope = b.mul(s, b.add(one, b.mul(of.y, b.sub(one, s))));
  return NEURON_ROUNDED(of, b.mul(of.x, slope));
}
NEURON_LOWERING("aten::silu_backward(Tensor grad_output, Tensor self) -> Tensor", silu_backward);

Values mish(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0});
  return NEURON_ROUNDED(of, b.mul(of.x, b.tanh(b.log1p(b.exp(of.x)))));
}
NEURON_LOWERING("aten::mish(Tensor self) -> Tensor", mish);

Values mish_backward(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0, 1});
  const Value s = b.logistic(of.y), t = b.tanh(b.log1p(b.exp(of.y)));
  const Value bend = b.mul(b.mul(of.y, s), b.sub(b.like(t, 1), b.mul(t, t)));
  return NEURON_ROUNDED(of, b.mul(of.x, b.add(t, bend)));
}
NEURON_LOWERING("aten::mish_backward(Tensor grad_output, Tensor self) -> Tensor", mish_backward);

constexpr double kGeluBeta = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;  // sqrt(2 / pi)
constexpr double kGeluKappa = 0.044715;

Value gelu_inner(Builder& b, Value x) {
  const Value cube = b.mul(b.mul(x, x), x);
  return b.mul(b.like(x, kGeluBeta), b.add(x, b.mul(b.like(x, kGeluKappa), cube)));
}

bool by_tanh(std::string_view approximate) {
  NEURON_CHECK(approximate == "none" || approximate == "tanh", kInvalid,
               "approximate argument must be either none or tanh.");
  return approximate == "tanh";
}

Values gelu(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0});
  const Value x = of.x, one = b.like(x, 1), half = b.like(x, 0.5);
  if (by_tanh(call.text(1))) {
    return NEURON_ROUNDED(of, b.mul(b.mul(half, x), b.add(one, b.tanh(gelu_inner(b, x)))));
  }
  const Value scaled = b.mul(x, b.like(x, std::numbers::sqrt2 / 2));
  return NEURON_ROUNDED(of, b.mul(b.mul(x, half), b.add(one, b.erf(scaled))));
}
NEURON_LOWERING("aten::gelu(Tensor self, *, str approximate=\"none\") -> Tensor", gelu);

Values gelu_backward(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0, 1});
  const Value grad = of.x, x = of.y, one = b.like(x, 1), half = b.like(x, 0.5);
  if (by_tanh(call.text(2))) {
    const Value t = b.tanh(gelu_inner(b, x));
    const Value left = b.mul(half, b.add(one, t));
    const Value bend =
        b.mul(b.like(x, kGeluBeta), b.add(one, b.mul(b.like(x, 3 * kGeluKappa), b.mul(x, x))));
    const Value right = b.mul(b.mul(half, x), b.mul(b.sub(one, b.mul(t, t)), bend));
    return NEURON_ROUNDED(of, b.mul(grad, b.add(left, right)));
  }
  const Value cdf = b.mul(half, b.add(one, b.erf(b.mul(x, b.like(x, std::numbers::sqrt2 / 2)))));
  const Value density = b.mul(b.exp(b.mul(b.mul(x, x), b.like(x, -0.5))), b.like(x, kGeluBeta / 2));
  return NEURON_ROUNDED(of, b.mul(grad, b.add(cdf, b.mul(x, density))));
}
NEURON_LOWERING(
    "aten::gelu_backward(Tensor grad_output, Tensor self, *, str approximate=\"none\") -> Tensor",
    gelu_backward);

Values log_sigmoid(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0});
  const Value decay = b.exp(b.neg(b.abs(of.x)));
  const Value value = b.sub(b.min(of.x, b.like(of.x, 0)), b.log1p(decay));
  // The buffer serves the backward of torch's CPU; some metas leave it empty.
  const ResultType& buffer = call.result(1);
  const Value kept =
      buffer.dims == of.x.dims() ? b.convert(decay, of.common) : b.zeros(of.common, buffer.dims);
  return {b.convert(value, of.common), kept};
}
NEURON_LOWERING("aten::log_sigmoid_forward(Tensor self) -> (Tensor output, Tensor buffer)",
                log_sigmoid);

Values log_sigmoid_backward(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0, 1});
  const Value zero = b.like(of.y, 0), one = b.like(of.y, 1);
  const Value negative = b.lt(of.y, zero);
  const Value decay = b.exp(b.neg(b.abs(of.y)));
  const Value part = b.div(decay, b.add(one, decay));
  const Value slope = b.select(negative, b.sub(one, part), part);
  return NEURON_ROUNDED(of, b.mul(of.x, slope));
}
NEURON_LOWERING(
    "aten::log_sigmoid_backward(Tensor grad_output, Tensor self, Tensor buffer) -> Tensor",
    log_sigmoid_backward);

// --- Exponentials -----------------------------------------------------------------------------

// x > 0: scale * x; else: alpha * scale * (exp(input_scale * x) - 1).
Value elu_of(Builder& b, Value x, Value negative, Value positive, Value input_scale) {
  const Value bent = b.mul(b.expm1(b.mul(x, input_scale)), negative);
  return b.select(b.le(x, b.like(x, 0)), bent, b.mul(x, positive));
}

Values elu(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0});
  const DType math = of.x.dtype();
  const Value scale = call.scalar(2, math);
  return NEURON_ROUNDED(
      of, elu_of(b, of.x, b.mul(call.scalar(1, math), scale), scale, call.scalar(3, math)));
}
NEURON_LOWERING(
    "aten::elu(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor", elu);

Values celu(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0});
  const Value alpha = call.scalar(1, of.x.dtype()), one = b.like(of.x, 1);
  return NEURON_ROUNDED(of, elu_of(b, of.x, alpha, one, b.div(one, alpha)));
}
NEURON_LOWERING("aten::celu(Tensor self, Scalar alpha=1.) -> Tensor", celu);

Values elu_backward(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0, 5});
  const Value grad = of.x, x = of.y;
  const DType math = x.dtype();
  const Value scale = call.scalar(2, math), input_scale = call.scalar(3, math);
  const Value negative = b.mul(call.scalar(1, math), scale);
  const Value slope = call.flag(4)
                          ? b.mul(input_scale, b.add(x, negative))
                          : b.mul(b.mul(input_scale, negative), b.exp(b.mul(x, input_scale)));
  return NEURON_ROUNDED(of,
                        b.select(b.le(x, b.like(x, 0)), b.mul(grad, slope), b.mul(grad, scale)));
}
NEURON_LOWERING(
    "aten::elu_backward(Tensor grad_output, Scalar alpha, Scalar scale, Scalar input_scale, bool "
    "is_result, Tensor self_or_result) -> Tensor",
    elu_backward);

Values softplus(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0});
  const Value beta = call.scalar(1, of.x.dtype()), limit = call.scalar(2, of.x.dtype());
  const Value scaled = b.mul(of.x, beta);
  return NEURON_ROUNDED(of,
                        b.select(b.gt(scaled, limit), of.x, b.div(b.log1p(b.exp(scaled)), beta)));
}
NEURON_LOWERING("aten::softplus(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor",
                softplus);

Values softplus_backward(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0, 1});
  const Value beta = call.scalar(2, of.x.dtype()), limit = call.scalar(3, of.x.dtype());
  const Value scaled = b.mul(of.y, beta);
  const Value growth = b.exp(scaled);
  const Value slope = b.div(b.mul(of.x, growth), b.add(growth, b.like(growth, 1)));
  return NEURON_ROUNDED(of, b.select(b.gt(scaled, limit), of.x, slope));
}
NEURON_LOWERING(
    "aten::softplus_backward(Tensor grad_output, Tensor self, Scalar beta, Scalar threshold) -> "
    "Tensor",
    softplus_backward);

// --- Gated linear unit ------------------------------------------------------------------------

struct Halves {
  Value first, second;
};

Halves split_in_two(Builder& b, Value x, int64_t dim) {
  const int64_t size = x.dim(dim);
  return {b.slice_dim(x, dim, 0, size / 2), b.slice_dim(x, dim, size / 2, size)};
}

Values glu(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0});
  const auto [value, gate] = split_in_two(b, of.x, call.dim(1, of.x.rank()));
  return NEURON_ROUNDED(of, b.mul(value, b.logistic(gate)));
}
NEURON_LOWERING("aten::glu(Tensor self, int dim=-1) -> Tensor", glu);

Values glu_backward(Builder& b, const OpCall& call) {
  const Operands of = operands(call, {0, 1});
  const int64_t dim = call.dim(2, of.y.rank());
  const auto [value, gate] = split_in_two(b, of.y, dim);
  const Value open = b.logistic(gate);
  const Value shut = b.sub(b.like(open, 1), open);
  const Value parts[] = {b.convert(b.mul(of.x, open), of.common),
                         b.convert(b.mul(b.mul(b.mul(shut, open), of.x), value), of.common)};
  return {b.concatenate(parts, dim)};
}
NEURON_LOWERING("aten::glu_backward(Tensor grad_output, Tensor self, int dim) -> Tensor",
                glu_backward);

Values glu_jvp(Builder& b, const OpCall& call) {
  // glu, x, dx: d(a * s(g)) = da * s(g) + glu * (1 - s(g)) * dg.
  const Operands of = operands(call, {0, 1, 2});
  const int64_t dim = call.dim(3, of.y.rank());
  const Value gate = split_in_two(b, of.y, dim).second;
  const auto [d_value, d_gate] = split_in_two(b, of.z, dim);
  const Value open = b.logistic(gate);
  const Value bend = b.mul(b.sub(b.like(open, 1), open), d_gate);
  return NEURON_ROUNDED(of, b.add(b.mul(d_value, open), b.mul(of.x, bend)));
}
// The derivative of glu_backward along (dgrad_glu, dx).
Values glu_backward_jvp(Builder& b, const OpCall& call) {
  // grad_x (unused: computed anew), grad_glu, x, dgrad_glu, dx
  const DType common = result_type(call, {0, 1, 2, 3, 4});
  const Value grad = math_operand(call, 1, common), x = math_operand(call, 2, common);
  const Value d_grad = math_operand(call, 3, common), dx = math_operand(call, 4, common);
  const int64_t dim = call.dim(5, x.rank());
  const auto [value, gate] = split_in_two(b, x, dim);
  const auto [d_value, d_gate] = split_in_two(b, dx, dim);
  const Value one = b.like(x, 1);
  const Value open = b.logistic(gate);
  const Value slope = b.mul(open, b.sub(one, open));
  const Value d_open = b.mul(slope, d_gate);
  // d(s(g) (1 - s(g))) = slope * (1 - 2 s(g)) * dg
  const Value d_slope = b.mul(d_open, b.sub(one, b.mul(b.like(x, 2), open)));
  const Value first = b.add(b.mul(d_grad, open), b.mul(grad, d_open));
  const Value second = b.add(b.mul(b.add(b.mul(d_grad, value), b.mul(grad, d_value)), slope),
                             b.mul(b.mul(grad, value), d_slope));
  const Value parts[] = {b.convert(first, common), b.convert(second, common)};
  return {b.concatenate(parts, dim)};
}
NEURON_LOWERING(
    "aten::glu_backward_jvp(Tensor grad_x, Tensor grad_glu, Tensor x, Tensor dgrad_glu, Tensor dx, "
    "int dim) -> Tensor",
    glu_backward_jvp);
NEURON_LOWERING("aten::glu_jvp(Tensor glu, Tensor x, Tensor dx, int dim) -> Tensor", glu_jvp);

}  // namespace
}  // namespace neuron::lowering
