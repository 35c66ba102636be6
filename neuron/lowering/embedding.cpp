// Rows of a table by index, single or summed in bags, and the gradients of the table.

#include <algorithm>

#include "neuron/base/error.h"
#include "neuron/lowering/indices.h"
#include "neuron/lowering/norm.h"
#include "neuron/lowering/numerics.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

using hlo::ScatterKind;

Values embedding(Builder& b, const OpCall& call) {
  const Value index[] = {index_values(b, call.tensor(1))};
  return {b.gather(call.tensor(0), index, Dims{0}, 0)};
}
NEURON_LOWERING(
    "aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool "
    "scale_grad_by_freq=False, bool sparse=False) -> Tensor",
    embedding);

// Rows that are read are scaled down to a norm; an index that comes twice writes the same row
// twice.
Values embedding_renorm(Builder& b, const OpCall& call) {
  const Value table = call.tensor(0);
  const Value index = index_values(b, call.tensor(1));
  if (index.count() == 0) return {table};
  const Value flat = b.reshape(index, Dims{index.count()});
  const Value rows = b.gather(table, std::span(&flat, 1), Dims{0}, 0);
  const Value norm = vector_norm(call, rows, 3, Dims{1}, true);
  const Value limit = call.scalar(2, norm.dtype());
  const Value scale = b.div(limit, b.add(norm, b.like(norm, 1e-7)));
  const Value wide = b.convert(rows, norm.dtype());
  const Value scaled = b.select(b.gt(norm, limit), b.mul(wide, scale), wide);
  return {
      scatter(b, ScatterKind::Set, table, b.convert(scaled, table.dtype()), {flat}, Dims{0}, 0)};
}
NEURON_LOWERING(
    "aten::embedding_renorm(Tensor self, Tensor indices, float max_norm, float norm_type) -> "
    "Tensor",
    embedding_renorm);

// [n] numbers against rows [n, d].
Value per_row(Builder& b, Value x) { return b.unsqueeze(x, 1); }

Value read_rows(Builder& b, Value table, Value index) {
  return b.gather(table, std::span(&index, 1), Dims{0}, 0);
}

// How often each index occurs, for each occurrence.
Value occurrences(Builder& b, Value index, int64_t rows, DType dtype) {
  const Value counts = scatter(b, ScatterKind::Add, b.zeros(dtype, Dims{rows}),
                               b.ones(dtype, index.dims()), {index}, Dims{0}, 0);
  return read_rows(b, counts, index);
}

// Sums gradient rows [n, d] of the indexed table rows. Runs in f32 for narrow floats: a frequent
// token's gradient is a sum of thousands of rows. The order of the sum is the order of the indices.
Value table_gradient(Builder& b, Value rows, Value index, int64_t table_rows, int64_t padding,
                     bool scale_by_frequency) {
  const DType dtype = rows.dtype();
  if (scale_by_frequency) {
    rows = b.div(rows, per_row(b, occurrences(b, index, table_rows, dtype)));
  }
  if (padding >= 0) {
    const Value is_padding = b.eq(index, b.constant_int(index.dtype(), padding));
    rows = b.select(per_row(b, is_padding), b.zeros(dtype), rows);
  }
  const Value zeros = b.zeros(dtype, Dims{table_rows, rows.dim(1)});
  return scatter(b, ScatterKind::Add, zeros, rows, {index}, Dims{0}, 0);
}

Values embedding_dense_backward(Builder& b, const OpCall& call) {
  const Value grad = call.tensor(0);
  const Value index = index_values(b, call.tensor(1));
  const Value flat_index = b.reshape(index, Dims{index.count()});
  const int64_t width = grad.dim(-1);
  const Value rows = b.convert(b.reshape(grad, Dims{index.count(), width}), opmath(grad.dtype()));
  const Value sum =
      table_gradient(b, rows, flat_index, call.integer(2), call.integer(3), call.flag(4));
  return {b.convert(sum, grad.dtype())};
}
NEURON_LOWERING(
    "aten::embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt "
    "padding_idx, bool scale_grad_by_freq) -> Tensor",
    embedding_dense_backward);

// Bags: run k of the indices begins at offsets[k].

enum BagMode : int64_t { kSum = 0, kMean = 1, kMax = 2 };

// The bag of each of `count` indices: how many bags have begun there, less one.
Value bag_of_index(Builder& b, Value offsets, int64_t bags, int64_t count) {
  const Value starts = b.slice_dim(b.convert(offsets, DType::i64), 0, 0, bags);
  const Value marks = scatter(b, ScatterKind::Add, b.zeros(DType::i64, Dims{count + 1}),
                              b.ones(DType::i64, Dims{bags}), {starts}, Dims{0}, 0);
  const Value begun = b.scan(hlo::ScanKind::Sum, b.slice_dim(marks, 0, 0, count), 0);
  return b.sub(begun, b.constant_int(DType::i64, 1));
}

// A vector cut or zero-filled to the length torch gives it.
Value fitted(Builder& b, Value x, const ResultType& type) {
  const int64_t wanted = type.dims.empty() ? 1 : type.dims[0];
  return b.pad(x, b.zeros(x.dtype()), Dims{0}, Dims{wanted - x.dim(0)});
}

Values embedding_bag(Builder& b, const OpCall& call) {
  const Value weight = call.tensor(0);
  const Value index = index_values(b, call.tensor(1));
  const Value offsets = call.tensor(2);
  const int64_t mode = call.integer(4);
  const Value scale = call.optional_tensor(6);
  const int64_t padding = call.integer(8);
  const int64_t count = index.dim(0), width = weight.dim(1);
  const int64_t bags = offsets.dim(0) - (call.flag(7) ? 1 : 0);
  const DType wide = opmath(weight.dtype());

  const Value bag = bag_of_index(b, offsets, bags, count);
  const Value real = padding < 0 ? b.ones(DType::pred, Dims{count})
                                 : b.ne(index, b.constant_int(index.dtype(), padding));
  const Value bag_size = scatter(b, ScatterKind::Add, b.zeros(DType::i64, Dims{bags}),
                                 b.convert(real, DType::i64), {bag}, Dims{0}, 0);
  Value rows = b.convert(read_rows(b, weight, index), wide);
  if (scale.defined()) rows = b.mul(rows, per_row(b, b.convert(scale, wide)));

  Value output, largest_index = b.zeros(DType::i64, call.result(3).dims);
  const Value row_is_real = b.broadcast_to(per_row(b, real), rows.dims());
  const Dims shape{bags, width};
  if (mode == kMax) {
    const Value floor = lowest(b, wide);
    rows = b.select(row_is_real, rows, floor);
    const Value largest =
        scatter(b, ScatterKind::Max, b.broadcast_to(floor, shape), rows, {bag}, Dims{0}, 0);
    const Value empty = per_row(b, b.eq(bag_size, b.zeros(DType::i64)));
    output = b.select(empty, b.zeros(wide), largest);
    if (count_elements(call.result(3).dims) > 0) {
      // The first index of the bag that gives the largest value, per column.
      const Value of_bag = read_rows(b, largest, bag);
      const Value hit = b.bit_and(row_is_real, b.bit_or(b.eq(rows, of_bag), b.is_nan(rows)));
      const Value none = b.constant_int(DType::i64, count);
      const Value candidate = b.select(hit, b.iota(DType::i64, rows.dims(), 0), none);
      const Value first =
          scatter(b, ScatterKind::Min, b.broadcast_to(none, shape), candidate, {bag}, Dims{0}, 0);
      const Value missing = b.eq(first, none);
      const Value row = b.select(missing, b.zeros(DType::i64), first);
      const Value found =
          count == 0 ? b.zeros(DType::i64, shape) : b.convert(read_rows(b, index, row), DType::i64);
      largest_index = b.select(missing, b.constant_int(DType::i64, -1), found);
    }
  } else {
    rows = b.select(row_is_real, rows, b.zeros(wide));
    output = scatter(b, ScatterKind::Add, b.zeros(wide, shape), rows, {bag}, Dims{0}, 0);
    if (mode == kMean) {
      const Value size = b.max(bag_size, b.ones(DType::i64));
      output = b.div(output, per_row(b, b.convert(size, wide)));
    }
  }
  return {b.convert(output, weight.dtype()), fitted(b, bag, call.result(1)),
          fitted(b, bag_size, call.result(2)), largest_index};
}
NEURON_LOWERING(
    "aten::_embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool "
    "scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, "
    "bool include_last_offset=False, int padding_idx=-1) -> (Tensor, Tensor, Tensor, Tensor)",
    embedding_bag);
NEURON_LOWERING(
    "aten::_embedding_bag_forward_only(Tensor weight, Tensor indices, Tensor offsets, bool "
    "scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, "
    "bool include_last_offset=False, int padding_idx=-1) -> (Tensor, Tensor, Tensor, Tensor)",
    embedding_bag);

struct BagGradient {
  Value grad, index, bag, bag_size, largest_index, scale;
  int64_t table_rows, mode, padding;
  bool scale_by_frequency;
};

Value bag_gradient(Builder& b, const BagGradient& g) {
  const DType dtype = g.grad.dtype(), wide = opmath(dtype);
  const Value grad = b.convert(g.grad, wide);
  if (g.mode == kMax) {
    // Every column of a bag goes to the row that gave it; bags without one go nowhere.
    const Value found = b.convert(g.largest_index, DType::i64);
    const Value missing = b.lt(found, b.zeros(DType::i64));
    const Values at{b.select(missing, b.zeros(DType::i64), found),
                    b.iota(DType::i64, found.dims(), 1)};
    const Value kept = b.select(missing, b.zeros(wide), grad);
    const Value zeros = b.zeros(wide, Dims{g.table_rows, grad.dim(1)});
    return b.convert(scatter(b, ScatterKind::Add, zeros, kept, at, Dims{0, 1}, 0), dtype);
  }
  const Value bag = index_values(b, g.bag);
  Value rows = read_rows(b, grad, bag);
  if (g.mode == kMean) {
    const Value size = read_rows(b, b.convert(g.bag_size, wide), bag);
    rows = b.div(rows, per_row(b, size));
  }
  if (g.scale.defined()) rows = b.mul(rows, per_row(b, b.convert(g.scale, wide)));
  return b.convert(table_gradient(b, rows, index_values(b, g.index), g.table_rows, g.padding,
                                  g.scale_by_frequency),
                   dtype);
}

Values embedding_bag_dense_backward(Builder& b, const OpCall& call) {
  return {bag_gradient(b, {call.tensor(0), call.tensor(1), call.tensor(2), call.tensor(3),
                           call.tensor(4), call.optional_tensor(8), call.integer(5),
                           call.integer(7), call.integer(9), call.flag(6)})};
}
NEURON_LOWERING(
    "aten::_embedding_bag_dense_backward(Tensor grad, Tensor indices, Tensor offset2bag, Tensor "
    "bag_size, Tensor maximum_indices, SymInt num_weights, bool scale_grad_by_freq, int mode, "
    "Tensor? per_sample_weights, int padding_idx=-1) -> Tensor",
    embedding_bag_dense_backward);

Values embedding_bag_backward(Builder& b, const OpCall& call) {
  NEURON_CHECK(!call.flag(9), kUnsupported, "gradients of embedding_bag cannot be sparse");
  return {bag_gradient(b, {call.tensor(0), call.tensor(1), call.tensor(3), call.tensor(4),
                           call.tensor(5), call.optional_tensor(10), call.integer(6),
                           call.integer(8), call.integer(11), call.flag(7)})};
}
NEURON_LOWERING(
    "aten::_embedding_bag_backward(Tensor grad, Tensor indices, Tensor offsets, Tensor offset2bag, "
    "Tensor bag_size, Tensor maximum_indices, SymInt num_weights, bool scale_grad_by_freq, int "
    "mode, bool sparse, Tensor? per_sample_weights, int padding_idx=-1) -> Tensor",
    embedding_bag_backward);

Values bag_weights_backward(Builder& b, const OpCall& call) {
  const Value grad = call.tensor(0);
  const DType wide = opmath(grad.dtype());
  const Value index = index_values(b, call.tensor(2));
  const int64_t padding = call.integer(6);
  const Value of_bag = read_rows(b, b.convert(grad, wide), index_values(b, call.tensor(4)));
  const Value rows = b.convert(read_rows(b, call.tensor(1), index), wide);
  Value result = b.sum(b.mul(of_bag, rows), Dims{1});
  if (padding >= 0) {
    const Value is_padding = b.eq(index, b.constant_int(index.dtype(), padding));
    result = b.select(is_padding, b.zeros(wide), result);
  }
  return {b.convert(result, grad.dtype())};
}
NEURON_LOWERING(
    "aten::_embedding_bag_per_sample_weights_backward(Tensor grad, Tensor weight, Tensor indices, "
    "Tensor offsets, Tensor offset2bag, int mode, int padding_idx=-1) -> Tensor",
    bag_weights_backward);

}  // namespace
}  // namespace neuron::lowering
