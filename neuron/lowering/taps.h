#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "neuron/lowering/op_call.h"

namespace neuron::lowering {

/// A sparse linear map along one dim, known at compile time: every output position is a weighted
/// sum of a few input positions. Resampling, adaptive pooling, border padding and their gradients
/// (the transposed map) are all of this kind.
class Taps {
 public:
  struct Tap {
    int64_t source;
    double weight;
  };
  Taps(int64_t input_size, int64_t output_size)
      : input_size_(input_size), taps_(static_cast<size_t>(output_size)) {}
  /// Output position i is input position sources[i].
  static Taps pick(int64_t input_size, std::span<const int64_t> sources);

  void add(int64_t output, int64_t source, double weight) {
    taps_[static_cast<size_t>(output)].push_back({source, weight});
  }
  int64_t input_size() const { return input_size_; }
  int64_t output_size() const { return static_cast<int64_t>(taps_.size()); }
  const std::vector<Tap>& of(int64_t output) const { return taps_[static_cast<size_t>(output)]; }
  /// Most taps of any output position.
  size_t width() const;
  /// The map of gradients: from outputs back to inputs.
  Taps transposed() const;

 private:
  int64_t input_size_;
  std::vector<std::vector<Tap>> taps_;
};

/// Applies the map along `dim` in x's dtype (callers widen first). Positions without taps give 0;
/// input positions that no tap names never matter, not even if they are infinite.
Value apply_taps(Builder& b, Value x, int64_t dim, const Taps& taps);

}  // namespace neuron::lowering
