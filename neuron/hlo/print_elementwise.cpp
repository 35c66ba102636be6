// Decompositions of elementwise functions that StableHLO does not have. They compute in f32 or
// f64; narrow floats are widened first and rounded once.
#include <cmath>
#include <numbers>
#include <vector>

#include "neuron/base/error.h"
#include "neuron/hlo/print_emitter.h"

namespace neuron::hlo::internal {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// sum of c[k] * x^k.
Ref polynomial(Emitter& out, const Ref& x, const std::vector<double>& c) {
  Ref sum = out.like(x, c.back());
  for (size_t k = c.size() - 1; k-- > 0;) sum = out.add(out.mul(sum, x), out.like(x, c[k]));
  return sum;
}

Ref less(Emitter& out, const Ref& x, double bound) {
  return out.compare(Direction::LT, x, out.like(x, bound));
}

// --- Error function ---------------------------------------------------------------------------

/// erfc(x) = exp(-x^2) / (1 + 2x) * f((x - kCenter) / (x + kCenter)) for x >= 0, where f is smooth
/// on [-1, 1]: 25 Chebyshev terms give f64, 12 give f32.
constexpr long double kCenter = 3.75L;

/// exp(x^2) erfc(x).
long double scaled_erfc(long double x) {
  if (x < 20) return std::exp(x * x) * std::erfc(x);
  // Asymptotic series; at 20 the terms fall below long double's precision before they diverge.
  long double term = 1, sum = 1;
  for (int k = 1; k < 12; ++k) {
    term *= -(2 * k - 1) / (2 * x * x);
    sum += term;
  }
  return sum / (x * std::sqrt(std::numbers::pi_v<long double>));
}

const std::vector<double>& erfc_coefficients() {
  static const std::vector<double> coefficients = [] {
    constexpr int nodes = 64, terms = 28;
    std::vector<long double> values(nodes);
    for (int i = 0; i < nodes; ++i) {
      const long double t = std::cos(std::numbers::pi_v<long double> * (i + 0.5L) / nodes);
      const long double x = kCenter * (1 + t) / (1 - t);
      values[static_cast<size_t>(i)] = (1 + 2 * x) * scaled_erfc(x);
    }
    std::vector<double> c(terms);
    for (int k = 0; k < terms; ++k) {
      long double sum = 0;
      for (int i = 0; i < nodes; ++i) {
        sum += values[static_cast<size_t>(i)] *
               std::cos(std::numbers::pi_v<long double> * k * (i + 0.5L) / nodes);
      }
      c[static_cast<size_t>(k)] = static_cast<double>(sum * (k == 0 ? 1 : 2) / nodes);
    }
    return c;
  }();
  return coefficients;
}

/// erfc of a non-negative x.
Ref erfc_tail(Emitter& out, const Ref& x) {
  const std::vector<double>& c = erfc_coefficients();
  const size_t terms = x.type.dtype == DType::f64 ? c.size() : 12;
  const Ref center = out.like(x, static_cast<double>(kCenter));
  // 1 - 2 kCenter / (x + kCenter), so that an infinite x gives 1.
  const Ref t = out.sub(out.like(x, 1),
                        out.div(out.like(x, 2 * static_cast<double>(kCenter)), out.add(x, center)));
  const Ref twice = out.add(t, t);
  // Clenshaw's recurrence.
  Ref b1 = out.like(x, c[terms - 1]), b2 = out.like(x, 0);
  for (size_t k = terms - 1; k-- > 1;) {
    const Ref b = out.add(out.sub(out.mul(twice, b1), b2), out.like(x, c[k]));
    b2 = b1;
    b1 = b;
  }
  const Ref f = out.add(out.sub(out.mul(t, b1), b2), out.like(x, c[0]));
  const Ref weight =
      out.div(out.exp(out.neg(out.mul(x, x))), out.add(out.like(x, 1), out.add(x, x)));
  return out.mul(weight, f);
}

/// erf for |x| < 1: the Taylor series.
Ref erf_center(Emitter& out, const Ref& x) {
  const int terms = x.type.dtype == DType::f64 ? 19 : 11;
  std::vector<double> c;
  double factorial = 1;
  for (int k = 0; k < terms; ++k) {
    if (k > 0) factorial *= k;
    c.push_back((k % 2 == 0 ? 2 : -2) * std::numbers::inv_sqrtpi / (factorial * (2 * k + 1)));
  }
  return out.mul(x, polynomial(out, out.mul(x, x), c));
}

Ref erf(Emitter& out, const Ref& x) {
  const Ref magnitude = out.abs(x);
  const Ref outer = out.sub(out.like(x, 1), erfc_tail(out, magnitude));
  const Ref signed_outer = out.select(less(out, x, 0), out.neg(outer), outer);
  return out.select(less(out, magnitude, 1), erf_center(out, x), signed_outer);
}

Ref erfc(Emitter& out, const Ref& x) {
  const Ref magnitude = out.abs(x);
  const Ref tail = erfc_tail(out, magnitude);
  const Ref outer = out.select(less(out, x, 0), out.sub(out.like(x, 2), tail), tail);
  return out.select(less(out, magnitude, 0.5), out.sub(out.like(x, 1), erf_center(out, x)), outer);
}

/// Winitzki's closed form, then Halley steps, each of which triples the digits.
Ref erf_inv(Emitter& out, const Ref& x) {
  const Ref magnitude = out.abs(x);
  const Ref one = out.like(x, 1);
  const Ref complement = out.sub(one, magnitude);
  const Ref log_term = out.same("log_plus_one", {out.neg(out.mul(magnitude, magnitude))});
  constexpr double a = 0.147;
  const Ref half =
      out.add(out.like(x, 2 / (std::numbers::pi * a)), out.mul(log_term, out.like(x, 0.5)));
  const Ref root = out.sqrt(out.sub(out.mul(half, half), out.mul(log_term, out.like(x, 1 / a))));
  // half is positive but for |x| within an ulp of 1; root - half cancels for small x, where
  // (root^2 - half^2) / (root + half) does not.
  Ref y = out.sqrt(out.div(out.mul(log_term, out.like(x, -1 / a)), out.add(root, half)));
  const Ref inner = less(out, magnitude, 0.5);
  for (int i = 0; i < (x.type.dtype == DType::f64 ? 3 : 2); ++i) {
    const Ref error =
        out.select(inner, out.sub(erf(out, y), magnitude), out.sub(complement, erfc(out, y)));
    const Ref slope =
        out.mul(out.like(x, 2 * std::numbers::inv_sqrtpi), out.exp(out.neg(out.mul(y, y))));
    const Ref step = out.div(error, slope);
    y = out.sub(y, out.div(step, out.add(one, out.mul(y, step))));
  }
  y = out.select(out.compare(Direction::EQ, magnitude, one), out.like(x, kInfinity), y);
  y = out.select(less(out, x, 0), out.neg(y), y);
  return out.select(out.compare(Direction::EQ, x, out.like(x, 0)), x, y);
}

// --- Gamma ------------------------------------------------------------------------------------

/// The distance of x to the nearest integer below, and whether it is an integer.
struct Fraction {
  Ref value;
  Ref is_whole;
};
Fraction fraction(Emitter& out, const Ref& x) {
  const Ref value = out.sub(x, out.same("floor", {x}));
  return {value, out.compare(Direction::EQ, value, out.like(x, 0))};
}

/// Stirling's series after moving small arguments up by 8.
Ref lgamma_right(Emitter& out, const Ref& x) {
  const Ref is_small = less(out, x, 8);
  Ref product = x;
  for (int k = 1; k < 8; ++k) product = out.mul(product, out.add(x, out.like(x, k)));
  const Ref shift = out.select(is_small, out.log(product), out.like(x, 0));
  const Ref y = out.select(is_small, out.add(x, out.like(x, 8)), x);
  const Ref inverse = out.div(out.like(x, 1), y);
  const Ref series =
      out.mul(inverse, polynomial(out, out.mul(inverse, inverse),
                                  {1.0 / 12, -1.0 / 360, 1.0 / 1260, -1.0 / 1680, 1.0 / 1188,
                                   -691.0 / 360360, 1.0 / 156, -3617.0 / 122400}));
  const Ref main = out.mul(out.sub(y, out.like(x, 0.5)), out.sub(out.log(y), out.like(x, 1)));
  constexpr double kHalfLogTwoPiMinusHalf = 0.91893853320467274178 - 0.5;
  return out.sub(out.add(out.add(main, out.like(x, kHalfLogTwoPiMinusHalf)), series), shift);
}

Ref lgamma(Emitter& out, const Ref& x) {
  const Ref reflected = less(out, x, 0.5);
  const Ref y = out.select(reflected, out.sub(out.like(x, 1), x), x);
  const Ref right = lgamma_right(out, y);
  const Fraction f = fraction(out, x);
  const Ref distance = out.same("minimum", {f.value, out.sub(out.like(x, 1), f.value)});
  const Ref sine = out.same("sine", {out.mul(distance, out.like(x, std::numbers::pi))});
  const Ref left = out.sub(out.sub(out.like(x, std::log(std::numbers::pi)), out.log(sine)), right);
  const Ref value = out.select(reflected, left, right);
  const Ref infinite = out.compare(Direction::EQ, out.abs(x), out.like(x, kInfinity));
  return out.select(infinite, out.like(x, kInfinity), value);
}

Ref digamma(Emitter& out, const Ref& x) {
  const Ref reflected = less(out, x, 0);
  const Ref at_zero = out.compare(Direction::EQ, x, out.like(x, 0));
  const Ref y = out.select(out.bit_or(reflected, at_zero), out.sub(out.like(x, 1), x), x);
  Ref shift = out.div(out.like(x, 1), y);
  for (int k = 1; k < 8; ++k) {
    shift = out.add(shift, out.div(out.like(x, 1), out.add(y, out.like(x, k))));
  }
  const Ref z = out.add(y, out.like(x, 8));
  const Ref inverse = out.div(out.like(x, 1), z);
  const Ref square = out.mul(inverse, inverse);
  const Ref series =
      out.mul(square, polynomial(out, square,
                                 {1.0 / 12, -1.0 / 120, 1.0 / 252, -1.0 / 240, 1.0 / 132,
                                  -691.0 / 32760, 1.0 / 12, -3617.0 / 8160}));
  const Ref right =
      out.sub(out.sub(out.sub(out.log(z), out.mul(inverse, out.like(x, 0.5))), series), shift);
  const Fraction f = fraction(out, x);
  const Ref tangent = out.same("tan", {out.mul(f.value, out.like(x, std::numbers::pi))});
  Ref left = out.sub(right, out.div(out.like(x, std::numbers::pi), tangent));
  left = out.select(f.is_whole, out.like(x, std::numeric_limits<double>::quiet_NaN()), left);
  const Ref pole = out.div(out.like(x, -1), x);
  return out.select(at_zero, pole, out.select(reflected, left, right));
}

// --- Hyperbolic and inverse functions ---------------------------------------------------------

Ref sinh(Emitter& out, const Ref& x) {
  const Ref e = out.same("exponential_minus_one", {x});
  const Ref one = out.like(x, 1);
  const Ref half = out.like(x, 0.5);
  const Ref center = out.mul(half, out.add(e, out.div(e, out.add(e, one))));
  // exp(x - log 2) does not overflow before sinh does.
  const Ref log_two = out.like(x, std::numbers::ln2);
  const Ref outer = out.sub(out.exp(out.sub(x, log_two)), out.exp(out.sub(out.neg(x), log_two)));
  return out.select(less(out, out.abs(x), 1), center, outer);
}

Ref cosh(Emitter& out, const Ref& x) {
  const Ref log_two = out.like(x, std::numbers::ln2);
  return out.add(out.exp(out.sub(x, log_two)), out.exp(out.sub(out.neg(x), log_two)));
}

/// Beyond this the square would overflow; log(2x) is exact there.
double square_bound(DType dtype) { return dtype == DType::f64 ? 1e150 : 1e18; }

Ref asinh(Emitter& out, const Ref& x) {
  const Ref magnitude = out.abs(x);
  const Ref one = out.like(x, 1);
  const Ref square = out.mul(x, x);
  const Ref inner =
      out.same("log_plus_one",
               {out.add(magnitude, out.div(square, out.add(one, out.sqrt(out.add(one, square)))))});
  const Ref outer = out.add(out.log(magnitude), out.like(x, std::numbers::ln2));
  const Ref bound = out.like(x, square_bound(x.type.dtype));
  Ref value = out.select(out.compare(Direction::GT, magnitude, bound), outer, inner);
  value = out.select(less(out, x, 0), out.neg(value), value);
  return out.select(out.compare(Direction::EQ, x, out.like(x, 0)), x, value);  // Keeps -0.
}

Ref acosh(Emitter& out, const Ref& x) {
  const Ref t = out.sub(x, out.like(x, 1));
  const Ref inner =
      out.same("log_plus_one", {out.add(t, out.sqrt(out.mul(t, out.add(t, out.like(x, 2)))))});
  const Ref outer = out.add(out.log(x), out.like(x, std::numbers::ln2));
  const Ref bound = out.like(x, square_bound(x.type.dtype));
  return out.select(out.compare(Direction::GT, x, bound), outer, inner);
}

Ref atanh(Emitter& out, const Ref& x) {
  const Ref difference =
      out.sub(out.same("log_plus_one", {x}), out.same("log_plus_one", {out.neg(x)}));
  return out.mul(out.like(x, 0.5), difference);
}

/// sqrt((1 - x)(1 + x)).
Ref cofactor(Emitter& out, const Ref& x) {
  const Ref one = out.like(x, 1);
  return out.sqrt(out.mul(out.sub(one, x), out.add(one, x)));
}

Ref trunc(Emitter& out, const Ref& x) {
  return out.select(less(out, x, 0), out.same("ceil", {x}), out.same("floor", {x}));
}

/// By the formulas over log and sqrt; principal branches agree with those of sqrt and log.
Ref complex_function(Emitter& out, Op op, const Ref& z) {
  const Ref one = out.like(z, 1);
  const Ref half = out.like(z, 0.5);
  auto times_i = [&](const Ref& x) { return out.mul(out.complex_constant(z.type, 0, 1), x); };
  auto asin = [&](const Ref& x) {
    const Ref sum = out.add(times_i(x), out.sqrt(out.sub(one, out.mul(x, x))));
    return out.mul(out.complex_constant(z.type, 0, -1), out.log(sum));
  };
  switch (op) {
    case Op::Exp2:
      return out.exp(out.mul(z, out.like(z, std::numbers::ln2)));
    case Op::Log2:
      return out.div(out.log(z), out.like(z, std::numbers::ln2));
    case Op::Log10:
      return out.div(out.log(z), out.like(z, std::numbers::ln10));
    case Op::Asin:
      return asin(z);
    case Op::Acos:
      return out.sub(out.like(z, std::numbers::pi / 2), asin(z));
    case Op::Atan: {
      const Ref w = times_i(z);
      const Ref difference = out.sub(out.log(out.sub(one, w)), out.log(out.add(one, w)));
      return out.mul(out.complex_constant(z.type, 0, 0.5), difference);
    }
    case Op::Sinh:
      return out.mul(half, out.sub(out.exp(z), out.exp(out.neg(z))));
    case Op::Cosh:
      return out.mul(half, out.add(out.exp(z), out.exp(out.neg(z))));
    case Op::Asinh:
      return out.log(out.add(z, out.sqrt(out.add(out.mul(z, z), one))));
    case Op::Acosh: {
      const Ref root = out.mul(out.sqrt(out.add(z, one)), out.sqrt(out.sub(z, one)));
      return out.log(out.add(z, root));
    }
    case Op::Atanh:
      return out.mul(half, out.sub(out.log(out.add(one, z)), out.log(out.sub(one, z))));
    default:
      break;
  }
  raise(ErrorKind::kUnsupported, "StableHLO text: no expansion of ", name_of(op), " for ",
        name_of(z.type.dtype));
}

Ref real_function(Emitter& out, Op op, const Ref& x) {
  switch (op) {
    case Op::Exp2:
      return out.same("power", {out.like(x, 2), x});
    case Op::Log2:
      return out.mul(out.log(x), out.like(x, std::numbers::log2e));
    case Op::Log10:
      return out.mul(out.log(x), out.like(x, std::numbers::log10e));
    case Op::Trunc:
      return trunc(out, x);
    case Op::Asin:
      return out.same("atan2", {x, cofactor(out, x)});
    case Op::Acos:
      return out.same("atan2", {cofactor(out, x), x});
    case Op::Atan:
      return out.same("atan2", {x, out.like(x, 1)});
    case Op::Sinh:
      return sinh(out, x);
    case Op::Cosh:
      return cosh(out, x);
    case Op::Asinh:
      return asinh(out, x);
    case Op::Acosh:
      return acosh(out, x);
    case Op::Atanh:
      return atanh(out, x);
    case Op::Erf:
      return erf(out, x);
    case Op::Erfc:
      return erfc(out, x);
    case Op::ErfInv:
      return erf_inv(out, x);
    case Op::Lgamma:
      return lgamma(out, x);
    case Op::Digamma:
      return digamma(out, x);
    default:
      break;
  }
  raise(ErrorKind::kUnsupported, "StableHLO text: no expansion of ", name_of(op));
}

/// In sign-magnitude formats neighbours differ by one in the bit pattern.
Ref next_after(Emitter& out, const Ref& a, const Ref& b) {
  const size_t size = size_of(a.type.dtype);
  const DType integer = size == 8   ? DType::i64
                        : size == 4 ? DType::i32
                        : size == 2 ? DType::i16
                                    : DType::i8;
  const Type bits_type{integer, a.type.dims};
  const Ref zero = out.zeros(a.type);
  const Ref up = out.compare(Direction::LT, a, b);
  const Ref positive = out.compare(Direction::GT, a, zero);
  const Ref bits = out.generic("bitcast_convert", {a}, bits_type);
  const Ref one = out.constant(bits_type, 1), minus_one = out.constant(bits_type, -1);
  const Ref away = out.compare(Direction::EQ, up, positive);
  const Ref moved = out.add(bits, out.select(away, one, minus_one));
  // From zero: the smallest subnormal, with the sign of the direction.
  const Ref negative = out.constant(bits_type, std::ldexp(-1.0, static_cast<int>(8 * size) - 1));
  const Ref tiny = out.select(up, one, out.bit_or(one, negative));
  const Ref next = out.select(out.compare(Direction::EQ, a, zero), tiny, moved);
  const Ref value = out.generic("bitcast_convert", {next}, a.type);
  const Ref same = out.select(out.compare(Direction::EQ, a, b), b, value);
  const Ref nan = out.bit_or(out.compare(Direction::NE, a, a), out.compare(Direction::NE, b, b));
  return out.select(nan, out.add(a, b), same);
}

}  // namespace

Ref expand_elementwise(Emitter& out, const Node& node, std::span<const Ref> operands) {
  const Ref& x = operands[0];
  switch (node.op) {
    case Op::IsNan:
      return out.compare(Direction::NE, x, x);
    case Op::Sign: {  // StableHLO keeps NaN, torch gives 0.
      const Ref nan = out.compare(Direction::NE, x, x);
      return out.select(nan, out.like(x, 0), out.same("sign", {x}));
    }
    case Op::Convert: {  // To f8e4m3fn: torch saturates, StableHLO gives NaN.
      const Ref wide = out.convert(x, DType::f32);
      const Ref low = out.like(wide, -448), high = out.like(wide, 448);
      return out.convert(out.same("clamp", {low, wide, high}), node.type.dtype);
    }
    case Op::NextAfter:
      return next_after(out, x, operands[1]);
    default:
      break;
  }
  const DType dtype = x.type.dtype;
  const bool narrow = is_floating(dtype) && size_of(dtype) < 4;
  Refs wide;
  for (const Ref& operand : operands) {
    wide.push_back(narrow ? out.convert(operand, DType::f32) : operand);
  }
  Ref value;
  if (node.op == Op::Fma) {
    // StableHLO has no fused form; a target may contract this.
    value = out.add(out.mul(wide[0], wide[1]), wide[2]);
  } else if (is_complex(dtype)) {
    value = complex_function(out, node.op, x);
  } else {
    value = real_function(out, node.op, wide[0]);
  }
  return out.convert(value, node.type.dtype);
}

}  // namespace neuron::hlo::internal
