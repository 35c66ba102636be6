#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

// The history of allocations, off unless asked for: what torch's memory viewer shows over time.
namespace neuron::runtime {

struct MemoryEvent {
  enum class Kind : uint8_t {
    Alloc,
    FreeRequested,
    FreeCompleted,
    SegmentAlloc,
    SegmentFree,
    OutOfMemory,
  };
  Kind kind;
  uint64_t address;
  size_t size;
  int64_t stream;
  int64_t microseconds;           // Since 1970.
  std::shared_ptr<void> context;  // From the recorder; null for frees.
};

/// Makes the context of an allocation (a stack trace, say) on the thread that asks for memory.
using ContextRecorder = std::shared_ptr<void> (*)();

/// Keeps the newest `max_entries` events of each device; 0 stops and forgets. `recorder` may be
/// null.
void record_memory_history(size_t max_entries, ContextRecorder recorder);
std::vector<MemoryEvent> memory_history(int device);
/// The context in which the live block at the address was allocated, or null.
std::shared_ptr<void> context_of(int device, uint64_t address);

/// Read before note_memory_event(), which is slow.
inline std::atomic<bool> recording_memory{false};
void note_memory_event(int device, MemoryEvent::Kind kind, const void* address, size_t size,
                       int64_t stream) noexcept;

}  // namespace neuron::runtime
