#include <bit>
#include <cmath>
#include <numbers>

#include "neuron/base/philox.h"
#include "neuron/hlo/evaluate_internal.h"

namespace neuron::hlo::internal {

namespace {

double digamma(double x) {
  if (x == 0) return std::copysign(std::numeric_limits<double>::infinity(), -x);
  double result = 0;
  if (x < 0) {
    if (x == std::trunc(x)) return std::numeric_limits<double>::quiet_NaN();
    // Reflection; the fraction alone keeps tan accurate.
    double whole;
    result = -std::numbers::pi / std::tan(std::numbers::pi * std::modf(x, &whole));
    x = 1 - x;
  }
  for (; x < 16; x += 1) result -= 1 / x;
  // Bernoulli series at x >= 16: the first term left out is below 1e-17.
  const double z = 1 / (x * x);
  const double series =
      z *
      (1.0 / 12 -
       z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z * (1.0 / 132 - z * (691.0 / 32760))))));
  return result + std::log(x) - 0.5 / x - (std::isinf(x) ? 0 : series);
}

double erf_inv(double x) {
  if (!(std::fabs(x) <= 1)) return std::numeric_limits<double>::quiet_NaN();
  if (std::fabs(x) == 1) return std::copysign(std::numeric_limits<double>::infinity(), x);
  if (x == 0) return x;
  // Winitzki's closed form is good to three digits; Newton's method doubles them each time. The
  // complement is what is accurate near 1.
  const double magnitude = std::fabs(x);
  const double complement = 1 - magnitude;
  const double log_term = std::log1p(-magnitude * magnitude);
  constexpr double a = 0.147;
  const double half = 2 / (std::numbers::pi * a) + log_term / 2;
  double y = std::sqrt(std::sqrt(half * half - log_term / a) - half);
  for (int i = 0; i < 4; ++i) {
    const double error = magnitude < 0.5 ? std::erf(y) - magnitude : complement - std::erfc(y);
    const double slope = 2 * std::numbers::inv_sqrtpi * std::exp(-y * y);
    const double step = error / slope;
    y -= step / (1 + y * step);  // Halley's correction.
  }
  return std::copysign(y, x);
}

/// All real functions, in double: rounding the answer to float is then right to half an ulp or so.
double real_unary(Op op, double x) {
  switch (op) {
    case Op::Abs:
      return std::fabs(x);
    case Op::Negate:
      return -x;
    case Op::Sign:
      return x > 0 ? 1 : x < 0 ? -1 : 0;
    case Op::Exp:
      return std::exp(x);
    case Op::Exp2:
      return std::exp2(x);
    case Op::Expm1:
      return std::expm1(x);
    case Op::Log:
      return std::log(x);
    case Op::Log2:
      return std::log2(x);
    case Op::Log10:
      return std::log10(x);
    case Op::Log1p:
      return std::log1p(x);
    case Op::Sqrt:
      return std::sqrt(x);
    case Op::Rsqrt:
      return 1 / std::sqrt(x);
    case Op::Ceil:
      return std::ceil(x);
    case Op::Floor:
      return std::floor(x);
    case Op::Trunc:
      return std::trunc(x);
    case Op::RoundNearestEven:
      return std::nearbyint(x);
    case Op::Logistic:
      return 1 / (1 + std::exp(-x));
    case Op::Tanh:
      return std::tanh(x);
    case Op::Sine:
      return std::sin(x);
    case Op::Cosine:
      return std::cos(x);
    case Op::Tan:
      return std::tan(x);
    case Op::Asin:
      return std::asin(x);
    case Op::Acos:
      return std::acos(x);
    case Op::Atan:
      return std::atan(x);
    case Op::Sinh:
      return std::sinh(x);
    case Op::Cosh:
      return std::cosh(x);
    case Op::Asinh:
      return std::asinh(x);
    case Op::Acosh:
      return std::acosh(x);
    case Op::Atanh:
      return std::atanh(x);
    case Op::Erf:
      return std::erf(x);
    case Op::Erfc:
      return std::erfc(x);
    case Op::ErfInv:
      return erf_inv(x);
    case Op::Lgamma:
      return std::lgamma(x);
    case Op::Digamma:
      return digamma(x);
    default:
      break;
  }
  NEURON_ASSERT(false, "no real function: ", name_of(op));
}

using Complex = std::complex<double>;

Complex complex_unary(Op op, Complex x) {
  switch (op) {
    case Op::Negate:
      return -x;
    case Op::Sign:
      return x == Complex(0) ? Complex(0) : x / std::abs(x);
    case Op::Exp:
      return std::exp(x);
    case Op::Exp2:
      return std::exp(x * std::numbers::ln2);
    case Op::Expm1: {
      // expm1(a) cos(b) - 2 sin(b/2)^2 keeps the real part near 0.
      const double s = std::sin(x.imag() / 2);
      return {std::expm1(x.real()) * std::cos(x.imag()) - 2 * s * s,
              std::exp(x.real()) * std::sin(x.imag())};
    }
    case Op::Log:
      return std::log(x);
    case Op::Log2:
      return std::log(x) / std::numbers::ln2;
    case Op::Log10:
      return std::log10(x);
    case Op::Log1p: {
      const double re = x.real(), im = x.imag();
      return {0.5 * std::log1p(re * (2 + re) + im * im), std::atan2(im, 1 + re)};
    }
    case Op::Sqrt:
      return std::sqrt(x);
    case Op::Rsqrt:
      return 1.0 / std::sqrt(x);
    case Op::Logistic:
      return 1.0 / (1.0 + std::exp(-x));
    case Op::Tanh:
      return std::tanh(x);
    case Op::Sine:
      return std::sin(x);
    case Op::Cosine:
      return std::cos(x);
    case Op::Tan:
      return std::tan(x);
    case Op::Asin:
      return std::asin(x);
    case Op::Acos:
      return std::acos(x);
    case Op::Atan:
      return std::atan(x);
    case Op::Sinh:
      return std::sinh(x);
    case Op::Cosh:
      return std::cosh(x);
    case Op::Asinh:
      return std::asinh(x);
    case Op::Acosh:
      return std::acosh(x);
    case Op::Atanh:
      return std::atanh(x);
    default:
      break;
  }
  NEURON_ASSERT(false, "no complex function: ", name_of(op));
}

template <typename T>
bool is_negative(T x) {
  if constexpr (std::is_signed_v<T>) return x < 0;
  return false;
}

template <typename T>
T integer_unary(Op op, T x) {
  if constexpr (std::is_same_v<T, bool>) {
    if (op == Op::Not) return !x;
  } else {
    switch (op) {
      case Op::Abs:
        return is_negative(x) ? static_cast<T>(0 - static_cast<uint64_t>(x)) : x;
      case Op::Negate:
        return static_cast<T>(0 - static_cast<uint64_t>(x));
      case Op::Sign:
        return is_negative(x) ? static_cast<T>(-1) : static_cast<T>(x != 0);
      case Op::Not:
        return static_cast<T>(~x);
      case Op::Popcnt:
        return static_cast<T>(std::popcount(static_cast<std::make_unsigned_t<T>>(x)));
      default:
        break;
    }
  }
  NEURON_ASSERT(false, "no integer function: ", name_of(op));
}

template <typename T>
T unary(Op op, T x) {
  if constexpr (is_complex_v<T>) {
    return convert_number<T>(complex_unary(op, Complex(x)));
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(real_unary(op, x));
  } else {
    return integer_unary(op, x);
  }
}

/// The neighbour of a in the direction of b, in the format of `dtype` (both are exact in it).
template <typename T>
T next_after(DType dtype, T a, T b) {
  if (dtype == DType::f64 || dtype == DType::f32) return std::nextafter(a, b);
  if (a != a || b != b) return std::numeric_limits<T>::quiet_NaN();
  if (a == b) return b;
  // In sign-magnitude formats neighbours differ by one in the bit pattern.
  const size_t size = size_of(dtype);
  uint32_t bits = 0;
  std::byte stored[8] = {};
  const bool up = b > a;
  if (a == 0) {
    bits = 1u | (up ? 0u : 1u << (8 * size - 1));
  } else {
    store_element<T>(dtype, a, stored);
    std::memcpy(&bits, stored, size);
    bits += (up == (a > 0)) ? 1u : ~0u;
  }
  std::memcpy(stored, &bits, size);
  return load_element<T>(dtype, stored);
}

double real_binary(Op op, double a, double b) {
  switch (op) {
    case Op::Add:
      return a + b;
    case Op::Subtract:
      return a - b;
    case Op::Multiply:
      return a * b;
    case Op::Divide:
      return a / b;
    case Op::Remainder:
      return std::fmod(a, b);
    case Op::Power:
      return std::pow(a, b);
    case Op::Maximum:
      return larger(a, b);
    case Op::Minimum:
      return smaller(a, b);
    case Op::Atan2:
      return std::atan2(a, b);
    default:
      break;
  }
  NEURON_ASSERT(false, "no real function: ", name_of(op));
}

Complex complex_binary(Op op, Complex a, Complex b) {
  switch (op) {
    case Op::Add:
      return a + b;
    case Op::Subtract:
      return a - b;
    case Op::Multiply:
      return times(a, b);
    case Op::Divide:
      return a / b;
    case Op::Power:
      return b == Complex(0) ? Complex(1) : std::pow(a, b);
    default:
      break;
  }
  NEURON_ASSERT(false, "no complex function: ", name_of(op));
}

template <typename T>
T integer_power(T base, T exponent) {
  if (is_negative(exponent)) {
    if (base == T(1)) return 1;
    if (base == static_cast<T>(-1)) return exponent % 2 == 0 ? T(1) : static_cast<T>(-1);
    return 0;
  }
  T result = 1;
  for (; exponent != 0; exponent = static_cast<T>(exponent / 2)) {
    if (exponent % 2 != 0) result = times(result, base);
    base = times(base, base);
  }
  return result;
}

template <typename T>
T integer_binary(Op op, T a, T b) {
  using U = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;
  constexpr bool is_bool = std::is_same_v<T, bool>;
  constexpr auto width = static_cast<uint64_t>(sizeof(T) * 8);
  // A negative count is a huge unsigned one.
  const bool too_far = static_cast<uint64_t>(b) >= width;
  switch (op) {
    case Op::Add:
      return plus(a, b);
    case Op::Subtract:
      return static_cast<T>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
    case Op::Multiply:
      return times(a, b);
    case Op::Divide:
      if (b == T(0)) return static_cast<T>(-1);
      // The smallest integer over -1 overflows; negation wraps as wanted.
      if (std::is_signed_v<T> && b == static_cast<T>(-1)) return integer_unary(Op::Negate, a);
      return static_cast<T>(a / b);
    case Op::Remainder:
      if (b == T(0)) return a;
      if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
      return static_cast<T>(a % b);
    case Op::Power:
      if constexpr (!is_bool) return integer_power(a, b);
      break;
    case Op::Maximum:
      return larger(a, b);
    case Op::Minimum:
      return smaller(a, b);
    case Op::And:
      return static_cast<T>(a & b);
    case Op::Or:
      return static_cast<T>(a | b);
    case Op::Xor:
      return static_cast<T>(a ^ b);
    case Op::ShiftLeft:
      return too_far ? T(0) : static_cast<T>(static_cast<uint64_t>(a) << b);
    case Op::ShiftRightArithmetic:
      return static_cast<T>(static_cast<std::make_signed_t<U>>(a) >>
                            (too_far ? width - 1 : static_cast<uint64_t>(b)));
    case Op::ShiftRightLogical:
      return too_far ? T(0) : static_cast<T>(static_cast<std::make_unsigned_t<U>>(a) >> b);
    default:
      break;
  }
  NEURON_ASSERT(false, "no integer function: ", name_of(op));
}

template <typename T>
T binary(Op op, DType dtype, T a, T b) {
  if constexpr (is_complex_v<T>) {
    return convert_number<T>(complex_binary(op, Complex(a), Complex(b)));
  } else if constexpr (std::is_floating_point_v<T>) {
    if (op == Op::NextAfter) return next_after(dtype, a, b);
    return static_cast<T>(real_binary(op, a, b));
  } else {
    return integer_binary(op, a, b);
  }
}

template <typename T>
bool compare(Direction direction, T a, T b) {
  if (direction == Direction::EQ) return a == b;
  if (direction == Direction::NE) return a != b;
  if constexpr (!is_complex_v<T>) {
    switch (direction) {
      case Direction::LT:
        return a < b;
      case Direction::LE:
        return a <= b;
      case Direction::GT:
        return a > b;
      case Direction::GE:
        return a >= b;
      default:
        break;
    }
  }
  NEURON_ASSERT(false, "complex numbers have no order");
}

template <typename T>
T fused(T a, T b, T c) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::fma(a, b, c);
  } else {
    return plus(times(a, b), c);
  }
}

}  // namespace

Array evaluate_elementwise(const Node& node, Operands operands) {
  Array result = make_array(node.type);
  const int64_t count = count_elements(node.type.dims);
  const Array& x = *operands[0];
  const DType in = x.type.dtype;
  switch (node.op) {
    case Op::BitcastConvert:
      result.bytes = x.bytes;
      if (node.type.dtype == DType::pred) {
        for (std::byte& b : result.bytes) b = std::byte{b != std::byte{0}};
      }
      return result;
    case Op::Convert:
      with_compute_type(in, [&](auto from) {
        with_compute_type(node.type.dtype, [&](auto to) {
          for (int64_t i = 0; i < count; ++i) {
            store_at(result, i, convert_number<decltype(to)>(load_at<decltype(from)>(x, i)));
          }
        });
      });
      return result;
    case Op::Select:
      for (int64_t i = 0; i < count; ++i) {
        copy_element(load_at<bool>(x, i) ? *operands[1] : *operands[2], i, result, i);
      }
      return result;
    default:
      break;
  }
  with_compute_type(in, [&](auto tag) {
    using T = decltype(tag);
    for (int64_t i = 0; i < count; ++i) {
      const T a = load_at<T>(x, i);
      if (operands.size() == 3) {
        store_at<T>(result, i, fused(a, load_at<T>(*operands[1], i), load_at<T>(*operands[2], i)));
      } else if (node.op == Op::Compare) {
        store_at<bool>(
            result, i,
            compare(static_cast<Direction>(node.ints[0]), a, load_at<T>(*operands[1], i)));
      } else if (node.op == Op::Complex) {
        if constexpr (std::is_floating_point_v<T>) {
          store_at(result, i, std::complex<T>(a, load_at<T>(*operands[1], i)));
        }
      } else if (operands.size() == 2) {
        store_at<T>(result, i, binary(node.op, in, a, load_at<T>(*operands[1], i)));
      } else if (node.op == Op::IsFinite || node.op == Op::IsNan) {
        if constexpr (std::is_floating_point_v<T>) {
          store_at<bool>(result, i, node.op == Op::IsNan ? std::isnan(a) : std::isfinite(a));
        }
      } else if (is_complex(in) &&
                 (node.op == Op::Real || node.op == Op::Imag || node.op == Op::Abs)) {
        if constexpr (is_complex_v<T>) {
          using Part = typename T::value_type;
          store_at<Part>(result, i,
                         node.op == Op::Real   ? a.real()
                         : node.op == Op::Imag ? a.imag()
                                               : static_cast<Part>(std::abs(Complex(a))));
        }
      } else {
        store_at<T>(result, i, unary(node.op, a));
      }
    }
  });
  return result;
}

Array evaluate_philox(const Node& node, Operands operands) {
  Array result = make_array(node.type);
  const auto seed = load_at<uint64_t>(*operands[0], 0);
  const auto offset = load_at<uint64_t>(*operands[1], 0);
  const int64_t count = count_elements(node.type.dims);
  for (int64_t i = 0; i < count; ++i) {
    const auto words = philox(seed, offset + static_cast<uint64_t>(i));
    store_at<uint32_t>(result, i, words[static_cast<size_t>(node.ints[0])]);
  }
  return result;
}

}  // namespace neuron::hlo::internal
