#include <llvm/IR/Intrinsics.h>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/emit_loop.h"
#include "neuron/compiler/cpu/emit_nest.h"
#include "neuron/compiler/cpu/nest_arguments.h"

// Nests that read something transposed. 16 rows are done at a time: of what lies across them, 16
// vectors are loaded along the other axis, transposed in registers and left on the stack, from
// where the rows take them. Through per-lane addresses the same took eight times as long.
namespace neuron::compiler::cpu {

void NestEmitter::emit_tiled_row() {
  row_values_.assign(1, std::vector<Lanes>(statements_.size()));
  tile_slots_.clear();
  const Sweep& sweep = nest_.sweeps[0];
  positions_.assign(1, Position{});
  at_row_ = true;
  emit_statements(sweep.body, 0, kRow);
  at_row_ = false;
  std::vector<V> nothing;
  if (v.traits.avx512) {
    // Masks are free: one copy of the code serves whole and partial tiles.
    loop(row_begin_, row_end_, 1, kLanes, nothing,
         [&](V i, std::vector<V>&) { emit_tile(i, true); });
    return;
  }
  V is_whole = b.CreateICmpEQ(tile_rows_, v.i64(kLanes));
  V whole_end = b.CreateSelect(is_whole, row_end_, row_begin_);
  V index = loop(row_begin_, whole_end, kLanes, kLanes, nothing,
                 [&](V i, std::vector<V>&) { emit_tile(i, false); });
  loop(index, row_end_, 1, kLanes, nothing, [&](V i, std::vector<V>&) { emit_tile(i, true); });
}

NestEmitter::V NestEmitter::tile_slot(const Stmt& stmt) {
  llvm::BasicBlock& entry = function_->getEntryBlock();
  llvm::IRBuilder<> top(&entry, entry.begin());
  llvm::AllocaInst* slot =
      top.CreateAlloca(v.memory_type(stmt.access.stored), v.i64(kLanes * kLanes));
  slot->setAlignment(llvm::Align(64));
  return slot;
}

void NestEmitter::emit_tile(V row, bool masked) {
  const Sweep& sweep = nest_.sweeps[0];
  V rows_mask = nullptr;
  V rest = nullptr;
  if (masked) {
    rows_mask = tail_mask(v.i64(0), tile_rows_);
    rest = b.CreateSub(row_end_, row);
  }
  for (const Stmt& stmt : sweep.body) {
    if (!is_transposed(nest_, stmt, tile_axis_)) continue;
    const Access& access = stmt.access;
    llvm::Type* element = v.memory_type(access.stored);
    llvm::Type* vector = v.vector_of(element);
    const llvm::Align align(size_of(access.stored));
    V stride = argument(&access, static_cast<int>(row_axis_));
    V tile[kLanes];
    const auto column = [&](int j) {
      return v.element_pointer(access.stored, base_.at(&access),
                               b.CreateMul(b.CreateAdd(row, v.i64(j)), stride));
    };
    // Every column is in a page of its own, where no hardware prefetcher follows.
    for (int j = 0; j < kLanes; ++j) {
      b.CreateIntrinsic(llvm::Intrinsic::prefetch, {b.getPtrTy()},
                        {column(j + 2 * kLanes), b.getInt32(0), b.getInt32(3), b.getInt32(1)});
    }
    for (int j = 0; j < kLanes; ++j) {
      V pointer = column(j);
      if (!masked) {
        tile[j] = b.CreateAlignedLoad(vector, pointer, align);
        continue;
      }
      V mask = b.CreateAnd(rows_mask, v.splat(b.CreateICmpSLT(v.i64(j), rest)));
      tile[j] =
          b.CreateMaskedLoad(vector, pointer, align, mask, llvm::Constant::getNullValue(vector));
    }
    // Swaps the off-diagonal blocks of 8, then of 4, 2 and 1.
    for (int d = kLanes / 2; d > 0; d /= 2) {
      int low[kLanes];
      int high[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) {
        const bool second = (lane & d) != 0;
        low[lane] = second ? kLanes + lane - d : lane;
        high[lane] = second ? kLanes + lane : lane + d;
      }
      for (int j = 0; j < kLanes; ++j) {
        if ((j & d) != 0) continue;
        V first = b.CreateShuffleVector(tile[j], tile[j + d], low);
        V second = b.CreateShuffleVector(tile[j], tile[j + d], high);
        tile[j] = first;
        tile[j + d] = second;
      }
    }
    V& slot = tile_slots_[&stmt];
    if (slot == nullptr) slot = tile_slot(stmt);
    for (int j = 0; j < kLanes; ++j) {
      b.CreateAlignedStore(tile[j], b.CreateConstGEP1_64(vector, slot, static_cast<uint64_t>(j)),
                           align);
    }
  }
  std::vector<V> nothing;
  V first_row = index_[tile_axis_];
  loop(v.i64(0), masked ? tile_rows_ : v.i64(kLanes), 1, 1, nothing, [&](V u, std::vector<V>&) {
    tile_row_ = u;
    index_[tile_axis_] = b.CreateAdd(first_row, u);
    step_base_.clear();
    positions_.assign(1, Position{row, masked ? tail_mask(row, row_end_) : nullptr});
    emit_statements(sweep.body, 0, kVector);
    emit_stores(sweep);
  });
  step_base_.clear();
  tile_row_ = nullptr;
  index_[tile_axis_] = first_row;
}

}  // namespace neuron::compiler::cpu
