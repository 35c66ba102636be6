#include "neuron/compiler/cpu/emit_nest.h"

#include <llvm/IR/Constants.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Metadata.h>
#include <llvm/IR/Module.h>

#include <algorithm>
#include <limits>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/emit_loop.h"
#include "neuron/compiler/cpu/fuse.h"
#include "neuron/compiler/cpu/nest_arguments.h"

namespace neuron::compiler::cpu {
namespace {

// Elements summed into one set of accumulators; longer rows add up the sums of such pieces.
constexpr int64_t kSumPiece = 4096;
constexpr int kAccumulators = 4;

}  // namespace

NestEmitter::NestEmitter(llvm::IRBuilderBase& builder, llvm::Function* function,
                         const LoopNest& nest, TargetTraits traits)
    : b(builder),
      function_(function),
      nest_(nest),
      v(builder, traits),
      row_axis_(nest.outer.size()),
      parallel_(parallel_axes(nest)),
      tile_axis_(tile_axis(nest)),
      streams_(streams(nest)) {}

void NestEmitter::number_statements() {
  const auto add = [&](const std::vector<Stmt>& body, Level highest) {
    for (const Stmt& stmt : body) {
      statements_.push_back(&stmt);
      levels_.push_back(std::min(level_of(stmt), highest));
    }
  };
  for (size_t s = 0; s < nest_.sweeps.size(); ++s) {
    first_of_sweep_.push_back(static_cast<StmtId>(statements_.size()));
    add(nest_.sweeps[s].body, kVector);
    for (const RowReduce& reduce : nest_.sweeps[s].reduces) {
      reduces_.push_back(&reduce);
      sweep_of_reduce_.push_back(s);
    }
  }
  for (const RowStore& store : nest_.row_stores) {
    first_of_epilogue_.push_back(static_cast<StmtId>(statements_.size()));
    add(store.epilogue, kRow);
  }
  call_values_.resize(statements_.size());
}

bool NestEmitter::varies(const Access& access, size_t first, size_t last) const {
  for (size_t axis = first; axis < last && axis < access.kind.size(); ++axis) {
    if (access.kind[axis] != Stride::Zero) return true;
  }
  return false;
}

NestEmitter::Level NestEmitter::level_of(const Stmt& stmt) const {
  Level level = kCall;
  const auto raise_to = [&](Level other) { level = std::max(level, other); };
  for (StmtId id : stmt.in) {
    NEURON_ASSERT(id < levels_.size(), "a statement reads a later one");
    raise_to(levels_[id]);
  }
  // In row mode the row axis makes a value vary per vector; in column mode the reduced axes do.
  const auto raise_for = [&](const Access& access) {
    raise_to(kRow);
    const bool per_vector = nest_.column_reduce ? varies(access, parallel_, row_axis_)
                                                : varies(access, row_axis_, row_axis_ + 1);
    // Row values of a tiled nest are those of all 16 rows.
    const bool per_row = tile_axis_ != kNoAxis && varies(access, tile_axis_, tile_axis_ + 1);
    if (per_vector || per_row) raise_to(kVector);
  };
  switch (stmt.kind) {
    case StmtKind::Load:
    case StmtKind::Gather:
    case StmtKind::Linear:
      raise_for(stmt.access);
      break;
    case StmtKind::Buffered:
      if (!stmt.access.kind.empty()) {
        raise_to(kVector);
      } else {
        raise_to(levels_[static_cast<size_t>(stmt.number)]);
      }
      break;
    case StmtKind::Index: {
      const auto axis = static_cast<size_t>(stmt.number);
      const bool per_vector = nest_.column_reduce ? axis >= parallel_ && axis < row_axis_
                                                  : axis == row_axis_ || axis == tile_axis_;
      raise_to(per_vector ? kVector : kRow);
      break;
    }
    case StmtKind::Reduced:
      raise_to(kRow);
      break;
    case StmtKind::Scalar:
    case StmtKind::Constant:
    case StmtKind::Compute:
    case StmtKind::Philox:
      break;
  }
  return level;
}

void NestEmitter::load_arguments() {
  llvm::MDNode* nothing = llvm::MDNode::get(b.getContext(), {});
  const auto invariant = [&](llvm::Type* type, V pointer) -> V {
    llvm::LoadInst* load = b.CreateAlignedLoad(type, pointer, llvm::Align(8));
    load->setMetadata(llvm::LLVMContext::MD_invariant_load, nothing);
    return load;
  };
  for (uint16_t p = 0; p < nest_.pointer_count; ++p) {
    pointer_.push_back(invariant(b.getPtrTy(), b.CreateConstGEP1_64(b.getPtrTy(), pointers_, p)));
  }
  uint64_t position = 0;
  const auto next = [&] {
    return invariant(b.getInt64Ty(), b.CreateConstGEP1_64(b.getInt64Ty(), args_, position++));
  };
  for (size_t k = 0; k < kArgOuter + nest_.outer.size(); ++k) fixed_.push_back(next());
  for_each_argument(
      nest_, [&](const void* owner, int slot, int64_t) { argument_[{owner, slot}] = next(); });
}

NestEmitter::V NestEmitter::argument(const void* owner, int slot) {
  const auto found = argument_.find({owner, slot});
  NEURON_ASSERT(found != argument_.end());
  return found->second;
}

NestEmitter::V NestEmitter::extent(size_t axis) {
  return axis == row_axis_ ? fixed_[kArgRow] : fixed_[kArgOuter + axis];
}

NestEmitter::V NestEmitter::advance(V base, const Access& access, size_t first, size_t last) {
  V offset = nullptr;
  for (size_t axis = first; axis < last && axis < access.kind.size(); ++axis) {
    V term = nullptr;
    switch (access.kind[axis]) {
      case Stride::Zero:
        break;
      case Stride::Unit:
        term = index_[axis];
        break;
      case Stride::Other:
        term = b.CreateMul(index_[axis], argument(&access, static_cast<int>(axis)));
        break;
    }
    if (term != nullptr) offset = offset == nullptr ? term : b.CreateAdd(offset, term);
  }
  return offset == nullptr ? base : v.element_pointer(access.stored, base, offset);
}

void NestEmitter::emit() {
  number_statements();
  auto argument = function_->arg_begin();
  pointers_ = &*argument++;
  args_ = &*argument++;
  begin_ = &*argument++;
  end_ = &*argument++;
  auto* entry = llvm::BasicBlock::Create(b.getContext(), "entry", function_);
  auto* work = llvm::BasicBlock::Create(b.getContext(), "work", function_);
  auto* done = llvm::BasicBlock::Create(b.getContext(), "done", function_);
  b.SetInsertPoint(entry);
  llvm::AllocaInst* dummy = b.CreateAlloca(b.getInt64Ty(), v.i64(2));
  dummy_ = dummy;
  b.CreateCondBr(b.CreateICmpSLT(begin_, end_), work, done);
  b.SetInsertPoint(done);
  b.CreateRetVoid();
  b.SetInsertPoint(work);
  b.CreateStore(v.i64(0), dummy_);
  b.CreateStore(v.i64(0), b.CreateConstGEP1_64(b.getInt64Ty(), dummy_, 1));
  load_arguments();
  positions_.assign(1, Position{});
  at_row_ = true;
  for (StmtId id = 0; id < statements_.size(); ++id) {
    if (levels_[id] == kCall) call_values_[id] = emit_statement(id, 0);
  }
  emit_iterations();
  // Streaming stores are ordered with nothing; whoever is told that this call ended must see them.
  if (streams_) b.CreateFence(llvm::AtomicOrdering::SequentiallyConsistent);
  b.CreateRetVoid();
}

// Walks iterations [begin, end): the parallel outer axes, then the pieces of the row. Indices are
// divided out once and counted on afterwards.
void NestEmitter::emit_iterations() {
  index_.assign(nest_.outer.size(), nullptr);
  std::vector<V> counters(parallel_ + 1);
  std::vector<V> extents(parallel_ + 1);
  for (size_t axis = 0; axis < parallel_; ++axis) {
    extents[axis] = extent(axis);
    if (axis == tile_axis_) {
      extents[axis] = b.CreateLShr(b.CreateAdd(extents[axis], v.i64(15)), v.i64(4));
    }
  }
  extents[parallel_] = fixed_[kArgPieces];
  V rest = begin_;
  for (size_t k = parallel_ + 1; k-- > 0;) {
    counters[k] = k == 0 ? rest : b.CreateURem(rest, extents[k]);
    if (k > 0) rest = b.CreateUDiv(rest, extents[k]);
  }
  loop(begin_, end_, 1, 1, counters, [&](V, std::vector<V>& counter) {
    for (size_t axis = 0; axis < parallel_; ++axis) index_[axis] = counter[axis];
    if (tile_axis_ != kNoAxis) {
      index_[tile_axis_] = b.CreateShl(counter[tile_axis_], v.i64(4));
      V rest = b.CreateSub(extent(tile_axis_), index_[tile_axis_]);
      tile_rows_ = b.CreateSelect(b.CreateICmpSLT(rest, v.i64(kLanes)), rest, v.i64(kLanes));
    }
    V piece = counter[parallel_];
    row_begin_ = b.CreateMul(piece, fixed_[kArgPiece]);
    V row_end = b.CreateAdd(row_begin_, fixed_[kArgPiece]);
    row_end_ = b.CreateSelect(b.CreateICmpSLT(row_end, fixed_[kArgRow]), row_end, fixed_[kArgRow]);
    base_.clear();
    step_base_.clear();
    row_gather_.clear();
    const auto prepare = [&](const Access& access) {
      base_[&access] = advance(pointer_[access.pointer], access, 0, parallel_);
    };
    const auto prepare_body = [&](const std::vector<Stmt>& body) {
      for (const Stmt& stmt : body) {
        if (stmt.kind == StmtKind::Load || stmt.kind == StmtKind::Gather ||
            (stmt.kind == StmtKind::Buffered && !stmt.access.kind.empty())) {
          prepare(stmt.access);
        }
      }
    };
    for (const Sweep& sweep : nest_.sweeps) {
      prepare_body(sweep.body);
      for (const Store& store : sweep.stores) prepare(store.access);
    }
    for (const RowStore& store : nest_.row_stores) {
      prepare_body(store.epilogue);
      prepare(store.access);
    }
    if (nest_.column_reduce) {
      emit_columns();
    } else if (tile_axis_ != kNoAxis) {
      emit_tiled_row();
    } else {
      emit_row();
    }
    // Count on, the last counter fastest.
    V carry = nullptr;
    for (size_t k = counter.size(); k-- > 0;) {
      V next = carry == nullptr ? b.CreateAdd(counter[k], v.i64(1))
                                : b.CreateAdd(counter[k], b.CreateZExt(carry, b.getInt64Ty()));
      if (k == 0) {
        counter[k] = next;
        break;
      }
      carry = b.CreateICmpEQ(next, extents[k]);
      counter[k] = b.CreateSelect(carry, v.i64(0), next);
    }
  });
}

void NestEmitter::emit_row() {
  row_values_.assign(1, std::vector<Lanes>(statements_.size()));
  reduced_.assign(1, std::vector<Running>(reduces_.size()));
  for (size_t s = 0; s < nest_.sweeps.size(); ++s) emit_sweep(s);
  emit_row_stores();
}

NestEmitter::V NestEmitter::tail_mask(V index, V limit) {
  llvm::Type* i32 = b.getInt32Ty();
  llvm::Constant* lanes[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = b.getInt32(lane);
  V rest = b.CreateTrunc(b.CreateSub(limit, index), i32);
  return b.CreateICmpULT(llvm::ConstantVector::get(lanes), v.splat(rest));
}

// Cheap bodies gain from several vectors an iteration; long ones overlap by themselves and would
// only grow the code.
int NestEmitter::unroll_of(const Sweep& sweep) {
  int weight = static_cast<int>(sweep.stores.size());
  for (const Stmt& stmt : sweep.body) {
    const int wide = size_of(stmt.type) >= 8 ? 2 : 1;
    switch (stmt.kind) {
      case StmtKind::Compute:
        weight += wide * (hlo::class_of(stmt.op) == hlo::OpClass::Elementwise &&
                                  (stmt.op == hlo::Op::Add || stmt.op == hlo::Op::Multiply ||
                                   stmt.op == hlo::Op::Subtract || stmt.op == hlo::Op::Convert ||
                                   stmt.op == hlo::Op::Select || stmt.op == hlo::Op::Compare ||
                                   stmt.op == hlo::Op::Maximum || stmt.op == hlo::Op::Minimum)
                              ? 1
                              : 16);
        break;
      case StmtKind::Philox:
        weight += 40;
        break;
      case StmtKind::Load:
        weight += varies(stmt.access, row_axis_, row_axis_ + 1) &&
                          stmt.access.kind[row_axis_] == Stride::Other
                      ? 12
                      : wide;
        break;
      case StmtKind::Gather:
        weight += 12;
        break;
      case StmtKind::Index:
      case StmtKind::Linear:
      case StmtKind::Buffered:
        weight += wide;
        break;
      case StmtKind::Scalar:
      case StmtKind::Constant:
      case StmtKind::Reduced:
        break;
    }
  }
  return weight <= 10 ? 4 : weight <= 16 ? 2 : 1;
}

bool NestEmitter::is_dear(const Sweep& sweep) {
  float cost = 0;
  hlo::Node node;
  for (const Stmt& stmt : sweep.body) {
    if (stmt.kind == StmtKind::Philox) cost += 24;
    if (stmt.kind != StmtKind::Compute) continue;
    node.op = stmt.op;
    node.type.dtype = stmt.type;
    cost += op_cost(node) * (size_of(stmt.type) >= 8 ? 2 : 1);
  }
  return cost >= 24;
}

void NestEmitter::emit_sweep(size_t number) {
  const Sweep& sweep = nest_.sweeps[number];
  const StmtId first = first_of_sweep_[number];
  positions_.assign(1, Position{});
  at_row_ = true;
  emit_statements(sweep.body, first, kRow);
  at_row_ = false;
  if (!sweep.reduces.empty()) {
    emit_row_reductions(number);
    return;
  }
  std::vector<V> nothing;
  const int unroll = unroll_of(sweep);
  V start = row_begin_;
  V limit = row_end_;
  V wide_limit = limit;
  bool streaming = false;
  for (const Store& store : sweep.stores) {
    streaming = streaming || (streams_ && can_stream(nest_, sweep, store));
  }
  if (streaming) {
    // Up to the first aligned address with a mask. Without a common one all is left to the loops
    // behind, which store ordinarily.
    const auto [aligned, possible] = streaming_start(sweep);
    V head_end = b.CreateSelect(b.CreateICmpSLT(aligned, limit), aligned, limit);
    loop(start, b.CreateSelect(possible, head_end, start), 1, kLanes, nothing,
         [&](V i, std::vector<V>&) {
           positions_.assign(1, Position{i, tail_mask(i, head_end)});
           emit_statements(sweep.body, first, kVector);
           emit_stores(sweep);
         });
    start = b.CreateSelect(possible, head_end, start);
    wide_limit = b.CreateSelect(possible, limit, start);
    streaming_now_ = true;
  }
  // Where masks are nearly free, one loop serves whole and partial vectors of a dear body: a second
  // copy would double the time to compile it.
  V index = start;
  if (streaming || unroll > 1 || !v.traits.avx512 || !is_dear(sweep)) {
    index = loop(start, wide_limit, kLanes * unroll, kLanes * unroll, nothing,
                 [&](V i, std::vector<V>&) {
                   positions_.clear();
                   for (int u = 0; u < unroll; ++u) {
                     positions_.push_back({u == 0 ? i : b.CreateAdd(i, v.i64(u * kLanes))});
                   }
                   emit_statements(sweep.body, first, kVector);
                   emit_stores(sweep);
                 });
  }
  streaming_now_ = false;
  if (unroll > 1 || streaming) {
    index = loop(index, limit, kLanes, kLanes, nothing, [&](V i, std::vector<V>&) {
      positions_.assign(1, Position{i});
      emit_statements(sweep.body, first, kVector);
      emit_stores(sweep);
    });
  }
  loop(index, limit, 1, kLanes, nothing, [&](V i, std::vector<V>&) {
    positions_.assign(1, Position{i, tail_mask(i, limit)});
    emit_statements(sweep.body, first, kVector);
    emit_stores(sweep);
  });
}

std::pair<NestEmitter::V, NestEmitter::V> NestEmitter::streaming_start(const Sweep& sweep) {
  V start = nullptr;
  V possible = nullptr;
  for (const Store& store : sweep.stores) {
    if (!can_stream(nest_, sweep, store)) continue;
    const DType type = store.access.stored;
    const auto size = static_cast<int64_t>(size_of(type));
    const int64_t vector = std::min<int64_t>(kLanes * size, 64);
    V address = b.CreatePtrToInt(v.element_pointer(type, access_base(store.access), row_begin_),
                                 b.getInt64Ty());
    // Elements to the next multiple of the vector.
    V missing = b.CreateAnd(b.CreateNeg(address), v.i64(vector - 1));
    V elements = b.CreateUDiv(missing, v.i64(size));
    V whole = b.CreateICmpEQ(b.CreateMul(elements, v.i64(size)), missing);
    V here = b.CreateAdd(row_begin_, elements);
    if (start == nullptr) {
      start = here;
      possible = whole;
      continue;
    }
    // Another store: its address at the common start must be aligned as well.
    V shifted = b.CreateMul(b.CreateSub(start, row_begin_), v.i64(size));
    V off = b.CreateAnd(b.CreateAdd(address, shifted), v.i64(vector - 1));
    possible = b.CreateAnd(possible, b.CreateICmpEQ(off, v.i64(0)));
  }
  return {start, possible};
}

DType NestEmitter::running_type(const RowReduce& reduce) { return reduce.accumulate; }

NestEmitter::Running NestEmitter::identity_of(const RowReduce& reduce) {
  Running result;
  result.value = v.identity(reduce.kind, running_type(reduce));
  if (reduce.arg) {
    result.index = v.splat(v.i64(std::numeric_limits<int64_t>::max()));
  }
  return result;
}

NestEmitter::Running NestEmitter::combine(const RowReduce& reduce, const Running& x,
                                          const Running& y) {
  Running result = x;
  if (reduce.arg) {
    v.combine_arg(reduce.kind, running_type(reduce), result.value, result.index, y.value, y.index);
  } else {
    result.value = v.combine(reduce.kind, running_type(reduce), x.value, y.value);
  }
  return result;
}

// The value that position u contributes; lanes that are off contribute the identity.
NestEmitter::Running NestEmitter::value_of(const RowReduce& reduce, int u, V index_of_lanes) {
  Running result;
  result.value =
      v.convert(value(reduce.value, u), statements_[reduce.value]->type, running_type(reduce));
  result.index = reduce.arg ? index_of_lanes : nullptr;
  V mask = positions_[u].mask;
  if (mask != nullptr && !nest_.column_reduce) {
    const Running off = identity_of(reduce);
    result.value = v.select(mask, result.value, off.value);
    if (reduce.arg) result.index = b.CreateSelect(mask, result.index, off.index);
  }
  return result;
}

void NestEmitter::flatten(const std::vector<Running>& from, std::vector<V>& to) {
  to.clear();
  for (const Running& running : from) {
    to.push_back(running.value.re);
    if (running.value.im != nullptr) to.push_back(running.value.im);
    if (running.index != nullptr) to.push_back(running.index);
  }
}

void NestEmitter::unflatten(const std::vector<V>& from, std::vector<Running>& to) {
  size_t position = 0;
  for (Running& running : to) {
    running.value.re = from[position++];
    if (running.value.im != nullptr) running.value.im = from[position++];
    if (running.index != nullptr) running.index = from[position++];
  }
}

// A tree over the lanes; every lane of the result holds the total.
NestEmitter::Running NestEmitter::fold_lanes(const RowReduce& reduce, Running x) {
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    Running shifted;
    shifted.value = v.shift_lanes(x.value, distance);
    if (reduce.arg) shifted.index = v.shift_lanes(x.index, distance);
    x = combine(reduce, x, shifted);
  }
  const auto first = [&](V vector) { return v.splat(b.CreateExtractElement(vector, uint64_t{0})); };
  x.value = {first(x.value.re), x.value.im != nullptr ? first(x.value.im) : nullptr};
  if (reduce.arg) {
    V index = first(x.index);
    V none = b.CreateICmpEQ(index, v.splat(v.i64(std::numeric_limits<int64_t>::max())));
    x.index = b.CreateSelect(none, v.splat(v.i64(-1)), index);
  }
  return x;
}

// Vector k of a piece of the row goes to accumulator k modulo 4, whichever loop it is in: the order
// in which elements are combined follows from the length of the row alone. Loops of single vectors
// rotate the accumulators; the final tree is the same for every rotation.
void NestEmitter::emit_row_reductions(size_t number) {
  const Sweep& sweep = nest_.sweeps[number];
  const StmtId first = first_of_sweep_[number];
  const size_t count = sweep.reduces.size();
  std::vector<Running> totals;
  for (const RowReduce& reduce : sweep.reduces) totals.push_back(identity_of(reduce));
  std::vector<V> total_values;
  flatten(totals, total_values);

  loop(row_begin_, row_end_, 1, kSumPiece, total_values, [&](V start, std::vector<V>& carried) {
    V piece_end = b.CreateAdd(start, v.i64(kSumPiece));
    V limit = b.CreateSelect(b.CreateICmpSLT(piece_end, row_end_), piece_end, row_end_);
    // Accumulator a of reduction r is running[a * count + r].
    std::vector<Running> running;
    for (int a = 0; a < kAccumulators; ++a) {
      for (const RowReduce& reduce : sweep.reduces) running.push_back(identity_of(reduce));
    }
    std::vector<V> values;
    flatten(running, values);
    const auto step = [&](std::vector<V>& loop_values) {
      unflatten(loop_values, running);
      emit_statements(sweep.body, first, kVector);
      emit_stores(sweep);
      for (size_t u = 0; u < positions_.size(); ++u) {
        V lanes = nullptr;
        for (size_t r = 0; r < count; ++r) {
          const RowReduce& reduce = sweep.reduces[r];
          if (reduce.arg && lanes == nullptr) {
            lanes = b.CreateAdd(v.splat(positions_[u].index), v.iota64());
          }
          Running& accumulator = running[u * count + r];
          accumulator = combine(reduce, accumulator, value_of(reduce, static_cast<int>(u), lanes));
        }
      }
      const size_t turn = positions_.size() % kAccumulators * count;
      std::rotate(running.begin(), running.begin() + static_cast<long>(turn), running.end());
      flatten(running, loop_values);
    };
    V index = start;
    if (unroll_of(sweep) == kAccumulators) {
      index = loop(start, limit, kLanes * kAccumulators, kLanes * kAccumulators, values,
                   [&](V i, std::vector<V>& loop_values) {
                     positions_.clear();
                     for (int u = 0; u < kAccumulators; ++u) {
                       positions_.push_back({u == 0 ? i : b.CreateAdd(i, v.i64(u * kLanes))});
                     }
                     step(loop_values);
                   });
    }
    index = loop(index, limit, kLanes, kLanes, values, [&](V i, std::vector<V>& loop_values) {
      positions_.assign(1, Position{i});
      step(loop_values);
    });
    loop(index, limit, 1, kLanes, values, [&](V i, std::vector<V>& loop_values) {
      positions_.assign(1, Position{i, tail_mask(i, limit)});
      step(loop_values);
    });
    unflatten(values, running);
    unflatten(carried, totals);
    for (size_t r = 0; r < count; ++r) {
      const RowReduce& reduce = sweep.reduces[r];
      const Running even = combine(reduce, running[r], running[2 * count + r]);
      const Running odd = combine(reduce, running[count + r], running[3 * count + r]);
      totals[r] = combine(reduce, totals[r], combine(reduce, even, odd));
    }
    flatten(totals, carried);
  });
  unflatten(total_values, totals);
  size_t base = 0;
  while (sweep_of_reduce_[base] != number) ++base;
  for (size_t r = 0; r < count; ++r) {
    reduced_[0][base + r] = fold_lanes(sweep.reduces[r], totals[r]);
  }
}

void NestEmitter::emit_row_stores() {
  positions_.assign(1, Position{});
  at_row_ = true;
  for (size_t k = 0; k < nest_.row_stores.size(); ++k) {
    const RowStore& store = nest_.row_stores[k];
    emit_statements(store.epilogue, first_of_epilogue_[k], kRow);
    Lanes lanes;
    DType type;
    if (store.value != kNoStmt) {
      lanes = value(store.value, 0);
      type = statements_[store.value]->type;
    } else {
      const RowReduce& reduce = *reduces_[store.reduce];
      const Running& running = reduced_[0][store.reduce];
      lanes = reduce.arg ? Lanes{running.index} : running.value;
      type = reduce.arg ? DType::i64 : running_type(reduce);
    }
    lanes = v.convert(lanes, type, store.access.stored);
    v.store_scalar(store.access.stored, lanes, access_base(store.access));
  }
  at_row_ = false;
}

void emit_nest(llvm::Module& module, const LoopNest& nest, const std::string& symbol,
               TargetTraits traits) {
  llvm::LLVMContext& context = module.getContext();
  llvm::IRBuilder<> builder(context);
  llvm::Type* pointer = builder.getPtrTy();
  llvm::Type* i64 = builder.getInt64Ty();
  auto* type = llvm::FunctionType::get(builder.getVoidTy(), {pointer, pointer, i64, i64}, false);
  auto* function = llvm::Function::Create(type, llvm::GlobalValue::ExternalLinkage, symbol, module);
  function->addFnAttr(llvm::Attribute::NoUnwind);
  function->addFnAttr("no-builtins");
  function->addFnAttr("frame-pointer", "none");
  if (traits.avx512) {
    function->addFnAttr("prefer-vector-width", "512");
    function->addFnAttr("min-legal-vector-width", "512");
  }
  NestEmitter(builder, function, nest, traits).emit();
}

}  // namespace neuron::compiler::cpu
