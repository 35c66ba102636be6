#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "neuron/compiler/cpu/emit_vector.h"
#include "neuron/compiler/cpu/loop_nest.h"

namespace llvm {
class Module;
}  // namespace llvm

namespace neuron::compiler::cpu {

/// Emits the code of one nest as the function `symbol` of `module`.
void emit_nest(llvm::Module& module, const LoopNest& nest, const std::string& symbol,
               TargetTraits traits);

/// The state of one emission. Row mode is in emit_nest.cpp, reductions over columns in
/// emit_column.cpp, statements in emit_body.cpp.
class NestEmitter {
 public:
  NestEmitter(llvm::IRBuilderBase& builder, llvm::Function* function, const LoopNest& nest,
              TargetTraits traits);
  void emit();

 private:
  using V = llvm::Value*;

  /// When a statement is computed: once per call, once per row (in column mode: per block of
  /// columns), or for every vector.
  enum Level : uint8_t { kCall = 0, kRow = 1, kVector = 2 };

  /// 16 lanes of the row axis. In row mode, row-level values have none.
  struct Position {
    V index = nullptr;  // of lane 0
    V mask = nullptr;   // null: all lanes
  };

  /// A running reduction: its value, and the index of it for arg reductions.
  struct Running {
    Lanes value;
    V index = nullptr;
  };

  /// A gather whose indices are the same for the whole row.
  struct RowGather {
    V base = nullptr;
    V inside = nullptr;  // i1
  };

  // --- emit_nest.cpp --------------------------------------------------------------------------
  void number_statements();
  Level level_of(const Stmt& stmt) const;
  bool varies(const Access& access, size_t first_axis, size_t last_axis) const;
  void load_arguments();
  V argument(const void* owner, int slot);
  V extent(size_t axis);
  /// base + sum over axes [first, last) of index * stride, in elements.
  V advance(V base, const Access& access, size_t first, size_t last);
  void emit_iterations();
  void emit_row();
  void emit_sweep(size_t number);
  /// The first position from which on the streaming stores of the sweep are aligned, and whether
  /// there is one for all of them.
  std::pair<V, V> streaming_start(const Sweep& sweep);
  void emit_row_reductions(size_t number);
  void emit_row_stores();
  Running identity_of(const RowReduce& reduce);
  Running combine(const RowReduce& reduce, const Running& a, const Running& b);
  Running value_of(const RowReduce& reduce, int u, V index_of_lanes);
  Running fold_lanes(const RowReduce& reduce, Running x);
  void flatten(const std::vector<Running>& from, std::vector<V>& to);
  void unflatten(const std::vector<V>& from, std::vector<Running>& to);
  DType running_type(const RowReduce& reduce);
  int unroll_of(const Sweep& sweep);
  /// A power or Philox rounds are in it: masks add a few per cent to what a vector takes.
  static bool is_dear(const Sweep& sweep);
  V tail_mask(V index, V limit);

  /// for (i = start; i + needed <= limit; i += step) carried = body(i, carried); returns the final
  /// i.
  template <typename Body>
  V loop(V start, V limit, int64_t needed, int64_t step, std::vector<V>& carried, Body body);

  // --- emit_tile.cpp --------------------------------------------------------------------------
  void emit_tiled_row();
  void emit_tile(V row, bool masked);
  V tile_slot(const Stmt& stmt);

  // --- emit_column.cpp ------------------------------------------------------------------------
  void emit_columns();
  void emit_column_block();
  void emit_column_sweep(size_t number);

  // --- emit_body.cpp --------------------------------------------------------------------------
  /// Computes the body's statements of `level` for every position and keeps them.
  void emit_statements(const std::vector<Stmt>& body, StmtId first, Level level);
  void emit_stores(const Sweep& sweep);
  Lanes value(StmtId id, int u);
  Lanes emit_statement(StmtId id, int u);
  Lanes emit_load(const Stmt& stmt, int u);
  Lanes emit_gather(StmtId id, const Stmt& stmt, int u);
  Lanes emit_philox(const Stmt& stmt, int u);
  V emit_linear(const Stmt& stmt, int u);
  void prepare_row_gather(StmtId id, const Stmt& stmt);
  V access_base(const Access& access);
  V row_stride(const Access& access);
  Stride row_kind(const Access& access) const;
  V and_masks(V a, V b);
  /// Writes the status word where any bit of `outside` (a vector of i1, or i1) is set.
  void report_outside(V outside);
  bool uniform_indices(const Stmt& stmt) const;

  llvm::IRBuilderBase& b;
  llvm::Function* function_;
  const LoopNest& nest_;
  VectorEmitter v;
  size_t row_axis_;
  size_t parallel_;  // number of axes iterated over
  size_t tile_axis_;
  bool streams_;

  std::vector<const Stmt*> statements_;  // by id
  std::vector<Level> levels_;            // by id
  std::vector<StmtId> first_of_sweep_;
  std::vector<StmtId> first_of_epilogue_;
  std::vector<const RowReduce*> reduces_;  // by number
  std::vector<size_t> sweep_of_reduce_;

  V pointers_ = nullptr;
  V args_ = nullptr;
  V begin_ = nullptr;
  V end_ = nullptr;
  V dummy_ = nullptr;
  std::vector<V> pointer_;  // by number; loaded at the start
  std::map<std::pair<const void*, int>, V> argument_;
  std::vector<V> fixed_;  // the fixed arguments and extents
  std::vector<V> index_;  // current index per outer axis
  V row_begin_ = nullptr;
  V row_end_ = nullptr;
  std::map<const Access*, V> base_;       // of the current row (kept axes in column mode)
  std::map<const Access*, V> step_base_;  // column mode: of the current reduced index

  V tile_rows_ = nullptr;                // tiled: rows of the current block, at most 16
  V tile_row_ = nullptr;                 // tiled: the row of the block
  std::map<const Stmt*, V> tile_slots_;  // transposed tiles on the stack

  std::vector<Position> positions_;             // of the vectors being emitted
  bool streaming_now_ = false;                  // stores of the current loop go around the caches
  bool at_row_ = false;                         // emitting row-level values
  std::vector<Lanes> call_values_;              // by id
  std::vector<std::vector<Lanes>> row_values_;  // by position (row mode: just one), id
  std::vector<std::vector<Lanes>> vector_values_;                   // by position, id
  std::vector<std::vector<Running>> reduced_;                       // by position, reduction number
  std::map<std::pair<StmtId, StmtId>, std::vector<Lanes>> philox_;  // words per position * 4
  std::map<StmtId, RowGather> row_gather_;
};

}  // namespace neuron::compiler::cpu
