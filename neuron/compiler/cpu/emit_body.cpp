#include "neuron/base/error.h"
#include "neuron/compiler/cpu/emit_loop.h"
#include "neuron/compiler/cpu/emit_nest.h"
#include "neuron/compiler/cpu/nest_arguments.h"

// The statements of a nest: each is computed once for every position at its level.
namespace neuron::compiler::cpu {

void NestEmitter::emit_statements(const std::vector<Stmt>& body, StmtId first, Level level) {
  if (level == kVector) {
    vector_values_.assign(positions_.size(), std::vector<Lanes>(statements_.size()));
    philox_.clear();
  }
  for (size_t k = 0; k < body.size(); ++k) {
    const auto id = static_cast<StmtId>(first + k);
    if (level == kRow && !nest_.column_reduce && levels_[id] == kVector &&
        body[k].kind == StmtKind::Gather && uniform_indices(body[k])) {
      prepare_row_gather(id, body[k]);
    }
    if (levels_[id] != level) continue;
    for (size_t u = 0; u < positions_.size(); ++u) value(id, static_cast<int>(u));
  }
}

// A value that is not there yet belongs to an earlier sweep and is computed again here.
Lanes NestEmitter::value(StmtId id, int u) {
  NEURON_ASSERT(id < statements_.size());
  if (levels_[id] == kCall) return call_values_[id];
  const auto at = static_cast<size_t>(u);
  if (levels_[id] == kRow) {
    const size_t slot = nest_.column_reduce ? at : 0;
    if (row_values_[slot][id].re == nullptr) row_values_[slot][id] = emit_statement(id, u);
    return row_values_[slot][id];
  }
  NEURON_ASSERT(!at_row_ || nest_.column_reduce, "a row value depends on a vector value");
  if (vector_values_[at][id].re == nullptr) vector_values_[at][id] = emit_statement(id, u);
  return vector_values_[at][id];
}

NestEmitter::V NestEmitter::and_masks(V a, V b_mask) {
  if (a == nullptr) return b_mask;
  if (b_mask == nullptr) return a;
  return b.CreateAnd(a, b_mask);
}

NestEmitter::V NestEmitter::access_base(const Access& access) {
  const auto found = base_.find(&access);
  NEURON_ASSERT(found != base_.end());
  const bool tiled = tile_row_ != nullptr && varies(access, tile_axis_, tile_axis_ + 1);
  if (!tiled && (!nest_.column_reduce || !varies(access, parallel_, row_axis_))) {
    return found->second;
  }
  const auto step = step_base_.find(&access);
  if (step != step_base_.end()) return step->second;
  V base;
  if (tiled) {
    // The block's first row is in the base already.
    V distance = tile_row_;
    if (access.kind[tile_axis_] == Stride::Other) {
      distance = b.CreateMul(distance, argument(&access, static_cast<int>(tile_axis_)));
    }
    base = v.element_pointer(access.stored, found->second, distance);
  } else {
    base = advance(found->second, access, parallel_, row_axis_);
  }
  step_base_[&access] = base;
  return base;
}

// Row stores have no position in the row; it counts as 0 there.
Stride NestEmitter::row_kind(const Access& access) const {
  if (access.kind.size() <= row_axis_ || positions_.front().index == nullptr) return Stride::Zero;
  return access.kind[row_axis_];
}

NestEmitter::V NestEmitter::row_stride(const Access& access) {
  if (access.kind.size() <= row_axis_ || access.kind[row_axis_] != Stride::Other) return nullptr;
  return argument(&access, static_cast<int>(row_axis_));
}

Lanes NestEmitter::emit_statement(StmtId id, int u) {
  const Stmt& stmt = *statements_[id];
  switch (stmt.kind) {
    case StmtKind::Load:
      return emit_load(stmt, u);
    case StmtKind::Gather:
      return emit_gather(id, stmt, u);
    case StmtKind::Constant:
      return v.constant(stmt.type, stmt.bits);
    case StmtKind::Scalar: {
      V slot = b.CreateShl(argument(&stmt, 0), v.i64(4));
      V pointer = b.CreateGEP(b.getInt8Ty(), pointer_[stmt.access.pointer], slot);
      const DType kind = stmt.access.stored == DType::pred ? DType::i64 : stmt.access.stored;
      return v.convert(v.splat(v.load_scalar(kind, pointer)), kind, stmt.type);
    }
    case StmtKind::Index: {
      const auto axis = static_cast<size_t>(stmt.number);
      V index;
      if (axis != row_axis_) {
        index = v.splat(index_[axis]);
      } else if (positions_[u].index == nullptr) {
        index = v.splat(v.i64(0));  // A row store.
      } else {
        index = b.CreateAdd(v.splat(positions_[u].index), v.iota64());
      }
      return v.convert({index}, DType::i64, stmt.type);
    }
    case StmtKind::Linear:
      return v.convert({emit_linear(stmt, u)}, DType::i64, stmt.type);
    case StmtKind::Compute: {
      SmallVector<StmtId, 4> ids = stmt.in;
      std::vector<Lanes> in;
      for (StmtId operand : ids) in.push_back(value(operand, u));
      NEURON_ASSERT(!in.empty());
      const size_t typed = stmt.op == hlo::Op::Select ? 1 : 0;
      return v.compute(stmt.op, statements_[ids[typed]]->type, in, stmt.number, stmt.type);
    }
    case StmtKind::Philox:
      return emit_philox(stmt, u);
    case StmtKind::Reduced: {
      const auto number = static_cast<size_t>(stmt.number);
      const RowReduce& reduce = *reduces_[number];
      const Running& running = reduced_[nest_.column_reduce ? static_cast<size_t>(u) : 0][number];
      NEURON_ASSERT(running.value.re != nullptr, "a reduction is read before its sweep has ended");
      if (reduce.arg) return v.convert({running.index}, DType::i64, stmt.type);
      return v.convert(running.value, running_type(reduce), stmt.type);
    }
    case StmtKind::Buffered:
      if (!stmt.access.kind.empty()) return emit_load(stmt, u);
      return value(static_cast<StmtId>(stmt.number), u);
  }
  raise(ErrorKind::kInternal, "no such statement");
}

Lanes NestEmitter::emit_load(const Stmt& stmt, int u) {
  const Access& access = stmt.access;
  if (const auto slot = tile_slots_.find(&stmt); slot != tile_slots_.end()) {
    // Transposed already; lanes that are off hold zeros.
    const Lanes x = v.load(access.stored, slot->second, b.CreateShl(tile_row_, v.i64(4)),
                           Stride::Unit, nullptr, nullptr, dummy_);
    return v.convert(x, access.stored, stmt.type);
  }
  const Stride kind = row_kind(access);
  V user_mask = nullptr;
  if (stmt.kind == StmtKind::Load && !stmt.in.empty()) {
    const StmtId mask = stmt.in.back();
    user_mask = v.is_true(value(mask, u), statements_[mask]->type);
  }
  // The same element for all lanes needs no lane mask: there is a row, so it is there.
  V mask = kind == Stride::Zero ? user_mask : and_masks(positions_[u].mask, user_mask);
  Lanes x = v.load(access.stored, access_base(access), positions_[u].index, kind,
                   row_stride(access), mask, dummy_);
  return v.convert(x, access.stored, stmt.type);
}

NestEmitter::V NestEmitter::emit_linear(const Stmt& stmt, int u) {
  const Access& access = stmt.access;
  V scalar = argument(&stmt, 0);
  V lanes = nullptr;
  for (size_t axis = 0; axis < access.kind.size(); ++axis) {
    if (access.kind[axis] == Stride::Zero) continue;
    if (axis == row_axis_ && row_kind(access) == Stride::Zero) continue;
    V step =
        access.kind[axis] == Stride::Unit ? nullptr : argument(&access, static_cast<int>(axis));
    V index = axis == row_axis_ ? positions_[u].index : index_[axis];
    scalar = b.CreateAdd(scalar, step == nullptr ? index : b.CreateMul(index, step));
    if (axis == row_axis_) {
      lanes = step == nullptr ? v.iota64() : b.CreateMul(v.iota64(), v.splat(step));
    }
  }
  V result = v.splat(scalar);
  return lanes == nullptr ? result : b.CreateAdd(result, lanes);
}

bool NestEmitter::uniform_indices(const Stmt& stmt) const {
  for (size_t i = 0; i < stmt.index_stride.size(); ++i) {
    if (levels_[stmt.in[i]] == kVector) return false;
  }
  return true;
}

void NestEmitter::report_outside(V outside) {
  if (nest_.status_pointer == 0xFFFF) return;
  if (outside->getType()->isVectorTy()) outside = b.CreateOrReduce(outside);
  auto* report = llvm::BasicBlock::Create(b.getContext(), "outside", function_);
  auto* after = llvm::BasicBlock::Create(b.getContext(), "inside", function_);
  b.CreateCondBr(outside, report, after);
  b.SetInsertPoint(report);
  b.CreateAlignedStore(fixed_[kArgStatus], pointer_[nest_.status_pointer], llvm::Align(8));
  b.CreateBr(after);
  b.SetInsertPoint(after);
}

void NestEmitter::prepare_row_gather(StmtId id, const Stmt& stmt) {
  RowGather gather;
  V offset = nullptr;
  for (size_t i = 0; i < stmt.index_stride.size(); ++i) {
    const StmtId index = stmt.in[i];
    const Lanes lanes = v.convert(value(index, 0), statements_[index]->type, DType::i64);
    V number = b.CreateExtractElement(lanes.re, uint64_t{0});
    V inside = b.CreateICmpULT(number, argument(&stmt, static_cast<int>(2 * i + 1)));
    V term = b.CreateMul(number, argument(&stmt, static_cast<int>(2 * i)));
    offset = offset == nullptr ? term : b.CreateAdd(offset, term);
    gather.inside = gather.inside == nullptr ? inside : b.CreateAnd(gather.inside, inside);
  }
  gather.base = v.element_pointer(stmt.access.stored, base_.at(&stmt.access), offset);
  if (stmt.checked && !stmt.masked) report_outside(b.CreateNot(gather.inside));
  row_gather_[id] = gather;
}

Lanes NestEmitter::emit_gather(StmtId id, const Stmt& stmt, int u) {
  const Access& access = stmt.access;
  V mask = positions_[u].mask;
  if (stmt.masked) {
    const StmtId user = stmt.in.back();
    mask = and_masks(mask, v.is_true(value(user, u), statements_[user]->type));
  }
  const auto prepared = row_gather_.find(id);
  if (prepared != row_gather_.end()) {
    const RowGather& gather = prepared->second;
    if (stmt.checked && stmt.masked) {
      report_outside(b.CreateAnd(b.CreateNot(gather.inside), b.CreateOrReduce(mask)));
    }
    mask = and_masks(mask, v.splat(gather.inside));
    const Lanes x = v.load(access.stored, gather.base, positions_[u].index, row_kind(access),
                           row_stride(access), mask, dummy_);
    return v.convert(x, access.stored, stmt.type);
  }
  V offsets = nullptr;
  V inside = nullptr;
  for (size_t i = 0; i < stmt.index_stride.size(); ++i) {
    const StmtId index = stmt.in[i];
    V number = v.convert(value(index, u), statements_[index]->type, DType::i64).re;
    V fits = b.CreateICmpULT(number, v.splat(argument(&stmt, static_cast<int>(2 * i + 1))));
    V term = b.CreateMul(number, v.splat(argument(&stmt, static_cast<int>(2 * i))));
    offsets = offsets == nullptr ? term : b.CreateAdd(offsets, term);
    inside = inside == nullptr ? fits : b.CreateAnd(inside, fits);
  }
  NEURON_ASSERT(offsets != nullptr);
  if (stmt.checked) {
    V outside = b.CreateNot(inside);
    report_outside(mask == nullptr ? outside : b.CreateAnd(outside, mask));
  }
  const Stride kind = row_kind(access);
  if (kind != Stride::Zero) {
    V lanes = b.CreateAdd(v.splat(positions_[u].index), v.iota64());
    if (kind == Stride::Other) lanes = b.CreateMul(lanes, v.splat(row_stride(access)));
    offsets = b.CreateAdd(offsets, lanes);
  }
  const Lanes x =
      v.gather(access.stored, access_base(access), offsets, and_masks(mask, inside), dummy_);
  return v.convert(x, access.stored, stmt.type);
}

// The rounds give four words at once; statements that take another word of them share the work.
Lanes NestEmitter::emit_philox(const Stmt& stmt, int u) {
  NEURON_ASSERT(stmt.in.size() == 2);
  std::vector<Lanes>& words = philox_[{stmt.in[0], stmt.in[1]}];
  if (words.empty()) words.resize(positions_.size() * 4);
  const size_t at = static_cast<size_t>(u) * 4;
  if (words[at].re == nullptr) {
    V out[4];
    const auto wide = [&](StmtId id) {
      return v.convert(value(id, u), statements_[id]->type, DType::u64).re;
    };
    V key = wide(stmt.in[0]);
    v.philox(key, wide(stmt.in[1]), out);
    for (size_t w = 0; w < 4; ++w) words[at + w] = {out[w]};
  }
  return v.convert(words[at + static_cast<size_t>(stmt.number)], DType::u32, stmt.type);
}

void NestEmitter::emit_stores(const Sweep& sweep) {
  for (const Store& store : sweep.stores) {
    const Access& access = store.access;
    const Stride kind = row_kind(access);
    for (size_t k = 0; k < positions_.size(); ++k) {
      const int u = static_cast<int>(k);
      V mask = positions_[k].mask;
      if (store.mask != kNoStmt) {
        mask = and_masks(mask, v.is_true(value(store.mask, u), statements_[store.mask]->type));
      }
      const Lanes x =
          v.convert(value(store.value, u), statements_[store.value]->type, access.stored);
      if (streaming_now_ && can_stream(nest_, sweep, store)) {
        v.store_streaming(access.stored, x, access_base(access), positions_[k].index);
        continue;
      }
      v.store(access.stored, x, access_base(access), positions_[k].index, kind, row_stride(access),
              mask, dummy_);
    }
  }
}

}  // namespace neuron::compiler::cpu
