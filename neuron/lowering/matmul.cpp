// Matrix products. DotGeneral is the one matrix op; transposes and broadcasts of its operands are
// left to the compiler.

#include "neuron/base/error.h"
#include "neuron/lowering/numerics.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

using hlo::DotDims;

const DotDims kMatrix{{}, {}, {1}, {0}};
const DotDims kBatch{{0}, {0}, {2}, {1}};
const DotDims kMatrixVector{{}, {}, {1}, {0}};
const DotDims kVectors{{}, {}, {0}, {0}};

Value product(Builder& b, Value lhs, Value rhs, const DotDims& dims) {
  return b.dot_general(lhs, rhs, dims);
}

// The product in f32 where the operands are narrower: something is still to be added before the one
// rounding. The compiler sees through the widening.
Value wide_product(Builder& b, Value lhs, Value rhs, const DotDims& dims) {
  const DType wide = opmath(lhs.dtype());
  return b.dot_general(b.convert(lhs, wide), b.convert(rhs, wide), dims);
}

Values mm(Builder& b, const OpCall& call) {
  return {product(b, call.tensor(0), call.tensor(1), kMatrix)};
}
NEURON_LOWERING("aten::mm(Tensor self, Tensor mat2) -> Tensor", mm);

Values bmm(Builder& b, const OpCall& call) {
  return {product(b, call.tensor(0), call.tensor(1), kBatch)};
}
NEURON_LOWERING("aten::bmm(Tensor self, Tensor mat2) -> Tensor", bmm);

Values mv(Builder& b, const OpCall& call) {
  return {product(b, call.tensor(0), call.tensor(1), kMatrixVector)};
}
NEURON_LOWERING("aten::mv(Tensor self, Tensor vec) -> Tensor", mv);

Values dot(Builder& b, const OpCall& call) {
  return {product(b, call.tensor(0), call.tensor(1), kVectors)};
}
NEURON_LOWERING("aten::dot(Tensor self, Tensor tensor) -> Tensor", dot);

Values vdot(Builder& b, const OpCall& call) {
  Value x = call.tensor(0);
  if (is_complex(x.dtype())) x = b.complex(b.real(x), b.neg(b.imag(x)));
  return {product(b, x, call.tensor(1), kVectors)};
}
NEURON_LOWERING("aten::vdot(Tensor self, Tensor other) -> Tensor", vdot);

// With an output type of their own: f32 from narrower operands.
Values mm_dtype(Builder& b, const OpCall& call) {
  return {wide_product(b, call.tensor(0), call.tensor(1), kMatrix)};
}
Values bmm_dtype(Builder& b, const OpCall& call) {
  return {wide_product(b, call.tensor(0), call.tensor(1), kBatch)};
}
NEURON_LOWERING("aten::mm.dtype(Tensor self, Tensor mat2, ScalarType out_dtype) -> Tensor",
                mm_dtype);
NEURON_LOWERING("aten::bmm.dtype(Tensor self, Tensor mat2, ScalarType out_dtype) -> Tensor",
                bmm_dtype);

// beta * self + alpha * product, in the accumulation type. beta == 0 hides self, NaN and all; both
// factors are run-time numbers.
Value combine(Builder& b, const OpCall& call, Value self, Value product, size_t beta_at,
              size_t alpha_at) {
  const DType wide = product.dtype();
  const Value beta = call.scalar(beta_at, wide);
  const Value alpha = call.scalar(alpha_at, wide);
  self = b.broadcast_to(b.convert(self, wide), product.dims());
  const Value scaled_self = b.select(b.eq(beta, b.zeros(wide)), b.zeros(wide), b.mul(self, beta));
  return b.add(b.mul(product, alpha), scaled_self);
}

Value narrow(Builder& b, const OpCall& call, Value wide) {
  return b.convert(wide, call.result().dtype);
}

Values addmm(Builder& b, const OpCall& call) {
  const Value wide = wide_product(b, call.tensor(1), call.tensor(2), kMatrix);
  return {narrow(b, call, combine(b, call, call.tensor(0), wide, 3, 4))};
}
NEURON_LOWERING(
    "aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> "
    "Tensor",
    addmm);

Values addmm_dtype(Builder& b, const OpCall& call) {
  const Value wide = wide_product(b, call.tensor(1), call.tensor(2), kMatrix);
  return {narrow(b, call, combine(b, call, call.tensor(0), wide, 4, 5))};
}
NEURON_LOWERING(
    "aten::addmm.dtype(Tensor self, Tensor mat1, Tensor mat2, ScalarType out_dtype, *, Scalar "
    "beta=1, Scalar alpha=1) -> Tensor",
    addmm_dtype);

Values addmm_activation(Builder& b, const OpCall& call) {
  const Value wide = wide_product(b, call.tensor(1), call.tensor(2), kMatrix);
  const Value x = narrow(b, call, combine(b, call, call.tensor(0), wide, 3, 4));
  if (!call.flag(5)) return {b.max(x, b.zeros(x.dtype()))};
  const Value y = b.convert(x, opmath(x.dtype()));
  const Value half = b.mul(y, b.like(y, 0.5));
  const Value gate = b.add(b.erf(b.mul(y, b.like(y, 0.70710678118654752440))), b.like(y, 1));
  return {narrow(b, call, b.mul(half, gate))};
}
NEURON_LOWERING(
    "aten::_addmm_activation(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar "
    "alpha=1, bool use_gelu=False) -> Tensor",
    addmm_activation);

Values baddbmm(Builder& b, const OpCall& call) {
  const Value wide = wide_product(b, call.tensor(1), call.tensor(2), kBatch);
  return {narrow(b, call, combine(b, call, call.tensor(0), wide, 3, 4))};
}
NEURON_LOWERING(
    "aten::baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> "
    "Tensor",
    baddbmm);

Values baddbmm_dtype(Builder& b, const OpCall& call) {
  const Value wide = wide_product(b, call.tensor(1), call.tensor(2), kBatch);
  return {narrow(b, call, combine(b, call, call.tensor(0), wide, 4, 5))};
}
NEURON_LOWERING(
    "aten::baddbmm.dtype(Tensor self, Tensor batch1, Tensor batch2, ScalarType out_dtype, *, "
    "Scalar beta=1, Scalar alpha=1) -> Tensor",
    baddbmm_dtype);

// The batch is summed too: one long contracted dim, with the batches of mat1 side by side.
Values addbmm(Builder& b, const OpCall& call) {
  const Value lhs = call.tensor(1), rhs = call.tensor(2);
  const int64_t contracted = lhs.dim(0) * lhs.dim(2);
  const Value wide =
      wide_product(b, b.reshape(b.transpose(lhs, Dims{1, 0, 2}), Dims{lhs.dim(1), contracted}),
                   b.reshape(rhs, Dims{contracted, rhs.dim(2)}), kMatrix);
  return {narrow(b, call, combine(b, call, call.tensor(0), wide, 3, 4))};
}
NEURON_LOWERING(
    "aten::addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> "
    "Tensor",
    addbmm);

Values addmv(Builder& b, const OpCall& call) {
  const Value wide = wide_product(b, call.tensor(1), call.tensor(2), kMatrixVector);
  return {narrow(b, call, combine(b, call, call.tensor(0), wide, 3, 4))};
}
NEURON_LOWERING(
    "aten::addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
    addmv);

Values addr(Builder& b, const OpCall& call) {
  const DType dtype = call.result().dtype;
  const DType wide = dtype == DType::pred ? DType::i64 : opmath(dtype);
  const Value column = b.unsqueeze(b.convert(call.tensor(1), wide), 1);
  const Value row = b.unsqueeze(b.convert(call.tensor(2), wide), 0);
  return {narrow(b, call, combine(b, call, call.tensor(0), b.mul(column, row), 3, 4))};
}
NEURON_LOWERING(
    "aten::addr(Tensor self, Tensor vec1, Tensor vec2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
    addr);

// Quantized products.

Values int_mm(Builder& b, const OpCall& call) {
  return {product(b, b.convert(call.tensor(0), DType::i32), b.convert(call.tensor(1), DType::i32),
                  kMatrix)};
}
NEURON_LOWERING("aten::_int_mm(Tensor self, Tensor mat2) -> Tensor", int_mm);

Values weight_int8pack_mm(Builder& b, const OpCall& call) {
  const Value x = b.convert(call.tensor(0), DType::f32);
  const Value weight = b.convert(call.tensor(1), DType::f32);
  const Value sum = product(b, x, weight, DotDims{{}, {}, {1}, {1}});
  return {b.mul(sum, b.convert(call.tensor(2), DType::f32))};
}
NEURON_LOWERING("aten::_weight_int8pack_mm(Tensor self, Tensor mat2, Tensor scales) -> Tensor",
                weight_int8pack_mm);

// One scale in all, or one per row of self and per column of mat2.
Value applicable_scale(Builder& b, Value scale, DimsRef shape) {
  scale = b.convert(scale, DType::f32);
  if (scale.count() == 1) return b.reshape(scale, Dims{});
  NEURON_CHECK(scale.rank() == 2 && (scale.dim(0) == 1 || scale.dim(0) == shape[0]) &&
                   (scale.dim(1) == 1 || scale.dim(1) == shape[1]),
               kUnsupported, "scales of shape ", to_string(scale.dims()),
               " (only one per tensor, or one per row and column)");
  return scale;
}

Values scaled_mm(Builder& b, const OpCall& call) {
  const Value lhs = b.convert(call.tensor(0), DType::f32);
  const Value rhs = b.convert(call.tensor(1), DType::f32);
  Value x = product(b, lhs, rhs, kMatrix);
  const Dims shape = x.dims();
  x = b.mul(x, applicable_scale(b, call.tensor(2), shape));
  x = b.mul(x, applicable_scale(b, call.tensor(3), shape));
  if (call.has(4)) x = b.add(x, b.convert(call.tensor(4), DType::f32));
  if (call.has(5) && is_float8(call.result().dtype)) {
    x = b.mul(x, applicable_scale(b, call.tensor(5), shape));
  }
  return {narrow(b, call, x)};
}
NEURON_LOWERING(
    "aten::_scaled_mm(Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b, Tensor? bias=None, "
    "Tensor? scale_result=None, ScalarType? out_dtype=None, bool use_fast_accum=False) -> Tensor",
    scaled_mm);

// The same with the kinds of scales spelled out; those of blocks are left to the CPU.
Values scaled_mm_by_recipe(Builder& b, const OpCall& call) {
  constexpr int64_t kRowWise = 1;
  for (const size_t recipe : {size_t{3}, size_t{6}}) {
    const Dims kinds = call.ints(recipe);
    NEURON_CHECK(kinds.size() == 1 && kinds[0] <= kRowWise && call.tensors(recipe - 1).size() == 1,
                 kUnsupported, "scales of blocks");
  }
  const Value lhs = b.convert(call.tensor(0), DType::f32);
  const Value rhs = b.convert(call.tensor(1), DType::f32);
  Value x = product(b, lhs, rhs, kMatrix);
  const Dims shape = x.dims();
  x = b.mul(x, applicable_scale(b, call.tensors(2)[0], shape));
  x = b.mul(x, applicable_scale(b, call.tensors(5)[0], shape));
  if (call.has(8)) x = b.add(x, b.convert(call.tensor(8), DType::f32));
  return {narrow(b, call, x)};
}
NEURON_LOWERING(
    "aten::_scaled_mm_v2(Tensor self, Tensor mat2, Tensor[] scale_a, int[] recipe_a, int[] "
    "swizzle_a, Tensor[] scale_b, int[] recipe_b, int[] swizzle_b, Tensor? bias, ScalarType? "
    "out_dtype, int[] contraction_dim=[], bool use_fast_accum=False) -> Tensor",
    scaled_mm_by_recipe);

// Without offsets the groups are the batch.
Values grouped_mm(Builder& b, const OpCall& call) {
  NEURON_CHECK(!call.has(2), kUnsupported,
               "_grouped_mm with offsets: the sizes of the products depend on values");
  Value x = wide_product(b, call.tensor(0), call.tensor(1), kBatch);
  if (call.has(3)) x = b.add(x, b.unsqueeze(b.convert(call.tensor(3), x.dtype()), 1));
  return {narrow(b, call, x)};
}
NEURON_LOWERING(
    "aten::_grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? "
    "out_dtype=None) -> Tensor",
    grouped_mm);

}  // namespace
}  // namespace neuron::lowering
