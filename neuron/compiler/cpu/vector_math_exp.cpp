#include <llvm/IR/Constants.h>
#include <llvm/IR/IRBuilder.h>

#include "neuron/compiler/cpu/vector_math_builder.h"

// Exponentials and logarithms. Coefficients are Chebyshev interpolants of the named functions,
// computed to 50 digits.
namespace neuron::compiler::cpu {
namespace {

using V = MathBuilder::V;

constexpr double kLog2E = 0x1.71547652b82fep+0;
constexpr double kLn2High64 = 0x1.62e42fefa3000p-1;  // 41 bits: exact times any exponent
constexpr double kLn2Low64 = 0x1.3de6af278ece6p-42;
constexpr double kLn2High32 = 0x1.62e4p-1;  // 15 bits
constexpr double kLn2Low32 = 0x1.7f7d1cp-20;

// (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2.
V exp_tail(MathBuilder& m, V r, bool relative_to_r) {
  if (!m.single()) {
    return m.poly(r, {0.5, 0.16666666666666671, 0.041666666666666671, 0.0083333333333260248,
                      0.001388888888888367, 0.00019841269875205077, 2.4801587325822283e-05,
                      2.7557254913486701e-06, 2.7557273295539724e-07, 2.5105419192016337e-08,
                      2.091483135138041e-09});
  }
  if (relative_to_r) {
    return m.poly(r, {0.5, 0.166666672, 0.041666463, 0.00833331048, 0.00139338209, 0.000198911803});
  }
  return m.poly(r, {0.5, 0.166665763, 0.0416665524, 0.00836329255, 0.00139263261});
}

V reduce_by_ln2(MathBuilder& m, V x, V n) {
  V minus_n = m.neg(n);
  V r = m.fma(minus_n, m.c(m.single() ? kLn2High32 : kLn2High64), x);
  return m.fma(minus_n, m.c(m.single() ? kLn2Low32 : kLn2Low64), r);
}

}  // namespace

V MathBuilder::exp(V x) { return exp_sum(x, nullptr); }

V MathBuilder::exp_sum(V x, V low_part) {
  // Beyond these the result is 0 or infinity anyhow, and the exponent arithmetic stays in range.
  x = at_least(at_most(x, single_ ? 89.0 : 710.0), single_ ? -104.0 : -746.0);
  V low;
  V n = round_product(x, c(kLog2E), &low);
  V r = reduce_by_ln2(*this, x, n);
  if (low_part != nullptr) r = add(r, low_part);
  return scale(exp_reduced(r), n, low);
}

V MathBuilder::exp_reduced(V r) {
  return add(fma(mul(r, r), exp_tail(*this, r, false), r), c(1.0));
}

V MathBuilder::expm1_bounded(V x) {
  V low;
  V n = round_product(x, c(kLog2E), &low);
  V p = expm1_reduced(reduce_by_ln2(*this, x, n));
  V power = power_of_two(low);
  return fma(power, p, sub(power, c(1.0)));
}

V MathBuilder::expm1_reduced(V r) { return fma(mul(r, r), exp_tail(*this, r, true), r); }

V MathBuilder::expm1(V x) {
  V clamped = at_least(at_most(x, single_ ? 89.0 : 710.0), single_ ? -18.0 : -40.0);
  V low;
  V n = round_product(clamped, c(kLog2E), &low);
  V p = expm1_reduced(reduce_by_ln2(*this, clamped, n));
  // One power less, then doubled: 2^n itself may be out of range.
  V half = power_of_two(b.CreateSub(low, i(1)));
  V result = fma(half, p, sub(half, c(0.5)));
  result = add(result, result);
  // Keeps -0, and numbers whose square vanishes.
  return select(lt(abs(x), c(single_ ? 0x1p-24 : 0x1p-54)), x, result);
}

void MathBuilder::split(V x, V* m, V* e) {
  const int mantissa = single_ ? 23 : 52;
  V tiny = lt(x, c(single_ ? 0x1p-126 : 0x1p-1022));
  V normal = select(tiny, mul(x, c(single_ ? 0x1p23 : 0x1p52)), x);
  V root = bits(c(0x1.6a09e667f3bcdp-1));
  V offset = b.CreateSub(bits(normal), root);
  V exponent = b.CreateAShr(offset, i(mantissa));
  *m = real(b.CreateAdd(b.CreateAnd(offset, i((int64_t{1} << mantissa) - 1)), root));
  if (single_) {
    *e = b.CreateSIToFP(exponent, type_);
  } else {
    // The exponent is small: an integer added below the magic number's bits converts it.
    V magic = c(0x1.8p52);
    *e = sub(real(b.CreateAdd(exponent, bits(magic))), magic);
  }
  *e = add(*e, select(tiny, c(-mantissa), c(0.0)));
}

V MathBuilder::log_specials(V x, V r) {
  V zero = c(0.0);
  r = select(gt(x, zero), r, select(eq(x, zero), neg(infinity()), nan()));
  // Infinity and NaN are their own logarithms.
  return select(lt(x, infinity()), r, x);
}

V MathBuilder::log_mantissa(V m) {
  V f = sub(m, c(1.0));
  if (single_) {
    V p = poly(f, {0.333333313, -0.24999997, 0.200007305, -0.166678503, 0.142485514, -0.124240376,
                   0.116890714, -0.114945464, 0.0698070228});
    V z = mul(f, f);
    return add(f, fma(c(-0.5), z, mul(mul(f, z), p)));
  }
  V s = div(f, add(f, c(2.0)));
  V z = mul(s, s);
  V r = mul(z, poly(z, {0.66666666666666696, 0.39999999999893221, 0.28571428628810996,
                        0.22222210674238516, 0.18182922513515942, 0.15330617306743305,
                        0.14630031364122861}));
  V half = mul(mul(f, f), c(0.5));
  // f - (f^2/2 - s (f^2/2 + r)): the parts lost in f^2/2 come back through s.
  return sub(f, sub(half, mul(s, add(half, r))));
}

V MathBuilder::log(V x) {
  V m, e;
  split(x, &m, &e);
  V f = sub(m, c(1.0));
  V result;
  if (single_) {
    V p = poly(f, {0.333333313, -0.24999997, 0.200007305, -0.166678503, 0.142485514, -0.124240376,
                   0.116890714, -0.114945464, 0.0698070228});
    V z = mul(f, f);
    V y = mul(mul(f, z), p);
    y = fma(e, c(kLn2Low32), y);
    y = fma(c(-0.5), z, y);
    result = fma(e, c(kLn2High32), add(f, y));
  } else {
    V s = div(f, add(f, c(2.0)));
    V z = mul(s, s);
    V r = mul(z, poly(z, {0.66666666666666696, 0.39999999999893221, 0.28571428628810996,
                          0.22222210674238516, 0.18182922513515942, 0.15330617306743305,
                          0.14630031364122861}));
    V half = mul(mul(f, f), c(0.5));
    V inner = fma(s, add(half, r), mul(e, c(kLn2Low64)));
    result = fma(e, c(kLn2High64), sub(f, sub(half, inner)));
  }
  return log_specials(x, result);
}

V MathBuilder::log1p(V x) {
  V u = add(x, c(1.0));
  // What rounding 1 + x lost, relative to u.
  V big = ge(x, c(1.0));
  V lost = select(big, sub(c(1.0), sub(u, x)), sub(x, sub(u, c(1.0))));
  V correction = div(lost, u);
  V result = add(log(u), select(both(gt(u, c(0.0)), lt(u, infinity())), correction, c(0.0)));
  return select(lt(abs(x), c(single_ ? 0x1p-25 : 0x1p-54)), x, result);
}

}  // namespace neuron::compiler::cpu
