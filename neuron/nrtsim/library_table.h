#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "neuron/neff/program.h"
#include "neuron/nrtsim/library.h"

namespace neuron::nrtsim {

/// Adds a kernel; name "prefix*" stands for all names with the prefix. Thread-safe.
void register_kernel(std::string_view name, const nrtsim_lib_kernel_t& kernel);
/// The newest registration that fits, or null. The result stays valid for ever.
const nrtsim_lib_kernel_t* find_library_kernel(std::string_view name);

/// What running kernels may use.
const nrtsim_lib_context_t& library_context();

/// One library step of a loaded program: its kernel, its call and its state. Not movable once
/// prepared, since the kernel keeps pointers into it.
class LibraryCall {
 public:
  /// `step` must outlive the call. Throws Error(kInvalid) if no kernel has the name.
  explicit LibraryCall(const neff::LibraryStep& step);
  LibraryCall(const LibraryCall&) = delete;
  LibraryCall& operator=(const LibraryCall&) = delete;
  ~LibraryCall();

  /// 0 or a status with a message. Thread-safe.
  int run(void* const* inputs, void* const* outputs) const;
  const char* name() const { return call_.name; }
  size_t input_count() const { return inputs_.size(); }

 private:
  const nrtsim_lib_kernel_t* kernel_ = nullptr;
  std::vector<nrtsim_lib_tensor_t> inputs_;
  std::vector<nrtsim_lib_tensor_t> outputs_;
  nrtsim_lib_call_t call_{};
  void* state_ = nullptr;
};

}  // namespace neuron::nrtsim
