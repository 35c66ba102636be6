#include <llvm/IR/Constants.h>
#include <llvm/IR/IRBuilder.h>

#include "neuron/compiler/cpu/vector_math_builder.h"

// Trigonometric functions and their inverses. Arguments of sine and cosine are reduced in double
// precision, for floats too.
namespace neuron::compiler::cpu {
namespace {

using V = MathBuilder::V;

constexpr double kPi = 0x1.921fb54442d18p+1;
constexpr double kPiLow = 0x1.1a62633145c07p-53;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
// Pi / 2 in three pieces of 33 bits: the first two products with a quadrant number are exact.
constexpr double kHalfPi1 = 0x1.921fb54400000p+0;
constexpr double kHalfPi2 = 0x1.0b4611a600000p-34;
constexpr double kHalfPi3 = 0x1.3198a2e037073p-69;

V sine_poly(MathBuilder& m, V r, V low, V z) {
  V p = m.single()
            ? m.poly(z, {-0.166666672, 0.00833333191, -0.000198400638, 2.72468696e-06})
            : m.poly(z, {-0.16666666666666666, 0.0083333333333333315, -0.00019841269841264821,
                         2.7557319219150783e-06, -2.5052106167335705e-08, 1.6058521349954986e-10,
                         -7.5860947896726206e-13});
  V tail = m.mul(m.mul(r, z), p);
  if (low != nullptr) tail = m.add(tail, low);
  return m.add(r, tail);
}

V cosine_poly(MathBuilder& m, V r, V low, V z) {
  V p = m.single() ? m.poly(z, {0.0416666679, -0.00138888881, 2.48005799e-05, -2.72984067e-07})
                   : m.poly(z, {0.041666666666666664, -0.0013888888888888887, 2.480158730158451e-05,
                                -2.7557319221298089e-07, 2.0876755754879594e-09,
                                -1.1470455178216906e-11, 4.7455370173192583e-14});
  V half = m.mul(z, m.c(0.5));
  V w = m.sub(m.c(1.0), half);
  V lost = m.sub(m.sub(m.c(1.0), w), half);
  V tail = m.fma(m.mul(z, z), p, lost);
  if (low != nullptr) tail = m.sub(tail, m.mul(r, low));
  return m.add(w, tail);
}

}  // namespace

void MathBuilder::sincos(V x, V* sine, V* cosine) {
  MathBuilder wide(b, llvm::FixedVectorType::get(b.getDoubleTy(), kLanes), traits_);
  V magnitude = abs(x);
  V a = single_ ? b.CreateFPExt(magnitude, wide.type()) : magnitude;
  V quadrant;
  V n = wide.round_product(a, wide.c(kTwoOverPi), &quadrant);
  V minus_n = wide.neg(n);
  // Exact, exact but for one rounding that `lost` keeps, and a last correction.
  V r1 = wide.fma(minus_n, wide.c(kHalfPi1), a);
  V r2 = wide.fma(minus_n, wide.c(kHalfPi2), r1);
  V lost = wide.fma(minus_n, wide.c(kHalfPi2), wide.sub(r1, r2));
  V correction = wide.fma(minus_n, wide.c(kHalfPi3), lost);
  V r = wide.add(r2, correction);
  V low = wide.add(wide.sub(r2, r), correction);
  reduce_large(a, &r, &low, &quadrant);
  V q = quadrant;
  V rest_low = low;
  if (single_) {
    r = b.CreateFPTrunc(r, type_);
    q = b.CreateTrunc(quadrant, int_type_);
    rest_low = nullptr;
  }
  V z = mul(r, r);
  V s = sine_poly(*this, r, rest_low, z);
  V k = cosine_poly(*this, r, rest_low, z);
  V odd = b.CreateICmpNE(b.CreateAnd(q, i(1)), i(0));
  const int sign_bit = single_ ? 31 : 63;
  V negative = b.CreateShl(b.CreateAnd(q, i(2)), i(sign_bit - 1));
  V x_sign = b.CreateAnd(bits(x), i(static_cast<int64_t>(uint64_t{1} << sign_bit)));
  if (sine != nullptr) {
    V value = select(odd, k, s);
    *sine = real(b.CreateXor(bits(value), b.CreateXor(negative, x_sign)));
  }
  if (cosine != nullptr) {
    V value = select(odd, s, k);
    // Quadrants 1 and 2 are negative.
    V flipped = b.CreateShl(b.CreateAnd(b.CreateAdd(q, i(1)), i(2)), i(sign_bit - 1));
    *cosine = real(b.CreateXor(bits(value), flipped));
  }
}

V MathBuilder::atan(V x) {
  V a = abs(x);
  V mid = gt(a, c(0.41421356237309503));
  V big = gt(a, c(2.414213562373095));
  V num = select(big, c(-1.0), select(mid, sub(a, c(1.0)), a));
  V den = select(big, a, select(mid, add(a, c(1.0)), c(1.0)));
  V t = div(num, den);
  V z = mul(t, t);
  V p =
      poly(z, {-0.33333333333333331, 0.1999999999999999, -0.14285714285711448, 0.11111111110746594,
               -0.090909090665247411, 0.076923067189830052, -0.066666416429393097,
               0.058819197674242603, -0.052579884569857238, 0.04719056360093421,
               -0.04103069263397216, 0.030604067353216316, -0.013886252406883251});
  V base = select(big, c(kPi / 2), select(mid, c(kPi / 4), c(0.0)));
  V base_low = select(big, c(kPiLow / 2), select(mid, c(kPiLow / 4), c(0.0)));
  V result = add(base, add(t, fma(mul(t, z), p, base_low)));
  return copysign(result, x);
}

namespace {

// (asin(t) - t) / t^3 in z = t^2 <= 1/4.
V asin_tail(MathBuilder& m, V z) {
  return m.poly(
      z, {0.16666666666666666, 0.075000000000001177, 0.044642857142551895, 0.03038194447553234,
          0.022372157443507221, 0.017352816540325496, 0.01396378001220357, 0.011566459612121669,
          0.0096218429701002816, 0.0093195607947674456, 0.0030448799094556773, 0.019554513336123378,
          -0.019241671746743041, 0.029612011264955121});
}

}  // namespace

V MathBuilder::asin(V x) {
  V a = abs(x);
  V near_one = gt(a, c(0.5));
  V z = select(near_one, mul(sub(c(1.0), a), c(0.5)), mul(a, a));
  V t = select(near_one, sqrt(z), a);
  V core = fma(mul(t, z), asin_tail(*this, z), t);
  V folded = sub(c(kPi / 2), sub(mul(core, c(2.0)), c(kPiLow / 2)));
  return copysign(select(near_one, folded, core), x);
}

V MathBuilder::acos(V x) {
  V a = abs(x);
  V near_one = gt(a, c(0.5));
  V z = select(near_one, mul(sub(c(1.0), a), c(0.5)), mul(a, a));
  V t = select(near_one, sqrt(z), a);
  V core = fma(mul(t, z), asin_tail(*this, z), t);
  V negative = lt(x, c(0.0));
  V twice = mul(core, c(2.0));
  V outer = select(negative, sub(c(kPi), sub(twice, c(kPiLow))), twice);
  V signed_core = select(negative, neg(core), core);
  V inner = sub(c(kPi / 2), sub(signed_core, c(kPiLow / 2)));
  return select(near_one, outer, inner);
}

}  // namespace neuron::compiler::cpu
