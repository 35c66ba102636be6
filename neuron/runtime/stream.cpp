#include "neuron/runtime/stream.h"

#include <exception>
#include <memory>
#include <utility>

#include "neuron/base/env.h"
#include "neuron/runtime/capture_record.h"
#include "neuron/runtime/device.h"
#include "neuron/runtime/executor.h"
#include "neuron/runtime/runtime.h"

namespace neuron::runtime {
namespace {

// Constant-initialised and without destructors: usable before main and after exit.
StreamState g_streams[kMaxDevices][kStreams];
std::atomic<uint32_t> g_next_stream[kMaxDevices][2];

enum Blocking : int { kUndecided, kNo, kYes };
std::atomic<int> g_blocking{kUndecided};

int decide_blocking() noexcept {
  int blocking = kNo;
  try {
    blocking = env::launch_blocking() ? kYes : kNo;
  } catch (...) {
  }
  g_blocking.store(blocking);
  return blocking;
}

void check_device(int device) {
  NEURON_CHECK(device >= 0 && device < kMaxDevices, kInvalid, "no device neuron:", device, "; ",
               device_count(), " are visible");
}

}  // namespace

StreamState& stream_state(int device, int64_t stream) {
  check_device(device);
  NEURON_CHECK(stream >= 0 && stream < kStreams, kInvalid, "neuron:", device, ": no stream ",
               stream, "; ids go from 0 to ", kStreams - 1);
  return g_streams[device][stream];
}

StreamState& stream_state_unchecked(int device, int64_t stream) noexcept {
  return g_streams[device][stream];
}

void store_error(StreamState& state, ErrorKind kind, std::string message) noexcept {
  auto error = std::make_unique<DeferredError>(DeferredError{kind, std::move(message)});
  DeferredError* none = nullptr;
  if (state.error.compare_exchange_strong(none, error.get(), std::memory_order_acq_rel)) {
    error.release();
  }
}

void store_current_exception(StreamState& state, const char* op) noexcept {
  const std::string prefix = op == nullptr ? "" : std::string(op) + ": ";
  const auto worded = [&](const std::exception& error) {
    const std::string text = error.what();
    return text.starts_with(prefix) ? text : prefix + text;
  };
  try {
    throw;
  } catch (const Error& error) {
    store_error(state, error.kind(), worded(error));
  } catch (const std::bad_alloc&) {
    store_error(state, ErrorKind::kOutOfMemory, prefix + "out of host memory");
  } catch (const std::exception& error) {
    store_error(state, ErrorKind::kDevice, worded(error));
  } catch (...) {
    store_error(state, ErrorKind::kInternal, prefix + "unknown exception");
  }
}

void raise_deferred(StreamState& state) {
  if (!state.is_poisoned()) [[likely]] {
    return;
  }
  const std::unique_ptr<DeferredError> error(
      state.error.exchange(nullptr, std::memory_order_acq_rel));
  if (error != nullptr) throw Error(error->kind, error->message);
}

bool is_blocking() noexcept {
  int blocking = g_blocking.load(std::memory_order_relaxed);
  if (blocking == kUndecided) [[unlikely]] {
    blocking = decide_blocking();
  }
  return blocking == kYes;
}

void set_blocking(bool blocking) { g_blocking.store(blocking ? kYes : kNo); }

int64_t pooled_stream(int device, bool high_priority) {
  check_device(device);
  const uint32_t count = g_next_stream[device][high_priority].fetch_add(1);
  if (high_priority) return kFirstHighPriority + count % (kStreams - kFirstHighPriority);
  return 1 + count % (kFirstHighPriority - 1);
}

int64_t new_stream(int device, int priority) { return pooled_stream(device, priority < 0); }

bool query_stream(int device, int64_t stream) {
  StreamState& state = stream_state(device, stream);
  if (state.is_captured()) refuse_while_capturing(state, "querying a stream");
  return state.last_submitted.load(std::memory_order_acquire) <= completed_sequence();
}

void synchronize_stream(int device, int64_t stream) {
  StreamState& state = stream_state(device, stream);
  if (state.is_captured()) refuse_while_capturing(state, "synchronizing a stream");
  wait_for_sequence(state.last_submitted.load(std::memory_order_acquire));
  raise_deferred(state);
}

void raise_if_run(int device, int64_t stream) {
  if (is_inline()) raise_deferred(stream_state(device, stream));
}

void synchronize_device(int device) {
  check_device(device);
  for (StreamState& state : g_streams[device]) {
    if (state.is_captured()) refuse_while_capturing(state, "synchronizing a device");
  }
  for (int64_t stream = 0; stream < kStreams; ++stream) {
    wait_for_sequence(g_streams[device][stream].last_submitted.load(std::memory_order_acquire));
  }
  for (int64_t stream = 0; stream < kStreams; ++stream) raise_deferred(g_streams[device][stream]);
}

void enqueue(int device, int64_t stream, std::function<void()> work, std::span<Block* const> blocks,
             const char* op) {
  check_accepting();
  StreamState& state = stream_state(device, stream);
  if (state.is_captured()) [[unlikely]] {
    return record_work(state, std::move(work), blocks, op);
  }
  if (runs_here()) {
    if (!state.is_poisoned()) {
      try {
        work();
      } catch (...) {
        if (is_blocking()) throw;
        store_current_exception(state, op);
      }
    }
  } else {
    Task task;
    task.state = &state;
    task.op = op;
    task.work = std::move(work);
    for (Block* block : blocks) {
      if (block == nullptr) continue;
      retain(block);
      task.blocks.push_back(block);
    }
    submit(std::move(task));
  }
  if (is_blocking()) synchronize_stream(device, stream);
}

}  // namespace neuron::runtime
