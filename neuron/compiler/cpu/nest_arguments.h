#pragma once

#include "neuron/compiler/cpu/loop_nest.h"

namespace neuron::compiler::cpu {

/// Elements of a row that one iteration of a nest without row reductions covers at most.
inline constexpr int64_t kRowPiece = 4096;
/// Row positions that one iteration of a column reduction covers at most.
inline constexpr int64_t kColumnPiece = 256;

/// Fixed arguments in front of all others.
enum FixedArgument : int {
  kArgRow = 0,  // extent of the row axis
  kArgPiece,    // elements of the row per iteration
  kArgPieces,   // iterations per row
  kArgStatus,   // status value
  kArgOuter,    // extents of the outer axes follow
};

/// True if some statement of the nest reduces along the row.
inline bool reduces_row(const LoopNest& nest) {
  if (nest.column_reduce) return false;
  for (const Sweep& sweep : nest.sweeps) {
    if (!sweep.reduces.empty()) return true;
  }
  return false;
}

/// Row elements that one iteration of a tiled nest covers at most, in each of its 16 rows.
inline constexpr int64_t kTilePiece = 1024;
inline constexpr size_t kNoAxis = ~size_t{0};

/// A load whose lanes run along the outer axis `axis` in memory, not along the row.
inline bool is_transposed(const LoopNest& nest, const Stmt& stmt, size_t axis) {
  const size_t row = nest.outer.size();
  return stmt.kind == StmtKind::Load && stmt.in.empty() && !is_complex(stmt.access.stored) &&
         stmt.access.kind.size() > row && stmt.access.kind[row] == Stride::Other &&
         stmt.access.kind[axis] == Stride::Unit;
}

/// The axis of which 16 indices are done at a time, so that transposed loads can be made of whole
/// vectors; kNoAxis if the nest has none. Follows from the structure alone.
size_t tile_axis(const LoopNest& nest);

/// Nests that write this much go around the caches: half of an ordinary last-level cache.
inline constexpr int64_t kStreamingBytes = int64_t{16} << 20;

/// True if the store writes whole vectors to memory that the nest never reads.
bool can_stream(const LoopNest& nest, const Sweep& sweep, const Store& store);
/// The nest is big enough that its output will not stay in cache; such nests have kernels of their
/// own, with streaming stores.
bool streams(const LoopNest& nest);

/// How rows are cut into iterations.
struct RowPieces {
  int64_t piece = 0;
  int64_t pieces = 1;
};
RowPieces row_pieces(const LoopNest& nest);

/// Axes whose product is iterated over (all outer axes, or the kept ones of a column reduction).
inline size_t parallel_axes(const LoopNest& nest) {
  return nest.outer.size() - (nest.column_reduce ? nest.reduced_axes : 0);
}

/// Visits the arguments of the accesses in order: visit(owner, slot, value) where owner is the
/// Access or Stmt and slot numbers its arguments. Generator and caller both use it, so that they
/// cannot disagree.
template <typename Visit>
void for_each_argument(const LoopNest& nest, Visit visit) {
  const auto strides = [&](const Access& access) {
    for (size_t axis = 0; axis < access.kind.size(); ++axis) {
      if (access.kind[axis] == Stride::Other) {
        visit(static_cast<const void*>(&access), static_cast<int>(axis), access.stride[axis]);
      }
    }
  };
  const auto body = [&](const std::vector<Stmt>& statements) {
    for (const Stmt& stmt : statements) {
      switch (stmt.kind) {
        case StmtKind::Load:
        case StmtKind::Buffered:
          strides(stmt.access);
          break;
        case StmtKind::Gather:
          strides(stmt.access);
          for (size_t i = 0; i < stmt.index_stride.size(); ++i) {
            visit(static_cast<const void*>(&stmt), static_cast<int>(2 * i), stmt.index_stride[i]);
            visit(static_cast<const void*>(&stmt), static_cast<int>(2 * i + 1),
                  stmt.index_extent[i]);
          }
          break;
        case StmtKind::Linear:
          strides(stmt.access);
          visit(static_cast<const void*>(&stmt), 0, stmt.access.offset);
          break;
        case StmtKind::Scalar:
          visit(static_cast<const void*>(&stmt), 0, stmt.number);
          break;
        case StmtKind::Constant:
        case StmtKind::Index:
        case StmtKind::Compute:
        case StmtKind::Philox:
        case StmtKind::Reduced:
          break;
      }
    }
  };
  for (const Sweep& sweep : nest.sweeps) {
    body(sweep.body);
    for (const Store& store : sweep.stores) strides(store.access);
  }
  for (const RowStore& store : nest.row_stores) {
    body(store.epilogue);
    strides(store.access);
  }
}

}  // namespace neuron::compiler::cpu
