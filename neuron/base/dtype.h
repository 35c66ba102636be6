#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace neuron {

/// Element types of tensors: all of torch's dense types plus the IEEE-like f8e4m3 of Trn2.
/// `pred` is a boolean stored as one byte, 0 or 1.
enum class DType : uint8_t {
  pred,
  i8,
  i16,
  i32,
  i64,
  u8,
  u16,
  u32,
  u64,
  f16,
  bf16,
  f32,
  f64,
  f8e4m3fn,
  f8e4m3,
  f8e5m2,
  c64,
  c128,
};
inline constexpr int kDTypeCount = 18;

/// Bytes of one stored element.
constexpr size_t size_of(DType type) {
  switch (type) {
    case DType::pred:
    case DType::i8:
    case DType::u8:
    case DType::f8e4m3fn:
    case DType::f8e4m3:
    case DType::f8e5m2:
      return 1;
    case DType::i16:
    case DType::u16:
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::i32:
    case DType::u32:
    case DType::f32:
      return 4;
    case DType::i64:
    case DType::u64:
    case DType::f64:
    case DType::c64:
      return 8;
    case DType::c128:
      return 16;
  }
  return 0;
}

constexpr bool is_complex(DType type) { return type == DType::c64 || type == DType::c128; }
constexpr bool is_float8(DType type) {
  return type == DType::f8e4m3fn || type == DType::f8e4m3 || type == DType::f8e5m2;
}
/// Real floating-point types, the 8-bit ones included.
constexpr bool is_floating(DType type) {
  return type == DType::f16 || type == DType::bf16 || type == DType::f32 || type == DType::f64 ||
         is_float8(type);
}
constexpr bool is_signed_integer(DType type) {
  return type == DType::i8 || type == DType::i16 || type == DType::i32 || type == DType::i64;
}
constexpr bool is_unsigned_integer(DType type) {
  return type == DType::u8 || type == DType::u16 || type == DType::u32 || type == DType::u64;
}
/// Signed and unsigned integers; `pred` is not one.
constexpr bool is_integer(DType type) {
  return is_signed_integer(type) || is_unsigned_integer(type);
}
/// f64 for c128, f32 for c64, the type itself otherwise.
constexpr DType real_of(DType type) {
  return type == DType::c64 ? DType::f32 : type == DType::c128 ? DType::f64 : type;
}

/// Short name as used in messages, e.g. "f32", "pred".
std::string_view name_of(DType type);
/// Spelling in StableHLO text, e.g. "f32", "i1", "ui8", "f8E4M3FN", "complex<f32>".
std::string_view stablehlo_name(DType type);

}  // namespace neuron
