#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "neuron/base/error.h"

// Checks of arguments before anything is sent. Messages begin with the collective and the rank.
namespace neuron::distributed {

/// Who asks: printed in front of every message.
struct Caller {
  const char* op;
  int rank;
  int size;
  const std::string* group;
};
std::ostream& operator<<(std::ostream& out, const Caller& caller);

/// A dense tensor of the device.
void check_tensor(const Caller& caller, const at::Tensor& tensor, const char* argument);
/// check_tensor for each, and one dtype and one device for all of them.
void check_tensors(const Caller& caller, at::TensorList tensors, const char* argument);
/// Both sides of a collective: one dtype, one device.
void check_same_kind(const Caller& caller, const at::Tensor& a, const char* name_a,
                     const at::Tensor& b, const char* name_b);
/// A tensor that is written: no two elements in one place.
void check_writable(const Caller& caller, const at::Tensor& tensor, const char* argument);
void check_rank(const Caller& caller, int64_t rank, const char* argument);
/// Lists such as outputTensors that hold exactly one entry per process.
void check_single(const Caller& caller, size_t count, const char* argument);
void check_list_length(const Caller& caller, size_t length, const char* argument);

/// The error as torch's exceptions: what went wrong between ranks becomes DistBackendError.
std::exception_ptr as_torch_error(const std::exception_ptr& error);

/// Runs `body`, turning neuron::Error into torch's exceptions.
template <typename Body>
decltype(auto) translating(Body&& body) {
  try {
    return body();
  } catch (const Error&) {
    std::rethrow_exception(as_torch_error(std::current_exception()));
  }
}

}  // namespace neuron::distributed
