// Arithmetic and bitwise functions of two or more tensors.

#include <cmath>
#include <numbers>

#include "neuron/base/error.h"
#include "neuron/lowering/numerics.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

using hlo::Op;

// alpha * b for add and sub; complex arithmetic by 1 + 0i would turn infinities into NaN.
Value scaled(Builder& b, const OpCall& call, size_t alpha, Value x) {
  const Argument& argument = call.argument(alpha);
  const bool known = argument.runtime.empty() || !argument.runtime[0].defined();
  if ((known || is_complex(x.dtype())) && call.exact_number(alpha).as_complex() == 1.0) return x;
  return b.mul(x, call.scalar(alpha, x.dtype()));
}

// torch's CPU rounds a number to the tensor's type before it adds, but not before it multiplies.
Values add(Builder& b, const OpCall& call) {
  const auto [x, y, common] = binary_operands(call, 0, 1);
  if (common == DType::pred) {
    return {either(b, x, both(b, y, call.scalar(2, DType::pred)))};
  }
  return {b.convert(b.add(x, scaled(b, call, 2, y)), common)};
}
NEURON_LOWERING("aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", add);
NEURON_LOWERING("aten::add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", add);

Values sub(Builder& b, const OpCall& call) {
  const auto [x, y, common] = binary_operands(call, 0, 1);
  return {b.convert(b.sub(x, scaled(b, call, 2, y)), common)};
}
NEURON_LOWERING("aten::sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", sub);
NEURON_LOWERING("aten::sub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", sub);

Values reverse_sub(Builder& b, const OpCall& call) {
  const auto [x, y, common] = binary_operands(call, 0, 1);
  return {b.convert(b.sub(y, scaled(b, call, 2, x)), common)};
}
NEURON_LOWERING("aten::rsub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
                reverse_sub);
NEURON_LOWERING("aten::rsub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor",
                reverse_sub);

Values add_relu(Builder& b, const OpCall& call) {
  const auto [x, y, common] = binary_operands(call, 0, 1);
  const Value total = b.add(x, scaled(b, call, 2, y));
  return {b.convert(b.max(total, b.like(total, 0)), common)};
}
NEURON_LOWERING("aten::_add_relu.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
                add_relu);
NEURON_LOWERING("aten::_add_relu.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor",
                add_relu);

Values mul(Builder& b, const OpCall& call) {
  const auto [x, y, common] = binary_operands(call, 0, 1, true);
  if (common == DType::pred) return {both(b, x, y)};
  return {b.convert(b.mul(x, y), common)};
}
NEURON_LOWERING("aten::mul.Tensor(Tensor self, Tensor other) -> Tensor", mul);
NEURON_LOWERING("aten::mul.Scalar(Tensor self, Scalar other) -> Tensor", mul);

Value nonzero(Builder& b, Value x) { return b.ne(x, b.like(x, 0)); }

// The signs of a remainder and its divisor differ, and there is a remainder.
Value wrong_side(Builder& b, Value remainder, Value divisor) {
  const Value zero = b.like(remainder, 0);
  const Value differ = b.binary(Op::Xor, b.lt(divisor, b.like(divisor, 0)), b.lt(remainder, zero));
  return both(b, nonzero(b, remainder), differ);
}

Value copy_sign(Builder& b, Value size, Value sign) {
  const DType bits = size_of(size.dtype()) == 8 ? DType::i64 : DType::i32;
  const Value mask = b.constant_int(bits, bits == DType::i64 ? INT64_MIN : INT32_MIN);
  const Value kept = b.bit_and(b.bitcast(size, bits), b.logical_not(mask));
  const Value taken = b.bit_and(b.bitcast(sign, bits), mask);
  return b.bitcast(b.bit_or(kept, taken), size.dtype());
}

// Python's floor division. For floats the quotient comes from the exact remainder, as floor(x / y)
// may round up across an integer.
Value floor_quotient(Builder& b, Value x, Value y) {
  const Value remainder = b.rem(x, y);
  if (!is_floating(x.dtype())) {
    const Value quotient = b.div(x, y);
    if (!is_signed_integer(x.dtype())) return quotient;
    return b.select(wrong_side(b, remainder, y), b.sub(quotient, b.like(quotient, 1)), quotient);
  }
  const Value plain = b.div(x, y);
  Value quotient = b.div(b.sub(x, remainder), y);
  quotient = b.select(wrong_side(b, remainder, y), b.sub(quotient, b.like(x, 1)), quotient);
  const Value low = b.floor(quotient);
  const Value rounded =
      b.select(b.gt(b.sub(quotient, low), b.like(x, 0.5)), b.add(low, b.like(x, 1)), low);
  const Value result = b.select(nonzero(b, quotient), rounded, copy_sign(b, b.like(x, 0), plain));
  return b.select(nonzero(b, y), result, plain);
}

Values true_divide(const OpCall& call) {
  Builder& b = call.builder();
  const DType common = float_type(call, result_type(call, {0, 1}));
  const Value x = math_operand(call, 0, common, true);
  const Value y = math_operand(call, 1, common, true);
  return {b.convert(b.div(x, y), common)};
}

Values div(Builder&, const OpCall& call) { return true_divide(call); }
NEURON_LOWERING("aten::div.Tensor(Tensor self, Tensor other) -> Tensor", div);
NEURON_LOWERING("aten::div.Scalar(Tensor self, Scalar other) -> Tensor", div);

Values floor_divide(Builder& b, const OpCall& call) {
  const auto [x, y, common] = binary_operands(call, 0, 1, true);
  return {b.convert(floor_quotient(b, x, y), common)};
}
NEURON_LOWERING("aten::floor_divide(Tensor self, Tensor other) -> Tensor", floor_divide);
NEURON_LOWERING("aten::floor_divide.Scalar(Tensor self, Scalar other) -> Tensor", floor_divide);

Values div_mode(Builder& b, const OpCall& call) {
  if (!call.has(2)) return true_divide(call);
  if (call.text(2) == "floor") return floor_divide(b, call);
  const auto [x, y, common] = binary_operands(call, 0, 1, true);
  // torch rounds the quotient to the common type before it truncates.
  const Value quotient = b.convert(b.div(x, y), common);
  return {is_floating(common) ? b.trunc(quotient) : quotient};
}
NEURON_LOWERING("aten::div.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor",
                div_mode);
NEURON_LOWERING("aten::div.Scalar_mode(Tensor self, Scalar other, *, str? rounding_mode) -> Tensor",
                div_mode);

// Python's modulus: the result has the divisor's sign.
Values remainder(Builder& b, const OpCall& call) {
  const auto [x, y, common] = binary_operands(call, 0, 1);
  const Value rest = b.rem(x, y);
  if (is_unsigned_integer(common)) return {rest};
  return {b.convert(b.select(wrong_side(b, rest, y), b.add(rest, y), rest), common)};
}
NEURON_LOWERING("aten::remainder.Tensor(Tensor self, Tensor other) -> Tensor", remainder);
NEURON_LOWERING("aten::remainder.Scalar(Tensor self, Scalar other) -> Tensor", remainder);
NEURON_LOWERING("aten::remainder.Scalar_Tensor(Scalar self, Tensor other) -> Tensor", remainder);

using Formula = Value (*)(Builder&, Value, Value);

// Functions that keep the common type.
template <Formula formula>
Values keep_type(Builder& b, const OpCall& call) {
  const auto [x, y, common] = binary_operands(call, 0, 1);
  return {b.convert(formula(b, x, y), common)};
}

// Functions to floats.
template <Formula formula>
Values to_float(Builder& b, const OpCall& call) {
  const DType common = float_type(call, result_type(call, {0, 1}));
  const Value x = math_operand(call, 0, common);
  const Value y = math_operand(call, 1, common);
  return {b.convert(formula(b, x, y), common)};
}

template <Op op>
Value apply(Builder& b, Value x, Value y) {
  return b.binary(op, x, y);
}

NEURON_LOWERING("aten::fmod.Tensor(Tensor self, Tensor other) -> Tensor",
                keep_type<apply<Op::Remainder>>);
NEURON_LOWERING("aten::fmod.Scalar(Tensor self, Scalar other) -> Tensor",
                keep_type<apply<Op::Remainder>>);
NEURON_LOWERING("aten::maximum(Tensor self, Tensor other) -> Tensor", keep_type<maximum>);
NEURON_LOWERING("aten::minimum(Tensor self, Tensor other) -> Tensor", keep_type<minimum>);
NEURON_LOWERING("aten::atan2(Tensor self, Tensor other) -> Tensor", to_float<apply<Op::Atan2>>);

// fmax and fmin: a number beats NaN.
template <Formula formula>
Value ignore_nan(Builder& b, Value x, Value y) {
  const Value result = formula(b, x, y);
  if (!is_floating(x.dtype())) return result;
  return b.select(b.is_nan(x), y, b.select(b.is_nan(y), x, result));
}
NEURON_LOWERING("aten::fmax(Tensor self, Tensor other) -> Tensor", keep_type<ignore_nan<maximum>>);
NEURON_LOWERING("aten::fmin(Tensor self, Tensor other) -> Tensor", keep_type<ignore_nan<minimum>>);

// Scaled by the larger side, so that squares do not overflow.
Value hypotenuse(Builder& b, Value x, Value y) {
  const Value u = b.abs(x), v = b.abs(y);
  const Value large = b.max(u, v), small = b.min(u, v);
  const Value ratio = b.div(small, large);
  const Value length = b.mul(large, b.sqrt(b.add(b.like(x, 1), b.mul(ratio, ratio))));
  const Value infinity = highest(b, x.dtype());
  const Value zero = b.eq(large, b.like(x, 0));
  const Value infinite = either(b, b.eq(u, infinity), b.eq(v, infinity));
  return b.select(infinite, infinity, b.select(zero, b.like(x, 0), length));
}
NEURON_LOWERING("aten::hypot(Tensor self, Tensor other) -> Tensor", keep_type<hypotenuse>);

NEURON_LOWERING("aten::copysign.Tensor(Tensor self, Tensor other) -> Tensor", to_float<copy_sign>);
NEURON_LOWERING("aten::copysign.Scalar(Tensor self, Scalar other) -> Tensor", to_float<copy_sign>);

Values next_after(Builder& b, const OpCall& call) {
  const DType common = result_type(call, {0, 1});
  return {b.binary(Op::NextAfter, operand(call, 0, common), operand(call, 1, common))};
}
NEURON_LOWERING("aten::nextafter(Tensor self, Tensor other) -> Tensor", next_after);

// log(e^x + e^y) around the larger one; equal infinities are themselves.
Value log_add_exp(Builder& b, Value x, Value y) {
  if (is_complex(x.dtype())) {
    // Around the one with the larger real part.
    const Value first = b.ge(b.real(x), b.real(y));
    const Value large = b.select(first, x, y), small = b.select(first, y, x);
    const Value sum = b.add(large, b.log1p(b.exp(b.sub(small, large))));
    const Value nothing = b.eq(b.real(large), b.neg(highest(b, real_of(x.dtype()))));
    return b.select(nothing, large, sum);
  }
  const Value large = b.max(x, y);
  const Value distance = b.neg(b.abs(b.sub(x, y)));
  const Value sum = b.add(large, b.log1p(b.exp(distance)));
  const Value same_infinity = both(b, b.eq(x, y), b.eq(b.abs(x), highest(b, x.dtype())));
  return b.select(same_infinity, x, sum);
}
NEURON_LOWERING("aten::logaddexp(Tensor self, Tensor other) -> Tensor", to_float<log_add_exp>);

Value log_add_exp2(Builder& b, Value x, Value y) {
  const Value large = b.max(x, y);
  const Value distance = b.neg(b.abs(b.sub(x, y)));
  const Value sum =
      b.add(large, b.mul(b.log1p(b.unary(Op::Exp2, distance)), b.like(x, 1.0 / std::numbers::ln2)));
  const Value same_infinity = both(b, b.eq(x, y), b.eq(b.abs(x), highest(b, x.dtype())));
  return b.select(same_infinity, x, sum);
}
NEURON_LOWERING("aten::logaddexp2(Tensor self, Tensor other) -> Tensor", to_float<log_add_exp2>);

// x * log(y), 0 where x is 0 unless y is NaN.
template <Op log>
Value x_log_y(Builder& b, Value x, Value y) {
  const Value product = b.mul(x, b.unary(log, y));
  const Value value = b.select(b.eq(x, b.like(x, 0)), b.like(x, 0), product);
  return b.select(b.is_nan(y), y, value);
}
NEURON_LOWERING("aten::xlogy.Tensor(Tensor self, Tensor other) -> Tensor",
                to_float<x_log_y<Op::Log>>);
NEURON_LOWERING("aten::xlogy.Scalar_Self(Scalar self, Tensor other) -> Tensor",
                to_float<x_log_y<Op::Log>>);
NEURON_LOWERING("aten::xlogy.Scalar_Other(Tensor self, Scalar other) -> Tensor",
                to_float<x_log_y<Op::Log>>);
NEURON_LOWERING("aten::special_xlog1py(Tensor self, Tensor other) -> Tensor",
                to_float<x_log_y<Op::Log1p>>);
NEURON_LOWERING("aten::special_xlog1py.self_scalar(Scalar self, Tensor other) -> Tensor",
                to_float<x_log_y<Op::Log1p>>);
NEURON_LOWERING("aten::special_xlog1py.other_scalar(Tensor self, Scalar other) -> Tensor",
                to_float<x_log_y<Op::Log1p>>);

#define NEURON_BITWISE(name, op)                                                       \
  NEURON_LOWERING("aten::" name ".Tensor(Tensor self, Tensor other) -> Tensor",        \
                  keep_type<apply<Op::op>>);                                           \
  NEURON_LOWERING("aten::" name ".Scalar(Tensor self, Scalar other) -> Tensor",        \
                  keep_type<apply<Op::op>>);                                           \
  NEURON_LOWERING("aten::" name ".Scalar_Tensor(Scalar self, Tensor other) -> Tensor", \
                  keep_type<apply<Op::op>>)
NEURON_BITWISE("bitwise_and", And);
NEURON_BITWISE("bitwise_or", Or);
NEURON_BITWISE("bitwise_xor", Xor);
#undef NEURON_BITWISE

Value shift_left(Builder& b, Value x, Value y) { return b.binary(Op::ShiftLeft, x, y); }
Value shift_right(Builder& b, Value x, Value y) {
  return b.binary(is_unsigned_integer(x.dtype()) ? Op::ShiftRightLogical : Op::ShiftRightArithmetic,
                  x, y);
}
NEURON_LOWERING("aten::bitwise_left_shift.Tensor(Tensor self, Tensor other) -> Tensor",
                keep_type<shift_left>);
NEURON_LOWERING("aten::bitwise_left_shift.Tensor_Scalar(Tensor self, Scalar other) -> Tensor",
                keep_type<shift_left>);
NEURON_LOWERING("aten::bitwise_left_shift.Scalar_Tensor(Scalar self, Tensor other) -> Tensor",
                keep_type<shift_left>);
NEURON_LOWERING("aten::bitwise_right_shift.Tensor(Tensor self, Tensor other) -> Tensor",
                keep_type<shift_right>);
NEURON_LOWERING("aten::bitwise_right_shift.Tensor_Scalar(Tensor self, Scalar other) -> Tensor",
                keep_type<shift_right>);
NEURON_LOWERING("aten::bitwise_right_shift.Scalar_Tensor(Scalar self, Tensor other) -> Tensor",
                keep_type<shift_right>);

// The old spellings also take floats: x * 2^y.
template <Formula formula, int sign>
Value old_shift(Builder& b, Value x, Value y) {
  if (!is_floating(x.dtype())) return formula(b, x, y);
  return b.mul(x, b.unary(Op::Exp2, b.mul(y, b.like(y, sign))));
}
NEURON_LOWERING("aten::__lshift__.Tensor(Tensor self, Tensor other) -> Tensor",
                (keep_type<old_shift<shift_left, 1>>));
NEURON_LOWERING("aten::__lshift__.Scalar(Tensor self, Scalar other) -> Tensor",
                (keep_type<old_shift<shift_left, 1>>));
NEURON_LOWERING("aten::__rshift__.Tensor(Tensor self, Tensor other) -> Tensor",
                (keep_type<old_shift<shift_right, -1>>));
NEURON_LOWERING("aten::__rshift__.Scalar(Tensor self, Scalar other) -> Tensor",
                (keep_type<old_shift<shift_right, -1>>));

template <Op op>
Values logical(Builder& b, const OpCall& call) {
  return {b.binary(op, operand(call, 0, DType::pred), operand(call, 1, DType::pred))};
}
NEURON_LOWERING("aten::logical_and(Tensor self, Tensor other) -> Tensor", logical<Op::And>);
NEURON_LOWERING("aten::logical_or(Tensor self, Tensor other) -> Tensor", logical<Op::Or>);
NEURON_LOWERING("aten::logical_xor(Tensor self, Tensor other) -> Tensor", logical<Op::Xor>);

Value integer_power(Builder& b, Value x, Value y) {
  if (is_unsigned_integer(x.dtype())) return b.pow(x, y);
  // Negative exponents leave 1, -1 or 0, as 1 / x^|y| truncates.
  const Value one = b.like(x, 1), zero = b.like(x, 0);
  const Value negative = b.lt(y, zero);
  const Value odd = b.ne(b.bit_and(y, one), zero);
  const Value of_minus_one = b.select(odd, b.like(x, -1), one);
  const Value inverse =
      b.select(b.eq(x, one), one, b.select(b.eq(x, b.like(x, -1)), of_minus_one, zero));
  return b.select(negative, inverse, b.pow(x, b.select(negative, zero, y)));
}

Value power(Builder& b, Value x, Value y) {
  if (x.dtype() == DType::pred) return either(b, x, b.logical_not(y));
  return is_integer(x.dtype()) ? integer_power(b, x, y) : b.pow(x, y);
}
NEURON_LOWERING("aten::pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor",
                keep_type<power>);
NEURON_LOWERING("aten::pow.Scalar(Scalar self, Tensor exponent) -> Tensor", keep_type<power>);

// The exponents that torch's kernel knows are multiplications and roots, and so exact here too.
Values pow_scalar(Builder& b, const OpCall& call) {
  const DType common = result_type(call, {0, 1});
  const Value x = math_operand(call, 0, common);
  const Number exponent = call.exact_number(1);
  const double number = exponent.as_double();
  const bool real = exponent.kind != DType::c128 || exponent.as_complex().imag() == 0;
  const auto done = [&](Value y) { return Values{b.convert(y, common)}; };
  if (real && common != DType::pred) {
    if (number == 0.0 && is_complex(common)) return done(b.ones(x.dtype(), x.dims()));
    if (number == 1.0) return done(x);
    if (number == 2.0) return done(b.mul(x, x));
    if (number == 3.0) return done(b.mul(b.mul(x, x), x));
    if (is_floating(common)) {
      if (number == 0.0) return done(b.ones(x.dtype(), x.dims()));
      if (number == 0.5) return done(b.sqrt(x));
      if (number == -0.5) return done(b.div(b.like(x, 1), b.sqrt(x)));
      if (number == -1.0) return done(b.div(b.like(x, 1), x));
      if (number == -2.0) return done(b.div(b.like(x, 1), b.mul(x, x)));
    }
  }
  return done(power(b, x, math_operand(call, 1, common)));
}
NEURON_LOWERING("aten::pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor", pow_scalar);

Values ldexp(Builder& b, const OpCall& call) {
  // torch computes 2^other in the default float type.
  const DType power_type = float_type(call, call.tensor(1).dtype());
  const DType common = float_type(call, result_type(call, {0, 1}));
  const Value scale = b.unary(Op::Exp2, b.convert(call.tensor(1), opmath(power_type)));
  const Value x = math_operand(call, 0, common);
  return {b.convert(b.mul(x, b.convert(scale, x.dtype())), common)};
}
NEURON_LOWERING("aten::ldexp.Tensor(Tensor self, Tensor other) -> Tensor", ldexp);

Values heaviside(Builder& b, const OpCall& call) {
  const auto [x, y, common] = binary_operands(call, 0, 1);
  const Value zero = b.like(x, 0);
  const Value step = b.convert(b.gt(x, zero), x.dtype());
  return {b.convert(b.select(b.eq(x, zero), y, step), common)};
}
NEURON_LOWERING("aten::heaviside(Tensor self, Tensor values) -> Tensor", heaviside);

// Interpolates from the nearer end, so that both ends come out exactly.
Values lerp(Builder& b, const OpCall& call) {
  const DType common = result_type(call, {0, 1});
  const Value start = math_operand(call, 0, common);
  const Value end = math_operand(call, 1, common);
  const Value weight = math_operand(call, 2, common, true);
  const Value distance = b.sub(end, start);
  const Value rest = b.sub(b.like(weight, 1), weight);
  const Value size = b.abs(weight);
  const Value near_start = b.lt(size, b.like(size, 0.5));
  return {b.convert(b.select(near_start, b.add(start, b.mul(weight, distance)),
                             b.sub(end, b.mul(distance, rest))),
                    common)};
}
NEURON_LOWERING("aten::lerp.Tensor(Tensor self, Tensor end, Tensor weight) -> Tensor", lerp);
NEURON_LOWERING("aten::lerp.Scalar(Tensor self, Tensor end, Scalar weight) -> Tensor", lerp);

template <Op op>
Values add_combined(Builder& b, const OpCall& call) {
  DType common = result_type(call, {0, 1, 2});
  if (op == Op::Divide) common = float_type(call, common);
  const Value x = math_operand(call, 0, common);
  const Value u = math_operand(call, 1, common, true);
  const Value v = math_operand(call, 2, common, true);
  if (common == DType::pred) return {either(b, x, both(b, both(b, u, v), call.scalar(3, common)))};
  return {b.convert(b.add(x, b.binary(op, scaled(b, call, 3, u), v)), common)};
}
NEURON_LOWERING(
    "aten::addcmul(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor",
    add_combined<Op::Multiply>);
NEURON_LOWERING(
    "aten::addcdiv(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor",
    add_combined<Op::Divide>);

Values where(Builder& b, const OpCall& call) {
  const DType common = result_type(call, {1, 2});
  return {
      b.select(operand(call, 0, DType::pred), operand(call, 1, common), operand(call, 2, common))};
}
NEURON_LOWERING("aten::where.self(Tensor condition, Tensor self, Tensor other) -> Tensor", where);

Values masked_fill(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  return {b.select(operand(call, 1, DType::pred), operand(call, 2, x.dtype()), x)};
}
NEURON_LOWERING("aten::masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor",
                masked_fill);
NEURON_LOWERING("aten::masked_fill.Tensor(Tensor self, Tensor mask, Tensor value) -> Tensor",
                masked_fill);

// Bounds may be missing; the upper one wins where they cross. NaN, in x or a bound, stays.
Values clamp(Builder& b, const OpCall& call) {
  const DType common = call.has(1) && call.has(2) ? result_type(call, {0, 1, 2})
                       : call.has(1)              ? result_type(call, {0, 1})
                                                  : result_type(call, {0, 2});
  Value x = math_operand(call, 0, common);
  if (call.has(1)) x = maximum(b, x, math_operand(call, 1, common));
  if (call.has(2)) x = minimum(b, x, math_operand(call, 2, common));
  return {b.convert(x, common)};
}
NEURON_LOWERING("aten::clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor", clamp);
NEURON_LOWERING("aten::clamp.Tensor(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor",
                clamp);
NEURON_LOWERING("aten::clamp_min(Tensor self, Scalar min) -> Tensor", keep_type<maximum>);
NEURON_LOWERING("aten::clamp_min.Tensor(Tensor self, Tensor min) -> Tensor", keep_type<maximum>);
NEURON_LOWERING("aten::clamp_max(Tensor self, Scalar max) -> Tensor", keep_type<minimum>);
NEURON_LOWERING("aten::clamp_max.Tensor(Tensor self, Tensor max) -> Tensor", keep_type<minimum>);

Values make_complex(Builder& b, const OpCall& call) {
  const DType part = real_of(call.result().dtype);
  return {b.complex(operand(call, 0, part), operand(call, 1, part))};
}
NEURON_LOWERING("aten::complex(Tensor real, Tensor imag) -> Tensor", make_complex);

Values polar(Builder& b, const OpCall& call) {
  const DType part = real_of(call.result().dtype);
  const Value size = operand(call, 0, part), angle = operand(call, 1, part);
  return {b.complex(b.mul(size, b.cos(angle)), b.mul(size, b.sin(angle)))};
}
NEURON_LOWERING("aten::polar(Tensor abs, Tensor angle) -> Tensor", polar);

}  // namespace
}  // namespace neuron::lowering
