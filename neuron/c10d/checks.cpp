#include "neuron/c10d/checks.h"

#include <ATen/MemoryOverlap.h>

#include "neuron/aten/tensor.h"

namespace neuron::distributed {

std::ostream& operator<<(std::ostream& out, const Caller& caller) {
  return out << "neuron " << caller.op << " on rank " << caller.rank << " of group '"
             << *caller.group << "': ";
}

void check_tensor(const Caller& caller, const at::Tensor& tensor, const char* argument) {
  TORCH_CHECK(tensor.defined(), caller, argument, " is undefined");
  TORCH_CHECK(aten::on_device(tensor), caller, argument, ": Expected neuron device, got ",
              tensor.device().type());
  TORCH_CHECK(tensor.layout() == c10::kStrided, caller, argument,
              " must be dense, but its layout is ", tensor.layout(),
              "; sparse tensors are not supported");
}

void check_tensors(const Caller& caller, at::TensorList tensors, const char* argument) {
  for (const at::Tensor& tensor : tensors) {
    check_tensor(caller, tensor, argument);
    check_same_kind(caller, tensors[0], argument, tensor, argument);
  }
}

void check_same_kind(const Caller& caller, const at::Tensor& a, const char* name_a,
                     const at::Tensor& b, const char* name_b) {
  TORCH_CHECK_VALUE(a.scalar_type() == b.scalar_type(), caller,
                    "Invalid usage of tensors with different dtypes: ", name_a, " has ",
                    a.scalar_type(), ", ", name_b, " has ", b.scalar_type());
  TORCH_CHECK(a.device() == b.device(), caller, "tensors on different devices: ", name_a, " is on ",
              a.device(), ", ", name_b, " on ", b.device());
}

void check_writable(const Caller& caller, const at::Tensor& tensor, const char* argument) {
  TORCH_CHECK(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, caller, argument,
              " is written, but several of its elements share one place in memory (sizes ",
              tensor.sizes(), ", strides ", tensor.strides(), "); clone() it first");
}

void check_rank(const Caller& caller, int64_t rank, const char* argument) {
  TORCH_CHECK_VALUE(rank >= 0 && rank < caller.size, caller, "invalid rank: ", argument, " is ",
                    rank, ", but the group has ranks 0 to ", caller.size - 1);
}

void check_single(const Caller& caller, size_t count, const char* argument) {
  TORCH_CHECK_VALUE(count == 1, caller, argument, " must hold exactly one entry, not ", count);
}

void check_list_length(const Caller& caller, size_t length, const char* argument) {
  TORCH_CHECK_VALUE(length == static_cast<size_t>(caller.size), caller, argument, " has ", length,
                    " tensors, but the group has ", caller.size, " ranks");
}

std::exception_ptr as_torch_error(const std::exception_ptr& error) {
  if (error == nullptr) return error;
  try {
    std::rethrow_exception(error);
  } catch (const Error& ours) {
    try {
      switch (ours.kind()) {
        case ErrorKind::kInvalid:
        case ErrorKind::kIndex:
        case ErrorKind::kType:
        case ErrorKind::kUnsupported:
        case ErrorKind::kOutOfMemory:
          aten::rethrow_as_torch(ours);
        case ErrorKind::kDevice:
        case ErrorKind::kCollective:
        case ErrorKind::kIo:
        case ErrorKind::kInternal:
          break;
      }
      C10_THROW_ERROR(DistBackendError, ours.what());
    } catch (...) {
      return std::current_exception();
    }
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace neuron::distributed
