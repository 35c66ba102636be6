#include "neuron/compiler/cpu/vector_math.h"

#include <llvm/IR/Constants.h>
#include <llvm/IR/IRBuilder.h>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/vector_math_builder.h"

// Chooses how a function is computed. The hot ones have f32 code of their own; the others are
// computed in f64 and rounded, which is accurate to half an ulp and a fraction.
namespace neuron::compiler::cpu {
namespace {

using hlo::Op;
using V = MathBuilder::V;

bool is_native_single(Op op) {
  switch (op) {
    case Op::Exp:
    case Op::Exp2:
    case Op::Expm1:
    case Op::Log:
    case Op::Log1p:
    case Op::Log2:
    case Op::Logistic:
    case Op::Tanh:
    case Op::Erf:
    case Op::Sine:
    case Op::Cosine:
      return true;
    default:
      return false;
  }
}

V exp2(MathBuilder& m, V x) {
  const bool single = m.single();
  x = m.at_least(m.at_most(x, single ? 129.0 : 1025.0), single ? -151.0 : -1076.0);
  V low;
  V n = m.round(x, &low);
  V r = m.mul(m.sub(x, n), m.c(0x1.62e42fefa39efp-1));
  // The reduced exponential: exp() of an argument that needs no reduction of its own.
  return m.scale(m.exp_reduced(r), n, low);
}

V tanh(MathBuilder& m, V x) {
  // From 9.02 (19.07 in f64) on the result rounds to 1.
  V a = m.at_most(m.abs(x), m.single() ? 9.1 : 20.0);
  V t = m.expm1_bounded(m.add(a, a));
  V d = m.add(t, m.c(2.0));
  if (m.single()) return m.copysign(m.div(t, d), x);
  V big = m.gt(a, m.c(1.0));
  V q = m.div(m.select(big, m.c(2.0), t), d);
  return m.copysign(m.select(big, m.sub(m.c(1.0), q), q), x);
}

V sinh(MathBuilder& m, V x) {
  V a = m.abs(x);
  V t = m.expm1(m.at_most(a, 709.0));
  V moderate = m.mul(m.c(0.5), m.add(t, m.div(t, m.add(t, m.c(1.0)))));
  V root = m.exp(m.mul(a, m.c(0.5)));
  V huge = m.mul(m.mul(m.c(0.5), root), root);
  return m.copysign(m.select(m.gt(a, m.c(700.0)), huge, moderate), x);
}

V cosh(MathBuilder& m, V x) {
  V a = m.abs(x);
  V e = m.exp(m.at_most(a, 709.0));
  V moderate = m.fma(m.c(0.5), e, m.div(m.c(0.5), e));
  V root = m.exp(m.mul(a, m.c(0.5)));
  V huge = m.mul(m.mul(m.c(0.5), root), root);
  return m.select(m.gt(a, m.c(700.0)), huge, moderate);
}

constexpr double kLn2 = 0x1.62e42fefa39efp-1;

V asinh(MathBuilder& m, V x) {
  V a = m.abs(x);
  V big = m.gt(a, m.c(0x1p28));
  V s = m.select(big, m.c(1.0), a);
  V square = m.mul(s, s);
  V inner = m.add(s, m.div(square, m.add(m.c(1.0), m.sqrt(m.add(square, m.c(1.0))))));
  V near = m.log1p(inner);
  V far = m.add(m.log(a), m.c(kLn2));
  return m.copysign(m.select(big, far, near), x);
}

V acosh(MathBuilder& m, V x) {
  V big = m.gt(x, m.c(0x1p28));
  V t = m.sub(m.select(big, m.c(2.0), x), m.c(1.0));
  V near = m.log1p(m.add(t, m.sqrt(m.fma(t, t, m.add(t, t)))));
  V far = m.add(m.log(x), m.c(kLn2));
  V result = m.select(big, far, near);
  return m.select(m.lt(x, m.c(1.0)), m.nan(), result);
}

V atanh(MathBuilder& m, V x) {
  V a = m.abs(x);
  V t = m.div(m.add(a, a), m.sub(m.c(1.0), a));
  return m.copysign(m.mul(m.c(0.5), m.log1p(t)), x);
}

V log2(MathBuilder& m, V x) {
  V mantissa, e;
  m.split(x, &mantissa, &e);
  V result = m.fma(m.log_mantissa(mantissa), m.c(0x1.71547652b82fep+0), e);
  return m.log_specials(x, result);
}

V log10(MathBuilder& m, V x) {
  V mantissa, e;
  m.split(x, &mantissa, &e);
  V y = m.mul(e, m.c(0x1.3fde623e2566bp-43));
  y = m.fma(m.log_mantissa(mantissa), m.c(0x1.bcb7b1526e50ep-2), y);
  return m.log_specials(x, m.fma(e, m.c(0x1.34413509f7000p-2), y));
}

// `short_result`: the caller rounds to float.
V compute(MathBuilder& m, Op op, V x, bool short_result) {
  switch (op) {
    case Op::Exp:
      return m.exp(x);
    case Op::Exp2:
      return exp2(m, x);
    case Op::Expm1:
      return m.expm1(x);
    case Op::Log:
      return m.log(x);
    case Op::Log1p:
      return m.log1p(x);
    case Op::Log2:
      return log2(m, x);
    case Op::Log10:
      return log10(m, x);
    case Op::Logistic:
      return m.div(m.c(1.0), m.add(m.c(1.0), m.exp(m.neg(x))));
    case Op::Tanh:
      return tanh(m, x);
    case Op::Erf:
      return m.erf(x);
    case Op::Erfc:
      return m.erfc(x);
    case Op::ErfInv:
      return m.erf_inv(x, !short_result);
    case Op::Sine: {
      V s;
      m.sincos(x, &s, nullptr);
      return s;
    }
    case Op::Cosine: {
      V k;
      m.sincos(x, nullptr, &k);
      return k;
    }
    case Op::Tan: {
      V s, k;
      m.sincos(x, &s, &k);
      return m.div(s, k);
    }
    case Op::Asin:
      return m.asin(x);
    case Op::Acos:
      return m.acos(x);
    case Op::Atan:
      return m.atan(x);
    case Op::Sinh:
      return sinh(m, x);
    case Op::Cosh:
      return cosh(m, x);
    case Op::Asinh:
      return asinh(m, x);
    case Op::Acosh:
      return acosh(m, x);
    case Op::Atanh:
      return atanh(m, x);
    default:
      break;
  }
  raise(ErrorKind::kInternal, "no vector code for ", hlo::name_of(op));
}

}  // namespace

bool VectorMath::has(Op op) {
  switch (op) {
    case Op::Rsqrt:
    case Op::Exp:
    case Op::Exp2:
    case Op::Expm1:
    case Op::Log:
    case Op::Log1p:
    case Op::Log2:
    case Op::Log10:
    case Op::Logistic:
    case Op::Tanh:
    case Op::Erf:
    case Op::Erfc:
    case Op::ErfInv:
    case Op::Sine:
    case Op::Cosine:
    case Op::Tan:
    case Op::Asin:
    case Op::Acos:
    case Op::Atan:
    case Op::Sinh:
    case Op::Cosh:
    case Op::Asinh:
    case Op::Acosh:
    case Op::Atanh:
      return true;
    default:
      return false;
  }
}

V VectorMath::unary(Op op, V x) {
  MathBuilder own(b_, x->getType(), traits_);
  if (!own.single() || is_native_single(op)) return compute(own, op, x, false);
  llvm::Type* f64 = llvm::FixedVectorType::get(b_.getDoubleTy(), kLanes);
  MathBuilder wide(b_, f64, traits_);
  return b_.CreateFPTrunc(compute(wide, op, b_.CreateFPExt(x, f64), true), x->getType());
}

V VectorMath::power(V x, V y) {
  MathBuilder own(b_, x->getType(), traits_);
  if (!own.single()) return own.power(x, y);
  llvm::Type* f64 = llvm::FixedVectorType::get(b_.getDoubleTy(), kLanes);
  MathBuilder wide(b_, f64, traits_);
  return b_.CreateFPTrunc(wide.power_short(b_.CreateFPExt(x, f64), b_.CreateFPExt(y, f64)),
                          x->getType());
}

V VectorMath::atan2(V y, V x) {
  llvm::Type* given = x->getType();
  llvm::Type* f64 = llvm::FixedVectorType::get(b_.getDoubleTy(), kLanes);
  MathBuilder m(b_, f64, traits_);
  const bool single = given->getScalarType()->isFloatTy();
  if (single) {
    x = b_.CreateFPExt(x, f64);
    y = b_.CreateFPExt(y, f64);
  }
  V ax = m.abs(x);
  V ay = m.abs(y);
  // The quotient of the smaller by the larger is at most 1.
  V steep = m.gt(ay, ax);
  V num = m.select(steep, ax, ay);
  V den = m.select(steep, ay, ax);
  // Two infinities count as equal, two zeros as 0 / 1.
  V both_infinite = m.eq(num, m.infinity());
  V q = m.div(m.select(both_infinite, m.c(1.0), num),
              m.select(both_infinite, m.c(1.0), m.select(m.eq(den, m.c(0.0)), m.c(1.0), den)));
  V angle = m.atan(q);
  constexpr double pi = 0x1.921fb54442d18p+1;
  constexpr double pi_low = 0x1.1a62633145c07p-53;
  angle = m.select(steep, m.sub(m.c(pi / 2), m.sub(angle, m.c(pi_low / 2))), angle);
  V x_negative = b_.CreateICmpSLT(m.bits(x), m.i(0));
  angle = m.select(x_negative, m.sub(m.c(pi), m.sub(angle, m.c(pi_low))), angle);
  angle = m.copysign(angle, y);
  angle = m.select(m.either(m.is_nan(x), m.is_nan(y)), m.nan(), angle);
  return single ? b_.CreateFPTrunc(angle, given) : angle;
}

V VectorMath::fmod(V x, V y) {
  MathBuilder own(b_, x->getType(), traits_);
  if (!own.single()) return own.fmod(x, y);
  llvm::Type* f64 = llvm::FixedVectorType::get(b_.getDoubleTy(), kLanes);
  MathBuilder wide(b_, f64, traits_);
  // Exact in both types, so the way through f64 loses nothing.
  return b_.CreateFPTrunc(wide.fmod(b_.CreateFPExt(x, f64), b_.CreateFPExt(y, f64)), x->getType());
}

V VectorMath::next_after(V x, V y) {
  MathBuilder m(b_, x->getType(), traits_);
  V bits = m.bits(x);
  // Away from zero is one up in the bit pattern, towards it one down.
  V grows = b_.CreateICmpEQ(m.lt(x, y), m.gt(x, m.c(0.0)));
  V moved = m.real(b_.CreateSelect(grows, b_.CreateAdd(bits, m.i(1)), b_.CreateSub(bits, m.i(1))));
  V smallest = m.copysign(m.real(m.i(1)), y);
  V result = m.select(m.eq(x, m.c(0.0)), smallest, moved);
  result = m.select(m.eq(x, y), y, result);
  return m.select(m.either(m.is_nan(x), m.is_nan(y)), m.add(x, y), result);
}

}  // namespace neuron::compiler::cpu
