// Reading and writing at positions given by index tensors or masks.

#include <algorithm>

#include "neuron/base/error.h"
#include "neuron/lowering/indices.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

using hlo::ScatterKind;

bool is_mask(Value index) { return index.dtype() == DType::pred || index.dtype() == DType::u8; }

// x[.., i, .., j, ..]: index tensors broadcast against each other and stand where the first of them
// stands, or in front if a plain dim separates them.
struct IndexList {
  Values indices;
  Dims dims;
  int64_t position = 0;
};

IndexList integer_indices(Builder& b, Value x, const Values& given) {
  IndexList list;
  Dims shape;
  bool adjacent = true;
  for (size_t k = 0; k < given.size(); ++k) {
    if (!given[k].defined()) continue;
    NEURON_CHECK(!is_mask(given[k]), kUnsupported, "indexing by a mask ",
                 to_string(given[k].type()), " has a result whose size depends on its values");
    const auto dim = static_cast<int64_t>(k);
    if (!list.dims.empty() && list.dims.back() != dim - 1) adjacent = false;
    list.dims.push_back(dim);
    shape = list.dims.size() == 1 ? given[k].dims() : broadcast_shapes(shape, given[k].dims());
  }
  bool narrow = true;
  for (int64_t dim : list.dims) {
    list.indices.push_back(wrapped_index(b, given[static_cast<size_t>(dim)], x.dim(dim)));
    narrow = narrow && list.indices.back().dtype() == DType::i32;
  }
  for (Value& index : list.indices) {
    index = b.broadcast_to(narrow ? index : b.convert(index, DType::i64), shape);
  }
  list.position = adjacent && !list.dims.empty() ? list.dims.front() : 0;
  return list;
}

Values index_tensor(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const IndexList list = integer_indices(b, x, call.tensors(1));
  if (list.dims.empty()) return {x};
  return {b.gather(x, list.indices, list.dims, list.position)};
}
NEURON_LOWERING("aten::index.Tensor(Tensor self, Tensor?[] indices) -> Tensor", index_tensor);
NEURON_LOWERING("aten::_unsafe_index.Tensor(Tensor self, Tensor?[] indices) -> Tensor",
                index_tensor);

// Shape of x with the indexed dims replaced by the indices' shape.
Dims indexed_dims(Value x, const IndexList& list) {
  Dims sizes;
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (std::find(list.dims.begin(), list.dims.end(), i) == list.dims.end()) {
      sizes.push_back(x.dim(i));
    }
  }
  size_t at = static_cast<size_t>(list.position);
  for (int64_t size : list.indices[0].dims()) sizes.insert(at++, size);
  return sizes;
}

Value put_at(Builder& b, Value x, const IndexList& list, Value values, bool accumulate) {
  values = b.broadcast_to(b.convert(values, x.dtype()), indexed_dims(x, list));
  return scatter(b, accumulate ? ScatterKind::Add : ScatterKind::Set, x, values, list.indices,
                 list.dims, list.position);
}

// x[mask] = values, where the mask stands for the dims of x from `first` on. Values are one per
// true element, in order, or the same for all: then nothing depends on the number of true elements.
Value put_by_mask(Builder& b, Value x, Value mask, int64_t first, Value values, bool accumulate) {
  mask = b.convert(mask, DType::pred);
  values = b.convert(values, x.dtype());
  const int64_t behind = x.rank() - first - mask.rank();
  Dims aligned(static_cast<size_t>(first), 1);
  aligned.append(mask.dims().begin(), mask.dims().end());
  for (int64_t i = 0; i < behind; ++i) aligned.push_back(1);
  const Value wide_mask = b.broadcast_to(b.reshape(mask, aligned), x.dims());

  if (values.rank() > behind) {
    const int64_t at = values.rank() - behind - 1;
    const int64_t count = values.dim(at);
    if (count == 0) return x;
    if (count == 1) {
      // The dim of true elements becomes the mask's dims.
      Dims sizes(values.dims().begin(), values.dims().begin() + at);
      for (int64_t i = 0; i < mask.rank(); ++i) sizes.push_back(1);
      for (int64_t i = at + 1; i < values.rank(); ++i) sizes.push_back(values.dim(i));
      // Leading ones may exceed x's rank when the mask has several dims.
      while (static_cast<int64_t>(sizes.size()) > x.rank() && sizes.front() == 1) sizes.erase(0);
      values = b.reshape(values, sizes);
    } else {
      Dims sizes(x.dims().begin(), x.dims().begin() + first);
      sizes.push_back(count);
      for (int64_t i = 0; i < behind; ++i) sizes.push_back(x.dim(first + mask.rank() + i));
      values = b.broadcast_to(values, sizes);
      const Value position = b.reshape(running_position(b, mask), mask.dims());
      const Value index[] = {b.select(mask, position, b.constant_int(DType::i64, 0))};
      values = b.gather(values, index, Dims{first}, first);
    }
  }
  if (accumulate) values = x.dtype() == DType::pred ? b.bit_or(x, values) : b.add(x, values);
  return b.select(wide_mask, values, x);
}

Values index_put(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const Values& given = call.tensors(1);
  const Value values = call.tensor(2);
  const bool accumulate = call.flag(3);
  size_t defined = 0, last = 0;
  for (size_t k = 0; k < given.size(); ++k) {
    if (!given[k].defined()) continue;
    ++defined;
    last = k;
  }
  if (defined == 0) {
    const Value all = b.broadcast_to(b.convert(values, x.dtype()), x.dims());
    if (!accumulate) return {all};
    return {x.dtype() == DType::pred ? b.bit_or(x, all) : b.add(x, all)};
  }
  if (defined == 1 && is_mask(given[last])) {
    return {put_by_mask(b, x, given[last], static_cast<int64_t>(last), values, accumulate)};
  }
  return {put_at(b, x, integer_indices(b, x, given), values, accumulate)};
}
NEURON_LOWERING(
    "aten::index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> "
    "Tensor",
    index_put);
NEURON_LOWERING(
    "aten::_unsafe_index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) "
    "-> Tensor",
    index_put);
NEURON_LOWERING(
    "aten::_index_put_impl(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False, "
    "bool unsafe=False) -> Tensor",
    index_put);

// Indices of masked-out elements may be anything: they are clamped, not checked.
IndexList clamped_indices(Builder& b, Value x, const Values& given) {
  IndexList list = integer_indices(b, x, given);
  for (size_t k = 0; k < list.dims.size(); ++k) {
    Value& index = list.indices[k];
    const int64_t size = x.dim(list.dims[k]);
    index = b.max(b.min(index, b.constant_int(index.dtype(), std::max<int64_t>(size - 1, 0))),
                  b.constant_int(index.dtype(), 0));
  }
  return list;
}

Values unsafe_masked_index(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const Value mask = b.convert(call.tensor(1), DType::pred);
  const IndexList list = clamped_indices(b, x, call.tensors(2));
  const Value fill = call.scalar(3, x.dtype());
  const Value read = list.dims.empty() ? x
                                       : b.gather(x, list.indices, list.dims, list.position,
                                                  hlo::OutOfBounds::Fill);
  return {b.select(b.broadcast_to(mask, read.dims()), read, fill)};
}
NEURON_LOWERING(
    "aten::_unsafe_masked_index(Tensor self, Tensor mask, Tensor?[] indices, Scalar fill) -> "
    "Tensor",
    unsafe_masked_index);

Values unsafe_masked_index_put_accumulate(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const Value mask = b.convert(call.tensor(1), DType::pred);
  const Value values = b.convert(call.tensor(3), x.dtype());
  const Value kept = b.select(mask, values, b.zeros(x.dtype()));
  return {put_at(b, x, clamped_indices(b, x, call.tensors(2)), kept, true)};
}
NEURON_LOWERING(
    "aten::_unsafe_masked_index_put_accumulate(Tensor self, Tensor mask, Tensor?[] indices, Tensor "
    "values) -> Tensor",
    unsafe_masked_index_put_accumulate);

// One index tensor along one dim. A 0-dim operand counts as one element.

Value at_least_1d(Builder& b, Value x) { return x.rank() == 0 ? b.reshape(x, Dims{1}) : x; }

Values index_select(Builder& b, const OpCall& call) {
  const Value x = at_least_1d(b, call.tensor(0));
  const int64_t dim = call.dim(1, x.rank());
  const Value index[] = {index_values(b, at_least_1d(b, call.tensor(2)))};
  return {b.reshape(b.gather(x, index, Dims{dim}, dim), call.result().dims)};
}
NEURON_LOWERING("aten::index_select(Tensor self, int dim, Tensor index) -> Tensor", index_select);

// The operand's shape with `count` entries along `dim`.
Dims with_size(Value x, int64_t dim, int64_t count) {
  Dims sizes = x.dims();
  sizes[static_cast<size_t>(dim)] = count;
  return sizes;
}

Values put_along(Builder& b, Value x, int64_t dim, Value index, Value source, ScatterKind kind) {
  const Value target = at_least_1d(b, x);
  index = at_least_1d(b, index);
  const Dims sizes = with_size(target, dim, index.dim(0));
  source = b.convert(source, x.dtype());
  source = source.count() == count_elements(sizes) ? b.reshape(source, sizes)
                                                   : b.broadcast_to(source, sizes);
  return {b.reshape(scatter(b, kind, target, source, {index}, Dims{dim}, dim), x.dims())};
}

Values index_add(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  Value source = b.convert(call.tensor(3), x.dtype());
  if (x.dtype() == DType::pred) {
    source = b.bit_and(source, call.scalar(4, x.dtype()));
  } else {
    source = b.mul(source, call.scalar(4, x.dtype()));
  }
  return put_along(b, x, call.dim(1, x.rank()), index_values(b, call.tensor(2)), source,
                   ScatterKind::Add);
}
NEURON_LOWERING(
    "aten::index_add(Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> "
    "Tensor",
    index_add);

Values index_copy(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  return put_along(b, x, call.dim(1, x.rank()), index_values(b, call.tensor(2)), call.tensor(3),
                   ScatterKind::Set);
}
NEURON_LOWERING("aten::index_copy(Tensor self, int dim, Tensor index, Tensor source) -> Tensor",
                index_copy);

Values index_fill(Builder& b, const OpCall& call, Value value) {
  const Value x = call.tensor(0);
  const int64_t dim = call.dim(1, x.rank());
  const int64_t size = x.rank() == 0 ? 1 : x.dim(dim);
  return put_along(b, x, dim, wrapped_index(b, call.tensor(2), size), value, ScatterKind::Set);
}
Values index_fill_scalar(Builder& b, const OpCall& call) {
  return index_fill(b, call, call.scalar(3, call.tensor(0).dtype()));
}
Values index_fill_tensor(Builder& b, const OpCall& call) {
  return index_fill(b, call, b.reshape(call.tensor(3), Dims{}));
}
NEURON_LOWERING(
    "aten::index_fill.int_Scalar(Tensor self, int dim, Tensor index, Scalar value) -> Tensor",
    index_fill_scalar);
NEURON_LOWERING(
    "aten::index_fill.int_Tensor(Tensor self, int dim, Tensor index, Tensor value) -> Tensor",
    index_fill_tensor);

// Positions in the flattened operand.

Value flat(Builder& b, Value x) { return b.reshape(x, Dims{x.count()}); }

Values take(Builder& b, const OpCall& call) {
  const Value x = flat(b, call.tensor(0));
  const Value index[] = {wrapped_index(b, call.tensor(1), x.count())};
  return {b.gather(x, index, Dims{0}, 0)};
}
NEURON_LOWERING("aten::take(Tensor self, Tensor index) -> Tensor", take);

Values put(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const Value index = wrapped_index(b, flat(b, call.tensor(1)), x.count());
  const Value source = b.convert(flat(b, call.tensor(2)), x.dtype());
  const Value written = scatter(b, call.flag(3) ? ScatterKind::Add : ScatterKind::Set, flat(b, x),
                                source, {index}, Dims{0}, 0);
  return {b.reshape(written, x.dims())};
}
NEURON_LOWERING(
    "aten::put(Tensor self, Tensor index, Tensor source, bool accumulate=False) -> Tensor", put);

// Masks whose true elements are numbered by a running sum.

Values masked_scatter(Builder& b, const OpCall& call) {
  const Dims& sizes = call.result().dims;
  const Value x = b.broadcast_to(call.tensor(0), sizes);
  const Value mask = b.broadcast_to(b.convert(call.tensor(1), DType::pred), sizes);
  const Value source = flat(b, b.convert(call.tensor(2), x.dtype()));
  if (source.count() == 0 || x.count() == 0) return {x};
  const Value position = b.reshape(running_position(b, mask), sizes);
  const Value index[] = {b.select(mask, position, b.constant_int(DType::i64, 0))};
  return {b.select(mask, b.gather(source, index, Dims{0}, 0), x)};
}
NEURON_LOWERING("aten::masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor",
                masked_scatter);

// Writes flat `values` where the mask is true, one after another, into `count` elements that start
// as `initial`. What does not fit, and what is masked out, goes to one more element, which is
// dropped.
Value compact(Builder& b, Value mask, Value values, Value initial, int64_t count) {
  const Value position = running_position(b, mask);
  const Value end = b.constant_int(DType::i64, count);
  const Value used = b.bit_and(flat(b, mask), b.lt(position, end));
  const Value index = b.select(used, position, end);
  const Value buffer = b.broadcast_to(initial, Dims{count + 1});
  return b.slice_dim(scatter(b, ScatterKind::Set, buffer, values, {index}, Dims{0}, 0), 0, 0,
                     count);
}

Values masked_scatter_backward(Builder& b, const OpCall& call) {
  const Value grad = call.tensor(0);
  const Value mask = b.broadcast_to(b.convert(call.tensor(1), DType::pred), grad.dims());
  const Dims sizes = call.ints(2);
  const Value packed =
      compact(b, mask, flat(b, grad), b.zeros(grad.dtype()), count_elements(sizes));
  return {b.reshape(packed, sizes)};
}
NEURON_LOWERING(
    "aten::masked_scatter_backward(Tensor grad_output, Tensor mask, SymInt[] sizes) -> Tensor",
    masked_scatter_backward);

Values nonzero_static(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const Dims& sizes = call.result().dims;
  if (count_elements(sizes) == 0) return {b.zeros(DType::i64, sizes)};
  const int64_t fill = call.integer(2, -1);
  if (x.count() == 0) return {b.constant_int(DType::i64, fill, sizes)};
  const Value mask = b.convert(x, DType::pred);
  const Value none = b.constant_int(DType::i64, -1);
  const Value found = compact(b, mask, b.iota(DType::i64, Dims{x.count()}, 0), none, sizes[0]);
  const Dims strides = contiguous_strides(x.dims());
  Values columns;
  for (size_t i = 0; i < strides.size(); ++i) {
    const Value row = b.div(found, b.constant_int(DType::i64, strides[i]));
    const Value at = b.rem(row, b.constant_int(DType::i64, x.dims()[i]));
    columns.push_back(
        b.unsqueeze(b.select(b.eq(found, none), b.constant_int(DType::i64, fill), at), 1));
  }
  return {b.concatenate(columns, 1)};
}
NEURON_LOWERING("aten::nonzero_static(Tensor self, *, SymInt size, int fill_value=-1) -> Tensor",
                nonzero_static);

// Index i repeats[i] times; the caller says how many there are in all.
Values repeat_interleave(Builder& b, const OpCall& call) {
  NEURON_CHECK(call.has(1), kUnsupported,
               "repeat_interleave without output_size has a result whose size depends on values");
  const Value repeats = b.convert(call.tensor(0), DType::i64);
  const int64_t count = call.integer(1);
  if (count == 0) return {b.zeros(DType::i64, Dims{0})};
  // A mark where each index begins; their running sum counts the indices begun so far.
  const Value start = b.sub(b.scan(hlo::ScanKind::Sum, repeats, 0), repeats);
  const Value marks =
      b.scatter(ScatterKind::Add, b.zeros(DType::i64, Dims{count + 1}),
                b.constant_int(DType::i64, 1, repeats.dims()), std::span(&start, 1), Dims{0}, 0);
  const Value begun = b.scan(hlo::ScanKind::Sum, b.slice_dim(marks, 0, 0, count), 0);
  return {b.sub(begun, b.constant_int(DType::i64, 1))};
}
NEURON_LOWERING(
    "aten::repeat_interleave.Tensor(Tensor repeats, *, SymInt? output_size=None) -> Tensor",
    repeat_interleave);

}  // namespace
}  // namespace neuron::lowering
