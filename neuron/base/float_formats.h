#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace neuron {

/// Conversions between float and the narrow formats, by bit pattern. All round to nearest even.
/// A double is converted through float, as torch does.

inline float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FC0;  // Any NaN: torch's canonical one.
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

namespace internal {

/// What happens to a finite value beyond the largest finite one, and to infinity.
enum class Overflow : uint8_t { kInfinity, kSaturate, kNan };

/// Widens a format of `exponent_bits` and `mantissa_bits`. With `has_infinity` the top exponent
/// holds infinity and NaN as IEEE has it; without, only the all-ones pattern is NaN.
template <int exponent_bits, int mantissa_bits, bool has_infinity>
float widen_float(uint32_t bits) {
  constexpr int bias = (1 << (exponent_bits - 1)) - 1;
  constexpr uint32_t exponent_mask = (1u << exponent_bits) - 1;
  constexpr uint32_t mantissa_mask = (1u << mantissa_bits) - 1;
  const uint32_t sign = ((bits >> (exponent_bits + mantissa_bits)) & 1u) << 31;
  const uint32_t exponent = (bits >> mantissa_bits) & exponent_mask;
  const uint32_t mantissa = bits & mantissa_mask;
  uint32_t result;
  if (has_infinity && exponent == exponent_mask) {
    result = mantissa == 0 ? 0x7F800000u : 0x7FC00000u;
  } else if (!has_infinity && exponent == exponent_mask && mantissa == mantissa_mask) {
    result = 0x7FC00000u;
  } else if (exponent == 0) {
    // Subnormal: mantissa * 2^(1 - bias - mantissa_bits), exact in float.
    const float value =
        static_cast<float>(mantissa) *
        std::bit_cast<float>(static_cast<uint32_t>(127 + 1 - bias - mantissa_bits) << 23);
    result = std::bit_cast<uint32_t>(value);
  } else {
    result = ((exponent - bias + 127) << 23) | (mantissa << (23 - mantissa_bits));
  }
  return std::bit_cast<float>(sign | result);
}

template <int exponent_bits, int mantissa_bits, bool has_infinity>
uint32_t narrow_float(float value, Overflow overflow) {
  constexpr int bias = (1 << (exponent_bits - 1)) - 1;
  constexpr uint32_t exponent_mask = (1u << exponent_bits) - 1;
  constexpr uint32_t infinity = exponent_mask << mantissa_bits;
  constexpr uint32_t largest =
      has_infinity ? infinity - 1 : (infinity | ((1u << mantissa_bits) - 2));
  constexpr uint32_t nan = has_infinity ? infinity | (1u << (mantissa_bits - 1)) : largest + 1;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 31) << (exponent_bits + mantissa_bits);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return sign | nan;
  const uint32_t beyond = overflow == Overflow::kSaturate   ? largest
                          : overflow == Overflow::kInfinity ? infinity
                                                            : nan;
  if (magnitude == 0x7F800000u) return sign | beyond;
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  uint32_t result;
  if (exponent >= 1 - bias) {
    constexpr int shift = 23 - mantissa_bits;
    // Rounding may carry into the exponent; that is the right answer.
    const uint32_t rounded = magnitude + ((1u << (shift - 1)) - 1) + ((magnitude >> shift) & 1u);
    result = (rounded >> shift) - (static_cast<uint32_t>(127 - bias) << mantissa_bits);
    if (result > largest) return sign | beyond;
  } else {
    // Subnormal: round |value| / 2^(1 - bias - mantissa_bits) to an integer.
    const int shift = (1 - bias - mantissa_bits) - (exponent - 23);
    const uint32_t mantissa = (magnitude & 0x7FFFFFu) | (magnitude >= 0x800000u ? 0x800000u : 0u);
    if (shift > 25) {
      result = 0;
    } else {
      const uint32_t half = 1u << (shift - 1);
      const uint32_t rest = mantissa & ((1u << shift) - 1);
      result = mantissa >> shift;
      if (rest > half || (rest == half && (result & 1u) != 0)) ++result;
    }
  }
  return sign | result;
}

}  // namespace internal

inline float f16_to_float(uint16_t bits) { return internal::widen_float<5, 10, true>(bits); }
inline uint16_t float_to_f16(float value) {
  return static_cast<uint16_t>(
      internal::narrow_float<5, 10, true>(value, internal::Overflow::kInfinity));
}

inline float f8e4m3fn_to_float(uint8_t bits) { return internal::widen_float<4, 3, false>(bits); }
/// torch's rule: everything beyond 448, infinity included, becomes 448; NaN stays NaN.
inline uint8_t float_to_f8e4m3fn(float value) {
  return static_cast<uint8_t>(
      internal::narrow_float<4, 3, false>(value, internal::Overflow::kSaturate));
}
/// StableHLO's rule: what would round beyond 448 (and infinity) becomes NaN.
inline uint8_t float_to_f8e4m3fn_overflow_to_nan(float value) {
  return static_cast<uint8_t>(internal::narrow_float<4, 3, false>(value, internal::Overflow::kNan));
}

inline float f8e4m3_to_float(uint8_t bits) { return internal::widen_float<4, 3, true>(bits); }
inline uint8_t float_to_f8e4m3(float value) {
  return static_cast<uint8_t>(
      internal::narrow_float<4, 3, true>(value, internal::Overflow::kInfinity));
}

inline float f8e5m2_to_float(uint8_t bits) { return internal::widen_float<5, 2, true>(bits); }
inline uint8_t float_to_f8e5m2(float value) {
  return static_cast<uint8_t>(
      internal::narrow_float<5, 2, true>(value, internal::Overflow::kInfinity));
}

/// Truncation to an integer as x86 does it: out of range (and NaN) gives the smallest integer.
inline int32_t truncate_to_i32(double value) {
  return value > -2147483649.0 && value < 2147483648.0 ? static_cast<int32_t>(value)
                                                       : std::numeric_limits<int32_t>::min();
}
inline int64_t truncate_to_i64(double value) {
  return value >= -9223372036854775808.0 && value < 9223372036854775808.0
             ? static_cast<int64_t>(value)
             : std::numeric_limits<int64_t>::min();
}
inline uint64_t truncate_to_u64(double value) {
  if (value < 9223372036854775808.0) return static_cast<uint64_t>(truncate_to_i64(value));
  return static_cast<uint64_t>(truncate_to_i64(value - 9223372036854775808.0)) ^ (1ull << 63);
}

}  // namespace neuron
