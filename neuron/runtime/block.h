#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace neuron::runtime {

class DeviceAllocator;
struct Segment;

/// A piece of a segment: the record behind every device allocation.
///
/// Everything but `references` and `used_streams` belongs to the allocator and is guarded by its
/// lock, or constant while the block is allocated.
class Block {
 public:
  enum class State : uint8_t {
    kFree,       // In a bin.
    kAllocated,  // Somebody holds a reference.
    kPending,    // No reference, but streams that used it have not passed yet.
  };

  std::byte* address = nullptr;
  size_t size = 0;       // Multiple of 512.
  size_t requested = 0;  // What the caller asked for.
  std::atomic<int32_t> references{0};
  State state = State::kFree;
  uint8_t pool = 0;  // 1: small, 2: large, as MemoryStats indexes them.
  uint8_t stream = 0;
  std::atomic<uint64_t> used_streams{0};  // Bit s: also used on stream s.
  Segment* segment = nullptr;
  Block* previous = nullptr;  // Neighbours in the segment, in address order.
  Block* next = nullptr;
  Block* bin_previous = nullptr;
  Block* bin_next = nullptr;

  bool is_split() const { return previous != nullptr || next != nullptr; }
};

}  // namespace neuron::runtime
