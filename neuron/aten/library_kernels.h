#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>

#include "neuron/nrtsim/library.h"

// Kernels of libtorch that the simulator calls by name (matrix products, convolutions, sorting...).
namespace neuron::aten {

/// Hands every kernel to the NRT library, if that is the simulator. Does not open the runtime.
void install_library_kernels();

namespace library {

void register_kernel(const char* name, const nrtsim_lib_kernel_t& kernel);
void register_dot();
void register_convolution();
void register_attention();
void register_aten();

/// A view of a step's operand or result.
at::Tensor tensor_of(const nrtsim_lib_tensor_t& description, void* data);
at::Tensor tensor_of(const nrtsim_lib_tensor_t& description, void* data, at::IntArrayRef sizes);

/// While it lives, this thread's library calls use one thread and record no gradients: pieces are
/// spread by the simulator's own pool.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int openmp_ = 0;
  int mkl_ = 0;
  struct Guards;
  alignas(8) std::byte guards_[64];
};

/// One running step.
struct Run {
  const nrtsim_lib_call_t* call;
  void* const* inputs;
  void* const* outputs;
  const nrtsim_lib_context_t* context;

  at::Tensor input(size_t i) const { return tensor_of(call->inputs[i], inputs[i]); }
  at::Tensor output(size_t i) const { return tensor_of(call->outputs[i], outputs[i]); }

  /// body(begin, end) over pieces of [0, count) of at least `grain`, each on one thread. An
  /// exception of a piece is rethrown here.
  template <typename Body>
  void parallel_for(int64_t count, int64_t grain, Body&& body) const;
};

template <typename Body>
void Run::parallel_for(int64_t count, int64_t grain, Body&& body) const {
  if (count <= 0) return;
  if (count <= grain) {
    body(int64_t{0}, count);
    return;
  }
  struct Shared {
    Body& body;
    std::exception_ptr failed;
  } shared{body, nullptr};
  context->parallel_for(
      [](void* user, int64_t begin, int64_t end) {
        auto* shared = static_cast<Shared*>(user);
        try {
          const OneThread one_thread;
          shared->body(begin, end);
        } catch (...) {
          shared->failed = std::current_exception();
        }
      },
      &shared, count, grain);
  if (shared.failed) std::rethrow_exception(shared.failed);
}

/// Wraps body(state, run): exceptions become a message and NRT_FAILURE.
template <auto kBody>
int run_kernel(void* state, const nrtsim_lib_call_t* call, void* const* inputs,
               void* const* outputs, const nrtsim_lib_context_t* context, char* message,
               size_t message_bytes) {
  try {
    const OneThread one_thread;
    kBody(state, Run{call, inputs, outputs, context});
    return 0;
  } catch (const std::exception& error) {
    std::snprintf(message, message_bytes, "%s", error.what());
    return 1;
  }
}

}  // namespace library
}  // namespace neuron::aten
