#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "neuron/nrt/nrt.h"

// Move-only owners of NRT handles. A factory returns a live handle or throws an Error that says
// what was attempted. All need an open Instance while they are used; destroying one after
// nrt_close is harmless.
namespace neuron::nrt {

/// The opened runtime: nrt_init at construction, nrt_close at destruction.
/// One per process at a time. Thread-safe.
class Instance {
 public:
  Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;
  ~Instance();
};

/// Logical cores that this process may use / of the whole machine. No Instance needed.
/// Throw Error(kIo, kDevice).
int visible_core_count();
int total_core_count();
struct InstanceInfo {
  uint32_t family = 0;
  std::string arch_name;  // "NCv3", ...
};
InstanceInfo instance_info();
/// "2.34.10.0 detail".
std::string version();

struct MemoryStats {
  size_t bytes_used = 0;
  size_t bytes_limit = 0;
};
/// HBM of one logical core; zeros if the library cannot tell.
MemoryStats memory_stats(int core);

/// A tensor: device or host memory that the runtime allocated, a slice of one, or a handle that is
/// pointed at memory of the caller. Thread-compatible.
class Tensor {
 public:
  static Tensor allocate(int core, size_t bytes, const char* name = "");
  static Tensor allocate_host(size_t bytes, const char* name = "");
  /// No memory yet: attach some before use.
  static Tensor empty(const char* name = "");
  /// Shares memory with this tensor and keeps it alive.
  Tensor slice(size_t offset, size_t bytes, const char* name = "") const;

  Tensor() = default;
  Tensor(Tensor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Tensor();

  nrt_tensor_t* get() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }
  size_t size() const;
  void* address() const;

  /// Points the tensor at memory that the caller keeps alive.
  void attach(void* buffer, size_t bytes);
  void read(void* buffer, size_t offset, size_t bytes) const;
  void write(const void* buffer, size_t offset, size_t bytes);
  void copy_from(const Tensor& source, size_t source_offset, size_t offset, size_t bytes);
  void fill(size_t offset, int value, size_t bytes);

 private:
  explicit Tensor(nrt_tensor_t* handle) : handle_(handle) {}
  nrt_tensor_t* handle_ = nullptr;  // Owned.
};

/// Named tensors of one execution. Borrows the tensors, which must outlive it. Thread-compatible.
class TensorSet {
 public:
  TensorSet();
  TensorSet(TensorSet&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  TensorSet& operator=(TensorSet&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~TensorSet();

  /// Adds or replaces.
  void add(const char* name, const Tensor& tensor);
  nrt_tensor_set_t* get() const { return handle_; }

 private:
  nrt_tensor_set_t* handle_ = nullptr;  // Owned; null only after a move.
};

/// A NEFF loaded on one logical core; unloaded by the destructor. execute() is thread-safe as long
/// as every thread uses its own sets.
class LoadedModel {
 public:
  static LoadedModel load(std::span<const std::byte> neff, int core);
  /// A program with collectives; this process is device `id` of the job's `count`.
  static LoadedModel load_collectives(std::span<const std::byte> neff, int core, int id, int count);
  LoadedModel() = default;
  LoadedModel(LoadedModel&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  LoadedModel& operator=(LoadedModel&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~LoadedModel();

  nrt_model_t* get() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }

  /// Runs to the end. Throws Error: kIndex for an index out of range on the device, kInvalid for
  /// tensors that do not fit, kDevice otherwise.
  void execute(const TensorSet& inputs, const TensorSet& outputs) const;
  /// The same without an exception.
  NRT_STATUS try_execute(const TensorSet& inputs, const TensorSet& outputs) const noexcept;

  struct Port {
    std::string name;
    bool output = false;
    size_t bytes = 0;
    nrt_dtype_t dtype = NRT_DTYPE_UNKNOWN;
    std::vector<uint32_t> shape;
  };
  std::vector<Port> ports() const;

 private:
  explicit LoadedModel(nrt_model_t* handle) : handle_(handle) {}
  nrt_model_t* handle_ = nullptr;  // Owned; null only after a move.
};

}  // namespace neuron::nrt
