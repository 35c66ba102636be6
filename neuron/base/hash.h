#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace neuron {

/// A 128-bit structural hash; equal inputs give equal values on every machine and in every run.
struct Hash128 {
  uint64_t low = 0;
  uint64_t high = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
  friend auto operator<=>(const Hash128&, const Hash128&) = default;
};

struct Hash128Hasher {
  size_t operator()(const Hash128& h) const { return static_cast<size_t>(h.low); }
};

inline uint64_t mix64(uint64_t a, uint64_t b) {
  const __uint128_t product = static_cast<__uint128_t>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

/// Streaming 128-bit hash (two independent multiply-fold lanes). Not cryptographic.
class Hasher {
 public:
  void add(uint64_t word) {
    low_ = mix64(low_ ^ word, 0x9E3779B97F4A7C15ull);
    high_ = mix64(high_ + word, 0xD6E8FEB86659FD93ull ^ low_);
  }
  void add_bytes(const void* data, size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    add(size);
    while (size >= 8) {
      uint64_t word;
      std::memcpy(&word, bytes, 8);
      add(word);
      bytes += 8;
      size -= 8;
    }
    if (size > 0) {
      uint64_t word = 0;
      std::memcpy(&word, bytes, size);
      add(word);
    }
  }
  template <typename T>
  void add_span(std::span<const T> items) {
    add_bytes(items.data(), items.size_bytes());
  }
  Hash128 finish() const { return {mix64(low_, 0xA0761D6478BD642Full), mix64(high_, low_ | 1)}; }

 private:
  uint64_t low_ = 0x243F6A8885A308D3ull;
  uint64_t high_ = 0x13198A2E03707344ull;
};

}  // namespace neuron
