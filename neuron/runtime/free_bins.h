#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "neuron/runtime/block.h"

namespace neuron::runtime {

/// Doubly linked lists of free blocks, one per size class, with a bitmap of the non-empty ones.
/// Not thread-safe; owns nothing.
template <int kBins>
class FreeBins {
 public:
  void insert(int bin, Block* block) {
    Block* head = heads_[bin];
    block->bin_previous = nullptr;
    block->bin_next = head;
    if (head != nullptr) {
      head->bin_previous = block;
    } else {
      words_[bin >> 6] |= uint64_t{1} << (bin & 63);
    }
    heads_[bin] = block;
  }

  void remove(int bin, Block* block) {
    if (block->bin_next != nullptr) block->bin_next->bin_previous = block->bin_previous;
    if (block->bin_previous != nullptr) {
      block->bin_previous->bin_next = block->bin_next;
    } else {
      heads_[bin] = block->bin_next;
      if (heads_[bin] == nullptr) words_[bin >> 6] &= ~(uint64_t{1} << (bin & 63));
    }
  }

  Block* head(int bin) const { return heads_[bin]; }

  /// First non-empty bin at or after `bin`, or -1.
  int first_from(int bin) const {
    if (bin >= kBins) return -1;
    int word = bin >> 6;
    uint64_t bits = words_[word] & (~uint64_t{0} << (bin & 63));
    while (bits == 0) {
      if (++word == kWords) return -1;
      bits = words_[word];
    }
    return word * 64 + std::countr_zero(bits);
  }

 private:
  static constexpr int kWords = (kBins + 63) / 64;
  Block* heads_[kBins] = {};
  uint64_t words_[kWords] = {};
};

}  // namespace neuron::runtime
