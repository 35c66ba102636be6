#include <chrono>
#include <cstring>
#include <thread>

#include "neuron/nrtsim/nrt_entry.h"

// Tensors and tensor sets.

namespace neuron::nrtsim {

using faults::Point;

namespace {

// Both tensors must be on one core, if they are on a core at all.
int check_same_core(const nrt_tensor* a, const nrt_tensor* b) {
  const Core* first = a->storage == nullptr ? nullptr : a->storage->core.get();
  const Core* second = b->storage == nullptr ? nullptr : b->storage->core.get();
  if (first != nullptr && second != nullptr && first != second &&
      first->bank.get() != second->bank.get()) {
    return fail(NRT_INVALID, "copy from core ", first->index, " to core ", second->index,
                ", which do not share HBM");
  }
  return NRT_SUCCESS;
}

}  // namespace

int do_read(const nrt_tensor* tensor, void* buffer, uint64_t offset, uint64_t bytes) {
  if (const int status = faults::check(Point::Read); status != 0) return status;
  if (const int status = check_range(tensor, offset, bytes, "read"); status != 0) return status;
  if (bytes > 0 && buffer == nullptr) return null_argument("buffer");
  copy_bytes(buffer, tensor->data + offset, bytes);
  return NRT_SUCCESS;
}

int do_write(nrt_tensor* tensor, const void* buffer, uint64_t offset, uint64_t bytes) {
  if (const int status = faults::check(Point::Write); status != 0) return status;
  if (const int status = check_range(tensor, offset, bytes, "write"); status != 0) return status;
  if (bytes > 0 && buffer == nullptr) return null_argument("buffer");
  copy_bytes(tensor->data + offset, buffer, bytes);
  return NRT_SUCCESS;
}

int do_copy(const nrt_tensor* source, uint64_t source_offset, nrt_tensor* destination,
            uint64_t destination_offset, uint64_t bytes) {
  if (const int status = faults::check(Point::Copy); status != 0) return status;
  if (const int status = check_range(source, source_offset, bytes, "copy from"); status != 0) {
    return status;
  }
  if (const int status = check_range(destination, destination_offset, bytes, "copy to");
      status != 0) {
    return status;
  }
  if (const int status = check_same_core(source, destination); status != 0) return status;
  copy_bytes(destination->data + destination_offset, source->data + source_offset, bytes);
  return NRT_SUCCESS;
}

namespace {

template <typename Operation>
NRT_STATUS each_batch(const nrt_tensor_batch_t* batches, uint64_t count, Operation operation) {
  if (const int status = check_open(); status != 0) return static_cast<NRT_STATUS>(status);
  if (batches == nullptr && count > 0) return null_argument("batches");
  for (uint64_t i = 0; i < count; ++i) {
    const nrt_tensor* tensor = checked(batches[i].tensor);
    if (tensor == nullptr) return bad_tensor();
    for (uint32_t k = 0; k < batches[i].num_ops; ++k) {
      const int status = operation(const_cast<nrt_tensor*>(tensor), batches[i].ops[k]);
      if (status != 0) return static_cast<NRT_STATUS>(status);
    }
  }
  return NRT_SUCCESS;
}

}  // namespace
}  // namespace neuron::nrtsim

using namespace neuron;          // NOLINT: this file is the C face of these two.
using namespace neuron::nrtsim;  // NOLINT

extern "C" {

// --- Tensors -------------------------------------------------------------------------------------

NRT_EXPORT NRT_STATUS nrt_tensor_allocate(nrt_tensor_placement_t placement, int vnc, size_t bytes,
                                          const char* name, nrt_tensor_t** tensor) {
  if (tensor == nullptr) return null_argument("tensor");
  *tensor = nullptr;
  NRT_RETURN_IF_NOT_OPEN();
  if (bytes == 0) return fail(NRT_INVALID, "a tensor of 0 bytes");
  if (placement != NRT_TENSOR_PLACEMENT_DEVICE && placement != NRT_TENSOR_PLACEMENT_HOST) {
    return fail(NRT_INVALID, "tensor placement ", static_cast<int>(placement),
                ", allowed: 0 (device), 1 (host)");
  }
  return guarded([&]() -> int {
    int status = NRT_FAILURE;
    std::shared_ptr<Core> core;
    if (placement == NRT_TENSOR_PLACEMENT_DEVICE) {
      core = find_core(vnc, status);
      if (core == nullptr) return status;
    }
    if (const int injected = faults::check(Point::Allocate); injected != 0) return injected;
    std::shared_ptr<Storage> storage = allocate_storage(core, bytes, status);
    if (storage == nullptr) return status;
    auto result = std::make_unique<nrt_tensor>();
    result->data = storage->data;
    result->size = bytes;
    result->storage = std::move(storage);
    if (name != nullptr) result->name = name;
    *tensor = result.release();
    return NRT_SUCCESS;
  });
}

NRT_EXPORT NRT_STATUS nrt_tensor_allocate_empty(const char* name, nrt_tensor_t** tensor) {
  if (tensor == nullptr) return null_argument("tensor");
  *tensor = nullptr;
  NRT_RETURN_IF_NOT_OPEN();
  return guarded([&]() -> int {
    auto result = std::make_unique<nrt_tensor>();
    if (name != nullptr) result->name = name;
    *tensor = result.release();
    return NRT_SUCCESS;
  });
}

NRT_EXPORT NRT_STATUS nrt_tensor_attach_buffer(nrt_tensor_t* tensor, void* buffer, size_t bytes) {
  if (checked(tensor) == nullptr) return bad_tensor();
  if (buffer == nullptr && bytes > 0) return null_argument("buffer");
  if (tensor->storage != nullptr) tensor->storage.reset();
  tensor->data = static_cast<std::byte*>(buffer);
  tensor->size = bytes;
  return NRT_SUCCESS;
}

NRT_EXPORT NRT_STATUS nrt_tensor_allocate_slice(const nrt_tensor_t* source, size_t offset,
                                                size_t bytes, const char* name,
                                                nrt_tensor_t** tensor) {
  if (tensor == nullptr) return null_argument("tensor");
  *tensor = nullptr;
  NRT_RETURN_IF_NOT_OPEN();
  if (checked(source) == nullptr) return bad_tensor();
  if (const int status = check_range(source, offset, bytes, "slice"); status != 0) {
    return static_cast<NRT_STATUS>(status);
  }
  return guarded([&]() -> int {
    auto result = std::make_unique<nrt_tensor>();
    result->data = source->data + offset;
    result->size = bytes;
    result->storage = source->storage;
    if (name != nullptr) result->name = name;
    *tensor = result.release();
    return NRT_SUCCESS;
  });
}

NRT_EXPORT void nrt_tensor_free(nrt_tensor_t** tensor) {
  if (tensor == nullptr || *tensor == nullptr) return;
  if (checked(*tensor) != nullptr) {
    (*tensor)->magic = 0;
    delete *tensor;
  }
  *tensor = nullptr;
}

NRT_EXPORT size_t nrt_tensor_get_size(const nrt_tensor_t* tensor) {
  return checked(tensor) == nullptr ? 0 : tensor->size;
}

NRT_EXPORT void* nrt_tensor_get_va(const nrt_tensor_t* tensor) {
  return checked(tensor) == nullptr ? nullptr : tensor->data;
}

NRT_EXPORT NRT_STATUS nrt_tensor_read(const nrt_tensor_t* tensor, void* buffer, size_t offset,
                                      size_t bytes) {
  NRT_RETURN_IF_NOT_OPEN();
  if (checked(tensor) == nullptr) return bad_tensor();
  return static_cast<NRT_STATUS>(do_read(tensor, buffer, offset, bytes));
}

NRT_EXPORT NRT_STATUS nrt_tensor_write(nrt_tensor_t* tensor, const void* buffer, size_t offset,
                                       size_t bytes) {
  NRT_RETURN_IF_NOT_OPEN();
  if (checked(tensor) == nullptr) return bad_tensor();
  return static_cast<NRT_STATUS>(do_write(tensor, buffer, offset, bytes));
}

NRT_EXPORT NRT_STATUS nrt_tensor_copy(const nrt_tensor_t* source, size_t source_offset,
                                      nrt_tensor_t* destination, size_t destination_offset,
                                      size_t bytes) {
  NRT_RETURN_IF_NOT_OPEN();
  if (checked(source) == nullptr || checked(destination) == nullptr) return bad_tensor();
  return static_cast<NRT_STATUS>(
      do_copy(source, source_offset, destination, destination_offset, bytes));
}

NRT_EXPORT NRT_STATUS nrt_tensor_memset(nrt_tensor_t* tensor, uint64_t offset, int value,
                                        size_t bytes) {
  NRT_RETURN_IF_NOT_OPEN();
  if (checked(tensor) == nullptr) return bad_tensor();
  if (const int status = check_range(tensor, offset, bytes, "memset"); status != 0) {
    return static_cast<NRT_STATUS>(status);
  }
  if (bytes > 0) std::memset(tensor->data + offset, value, bytes);
  return NRT_SUCCESS;
}

NRT_EXPORT NRT_STATUS nrt_tensor_read_batch(const nrt_tensor_batch_t* batches, uint64_t count,
                                            bool) {
  return each_batch(batches, count, [](nrt_tensor* tensor, const nrt_tensor_batch_op_t& op) {
    return do_read(tensor, op.buffer, op.offset, op.size);
  });
}

NRT_EXPORT NRT_STATUS nrt_tensor_write_batch(const nrt_tensor_batch_t* batches, uint64_t count,
                                             bool) {
  return each_batch(batches, count, [](nrt_tensor* tensor, const nrt_tensor_batch_op_t& op) {
    return do_write(tensor, op.buffer, op.offset, op.size);
  });
}

NRT_EXPORT NRT_STATUS nrt_tensor_get_device_allocation_info(
    const nrt_tensor_t* tensor, nrt_tensor_device_allocation_info_t* info) {
  if (info == nullptr) return null_argument("info");
  NRT_RETURN_IF_NOT_OPEN();
  if (checked(tensor) == nullptr) return bad_tensor();
  if (tensor->storage == nullptr || tensor->storage->core == nullptr) {
    return fail(NRT_INVALID, "the tensor is not in device memory");
  }
  const Topology topology = current_topology();
  info->physical_address = reinterpret_cast<uint64_t>(tensor->data);
  info->size = tensor->storage->bytes;
  info->hbm_index =
      tensor->storage->core->absolute * topology.lnc / topology.target->cores_per_stack();
  return NRT_SUCCESS;
}

NRT_EXPORT NRT_STATUS nrt_tensor_check_output_completion(const nrt_tensor_t* tensor,
                                                         int64_t timeout_us, uint64_t expected) {
  NRT_RETURN_IF_NOT_OPEN();
  if (checked(tensor) == nullptr) return bad_tensor();
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(timeout_us);
  while (tensor->completions.load(std::memory_order_acquire) < expected) {
    if (timeout_us >= 0 && std::chrono::steady_clock::now() >= end) {
      return fail(NRT_TIMEOUT, tensor->completions.load(), " of ", expected, " completions after ",
                  timeout_us, " us");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return NRT_SUCCESS;
}

NRT_EXPORT NRT_STATUS nrt_tensor_reset_output_completion(nrt_tensor_t* tensor) {
  NRT_RETURN_IF_NOT_OPEN();
  if (checked(tensor) == nullptr) return bad_tensor();
  tensor->completions.store(0, std::memory_order_release);
  return NRT_SUCCESS;
}

NRT_EXPORT NRT_STATUS nrt_get_vnc_memory_stats(uint32_t vnc, nrt_vnc_memory_stats_t* stats,
                                               size_t size, size_t* written) {
  if (stats == nullptr) return null_argument("stats");
  NRT_RETURN_IF_NOT_OPEN();
  return guarded([&]() -> int {
    int status = NRT_FAILURE;
    const std::shared_ptr<Core> core = find_core(vnc, status);
    if (core == nullptr) return status;
    const nrt_vnc_memory_stats_t own{core->bank->used(), core->bank->limit()};
    const size_t bytes = std::min(size, sizeof(own));
    std::memcpy(stats, &own, bytes);
    if (written != nullptr) *written = bytes;
    return NRT_SUCCESS;
  });
}

// --- Tensor sets ---------------------------------------------------------------------------------

NRT_EXPORT NRT_STATUS nrt_allocate_tensor_set(nrt_tensor_set_t** set) {
  if (set == nullptr) return null_argument("set");
  *set = nullptr;
  NRT_RETURN_IF_NOT_OPEN();
  return guarded([&]() -> int {
    *set = new TensorSet;
    return NRT_SUCCESS;
  });
}

NRT_EXPORT void nrt_destroy_tensor_set(nrt_tensor_set_t** set) {
  if (set == nullptr || *set == nullptr) return;
  if (TensorSet* own = checked_set(*set); own != nullptr) {
    own->magic = 0;
    delete own;
  }
  *set = nullptr;
}

NRT_EXPORT NRT_STATUS nrt_add_tensor_to_tensor_set(nrt_tensor_set_t* set, const char* name,
                                                   nrt_tensor_t* tensor) {
  if (name == nullptr) return null_argument("name");
  TensorSet* own = checked_set(set);
  if (own == nullptr) return bad_set();
  if (checked(tensor) == nullptr) return bad_tensor();
  return guarded([&]() -> int {
    own->resolved_for = 0;
    for (TensorSet::Entry& entry : own->entries) {
      if (entry.name == name) {
        entry.tensor = tensor;
        return NRT_SUCCESS;
      }
    }
    own->entries.push_back({name, tensor});
    return NRT_SUCCESS;
  });
}

NRT_EXPORT NRT_STATUS nrt_get_tensor_from_tensor_set(nrt_tensor_set_t* set, const char* name,
                                                     nrt_tensor_t** tensor) {
  if (name == nullptr) return null_argument("name");
  if (tensor == nullptr) return null_argument("tensor");
  TensorSet* own = checked_set(set);
  if (own == nullptr) return bad_set();
  *tensor = own->find(name);
  if (*tensor == nullptr) return fail(NRT_FAILURE, "the set has no tensor ", name);
  return NRT_SUCCESS;
}
}  // extern "C"
