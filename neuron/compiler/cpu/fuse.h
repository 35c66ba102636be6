#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "neuron/compiler/cpu/index_map.h"
#include "neuron/hlo/module.h"
#include "neuron/neff/program.h"

// Fusion: which values are computed together in one loop nest, over which axes, and which values
// are written to memory. One greedy pass from the results backwards.
namespace neuron::compiler::cpu {

using hlo::ValueId;

using MapId = uint32_t;
inline constexpr uint32_t kNone = 0xFFFFFFFFu;

/// Where a value lives in memory.
struct Home {
  bool valid = false;
  neff::BufferRef::Kind kind = neff::BufferRef::Kind::Arena;
  uint32_t index = 0;  // Parameter, result; arena: the place's own number.
  int64_t offset = 0;  // Bytes.
  Dims strides;        // Elements.
};

/// A strided view of a base value's buffer.
struct StridedView {
  ValueId base = kNone;
  int64_t offset = 0;  // Elements from the base's first.
  Dims strides;
};

/// One write of a group. Places 0 .. nodes-1 are values; nodes + r is the buffer of result r.
struct Output {
  ValueId value = kNone;
  MapId map = kNone;  // Index into `value`.
  uint32_t place = kNone;
  MapId place_map = kNone;  // Index into the place's dims.
  /// The place is contiguous and holds `value`'s elements in row-major order of the value's dims.
  bool flat = false;
};

enum class GroupKind : uint8_t {
  Pointwise,
  Row,     // reduces over its reduced axes, which become the row
  Column,  // reduces over its reduced axes; the row is another axis
};

/// A fused loop nest in the making.
struct Group {
  SmallVector<int64_t, 8> extents;
  GroupKind kind = GroupKind::Pointwise;
  uint16_t axis =
      0;  // The reduced axes of Row and Column: [axis, axis + axis_count), slowest first.
  uint16_t axis_count = 0;
  uint32_t parent = kNone;  // Union-find: set once merged into another.
  std::vector<Output> outputs;
  SmallVector<ValueId, 4> reduces;  // Reduce and ArgReduce nodes computed here.
  std::vector<MapId> maps;          // Every map over these axes.
  SmallVector<uint32_t, 8> reads;   // Places read (of computed values), with repeats.
  int64_t max_read = -1;
  int64_t min_output = 0;
  uint32_t size = 0;  // Computed nodes.
  uint32_t loads = 0;
  uint32_t next_writer = kNone;  // Next group that writes the same assembled place.
  uint32_t after = kNone;        // Group that must run before, beyond what it reads.
  bool pinned = false;           // Writes a part of a place: never merged.
  uint32_t stamp = 0;
};

/// How a value is made.
enum class Made : uint8_t {
  Free,     // leaf that costs nothing: splat, iota, scalar
  Buffer,   // parameter, dense constant
  Compute,  // elementwise, gather, random bits
  View,
  Reduce,   // Reduce, ArgReduce along one dim
  Library,  // a library step
  Element,  // further result of a library step
};

struct NodeInfo {
  Made made = Made::Free;
  bool scalar_only = false;  // depends on scalars and constants alone
  bool must_store = false;
  bool stored = false;               // has memory (decided)
  bool read_direct = false;          // a view whose base is stored: read through StridedView
  bool live = false;                 // a library step that runs
  float cost = 0;                    // of one element, in cheap ops, recomputing from buffers
  float loads = 0;                   // elements loaded per element
  uint32_t demand = kNone;           // head of the list
  uint32_t flat = kNone;             // list of readers of other views of it, by address
  int64_t first_reader = INT64_MAX;  // least id of a library step that reads the stored value
  uint32_t owner = kNone;            // group that writes it
  ValueId piece_of = kNone;          // concatenation in whose memory this library result lives
  StridedView view;  // what it shows of which buffer; its own, if it is no strided view
};

struct Demand {
  uint32_t group = kNone;
  MapId map = kNone;  // kNone: reads the value's memory, as whatever view.
  uint32_t next = kNone;
};

/// A gather index as a variable of maps: the value of `index` at `map`.
struct Variable {
  ValueId index = kNone;
  MapId map = kNone;
  int64_t extent = 0;
  bool checked = false;
  uint32_t group = kNone;
};

/// An operand and where it is read.
struct OperandRead {
  ValueId value = kNone;
  MapId map = kNone;
};

/// Thread-compatible; used once. The module must outlive it and be legal (legalize.h).
class Fusion {
 public:
  // A group that grows beyond these is likely to spill registers, or to cost more compile time than
  // the memory traffic it saves.
  static constexpr uint32_t kMaxGroupSize = 160;
  static constexpr uint32_t kMaxLoads = 24;
  static constexpr size_t kMaxOutputs = 12;

  /// `cut_rows`: a reduced dim may be walked by several axes, in the hope that they collapse.
  explicit Fusion(const hlo::Module& module, bool cut_rows = true);
  void run();

  const hlo::Module& module() const { return module_; }
  const NodeInfo& info(ValueId v) const { return info_[v]; }
  std::span<const Group> groups() const { return groups_; }
  const Home& home(uint32_t place) const { return homes_[place]; }
  Home& home(uint32_t place) { return homes_[place]; }
  /// Bytes of a place that needs arena memory.
  int64_t place_bytes(uint32_t place) const;
  /// The place of result k of library step v: that of its TupleElement, or scratch.
  uint32_t element_place(ValueId v, size_t k);
  std::span<const std::byte> constants() const { return constants_; }
  std::vector<std::byte>& constants() { return constants_; }
  const Affine* map(MapId id) const { return affines_.data() + maps_[id].begin; }
  size_t rank(MapId id) const { return maps_[id].rank; }
  bool equal_maps(MapId a, MapId b) const;
  const Variable& variable(uint16_t axis) const { return variables_[axis - kFirstVariable]; }

  /// The group that g was merged into.
  uint32_t find(uint32_t g);
  /// From now on maps must succeed without changing axes.
  void freeze() { frozen_ = true; }

  MapId add_map(uint32_t g, std::span<const Affine> exprs) { return new_map(g, exprs); }
  /// Map of a hosted reduction's operand, given the map of its result.
  MapId reduction_map(uint32_t g, ValueId v, MapId at);
  /// Operands of v read at `at` by group g, in operand order (for Gather: the operand, then the
  /// indices). False if some map is not affine. May refine the group's axes.
  bool expand(ValueId v, uint32_t g, MapId at, SmallVector<OperandRead, 4>* reads);

 private:
  struct MapSlot {
    uint32_t begin;
    uint32_t rank;
  };

  void assign_homes();
  void classify();
  void classify_node(ValueId v);
  void choose_updates();
  void place_pieces();
  void choose_layouts();
  void strided_view_of(ValueId v);
  /// Whether a view op only changes strides of what `from` shows.
  bool strided_view(const hlo::Node& node, const StridedView& from, StridedView* result) const;

  uint32_t new_group(DimsRef extents, int64_t min_output);
  MapId new_map(uint32_t g, std::span<const Affine> exprs);
  MapId identity_map(uint32_t g, DimsRef dims);
  bool refine(uint32_t g, uint16_t axis, int64_t factor);

  void demand(ValueId v, uint32_t g, MapId map);
  void demand_operand(ValueId v, size_t index, const OperandRead& read, uint32_t g);
  void collect(ValueId v, std::vector<Demand>* into);
  void store_for_library(ValueId v, int64_t reader);
  void read(uint32_t g, uint32_t place);
  void read_direct(ValueId v, std::span<const Demand> demands);
  /// The address at which a strided view is read, as one expression; kNone if there is none.
  MapId address_map(uint32_t g, MapId at, DimsRef strides, int64_t offset);
  void set_stored(ValueId v);
  /// Reading v is loading from a buffer whatever fusion decides.
  bool loaded(ValueId v) const;

  void visit(ValueId v);
  void visit_library(ValueId v);
  void visit_reduce(ValueId v, std::vector<Demand>& demands);
  void visit_computed(ValueId v, std::vector<Demand>& demands);
  void materialize(ValueId v, std::span<const Demand> demands);
  void assemble(ValueId v);
  bool assembled(ValueId v, std::span<const Demand> demands) const;
  void merge_siblings(ValueId v, std::vector<Demand>& demands);
  void merge_readers(ValueId v, std::vector<Demand>& demands);

  /// The axes used by an injective cover of v's dims; false if the map is none.
  bool covers(uint32_t g, MapId map, DimsRef dims, SmallVector<uint8_t, 8>* used) const;
  enum class Cover : uint8_t { None, Full, RowLevel };
  Cover cover_of(uint32_t g, MapId map, DimsRef dims) const;
  bool try_merge(uint32_t g1, MapId m1, uint32_t g2, MapId m2, DimsRef dims);
  bool try_host(ValueId v, uint32_t g, MapId map);
  static int64_t reduced_extent(const Group& group);
  static bool short_column(const Group& group);
  /// v is computed from a reduction along the rows of its own space.
  bool has_row_reduction(ValueId v) const;
  /// A reduction along rows of `length` from which v is computed without changing its count.
  ValueId row_reduction_in(ValueId v, int64_t length) const;
  /// Turns a pointwise group into rows where v, one value a row, comes from a row reduction.
  bool make_row(ValueId v, uint32_t g, MapId at);
  bool depends_on(uint32_t g, uint32_t target);
  bool group_depends(uint32_t g, uint32_t target);
  bool value_depends(ValueId v, uint32_t target);
  bool may_store_in(uint32_t g, ValueId v, std::span<const Demand> demands);

  const hlo::Module& module_;
  std::vector<NodeInfo> info_;
  std::vector<Home> homes_;
  std::vector<ValueId> elements_;       // Stored TupleElement nodes.
  std::vector<int64_t> scratch_bytes_;  // Of places beyond values and results.
  std::vector<Group> groups_;
  std::vector<Demand> demands_;
  std::vector<MapSlot> maps_;
  std::vector<Affine> affines_;
  std::vector<Variable> variables_;
  std::vector<std::byte> constants_;
  std::vector<Demand> scratch_;
  std::vector<uint32_t> readers_;  // Groups that read the visited value's memory as another view.
  std::vector<uint32_t> library_stamp_;
  std::vector<ValueId> collective_before_;  // By collective: the one before it, or kNone.
  uint32_t stamp_ = 0;
  int budget_ = 0;
  bool frozen_ = false;
  const bool cut_rows_;
};

/// Cost of one element of an op in cheap vector operations.
float op_cost(const hlo::Node& node);

}  // namespace neuron::compiler::cpu
