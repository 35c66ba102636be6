#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "neuron/runtime/communicator.h"

namespace neuron::distributed {

/// Elements travel in row-major order whatever the strides: other layouts, lazy conj and neg bits
/// go through temporaries. Complex tensors travel as pairs of reals, dtypes that the device does
/// not compute with as bytes.
class Staging {
 public:
  /// What is sent of `tensor`.
  runtime::Piece input(const at::Tensor& tensor);
  /// Where `tensor` is received; copied into it when the operation is done, if need be.
  runtime::Piece output(const at::Tensor& tensor);
  /// One place for both.
  runtime::Piece in_place(const at::Tensor& tensor);

  /// `count` pieces of the lengths, one behind the other.
  std::vector<runtime::Piece> input_pieces(const at::Tensor& tensor,
                                           const std::vector<int64_t>& elements);
  std::vector<runtime::Piece> output_pieces(const at::Tensor& tensor,
                                            const std::vector<int64_t>& elements);

  /// Temporaries to be copied into the tensors in front of them.
  struct CopyBack {
    at::Tensor target, received;
  };
  std::vector<CopyBack> take_copies() { return std::move(copies_); }

 private:
  at::Tensor dense_input(const at::Tensor& tensor);
  at::Tensor dense_output(const at::Tensor& tensor, bool with_values);

  std::vector<CopyBack> copies_;
  // Temporaries stay until the communicator holds their blocks.
  std::vector<at::Tensor> kept_;
};

/// How `type` travels: real parts for complex types, u8 for types without arithmetic.
DType wire_type(c10::ScalarType type);

/// Runs the copies on the current stream.
void run_copies(const std::vector<Staging::CopyBack>& copies);

}  // namespace neuron::distributed
