#pragma once

#include <complex>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "neuron/hlo/module.h"

namespace neuron::hlo {

class Builder;

/// A handle to one value of the module being built. Cheap to copy; valid while its Builder lives.
class Value {
 public:
  Value() = default;
  Value(const Builder* builder, ValueId id) : builder_(builder), id_(id) {}

  bool defined() const { return builder_ != nullptr; }
  ValueId id() const { return id_; }
  const Type& type() const;
  DType dtype() const { return type().dtype; }
  const Dims& dims() const { return type().dims; }
  int64_t rank() const { return static_cast<int64_t>(type().dims.size()); }
  /// Size of a dim; negative dims count from the end.
  int64_t dim(int64_t index) const;
  int64_t count() const { return count_elements(type().dims); }

 private:
  const Builder* builder_ = nullptr;
  ValueId id_ = kNoValue;
};

using Values = std::vector<Value>;

/// Numbers of DotGeneral: which dims are batch and which are contracted.
/// Ints: {nb, lhs_batch.., rhs_batch.., nc, lhs_contract.., rhs_contract..}.
/// The result has the batch dims, then the free dims of lhs, then those of rhs.
struct DotDims {
  Dims lhs_batch, rhs_batch, lhs_contract, rhs_contract;
  Ints encode() const;
  static DotDims decode(std::span<const int64_t> ints);
};

/// Convolution of NC<spatial> by OI<spatial> (I = channels / groups).
/// Ints: {spatial rank n, stride*n, pad_low*n, pad_high*n, lhs_dilation*n, rhs_dilation*n, groups,
/// batch_groups, reverse kernel (0/1)}.
struct ConvolutionDims {
  Dims stride, pad_low, pad_high, lhs_dilation, rhs_dilation;
  int64_t groups = 1;
  int64_t batch_groups = 1;
  bool reverse_kernel = false;
  Ints encode() const;
  static ConvolutionDims decode(std::span<const int64_t> ints);
};

/// Window of ReduceWindow over all dims of the operand.
/// Ints: {kind, rank n, size*n, stride*n, dilation*n, pad_low*n, pad_high*n}.
struct WindowDims {
  Dims size, stride, dilation, pad_low, pad_high;
};

/// Builds a Module: the only way to make values. Checks shapes and dtypes as it goes and throws
/// Error(kInvalid) naming the op and both sides of a mismatch.
///
/// Elementwise methods broadcast their operands by numpy's rules first (emitting BroadcastInDim),
/// and demand equal dtypes. Constant operands are made with like()/constant().
/// Trivial work is folded on the way: broadcast to the own shape, convert to the own dtype, reshape
/// to the own shape, transpose by identity return their operand.
/// Not thread-safe. The Builder owns the module until finish().
class Builder {
 public:
  Builder() = default;
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  const Module& module() const { return module_; }
  /// The reference stays good while the Builder lives, whatever is built meanwhile.
  const Type& type(ValueId id) const { return types_[id]; }

  // --- Leaves -------------------------------------------------------------------------------
  /// A tensor argument; `strides` in elements (contiguous if empty and rank > 0).
  Value parameter(DType dtype, DimsRef dims, DimsRef strides = {});
  /// A run-time host scalar of kind i64, u64, f64 or c128.
  Value scalar(DType kind);
  /// A splat; the number is converted to `dtype` (out-of-range integers wrap).
  Value constant(DType dtype, double value, DimsRef dims = {});
  Value constant_int(DType dtype, int64_t value, DimsRef dims = {});
  Value constant_complex(DType dtype, std::complex<double> value, DimsRef dims = {});
  /// Dense elements in row-major order, little endian.
  Value literal(DType dtype, DimsRef dims, std::span<const std::byte> bytes);
  Value zeros(DType dtype, DimsRef dims = {}) { return constant(dtype, 0, dims); }
  Value ones(DType dtype, DimsRef dims = {}) { return constant(dtype, 1, dims); }
  /// A rank-0 constant of x's dtype.
  Value like(Value x, double value) { return constant(x.dtype(), value); }
  /// Element = its index along `dim`.
  Value iota(DType dtype, DimsRef dims, int64_t dim);

  // --- Elementwise --------------------------------------------------------------------------
  Value unary(Op op, Value x);
  Value binary(Op op, Value a, Value b);
  /// Numeric conversion; to pred: x != 0; float to integer truncates, out of range as the CPU does.
  Value convert(Value x, DType dtype);
  /// Reinterprets the bits; element sizes must be equal.
  Value bitcast(Value x, DType dtype);
  Value compare(Direction direction, Value a, Value b);
  Value select(Value predicate, Value on_true, Value on_false);
  Value fma(Value a, Value b, Value c);

  Value abs(Value x) { return unary(Op::Abs, x); }
  Value neg(Value x) { return unary(Op::Negate, x); }
  Value sign(Value x) { return unary(Op::Sign, x); }
  Value exp(Value x) { return unary(Op::Exp, x); }
  Value expm1(Value x) { return unary(Op::Expm1, x); }
  Value log(Value x) { return unary(Op::Log, x); }
  Value log1p(Value x) { return unary(Op::Log1p, x); }
  Value sqrt(Value x) { return unary(Op::Sqrt, x); }
  Value rsqrt(Value x) { return unary(Op::Rsqrt, x); }
  Value floor(Value x) { return unary(Op::Floor, x); }
  Value ceil(Value x) { return unary(Op::Ceil, x); }
  Value trunc(Value x) { return unary(Op::Trunc, x); }
  Value logistic(Value x) { return unary(Op::Logistic, x); }
  Value tanh(Value x) { return unary(Op::Tanh, x); }
  Value sin(Value x) { return unary(Op::Sine, x); }
  Value cos(Value x) { return unary(Op::Cosine, x); }
  Value erf(Value x) { return unary(Op::Erf, x); }
  Value logical_not(Value x) { return unary(Op::Not, x); }
  Value is_nan(Value x) { return unary(Op::IsNan, x); }
  Value is_finite(Value x) { return unary(Op::IsFinite, x); }
  Value real(Value x) { return unary(Op::Real, x); }
  Value imag(Value x) { return unary(Op::Imag, x); }

  Value add(Value a, Value b) { return binary(Op::Add, a, b); }
  Value sub(Value a, Value b) { return binary(Op::Subtract, a, b); }
  Value mul(Value a, Value b) { return binary(Op::Multiply, a, b); }
  Value div(Value a, Value b) { return binary(Op::Divide, a, b); }
  Value rem(Value a, Value b) { return binary(Op::Remainder, a, b); }
  Value pow(Value a, Value b) { return binary(Op::Power, a, b); }
  Value max(Value a, Value b) { return binary(Op::Maximum, a, b); }
  Value min(Value a, Value b) { return binary(Op::Minimum, a, b); }
  Value atan2(Value a, Value b) { return binary(Op::Atan2, a, b); }
  Value bit_and(Value a, Value b) { return binary(Op::And, a, b); }
  Value bit_or(Value a, Value b) { return binary(Op::Or, a, b); }
  Value bit_xor(Value a, Value b) { return binary(Op::Xor, a, b); }
  Value complex(Value real, Value imag) { return binary(Op::Complex, real, imag); }
  Value eq(Value a, Value b) { return compare(Direction::EQ, a, b); }
  Value ne(Value a, Value b) { return compare(Direction::NE, a, b); }
  Value lt(Value a, Value b) { return compare(Direction::LT, a, b); }
  Value le(Value a, Value b) { return compare(Direction::LE, a, b); }
  Value gt(Value a, Value b) { return compare(Direction::GT, a, b); }
  Value ge(Value a, Value b) { return compare(Direction::GE, a, b); }

  /// u32 word `word` (0..3) of Philox4x32-10(key = seed, counter = offset + linear index,
  /// as the low 64 of the 128 counter bits; the high ones are 0). seed and offset are u64 of rank
  /// 0.
  Value philox_word(Value seed, Value offset, int64_t word, DimsRef dims);

  // --- Views --------------------------------------------------------------------------------
  /// Operand dim i becomes result dim `mapping[i]`; sizes are equal or 1. Ints: mapping.
  Value broadcast_in_dim(Value x, DimsRef dims, DimsRef mapping);
  /// Numpy broadcast of x to `dims`.
  Value broadcast_to(Value x, DimsRef dims);
  Value reshape(Value x, DimsRef dims);
  /// Result dim i is operand dim `permutation[i]`. Ints: permutation.
  Value transpose(Value x, DimsRef permutation);
  /// Ints: {start*n, limit*n, stride*n}.
  Value slice(Value x, DimsRef start, DimsRef limit, DimsRef stride = {});
  /// One dim only.
  Value slice_dim(Value x, int64_t dim, int64_t start, int64_t limit, int64_t stride = 1);
  /// low/high may be negative (crop); interior >= 0. `fill` is rank 0. Ints: {low*n, high*n,
  /// interior*n}.
  Value pad(Value x, Value fill, DimsRef low, DimsRef high, DimsRef interior = {});
  /// Ints: {dim}.
  Value concatenate(std::span<const Value> parts, int64_t dim);
  /// Ints: the reversed dims.
  Value reverse(Value x, DimsRef dims);
  /// Reads x, seen as a flat row-major buffer, at offset + sum(index * stride).
  /// Ints: {offset, stride*n}.
  Value as_strided(Value x, DimsRef dims, DimsRef strides, int64_t offset);
  Value squeeze(Value x, int64_t dim);
  Value unsqueeze(Value x, int64_t dim);

  // --- Structured ---------------------------------------------------------------------------
  // Of an op with several results, the node itself is result 0; a TupleElement gives result k > 0.
  /// x with `update` written at offset + sum(index * stride) of its flat row-major buffer.
  /// Ints: {offset, stride*n}.
  Value as_strided_scatter(Value x, Value update, DimsRef strides, int64_t offset);
  /// `x` with `update` placed at the start indices (rank-0 integers), clamped so that it fits.
  Value dynamic_update_slice(Value x, Value update, std::span<const Value> starts);
  /// Element gather. `indices` are integer tensors of one shape S; indices[k] indexes operand dim
  /// `dims[k]`. The result is the operand's other dims in order with S inserted at `position`.
  /// Indices are already non-negative (wrap them first). Ints: {position, mode, dims...}.
  Value gather(Value x, std::span<const Value> indices, DimsRef dims, int64_t position,
               OutOfBounds mode = OutOfBounds::Fail);
  /// The reverse: combines `updates` (shape as gather would give) into x, in row-major order of
  /// updates, so duplicates are deterministic. Ints: {position, kind, dims...}.
  Value scatter(ScatterKind kind, Value x, Value updates, std::span<const Value> indices,
                DimsRef dims, int64_t position);
  /// Reduces `dims` away (kept as size 1 if keep). The result has x's dtype; callers widen first.
  /// Sum and Product accumulate bf16/f16 in f32. Empty: the identity (Max/Min: -inf/inf or the
  /// integer's end). Max/Min propagate NaN. Ints: {kind, dims...} (keep becomes a Reshape).
  Value reduce(ReduceKind kind, Value x, DimsRef dims, bool keep = false);
  Value sum(Value x, DimsRef dims, bool keep = false) {
    return reduce(ReduceKind::Sum, x, dims, keep);
  }
  Value sum_keepdim(Value x, int64_t dim);
  Value max_keepdim(Value x, int64_t dim);
  /// Index (i64) of the first maximum / minimum along `dim`; a NaN counts as the extreme.
  /// Ints: {dim, is_max}.
  Value arg_reduce(bool is_max, Value x, int64_t dim, bool keep = false);
  /// Inclusive scan along `dim`. Ints: {kind, dim}.
  Value scan(ScanKind kind, Value x, int64_t dim);
  Value reduce_window(ReduceKind kind, Value x, const WindowDims& window);
  /// Result dtype `out` (default: lhs's); bf16/f16/f32 products accumulate in f32.
  Value dot_general(Value lhs, Value rhs, const DotDims& dims);
  /// [.., m, k] x [.., k, n] -> [.., m, n]; leading dims equal.
  Value matmul(Value lhs, Value rhs);
  Value convolution(Value input, Value kernel, const ConvolutionDims& dims);
  /// {sorted values, i64 indices}; NaN is the greatest. Stable, unless `any_order` lets equal
  /// values come in whatever order is fastest. Ints: {dim, descending + 2 * any_order}.
  Values sort(Value x, int64_t dim, bool descending, bool any_order = false);
  /// A kernel that only a library implements; see neff/arguments.h for `arguments`.
  Values library_call(std::string name, std::span<const Value> operands,
                      std::span<const Type> results, std::span<const std::byte> arguments = {},
                      std::span<const int64_t> ints = {});

  // --- Between devices ----------------------------------------------------------------------
  // As in StableHLO, with global device ids. Every device of a group must run it; chunks are in the
  // order of the group's row. All groups have one size.
  /// The sum (product, ...) over the group, in a fixed order. Halves are summed in f32.
  Value all_reduce(ReduceKind kind, Value x, const ReplicaGroups& groups);
  /// Everybody's x, one behind the other along `dim`.
  Value all_gather(Value x, int64_t dim, const ReplicaGroups& groups);
  /// Of the reduction, the chunk along `dim` that belongs to this device.
  Value reduce_scatter(ReduceKind kind, Value x, int64_t dim, const ReplicaGroups& groups);
  /// Chunk i of x along `split_dim` goes to the group's device i; what comes is joined along
  /// `concat_dim`.
  Value all_to_all(Value x, int64_t split_dim, int64_t concat_dim, const ReplicaGroups& groups);
  /// Rows are {source, target}; who is no target gets zeros.
  Value collective_permute(Value x, const ReplicaGroups& pairs);
  /// x of the group's first device.
  Value collective_broadcast(Value x, const ReplicaGroups& groups);

  // --- End ----------------------------------------------------------------------------------
  /// Adds a result; strides default to contiguous.
  void result(Value value, DimsRef strides = {}, int32_t alias = -1, bool staged = false);
  /// Takes the module. The Builder and its Values are dead afterwards.
  Module finish() { return std::move(module_); }

 private:
  Value push(Node node);
  Module module_;
  std::deque<Type> types_;  // Of module_.nodes_, at stable addresses.
};

inline const Type& Value::type() const { return builder_->type(id_); }
inline int64_t Value::dim(int64_t index) const {
  return type().dims[static_cast<size_t>(index < 0 ? index + rank() : index)];
}

}  // namespace neuron::hlo
