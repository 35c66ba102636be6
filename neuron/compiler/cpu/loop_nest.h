#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "neuron/base/dtype.h"
#include "neuron/base/hash.h"
#include "neuron/base/shape.h"
#include "neuron/hlo/module.h"

// The kernel language: what fusion hands to the code generator. A nest walks `outer` axes (the
// first of them split over threads) and, inside, one `row` axis with vectors of 16 lanes, in one or
// more sweeps. Sizes, strides, offsets and scalars are run-time arguments: only structure is in the
// key, so one kernel serves every shape.
namespace neuron::compiler::cpu {

/// How an address moves along an axis; in the key. The number itself is an argument.
enum class Stride : uint8_t { Zero, Unit, Other };

using StmtId = uint16_t;
inline constexpr StmtId kNoStmt = 0xFFFF;

/// An affine address in elements: pointer + offset + sum(axis index * stride[axis]).
/// Axes are numbered outer axes first, then the row axis (last).
struct Access {
  uint16_t pointer = 0;  // Index into the pointer table.
  DType stored = DType::f32;
  SmallVector<Stride, 6> kind;     // One per axis; key.
  SmallVector<int64_t, 6> stride;  // One per axis; run-time argument where kind is Other.
  int64_t offset = 0;  // Elements; folded into the BufferRef by the caller (not an arg).
};

enum class StmtKind : uint8_t {
  Load,      // access; masked by `in[0]` if given (a pred Stmt): masked-off lanes give zero
  Gather,    // access.pointer + offset + dot(index stmts in[..], index_stride) + affine part;
             // masked by the last operand if `masked`
  Scalar,    // slot `number` of the scalar block (pointer `access.pointer`), kind `access.stored`
  Constant,  // `bits`
  Index,     // axis `number`'s index as i64 (row axis: base + lane)
  Linear,    // sum(axis index * stride) + offset as i64: an affine integer value (iota of a map);
             // the offset is an argument
  Compute,   // hlo op `op` on in[..]
  Philox,    // word `number` of philox(key in[0], counter in[1] (i64/u64 vector))
  Reduced,   // the result of reduction `number` of an earlier sweep of the same row (broadcast)
  Buffered,  // value of an earlier sweep's stmt `number`; see below
};

// Values across sweeps. A body may name a stmt of an earlier sweep of the same row: it (and what it
// needs) is computed again there, unless it does not vary along the row. A Buffered stmt with an
// access (kind and stride filled in) reads the value back instead: an earlier sweep must have a
// Store of that value, same element type, through an equal access (usually the output row). Without
// an access it is computed again. The caller must not overwrite what such a recomputation loads.

/// One SSA statement of the row body; every value is a vector of 16 lanes of `type`.
struct Stmt {
  StmtKind kind = StmtKind::Compute;
  hlo::Op op = hlo::Op::Add;  // Compute
  DType type = DType::f32;    // Result
  SmallVector<StmtId, 4> in;
  int64_t number = 0;         // Scalar slot, axis, reduction, philox word, compare direction
  uint64_t bits[2] = {0, 0};  // Constant (low bits; second word for c128)
  Access access;              // Load, Gather, Linear (stride/offset only)
  SmallVector<int64_t, 4> index_stride;  // Gather: run-time arguments, one per index
  SmallVector<int64_t, 4> index_extent;  // Gather: bounds; an index outside sets the status word
  bool masked = false;                   // Load/Gather: last operand is a pred mask
  bool checked = false;  // Gather: out of range sets the status word (else yields zero)
};

struct Store {
  StmtId value = kNoStmt;
  Access access;          // `stored` may differ from the value's type only for pred (u8)
  StmtId mask = kNoStmt;  // Stores only lanes where the pred is true
};

/// A reduction along the row axis; its result is available to later sweeps and to row stores.
struct RowReduce {
  hlo::ReduceKind kind = hlo::ReduceKind::Sum;
  StmtId value = kNoStmt;
  DType accumulate = DType::f32;
  /// Arg-reduce: also the row index (i64) of the first extreme; then `Reduced` reads the index.
  bool arg = false;
};

/// One pass over the row.
struct Sweep {
  std::vector<Stmt> body;  // Ids are per nest: sweep 1 continues the numbering of sweep 0.
  std::vector<Store> stores;
  std::vector<RowReduce> reduces;
};

/// Result of a row reduction written once per row (no row-axis index).
struct RowStore {
  uint16_t reduce = 0;  // Number over all sweeps
  /// Scalar math on the reduced values (lane 0 is used; the row index is 0); may be empty. Ids
  /// continue the nest's numbering: after the last sweep, row store by row store.
  std::vector<Stmt> epilogue;
  StmtId value = kNoStmt;  // Last epilogue stmt, or kNoStmt: the reduction itself
  Access access;
};

// Empty rows (row = 0): reductions yield their identity (arg: -1), everything else is skipped.
struct LoopNest {
  Dims outer;       // Extents of the outer axes, slowest first; may be empty
  int64_t row = 1;  // Extent of the row axis
  std::vector<Sweep> sweeps;
  std::vector<RowStore> row_stores;
  uint16_t pointer_count = 0;
  /// Pointer that holds the status word, or 0xFFFF.
  uint16_t status_pointer = 0xFFFF;
  /// Value written to the status word on an out-of-range index (a run-time argument).
  int64_t status_value = 1;
  /// Column mode: the last `reduced_axes` outer axes are reduced over instead of the row (the
  /// leading outer axes stay parallel); RowStores hold one element per row position, so their
  /// access and their epilogue vary along the row (access.kind covers all axes; reduced ones are
  /// ignored). A sweep is one pass over the reduced axes; `Reduced` is then one value per row
  /// position. An arg reduction yields the linear index over the reduced axes. Reductions run
  /// serially over the reduced axes: split long ones into a parallel outer axis and a second nest.
  bool column_reduce = false;
  uint8_t reduced_axes = 0;
};

/// The generator has code for a Compute stmt of `op` whose operands have type `type` (Convert,
/// Select, Compare included). Small floats are computed in f32 and rounded once.
bool supports(hlo::Op op, DType type);

/// Structural key: everything that changes the code, nothing else.
Hash128 key_of(const LoopNest& nest);

/// Run-time arguments of the nest in the order the generated code reads them.
std::vector<int64_t> arguments_of(const LoopNest& nest);

/// Iterations of the kernel's outermost loop; begin/end of the kernel count these. The product of
/// the (parallel) outer axes, times the pieces a row is cut into: rows longer than a few thousand
/// elements are cut where no reduction runs along them. Depends on the nest alone.
int64_t iterations_of(const LoopNest& nest);

/// Generates and caches kernels, one object each; what is missing of a call is compiled on up to
/// two threads. Thread-safe.
class KernelCache {
 public:
  struct Kernel {
    Hash128 hash;
    /// The ELF object; shared by all programs.
    std::shared_ptr<const std::vector<std::byte>> object;
  };
  virtual ~KernelCache() = default;
  virtual std::vector<Kernel> get(std::span<const LoopNest* const> nests) = 0;
};

/// The process's kernel cache: memory over disk over LLVM.
KernelCache& kernel_cache();

/// "znver4+avx512f..." as pinned for this host; part of every disk key.
const std::string& host_features();

}  // namespace neuron::compiler::cpu
