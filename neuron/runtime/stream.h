#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "neuron/base/error.h"
#include "neuron/runtime/capture.h"

namespace neuron::runtime {

inline constexpr int kMaxDevices = 128;
/// Streams of a device: 0 is the default one, 1-31 the pool, 32-63 the pool of high priority.
inline constexpr int kStreams = 64;
inline constexpr int kFirstHighPriority = 32;

/// The first failure of a stream that nobody has seen yet.
struct DeferredError {
  ErrorKind kind;
  std::string message;
};

/// One ordered queue of a device. Thread-safe.
///
/// While `error` is set the stream is poisoned: work is skipped until a synchronising call has
/// raised it.
struct StreamState {
  std::atomic<DeferredError*> error{nullptr};  // Owned.
  std::atomic<uint64_t> last_submitted{0};     // Sequence number of its youngest task.
  std::atomic<Capture*> capture{nullptr};      // Records the work instead of running it, if set.

  bool is_captured() const { return capture.load(std::memory_order_relaxed) != nullptr; }
  bool is_poisoned() const { return error.load(std::memory_order_acquire) != nullptr; }
};

/// Checks both numbers; throws Error(kInvalid).
StreamState& stream_state(int device, int64_t stream);
/// For numbers that have been checked.
StreamState& stream_state_unchecked(int device, int64_t stream) noexcept;

/// Stores the error unless an older one waits.
void store_error(StreamState& state, ErrorKind kind, std::string message) noexcept;
/// The same for the exception in flight; call it in a catch block. `op` goes in front of the text.
void store_current_exception(StreamState& state, const char* op) noexcept;
/// Throws the stored error, if any, and clears it.
void raise_deferred(StreamState& state);

/// NEURON_LAUNCH_BLOCKING=1: every launch waits and raises its own error.
bool is_blocking() noexcept;
/// Overrides the environment.
void set_blocking(bool blocking);

}  // namespace neuron::runtime
