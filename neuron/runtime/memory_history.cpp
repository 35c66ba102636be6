#include "neuron/runtime/memory_history.h"

#include <chrono>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "neuron/runtime/stream.h"

namespace neuron::runtime {
namespace {

struct DeviceHistory {
  std::deque<MemoryEvent> events;
  std::unordered_map<uint64_t, std::shared_ptr<void>> live;  // Context by address.
};

// Thread-safe; leaked.
struct History {
  std::mutex mutex;
  size_t limit = 0;
  ContextRecorder recorder = nullptr;
  std::unordered_map<int, DeviceHistory> devices;
};
History& history() {
  static History* const instance = new History;
  return *instance;
}

}  // namespace

void record_memory_history(size_t max_entries, ContextRecorder recorder) {
  std::unordered_map<int, DeviceHistory> old;  // Contexts are released without the lock.
  History& all = history();
  const std::lock_guard lock(all.mutex);
  all.limit = max_entries;
  all.recorder = recorder;
  if (max_entries == 0) std::swap(old, all.devices);
  recording_memory.store(max_entries > 0);
}

std::vector<MemoryEvent> memory_history(int device) {
  History& all = history();
  const std::lock_guard lock(all.mutex);
  const auto found = all.devices.find(device);
  if (found == all.devices.end()) return {};
  return {found->second.events.begin(), found->second.events.end()};
}

std::shared_ptr<void> context_of(int device, uint64_t address) {
  History& all = history();
  const std::lock_guard lock(all.mutex);
  const auto found = all.devices.find(device);
  if (found == all.devices.end()) return nullptr;
  const auto context = found->second.live.find(address);
  return context == found->second.live.end() ? nullptr : context->second;
}

void note_memory_event(int device, MemoryEvent::Kind kind, const void* address, size_t size,
                       int64_t stream) noexcept {
  using Kind = MemoryEvent::Kind;
  try {
    History& all = history();
    std::shared_ptr<void> context;
    if (kind == Kind::Alloc || kind == Kind::SegmentAlloc || kind == Kind::OutOfMemory) {
      ContextRecorder recorder;
      {
        const std::lock_guard lock(all.mutex);
        recorder = all.recorder;
      }
      if (recorder != nullptr) context = recorder();  // May take the GIL.
    }
    const int64_t now = std::chrono::duration_cast<std::chrono::microseconds>(
                            std::chrono::system_clock::now().time_since_epoch())
                            .count();
    const auto where = reinterpret_cast<uint64_t>(address);
    MemoryEvent dropped{};  // Released without the lock.
    std::shared_ptr<void> old;
    const std::lock_guard lock(all.mutex);
    if (all.limit == 0) return;
    DeviceHistory& mine = all.devices[device];
    if (kind == Kind::Alloc) {
      mine.live[where] = context;
    } else if (kind == Kind::FreeRequested) {
      const auto found = mine.live.find(where);
      if (found != mine.live.end()) {
        old = std::move(found->second);
        mine.live.erase(found);
      }
    }
    mine.events.push_back({kind, where, size, stream, now, std::move(context)});
    if (mine.events.size() > all.limit) {
      dropped = std::move(mine.events.front());
      mine.events.pop_front();
    }
  } catch (...) {  // A history that lacks an event is better than a failed allocation.
  }
}

}  // namespace neuron::runtime
