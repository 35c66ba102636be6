#pragma once

// The loop shape shared by the emit_*.cpp files; includes LLVM, so only they include it.
#include <llvm/IR/Constants.h>
#include <llvm/IR/IRBuilder.h>

#include "neuron/compiler/cpu/emit_nest.h"

namespace neuron::compiler::cpu {

template <typename Body>
llvm::Value* NestEmitter::loop(V start, V limit, int64_t needed, int64_t step,
                               std::vector<V>& carried, Body body) {
  llvm::LLVMContext& context = b.getContext();
  llvm::BasicBlock* before = b.GetInsertBlock();
  auto* head = llvm::BasicBlock::Create(context, "loop", function_);
  auto* exit = llvm::BasicBlock::Create(context, "after", function_);
  const auto enters = [&](V index) {
    return needed == 1 ? b.CreateICmpSLT(index, limit)
                       : b.CreateICmpSLE(b.CreateAdd(index, v.i64(needed)), limit);
  };
  b.CreateCondBr(enters(start), head, exit);
  b.SetInsertPoint(head);
  llvm::PHINode* index = b.CreatePHI(b.getInt64Ty(), 2);
  index->addIncoming(start, before);
  std::vector<V> inner;
  for (V value : carried) {
    llvm::PHINode* phi = b.CreatePHI(value->getType(), 2);
    phi->addIncoming(value, before);
    inner.push_back(phi);
  }
  std::vector<V> results = inner;
  body(static_cast<V>(index), results);
  V next = b.CreateAdd(index, v.i64(step));
  llvm::BasicBlock* latch = b.GetInsertBlock();
  b.CreateCondBr(enters(next), head, exit);
  index->addIncoming(next, latch);
  for (size_t k = 0; k < inner.size(); ++k) {
    llvm::cast<llvm::PHINode>(inner[k])->addIncoming(results[k], latch);
  }
  b.SetInsertPoint(exit);
  llvm::PHINode* final_index = b.CreatePHI(b.getInt64Ty(), 2);
  final_index->addIncoming(start, before);
  final_index->addIncoming(next, latch);
  for (size_t k = 0; k < carried.size(); ++k) {
    llvm::PHINode* phi = b.CreatePHI(carried[k]->getType(), 2);
    phi->addIncoming(carried[k], before);
    phi->addIncoming(results[k], latch);
    carried[k] = phi;
  }
  return final_index;
}

}  // namespace neuron::compiler::cpu
