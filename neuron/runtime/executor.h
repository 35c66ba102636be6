#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "neuron/base/small_vector.h"
#include "neuron/runtime/runtime.h"
#include "neuron/runtime/stream.h"

namespace neuron::runtime {

// The two ways of running work: on the calling thread, or on one executor thread that serves all
// streams of all devices in submission order. That order makes waiting for another stream's event
// free: whatever an event marks was submitted, hence runs, before.

/// One piece of queued work: a launch if `program` is set, else `work`.
struct Task {
  StreamState* state = nullptr;
  const char* op = nullptr;
  std::function<void()> work;
  ProgramRef program;
  SmallVector<Buffer, 16> buffers;  // Parameters, then results.
  size_t parameter_count = 0;
  SmallVector<ScalarSlot, 8> scalars;
  SmallVector<Block*, 4> blocks;  // One reference each.
  int64_t stream = 0;             // For profilers, like the correlation.
  uint64_t correlation = 0;       // Of the thread that enqueued it, for profilers.
  bool even_if_poisoned = false;  // Marks (events) run on a poisoned stream, too.
};

/// Sequence number of the youngest completed task; tasks complete in order.
uint64_t completed_sequence() noexcept;
/// Youngest submitted task of all streams.
uint64_t submitted_sequence() noexcept;
/// Returns when the task has completed. On the executor thread it returns at once.
void wait_for_sequence(uint64_t sequence) noexcept;
/// Waits for everything that was submitted so far; raises nothing.
void drain() noexcept;

/// Work runs on this thread: inline mode, or this is the executor thread.
bool runs_here() noexcept;

/// Queues a task for the executor thread and returns its sequence number. Only if !runs_here().
/// An exception of the work becomes the stream's deferred error.
uint64_t submit(Task task);

/// Ends the executor thread after the queue has run dry; nothing new is accepted.
void stop_executor() noexcept;
bool is_shut_down() noexcept;
/// Throws Error(kDevice) after shutdown() or in a forked child.
void check_accepting();

/// For tests: switches between the two modes after draining.
void set_inline_for_testing(bool inline_mode);

}  // namespace neuron::runtime
