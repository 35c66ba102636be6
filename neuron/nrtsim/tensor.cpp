#include "neuron/nrtsim/tensor.h"

#include <cstring>

#include "neuron/base/thread_pool.h"
#include "neuron/nrtsim/error.h"

namespace neuron::nrtsim {

Storage::~Storage() {
  if (data != nullptr) unmap_memory(data, bytes);
  if (core != nullptr) core->bank->release(bytes);
}

std::shared_ptr<Storage> allocate_storage(const std::shared_ptr<Core>& core, size_t bytes,
                                          int& status) {
  const size_t size = rounded_size(bytes);
  if (core != nullptr && !core->bank->charge(size) &&
      !(core->trim_arenas() && core->bank->charge(size))) {
    const Bank& bank = *core->bank;
    status = fail(NRT_RESOURCE, Bytes(bytes), " of HBM do not fit on core ", core->index, ": ",
                  Bytes(bank.used()), " of ", Bytes(bank.limit()), " are in use");
    return nullptr;
  }
  void* data = map_memory(size);
  if (data == nullptr) {
    if (core != nullptr) core->bank->release(size);
    status = fail(NRT_RESOURCE, "the host has no memory for ", Bytes(bytes));
    return nullptr;
  }
  auto storage = std::make_shared<Storage>();
  storage->data = static_cast<std::byte*>(data);
  storage->bytes = size;
  storage->core = core;
  return storage;
}

nrt_tensor* TensorSet::find(std::string_view name) const {
  for (const Entry& entry : entries) {
    if (entry.name == name) return entry.tensor;
  }
  return nullptr;
}

int check_range(const nrt_tensor* tensor, uint64_t offset, uint64_t bytes, const char* what) {
  if (offset > tensor->size || bytes > tensor->size - offset) {
    return fail(NRT_INVALID, what, ": bytes ", offset, " to ", offset + bytes, " of a tensor of ",
                tensor->size);
  }
  if (tensor->data == nullptr && bytes > 0) {
    return fail(NRT_INVALID, what, ": the tensor has no memory; attach a buffer first");
  }
  return NRT_SUCCESS;
}

void copy_bytes(void* destination, const void* source, size_t bytes) {
  // One core moves about 10 GB/s, so 1 MiB takes 100 us: worth a second thread.
  constexpr int64_t kGrain = 512 << 10;
  if (bytes < 2 * kGrain) {
    std::memmove(destination, source, bytes);
    return;
  }
  auto* to = static_cast<std::byte*>(destination);
  const auto* from = static_cast<const std::byte*>(source);
  if (to < from + bytes && from < to + bytes) {
    std::memmove(destination, source, bytes);
    return;
  }
  ThreadPool::instance().parallel_for(
      static_cast<int64_t>(bytes), kGrain, [&](int64_t begin, int64_t end) {
        std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
      });
}

}  // namespace neuron::nrtsim
