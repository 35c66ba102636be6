#include <algorithm>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/loop_nest.h"
#include "neuron/compiler/cpu/nest_arguments.h"

namespace neuron::compiler::cpu {
namespace {

// Changes when the generator writes other code for the same nest, so that no cache on disk serves
// kernels of an older generator.
constexpr uint64_t kGeneratorVersion = 2;

void add_access(Hasher& hasher, const Access& access) {
  hasher.add(access.pointer | static_cast<uint64_t>(access.stored) << 16 |
             static_cast<uint64_t>(access.kind.size()) << 24);
  uint64_t kinds = 0;
  for (Stride kind : access.kind) kinds = kinds << 2 | static_cast<uint64_t>(kind);
  hasher.add(kinds);
}

void add_body(Hasher& hasher, const std::vector<Stmt>& body) {
  hasher.add(body.size());
  for (const Stmt& stmt : body) {
    hasher.add(static_cast<uint64_t>(stmt.kind) | static_cast<uint64_t>(stmt.op) << 8 |
               static_cast<uint64_t>(stmt.type) << 16 | static_cast<uint64_t>(stmt.masked) << 24 |
               static_cast<uint64_t>(stmt.checked) << 25 | stmt.in.size() << 32);
    for (StmtId id : stmt.in) hasher.add(id);
    switch (stmt.kind) {
      case StmtKind::Load:
      case StmtKind::Buffered:
        hasher.add(static_cast<uint64_t>(stmt.number));
        add_access(hasher, stmt.access);
        break;
      case StmtKind::Gather:
        add_access(hasher, stmt.access);
        hasher.add(stmt.index_stride.size());
        break;
      case StmtKind::Linear:
        add_access(hasher, stmt.access);
        break;
      case StmtKind::Scalar:  // The slot is an argument.
        hasher.add(stmt.access.pointer | static_cast<uint64_t>(stmt.access.stored) << 16);
        break;
      case StmtKind::Constant:
        hasher.add(stmt.bits[0]);
        hasher.add(stmt.bits[1]);
        break;
      case StmtKind::Index:
      case StmtKind::Compute:
      case StmtKind::Philox:
      case StmtKind::Reduced:
        hasher.add(static_cast<uint64_t>(stmt.number));
        break;
    }
  }
}

}  // namespace

Hash128 key_of(const LoopNest& nest) {
  Hasher hasher;
  hasher.add(kGeneratorVersion);
  hasher.add(nest.outer.size() | static_cast<uint64_t>(nest.column_reduce) << 8 |
             static_cast<uint64_t>(streams(nest)) << 9 |
             static_cast<uint64_t>(nest.column_reduce ? nest.reduced_axes : 0) << 16 |
             static_cast<uint64_t>(nest.pointer_count) << 24 |
             static_cast<uint64_t>(nest.status_pointer) << 40);
  hasher.add(nest.sweeps.size());
  for (const Sweep& sweep : nest.sweeps) {
    add_body(hasher, sweep.body);
    hasher.add(sweep.stores.size() | sweep.reduces.size() << 32);
    for (const Store& store : sweep.stores) {
      hasher.add(store.value | static_cast<uint64_t>(store.mask) << 16);
      add_access(hasher, store.access);
    }
    for (const RowReduce& reduce : sweep.reduces) {
      hasher.add(
          static_cast<uint64_t>(reduce.kind) | static_cast<uint64_t>(reduce.accumulate) << 8 |
          static_cast<uint64_t>(reduce.arg) << 16 | static_cast<uint64_t>(reduce.value) << 24);
    }
  }
  hasher.add(nest.row_stores.size());
  for (const RowStore& store : nest.row_stores) {
    hasher.add(store.reduce | static_cast<uint64_t>(store.value) << 16);
    add_body(hasher, store.epilogue);
    add_access(hasher, store.access);
  }
  return hasher.finish();
}

size_t tile_axis(const LoopNest& nest) {
  if (nest.column_reduce || nest.sweeps.size() != 1 || !nest.row_stores.empty()) return kNoAxis;
  const Sweep& sweep = nest.sweeps[0];
  const size_t row = nest.outer.size();
  if (!sweep.reduces.empty()) return kNoAxis;
  for (const Store& store : sweep.stores) {
    if (store.access.kind.size() <= row || store.access.kind[row] != Stride::Unit) return kNoAxis;
  }
  for (const Stmt& stmt : sweep.body) {
    // Their addresses are prepared per row.
    if (stmt.kind == StmtKind::Gather) return kNoAxis;
  }
  for (const Stmt& stmt : sweep.body) {
    for (size_t axis = row; axis-- > 0;) {
      if (is_transposed(nest, stmt, axis)) return axis;
    }
  }
  return kNoAxis;
}

bool can_stream(const LoopNest& nest, const Sweep& sweep, const Store& store) {
  const size_t row = nest.outer.size();
  const Access& access = store.access;
  if (nest.column_reduce || !sweep.reduces.empty() || store.mask != kNoStmt ||
      is_complex(access.stored) || access.kind.size() <= row || access.kind[row] != Stride::Unit) {
    return false;
  }
  for (const Sweep& other : nest.sweeps) {
    for (const Stmt& stmt : other.body) {
      const bool reads = stmt.kind == StmtKind::Load || stmt.kind == StmtKind::Gather ||
                         (stmt.kind == StmtKind::Buffered && !stmt.access.kind.empty());
      if (reads && stmt.access.pointer == access.pointer) return false;
    }
  }
  return true;
}

bool streams(const LoopNest& nest) {
  if (tile_axis(nest) != kNoAxis) return false;
  int64_t elements = nest.row;
  for (int64_t extent : nest.outer) elements *= extent;
  if (elements < kStreamingBytes / 64) return false;
  int64_t bytes = 0;
  for (const Sweep& sweep : nest.sweeps) {
    for (const Store& store : sweep.stores) {
      if (can_stream(nest, sweep, store)) {
        bytes += elements * static_cast<int64_t>(size_of(store.access.stored));
      }
    }
  }
  return bytes >= kStreamingBytes;
}

RowPieces row_pieces(const LoopNest& nest) {
  if (reduces_row(nest)) return {std::max<int64_t>(nest.row, 1), 1};
  const int64_t piece = nest.column_reduce           ? kColumnPiece
                        : tile_axis(nest) != kNoAxis ? kTilePiece
                                                     : kRowPiece;
  // A row of up to two pieces stays whole: cutting it would only add short remainders.
  if (nest.row <= 2 * piece) return {std::max<int64_t>(nest.row, 1), 1};
  return {piece, (nest.row + piece - 1) / piece};
}

std::vector<int64_t> arguments_of(const LoopNest& nest) {
  const RowPieces rows = row_pieces(nest);
  std::vector<int64_t> args = {nest.row, rows.piece, rows.pieces, nest.status_value};
  args.insert(args.end(), nest.outer.begin(), nest.outer.end());
  for_each_argument(nest, [&](const void*, int, int64_t value) { args.push_back(value); });
  return args;
}

int64_t iterations_of(const LoopNest& nest) {
  int64_t count = row_pieces(nest).pieces;
  const size_t tiled = tile_axis(nest);
  for (size_t axis = 0; axis < parallel_axes(nest); ++axis) {
    count *= axis == tiled ? (nest.outer[axis] + 15) / 16 : nest.outer[axis];
  }
  // Nothing to write in an empty row; a reduction of nothing still writes its identity.
  if (nest.row == 0 && !reduces_row(nest)) return 0;
  return count;
}

}  // namespace neuron::compiler::cpu
