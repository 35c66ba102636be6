// Parts of a tensor, and tensors with a part replaced.

#include <algorithm>

#include "neuron/base/error.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

// A run [start, limit) of a dim in steps, as torch clamps it.
struct Range {
  int64_t start = 0, limit = 0, step = 1;
  int64_t count() const { return limit <= start ? 0 : (limit - start + step - 1) / step; }
};

Range clamp_range(int64_t start, int64_t end, int64_t step, int64_t size) {
  NEURON_CHECK(step > 0, kInvalid, "slice step must be positive");
  if (start < 0) start += size;
  if (end < 0) end += size;
  start = std::clamp<int64_t>(start, 0, size);
  end = std::clamp<int64_t>(end, start, size);
  return {start, end, step};
}

// Arguments (dim, start, end, step) from position `first` of the schema.
Range range_of(const OpCall& call, size_t first, int64_t size) {
  const int64_t end = call.integer(first + 2, size);
  return clamp_range(call.integer(first + 1, 0), end, call.integer(first + 3, 1), size);
}

Value take_range(Builder& b, Value x, int64_t dim, const Range& range) {
  return b.slice_dim(x, dim, range.start, std::max(range.start, range.limit), range.step);
}

// x with `part` written over a range of one dim.
Value put_range(Builder& b, Value x, Value part, int64_t dim, const Range& range) {
  Dims sizes = x.dims();
  const int64_t size = sizes[static_cast<size_t>(dim)];
  sizes[static_cast<size_t>(dim)] = range.count();
  part = b.broadcast_to(b.convert(part, x.dtype()), sizes);
  if (range.count() == 0) return x;
  if (range.step == 1) {
    if (range.count() == size) return part;
    Values starts;
    for (int64_t i = 0; i < x.rank(); ++i) {
      starts.push_back(b.constant_int(DType::i64, i == dim ? range.start : 0));
    }
    return b.dynamic_update_slice(x, part, starts);
  }
  Dims strides = contiguous_strides(x.dims());
  const int64_t offset = range.start * strides[static_cast<size_t>(dim)];
  strides[static_cast<size_t>(dim)] *= range.step;
  return b.as_strided_scatter(x, part, strides, offset);
}

// `part` on a range of one dim of zeros.
Value spread_range(Builder& b, Value part, int64_t dim, const Range& range, int64_t size) {
  if (range.count() == 0) {
    Dims sizes = part.dims();
    sizes[static_cast<size_t>(dim)] = size;
    return b.zeros(part.dtype(), sizes);
  }
  Dims low(static_cast<size_t>(part.rank()), 0), high = low, interior = low;
  const auto at = static_cast<size_t>(dim);
  low[at] = range.start;
  interior[at] = range.step - 1;
  high[at] = size - range.start - ((range.count() - 1) * range.step + 1);
  return b.pad(part, b.zeros(part.dtype()), low, high, interior);
}

Values slice(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const int64_t dim = call.dim(1, x.rank());
  return {take_range(b, x, dim, range_of(call, 1, x.dim(dim)))};
}
NEURON_LOWERING(
    "aten::slice.Tensor(Tensor(a) self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt "
    "step=1) -> Tensor(a)",
    slice);
NEURON_LOWERING(
    "aten::slice_copy.Tensor(Tensor self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt "
    "step=1) -> Tensor",
    slice);

Values slice_scatter(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const int64_t dim = call.dim(2, x.rank());
  return {put_range(b, x, call.tensor(1), dim, range_of(call, 2, x.dim(dim)))};
}
NEURON_LOWERING(
    "aten::slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, "
    "SymInt step=1) -> Tensor",
    slice_scatter);

Values slice_backward(Builder& b, const OpCall& call) {
  const Value grad = call.tensor(0);
  const Dims sizes = call.ints(1);
  const int64_t dim = call.dim(2, static_cast<int64_t>(sizes.size()));
  const int64_t size = sizes[static_cast<size_t>(dim)];
  return {spread_range(b, grad, dim, range_of(call, 2, size), size)};
}
NEURON_LOWERING(
    "aten::slice_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt start, SymInt "
    "end, SymInt step) -> Tensor",
    slice_backward);

Values narrow_copy(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const int64_t dim = call.dim(1, x.rank());
  int64_t start = call.integer(2);
  if (start < 0) start += x.dim(dim);
  return {b.slice_dim(x, dim, start, start + call.integer(3))};
}
NEURON_LOWERING("aten::narrow_copy(Tensor self, int dim, SymInt start, SymInt length) -> Tensor",
                narrow_copy);

int64_t wrapped(int64_t index, int64_t size) {
  NEURON_CHECK(index >= -size && index < size, kIndex, "select(): index ", index,
               " out of range for a dimension of size ", size);
  return index < 0 ? index + size : index;
}

Range single(int64_t index) { return {index, index + 1, 1}; }

Values select(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const int64_t dim = call.dim(1, x.rank());
  const int64_t index = wrapped(call.integer(2), x.dim(dim));
  return {b.squeeze(take_range(b, x, dim, single(index)), dim)};
}
NEURON_LOWERING("aten::select.int(Tensor(a) self, int dim, SymInt index) -> Tensor(a)", select);
NEURON_LOWERING("aten::select_copy.int(Tensor self, int dim, SymInt index) -> Tensor", select);

Values select_scatter(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const int64_t dim = call.dim(2, x.rank());
  const int64_t index = wrapped(call.integer(3), x.dim(dim));
  return {put_range(b, x, b.unsqueeze(call.tensor(1), dim), dim, single(index))};
}
NEURON_LOWERING("aten::select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor",
                select_scatter);

Values select_backward(Builder& b, const OpCall& call) {
  const Dims sizes = call.ints(1);
  const int64_t dim = call.dim(2, static_cast<int64_t>(sizes.size()));
  const int64_t size = sizes[static_cast<size_t>(dim)];
  const int64_t index = wrapped(call.integer(3), size);
  return {spread_range(b, b.unsqueeze(call.tensor(0), dim), dim, single(index), size)};
}
NEURON_LOWERING(
    "aten::select_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt index) -> "
    "Tensor",
    select_backward);

// Lists of parts.

Values parts(Builder& b, const OpCall& call, int64_t dim) {
  const Value x = call.tensor(0);
  Values list;
  int64_t start = 0;
  for (size_t k = 0; k < call.result_count(); ++k) {
    const int64_t length = call.result(k).dims[static_cast<size_t>(dim)];
    list.push_back(b.slice_dim(x, dim, start, start + length));
    start += length;
  }
  return list;
}

// The result types say how long each part is.
Values split(Builder& b, const OpCall& call) {
  return parts(b, call, call.dim(2, call.tensor(0).rank()));
}
NEURON_LOWERING(
    "aten::split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]", split);
NEURON_LOWERING("aten::split_copy.Tensor(Tensor self, SymInt split_size, int dim=0) -> Tensor[]",
                split);
NEURON_LOWERING("aten::unsafe_split.Tensor(Tensor self, SymInt split_size, int dim=0) -> Tensor[]",
                split);
NEURON_LOWERING(
    "aten::split_with_sizes(Tensor(a -> *) self, SymInt[] split_sizes, int dim=0) -> Tensor(a)[]",
    split);
NEURON_LOWERING(
    "aten::split_with_sizes_copy(Tensor self, SymInt[] split_sizes, int dim=0) -> Tensor[]", split);
NEURON_LOWERING(
    "aten::unsafe_split_with_sizes(Tensor self, SymInt[] split_sizes, int dim=0) -> Tensor[]",
    split);

Values unbind(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const int64_t dim = call.dim(1, x.rank());
  Values list;
  for (int64_t k = 0; k < x.dim(dim); ++k) {
    list.push_back(b.squeeze(b.slice_dim(x, dim, k, k + 1), dim));
  }
  return list;
}
NEURON_LOWERING("aten::unbind.int(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]", unbind);
NEURON_LOWERING("aten::unbind_copy.int(Tensor self, int dim=0) -> Tensor[]", unbind);

// Diagonals.

// Where the diagonal of a tensor of these sizes lies in its row-major elements; the diagonal is the
// last dim.
struct Diagonal {
  Dims dims, strides;
  int64_t offset = 0;
};

Diagonal diagonal_of(DimsRef sizes, int64_t shift, int64_t dim1, int64_t dim2) {
  const Dims strides = contiguous_strides(sizes);
  const auto first = static_cast<size_t>(dim1), second = static_cast<size_t>(dim2);
  const int64_t length = shift >= 0 ? std::min(sizes[first], sizes[second] - shift)
                                    : std::min(sizes[first] + shift, sizes[second]);
  Diagonal diagonal;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (i == first || i == second) continue;
    diagonal.dims.push_back(sizes[i]);
    diagonal.strides.push_back(strides[i]);
  }
  diagonal.dims.push_back(std::max<int64_t>(length, 0));
  diagonal.strides.push_back(strides[first] + strides[second]);
  if (length > 0) diagonal.offset = shift >= 0 ? shift * strides[second] : -shift * strides[first];
  return diagonal;
}

Diagonal diagonal_of(const OpCall& call, size_t first, DimsRef sizes) {
  const auto rank = static_cast<int64_t>(sizes.size());
  return diagonal_of(sizes, call.integer(first), call.dim(first + 1, rank),
                     call.dim(first + 2, rank));
}

Values diagonal(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const Diagonal at = diagonal_of(call, 1, x.dims());
  if (count_elements(at.dims) == 0) return {b.zeros(x.dtype(), at.dims)};
  return {b.as_strided(x, at.dims, at.strides, at.offset)};
}
NEURON_LOWERING("aten::diagonal(Tensor(a) self, int offset=0, int dim1=0, int dim2=1) -> Tensor(a)",
                diagonal);
NEURON_LOWERING("aten::diagonal_copy(Tensor self, int offset=0, int dim1=0, int dim2=1) -> Tensor",
                diagonal);

Value put_diagonal(Builder& b, Value x, Value part, const Diagonal& at) {
  if (count_elements(at.dims) == 0) return x;
  part = b.broadcast_to(b.convert(part, x.dtype()), at.dims);
  return b.as_strided_scatter(x, part, at.strides, at.offset);
}

Values diagonal_scatter(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  return {put_diagonal(b, x, call.tensor(1), diagonal_of(call, 2, x.dims()))};
}
NEURON_LOWERING(
    "aten::diagonal_scatter(Tensor self, Tensor src, int offset=0, int dim1=0, int dim2=1) -> "
    "Tensor",
    diagonal_scatter);

Values diagonal_backward(Builder& b, const OpCall& call) {
  const Value grad = call.tensor(0);
  const Dims sizes = call.ints(1);
  return {put_diagonal(b, b.zeros(grad.dtype(), sizes), grad, diagonal_of(call, 2, sizes))};
}
NEURON_LOWERING(
    "aten::diagonal_backward(Tensor grad_output, SymInt[] input_sizes, int offset, int dim1, int "
    "dim2) -> Tensor",
    diagonal_backward);

Values diag_embed(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const Dims sizes = call.result().dims;
  return {put_diagonal(b, b.zeros(x.dtype(), sizes), x, diagonal_of(call, 1, sizes))};
}
NEURON_LOWERING("aten::diag_embed(Tensor self, int offset=0, int dim1=-2, int dim2=-1) -> Tensor",
                diag_embed);

// Triangles.

Values triangle(Builder& b, const OpCall& call, bool lower) {
  const Value x = call.tensor(0);
  const Dims matrix{x.dim(-2), x.dim(-1)};
  // i64 indices keep the comparison exact for any diagonal.
  const Value row = b.iota(DType::i64, matrix, 0);
  const Value column = b.iota(DType::i64, matrix, 1);
  const Value edge = b.add(row, b.constant_int(DType::i64, call.integer(1)));
  const Value inside = lower ? b.le(column, edge) : b.ge(column, edge);
  return {b.select(b.broadcast_to(inside, x.dims()), x, b.zeros(x.dtype()))};
}

Values tril(Builder& b, const OpCall& call) { return triangle(b, call, true); }
Values triu(Builder& b, const OpCall& call) { return triangle(b, call, false); }
NEURON_LOWERING("aten::tril(Tensor self, SymInt diagonal=0) -> Tensor", tril);
NEURON_LOWERING("aten::triu(Tensor self, SymInt diagonal=0) -> Tensor", triu);

// Overlapping windows add up where they meet.
Values unfold_backward(Builder& b, const OpCall& call) {
  Value grad = call.tensor(0);
  const Dims sizes = call.ints(1);
  const auto rank = static_cast<int64_t>(sizes.size());
  if (rank == 0) return {b.reshape(b.sum(grad, Dims{0}), sizes)};
  const int64_t dim = call.dim(2, rank);
  const int64_t size = call.integer(3), step = call.integer(4);
  const int64_t windows = grad.dim(dim);
  // The window's own dim goes right behind the dim of windows.
  Dims permutation;
  for (int64_t i = 0; i <= dim; ++i) permutation.push_back(i);
  permutation.push_back(rank);
  for (int64_t i = dim + 1; i < rank; ++i) permutation.push_back(i);
  grad = b.transpose(grad, permutation);
  const Dims shape{windows, size};
  const Value at = b.add(b.mul(b.iota(DType::i64, shape, 0), b.constant_int(DType::i64, step)),
                         b.iota(DType::i64, shape, 1));
  const Value index[] = {at};
  return {
      b.scatter(hlo::ScatterKind::Add, b.zeros(grad.dtype(), sizes), grad, index, Dims{dim}, dim)};
}
NEURON_LOWERING(
    "aten::unfold_backward(Tensor grad_in, SymInt[] input_sizes, int dim, int size, int step) -> "
    "Tensor",
    unfold_backward);

}  // namespace
}  // namespace neuron::lowering
