#pragma once

#include <initializer_list>

#include "neuron/lowering/op_call.h"

namespace neuron::lowering {

/// What torch's CPU kernels compute an elementwise op in: f32 for f16, bf16 and f8; the type itself
/// otherwise.
DType opmath(DType type);
/// What sums run in: as opmath; i64 for pred and integers.
DType accumulation_dtype(DType type);
/// The complex type with this real part (f64 -> c128, everything else -> c64).
DType complex_of(DType type);
/// torch.promote_types. Throws Error(kUnsupported) for pairs that torch does not promote.
DType promote_types(DType a, DType b);
/// torch.result_type of these arguments (tensors and Scalars): tensors with dims come before 0-dim
/// tensors, those before numbers, each only if its category (bool, int, float, complex) is higher.
DType result_type(const OpCall& call, std::initializer_list<size_t> arguments);
/// Integers and pred become torch's default float type, as in true division and sin().
DType float_type(const OpCall& call, DType type);

/// Argument i (tensor or Scalar) in `dtype`, as TensorIterator casts its operands.
Value operand(const OpCall& call, size_t i, DType dtype);
/// Argument i (tensor or Scalar), cast to `common` and widened to opmath(common). With
/// `keep_scalar` numbers and 0-dim floats skip the rounding to `common`, as the CPU's arithmetic
/// kernels do.
Value math_operand(const OpCall& call, size_t i, DType common, bool keep_scalar = false);

/// The largest finite float of a type.
double largest_finite(DType type);
/// The distance from 1 to the next larger float of a type.
double epsilon_of(DType type);
/// Largest and smallest values of a type: infinities for floats.
Value highest(Builder& b, DType type);
Value lowest(Builder& b, DType type);

/// Two operands in the math type of their common type.
struct BinaryOperands {
  Value a, b;
  DType common;
};
BinaryOperands binary_operands(const OpCall& call, size_t i, size_t j, bool keep_scalar = false);

/// x and y elementwise with select semantics on NaN as torch.maximum/minimum; or/and on pred.
Value maximum(Builder& b, Value x, Value y);
Value minimum(Builder& b, Value x, Value y);
/// Conjunction, disjunction of pred values.
Value both(Builder& b, Value x, Value y);
Value either(Builder& b, Value x, Value y);

/// Shape helper: sizes of `x` with dims in `dims` set to 1.
Dims kept_dims(Value x, DimsRef dims);
/// Product of the sizes of `dims`.
int64_t count_of(Value x, DimsRef dims);
/// x (reduced without keep) with size-1 dims put back at `dims` of a tensor shaped like `like`.
Value restore_dims(Builder& b, Value x, Value like, DimsRef dims);
/// Mean over dims in x's dtype; 0/0 = NaN for empty.
Value mean(Builder& b, Value x, DimsRef dims, bool keep);
/// 1-dim `x` of size C broadcast against rank `rank` along `dim`.
Value along(Builder& b, Value x, int64_t rank, int64_t dim);

}  // namespace neuron::lowering
