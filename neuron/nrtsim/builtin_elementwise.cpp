#include <bit>
#include <cmath>
#include <numbers>
#include <string>
#include <string_view>

#include "neuron/nrtsim/builtin_support.h"

// neuron.copy: y = convert(x).
// neuron.unary, neuron.binary, neuron.ternary: ints {op} with the enumerators of hlo/ops.def
// (neuron.binary takes ops of three operands too);
// Compare has its direction as second integer (EQ, NE, LT, LE, GT, GE).
// Operands have the result's shape (broadcast dims have stride 0).
namespace neuron::nrtsim {
namespace {

// The op table as data: the simulator does not depend on hlo.
enum class Op : uint8_t {
#define NEURON_OP(enumerator, name, operands, category) enumerator,
#include "neuron/hlo/ops.def"
#undef NEURON_OP
};
constexpr std::string_view kOpNames[] = {
#define NEURON_OP(enumerator, name, operands, category) #enumerator,
#include "neuron/hlo/ops.def"
#undef NEURON_OP
};

[[noreturn]] void refuse(Op op, DType dtype) {
  raise(ErrorKind::kUnsupported, kOpNames[static_cast<size_t>(op)], " has no meaning for ",
        name_of(dtype));
}

Op op_of(const Call& call) {
  const int64_t number = call.integer(0);
  NEURON_CHECK(number >= 0 && number < static_cast<int64_t>(std::size(kOpNames)), kInvalid,
               "op number ", number);
  return static_cast<Op>(number);
}

// --- Special functions ---------------------------------------------------------------------------

double digamma(double x) {
  if (x == 0) return std::copysign(std::numeric_limits<double>::infinity(), -x);
  double result = 0;
  if (x < 0) {
    if (x == std::trunc(x)) return std::numeric_limits<double>::quiet_NaN();
    double whole;
    result = -std::numbers::pi / std::tan(std::numbers::pi * std::modf(x, &whole));
    x = 1 - x;
  }
  for (; x < 16; x += 1) result -= 1 / x;
  const double z = 1 / (x * x);
  const double series =
      z *
      (1.0 / 12 -
       z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z * (1.0 / 132 - z * (691.0 / 32760))))));
  return result + std::log(x) - 0.5 / x - (std::isinf(x) ? 0 : series);
}

double erf_inv(double x) {
  const double magnitude = std::fabs(x);
  if (!(magnitude <= 1)) return std::numeric_limits<double>::quiet_NaN();
  if (magnitude == 1) return std::copysign(std::numeric_limits<double>::infinity(), x);
  if (x == 0) return x;
  // A closed form good to three digits, then Newton steps with Halley's correction; near 1 only
  // the complement keeps its digits.
  const double log_term = std::log1p(-magnitude * magnitude);
  constexpr double kA = 0.147;
  const double half = 2 / (std::numbers::pi * kA) + log_term / 2;
  double y = std::sqrt(std::sqrt(half * half - log_term / kA) - half);
  for (int i = 0; i < 4; ++i) {
    const double error = magnitude < 0.5 ? std::erf(y) - magnitude : (1 - magnitude) - std::erfc(y);
    const double step = error / (2 * std::numbers::inv_sqrtpi * std::exp(-y * y));
    y -= step / (1 + y * step);
  }
  return std::copysign(y, x);
}

// --- One operand ---------------------------------------------------------------------------------

// Applies f to a chunk; the switch over ops stays outside the loop.
template <typename T, typename U, typename F>
void map(const T* x, U* y, int64_t n, F f) {
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<U>(f(x[i]));
}

template <typename T>
void real_unary(Op op, DType dtype, const T* x, T* y, int64_t n) {
  switch (op) {
    case Op::Abs:
      return map(x, y, n, [](T v) { return std::fabs(v); });
    case Op::Negate:
      return map(x, y, n, [](T v) { return -v; });
    case Op::Sign:
      return map(x, y, n, [](T v) { return T(v > 0) - T(v < 0); });
    case Op::Exp:
      return map(x, y, n, [](T v) { return std::exp(v); });
    case Op::Exp2:
      return map(x, y, n, [](T v) { return std::exp2(v); });
    case Op::Expm1:
      return map(x, y, n, [](T v) { return std::expm1(v); });
    case Op::Log:
      return map(x, y, n, [](T v) { return std::log(v); });
    case Op::Log2:
      return map(x, y, n, [](T v) { return std::log2(v); });
    case Op::Log10:
      return map(x, y, n, [](T v) { return std::log10(v); });
    case Op::Log1p:
      return map(x, y, n, [](T v) { return std::log1p(v); });
    case Op::Sqrt:
      return map(x, y, n, [](T v) { return std::sqrt(v); });
    case Op::Rsqrt:
      return map(x, y, n, [](T v) { return T(1) / std::sqrt(v); });
    case Op::Ceil:
      return map(x, y, n, [](T v) { return std::ceil(v); });
    case Op::Floor:
      return map(x, y, n, [](T v) { return std::floor(v); });
    case Op::Trunc:
      return map(x, y, n, [](T v) { return std::trunc(v); });
    case Op::RoundNearestEven:
      return map(x, y, n, [](T v) { return std::nearbyint(v); });
    case Op::Logistic:
      return map(x, y, n, [](T v) { return T(1) / (T(1) + std::exp(-v)); });
    case Op::Tanh:
      return map(x, y, n, [](T v) { return std::tanh(v); });
    case Op::Sine:
      return map(x, y, n, [](T v) { return std::sin(v); });
    case Op::Cosine:
      return map(x, y, n, [](T v) { return std::cos(v); });
    case Op::Tan:
      return map(x, y, n, [](T v) { return std::tan(v); });
    case Op::Asin:
      return map(x, y, n, [](T v) { return std::asin(v); });
    case Op::Acos:
      return map(x, y, n, [](T v) { return std::acos(v); });
    case Op::Atan:
      return map(x, y, n, [](T v) { return std::atan(v); });
    case Op::Sinh:
      return map(x, y, n, [](T v) { return std::sinh(v); });
    case Op::Cosh:
      return map(x, y, n, [](T v) { return std::cosh(v); });
    case Op::Asinh:
      return map(x, y, n, [](T v) { return std::asinh(v); });
    case Op::Acosh:
      return map(x, y, n, [](T v) { return std::acosh(v); });
    case Op::Atanh:
      return map(x, y, n, [](T v) { return std::atanh(v); });
    case Op::Erf:
      return map(x, y, n, [](T v) { return std::erf(v); });
    case Op::Erfc:
      return map(x, y, n, [](T v) { return std::erfc(v); });
    case Op::ErfInv:
      return map(x, y, n, [](T v) { return erf_inv(v); });
    case Op::Lgamma:
      // lgamma_r: plain lgamma writes a global.
      return map(x, y, n, [](T v) {
        int sign;
        return lgamma_r(static_cast<double>(v), &sign);
      });
    case Op::Digamma:
      return map(x, y, n, [](T v) { return digamma(v); });
    default:
      refuse(op, dtype);
  }
}

using Complex = std::complex<double>;

Complex complex_log1p(Complex x) {
  const double re = x.real(), im = x.imag();
  return {0.5 * std::log1p(re * (2 + re) + im * im), std::atan2(im, 1 + re)};
}

Complex complex_expm1(Complex x) {
  const double s = std::sin(x.imag() / 2);
  return {std::expm1(x.real()) * std::cos(x.imag()) - 2 * s * s,
          std::exp(x.real()) * std::sin(x.imag())};
}

template <typename T>
void complex_unary(Op op, DType dtype, const T* x, T* y, int64_t n) {
  const auto apply = [&](auto f) {
    for (int64_t i = 0; i < n; ++i) y[i] = convert<T>(Complex(f(Complex(x[i]))));
  };
  switch (op) {
    case Op::Negate:
      return apply([](Complex v) { return -v; });
    case Op::Sign:
      return apply([](Complex v) { return v == Complex(0) ? v : v / std::abs(v); });
    case Op::Exp:
      return apply([](Complex v) { return std::exp(v); });
    case Op::Exp2:
      return apply([](Complex v) { return std::exp(v * std::numbers::ln2); });
    case Op::Expm1:
      return apply(complex_expm1);
    case Op::Log:
      return apply([](Complex v) { return std::log(v); });
    case Op::Log2:
      return apply([](Complex v) { return std::log(v) / std::numbers::ln2; });
    case Op::Log10:
      return apply([](Complex v) { return std::log(v) / std::numbers::ln10; });
    case Op::Log1p:
      return apply(complex_log1p);
    case Op::Sqrt:
      return apply([](Complex v) { return std::sqrt(v); });
    case Op::Rsqrt:
      return apply([](Complex v) { return 1.0 / std::sqrt(v); });
    case Op::Logistic:
      return apply([](Complex v) { return 1.0 / (1.0 + std::exp(-v)); });
    case Op::Tanh:
      return apply([](Complex v) { return std::tanh(v); });
    case Op::Sine:
      return apply([](Complex v) { return std::sin(v); });
    case Op::Cosine:
      return apply([](Complex v) { return std::cos(v); });
    case Op::Tan:
      return apply([](Complex v) { return std::tan(v); });
    case Op::Asin:
      return apply([](Complex v) { return std::asin(v); });
    case Op::Acos:
      return apply([](Complex v) { return std::acos(v); });
    case Op::Atan:
      return apply([](Complex v) { return std::atan(v); });
    case Op::Sinh:
      return apply([](Complex v) { return std::sinh(v); });
    case Op::Cosh:
      return apply([](Complex v) { return std::cosh(v); });
    case Op::Asinh:
      return apply([](Complex v) { return std::asinh(v); });
    case Op::Acosh:
      return apply([](Complex v) { return std::acosh(v); });
    case Op::Atanh:
      return apply([](Complex v) { return std::atanh(v); });
    default:
      refuse(op, dtype);
  }
}

template <typename T>
void integer_unary(Op op, DType dtype, const T* x, T* y, int64_t n) {
  if constexpr (std::is_same_v<T, bool>) {
    if (op != Op::Not) refuse(op, dtype);
    map(x, y, n, [](bool v) { return !v; });
  } else {
    using U = std::make_unsigned_t<T>;
    switch (op) {
      case Op::Abs:
        return map(x, y, n, [](T v) { return v < 0 ? T(U(0) - U(v)) : v; });
      case Op::Negate:
        return map(x, y, n, [](T v) { return T(U(0) - U(v)); });
      case Op::Sign:
        return map(x, y, n, [](T v) { return T(v > 0) - T(v < 0); });
      case Op::Not:
        return map(x, y, n, [](T v) { return ~v; });
      case Op::Popcnt:
        return map(x, y, n, [](T v) { return std::popcount(U(v)); });
      default:
        refuse(op, dtype);
    }
  }
}

// --- Two operands --------------------------------------------------------------------------------

template <typename T, typename U, typename F>
void map2(const T* a, const T* b, U* y, int64_t n, F f) {
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<U>(f(a[i], b[i]));
}

// Neighbour of a towards b in the stored format.
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
    store_one<T>(dtype, a, stored);
    std::memcpy(&bits, stored, size);
    bits += (up == (a > 0)) ? 1u : ~0u;
  }
  std::memcpy(stored, &bits, size);
  return load_one<T>(dtype, stored);
}

template <typename T>
void real_binary(Op op, DType dtype, const T* a, const T* b, T* y, int64_t n) {
  switch (op) {
    case Op::Add:
      return map2(a, b, y, n, [](T u, T v) { return u + v; });
    case Op::Subtract:
      return map2(a, b, y, n, [](T u, T v) { return u - v; });
    case Op::Multiply:
      return map2(a, b, y, n, [](T u, T v) { return u * v; });
    case Op::Divide:
      return map2(a, b, y, n, [](T u, T v) { return u / v; });
    case Op::Remainder:
      return map2(a, b, y, n, [](T u, T v) { return std::fmod(u, v); });
    case Op::Power:
      return map2(a, b, y, n, [](T u, T v) { return std::pow(u, v); });
    case Op::Maximum:
      return map2(a, b, y, n, [](T u, T v) { return larger(u, v); });
    case Op::Minimum:
      return map2(a, b, y, n, [](T u, T v) { return smaller(u, v); });
    case Op::Atan2:
      return map2(a, b, y, n, [](T u, T v) { return std::atan2(u, v); });
    case Op::NextAfter:
      return map2(a, b, y, n, [&](T u, T v) { return next_after(dtype, u, v); });
    default:
      refuse(op, dtype);
  }
}

template <typename T>
void complex_binary(Op op, DType dtype, const T* a, const T* b, T* y, int64_t n) {
  const auto apply = [&](auto f) {
    for (int64_t i = 0; i < n; ++i) y[i] = convert<T>(Complex(f(Complex(a[i]), Complex(b[i]))));
  };
  switch (op) {
    case Op::Add:
      return apply([](Complex u, Complex v) { return u + v; });
    case Op::Subtract:
      return apply([](Complex u, Complex v) { return u - v; });
    case Op::Multiply:
      return apply([](Complex u, Complex v) { return times(u, v); });
    case Op::Divide:
      return apply([](Complex u, Complex v) { return u / v; });
    case Op::Power:
      return apply(
          [](Complex u, Complex v) { return v == Complex(0) ? Complex(1) : std::pow(u, v); });
    default:
      refuse(op, dtype);
  }
}

template <typename T>
T integer_power(T base, T exponent) {
  if constexpr (std::is_signed_v<T>) {
    if (exponent < 0) {
      if (base == T(1)) return 1;
      if (base == T(-1)) return exponent % 2 == 0 ? T(1) : T(-1);
      return 0;
    }
  }
  T result = 1;
  for (; exponent != 0; exponent = static_cast<T>(exponent / 2)) {
    if (exponent % 2 != 0) result = times(result, base);
    base = times(base, base);
  }
  return result;
}

template <typename T>
void integer_binary(Op op, DType dtype, const T* a, const T* b, T* y, int64_t n) {
  using U = std::make_unsigned_t<std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>>;
  using I = std::make_signed_t<U>;
  constexpr uint64_t kWidth = sizeof(T) * 8;
  switch (op) {
    case Op::Add:
      return map2(a, b, y, n, [](T u, T v) { return plus(u, v); });
    case Op::Multiply:
      return map2(a, b, y, n, [](T u, T v) { return times(u, v); });
    case Op::Maximum:
      return map2(a, b, y, n, [](T u, T v) { return larger(u, v); });
    case Op::Minimum:
      return map2(a, b, y, n, [](T u, T v) { return smaller(u, v); });
    case Op::And:
      return map2(a, b, y, n, [](T u, T v) { return u & v; });
    case Op::Or:
      return map2(a, b, y, n, [](T u, T v) { return u | v; });
    case Op::Xor:
      return map2(a, b, y, n, [](T u, T v) { return u ^ v; });
    default:
      break;
  }
  if constexpr (!std::is_same_v<T, bool>) {
    switch (op) {
      case Op::Subtract:
        return map2(a, b, y, n, [](T u, T v) { return T(U(u) - U(v)); });
      case Op::Divide:
        return map2(a, b, y, n, [](T u, T v) -> T {
          if (v == 0) return static_cast<T>(-1);
          // The smallest integer over -1 overflows in hardware; negation wraps.
          if (std::is_signed_v<T> && v == static_cast<T>(-1)) return static_cast<T>(U(0) - U(u));
          return static_cast<T>(u / v);
        });
      case Op::Remainder:
        return map2(a, b, y, n, [](T u, T v) -> T {
          if (v == 0) return u;
          if (std::is_signed_v<T> && v == static_cast<T>(-1)) return 0;
          return static_cast<T>(u % v);
        });
      case Op::Power:
        return map2(a, b, y, n, [](T u, T v) { return integer_power(u, v); });
      // A negative count is a huge unsigned one.
      case Op::ShiftLeft:
        return map2(a, b, y, n, [](T u, T v) {
          return static_cast<uint64_t>(v) >= kWidth ? T(0) : T(static_cast<uint64_t>(u) << v);
        });
      case Op::ShiftRightArithmetic:
        return map2(a, b, y, n, [](T u, T v) {
          return T(I(u) >> (static_cast<uint64_t>(v) >= kWidth ? kWidth - 1 : uint64_t(v)));
        });
      case Op::ShiftRightLogical:
        return map2(a, b, y, n, [](T u, T v) {
          return static_cast<uint64_t>(v) >= kWidth ? T(0) : T(U(u) >> v);
        });
      default:
        break;
    }
  }
  refuse(op, dtype);
}

template <typename T>
void compare(int64_t direction, DType dtype, const T* a, const T* b, bool* y, int64_t n) {
  if (direction == 0) return map2(a, b, y, n, [](T u, T v) { return u == v; });
  if (direction == 1) return map2(a, b, y, n, [](T u, T v) { return u != v; });
  if constexpr (!kIsComplex<T>) {
    switch (direction) {
      case 2:
        return map2(a, b, y, n, [](T u, T v) { return u < v; });
      case 3:
        return map2(a, b, y, n, [](T u, T v) { return u <= v; });
      case 4:
        return map2(a, b, y, n, [](T u, T v) { return u > v; });
      case 5:
        return map2(a, b, y, n, [](T u, T v) { return u >= v; });
      default:
        break;
    }
  }
  refuse(Op::Compare, dtype);
}

// Runs body(n, at) over chunks; at(k) is the address of operand k's chunk and row stride k its
// step.
template <size_t N>
void each_chunk(const Call& call, const std::array<const View*, N>& views, int64_t grain,
                FunctionRef<void(int64_t n, const std::array<std::byte*, N>& at,
                                 const std::array<int64_t, N>& step)>
                    body) {
  std::array<DimsRef, N> strides;
  for (size_t k = 0; k < N; ++k) strides[k] = views[k]->strides;
  const Rows<N> rows(views[0]->sizes, strides);
  rows.parallel(call, grain, [&](const auto& offsets, int64_t, int64_t length) {
    for (int64_t i = 0; i < length; i += kChunk) {
      std::array<std::byte*, N> at;
      for (size_t k = 0; k < N; ++k) {
        at[k] = views[k]->at(offsets[k] + i * rows.row_strides()[k]);
      }
      body(std::min(kChunk, length - i), at, rows.row_strides());
    }
  });
}

}  // namespace

// --- Copy ----------------------------------------------------------------------------------------

void copy_view(const Call& call, const View& x, const View& y) {
  check_same_sizes(x, y, "copy");
  if (x.dtype == y.dtype) {
    const size_t bytes = x.element_bytes();
    const Rows<2> rows(y.sizes, {DimsRef(x.strides), DimsRef(y.strides)});
    const auto [from_step, to_step] = rows.row_strides();
    rows.parallel(
        call, kCheapGrain * 4,
        [&, from_step = from_step, to_step = to_step](const auto& offsets, int64_t, int64_t n) {
          const std::byte* from = x.at(offsets[0]);
          std::byte* to = y.at(offsets[1]);
          if (from_step == 1 && to_step == 1) {
            if (from != to) std::memmove(to, from, static_cast<size_t>(n) * bytes);
            return;
          }
          const auto move = [&](auto tag) {
            using Bits = decltype(tag);
            const auto* source = reinterpret_cast<const Bits*>(from);
            auto* target = reinterpret_cast<Bits*>(to);
            for (int64_t i = 0; i < n; ++i) target[i * to_step] = source[i * from_step];
          };
          switch (bytes) {
            case 1:
              return move(uint8_t{});
            case 2:
              return move(uint16_t{});
            case 4:
              return move(uint32_t{});
            case 8:
              return move(uint64_t{});
            default:
              return move(std::complex<double>{});
          }
        });
    return;
  }
  with_compute(x.dtype, [&](auto from) {
    using T = decltype(from);
    with_compute(y.dtype, [&](auto to) {
      using U = decltype(to);
      each_chunk<2>(call, {&x, &y}, kCheapGrain, [&](int64_t n, const auto& at, const auto& step) {
        Chunk<T> source;
        Chunk<U> target;
        load_chunk<T>(x.dtype, at[0], step[0], n, source.items);
        for (int64_t i = 0; i < n; ++i) {
          target.items[i] = convert<U>(source.items[i]);
        }
        store_chunk<U>(y.dtype, target.items, n, at[1], step[1]);
      });
    });
  });
}

void run_copy(const Call& call) { copy_view(call, call.input(0), call.output()); }

// --- Entry points --------------------------------------------------------------------------------

void run_unary(const Call& call) {
  const Op op = op_of(call);
  const View x = call.input(0);
  const View y = call.output();
  check_same_sizes(x, y, "unary");
  if (op == Op::Convert) return copy_view(call, x, y);
  if (op == Op::BitcastConvert) {
    NEURON_CHECK(x.element_bytes() == y.element_bytes(), kInvalid, "bitcast of ", name_of(x.dtype),
                 " to ", name_of(y.dtype));
    View same = x;
    same.dtype = y.dtype;
    return copy_view(call, same, y);
  }
  constexpr int64_t kGrain = 4096;  // Mostly transcendental functions.
  with_compute(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto run = [&](auto result_tag, auto f) {
      using U = decltype(result_tag);
      each_chunk<2>(call, {&x, &y}, kGrain, [&](int64_t n, const auto& at, const auto& step) {
        Chunk<T> source;
        Chunk<U> target;
        load_chunk<T>(x.dtype, at[0], step[0], n, source.items);
        f(source.items, target.items, n);
        store_chunk<U>(y.dtype, target.items, n, at[1], step[1]);
      });
    };
    if (op == Op::IsNan || op == Op::IsFinite) {
      if constexpr (std::is_floating_point_v<T>) {
        return run(bool{}, [&](const T* from, bool* to, int64_t n) {
          if (op == Op::IsNan) return map(from, to, n, [](T v) { return v != v; });
          map(from, to, n, [](T v) { return std::isfinite(v); });
        });
      }
      refuse(op, x.dtype);
    }
    if constexpr (kIsComplex<T>) {
      if (op == Op::Real || op == Op::Imag || op == Op::Abs) {
        using Part = typename T::value_type;
        return run(Part{}, [&](const T* from, Part* to, int64_t n) {
          if (op == Op::Real) return map(from, to, n, [](T v) { return v.real(); });
          if (op == Op::Imag) return map(from, to, n, [](T v) { return v.imag(); });
          map(from, to, n, [](T v) { return std::abs(Complex(v)); });
        });
      }
      run(T{}, [&](const T* from, T* to, int64_t n) { complex_unary(op, x.dtype, from, to, n); });
    } else if constexpr (std::is_floating_point_v<T>) {
      run(T{}, [&](const T* from, T* to, int64_t n) { real_unary(op, x.dtype, from, to, n); });
    } else {
      run(T{}, [&](const T* from, T* to, int64_t n) { integer_unary(op, x.dtype, from, to, n); });
    }
  });
}

void run_binary(const Call& call) {
  const Op op = op_of(call);
  if (op == Op::Select || op == Op::Fma) return run_ternary(call);
  const View a = call.input(0);
  const View b = call.input(1);
  const View y = call.output();
  check_same_sizes(a, y, "binary");
  check_same_sizes(b, y, "binary");
  NEURON_CHECK(a.dtype == b.dtype, kInvalid, kOpNames[static_cast<size_t>(op)], " of ",
               name_of(a.dtype), " and ", name_of(b.dtype));
  const int64_t direction = op == Op::Compare ? call.integer(1) : 0;
  with_compute(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto run = [&](auto result_tag, auto f) {
      using U = decltype(result_tag);
      each_chunk<3>(call, {&a, &b, &y}, 8192, [&](int64_t n, const auto& at, const auto& step) {
        Chunk<T> left, right;
        Chunk<U> target;
        load_chunk<T>(a.dtype, at[0], step[0], n, left.items);
        load_chunk<T>(b.dtype, at[1], step[1], n, right.items);
        f(left.items, right.items, target.items, n);
        store_chunk<U>(y.dtype, target.items, n, at[2], step[2]);
      });
    };
    if (op == Op::Compare) {
      return run(bool{}, [&](const T* u, const T* v, bool* to, int64_t n) {
        compare(direction, a.dtype, u, v, to, n);
      });
    }
    if constexpr (std::is_floating_point_v<T>) {
      if (op == Op::Complex) {
        return run(std::complex<T>{}, [](const T* u, const T* v, std::complex<T>* to, int64_t n) {
          for (int64_t i = 0; i < n; ++i) to[i] = {u[i], v[i]};
        });
      }
      run(T{},
          [&](const T* u, const T* v, T* to, int64_t n) { real_binary(op, a.dtype, u, v, to, n); });
    } else if constexpr (kIsComplex<T>) {
      run(T{}, [&](const T* u, const T* v, T* to, int64_t n) {
        complex_binary(op, a.dtype, u, v, to, n);
      });
    } else {
      run(T{}, [&](const T* u, const T* v, T* to, int64_t n) {
        integer_binary(op, a.dtype, u, v, to, n);
      });
    }
  });
}

void run_ternary(const Call& call) {
  const Op op = op_of(call);
  const View a = call.input(0);
  const View b = call.input(1);
  const View c = call.input(2);
  const View y = call.output();
  for (const View* view : {&a, &b, &c}) check_same_sizes(*view, y, "ternary");
  with_compute(y.dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto run = [&](auto first_tag, auto f) {
      using P = decltype(first_tag);
      each_chunk<4>(call, {&a, &b, &c, &y}, 8192, [&](int64_t n, const auto& at, const auto& step) {
        Chunk<P> first;
        Chunk<T> second, third, target;
        load_chunk<P>(a.dtype, at[0], step[0], n, first.items);
        load_chunk<T>(b.dtype, at[1], step[1], n, second.items);
        load_chunk<T>(c.dtype, at[2], step[2], n, third.items);
        for (int64_t i = 0; i < n; ++i) {
          target.items[i] = f(first.items[i], second.items[i], third.items[i]);
        }
        store_chunk<T>(y.dtype, target.items, n, at[3], step[3]);
      });
    };
    if (op == Op::Select) {
      NEURON_CHECK(a.dtype == DType::pred, kInvalid, "Select by ", name_of(a.dtype));
      run(bool{}, [](bool p, T u, T v) { return p ? u : v; });
    } else if (op == Op::Fma) {
      run(T{}, [](T u, T v, T w) {
        if constexpr (std::is_floating_point_v<T>) {
          return std::fma(u, v, w);
        } else {
          return plus(times(u, v), w);
        }
      });
    } else {
      refuse(op, y.dtype);
    }
  });
}

}  // namespace neuron::nrtsim
