// Functional collectives. In graphs they are part of the program; eager calls go through the
// process group. A program waits where it needs the data, so wait_tensor does nothing.
#include "neuron/lowering/collectives.h"

#include <algorithm>
#include <mutex>

#include "neuron/base/error.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

using hlo::ReduceKind;

struct Resolver {
  std::mutex mutex;
  std::function<ProgramGroup(const std::string&)> resolve;  // Guarded.
};
Resolver& resolver() {
  static Resolver* const instance = new Resolver;  // Leaked.
  return *instance;
}

ProgramGroup group_of(const OpCall& call, size_t argument) {
  std::function<ProgramGroup(const std::string&)> resolve;
  {
    const std::lock_guard lock(resolver().mutex);
    resolve = resolver().resolve;
  }
  NEURON_CHECK(resolve != nullptr, kUnsupported, "there are no process groups");
  return resolve(std::string(call.text(argument)));
}

void check_size(const OpCall& call, size_t argument, const ProgramGroup& group) {
  NEURON_CHECK(call.integer(argument) == group.groups.columns, kUnsupported, "a group size of ",
               call.integer(argument), ", but the group has ", group.groups.columns, " ranks");
}

/// Reductions by torch's names.
struct Reduction {
  ReduceKind kind;
  bool average = false;
};
Reduction reduction_of(const OpCall& call, size_t argument) {
  const std::string_view name = call.text(argument);
  if (name == "sum") return {ReduceKind::Sum};
  if (name == "avg") return {ReduceKind::Sum, true};
  if (name == "product") return {ReduceKind::Product};
  if (name == "max") return {ReduceKind::Max};
  if (name == "min") return {ReduceKind::Min};
  if (name == "band") return {ReduceKind::And};
  if (name == "bor") return {ReduceKind::Or};
  raise(ErrorKind::kUnsupported, "no reduction of StableHLO is '", std::string(name), "'");
}

/// An average is a sum, divided: exactly what the process group does.
Value divided(Builder& b, Value sum, const Reduction& reduction, const ProgramGroup& group) {
  if (!reduction.average) return sum;
  NEURON_CHECK(is_floating(sum.dtype()), kUnsupported, "an average of ", name_of(sum.dtype()));
  const auto count = static_cast<double>(group.groups.columns);
  return b.div(sum, b.constant(sum.dtype(), count, sum.dims()));
}

/// Halves of an average are summed and divided in f32 and rounded once, as by the process group.
Value widened(Builder& b, Value x, const Reduction& reduction) {
  return reduction.average && is_floating(x.dtype()) && size_of(x.dtype()) < 4
             ? b.convert(x, DType::f32)
             : x;
}

Value reduced(Builder& b, Value x, const Reduction& reduction, const ProgramGroup& group) {
  const Value wide = widened(b, x, reduction);
  const Value sum = b.all_reduce(reduction.kind, wide, group.groups);
  return b.convert(divided(b, sum, reduction, group), x.dtype());
}

Value scattered(Builder& b, Value x, const Reduction& reduction, const ProgramGroup& group) {
  const Value wide = widened(b, x, reduction);
  const Value sum = b.reduce_scatter(reduction.kind, wide, 0, group.groups);
  return b.convert(divided(b, sum, reduction, group), x.dtype());
}

Values all_reduce(Builder& b, const OpCall& call) {
  return {reduced(b, call.tensor(0), reduction_of(call, 1), group_of(call, 2))};
}

Values all_reduce_coalesced(Builder& b, const OpCall& call) {
  const Reduction reduction = reduction_of(call, 1);
  const ProgramGroup group = group_of(call, 2);
  Values results;
  for (const Value x : call.tensors(0)) results.push_back(reduced(b, x, reduction, group));
  return results;
}

Values all_gather(Builder& b, const OpCall& call) {
  const ProgramGroup group = group_of(call, 2);
  check_size(call, 1, group);
  Values results;
  for (const Value x : call.tensors(0)) results.push_back(b.all_gather(x, 0, group.groups));
  return results;
}

Values reduce_scatter(Builder& b, const OpCall& call) {
  const Reduction reduction = reduction_of(call, 1);
  const ProgramGroup group = group_of(call, 3);
  check_size(call, 2, group);
  Values results;
  for (const Value x : call.tensors(0)) results.push_back(scattered(b, x, reduction, group));
  return results;
}

// all_to_all_single has no lowering: whether all ranks' splits are equal cannot be seen on one of
// them, and a program on one side would wait for a program on the other.

Values broadcast(Builder& b, const OpCall& call) {
  ProgramGroup group = group_of(call, 2);
  const int64_t source = call.integer(1);
  const auto columns = group.groups.columns;
  NEURON_CHECK(source >= 0 && source < columns, kUnsupported, "a source of rank ", source,
               " in a group of ", columns);
  // The source comes first in each group; the order of the others says nothing.
  hlo::ReplicaGroups turned = group.groups;
  for (int64_t row = 0; row < turned.rows(); ++row) {
    const auto begin = turned.ids.begin() + row * columns;
    std::rotate(begin, begin + source, begin + columns);
  }
  return {b.collective_broadcast(call.tensor(0), turned)};
}

Values wait_tensor(Builder&, const OpCall& call) { return {call.tensor(0)}; }

Values shard_dim_alltoall(Builder& b, const OpCall& call) {
  const ProgramGroup group = group_of(call, 3);
  const Value x = call.tensor(0);
  return {b.all_to_all(x, call.dim(2, x.rank()), call.dim(1, x.rank()), group.groups)};
}

NEURON_LOWERING(
    "_c10d_functional::all_reduce(Tensor input, str reduce_op, Any group_name) -> Tensor",
    all_reduce);
NEURON_LOWERING(
    "_c10d_functional::all_reduce_coalesced(Tensor[] inputs, str reduce_op, Any group_name) -> "
    "Tensor[]",
    all_reduce_coalesced);
NEURON_LOWERING(
    "_c10d_functional::all_gather_into_tensor(Tensor input, int group_size, Any group_name) -> "
    "Tensor",
    all_gather);
NEURON_LOWERING(
    "_c10d_functional_autograd::all_gather_into_tensor(Tensor input, int group_size, Any "
    "group_name) -> Tensor",
    all_gather);
NEURON_LOWERING(
    "_c10d_functional::all_gather_into_tensor_coalesced(Tensor[] inputs, int group_size, Any "
    "group_name) -> Tensor[]",
    all_gather);
NEURON_LOWERING(
    "_c10d_functional::reduce_scatter_tensor(Tensor input, str reduce_op, int group_size, Any "
    "group_name) -> Tensor",
    reduce_scatter);
NEURON_LOWERING(
    "_c10d_functional_autograd::reduce_scatter_tensor(Tensor input, str reduce_op, int "
    "group_size, Any group_name) -> Tensor",
    reduce_scatter);
NEURON_LOWERING(
    "_c10d_functional::reduce_scatter_tensor_coalesced(Tensor[] inputs, str reduce_op, int "
    "group_size, Any group_name) -> Tensor[]",
    reduce_scatter);
NEURON_LOWERING("_c10d_functional::broadcast(Tensor input, int src, Any group_name) -> Tensor",
                broadcast);
NEURON_LOWERING("_c10d_functional::wait_tensor(Tensor tensor) -> Tensor", wait_tensor);
NEURON_LOWERING(
    "_dtensor::shard_dim_alltoall(Tensor input, int gather_dim, int shard_dim, Any group_name) -> "
    "Tensor",
    shard_dim_alltoall);

}  // namespace

void set_group_resolver(std::function<ProgramGroup(const std::string& name)> resolve) {
  const std::lock_guard lock(resolver().mutex);
  resolver().resolve = std::move(resolve);
}

hlo::ReplicaGroups replica_groups_of(DimsRef ranks, int64_t count) {
  const auto size = static_cast<int64_t>(ranks.size());
  hlo::ReplicaGroups groups;
  groups.columns = size;
  const int64_t step = size > 1 ? ranks[1] - ranks[0] : count;
  bool even = size > 1 && step > 0 && count % (step * size) == 0 &&
              ranks[0] % (step * size) < step && ranks[static_cast<size_t>(size) - 1] < count;
  for (size_t i = 1; i < ranks.size(); ++i) even = even && ranks[i] - ranks[i - 1] == step;
  if (!even) {
    groups.ids.append(ranks.begin(), ranks.end());
    return groups;
  }
  for (int64_t block = 0; block < count; block += step * size) {
    for (int64_t first = block; first < block + step; ++first) {
      for (int64_t k = 0; k < size; ++k) groups.ids.push_back(first + k * step);
    }
  }
  return groups;
}

}  // namespace neuron::lowering
