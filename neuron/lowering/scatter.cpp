// gather and scatter along a dim: the index tensor has the operand's rank and names, for each of
// its own positions, a position along that dim.

#include "neuron/base/error.h"
#include "neuron/lowering/indices.h"
#include "neuron/lowering/numerics.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

using hlo::ScatterKind;

// Operand and index, both of rank 1 or more.
struct Along {
  Value x, index;
  int64_t dim;
  Values indices;  // For every dim of x: `index` along `dim`, the own position elsewhere.
  Dims all_dims;
};

Along along_dim(Builder& b, Value x, int64_t dim, Value index) {
  Along a{x, index_values(b, index), dim, {}, {}};
  if (x.rank() == 0) a.x = b.reshape(x, Dims{1});
  if (index.rank() == 0) a.index = b.reshape(a.index, Dims{1});
  for (int64_t i = 0; i < a.x.rank(); ++i) {
    a.all_dims.push_back(i);
    a.indices.push_back(i == dim ? a.index : b.iota(a.index.dtype(), a.index.dims(), i));
  }
  return a;
}

Values gather(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const ResultType& result = call.result();
  if (count_elements(result.dims) == 0) return {b.zeros(result.dtype, result.dims)};
  const Along a = along_dim(b, x, call.dim(1, x.rank()), call.tensor(2));
  return {b.reshape(b.gather(a.x, a.indices, a.all_dims, 0), result.dims)};
}
NEURON_LOWERING(
    "aten::gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor",
    gather);

// The part of `source` that the index covers.
Value covered(Builder& b, const Along& a, Value source, DType dtype) {
  source = b.convert(source, dtype);
  if (source.rank() == 0) return b.broadcast_to(source, a.index.dims());
  Dims start(static_cast<size_t>(source.rank()), 0);
  if (source.dims() == a.index.dims()) return source;
  return b.slice(source, start, a.index.dims());
}

Value scatter_along(Builder& b, const OpCall& call, ScatterKind kind, Value source) {
  const Value x = call.tensor(0);
  const Value index = call.tensor(2);
  if (index.count() == 0) return x;
  const Along a = along_dim(b, x, call.dim(1, x.rank()), index);
  const Value updates = covered(b, a, source, x.dtype());
  return b.reshape(scatter(b, kind, a.x, updates, a.indices, a.all_dims, 0), x.dims());
}

Values scatter_source(Builder& b, const OpCall& call) {
  return {scatter_along(b, call, ScatterKind::Set, call.tensor(3))};
}
NEURON_LOWERING("aten::scatter.src(Tensor self, int dim, Tensor index, Tensor src) -> Tensor",
                scatter_source);

Values scatter_value(Builder& b, const OpCall& call) {
  return {scatter_along(b, call, ScatterKind::Set, call.scalar(3, call.tensor(0).dtype()))};
}
NEURON_LOWERING("aten::scatter.value(Tensor self, int dim, Tensor index, Scalar value) -> Tensor",
                scatter_value);

Values scatter_add(Builder& b, const OpCall& call) {
  return {scatter_along(b, call, ScatterKind::Add, call.tensor(3))};
}
NEURON_LOWERING("aten::scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor",
                scatter_add);

ScatterKind two_way_kind(std::string_view name) {
  if (name == "add") return ScatterKind::Add;
  NEURON_CHECK(name == "multiply", kInvalid, "reduce argument must be either add or multiply, not ",
               name);
  return ScatterKind::Multiply;
}

Values scatter_source_reduce(Builder& b, const OpCall& call) {
  return {scatter_along(b, call, two_way_kind(call.text(4)), call.tensor(3))};
}
NEURON_LOWERING(
    "aten::scatter.reduce(Tensor self, int dim, Tensor index, Tensor src, *, str reduce) -> Tensor",
    scatter_source_reduce);

Values scatter_value_reduce(Builder& b, const OpCall& call) {
  return {
      scatter_along(b, call, two_way_kind(call.text(4)), call.scalar(3, call.tensor(0).dtype()))};
}
NEURON_LOWERING(
    "aten::scatter.value_reduce(Tensor self, int dim, Tensor index, Scalar value, *, str reduce) "
    "-> Tensor",
    scatter_value_reduce);

// sum, prod, mean, amax, amin, with or without what was there before.

struct Reduction {
  ScatterKind kind;
  bool mean;
};

Reduction reduction_of(std::string_view name) {
  if (name == "sum") return {ScatterKind::Add, false};
  if (name == "mean") return {ScatterKind::Add, true};
  if (name == "prod") return {ScatterKind::Multiply, false};
  if (name == "amax") return {ScatterKind::Max, false};
  NEURON_CHECK(name == "amin", kInvalid,
               "reduce argument must be either sum, prod, mean, amax or amin, got ", name);
  return {ScatterKind::Min, false};
}

Value identity_of(Builder& b, ScatterKind kind, DType dtype) {
  switch (kind) {
    case ScatterKind::Multiply:
      return b.constant(dtype, 1);
    case ScatterKind::Max:
      return lowest(b, dtype);
    case ScatterKind::Min:
      return highest(b, dtype);
    case ScatterKind::Set:
    case ScatterKind::Add:
      break;
  }
  return b.zeros(dtype);
}

// Integers divide downwards, as torch's mean of integers does here.
Value divide_down(Builder& b, Value x, Value count) {
  const Value quotient = b.div(x, count);
  if (!is_integer(x.dtype())) return quotient;
  const Value negative = b.lt(b.rem(x, count), b.constant_int(x.dtype(), 0));
  return b.select(negative, b.sub(quotient, b.constant_int(x.dtype(), 1)), quotient);
}

Value reduce_into(Builder& b, Value x, Value updates, const Values& indices, DimsRef dims,
                  int64_t position, Reduction reduction, bool include_self) {
  const DType dtype = x.dtype();
  if (reduction.mean) {
    // Narrow floats would lose both the sum and the count.
    x = b.convert(x, opmath(dtype));
    updates = b.convert(updates, opmath(dtype));
  }
  if (!include_self) {
    const Value identity = identity_of(b, reduction.kind, x.dtype());
    x = scatter(b, ScatterKind::Set, x, b.broadcast_to(identity, updates.dims()), indices, dims,
                position);
  }
  Value result = scatter(b, reduction.kind, x, updates, indices, dims, position);
  if (reduction.mean) {
    const Value ones = b.ones(x.dtype(), updates.dims());
    Value count =
        scatter(b, ScatterKind::Add, b.constant(x.dtype(), include_self ? 1 : 0, x.dims()), ones,
                indices, dims, position);
    if (!include_self) {
      const Value one = b.ones(x.dtype());
      count = b.select(b.eq(count, b.zeros(x.dtype())), one, count);
    }
    result = b.convert(divide_down(b, result, count), dtype);
  }
  return result;
}

Values scatter_reduce(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const Value index = call.tensor(2);
  if (index.count() == 0) return {x};
  const Along a = along_dim(b, x, call.dim(1, x.rank()), index);
  const Value updates = covered(b, a, call.tensor(3), x.dtype());
  const Value result = reduce_into(b, a.x, updates, a.indices, a.all_dims, 0,
                                   reduction_of(call.text(4)), call.flag(5));
  return {b.reshape(result, x.dims())};
}
NEURON_LOWERING(
    "aten::scatter_reduce.two(Tensor self, int dim, Tensor index, Tensor src, str reduce, *, bool "
    "include_self=True) -> Tensor",
    scatter_reduce);

Values index_reduce(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const int64_t dim = call.dim(1, x.rank());
  const Value index = b.reshape(index_values(b, call.tensor(2)), Dims{call.tensor(2).count()});
  if (index.count() == 0) return {x};
  const Value target = x.rank() == 0 ? b.reshape(x, Dims{1}) : x;
  Dims sizes = target.dims();
  sizes[static_cast<size_t>(dim)] = index.dim(0);
  const Value updates = b.reshape(b.convert(call.tensor(3), x.dtype()), sizes);
  const Value result = reduce_into(b, target, updates, {index}, Dims{dim}, dim,
                                   reduction_of(call.text(4)), call.flag(5));
  return {b.reshape(result, x.dims())};
}
NEURON_LOWERING(
    "aten::index_reduce(Tensor self, int dim, Tensor index, Tensor source, str reduce, *, bool "
    "include_self=True) -> Tensor",
    index_reduce);

}  // namespace
}  // namespace neuron::lowering
