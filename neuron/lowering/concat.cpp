// Joining, repeating, mirroring and padding.

#include <algorithm>

#include "neuron/base/error.h"
#include "neuron/lowering/numerics.h"
#include "neuron/lowering/registry.h"
#include "neuron/lowering/taps.h"

namespace neuron::lowering {
namespace {

// Tensors of shape [0] are skipped whatever the others' rank, as torch has always done.
Values cat(Builder& b, const OpCall& call) {
  const ResultType& result = call.result();
  Values parts;
  for (const Value& part : call.tensors(0)) {
    if (part.rank() == 1 && part.dim(0) == 0 && result.dims.size() != 1) continue;
    parts.push_back(b.convert(part, result.dtype));
  }
  if (parts.empty()) return {b.zeros(result.dtype, result.dims)};
  return {b.concatenate(parts, call.dim(1, parts[0].rank()))};
}
NEURON_LOWERING("aten::cat(Tensor[] tensors, int dim=0) -> Tensor", cat);

Values stack(Builder& b, const OpCall& call) {
  const ResultType& result = call.result();
  const int64_t dim = call.dim(1, static_cast<int64_t>(result.dims.size()));
  Values parts;
  for (const Value& part : call.tensors(0)) {
    parts.push_back(b.unsqueeze(b.convert(part, result.dtype), dim));
  }
  return {b.concatenate(parts, dim)};
}
NEURON_LOWERING("aten::stack(Tensor[] tensors, int dim=0) -> Tensor", stack);
NEURON_LOWERING("aten::_stack(Tensor[] tensors, int dim=0) -> Tensor", stack);

// Every tensor is cut along `dim` into equal chunks (the last ones zero-filled), flattened behind
// the chunk number, and all are joined there.
Values chunk_cat(Builder& b, const OpCall& call) {
  const ResultType& result = call.result();
  const int64_t chunks = call.integer(2);
  Values parts;
  int64_t dim = 0;
  for (const Value& tensor : call.tensors(0)) {
    Value part = b.convert(tensor, result.dtype);
    dim = call.dim(1, part.rank());
    const int64_t size = part.dim(dim);
    const int64_t padded = (size + chunks - 1) / chunks * chunks;
    Dims low(static_cast<size_t>(part.rank()), 0), high = low;
    high[static_cast<size_t>(dim)] = padded - size;
    part = b.pad(part, b.zeros(part.dtype()), low, high);
    Dims sizes(part.dims().begin(), part.dims().begin() + dim);
    int64_t rest = padded / chunks;
    for (int64_t i = dim + 1; i < part.rank(); ++i) rest *= part.dim(i);
    sizes.push_back(chunks);
    sizes.push_back(rest);
    parts.push_back(b.reshape(part, sizes));
  }
  return {b.concatenate(parts, dim + 1)};
}
NEURON_LOWERING("aten::_chunk_cat(Tensor[] tensors, int dim, int num_chunks) -> Tensor", chunk_cat);

Values repeat(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const Dims repeats = call.ints(1);
  const size_t extra = repeats.size() - static_cast<size_t>(x.rank());
  // [r0, 1, r1, n1, ...]: each dim behind its own count.
  Dims spread, mapping;
  for (size_t i = 0; i < repeats.size(); ++i) {
    spread.push_back(repeats[i]);
    if (i < extra) continue;
    mapping.push_back(static_cast<int64_t>(spread.size()));
    spread.push_back(x.dims()[i - extra]);
  }
  return {b.reshape(b.broadcast_in_dim(x, spread, mapping), call.result().dims)};
}
NEURON_LOWERING("aten::repeat(Tensor self, SymInt[] repeats) -> Tensor", repeat);

Dims wrapped_dims(const OpCall& call, size_t i, int64_t rank) {
  Dims dims = call.ints(i);
  for (int64_t& dim : dims) {
    if (dim < 0) dim += std::max<int64_t>(rank, 1);
  }
  return dims;
}

Values flip(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  if (x.rank() == 0) return {x};
  const Dims dims = wrapped_dims(call, 1, x.rank());
  return {dims.empty() ? x : b.reverse(x, dims)};
}
NEURON_LOWERING("aten::flip(Tensor self, int[] dims) -> Tensor", flip);

Value roll_dim(Builder& b, Value x, int64_t dim, int64_t shift) {
  const int64_t size = x.dim(dim);
  if (size == 0) return x;
  shift %= size;
  if (shift < 0) shift += size;
  if (shift == 0) return x;
  const Value parts[] = {b.slice_dim(x, dim, size - shift, size),
                         b.slice_dim(x, dim, 0, size - shift)};
  return b.concatenate(parts, dim);
}

Values roll(Builder& b, const OpCall& call) {
  Value x = call.tensor(0);
  const Dims shifts = call.ints(1);
  const Dims dims = wrapped_dims(call, 2, x.rank());
  if (dims.empty() || x.rank() == 0) {
    // No dims: the tensor rolls as one row.
    const Value flat = roll_dim(b, b.reshape(x, Dims{x.count()}), 0, shifts[0]);
    return {b.reshape(flat, x.dims())};
  }
  for (size_t i = 0; i < dims.size(); ++i) x = roll_dim(b, x, dims[i], shifts[i]);
  return {x};
}
NEURON_LOWERING("aten::roll(Tensor self, SymInt[1] shifts, int[1] dims=[]) -> Tensor", roll);

Values rot90(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const int64_t turns = ((call.integer(1) % 4) + 4) % 4;
  const Dims dims = wrapped_dims(call, 2, x.rank());
  Dims permutation;
  for (int64_t i = 0; i < x.rank(); ++i) permutation.push_back(i);
  std::swap(permutation[static_cast<size_t>(dims[0])], permutation[static_cast<size_t>(dims[1])]);
  switch (turns) {
    case 1:
      return {b.transpose(b.reverse(x, Dims{dims[1]}), permutation)};
    case 2:
      return {b.reverse(x, dims)};
    case 3:
      return {b.transpose(b.reverse(x, Dims{dims[0]}), permutation)};
    default:
      return {x};
  }
}
NEURON_LOWERING("aten::rot90(Tensor self, int k=1, int[] dims=[0, 1]) -> Tensor", rot90);

// Padding. The list names the last dim first: (low, high) pairs.

Values constant_pad(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const Dims pad = call.ints(1);
  Dims low(static_cast<size_t>(x.rank()), 0), high = low;
  for (size_t i = 0; i + 1 < pad.size(); i += 2) {
    const size_t dim = static_cast<size_t>(x.rank()) - 1 - i / 2;
    low[dim] = pad[i];
    high[dim] = pad[i + 1];
  }
  return {b.pad(x, call.scalar(2, x.dtype()), low, high)};
}
NEURON_LOWERING("aten::constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor",
                constant_pad);

enum class Border { Reflect, Replicate };

int64_t source_of(Border border, int64_t at, int64_t size) {
  if (border == Border::Replicate) return std::clamp<int64_t>(at, 0, size - 1);
  if (at < 0) at = -at;
  return at >= size ? 2 * (size - 1) - at : at;
}

Taps padding_taps(Border border, int64_t size, int64_t low, int64_t high) {
  std::vector<int64_t> sources;
  for (int64_t i = -low; i < size + high; ++i) sources.push_back(source_of(border, i, size));
  return Taps::pick(size, sources);
}

Values pad_border(Builder& b, const OpCall& call, Border border) {
  Value x = call.tensor(0);
  const Dims pad = call.ints(1);
  for (size_t i = 0; i + 1 < pad.size(); i += 2) {
    const int64_t dim = x.rank() - 1 - static_cast<int64_t>(i / 2);
    if (pad[i] == 0 && pad[i + 1] == 0) continue;
    x = apply_taps(b, x, dim, padding_taps(border, x.dim(dim), pad[i], pad[i + 1]));
  }
  return {x};
}

Values pad_border_backward(Builder& b, const OpCall& call, Border border) {
  const Value input = call.tensor(1);
  Value grad = b.convert(call.tensor(0), opmath(input.dtype()));
  const Dims pad = call.ints(2);
  for (size_t i = 0; i + 1 < pad.size(); i += 2) {
    const int64_t dim = input.rank() - 1 - static_cast<int64_t>(i / 2);
    if (pad[i] == 0 && pad[i + 1] == 0) continue;
    grad = apply_taps(b, grad, dim,
                      padding_taps(border, input.dim(dim), pad[i], pad[i + 1]).transposed());
  }
  return {b.convert(grad, input.dtype())};
}

Values reflection_pad(Builder& b, const OpCall& call) {
  return pad_border(b, call, Border::Reflect);
}
Values reflection_pad_backward(Builder& b, const OpCall& call) {
  return pad_border_backward(b, call, Border::Reflect);
}
Values replication_pad(Builder& b, const OpCall& call) {
  return pad_border(b, call, Border::Replicate);
}
Values replication_pad_backward(Builder& b, const OpCall& call) {
  return pad_border_backward(b, call, Border::Replicate);
}
NEURON_LOWERING("aten::reflection_pad1d(Tensor self, SymInt[2] padding) -> Tensor", reflection_pad);
NEURON_LOWERING("aten::reflection_pad2d(Tensor self, SymInt[4] padding) -> Tensor", reflection_pad);
NEURON_LOWERING("aten::reflection_pad3d(Tensor self, SymInt[6] padding) -> Tensor", reflection_pad);
NEURON_LOWERING(
    "aten::reflection_pad1d_backward(Tensor grad_output, Tensor self, SymInt[2] padding) -> Tensor",
    reflection_pad_backward);
NEURON_LOWERING(
    "aten::reflection_pad2d_backward(Tensor grad_output, Tensor self, SymInt[4] padding) -> Tensor",
    reflection_pad_backward);
NEURON_LOWERING(
    "aten::reflection_pad3d_backward(Tensor grad_output, Tensor self, SymInt[6] padding) -> Tensor",
    reflection_pad_backward);
NEURON_LOWERING("aten::replication_pad1d(Tensor self, SymInt[2] padding) -> Tensor",
                replication_pad);
NEURON_LOWERING("aten::replication_pad2d(Tensor self, SymInt[4] padding) -> Tensor",
                replication_pad);
NEURON_LOWERING("aten::replication_pad3d(Tensor self, SymInt[6] padding) -> Tensor",
                replication_pad);
NEURON_LOWERING(
    "aten::replication_pad1d_backward(Tensor grad_output, Tensor self, SymInt[2] padding) -> "
    "Tensor",
    replication_pad_backward);
NEURON_LOWERING(
    "aten::replication_pad2d_backward(Tensor grad_output, Tensor self, SymInt[4] padding) -> "
    "Tensor",
    replication_pad_backward);
NEURON_LOWERING(
    "aten::replication_pad3d_backward(Tensor grad_output, Tensor self, SymInt[6] padding) -> "
    "Tensor",
    replication_pad_backward);

}  // namespace
}  // namespace neuron::lowering
