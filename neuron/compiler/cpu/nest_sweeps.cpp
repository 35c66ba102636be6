// From statements over a group's axes to a nest: order of axes, sweeps, rows kept between them.
#include <algorithm>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/nest.h"
#include "neuron/compiler/cpu/work_model.h"

namespace neuron::compiler::cpu {

using hlo::Node;
using hlo::Op;
using neff::BufferRef;

namespace {

/// Whether the statement has an address or index that moves with the axes.
bool has_access(const Stmt& s) {
  return s.kind == StmtKind::Load || s.kind == StmtKind::Gather || s.kind == StmtKind::Linear;
}

}  // namespace

void NestBuilder::order_axes() {
  const Group& group = f_.groups()[g_];
  order_axes(group.extents, group.kind, group.axis, group.axis_count);
}

void NestBuilder::order_axes(SmallVector<int64_t, 8> extents, GroupKind kind, uint16_t first,
                             uint16_t count) {
  SmallVector<Access*, 32> accesses;  // Stores first: they decide the order.
  for (PendingStore& s : stores_) {
    if (!s.row_level) accesses.push_back(&s.access);
  }
  for (PendingStore& s : stores_) {
    if (s.row_level) accesses.push_back(&s.access);
  }
  for (Stmt& s : stmts_) {
    if (has_access(s)) accesses.push_back(&s.access);
  }
  SmallVector<uint16_t, 8> kept, reduced;
  for (size_t a = 0; a < extents.size(); ++a) {
    if (extents[a] == 1) continue;
    const bool inside = kind != GroupKind::Pointwise && a >= first && a < size_t{first} + count;
    (inside ? reduced : kept).push_back(static_cast<uint16_t>(a));
  }
  if (kind != GroupKind::Pointwise && reduced.empty()) reduced.push_back(first);
  auto slower = [&](uint16_t a, uint16_t b) {
    for (const Access* access : accesses) {
      const int64_t x = std::abs(access->stride[a]), y = std::abs(access->stride[b]);
      if (x != y) return x > y;
    }
    return a < b;
  };
  for (size_t i = 1; i < kept.size(); ++i) {
    for (size_t k = i; k > 0 && slower(kept[k], kept[k - 1]); --k) {
      std::swap(kept[k], kept[k - 1]);
    }
  }
  auto collapse = [&](SmallVector<uint16_t, 8>& axes) {
    for (size_t i = axes.size(); i-- > 1;) {
      const uint16_t outer = axes[i - 1], inner = axes[i];
      bool joins = true;
      for (const Access* access : accesses) {
        joins = joins && access->stride[outer] == access->stride[inner] * extents[inner];
      }
      if (!joins) continue;
      extents[inner] *= extents[outer];
      axes.erase(i - 1);
    }
  };
  collapse(kept);
  collapse(reduced);
  // Axis numbers in nest order; 0xFFFF: an axis of extent 1 that stands for the row.
  constexpr uint16_t kUnitRow = 0xFFFF;
  SmallVector<uint16_t, 8> order;
  LoopNest& nest = step_.nest;
  if (kind == GroupKind::Row) {
    order = kept;
    order.append(reduced.begin(), reduced.end());
    nest.reduced_axes = static_cast<uint8_t>(reduced.size() - 1);
  } else {
    const uint16_t last = kept.empty() ? kUnitRow : kept.back();
    for (size_t i = 0; i + 1 < kept.size(); ++i) order.push_back(kept[i]);
    if (kind == GroupKind::Column) {
      order.append(reduced.begin(), reduced.end());
      nest.column_reduce = true;
      nest.reduced_axes = static_cast<uint8_t>(reduced.size());
    }
    order.push_back(last);
  }
  for (size_t i = 0; i + 1 < order.size(); ++i) nest.outer.push_back(extents[order[i]]);
  nest.row = order.back() == kUnitRow ? 1 : extents[order.back()];
  for (Access* access : accesses) {
    SmallVector<int64_t, 6> strides;
    for (uint16_t a : order) {
      const int64_t stride = a == kUnitRow ? 1 : access->stride[a];
      strides.push_back(stride);
      access->kind.push_back(stride == 0   ? Stride::Zero
                             : stride == 1 ? Stride::Unit
                                           : Stride::Other);
    }
    access->stride = strides;
  }
  if (order.back() == kUnitRow) {
    // A value of the axis, not an address: it must stay put.
    for (Stmt& s : stmts_) {
      if (s.kind != StmtKind::Linear) continue;
      s.access.stride.back() = 0;
      s.access.kind.back() = Stride::Zero;
    }
  }
}

PlannedStep NestBuilder::build_copy(DType type, DimsRef dims, DimsRef from_strides,
                                    neff::BufferRef from, DimsRef to_strides, neff::BufferRef to) {
  step_ = {};
  stmts_.clear();
  level_.clear();
  widened_.clear();
  reductions_.clear();
  stores_.clear();
  status_ = 0xFFFF;
  Stmt s;
  s.kind = StmtKind::Load;
  s.type = type;
  s.access.stored = type;
  s.access.stride.append(from_strides.begin(), from_strides.end());
  s.access.pointer = pointer(from);
  PendingStore store{};
  store.value = push(std::move(s));
  store.access.stored = type;
  store.access.stride.append(to_strides.begin(), to_strides.end());
  store.access.pointer = pointer(to);
  stores_.push_back(std::move(store));
  order_axes(SmallVector<int64_t, 8>(dims.begin(), dims.end()), GroupKind::Pointwise, 0, 0);
  place_statements();
  estimate();
  step_.nest.pointer_count = 2;
  return std::move(step_);
}

void NestBuilder::place_statements() {
  LoopNest& nest = step_.nest;
  constexpr uint16_t kUnplaced = 0xFFFF;
  uint16_t sweeps = 1;
  for (const Reduction& r : reductions_) {
    sweeps = std::max<uint16_t>(sweeps, static_cast<uint16_t>(r.sweep + 1));
  }
  for (PendingStore& s : stores_) {
    s.sweep = level_[s.value];
    if (!s.row_level) sweeps = std::max<uint16_t>(sweeps, static_cast<uint16_t>(s.sweep + 1));
  }
  SmallVector<uint16_t, 64> at(stmts_.size(), kUnplaced);
  for (const Reduction& r : reductions_) {
    if (r.done) at[r.value] = std::min(at[r.value], r.sweep);
  }
  for (PendingStore& s : stores_) {
    if (s.row_level) continue;
    // In place: later sweeps must not find the row overwritten.
    if (s.aliased) s.sweep = static_cast<uint16_t>(sweeps - 1);
    at[s.value] = std::min(at[s.value], s.sweep);
  }
  for (size_t i = stmts_.size(); i-- > 0;) {
    if (at[i] == kUnplaced) continue;
    for (StmtId in : stmts_[i].in) at[in] = std::min(at[in], at[i]);
  }
  keep_rows(sweeps, at);
  // Numbers of reductions follow the sweeps.
  SmallVector<uint16_t, 16> reduce_number(reductions_.size());
  nest.sweeps.resize(sweeps);
  uint16_t next_reduce = 0;
  for (uint16_t k = 0; k < sweeps; ++k) {
    for (size_t r = 0; r < reductions_.size(); ++r) {
      if (reductions_[r].done && reductions_[r].sweep == k) reduce_number[r] = next_reduce++;
    }
  }
  for (Stmt& s : stmts_) {
    if (s.kind == StmtKind::Reduced) s.number = reduce_number[static_cast<size_t>(s.number)];
  }
  SmallVector<StmtId, 64> renamed(stmts_.size(), kNoStmt);
  StmtId next = 0;
  for (uint16_t k = 0; k < sweeps; ++k) {
    Sweep& sweep = nest.sweeps[k];
    for (const KeptRow& kept : kept_rows_) {
      // Reading the row back stands for the statement from here on.
      if (kept.from >= k || kept.last < k) continue;
      Stmt s;
      s.kind = StmtKind::Buffered;
      s.type = stmts_[kept.value].type;
      s.number = kept.renamed;
      s.access = stores_[kept.store].access;
      renamed[kept.value] = next++;
      sweep.body.push_back(std::move(s));
    }
    for (size_t i = 0; i < stmts_.size(); ++i) {
      if (at[i] != k) continue;
      renamed[i] = next++;
      sweep.body.push_back(stmts_[i]);
      for (StmtId& in : sweep.body.back().in) in = renamed[in];
    }
    for (KeptRow& kept : kept_rows_) {
      if (kept.from != k) continue;
      kept.renamed = renamed[kept.value];
      if (stores_[kept.store].value != kept.value) {
        sweep.stores.push_back({renamed[kept.value], stores_[kept.store].access, kNoStmt});
      }
    }
    for (size_t r = 0; r < reductions_.size(); ++r) {
      const Reduction& from = reductions_[r];
      if (!from.done || from.sweep != k) continue;
      const Node& node = f_.module().node(from.node);
      RowReduce reduce;
      reduce.value = renamed[from.value];
      reduce.accumulate = stmts_[from.value].type;
      if (node.op == Op::ArgReduce) {
        reduce.arg = true;
        reduce.kind = node.ints[1] != 0 ? hlo::ReduceKind::Max : hlo::ReduceKind::Min;
      } else {
        reduce.kind = static_cast<hlo::ReduceKind>(node.ints[0]);
      }
      sweep.reduces.push_back(reduce);
    }
    for (const PendingStore& s : stores_) {
      if (!s.row_level && s.sweep == k) {
        sweep.stores.push_back({renamed[s.value], s.access, kNoStmt});
      }
    }
  }
  for (const PendingStore& s : stores_) {
    if (!s.row_level) continue;
    RowStore store;
    store.access = s.access;
    const Stmt& top = stmts_[s.value];
    if (top.kind == StmtKind::Reduced) {
      store.reduce = static_cast<uint16_t>(top.number);
      nest.row_stores.push_back(std::move(store));
      continue;
    }
    SmallVector<uint8_t, 64> needed(stmts_.size());
    needed[s.value] = 1;
    for (size_t i = s.value + 1u; i-- > 0;) {
      if (needed[i] == 0) continue;
      for (StmtId in : stmts_[i].in) needed[in] = 1;
    }
    SmallVector<StmtId, 64> own(stmts_.size(), kNoStmt);
    for (size_t i = 0; i <= s.value; ++i) {
      if (needed[i] == 0) continue;
      own[i] = next++;
      store.epilogue.push_back(stmts_[i]);
      if (stmts_[i].kind == StmtKind::Reduced) {
        store.reduce = static_cast<uint16_t>(stmts_[i].number);
      }
      for (StmtId& in : store.epilogue.back().in) in = own[in];
    }
    store.value = own[s.value];
    nest.row_stores.push_back(std::move(store));
  }
}

// A dear value that a later sweep needs again waits in the row of an output, which is still in the
// cache then; everything else is computed again.
void NestBuilder::keep_rows(uint16_t sweeps, std::span<const uint16_t> at) {
  kept_rows_.clear();
  if (sweeps < 2) return;
  const size_t n = stmts_.size();
  constexpr uint16_t kUnplaced = 0xFFFF;
  // Last sweep that names each statement, and what computing it again would cost.
  SmallVector<uint16_t, 64> last(n, 0);
  SmallVector<uint8_t, 64> varies(n, 0);
  SmallVector<int32_t, 64> cost(n, 0);
  hlo::Node node;
  for (size_t i = 0; i < n; ++i) {
    const Stmt& s = stmts_[i];
    bool vary = has_access(s) && s.access.stride.back() != 0;
    if (step_.nest.column_reduce) vary = true;
    int32_t sum = 1;
    if (s.kind == StmtKind::Compute) {
      node.op = s.op;
      node.type.dtype = s.type;
      sum = static_cast<int32_t>(op_cost(node));
    } else if (s.kind == StmtKind::Philox) {
      sum = 24;
    } else if (s.kind == StmtKind::Gather) {
      sum = 10;
    }
    for (StmtId in : s.in) {
      vary = vary || varies[in] != 0;
      if (varies[in] != 0) sum += cost[in];
      if (at[i] != kUnplaced) last[in] = std::max(last[in], at[i]);
    }
    varies[i] = vary ? 1 : 0;
    cost[i] = std::min(sum, 10000);
  }
  for (const Reduction& r : reductions_) {
    if (r.done) last[r.value] = std::max(last[r.value], r.sweep);
  }
  for (const PendingStore& s : stores_) {
    if (!s.row_level) last[s.value] = std::max(last[s.value], s.sweep);
  }
  // Last sweep that may compute it again for the sake of what is computed from it.
  SmallVector<uint16_t, 64> reach = last;
  for (size_t i = n; i-- > 0;) {
    if (at[i] == kUnplaced || varies[i] == 0) continue;
    for (StmtId in : stmts_[i].in) reach[in] = std::max(reach[in], reach[i]);
  }
  constexpr int32_t kDear = 8;
  auto keep = [&](StmtId id, size_t store) {
    kept_rows_.push_back({id, static_cast<uint16_t>(store), at[id], last[id], kNoStmt});
  };
  // A value stored early is read back from its own row.
  SmallVector<uint8_t, 16> used(stores_.size(), 0);
  for (size_t o = 0; o < stores_.size(); ++o) {
    const PendingStore& store = stores_[o];
    const StmtId id = store.value;
    if (store.row_level || store.aliased || at[id] != store.sweep || last[id] <= at[id] ||
        cost[id] < kDear / 2 || varies[id] == 0 || stmts_[id].type != store.access.stored) {
      continue;
    }
    bool taken = false;
    for (const KeptRow& other : kept_rows_) taken = taken || other.value == id;
    used[o] = 1;
    if (!taken) keep(id, o);
  }
  // Others wait in the row of an output that is written later.
  for (size_t o = 0; o < stores_.size(); ++o) {
    const PendingStore& store = stores_[o];
    if (store.row_level || store.aliased || used[o] != 0) continue;
    StmtId best = kNoStmt;
    for (size_t i = 0; i < n; ++i) {
      const auto id = static_cast<StmtId>(i);
      if (at[i] == kUnplaced || at[i] >= store.sweep || last[i] <= at[i] ||
          reach[i] > store.sweep || cost[i] < kDear || varies[i] == 0 ||
          stmts_[i].type != store.access.stored) {
        continue;
      }
      bool taken = false;
      for (const KeptRow& other : kept_rows_) taken = taken || other.value == id;
      if (!taken && (best == kNoStmt || cost[i] >= cost[best])) best = id;
    }
    if (best != kNoStmt) keep(best, o);
  }
}

void NestBuilder::find_unsafe() {
  for (const PendingStore& store : stores_) {
    if (!store.aliased) continue;
    const BufferRef to = step_.pointers[store.access.pointer];
    const auto parameter = static_cast<uint32_t>(f_.module().results()[to.index].alias);
    for (const Stmt& s : stmts_) {
      if (s.kind != StmtKind::Load && s.kind != StmtKind::Gather) continue;
      const BufferRef& from = step_.pointers[s.access.pointer];
      if (from.kind != BufferRef::Kind::Parameter || from.index != parameter) continue;
      if (s.kind == StmtKind::Load && from.offset == to.offset &&
          s.access.stride == store.access.stride) {
        continue;
      }
      step_.unsafe.push_back(to.index);
      break;
    }
  }
}

void NestBuilder::estimate() {
  NestWork work = work_of(step_.nest);
  step_.work = work.work;
  step_.grain = grain_of(step_.nest, work);
}

}  // namespace neuron::compiler::cpu
