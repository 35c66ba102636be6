#include "neuron/runtime/launch_trace.h"

#include <mutex>
#include <utility>

namespace neuron::runtime {
namespace {

constexpr size_t kMaxRecords = 4 << 20;

struct Trace {
  std::mutex mutex;
  std::vector<LaunchRecord> records;
};
Trace& trace() {
  static Trace* const instance = new Trace;  // Leaked: work may end after main().
  return *instance;
}

thread_local uint64_t t_correlation = 0;

}  // namespace

void start_launch_trace() {
  const std::lock_guard lock(trace().mutex);
  trace().records.clear();
  tracing_launches.store(true);
}

std::vector<LaunchRecord> stop_launch_trace() {
  const std::lock_guard lock(trace().mutex);
  tracing_launches.store(false);
  return std::exchange(trace().records, {});
}

void note_launch(const LaunchRecord& record) noexcept {
  const std::lock_guard lock(trace().mutex);
  if (!tracing_launches.load(std::memory_order_relaxed)) return;
  try {
    if (trace().records.size() < kMaxRecords) trace().records.push_back(record);
  } catch (...) {  // Out of memory: the trace ends here.
  }
}

void set_launch_correlation(uint64_t correlation) noexcept { t_correlation = correlation; }
uint64_t launch_correlation() noexcept { return t_correlation; }

}  // namespace neuron::runtime
