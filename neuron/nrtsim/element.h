#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "neuron/base/dtype.h"
#include "neuron/base/float_formats.h"

namespace neuron::nrtsim {

// Stored forms of the types that C++ does not compute in. Each converts to and from the type it
// is computed in.
struct Pred {
  using Compute = bool;
  uint8_t bits;
  operator bool() const { return bits != 0; }  // NOLINT: a stored bool.
  static Pred from(bool value) { return {static_cast<uint8_t>(value)}; }
};

template <typename Bits, float (*widen)(Bits), Bits (*narrow)(float)>
struct NarrowFloat {
  using Compute = float;
  Bits bits;
  operator float() const { return widen(bits); }  // NOLINT: a stored float.
  static NarrowFloat from(float value) { return {narrow(value)}; }
};
using BF16 = NarrowFloat<uint16_t, bf16_to_float, float_to_bf16>;
using F16 = NarrowFloat<uint16_t, f16_to_float, float_to_f16>;
using F8E4M3FN = NarrowFloat<uint8_t, f8e4m3fn_to_float, float_to_f8e4m3fn>;
using F8E4M3 = NarrowFloat<uint8_t, f8e4m3_to_float, float_to_f8e4m3>;
using F8E5M2 = NarrowFloat<uint8_t, f8e5m2_to_float, float_to_f8e5m2>;

template <typename S, typename = void>
struct ComputeOf {
  using type = S;
};
template <typename S>
struct ComputeOf<S, std::void_t<typename S::Compute>> {
  using type = typename S::Compute;
};
/// Type in which elements stored as S are computed.
template <typename S>
using Compute = typename ComputeOf<S>::type;

template <typename S>
Compute<S> load(const S& stored) {
  return stored;
}
template <typename S>
S narrow_to(Compute<S> value) {
  if constexpr (std::is_same_v<S, Compute<S>>) {
    return value;
  } else {
    return S::from(value);
  }
}

template <typename T>
inline constexpr bool kIsComplex =
    std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>;

/// Calls body(S{}) with the stored form of the dtype.
template <typename Body>
decltype(auto) with_stored(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::pred:
      return body(Pred{});
    case DType::i8:
      return body(int8_t{});
    case DType::i16:
      return body(int16_t{});
    case DType::i32:
      return body(int32_t{});
    case DType::i64:
      return body(int64_t{});
    case DType::u8:
      return body(uint8_t{});
    case DType::u16:
      return body(uint16_t{});
    case DType::u32:
      return body(uint32_t{});
    case DType::u64:
      return body(uint64_t{});
    case DType::f16:
      return body(F16{});
    case DType::bf16:
      return body(BF16{});
    case DType::f32:
      return body(float{});
    case DType::f64:
      return body(double{});
    case DType::f8e4m3fn:
      return body(F8E4M3FN{});
    case DType::f8e4m3:
      return body(F8E4M3{});
    case DType::f8e5m2:
      return body(F8E5M2{});
    case DType::c64:
      return body(std::complex<float>{});
    case DType::c128:
      return body(std::complex<double>{});
  }
  __builtin_unreachable();
}

/// Calls body(T{}) with the compute type of the dtype.
template <typename Body>
decltype(auto) with_compute(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f16:
    case DType::bf16:
    case DType::f8e4m3fn:
    case DType::f8e4m3:
    case DType::f8e5m2:
    case DType::f32:
      return body(float{});
    case DType::pred:
      return body(bool{});
    case DType::i8:
      return body(int8_t{});
    case DType::i16:
      return body(int16_t{});
    case DType::i32:
      return body(int32_t{});
    case DType::i64:
      return body(int64_t{});
    case DType::u8:
      return body(uint8_t{});
    case DType::u16:
      return body(uint16_t{});
    case DType::u32:
      return body(uint32_t{});
    case DType::u64:
      return body(uint64_t{});
    case DType::f64:
      return body(double{});
    case DType::c64:
      return body(std::complex<float>{});
    case DType::c128:
      return body(std::complex<double>{});
  }
  __builtin_unreachable();
}

/// Numeric conversion between compute types; float to integer as x86 does it, complex to real
/// drops the imaginary part.
template <typename To, typename From>
To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else if constexpr (kIsComplex<From>) {
    if constexpr (kIsComplex<To>) {
      using Part = typename To::value_type;
      return To(static_cast<Part>(value.real()), static_cast<Part>(value.imag()));
    } else {
      return convert<To>(value.real());
    }
  } else if constexpr (kIsComplex<To>) {
    return To(static_cast<typename To::value_type>(value), 0);
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    if constexpr (std::is_same_v<To, int64_t>) {
      return truncate_to_i64(value);
    } else if constexpr (std::is_same_v<To, uint64_t>) {
      return truncate_to_u64(value);
    } else if constexpr (std::is_same_v<To, uint32_t>) {
      return static_cast<To>(truncate_to_i64(value));
    } else {
      return static_cast<To>(truncate_to_i32(value));
    }
  } else {
    return static_cast<To>(value);
  }
}

// --- Arithmetic of compute types -----------------------------------------------------------------

/// Integers wrap; bool: or / and; complex numbers by the textbook formula.
template <typename T>
T plus(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a || b;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}
template <typename T>
T times(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a && b;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  } else if constexpr (kIsComplex<T>) {
    return T(a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real());
  } else {
    return a * b;
  }
}
/// NaN wins; of equal values the first. Complex numbers have no order: callers refuse them.
template <typename T>
T larger(T a, T b) {
  if constexpr (kIsComplex<T>) {
    return a;
  } else {
    return a != a ? a : (b > a || b != b) ? b : a;
  }
}
template <typename T>
T smaller(T a, T b) {
  if constexpr (kIsComplex<T>) {
    return a;
  } else {
    return a != a ? a : (b < a || b != b) ? b : a;
  }
}

/// Where sums and products are kept.
template <typename T>
struct WideOf {
  using type = T;
};
template <>
struct WideOf<float> {
  using type = double;
};
template <>
struct WideOf<std::complex<float>> {
  using type = std::complex<double>;
};
template <typename T>
using Wide = typename WideOf<T>::type;

}  // namespace neuron::nrtsim
