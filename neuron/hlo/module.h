#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "neuron/base/dtype.h"
#include "neuron/base/hash.h"
#include "neuron/base/shape.h"
#include "neuron/base/small_vector.h"

namespace neuron::hlo {

enum class Op : uint8_t {
#define NEURON_OP(enumerator, name, operands, category) enumerator,
#include "neuron/hlo/ops.def"
#undef NEURON_OP
};

enum class OpClass : uint8_t { Leaf, Elementwise, View, Structured };

/// The enumerator's own spelling, e.g. "Add".
std::string_view name_of(Op op);
/// The name in ops.def, e.g. "add", "neuron.erf".
std::string_view stablehlo_name(Op op);
OpClass class_of(Op op);
/// -1 if any number.
int operand_count(Op op);
/// The op exchanges data with other devices: it always runs, and in the order of the module.
constexpr bool is_collective(Op op) { return op >= Op::AllReduce && op <= Op::CollectiveBroadcast; }

enum class Direction : uint8_t { EQ, NE, LT, LE, GT, GE };
enum class ReduceKind : uint8_t { Sum, Product, Max, Min, And, Or };
enum class ScanKind : uint8_t { Sum, Product, Max, Min };
enum class ScatterKind : uint8_t { Set, Add, Multiply, Min, Max };
/// What Gather does with an index outside the operand: Fail sets the program's error word (the
/// launch reports NRT_EXEC_OOB); Fill yields zero.
enum class OutOfBounds : uint8_t { Fail, Fill };

/// The stream of attributes of an op, encoded as integers so that hashing, comparing and copying
/// need no knowledge of the op. The layout per op is documented at its Builder method.
using Ints = SmallVector<int64_t, 8>;

/// Which devices take part in a collective. Each row of `ids` is a group of its own; a device takes
/// part in the group that names it. Ids are global device ids: ranks of the whole job.
struct ReplicaGroups {
  int64_t columns = 0;
  Dims ids;
  /// Of StableHLO: tells collectives apart that may run at the same time.
  int64_t channel = 1;

  int64_t rows() const { return columns == 0 ? 0 : static_cast<int64_t>(ids.size()) / columns; }
  DimsRef row(int64_t index) const {
    return DimsRef(ids).subspan(static_cast<size_t>(index * columns), static_cast<size_t>(columns));
  }
  friend bool operator==(const ReplicaGroups&, const ReplicaGroups&) = default;
};

/// Attributes of a collective. Ints: {first, second, channel, columns, ids...}.
struct CollectiveInts {
  /// AllReduce, ReduceScatter: the ReduceKind. AllGather: the dim. AllToAll: the dim that is split.
  int64_t first = 0;
  /// ReduceScatter: the dim. AllToAll: the dim that grows.
  int64_t second = 0;
  /// CollectivePermute: {source, target} pairs.
  ReplicaGroups groups;

  Ints encode() const;
  static CollectiveInts decode(const Ints& ints);
};

using ValueId = uint32_t;
inline constexpr ValueId kNoValue = 0xFFFFFFFFu;

struct Type {
  DType dtype = DType::f32;
  Dims dims;
  friend bool operator==(const Type&, const Type&) = default;
};
/// "f32[2, 3]".
std::string to_string(const Type& type);
using neuron::name_of;
using neuron::stablehlo_name;
using neuron::to_string;

/// One operation and its (first) result. Nodes are in topological order: operands precede users.
struct Node {
  Op op = Op::Constant;
  Type type = {};
  SmallVector<ValueId, 4> operands = {};
  Ints ints = {};
  /// Constant: the element (splat) or all elements, little endian. LibraryCall: encoded arguments
  /// (see neff/arguments.h). Empty otherwise.
  std::vector<std::byte> bytes = {};
  /// LibraryCall: the kernel's name. Empty otherwise.
  std::string name = {};
  /// Types of all results of a multi-result op (Sort, LibraryCall); empty if there is just one.
  std::vector<Type> results = {};
};

/// A tensor argument: a flat buffer that starts at the view's first element, read with these
/// strides.
struct Parameter {
  Type type;
  Dims strides;  // In elements, >= 0; 0 for expanded dims.
  ValueId value = kNoValue;
};

/// A run-time host scalar: 16 bytes in the launch's scalar block, of kind i64, u64, f64 or c128
/// (pred travels as i64).
struct Scalar {
  DType kind;
  ValueId value = kNoValue;
};

/// A result and where it is written.
struct Result {
  ValueId value = kNoValue;
  /// Strides, in elements, of the buffer written; the extent is storage_extent(dims, strides).
  Dims strides;
  /// Parameter whose buffer this result overwrites (in-place, out=), or -1 for a fresh buffer.
  int32_t alias = -1;
  /// The written buffer may overlap parameters other than `alias` (or `alias` under another view):
  /// everything must be read before the first store.
  bool staged = false;
};

/// A program: static shapes, values in topological order, one basic block.
/// Thread-compatible. Built only by Builder.
class Module {
 public:
  Module() = default;
  Module(Module&&) = default;
  Module& operator=(Module&&) = default;
  Module(const Module&) = default;
  Module& operator=(const Module&) = default;

  std::span<const Node> nodes() const { return nodes_; }
  const Node& node(ValueId id) const { return nodes_[id]; }
  std::span<const Parameter> parameters() const { return parameters_; }
  std::span<const Scalar> scalars() const { return scalars_; }
  std::span<const Result> results() const { return results_; }
  size_t size() const { return nodes_.size(); }

  /// Mutable access for passes in compiler/, which re-verify.
  std::vector<Node>& mutable_nodes() { return nodes_; }
  std::vector<Parameter>& mutable_parameters() { return parameters_; }
  std::vector<Scalar>& mutable_scalars() { return scalars_; }
  std::vector<Result>& mutable_results() { return results_; }

 private:
  friend class Builder;
  std::vector<Node> nodes_;
  std::vector<Parameter> parameters_;
  std::vector<Scalar> scalars_;
  std::vector<Result> results_;
};

/// Structural hash: equal modules give equal hashes, whatever built them. Everything that changes
/// the compiled program takes part; nothing else.
Hash128 fingerprint(const Module& module);

/// Throws Error(kInternal) naming the first broken invariant (shape, dtype, order, attributes).
void verify(const Module& module);

/// StableHLO text of the module. Parameters are flat `tensor<NxT>` arguments of @main when they are
/// not contiguous, shaped ones otherwise; scalars are rank-0 arguments after them; results that
/// alias a parameter return the whole updated buffer and carry tf.aliasing_output.
std::string to_stablehlo(const Module& module, std::string_view name = "program");

/// Reads text that to_stablehlo printed (for tests and tools). Throws Error(kInvalid) with the
/// line.
Module parse_stablehlo(std::string_view text);

}  // namespace neuron::hlo
