// Elementwise functions of one tensor, the activations excepted.

#include <cmath>
#include <limits>
#include <numbers>

#include "neuron/base/error.h"
#include "neuron/lowering/numerics.h"
#include "neuron/lowering/registry.h"
#include "neuron/lowering/special_functions.h"

namespace neuron::lowering {
namespace {

using hlo::Op;
using Formula = Value (*)(Builder&, Value);

// Functions to floats: integers become the default float type, halves are computed in f32.
template <Formula formula>
Values to_float(Builder& b, const OpCall& call) {
  const DType common = float_type(call, call.tensor(0).dtype());
  return {b.convert(formula(b, math_operand(call, 0, common)), common)};
}

// Functions that keep the type.
template <Formula formula>
Values keep_type(Builder& b, const OpCall& call) {
  const DType type = call.tensor(0).dtype();
  return {b.convert(formula(b, math_operand(call, 0, type)), type)};
}

// Rounding functions: nothing to do for integers.
template <Formula formula>
Values round_floats(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  if (!is_floating(x.dtype())) return {x};
  return {b.convert(formula(b, b.convert(x, opmath(x.dtype()))), x.dtype())};
}

template <Op op>
Value apply(Builder& b, Value x) {
  return b.unary(op, x);
}

#define NEURON_FLOAT_UNARY(name, op) \
  NEURON_LOWERING("aten::" name "(Tensor self) -> Tensor", to_float<apply<Op::op>>)

NEURON_FLOAT_UNARY("acos", Acos);
NEURON_FLOAT_UNARY("acosh", Acosh);
NEURON_FLOAT_UNARY("asin", Asin);
NEURON_FLOAT_UNARY("asinh", Asinh);
NEURON_FLOAT_UNARY("atan", Atan);
NEURON_FLOAT_UNARY("atanh", Atanh);
NEURON_FLOAT_UNARY("cos", Cosine);
NEURON_FLOAT_UNARY("cosh", Cosh);
NEURON_FLOAT_UNARY("digamma", Digamma);
NEURON_FLOAT_UNARY("erf", Erf);
NEURON_FLOAT_UNARY("erfc", Erfc);
NEURON_FLOAT_UNARY("erfinv", ErfInv);
NEURON_FLOAT_UNARY("exp", Exp);
NEURON_FLOAT_UNARY("exp2", Exp2);
NEURON_FLOAT_UNARY("expm1", Expm1);
NEURON_FLOAT_UNARY("lgamma", Lgamma);
NEURON_FLOAT_UNARY("log", Log);
NEURON_FLOAT_UNARY("log10", Log10);
NEURON_FLOAT_UNARY("log1p", Log1p);
NEURON_FLOAT_UNARY("log2", Log2);
NEURON_FLOAT_UNARY("rsqrt", Rsqrt);
NEURON_FLOAT_UNARY("sigmoid", Logistic);
NEURON_FLOAT_UNARY("sin", Sine);
NEURON_FLOAT_UNARY("sinh", Sinh);
NEURON_FLOAT_UNARY("sqrt", Sqrt);
NEURON_FLOAT_UNARY("tan", Tan);
NEURON_FLOAT_UNARY("tanh", Tanh);
#undef NEURON_FLOAT_UNARY

NEURON_LOWERING("aten::ceil(Tensor self) -> Tensor", round_floats<apply<Op::Ceil>>);
NEURON_LOWERING("aten::floor(Tensor self) -> Tensor", round_floats<apply<Op::Floor>>);
NEURON_LOWERING("aten::trunc(Tensor self) -> Tensor", round_floats<apply<Op::Trunc>>);
NEURON_LOWERING("aten::round(Tensor self) -> Tensor", round_floats<apply<Op::RoundNearestEven>>);

Value fraction(Builder& b, Value x) { return b.sub(x, b.trunc(x)); }
NEURON_LOWERING("aten::frac(Tensor self) -> Tensor", keep_type<fraction>);

Values round_decimals(Builder& b, const OpCall& call) {
  const DType type = call.tensor(0).dtype();
  if (!is_floating(type)) return {call.tensor(0)};
  const Value x = math_operand(call, 0, type);
  const int64_t decimals = call.integer(1);
  if (decimals == 0) return {b.convert(b.unary(Op::RoundNearestEven, x), type)};
  const Value power = b.like(x, std::pow(10.0, std::abs(static_cast<double>(decimals))));
  const Value rounded = decimals > 0 ? b.div(b.unary(Op::RoundNearestEven, b.mul(x, power)), power)
                                     : b.mul(b.unary(Op::RoundNearestEven, b.div(x, power)), power);
  return {b.convert(rounded, type)};
}
NEURON_LOWERING("aten::round.decimals(Tensor self, *, int decimals) -> Tensor", round_decimals);

Values absolute(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  if (x.dtype() == DType::pred || is_unsigned_integer(x.dtype())) return {x};
  return {b.abs(x)};
}
NEURON_LOWERING("aten::abs(Tensor self) -> Tensor", absolute);

Values negate(Builder& b, const OpCall& call) { return {b.neg(call.tensor(0))}; }
NEURON_LOWERING("aten::neg(Tensor self) -> Tensor", negate);

Values sign(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  if (x.dtype() == DType::pred) return {x};
  return {b.sign(x)};
}
NEURON_LOWERING("aten::sign(Tensor self) -> Tensor", sign);

Values sgn(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  if (!is_complex(x.dtype())) return sign(b, call);
  const Value size = b.abs(x);
  const Value scaled = b.complex(b.div(b.real(x), size), b.div(b.imag(x), size));
  return {b.select(b.eq(size, b.like(size, 0)), b.zeros(x.dtype()), scaled)};
}
NEURON_LOWERING("aten::sgn(Tensor self) -> Tensor", sgn);

Value reciprocal_of(Builder& b, Value x) { return b.div(b.like(x, 1), x); }
NEURON_LOWERING("aten::reciprocal(Tensor self) -> Tensor", to_float<reciprocal_of>);

Value to_radians(Builder& b, Value x) { return b.mul(x, b.like(x, std::numbers::pi / 180.0)); }
Value to_degrees(Builder& b, Value x) { return b.mul(x, b.like(x, 180.0 / std::numbers::pi)); }
NEURON_LOWERING("aten::deg2rad(Tensor self) -> Tensor", to_float<to_radians>);
NEURON_LOWERING("aten::rad2deg(Tensor self) -> Tensor", to_float<to_degrees>);

Value sinc_of(Builder& b, Value x) {
  const Value product = b.mul(x, b.like(x, std::numbers::pi));
  const Value is_zero = b.eq(x, b.like(x, 0));
  return b.select(is_zero, b.like(x, 1), b.div(b.sin(product), product));
}
NEURON_LOWERING("aten::sinc(Tensor self) -> Tensor", to_float<sinc_of>);

NEURON_LOWERING("aten::i0(Tensor self) -> Tensor", to_float<bessel_i0>);
NEURON_LOWERING("aten::special_i0e(Tensor self) -> Tensor", to_float<bessel_i0e>);
NEURON_LOWERING("aten::special_i1(Tensor self) -> Tensor", to_float<bessel_i1>);
NEURON_LOWERING("aten::special_i1e(Tensor self) -> Tensor", to_float<bessel_i1e>);
NEURON_LOWERING("aten::special_modified_bessel_i0(Tensor self) -> Tensor", to_float<bessel_i0>);
NEURON_LOWERING("aten::special_modified_bessel_i1(Tensor self) -> Tensor", to_float<bessel_i1>);

Value entropy_of(Builder& b, Value x) {
  const Value zero = b.like(x, 0);
  const Value below =
      b.select(b.eq(x, zero), zero, b.like(x, -std::numeric_limits<double>::infinity()));
  const Value above = b.neg(b.mul(x, b.log(x)));
  const Value value = b.select(b.gt(x, zero), above, below);
  return b.select(b.is_nan(x), x, value);
}
NEURON_LOWERING("aten::special_entr(Tensor self) -> Tensor", to_float<entropy_of>);

Value ndtri_of(Builder& b, Value x) {
  const Value centred = b.sub(b.mul(x, b.like(x, 2)), b.like(x, 1));
  return b.mul(b.unary(Op::ErfInv, centred), b.like(x, std::numbers::sqrt2));
}
NEURON_LOWERING("aten::special_ndtri(Tensor self) -> Tensor", to_float<ndtri_of>);

Values angle(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  if (is_complex(x.dtype())) return {b.atan2(b.imag(x), b.real(x))};
  const DType common = float_type(call, x.dtype());
  const Value wide = math_operand(call, 0, common);
  const Value turned =
      b.select(b.lt(wide, b.like(wide, 0)), b.like(wide, std::numbers::pi), b.like(wide, 0));
  return {b.convert(b.select(b.is_nan(wide), wide, turned), common)};
}
NEURON_LOWERING("aten::angle(Tensor self) -> Tensor", angle);

Values conjugate(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  if (!is_complex(x.dtype())) return {x};
  return {b.complex(b.real(x), b.neg(b.imag(x)))};
}
NEURON_LOWERING("aten::_conj_physical(Tensor self) -> Tensor", conjugate);
NEURON_LOWERING("aten::conj_physical(Tensor self) -> Tensor", conjugate);

Values is_nan(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  if (is_complex(x.dtype())) return {either(b, b.is_nan(b.real(x)), b.is_nan(b.imag(x)))};
  if (!is_floating(x.dtype())) return {b.zeros(DType::pred, x.dims())};
  return {b.is_nan(x)};
}
NEURON_LOWERING("aten::isnan(Tensor self) -> Tensor", is_nan);

Value equals(Builder& b, Value x, double value) { return b.eq(x, b.like(x, value)); }

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Values is_inf(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  if (is_complex(x.dtype())) {
    return {
        either(b, equals(b, b.abs(b.real(x)), kInfinity), equals(b, b.abs(b.imag(x)), kInfinity))};
  }
  if (!is_floating(x.dtype())) return {b.zeros(DType::pred, x.dims())};
  return {equals(b, b.abs(x), kInfinity)};
}
NEURON_LOWERING("aten::isinf(Tensor self) -> Tensor", is_inf);

template <int sign>
Values is_signed_inf(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  if (!is_floating(x.dtype())) return {b.zeros(DType::pred, x.dims())};
  return {equals(b, x, sign * kInfinity)};
}
NEURON_LOWERING("aten::isposinf(Tensor self) -> Tensor", is_signed_inf<1>);
NEURON_LOWERING("aten::isneginf(Tensor self) -> Tensor", is_signed_inf<-1>);

Values sign_bit(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  if (is_floating(x.dtype())) {
    const DType bits = size_of(x.dtype()) == 8   ? DType::i64
                       : size_of(x.dtype()) == 4 ? DType::i32
                       : size_of(x.dtype()) == 2 ? DType::i16
                                                 : DType::i8;
    const Value raw = b.bitcast(x, bits);
    return {b.lt(raw, b.zeros(bits))};
  }
  if (!is_signed_integer(x.dtype())) return {b.zeros(DType::pred, x.dims())};
  return {b.lt(x, b.like(x, 0))};
}
NEURON_LOWERING("aten::signbit(Tensor self) -> Tensor", sign_bit);

Values nan_to_num(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  if (!is_floating(x.dtype()) && !is_complex(x.dtype())) return {x};
  const DType part = real_of(x.dtype());
  const double largest = largest_finite(part);
  const Value nan = call.has(1) ? call.scalar(1, part) : b.constant(part, 0);
  const Value high = call.has(2) ? call.scalar(2, part) : b.constant(part, largest);
  const Value low = call.has(3) ? call.scalar(3, part) : b.constant(part, -largest);
  const auto tame = [&](Value v) {
    Value y = b.select(equals(b, v, -kInfinity), low, v);
    y = b.select(equals(b, v, kInfinity), high, y);
    return b.select(b.is_nan(v), nan, y);
  };
  if (is_complex(x.dtype())) return {b.complex(tame(b.real(x)), tame(b.imag(x)))};
  return {tame(x)};
}
NEURON_LOWERING(
    "aten::nan_to_num(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> "
    "Tensor",
    nan_to_num);

Values logical_not(Builder& b, const OpCall& call) {
  return {b.logical_not(b.convert(call.tensor(0), DType::pred))};
}
NEURON_LOWERING("aten::logical_not(Tensor self) -> Tensor", logical_not);

Values bitwise_not(Builder& b, const OpCall& call) { return {b.logical_not(call.tensor(0))}; }
NEURON_LOWERING("aten::bitwise_not(Tensor self) -> Tensor", bitwise_not);

// Outside [eps, 1 - eps] the argument is clamped; without eps the function has its poles.
Values logit(Builder& b, const OpCall& call) {
  const DType common = float_type(call, call.tensor(0).dtype());
  Value x = math_operand(call, 0, common);
  const Value one = b.like(x, 1);
  if (call.has(1)) {
    const Value eps = call.scalar(1, x.dtype());
    const Value high = b.sub(one, eps);
    // NaN stays: the comparisons are false.
    x = b.select(b.lt(x, eps), eps, b.select(b.gt(x, high), high, x));
  }
  return {b.convert(b.log(b.div(x, b.sub(one, x))), common)};
}
NEURON_LOWERING("aten::logit(Tensor self, float? eps=None) -> Tensor", logit);

Values logit_backward(Builder& b, const OpCall& call) {
  const DType common = result_type(call, {0, 1});
  const Value grad = math_operand(call, 0, common);
  const Value x = math_operand(call, 1, common);
  const Value one = b.like(x, 1);
  const Value low = call.has(2) ? call.scalar(2, x.dtype()) : b.like(x, 0);
  const Value high = b.sub(one, low);
  const Value inside = both(b, b.ge(x, low), b.le(x, high));
  const Value outside = b.like(x, call.has(2) ? 0.0 : std::numeric_limits<double>::quiet_NaN());
  const Value slope = b.div(grad, b.mul(x, b.sub(one, x)));
  return {b.convert(b.select(inside, slope, outside), common)};
}
NEURON_LOWERING("aten::logit_backward(Tensor grad_output, Tensor self, float? eps=None) -> Tensor",
                logit_backward);

Values polygamma_of(Builder& b, const OpCall& call) {
  const int64_t order = call.integer(0);
  const DType common = float_type(call, call.tensor(1).dtype());
  const Value x = math_operand(call, 1, common);
  return {b.convert(order == 0 ? b.unary(Op::Digamma, x) : polygamma(b, order, x), common)};
}
NEURON_LOWERING("aten::polygamma(int n, Tensor self) -> Tensor", polygamma_of);

// The sum of lgamma(x - k / 2) for k below p, up to a constant.
Values multivariate_lgamma(Builder& b, const OpCall& call) {
  const DType common = float_type(call, call.tensor(0).dtype());
  const Value x = math_operand(call, 0, common);
  const auto p = static_cast<double>(call.integer(1));
  Value sum = b.like(x, 0.25 * p * (p - 1) * std::log(std::numbers::pi));
  for (int64_t k = 0; k < call.integer(1); ++k) {
    const Value at = b.sub(x, b.like(x, 0.5 * static_cast<double>(k)));
    sum = b.add(sum, b.unary(Op::Lgamma, at));
  }
  return {b.convert(sum, common)};
}
NEURON_LOWERING("aten::mvlgamma(Tensor self, int p) -> Tensor", multivariate_lgamma);

// frexp: |mantissa| in [0.5, 1); zeros, infinities and NaN keep themselves with exponent 0.
Values frexp(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const DType math = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const DType bits = math == DType::f64 ? DType::i64 : DType::i32;
  const int64_t mantissa_bits = math == DType::f64 ? 52 : 23;
  const int64_t bias = math == DType::f64 ? 1022 : 126;
  const int64_t exponent_mask = math == DType::f64 ? 0x7FF : 0xFF;
  const Value wide = b.convert(x, math);
  // Subnormals have no exponent of their own: scale them up first.
  const double scale = std::ldexp(1.0, static_cast<int>(mantissa_bits) + 2);
  const double smallest =
      math == DType::f64 ? std::numeric_limits<double>::min() : std::numeric_limits<float>::min();
  const Value subnormal = b.lt(b.abs(wide), b.like(wide, smallest));
  const Value scaled = b.select(subnormal, b.mul(wide, b.like(wide, scale)), wide);
  const Value raw = b.bitcast(scaled, bits);
  const auto integer = [&](int64_t value) { return b.constant_int(bits, value); };
  const Value stored = b.bit_and(b.binary(Op::ShiftRightLogical, raw, integer(mantissa_bits)),
                                 integer(exponent_mask));
  const Value shift = b.select(subnormal, integer(bias + mantissa_bits + 2), integer(bias));
  const Value exponent = b.sub(stored, shift);
  const int64_t keep = ~(exponent_mask << mantissa_bits);
  const Value mantissa =
      b.bitcast(b.bit_or(b.bit_and(raw, integer(keep)), integer(bias << mantissa_bits)), math);
  const Value plain = either(b, equals(b, wide, 0), b.logical_not(b.is_finite(wide)));
  return {b.convert(b.select(plain, wide, mantissa), x.dtype()),
          b.convert(b.select(plain, integer(0), exponent), DType::i32)};
}
NEURON_LOWERING("aten::frexp.Tensor(Tensor self) -> (Tensor mantissa, Tensor exponent)", frexp);

}  // namespace
}  // namespace neuron::lowering
