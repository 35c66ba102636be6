#pragma once

#include "neuron/compiler/cpu/emit_vector.h"

namespace neuron::compiler::cpu {

/// Elementary functions on vectors of float or double, as straight-line code without calls.
/// f32: at most 2 ulp, f64: at most 4 ulp; special values as C has them.
class VectorMath {
 public:
  VectorMath(llvm::IRBuilderBase& builder, TargetTraits traits) : b_(builder), traits_(traits) {}

  /// True for the functions below; everything else is plain arithmetic or has no code.
  static bool has(hlo::Op op);
  llvm::Value* unary(hlo::Op op, llvm::Value* x);
  llvm::Value* power(llvm::Value* x, llvm::Value* y);
  llvm::Value* atan2(llvm::Value* y, llvm::Value* x);
  llvm::Value* fmod(llvm::Value* x, llvm::Value* y);
  llvm::Value* next_after(llvm::Value* x, llvm::Value* y);

 private:
  llvm::IRBuilderBase& b_;
  TargetTraits traits_;
};

}  // namespace neuron::compiler::cpu
