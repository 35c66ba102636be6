#include <atomic>
#include <chrono>

#include "neuron/base/error.h"
#include "neuron/runtime/executor.h"
#include "neuron/runtime/runtime.h"
#include "neuron/runtime/spin_lock.h"
#include "neuron/runtime/stream.h"

namespace neuron::runtime {
namespace {

int64_t now_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

/// A point of a stream: the sequence number of the task after which it lies. Reference counted,
/// because a queued time stamp may outlive destroy_event(). Thread-safe.
class Event {
 public:
  explicit Event(bool timing) : timing(timing) {}

  const bool timing;
  std::atomic<int> references{1};
  // Guards the rest.
  SpinLock lock;
  StreamState* state = nullptr;  // Null: never recorded.
  uint64_t sequence = 0;
  uint64_t generation = 0;  // Counts recordings: a stale stamp must not count for a newer one.
  int64_t nanoseconds = 0;  // 0: not stamped yet.
};

namespace {

using Guard = std::lock_guard<SpinLock>;

void drop(Event* event) noexcept {
  if (event->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete event;
}

}  // namespace

Event* create_event(bool timing) { return new Event(timing); }

void destroy_event(Event* event) noexcept {
  if (event != nullptr) drop(event);
}

void record_event(Event* event, int device, int64_t stream) {
  StreamState& state = stream_state(device, stream);
  uint64_t generation;
  {
    Guard guard(event->lock);
    generation = ++event->generation;
    event->state = &state;
    event->sequence = state.last_submitted.load(std::memory_order_acquire);
    event->nanoseconds = 0;
    if (event->timing && (runs_here() || is_shut_down() || in_bad_fork())) {
      event->nanoseconds = now_nanoseconds();
      return;
    }
  }
  if (!event->timing) return;
  event->references.fetch_add(1, std::memory_order_relaxed);
  Task task;
  task.state = &state;
  task.op = "event";
  task.even_if_poisoned = true;
  task.work = [event, generation] {
    {
      Guard guard(event->lock);
      if (event->generation == generation) event->nanoseconds = now_nanoseconds();
    }
    drop(event);
  };
  const uint64_t sequence = submit(std::move(task));
  Guard guard(event->lock);
  if (event->generation == generation) event->sequence = sequence;
}

// All streams run in submission order (executor.h), and the event's work was submitted before.
void stream_wait_event(int device, int64_t stream, Event*) { stream_state(device, stream); }

bool query_event(Event* event) {
  Guard guard(event->lock);
  return event->sequence <= completed_sequence();
}

void synchronize_event(Event* event) {
  uint64_t sequence;
  StreamState* state;
  {
    Guard guard(event->lock);
    sequence = event->sequence;
    state = event->state;
  }
  wait_for_sequence(sequence);
  if (state != nullptr) raise_deferred(*state);
}

double elapsed_ms(Event* start, Event* end) {
  NEURON_CHECK(start->timing && end->timing, kInvalid,
               "both events must be created with enable_timing=True to measure elapsed time");
  int64_t nanoseconds[2];
  Event* const events[2] = {start, end};
  for (int i = 0; i < 2; ++i) {
    Guard guard(events[i]->lock);
    NEURON_CHECK(events[i]->state != nullptr, kInvalid,
                 "both events must be recorded before calculating elapsed time");
    NEURON_CHECK(events[i]->sequence <= completed_sequence() && events[i]->nanoseconds != 0,
                 kInvalid, "both events must be completed before calculating elapsed time");
    nanoseconds[i] = events[i]->nanoseconds;
  }
  return static_cast<double>(nanoseconds[1] - nanoseconds[0]) * 1e-6;
}

}  // namespace neuron::runtime
