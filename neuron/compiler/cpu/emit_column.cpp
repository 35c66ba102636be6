#include "neuron/base/error.h"
#include "neuron/compiler/cpu/emit_loop.h"
#include "neuron/compiler/cpu/emit_nest.h"
#include "neuron/compiler/cpu/nest_arguments.h"

// Reductions over outer axes: 64 columns at a time stay in registers while the reduced axes are
// walked. Every column is summed in pieces of 128, in an order that follows from the extents.
namespace neuron::compiler::cpu {
namespace {

constexpr int64_t kColumnSumPiece = 128;
constexpr int kColumnVectors = 4;

}  // namespace

void NestEmitter::emit_columns() {
  std::vector<V> nothing;
  V index = loop(row_begin_, row_end_, kLanes * kColumnVectors, kLanes * kColumnVectors, nothing,
                 [&](V i, std::vector<V>&) {
                   positions_.clear();
                   for (int u = 0; u < kColumnVectors; ++u) {
                     positions_.push_back({u == 0 ? i : b.CreateAdd(i, v.i64(u * kLanes))});
                   }
                   emit_column_block();
                 });
  loop(index, row_end_, 1, kLanes, nothing, [&](V i, std::vector<V>&) {
    positions_.assign(1, Position{i, tail_mask(i, row_end_)});
    emit_column_block();
  });
}

void NestEmitter::emit_column_block() {
  row_values_.assign(positions_.size(), std::vector<Lanes>(statements_.size()));
  reduced_.assign(positions_.size(), std::vector<Running>(reduces_.size()));
  for (size_t s = 0; s < nest_.sweeps.size(); ++s) emit_column_sweep(s);
  at_row_ = true;
  for (size_t k = 0; k < nest_.row_stores.size(); ++k) {
    const RowStore& store = nest_.row_stores[k];
    emit_statements(store.epilogue, first_of_epilogue_[k], kRow);
    const Access& access = store.access;
    const Stride kind = row_kind(access);
    for (size_t u = 0; u < positions_.size(); ++u) {
      Lanes lanes;
      DType type;
      if (store.value != kNoStmt) {
        lanes = value(store.value, static_cast<int>(u));
        type = statements_[store.value]->type;
      } else {
        const RowReduce& reduce = *reduces_[store.reduce];
        const Running& running = reduced_[u][store.reduce];
        lanes = reduce.arg ? Lanes{running.index} : running.value;
        type = reduce.arg ? DType::i64 : running_type(reduce);
      }
      lanes = v.convert(lanes, type, access.stored);
      v.store(access.stored, lanes, base_.at(&access), positions_[u].index, kind,
              row_stride(access), positions_[u].mask, dummy_);
    }
  }
  at_row_ = false;
}

void NestEmitter::emit_column_sweep(size_t number) {
  const Sweep& sweep = nest_.sweeps[number];
  const StmtId first = first_of_sweep_[number];
  const size_t count = sweep.reduces.size();
  const size_t vectors = positions_.size();
  at_row_ = true;
  emit_statements(sweep.body, first, kRow);
  at_row_ = false;
  V steps = v.i64(1);
  for (size_t axis = parallel_; axis < row_axis_; ++axis) {
    steps = b.CreateMul(steps, extent(axis));
  }
  // Reduction r of position u is running[u * count + r].
  std::vector<Running> totals;
  for (size_t u = 0; u < vectors; ++u) {
    for (const RowReduce& reduce : sweep.reduces) totals.push_back(identity_of(reduce));
  }
  const size_t reduced = row_axis_ - parallel_;
  std::vector<V> values;
  flatten(totals, values);
  // The counters of the reduced axes travel behind the totals.
  for (size_t k = 0; k < reduced; ++k) values.push_back(v.i64(0));
  const size_t total_count = values.size() - reduced;

  loop(v.i64(0), steps, 1, kColumnSumPiece, values, [&](V start, std::vector<V>& outer) {
    V piece_end = b.CreateAdd(start, v.i64(kColumnSumPiece));
    V limit = b.CreateSelect(b.CreateICmpSLT(piece_end, steps), piece_end, steps);
    std::vector<Running> running;
    for (size_t u = 0; u < vectors; ++u) {
      for (const RowReduce& reduce : sweep.reduces) running.push_back(identity_of(reduce));
    }
    std::vector<V> inner;
    flatten(running, inner);
    for (size_t k = 0; k < reduced; ++k) inner.push_back(outer[total_count + k]);
    loop(start, limit, 1, 1, inner, [&](V t, std::vector<V>& step) {
      std::vector<V> counters(step.end() - static_cast<long>(reduced), step.end());
      for (size_t k = 0; k < reduced; ++k) index_[parallel_ + k] = counters[k];
      step_base_.clear();
      unflatten(step, running);
      emit_statements(sweep.body, first, kVector);
      emit_stores(sweep);
      V lanes = nullptr;
      for (size_t u = 0; u < vectors; ++u) {
        for (size_t r = 0; r < count; ++r) {
          const RowReduce& reduce = sweep.reduces[r];
          if (reduce.arg && lanes == nullptr) lanes = v.splat(t);
          Running& accumulator = running[u * count + r];
          accumulator = combine(reduce, accumulator, value_of(reduce, static_cast<int>(u), lanes));
        }
      }
      flatten(running, step);
      V carry = nullptr;
      for (size_t k = reduced; k-- > 0;) {
        V next = carry == nullptr ? b.CreateAdd(counters[k], v.i64(1))
                                  : b.CreateAdd(counters[k], b.CreateZExt(carry, b.getInt64Ty()));
        if (k > 0) {
          carry = b.CreateICmpEQ(next, extent(parallel_ + k));
          next = b.CreateSelect(carry, v.i64(0), next);
        }
        counters[k] = next;
      }
      step.insert(step.end(), counters.begin(), counters.end());
      step_base_.clear();
    });
    unflatten(inner, running);
    unflatten(outer, totals);
    std::vector<V> counters(inner.end() - static_cast<long>(reduced), inner.end());
    for (size_t u = 0; u < vectors; ++u) {
      for (size_t r = 0; r < count; ++r) {
        totals[u * count + r] =
            combine(sweep.reduces[r], totals[u * count + r], running[u * count + r]);
      }
    }
    flatten(totals, outer);
    outer.insert(outer.end(), counters.begin(), counters.end());
  });
  unflatten(values, totals);
  if (count == 0) return;
  size_t base = 0;
  while (sweep_of_reduce_[base] != number) ++base;
  for (size_t u = 0; u < vectors; ++u) {
    for (size_t r = 0; r < count; ++r) {
      Running& total = totals[u * count + r];
      if (total.index != nullptr) {
        V none = b.CreateICmpEQ(total.index, v.splat(v.i64(std::numeric_limits<int64_t>::max())));
        total.index = b.CreateSelect(none, v.splat(v.i64(-1)), total.index);
      }
      reduced_[u][base + r] = total;
    }
  }
}

}  // namespace neuron::compiler::cpu
