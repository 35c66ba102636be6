#pragma once

#include <vector>

#include "neuron/compiler/cpu/fuse.h"
#include "neuron/compiler/cpu/loop_nest.h"
#include "neuron/compiler/cpu/plan.h"

namespace neuron::compiler::cpu {

/// Turns the groups of a finished fusion into loop nests. Not thread-safe; one per plan.
class NestBuilder {
 public:
  explicit NestBuilder(Fusion& fusion);

  /// The step of group g.
  PlannedStep build(uint32_t g);
  /// A strided copy.
  PlannedStep build_copy(DType type, DimsRef dims, DimsRef from_strides, neff::BufferRef from,
                         DimsRef to_strides, neff::BufferRef to);

 private:
  struct Reduction {
    ValueId node = kNone;
    StmtId value = kNoStmt;
    uint16_t sweep = 0;
    uint16_t number = 0;
    MapId map = kNone;
    StmtId result = kNoStmt;
    bool done = false;
  };
  struct Memo {
    MapId map;
    StmtId mask;
    StmtId stmt;
    int32_t next;
  };

  StmtId emit(ValueId v, MapId map, StmtId mask);
  StmtId emit_new(ValueId v, MapId map, StmtId mask);
  StmtId emit_elementwise(const hlo::Node& node, MapId map, StmtId mask);
  StmtId emit_pad(ValueId v, MapId map, StmtId mask);
  StmtId emit_concatenate(ValueId v, MapId map, StmtId mask);
  StmtId emit_gather(ValueId v, MapId map, StmtId mask);
  StmtId emit_philox(const hlo::Node& node, MapId map);
  StmtId emit_iota(const hlo::Node& node, MapId map);
  StmtId emit_reduction(size_t index, MapId map);
  StmtId load(const Home& home, uint32_t place, DType stored, DimsRef strides, int64_t offset,
              MapId map, StmtId mask);
  StmtId push(Stmt stmt);
  StmtId compute(hlo::Op op, DType type, std::initializer_list<StmtId> in, int64_t number = 0);
  StmtId constant_int(DType type, int64_t value);
  StmtId linear(const Affine& e);
  StmtId affine_value(const Affine& e);
  StmtId both(StmtId a, StmtId b);
  StmtId in_range(const Affine& e, int64_t size);
  StmtId widen(StmtId s);
  StmtId convert(StmtId s, DType to);

  uint16_t pointer(neff::BufferRef ref);
  void add_store(const Output& output);
  void place_statements();
  void keep_rows(uint16_t sweeps, std::span<const uint16_t> at);
  void order_axes();
  void order_axes(SmallVector<int64_t, 8> extents, GroupKind kind, uint16_t first, uint16_t count);
  void estimate();
  void find_unsafe();

  Fusion& f_;
  uint32_t g_ = 0;
  PlannedStep step_;
  std::vector<Stmt> stmts_;
  std::vector<uint16_t> level_;
  std::vector<StmtId> widened_;
  std::vector<Reduction> reductions_;
  struct PendingStore {
    StmtId value;
    Access access;
    bool row_level;
    bool aliased;
    uint16_t sweep;
  };
  std::vector<PendingStore> stores_;
  /// A statement whose value stays in the row of a store from sweep `from` to sweep `last`.
  struct KeptRow {
    StmtId value;
    uint16_t store;
    uint16_t from, last;
    StmtId renamed;
  };
  std::vector<KeptRow> kept_rows_;
  std::vector<int32_t> memo_head_;
  std::vector<Memo> memo_;
  std::vector<ValueId> touched_;
  uint16_t status_ = 0xFFFF;
};

}  // namespace neuron::compiler::cpu
