// Tensors made of numbers: fills, ranges, identities.

#include <cstring>

#include "neuron/base/error.h"
#include "neuron/lowering/numerics.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

#define NEURON_OPTIONS \
  "ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None"
#define NEURON_LIKE_OPTIONS NEURON_OPTIONS ", MemoryFormat? memory_format=None"
#define NEURON_LONG_OPTIONS \
  "ScalarType? dtype=4, Layout? layout=None, Device? device=None, bool? pin_memory=None"

// --- Fills ------------------------------------------------------------------------------------

Value filled(const OpCall& call, Value value) {
  return call.builder().broadcast_to(value, call.result().dims);
}

template <int number>
Values constant(Builder& b, const OpCall& call) {
  return {b.constant(call.result().dtype, number, call.result().dims)};
}
NEURON_LOWERING("aten::zero(Tensor self) -> Tensor", constant<0>);
NEURON_LOWERING("aten::zeros(SymInt[] size, *, " NEURON_OPTIONS ") -> Tensor", constant<0>);
NEURON_LOWERING("aten::zeros_like(Tensor self, *, " NEURON_LIKE_OPTIONS ") -> Tensor", constant<0>);
NEURON_LOWERING("aten::new_zeros(Tensor self, SymInt[] size, *, " NEURON_OPTIONS ") -> Tensor",
                constant<0>);
NEURON_LOWERING("aten::ones(SymInt[] size, *, " NEURON_OPTIONS ") -> Tensor", constant<1>);
NEURON_LOWERING("aten::ones_like(Tensor self, *, " NEURON_LIKE_OPTIONS ") -> Tensor", constant<1>);
NEURON_LOWERING("aten::new_ones(Tensor self, SymInt[] size, *, " NEURON_OPTIONS ") -> Tensor",
                constant<1>);

template <size_t argument>
Values fill_with(Builder&, const OpCall& call) {
  return {filled(call, operand(call, argument, call.result().dtype))};
}
NEURON_LOWERING("aten::fill.Scalar(Tensor self, Scalar value) -> Tensor", fill_with<1>);
NEURON_LOWERING("aten::fill.Tensor(Tensor self, Tensor value) -> Tensor", fill_with<1>);
NEURON_LOWERING("aten::full(SymInt[] size, Scalar fill_value, *, " NEURON_OPTIONS ") -> Tensor",
                fill_with<1>);
NEURON_LOWERING("aten::full_like(Tensor self, Scalar fill_value, *, " NEURON_LIKE_OPTIONS
                ") -> Tensor",
                fill_with<1>);
NEURON_LOWERING("aten::new_full(Tensor self, SymInt[] size, Scalar fill_value, *, " NEURON_OPTIONS
                ") -> Tensor",
                fill_with<2>);
NEURON_LOWERING("aten::scalar_tensor(Scalar s, *, " NEURON_OPTIONS ") -> Tensor", fill_with<0>);

// --- Ranges -----------------------------------------------------------------------------------

// torch's CPU computes float ranges in double: start + i * step.
DType range_math(DType type) {
  if (type == DType::f32 || type == DType::f64) return DType::f64;
  return is_floating(type) ? DType::f32 : DType::i64;
}

Values arithmetic_range(const OpCall& call, Value start, Value step) {
  // The bounds decide the length, so they belong to the key.
  for (size_t i = 0; i < call.size(); ++i) {
    if (call.argument(i).kind == Argument::Kind::Scalar) call.number(i);
  }
  Builder& b = call.builder();
  const Value index = b.iota(start.dtype(), call.result().dims, 0);
  return {b.add(start, b.mul(index, step))};
}

Values arange(Builder& b, const OpCall& call) {
  const DType math = range_math(call.result().dtype);
  return arithmetic_range(call, b.constant(math, 0), b.constant(math, 1));
}
NEURON_LOWERING("aten::arange(Scalar end, *, " NEURON_OPTIONS ") -> Tensor", arange);

Values arange_start(Builder& b, const OpCall& call) {
  const DType math = range_math(call.result().dtype);
  return arithmetic_range(call, call.scalar(0, math), b.constant(math, 1));
}
NEURON_LOWERING("aten::arange.start(Scalar start, Scalar end, *, " NEURON_OPTIONS ") -> Tensor",
                arange_start);
NEURON_LOWERING("aten::range(Scalar start, Scalar end, *, " NEURON_OPTIONS ") -> Tensor",
                arange_start);

Values arange_step(Builder&, const OpCall& call) {
  const DType math = range_math(call.result().dtype);
  return arithmetic_range(call, call.scalar(0, math), call.scalar(2, math));
}
NEURON_LOWERING(
    "aten::arange.start_step(Scalar start, Scalar end, Scalar step=1, *, " NEURON_OPTIONS
    ") -> Tensor",
    arange_step);
NEURON_LOWERING("aten::range.step(Scalar start, Scalar end, Scalar step=1, *, " NEURON_OPTIONS
                ") -> Tensor",
                arange_step);

// Both halves count from their own end, so that the last point is `end` exactly. Ranges of integers
// run between integers, with a fractional step.
Value points(const OpCall& call, DType math) {
  Builder& b = call.builder();
  const bool whole = is_integer(call.result().dtype);
  const auto bound = [&](size_t argument) {
    const Value x = operand(call, argument, math);
    return whole ? b.trunc(x) : x;
  };
  const Value start = bound(0), end = bound(1);
  const int64_t steps = call.integer(2);
  const Dims dims{steps};
  if (steps == 1) return b.broadcast_to(b.reshape(start, {}), dims);
  const Value first = b.reshape(start, {}), last = b.reshape(end, {});
  const Value step = b.div(b.sub(last, first), b.constant(math, static_cast<double>(steps - 1)));
  const Value index = b.iota(DType::i64, dims, 0);
  const Value up = b.add(first, b.mul(b.convert(index, math), step));
  const Value left = b.sub(b.constant_int(DType::i64, steps - 1), index);
  const Value down = b.sub(last, b.mul(b.convert(left, math), step));
  return b.select(b.lt(index, b.constant_int(DType::i64, steps / 2)), up, down);
}

DType points_math(DType type) {
  if (is_complex(type)) return type;
  return is_floating(type) ? opmath(type) : DType::f64;
}

Values linspace(Builder& b, const OpCall& call) {
  const DType out = call.result().dtype;
  if (call.integer(2) == 0) return {b.zeros(out, call.result().dims)};
  return {points(call, points_math(out))};
}
#define NEURON_SPACE(name, extra, function)                                                  \
  NEURON_LOWERING("aten::" name "(Scalar start, Scalar end, int steps, " extra               \
                  "*, " NEURON_OPTIONS ") -> Tensor",                                        \
                  function);                                                                 \
  NEURON_LOWERING("aten::" name ".Tensor_Tensor(Tensor start, Tensor end, int steps, " extra \
                  "*, " NEURON_OPTIONS ") -> Tensor",                                        \
                  function);                                                                 \
  NEURON_LOWERING("aten::" name ".Tensor_Scalar(Tensor start, Scalar end, int steps, " extra \
                  "*, " NEURON_OPTIONS ") -> Tensor",                                        \
                  function);                                                                 \
  NEURON_LOWERING("aten::" name ".Scalar_Tensor(Scalar start, Tensor end, int steps, " extra \
                  "*, " NEURON_OPTIONS ") -> Tensor",                                        \
                  function)
NEURON_SPACE("linspace", "", linspace);

Values logspace(Builder& b, const OpCall& call) {
  const DType out = call.result().dtype;
  if (call.integer(2) == 0) return {b.zeros(out, call.result().dims)};
  const DType math = points_math(out);
  return {b.pow(call.scalar(3, math), points(call, math))};
}
NEURON_SPACE("logspace", "float base=10., ", logspace);
#undef NEURON_SPACE

// --- Identities and triangles -----------------------------------------------------------------

Values eye(Builder& b, const OpCall& call) {
  const Dims& dims = call.result().dims;
  return {b.eq(b.iota(DType::i64, dims, 0), b.iota(DType::i64, dims, 1))};
}
NEURON_LOWERING("aten::eye(SymInt n, *, " NEURON_OPTIONS ") -> Tensor", eye);
NEURON_LOWERING("aten::eye.m(SymInt n, SymInt m, *, " NEURON_OPTIONS ") -> Tensor", eye);

// Rows above columns of a triangle, in row order, as a table in the program.
template <bool lower>
Values triangle_indices(Builder& b, const OpCall& call) {
  constexpr int64_t kLargestTable = 1 << 16;
  const int64_t rows = call.integer(0), columns = call.integer(1), offset = call.integer(2);
  const int64_t count = call.result().dims[1];
  NEURON_CHECK(count <= kLargestTable, kUnsupported, "a triangle of ", count, " elements");
  std::vector<int64_t> table;
  table.reserve(static_cast<size_t>(2 * count));
  const auto each = [&](auto&& visit) {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t diagonal = row + offset;
      const int64_t first = lower ? 0 : std::max<int64_t>(0, diagonal);
      const int64_t last = lower ? std::min(columns - 1, diagonal) : columns - 1;
      for (int64_t column = first; column <= last; ++column) visit(row, column);
    }
  };
  each([&](int64_t row, int64_t) { table.push_back(row); });
  each([&](int64_t, int64_t column) { table.push_back(column); });
  return {b.literal(DType::i64, call.result().dims, std::as_bytes(std::span(table)))};
}
NEURON_LOWERING("aten::tril_indices(int row, int col, int offset=0, *, " NEURON_LONG_OPTIONS
                ") -> Tensor",
                triangle_indices<true>);
NEURON_LOWERING("aten::triu_indices(int row, int col, int offset=0, *, " NEURON_LONG_OPTIONS
                ") -> Tensor",
                triangle_indices<false>);

}  // namespace
}  // namespace neuron::lowering
