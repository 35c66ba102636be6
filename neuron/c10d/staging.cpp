#include "neuron/c10d/staging.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include "neuron/aten/tensor.h"

namespace neuron::distributed {
namespace {

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor empty_dense(const at::Tensor& like) {
  return at::empty(like.sizes(), like.options().requires_grad(false),
                   c10::MemoryFormat::Contiguous);
}

/// Units on the wire per element.
int64_t wire_units(c10::ScalarType type) {
  return static_cast<int64_t>(c10::elementSize(type) / size_of(wire_type(type)));
}

runtime::Piece piece_of(const at::Tensor& dense) {
  runtime::Piece piece;
  piece.count = dense.numel() * wire_units(dense.scalar_type());
  if (piece.count > 0) piece.buffer = aten::buffer_of(dense);
  return piece;
}

std::vector<runtime::Piece> cut(const at::Tensor& dense, const std::vector<int64_t>& elements) {
  const runtime::Piece whole = piece_of(dense);
  auto* address = static_cast<char*>(whole.buffer.address);
  std::vector<runtime::Piece> pieces;
  pieces.reserve(elements.size());
  for (const int64_t count : elements) {
    runtime::Piece piece;
    piece.count = count * wire_units(dense.scalar_type());
    if (count > 0) piece.buffer = {address, whole.buffer.block};
    address += static_cast<size_t>(count) * dense.element_size();
    pieces.push_back(piece);
  }
  return pieces;
}

}  // namespace

DType wire_type(c10::ScalarType type) {
  if (type == c10::ScalarType::ComplexHalf) return DType::f16;
  const std::optional<DType> found = aten::dtype_of(type);
  return found.has_value() ? real_of(*found) : DType::u8;
}

at::Tensor Staging::dense_input(const at::Tensor& tensor) {
  if (is_plain(tensor)) return tensor;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  kept_.push_back(empty_dense(tensor).copy_(tensor));
  return kept_.back();
}

at::Tensor Staging::dense_output(const at::Tensor& tensor, bool with_values) {
  if (is_plain(tensor)) return tensor;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor dense = empty_dense(tensor);
  if (with_values) dense.copy_(tensor);
  copies_.push_back({tensor, dense});
  return dense;
}

runtime::Piece Staging::input(const at::Tensor& tensor) { return piece_of(dense_input(tensor)); }

runtime::Piece Staging::output(const at::Tensor& tensor) {
  return piece_of(dense_output(tensor, false));
}

runtime::Piece Staging::in_place(const at::Tensor& tensor) {
  return piece_of(dense_output(tensor, true));
}

std::vector<runtime::Piece> Staging::input_pieces(const at::Tensor& tensor,
                                                  const std::vector<int64_t>& elements) {
  return cut(dense_input(tensor), elements);
}

std::vector<runtime::Piece> Staging::output_pieces(const at::Tensor& tensor,
                                                   const std::vector<int64_t>& elements) {
  return cut(dense_output(tensor, false), elements);
}

void run_copies(const std::vector<Staging::CopyBack>& copies) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const Staging::CopyBack& copy : copies) copy.target.copy_(copy.received);
}

}  // namespace neuron::distributed
