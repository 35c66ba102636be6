#include <llvm/IR/Constants.h>
#include <llvm/IR/IRBuilder.h>

#include "neuron/compiler/cpu/vector_math_builder.h"

// Power and floating-point remainder.
namespace neuron::compiler::cpu {
namespace {

using V = MathBuilder::V;

constexpr double kLn2High = 0x1.62e42fefa3000p-1;
constexpr double kLn2Low = 0x1.3de6af278ece6p-42;

/// An unevaluated sum of two numbers, the second below half an ulp of the first.
struct Pair {
  V high;
  V low;
};

Pair fast_two_sum(MathBuilder& m, V a, V b) {
  V s = m.add(a, b);
  return {s, m.sub(b, m.sub(s, a))};
}

Pair multiply(MathBuilder& m, Pair x, Pair y) {
  V p = m.mul(x.high, y.high);
  V e = m.fma(x.high, y.high, m.neg(p));
  e = m.fma(x.high, y.low, e);
  e = m.fma(x.low, y.high, e);
  return fast_two_sum(m, p, e);
}

// log(x) of a positive finite x to about 2^-66 relative.
Pair log_pair(MathBuilder& m, V x) {
  V mantissa, e;
  m.split(x, &mantissa, &e);
  V one = m.c(1.0);
  // s = f / (2 + f) as a pair; f is exact, the divisor d may lose a bit.
  V f = m.sub(mantissa, one);
  V d = m.add(mantissa, one);
  V d_low = m.sub(mantissa, m.sub(d, one));
  V s = m.div(f, d);
  V rest = m.fma(m.neg(s), d, f);
  rest = m.fma(m.neg(s), d_low, rest);
  Pair sp = {s, m.div(rest, d)};
  Pair z = multiply(m, sp, sp);
  // log(m) = 2 s + s^3 (2/3 + z R(z)).
  V tail =
      m.mul(z.high, m.poly(z.high, {0.40000000000000002, 0.28571428571429425, 0.2222222222162076,
                                    0.18181818343316125, 0.15384594120126369, 0.13334850282547114,
                                    0.11705021567538627, 0.11735818855512968}));
  Pair w = fast_two_sum(m, m.c(0x1.5555555555555p-1), m.add(tail, m.c(0x1.5555555555555p-55)));
  Pair cube = multiply(m, multiply(m, sp, z), w);
  Pair twice = {m.add(s, s), m.add(sp.low, sp.low)};
  Pair small = fast_two_sum(m, twice.high, cube.high);
  small.low = m.add(small.low, m.add(twice.low, cube.low));
  // e ln 2 dominates unless it is zero.
  V big = m.mul(e, m.c(kLn2High));
  Pair sum = fast_two_sum(m, big, small.high);
  V low = m.add(sum.low, m.fma(e, m.c(kLn2Low), small.low));
  return fast_two_sum(m, sum.high, low);
}

// Everything about power that is not arithmetic: `r` is |x|^y for finite positive |x|.
V power_specials(MathBuilder& m, V x, V y, V r) {
  V zero = m.c(0.0);
  V one = m.c(1.0);
  V ax = m.abs(x);
  V ay = m.abs(y);
  V integer = m.eq(m.trunc(y), y);  // Infinity counts, as an even one.
  V half = m.mul(y, m.c(0.5));
  V odd = m.both(m.both(integer, m.b.CreateFCmpONE(m.trunc(half), half)), m.lt(ay, m.infinity()));
  V y_negative = m.lt(y, zero);
  // |x| zero or infinite.
  V at_zero = m.select(y_negative, m.infinity(), zero);
  V at_infinity = m.select(y_negative, zero, m.infinity());
  r = m.select(m.eq(ax, zero), at_zero, r);
  r = m.select(m.eq(ax, m.infinity()), at_infinity, r);
  // y infinite.
  V grows = m.b.CreateXor(m.gt(ax, one), y_negative);
  V limit = m.select(m.eq(ax, one), one, m.select(grows, m.infinity(), zero));
  r = m.select(m.eq(ay, m.infinity()), limit, r);
  V x_sign_set = m.b.CreateICmpSLT(m.bits(x), m.i(0));
  r = m.select(m.both(odd, x_sign_set), m.neg(r), r);
  V invalid = m.both(m.lt(x, zero), m.b.CreateNot(integer));
  invalid = m.both(invalid, m.lt(ax, m.infinity()));
  r = m.select(invalid, m.nan(), r);
  r = m.select(m.either(m.is_nan(x), m.is_nan(y)), m.nan(), r);
  return m.select(m.either(m.eq(x, one), m.eq(y, zero)), one, r);
}

}  // namespace

V MathBuilder::power(V x, V y) {
  Pair l = log_pair(*this, abs(x));
  V high = mul(y, l.high);
  V low = fma(y, l.high, neg(high));
  low = fma(y, l.low, low);
  // Out of range either way; keeps infinities out of the low part.
  V huge = gt(abs(high), c(800.0));
  low = select(huge, c(0.0), low);
  return power_specials(*this, x, y, exp_sum(high, low));
}

V MathBuilder::power_short(V x, V y) {
  V r = exp(mul(y, log(abs(x))));
  return power_specials(*this, x, y, r);
}

// Long division: each round takes away a multiple of y scaled by a power of two, exactly; nearly
// always one round is enough.
V MathBuilder::fmod(V x, V y) {
  V ay = abs(y);
  V ax = abs(x);
  // Lanes without a proper result stay out of the loop.
  V ok = both(both(lt(ax, infinity()), gt(ay, c(0.0))), lt(ay, infinity()));
  V divisor = select(ok, ay, c(1.0));
  V start = select(ok, ax, c(0.0));
  llvm::Function* function = b.GetInsertBlock()->getParent();
  llvm::BasicBlock* before = b.GetInsertBlock();
  auto* loop = llvm::BasicBlock::Create(b.getContext(), "fmod", function);
  auto* done = llvm::BasicBlock::Create(b.getContext(), "fmod.done", function);
  b.CreateBr(loop);
  b.SetInsertPoint(loop);
  llvm::PHINode* rest = b.CreatePHI(type_, 2);
  // A power of two 2^k with rest / (y 2^k) < 2^53: from the difference of the exponents.
  V exponent_gap = b.CreateSub(b.CreateLShr(bits(rest), i(52)), b.CreateLShr(bits(divisor), i(52)));
  V excess = b.CreateSub(exponent_gap, i(50));
  V k = b.CreateSelect(b.CreateICmpSGT(excess, i(0)), excess, i(0));
  // A subnormal divisor has up to 52 bits less than its exponent says; rounds are then repeated.
  V half_k = b.CreateLShr(k, i(1));
  V one = bits(c(1.0));
  V factor1 = real(b.CreateAdd(b.CreateShl(half_k, i(52)), one));
  V factor2 = real(b.CreateAdd(b.CreateShl(b.CreateSub(k, half_k), i(52)), one));
  V scaled = mul(mul(divisor, factor1), factor2);
  V quotient = trunc(div(rest, scaled));
  // Lanes that are already done, or whose quotient is still too long to be exact.
  V too_long = gt(quotient, c(0x1p53));
  // Well below the true quotient, which rounding may have exceeded by half a step.
  V cut = real(b.CreateSub(b.CreateAnd(bits(quotient), i(~int64_t{7})), i(8)));
  quotient = select(too_long, cut, quotient);
  V next = fma(neg(quotient), scaled, rest);
  // The quotient may have been rounded up to the next integer.
  next = select(lt(next, c(0.0)), add(next, scaled), next);
  V again = b.CreateOrReduce(ge(next, divisor));
  rest->addIncoming(start, before);
  b.CreateCondBr(again, loop, done);
  rest->addIncoming(next, b.GetInsertBlock());
  b.SetInsertPoint(done);
  V result = select(eq(ay, infinity()), x, copysign(next, x));
  V invalid = either(b.CreateNot(lt(ax, infinity())), b.CreateNot(gt(ay, c(0.0))));
  return select(invalid, nan(), result);
}

}  // namespace neuron::compiler::cpu
