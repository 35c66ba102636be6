#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

// Times of what a device ran, off unless a profiler asks for them.
namespace neuron::runtime {

struct LaunchRecord {
  enum class Kind : uint8_t { Program, CopyToDevice, CopyToHost, CopyOnDevice };
  const char* op;  // Lives forever.
  Kind kind;
  int device;
  int64_t stream;
  int64_t begin, end;    // Nanoseconds since 1970.
  uint64_t bytes;        // Of a copy.
  uint64_t correlation;  // set_launch_correlation() of the thread that enqueued it.
};

void start_launch_trace();
/// What ran since the start, in order of completion. Wait for the devices first.
std::vector<LaunchRecord> stop_launch_trace();

/// Read before note_launch().
inline std::atomic<bool> tracing_launches{false};
void note_launch(const LaunchRecord& record) noexcept;

/// What the calling thread is doing, as the profiler numbers it; goes into its launches' records.
void set_launch_correlation(uint64_t correlation) noexcept;
uint64_t launch_correlation() noexcept;

inline int64_t trace_clock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace neuron::runtime
