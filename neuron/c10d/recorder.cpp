#include "neuron/c10d/recorder.h"

#include <chrono>
#include <mutex>

#include "neuron/base/env.h"

namespace neuron::distributed {
namespace {

struct Ring {
  std::mutex mutex;
  std::vector<Record> entries;  // Entry of id at (id - 1) % capacity. Guarded, as the next.
  uint64_t last_id = 0;
};

Ring& ring() {
  static auto* const ring = new Ring;  // Leaked: threads may outlive main().
  return *ring;
}

size_t capacity() { return static_cast<size_t>(env::flight_recorder_size()); }

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::vector<TensorFacts> facts_of(at::TensorList tensors) {
  std::vector<TensorFacts> facts;
  facts.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    facts.push_back({tensor.sizes().vec(), tensor.scalar_type()});
  }
  return facts;
}

}  // namespace

uint64_t record_start(Record record, at::TensorList inputs, at::TensorList outputs) {
  if (capacity() == 0) return 0;
  record.inputs = facts_of(inputs);
  record.outputs = facts_of(outputs);
  record.created_ns = now_ns();
  Ring& all = ring();
  const std::lock_guard lock(all.mutex);
  const uint64_t id = record.id = ++all.last_id;
  const size_t slot = (id - 1) % capacity();
  if (slot < all.entries.size()) {
    all.entries[slot] = std::move(record);
  } else {
    all.entries.push_back(std::move(record));
  }
  return id;
}

void record_end(uint64_t id, std::string error) {
  if (id == 0) return;
  Ring& all = ring();
  const std::lock_guard lock(all.mutex);
  const size_t slot = (id - 1) % capacity();
  if (slot >= all.entries.size() || all.entries[slot].id != id) return;  // Overwritten
  Record& record = all.entries[slot];
  record.ended = true;
  record.error = std::move(error);
  record.completed_ns = now_ns();
}

std::vector<Record> recorded() {
  Ring& all = ring();
  const std::lock_guard lock(all.mutex);
  std::vector<Record> ordered;
  ordered.reserve(all.entries.size());
  const size_t size = all.entries.size();
  const size_t first = size < capacity() || size == 0 ? 0 : all.last_id % capacity();
  for (size_t i = 0; i < size; ++i) ordered.push_back(all.entries[(first + i) % size]);
  return ordered;
}

void clear_records() {
  Ring& all = ring();
  const std::lock_guard lock(all.mutex);
  all.entries.clear();
  all.last_id = 0;
}

}  // namespace neuron::distributed
