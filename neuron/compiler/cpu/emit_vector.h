#pragma once

#include <cstdint>
#include <span>

#include "neuron/compiler/cpu/loop_nest.h"

namespace llvm {
class Function;
class IRBuilderBase;
class Type;
class Value;
}  // namespace llvm

namespace neuron::compiler::cpu {

/// Lanes of every vector, whatever the element type; LLVM splits or widens to the registers.
inline constexpr int kLanes = 16;

/// What the target offers beyond the base (AVX2, FMA, F16C).
struct TargetTraits {
  bool avx512 = false;  // F, BW, DQ, VL: masks everywhere, gathers and scatters
};

/// One value of 16 lanes. Complex numbers are two vectors; pred is a vector of i1; the narrow
/// floats are held as their bit patterns (i8, i16) and computed in f32.
struct Lanes {
  llvm::Value* re = nullptr;
  llvm::Value* im = nullptr;
};

/// Emits operations on Lanes at the builder's position. Not thread-safe; borrows the builder.
class VectorEmitter {
 public:
  VectorEmitter(llvm::IRBuilderBase& builder, TargetTraits traits) : b(builder), traits(traits) {}

  // --- Types ----------------------------------------------------------------------------------
  /// Scalar type of a lane in a register (the part's type for complex).
  llvm::Type* lane_type(DType type);
  /// Scalar type in memory: i8 for pred, else the lane's.
  llvm::Type* memory_type(DType type);
  llvm::Type* vector_of(llvm::Type* element);
  llvm::Type* vector_type(DType type) { return vector_of(lane_type(type)); }

  // --- Leaves ---------------------------------------------------------------------------------
  Lanes constant(DType type, const uint64_t bits[2]);
  Lanes zero(DType type);
  llvm::Value* splat(llvm::Value* scalar);
  Lanes splat(const Lanes& scalar);
  /// <0, 1, ... 15> of i64.
  llvm::Value* iota64();
  llvm::Value* i64(int64_t value);

  // --- Arithmetic -----------------------------------------------------------------------------
  Lanes convert(const Lanes& x, DType from, DType to);
  /// One Compute stmt; `type` is the operands' type (the second operand's for Select).
  Lanes compute(hlo::Op op, DType type, std::span<const Lanes> in, int64_t number, DType result);
  Lanes select(llvm::Value* mask, const Lanes& on_true, const Lanes& on_false);
  llvm::Value* is_true(const Lanes& x, DType type);
  /// Ten rounds of Philox4x32; key and counter are vectors of i64.
  void philox(llvm::Value* key, llvm::Value* counter, llvm::Value* words[4]);

  // --- Reductions -----------------------------------------------------------------------------
  Lanes identity(hlo::ReduceKind kind, DType type);
  Lanes combine(hlo::ReduceKind kind, DType type, const Lanes& a, const Lanes& b);
  /// (value, index) pairs; the index of the first extreme wins. Index i64 in `*_index`.
  void combine_arg(hlo::ReduceKind kind, DType type, Lanes& a, llvm::Value*& a_index,
                   const Lanes& other, llvm::Value* other_index);
  /// Lanes shifted down by `distance`, for trees over one vector.
  Lanes shift_lanes(const Lanes& x, int distance);
  llvm::Value* shift_lanes(llvm::Value* x, int distance);

  // --- Memory ---------------------------------------------------------------------------------
  /// Elements base[index + lane * stride]; `mask` null: all lanes. Masked-off lanes give zero.
  /// `dummy` is the address of 16 zero bytes that scalarised accesses may touch.
  Lanes load(DType type, llvm::Value* base, llvm::Value* index, Stride kind, llvm::Value* stride,
             llvm::Value* mask, llvm::Value* dummy);
  /// Elements base[offsets], one offset (i64, elements) per lane.
  Lanes gather(DType type, llvm::Value* base, llvm::Value* offsets, llvm::Value* mask,
               llvm::Value* dummy);
  void store(DType type, const Lanes& value, llvm::Value* base, llvm::Value* index, Stride kind,
             llvm::Value* stride, llvm::Value* mask, llvm::Value* dummy);
  /// A whole vector, around the caches; the address must be a multiple of its size (at most 64).
  void store_streaming(DType type, const Lanes& value, llvm::Value* base, llvm::Value* index);
  /// One element, as a scalar pair.
  Lanes load_scalar(DType type, llvm::Value* pointer);
  /// Lane 0.
  void store_scalar(DType type, const Lanes& value, llvm::Value* pointer);
  /// base + index elements of `type`.
  llvm::Value* element_pointer(DType type, llvm::Value* base, llvm::Value* index);

  llvm::IRBuilderBase& b;
  const TargetTraits traits;

 private:
  llvm::Value* widen_small(llvm::Value* bits, DType type);
  llvm::Value* narrow_small(llvm::Value* x, DType type);
  llvm::Value* float_to_int(llvm::Value* x, llvm::Type* element, bool is_signed);
  llvm::Value* compute_float(hlo::Op op, std::span<llvm::Value* const> in, int64_t number);
  llvm::Value* compute_int(hlo::Op op, DType type, std::span<llvm::Value* const> in,
                           int64_t number);
  Lanes compute_complex(hlo::Op op, DType type, std::span<const Lanes> in, int64_t number);
  llvm::Value* infinite_if_either(llvm::Value* length, const Lanes& z);
  llvm::Value* divide_int(DType type, llvm::Value* x, llvm::Value* y, bool remainder);
  llvm::Value* power_int(DType type, llvm::Value* x, llvm::Value* y);
  llvm::Value* gather_vector(llvm::Type* element, llvm::Value* pointers, llvm::Value* mask,
                             llvm::Value* dummy);
  void scatter_vector(llvm::Value* value, llvm::Value* pointers, llvm::Value* mask,
                      llvm::Value* dummy);
  llvm::Value* interleaved_mask(llvm::Value* mask);
};

}  // namespace neuron::compiler::cpu
