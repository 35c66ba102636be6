#include <llvm/IR/Constants.h>
#include <llvm/IR/IRBuilder.h>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/emit_vector.h"

// What reductions combine with: identities, the combining step, and moves between lanes.
namespace neuron::compiler::cpu {

using hlo::Op;
using hlo::ReduceKind;

Lanes VectorEmitter::identity(ReduceKind kind, DType type) {
  if (kind == ReduceKind::Sum || kind == ReduceKind::Or) return zero(type);
  if (is_complex(type)) {
    NEURON_CHECK(kind == ReduceKind::Product, kUnsupported,
                 "the CPU code generator has no such reduction of ", name_of(type));
    return {llvm::ConstantFP::get(vector_type(type), 1.0), zero(type).im};
  }
  llvm::Type* vector = vector_type(type);
  const bool real = type == DType::f32 || type == DType::f64;
  NEURON_CHECK(real || !is_floating(type), kInternal, "a reduction accumulates in ", name_of(type));
  const unsigned bits = vector->getScalarSizeInBits();
  const bool is_signed = is_signed_integer(type);
  switch (kind) {
    case ReduceKind::Product:
      return {real ? llvm::ConstantFP::get(vector, 1.0) : llvm::ConstantInt::get(vector, 1)};
    case ReduceKind::Max:
      if (real) return {llvm::ConstantFP::getInfinity(vector, true)};
      return {llvm::ConstantInt::get(vector, is_signed ? llvm::APInt::getSignedMinValue(bits)
                                                       : llvm::APInt::getMinValue(bits))};
    case ReduceKind::Min:
      if (real) return {llvm::ConstantFP::getInfinity(vector, false)};
      return {llvm::ConstantInt::get(vector, is_signed ? llvm::APInt::getSignedMaxValue(bits)
                                                       : llvm::APInt::getMaxValue(bits))};
    case ReduceKind::And:
      return {llvm::Constant::getAllOnesValue(vector)};
    case ReduceKind::Sum:
    case ReduceKind::Or:
      break;
  }
  return zero(type);
}

Lanes VectorEmitter::combine(ReduceKind kind, DType type, const Lanes& x, const Lanes& y) {
  const Lanes in[2] = {x, y};
  Op op = Op::Add;
  switch (kind) {
    case ReduceKind::Sum:
      op = Op::Add;
      break;
    case ReduceKind::Product:
      op = Op::Multiply;
      break;
    case ReduceKind::Max:
      op = Op::Maximum;
      break;
    case ReduceKind::Min:
      op = Op::Minimum;
      break;
    case ReduceKind::And:
      op = Op::And;
      break;
    case ReduceKind::Or:
      op = Op::Or;
      break;
  }
  return compute(op, type, in, 0, type);
}

void VectorEmitter::combine_arg(ReduceKind kind, DType type, Lanes& a, llvm::Value*& a_index,
                                const Lanes& other, llvm::Value* other_index) {
  NEURON_CHECK(kind == ReduceKind::Max || kind == ReduceKind::Min, kUnsupported,
               "an arg reduction is a maximum or a minimum");
  const bool is_max = kind == ReduceKind::Max;
  llvm::Value* earlier = b.CreateICmpSLT(other_index, a_index);
  llvm::Value* better;
  if (type == DType::f32 || type == DType::f64) {
    llvm::Value* a_nan = b.CreateFCmpUNO(a.re, a.re);
    llvm::Value* other_nan = b.CreateFCmpUNO(other.re, other.re);
    better = is_max ? b.CreateFCmpOGT(other.re, a.re) : b.CreateFCmpOLT(other.re, a.re);
    // Two NaNs tie as two equal numbers do; a NaN beats any number.
    llvm::Value* equal = b.CreateOr(b.CreateFCmpOEQ(other.re, a.re), b.CreateAnd(a_nan, other_nan));
    better = b.CreateOr(better, b.CreateAnd(other_nan, b.CreateNot(a_nan)));
    better = b.CreateOr(better, b.CreateAnd(equal, earlier));
  } else {
    const bool is_signed = is_signed_integer(type);
    llvm::Value* more =
        is_max ? (is_signed ? b.CreateICmpSGT(other.re, a.re) : b.CreateICmpUGT(other.re, a.re))
               : (is_signed ? b.CreateICmpSLT(other.re, a.re) : b.CreateICmpULT(other.re, a.re));
    better = b.CreateOr(more, b.CreateAnd(b.CreateICmpEQ(other.re, a.re), earlier));
  }
  a = select(better, other, a);
  a_index = b.CreateSelect(better, other_index, a_index);
}

llvm::Value* VectorEmitter::shift_lanes(llvm::Value* x, int distance) {
  int order[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) order[lane] = (lane + distance) % kLanes;
  return b.CreateShuffleVector(x, order);
}

Lanes VectorEmitter::shift_lanes(const Lanes& x, int distance) {
  return {shift_lanes(x.re, distance), x.im != nullptr ? shift_lanes(x.im, distance) : nullptr};
}

}  // namespace neuron::compiler::cpu
