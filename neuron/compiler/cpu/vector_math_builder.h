#pragma once

#include <cstdint>
#include <initializer_list>

#include "neuron/compiler/cpu/emit_vector.h"

namespace neuron::compiler::cpu {

/// Short names for arithmetic on vectors of one floating-point type, in which the formulas of
/// vector_math*.cpp are written. Every operation rounds once; fma is always fused.
class MathBuilder {
 public:
  using V = llvm::Value*;
  MathBuilder(llvm::IRBuilderBase& builder, llvm::Type* vector, TargetTraits traits);

  bool single() const { return single_; }
  llvm::Type* type() const { return type_; }
  llvm::Type* int_type() const { return int_type_; }

  V c(double value);
  V i(int64_t value);
  V infinity();
  V nan();
  V add(V x, V y);
  V sub(V x, V y);
  V mul(V x, V y);
  V div(V x, V y);
  V fma(V x, V y, V z);
  V neg(V x);
  V abs(V x);
  V sqrt(V x);
  V floor(V x);
  V trunc(V x);
  V copysign(V magnitude, V sign);
  V select(V mask, V x, V y);
  V bits(V x);
  V real(V bits);
  V lt(V x, V y);
  V le(V x, V y);
  V gt(V x, V y);
  V ge(V x, V y);
  V eq(V x, V y);
  V is_nan(V x);
  V both(V x, V y);
  V either(V x, V y);
  /// x clamped from above or below; NaN stays.
  V at_most(V x, double limit);
  V at_least(V x, double limit);
  /// Horner with fused steps; coefficients from the constant term up.
  V poly(V x, std::initializer_list<double> coefficients);

  /// x rounded to the nearest integer, |x| < 2^22 (f32) or 2^51 (f64); the integer in the low bits
  /// of `*low`, exact modulo powers of two.
  V round(V x, V* low);
  /// Like round() of x * factor, in one rounding.
  V round_product(V x, V factor, V* low);
  /// x * 2^n for the pair that round() gave, with one rounding in the subnormal range;
  /// |n| < twice the exponent range.
  V scale(V x, V n, V low);
  /// 2^n for an n in the range of normal numbers.
  V power_of_two(V low);

  // --- Shared cores ---------------------------------------------------------------------------
  V exp(V x);
  /// exp(x + low) for |low| much smaller than |x|.
  V exp_sum(V x, V low);
  V expm1(V x);
  /// expm1 for 0 <= x < 60 (or NaN), without the care for the ends of the range.
  V expm1_bounded(V x);
  /// exp(r) for |r| <= ln(2) / 2.
  V exp_reduced(V r);
  V log(V x);
  V log1p(V x);
  /// Splits x > 0 into m * 2^e with m in [sqrt(1/2), sqrt(2)); subnormals included.
  void split(V x, V* m, V* e);
  /// log(m) of such an m.
  V log_mantissa(V m);
  /// -inf at 0, NaN below, x where x is inf or NaN, else `r`.
  V log_specials(V x, V r);
  void sincos(V x, V* sine, V* cosine);
  V erf(V x);
  V erfc(V x);
  /// f64 only; without `refine` to about 2^-29, enough for a float.
  V erf_inv(V x, bool refine);
  V atan(V x);
  V asin(V x);
  V acos(V x);
  V power(V x, V y);
  /// f64 only: as power(), with the accuracy of a float result.
  V power_short(V x, V y);
  V fmod(V x, V y);

  llvm::IRBuilderBase& b;

 private:
  /// Replaces the reduction of lanes too large for it; a no-op for all others.
  void reduce_large(V a, V* r, V* low, V* quadrant);
  /// erfc for x >= 0.
  V erfc_positive(V x);
  V expm1_reduced(V r);

  llvm::Type* type_;
  llvm::Type* int_type_;
  TargetTraits traits_;
  bool single_;
};

}  // namespace neuron::compiler::cpu
