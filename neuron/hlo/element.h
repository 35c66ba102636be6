#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "neuron/base/dtype.h"
#include "neuron/base/float_formats.h"

namespace neuron::hlo {

/// The C++ type in which an element of `DType` is computed: narrow floats compute in float, `pred`
/// in bool.
template <typename T>
inline constexpr bool is_complex_v =
    std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>;

/// Calls `body(T{})` with the compute type of `dtype`.
template <typename Body>
decltype(auto) with_compute_type(DType dtype, Body&& body) {
  switch (dtype) {
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
    default:
      return body(float{});
  }
}

/// Numeric conversion between compute types; float to integer as the CPU does, complex to real
/// drops the imaginary part.
template <typename To, typename From>
To convert_number(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else if constexpr (is_complex_v<From>) {
    if constexpr (is_complex_v<To>) {
      using Part = typename To::value_type;
      return To(static_cast<Part>(value.real()), static_cast<Part>(value.imag()));
    } else {
      return convert_number<To>(value.real());
    }
  } else if constexpr (is_complex_v<To>) {
    return To(static_cast<typename To::value_type>(value), 0);
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    if constexpr (std::is_same_v<To, int64_t>) return truncate_to_i64(value);
    if constexpr (std::is_same_v<To, uint64_t>) return truncate_to_u64(value);
    if constexpr (std::is_same_v<To, uint32_t>) return static_cast<To>(truncate_to_i64(value));
    return static_cast<To>(truncate_to_i32(value));
  } else {
    return static_cast<To>(value);
  }
}

/// Reads a stored element into its compute type (T must be the compute type of `dtype`).
template <typename T>
T load_element(DType dtype, const std::byte* from) {
  if constexpr (std::is_same_v<T, float>) {
    switch (dtype) {
      case DType::f16: {
        uint16_t bits;
        std::memcpy(&bits, from, 2);
        return f16_to_float(bits);
      }
      case DType::bf16: {
        uint16_t bits;
        std::memcpy(&bits, from, 2);
        return bf16_to_float(bits);
      }
      case DType::f8e4m3fn:
        return f8e4m3fn_to_float(static_cast<uint8_t>(*from));
      case DType::f8e4m3:
        return f8e4m3_to_float(static_cast<uint8_t>(*from));
      case DType::f8e5m2:
        return f8e5m2_to_float(static_cast<uint8_t>(*from));
      default:
        break;
    }
  }
  if constexpr (std::is_same_v<T, bool>) {
    return *from != std::byte{0};
  } else {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
  }
}

/// Rounds to `dtype` and stores.
template <typename T>
void store_element(DType dtype, T value, std::byte* to) {
  if constexpr (std::is_same_v<T, float>) {
    switch (dtype) {
      case DType::f16: {
        const uint16_t bits = float_to_f16(value);
        std::memcpy(to, &bits, 2);
        return;
      }
      case DType::bf16: {
        const uint16_t bits = float_to_bf16(value);
        std::memcpy(to, &bits, 2);
        return;
      }
      case DType::f8e4m3fn:
        *to = std::byte{float_to_f8e4m3fn(value)};
        return;
      case DType::f8e4m3:
        *to = std::byte{float_to_f8e4m3(value)};
        return;
      case DType::f8e5m2:
        *to = std::byte{float_to_f8e5m2(value)};
        return;
      default:
        break;
    }
  }
  if constexpr (std::is_same_v<T, bool>) {
    *to = std::byte{value};
  } else {
    std::memcpy(to, &value, sizeof(T));
  }
}

}  // namespace neuron::hlo
