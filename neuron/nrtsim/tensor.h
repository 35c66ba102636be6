#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "neuron/nrt/nrt.h"
#include "neuron/nrtsim/instance.h"

namespace neuron::nrtsim {

inline constexpr uint32_t kTensorMagic = 0x4E54454Eu;
inline constexpr uint32_t kSetMagic = 0x4E534554u;
inline constexpr uint32_t kModelMagic = 0x4E4D4F44u;

/// One allocation; slices share it, the last one frees it.
struct Storage {
  std::byte* data = nullptr;
  size_t bytes = 0;            // Mapped and charged.
  std::shared_ptr<Core> core;  // Null: host memory.
  ~Storage();
};

/// Makes a tensor's memory; null with a message and a status otherwise.
std::shared_ptr<Storage> allocate_storage(const std::shared_ptr<Core>& core, size_t bytes,
                                          int& status);

struct TensorSet;

}  // namespace neuron::nrtsim

/// A piece of device or host memory, or of the caller's. Thread-compatible.
struct nrt_tensor {
  uint32_t magic = neuron::nrtsim::kTensorMagic;
  std::byte* data = nullptr;
  size_t size = 0;
  std::shared_ptr<neuron::nrtsim::Storage>
      storage;  // Null: memory attached by the caller, or none.
  std::string name;
  std::atomic<uint64_t> completions{0};  // Executions that have written it.
};

namespace neuron::nrtsim {

/// Named tensors. The tensors that a model found here last are remembered, so that running it again
/// costs no look-up. Thread-safe for execution, thread-compatible for changes.
struct TensorSet {
  uint32_t magic = kSetMagic;
  struct Entry {
    std::string name;
    nrt_tensor* tensor;
  };
  std::vector<Entry> entries;

  nrt_tensor* find(std::string_view name) const;

  // What resolve() found for the model of `resolved_for`; 0: nothing. Guarded by `lock`.
  std::atomic_flag lock = ATOMIC_FLAG_INIT;
  uint64_t resolved_for = 0;
  std::vector<nrt_tensor*> resolved;
};

inline nrt_tensor* checked(nrt_tensor* tensor) {
  return tensor != nullptr && tensor->magic == kTensorMagic ? tensor : nullptr;
}
inline const nrt_tensor* checked(const nrt_tensor* tensor) {
  return checked(const_cast<nrt_tensor*>(tensor));
}
inline TensorSet* checked_set(const nrt_tensor_set_t* set) {
  auto* result = static_cast<TensorSet*>(const_cast<nrt_tensor_set_t*>(set));
  return result != nullptr && result->magic == kSetMagic ? result : nullptr;
}

/// NRT_SUCCESS if [offset, offset + bytes) lies in the tensor and there is memory.
int check_range(const nrt_tensor* tensor, uint64_t offset, uint64_t bytes, const char* what);

/// memcpy over the compute pool if large.
void copy_bytes(void* destination, const void* source, size_t bytes);

}  // namespace neuron::nrtsim
