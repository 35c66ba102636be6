#include <cstring>
#include <limits>
#include <numbers>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/legalize.h"
#include "neuron/compiler/cpu/loop_nest.h"

// Functions of complex numbers in arithmetic of their parts, so that they fuse like any other.
// Everything is computed in double: single parts need no care for overflow then, and come out
// rounded nearly correctly. Special values are those of C's complex functions.
namespace neuron::compiler::cpu {

using hlo::Direction;
using hlo::Module;
using hlo::Node;
using hlo::Op;
using hlo::ValueId;

namespace {

struct Parts {
  ValueId re = hlo::kNoValue;
  ValueId im = hlo::kNoValue;
};

/// Formulas over f64 values of one shape.
class Formula {
 public:
  Formula(Rewriter& w, const Node& node, DType stored)
      : w_(w), dims_(node.type.dims), single_(stored == DType::c64) {}

  Parts parts(ValueId z) {
    const DType part = real_of(w_.type(z).dtype);
    return {w_.convert(push(Op::Real, part, {z}), DType::f64),
            w_.convert(push(Op::Imag, part, {z}), DType::f64)};
  }
  ValueId join(const Parts& z, DType type) {
    const DType part = real_of(type);
    return push(Op::Complex, type, {w_.convert(z.re, part), w_.convert(z.im, part)});
  }

  Parts unary(Op op, const Parts& z);
  Parts power(const Parts& z, const Parts& exponent);

 private:
  ValueId push(Op op, DType type, std::initializer_list<ValueId> in, hlo::Ints ints = {}) {
    Node node{op, {type, dims_}, {}, std::move(ints), {}, {}, {}};
    for (ValueId v : in) node.operands.push_back(v);
    return w_.push(std::move(node));
  }
  ValueId real(Op op, std::initializer_list<ValueId> in) { return push(op, DType::f64, in); }
  ValueId splat(DType type, const void* element) {
    return w_.splat(type, dims_, {static_cast<const std::byte*>(element), size_of(type)});
  }
  ValueId c(double value) { return splat(DType::f64, &value); }
  ValueId add(ValueId x, ValueId y) { return real(Op::Add, {x, y}); }
  ValueId sub(ValueId x, ValueId y) { return real(Op::Subtract, {x, y}); }
  ValueId mul(ValueId x, ValueId y) { return real(Op::Multiply, {x, y}); }
  ValueId div(ValueId x, ValueId y) { return real(Op::Divide, {x, y}); }
  ValueId neg(ValueId x) { return real(Op::Negate, {x}); }
  ValueId abs(ValueId x) { return real(Op::Abs, {x}); }
  ValueId max(ValueId x, ValueId y) { return real(Op::Maximum, {x, y}); }
  ValueId min(ValueId x, ValueId y) { return real(Op::Minimum, {x, y}); }
  ValueId compare(Direction direction, ValueId x, ValueId y) {
    return push(Op::Compare, DType::pred, {x, y}, {static_cast<int64_t>(direction)});
  }
  ValueId eq(ValueId x, double y) { return compare(Direction::EQ, x, c(y)); }
  ValueId gt(ValueId x, double y) { return compare(Direction::GT, x, c(y)); }
  ValueId lt(ValueId x, double y) { return compare(Direction::LT, x, c(y)); }
  ValueId both(ValueId x, ValueId y) { return push(Op::And, DType::pred, {x, y}); }
  ValueId either(ValueId x, ValueId y) { return push(Op::Or, DType::pred, {x, y}); }
  ValueId select(ValueId mask, ValueId x, ValueId y) { return real(Op::Select, {mask, x, y}); }
  ValueId infinite(ValueId magnitude) { return eq(magnitude, kInfinity); }
  ValueId bits(ValueId x) { return push(Op::BitcastConvert, DType::i64, {x}); }
  /// The magnitude, which is not negative, with the sign of another number, -0 included.
  ValueId with_sign(ValueId magnitude, ValueId sign) {
    const int64_t mask = INT64_MIN;
    const ValueId bit = push(Op::And, DType::i64, {bits(sign), splat(DType::i64, &mask)});
    return real(Op::BitcastConvert, {push(Op::Or, DType::i64, {bits(magnitude), bit})});
  }

  ValueId unknown(ValueId angle) {
    return push(Op::Not, DType::pred, {push(Op::IsFinite, DType::pred, {angle})});
  }
  /// An infinite length at an angle that is none.
  ValueId endless(const Parts& z) { return both(infinite(abs(z.re)), unknown(z.im)); }

  ValueId length(const Parts& z) {
    return real(Op::Abs, {push(Op::Complex, DType::c128, {z.re, z.im})});
  }
  Parts scale(const Parts& z, double factor) {
    return {mul(z.re, c(factor)), mul(z.im, c(factor))};
  }
  Parts select(ValueId mask, const Parts& x, const Parts& y) {
    return {select(mask, x.re, y.re), select(mask, x.im, y.im)};
  }

  Parts exp(const Parts& z);
  Parts expm1(const Parts& z);
  Parts log(const Parts& z);
  Parts log1p(const Parts& z);
  Parts sqrt(const Parts& z);
  Parts rsqrt(const Parts& z);
  Parts logistic(const Parts& z);
  Parts tanh(const Parts& z);
  Parts sinh(const Parts& z);
  Parts cosh(const Parts& z);
  Parts sign(const Parts& z);

  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  Rewriter& w_;
  const Dims dims_;
  /// The numbers are singles: squares cannot overflow.
  const bool single_;
};

Parts Formula::exp(const Parts& z) {
  // The square of half the power: one factor alone may overflow where the product does not.
  const ValueId half = real(Op::Exp, {mul(z.re, c(0.5))});
  const ValueId re = mul(mul(half, real(Op::Cosine, {z.im})), half);
  const ValueId im = mul(mul(half, real(Op::Sine, {z.im})), half);
  // An infinity times the sine of 0 is 0 here; what lies at an angle that is none may vanish all
  // the same, or have a length.
  const ValueId lost = unknown(z.im);
  const ValueId vanishes = both(eq(z.re, -kInfinity), lost);
  const ValueId remains = both(eq(z.re, kInfinity), lost);
  const ValueId unturned = eq(z.im, 0);
  return {select(vanishes, c(0), select(remains, c(kInfinity), re)),
          select(unturned, z.im, select(vanishes, c(0), im))};
}

Parts Formula::expm1(const Parts& z) {
  // expm1(x) cos(y) - 2 sin(y/2)^2 keeps the real part near 0.
  const ValueId s = real(Op::Sine, {mul(z.im, c(0.5))});
  const ValueId re =
      sub(mul(real(Op::Expm1, {z.re}), real(Op::Cosine, {z.im})), mul(c(2), mul(s, s)));
  const Parts e = exp(z);
  return {select(eq(z.re, -kInfinity), c(-1), re), e.im};
}

Parts Formula::log(const Parts& z) {
  const ValueId x = abs(z.re), y = abs(z.im);
  const ValueId big = max(x, y), little = min(x, y);
  // Near the circle the logarithm is small, and so must be its error.
  const ValueId near =
      mul(c(0.5), real(Op::Log1p, {add(mul(sub(big, c(1)), add(big, c(1))), mul(little, little))}));
  const ValueId is_near = both(gt(big, 0.5), lt(big, 2));
  ValueId away = length(z);
  if (single_) {
    away = real(Op::Log, {away});
  } else {
    // The largest numbers have a length that overflows.
    const Parts small = scale({x, y}, 0.25);
    const ValueId huge = gt(big, 1e307);
    away = real(Op::Log, {select(huge, length(small), away)});
    away = select(huge, add(away, c(2 * std::numbers::ln2)), away);
  }
  return {select(is_near, near, away), real(Op::Atan2, {z.im, z.re})};
}

Parts Formula::log1p(const Parts& z) {
  const Parts moved{add(z.re, c(1)), z.im};
  const ValueId sum = add(mul(z.re, add(z.re, c(2))), mul(z.im, z.im));
  const ValueId re = mul(c(0.5), real(Op::Log1p, {sum}));
  const ValueId im = real(Op::Atan2, {moved.im, moved.re});
  if (single_) return {re, im};
  const ValueId far = gt(max(abs(z.re), abs(z.im)), 1e150);
  return {select(far, log(moved).re, re), im};
}

Parts Formula::sqrt(const Parts& z) {
  Parts scaled = z;
  ValueId huge = hlo::kNoValue, tiny = hlo::kNoValue;
  if (!single_) {
    // Lengths near either end of the range overflow or lose bits.
    const ValueId big = max(abs(z.re), abs(z.im));
    huge = gt(big, 1e307);
    tiny = lt(big, 1e-290);
    const ValueId factor = select(huge, c(0x1p-4), select(tiny, c(0x1p120), c(1)));
    scaled = {mul(z.re, factor), mul(z.im, factor)};
  }
  const ValueId x = abs(scaled.re);
  const ValueId root = real(Op::Sqrt, {mul(c(0.5), add(x, length(scaled)))});
  const ValueId other = div(abs(scaled.im), mul(c(2), root));
  const ValueId left = compare(Direction::LT, scaled.re, c(0));
  Parts r = {select(left, other, root), select(left, root, other)};
  if (!single_) {
    const ValueId back = select(huge, c(4), select(tiny, c(0x1p-60), c(1)));
    r = {mul(r.re, back), mul(r.im, back)};
  }
  const ValueId zero = both(eq(z.re, 0), eq(z.im, 0));
  r = {select(zero, c(0), r.re), select(zero, c(0), r.im)};
  // inf + i y: the imaginary part is 0; -inf + i y: the real one, for finite y.
  const ValueId finite = push(Op::IsFinite, DType::pred, {z.im});
  const ValueId right_end = both(eq(z.re, kInfinity), finite);
  const ValueId left_end = both(eq(z.re, -kInfinity), finite);
  r = {select(left_end, c(0), r.re), select(right_end, c(0), r.im)};
  // x + i inf: infinite whatever x.
  const ValueId upwards = infinite(abs(z.im));
  r = {select(upwards, c(kInfinity), r.re), select(upwards, c(kInfinity), r.im)};
  return {r.re, with_sign(r.im, z.im)};
}

Parts Formula::rsqrt(const Parts& z) {
  // 1 / r = conj(r) / |r|^2, in two steps against overflow.
  const Parts r = sqrt(z);
  const ValueId size = length(r);
  const ValueId zero = eq(size, 0), far = infinite(size);
  const ValueId re = div(div(r.re, size), size), im = div(div(sub(c(0), r.im), size), size);
  return {select(zero, c(kInfinity), select(far, c(0), re)), select(far, c(0), im)};
}

Parts Formula::logistic(const Parts& z) {
  // 1 / (1 + e), or e' / (1 + e') with e' = 1 / e: whichever power is not large.
  const ValueId left = lt(z.re, 0);
  const Parts turned = {neg(abs(z.re)), select(left, z.im, neg(z.im))};
  const Parts e = exp(turned);
  const Parts divisor = {add(c(1), e.re), e.im};
  const ValueId square = add(mul(divisor.re, divisor.re), mul(divisor.im, divisor.im));
  const Parts one = {c(1), c(0)};
  const Parts top = select(left, e, one);
  const ValueId re = div(add(mul(top.re, divisor.re), mul(top.im, divisor.im)), square);
  const ValueId im = div(sub(mul(top.im, divisor.re), mul(top.re, divisor.im)), square);
  return {re, im};
}

Parts Formula::tanh(const Parts& z) {
  // With e = exp(-2|x|): the sum of squares below has no cancellation near any pole.
  const ValueId x = abs(z.re);
  const ValueId e = real(Op::Exp, {mul(c(-2), x)});
  const ValueId sine = real(Op::Sine, {z.im}), cosine = real(Op::Cosine, {z.im});
  const ValueId rest = real(Op::Expm1, {mul(c(-2), x)});
  const ValueId four = mul(c(4), e);
  const ValueId below = add(mul(rest, rest), mul(four, mul(cosine, cosine)));
  ValueId re = div(neg(real(Op::Expm1, {mul(c(-4), x)})), below);
  ValueId im = div(mul(four, mul(sine, cosine)), below);
  const ValueId far = infinite(x);
  re = select(far, c(1), select(eq(x, 0), c(0), re));
  im = select(eq(z.im, 0), z.im, select(far, with_sign(c(0), mul(sine, cosine)), im));
  return {with_sign(abs(re), z.re), im};
}

Parts Formula::sinh(const Parts& z) {
  const ValueId cosine = real(Op::Cosine, {z.im});
  const ValueId re = mul(real(Op::Sinh, {z.re}), cosine);
  const ValueId im = mul(real(Op::Cosh, {z.re}), real(Op::Sine, {z.im}));
  // 0 times whatever is 0 here.
  const ValueId zero = mul(z.re, with_sign(c(1), cosine));
  return {select(eq(z.re, 0), zero, select(endless(z), c(kInfinity), re)),
          select(eq(z.im, 0), z.im, im)};
}

Parts Formula::cosh(const Parts& z) {
  const ValueId sinh_x = real(Op::Sinh, {z.re});
  const ValueId sine = real(Op::Sine, {z.im});
  const ValueId re = mul(real(Op::Cosh, {z.re}), real(Op::Cosine, {z.im}));
  const ValueId im = mul(sinh_x, sine);
  // As in sinh.
  const ValueId flat = either(eq(z.re, 0), eq(z.im, 0));
  const ValueId zero = mul(with_sign(c(0), z.re), with_sign(c(1), sine));
  return {select(endless(z), c(kInfinity), re), select(flat, zero, im)};
}

Parts Formula::sign(const Parts& z) {
  const ValueId size = length(z);
  const ValueId zero = eq(size, 0);
  return {select(zero, c(0), div(z.re, size)), select(zero, c(0), div(z.im, size))};
}

Parts Formula::power(const Parts& z, const Parts& exponent) {
  const Parts l = log(z);
  const Parts product = {sub(mul(exponent.re, l.re), mul(exponent.im, l.im)),
                         add(mul(exponent.re, l.im), mul(exponent.im, l.re))};
  Parts r = exp(product);
  // The logarithm of 0 is infinite, and what follows unknown unless the exponent is positive.
  const ValueId zero = both(eq(z.re, 0), eq(z.im, 0));
  const ValueId gone = both(zero, gt(exponent.re, 0));
  r = {select(gone, c(0), r.re), select(gone, c(0), r.im)};
  const ValueId nothing = both(eq(exponent.re, 0), eq(exponent.im, 0));
  return {select(nothing, c(1), r.re), select(nothing, c(0), r.im)};
}

Parts Formula::unary(Op op, const Parts& z) {
  // f(i z) and back.
  const Parts turned = {neg(z.im), z.re};
  switch (op) {
    case Op::Exp:
      return exp(z);
    case Op::Exp2:
      return exp(scale(z, std::numbers::ln2));
    case Op::Expm1:
      return expm1(z);
    case Op::Log:
      return log(z);
    case Op::Log2:
      return scale(log(z), std::numbers::log2e);
    case Op::Log10:
      return scale(log(z), std::numbers::log10e);
    case Op::Log1p:
      return log1p(z);
    case Op::Sqrt:
      return sqrt(z);
    case Op::Rsqrt:
      return rsqrt(z);
    case Op::Logistic:
      return logistic(z);
    case Op::Tanh:
      return tanh(z);
    case Op::Tan: {
      const Parts t = tanh(turned);
      return {t.im, neg(t.re)};
    }
    case Op::Sine: {
      const Parts s = sinh(turned);
      return {s.im, neg(s.re)};
    }
    case Op::Cosine:
      return cosh(turned);
    case Op::Sinh:
      return sinh(z);
    case Op::Cosh:
      return cosh(z);
    case Op::Sign:
      return sign(z);
    default:
      break;
  }
  raise(ErrorKind::kInternal, "no formula for ", hlo::name_of(op), " of complex numbers");
}

}  // namespace

bool has_complex_formula(Op op, DType operand) {
  if (!is_complex(operand)) return false;
  switch (op) {
    case Op::Exp:
    case Op::Exp2:
    case Op::Expm1:
    case Op::Log:
    case Op::Log2:
    case Op::Log10:
    case Op::Log1p:
    case Op::Sqrt:
    case Op::Rsqrt:
    case Op::Logistic:
    case Op::Tanh:
    case Op::Tan:
    case Op::Sine:
    case Op::Cosine:
    case Op::Sinh:
    case Op::Cosh:
    case Op::Sign:
    case Op::Power:
    case Op::Fma:
      return true;
    default:
      return false;
  }
}

ValueId expand_complex(Rewriter& w, const Node& node) {
  if (node.op == Op::Fma) {
    const auto operand = [&](size_t k) { return w.mapped(node.operands[k]); };
    const ValueId product =
        w.push({Op::Multiply, node.type, {operand(0), operand(1)}, {}, {}, {}, {}});
    return w.push({Op::Add, node.type, {product, operand(2)}, {}, {}, {}, {}});
  }
  Formula f(w, node, node.type.dtype);
  const Parts z = f.parts(w.mapped(node.operands[0]));
  const Parts result =
      node.op == Op::Power ? f.power(z, f.parts(w.mapped(node.operands[1]))) : f.unary(node.op, z);
  return f.join(result, node.type.dtype);
}

}  // namespace neuron::compiler::cpu
