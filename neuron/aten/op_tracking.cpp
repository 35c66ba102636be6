#include "neuron/aten/op_tracking.h"

#include <memory>
#include <mutex>
#include <unordered_map>

#include "neuron/aten/dispatch.h"

namespace neuron::aten {
namespace {

struct Counters {
  std::mutex mutex;
  std::unordered_map<std::string, std::unique_ptr<OpCounter>> by_name;
};

Counters& counters() {
  static auto* all = new Counters();
  return *all;
}

}  // namespace

OpCounter& counter_of(const std::string& name) {
  Counters& all = counters();
  const std::lock_guard lock(all.mutex);
  std::unique_ptr<OpCounter>& counter = all.by_name[name];
  if (counter == nullptr) {
    counter = std::make_unique<OpCounter>();
    counter->name = name;
  }
  return *counter;
}

OpCounts op_counts() {
  Counters& all = counters();
  const std::lock_guard lock(all.mutex);
  OpCounts counts;
  for (const auto& [name, counter] : all.by_name) {
    if (const int64_t calls = counter->native.load(std::memory_order_relaxed)) {
      counts.native[name] = calls;
    }
    if (const int64_t calls = counter->fallback.load(std::memory_order_relaxed)) {
      counts.fallback[name] = calls;
    }
  }
  return counts;
}

void reset_op_counts() {
  Counters& all = counters();
  const std::lock_guard lock(all.mutex);
  for (const auto& [name, counter] : all.by_name) {
    counter->native.store(0, std::memory_order_relaxed);
    counter->fallback.store(0, std::memory_order_relaxed);
  }
}

void count_native(const char* name) {
  counter_of(name).native.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace neuron::aten
