// Ops between devices: what their operands and groups must be, and what they give.
#include <algorithm>

#include "neuron/base/error.h"
#include "neuron/hlo/builder.h"

namespace neuron::hlo {
namespace {

void check_operand(Op op, Value x) {
  NEURON_ASSERT(x.defined(), "the operand of ", name_of(op), " is undefined");
}

void check_groups(Op op, const ReplicaGroups& groups) {
  NEURON_CHECK(groups.columns >= 1 && !groups.ids.empty() &&
                   static_cast<int64_t>(groups.ids.size()) == groups.rows() * groups.columns,
               kInvalid, name_of(op), ": ", groups.ids.size(), " device ids in groups of ",
               groups.columns);
  NEURON_CHECK(groups.channel >= 1, kInvalid, name_of(op), ": channel ", groups.channel,
               "; global device ids need one above 0");
  Dims sorted = groups.ids;
  std::sort(sorted.begin(), sorted.end());
  NEURON_CHECK(sorted[0] >= 0, kInvalid, name_of(op), ": device id ", sorted[0]);
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  NEURON_CHECK(twice == sorted.end(), kInvalid, name_of(op), ": device ", *twice,
               " is in two places of the groups");
}

void check_reduction(Op op, ReduceKind kind, Value x) {
  const DType dtype = x.dtype();
  const bool bitwise = kind == ReduceKind::And || kind == ReduceKind::Or;
  const bool ordered = kind == ReduceKind::Max || kind == ReduceKind::Min;
  NEURON_CHECK(dtype != DType::pred || bitwise, kInvalid, name_of(op), ": pred is reduced by ",
               "and/or only");
  NEURON_CHECK(!bitwise || (!is_floating(dtype) && !is_complex(dtype)), kInvalid, name_of(op), ": ",
               name_of(dtype), " has no bitwise operations");
  NEURON_CHECK(!is_complex(dtype) || !ordered, kInvalid, name_of(op), ": ", name_of(dtype),
               " has no order");
  NEURON_CHECK(!is_complex(dtype) || kind == ReduceKind::Sum, kInvalid, name_of(op), ": of ",
               name_of(dtype), " only sums exist");
  NEURON_CHECK(!is_float8(dtype), kInvalid, name_of(op), ": no arithmetic on ", name_of(dtype));
}

int64_t checked_dim(Op op, Value x, int64_t dim) {
  NEURON_CHECK(dim >= 0 && dim < x.rank(), kInvalid, name_of(op), ": dim ", dim, " of ",
               to_string(x.type()));
  return dim;
}

Node collective(Op op, Value x, int64_t first, int64_t second, const ReplicaGroups& groups) {
  Node node{op, x.type(), {x.id()}};
  CollectiveInts ints;
  ints.first = first;
  ints.second = second;
  ints.groups = groups;
  node.ints = ints.encode();
  return node;
}

/// Divides or multiplies a dim of the node's type.
void shrink(Node& node, int64_t dim, int64_t parts) {
  int64_t& size = node.type.dims[static_cast<size_t>(dim)];
  NEURON_CHECK(size % parts == 0, kInvalid, name_of(node.op), ": dim ", dim, " of ",
               to_string(node.type), " is not a multiple of the group's ", parts, " devices");
  size /= parts;
}
void grow(Node& node, int64_t dim, int64_t parts) {
  node.type.dims[static_cast<size_t>(dim)] *= parts;
}

}  // namespace

Value Builder::all_reduce(ReduceKind kind, Value x, const ReplicaGroups& groups) {
  check_operand(Op::AllReduce, x);
  check_groups(Op::AllReduce, groups);
  check_reduction(Op::AllReduce, kind, x);
  return push(collective(Op::AllReduce, x, static_cast<int64_t>(kind), 0, groups));
}

Value Builder::all_gather(Value x, int64_t dim, const ReplicaGroups& groups) {
  check_operand(Op::AllGather, x);
  check_groups(Op::AllGather, groups);
  Node node = collective(Op::AllGather, x, checked_dim(Op::AllGather, x, dim), 0, groups);
  grow(node, dim, groups.columns);
  return push(std::move(node));
}

Value Builder::reduce_scatter(ReduceKind kind, Value x, int64_t dim, const ReplicaGroups& groups) {
  check_operand(Op::ReduceScatter, x);
  check_groups(Op::ReduceScatter, groups);
  check_reduction(Op::ReduceScatter, kind, x);
  Node node = collective(Op::ReduceScatter, x, static_cast<int64_t>(kind),
                         checked_dim(Op::ReduceScatter, x, dim), groups);
  shrink(node, dim, groups.columns);
  return push(std::move(node));
}

Value Builder::all_to_all(Value x, int64_t split_dim, int64_t concat_dim,
                          const ReplicaGroups& groups) {
  check_operand(Op::AllToAll, x);
  check_groups(Op::AllToAll, groups);
  Node node = collective(Op::AllToAll, x, checked_dim(Op::AllToAll, x, split_dim),
                         checked_dim(Op::AllToAll, x, concat_dim), groups);
  shrink(node, split_dim, groups.columns);
  grow(node, concat_dim, groups.columns);
  return push(std::move(node));
}

Value Builder::collective_permute(Value x, const ReplicaGroups& pairs) {
  check_operand(Op::CollectivePermute, x);
  NEURON_CHECK(pairs.columns == 2 && pairs.ids.size() % 2 == 0 && !pairs.ids.empty(), kInvalid,
               "CollectivePermute: ", pairs.ids.size(), " device ids in rows of ", pairs.columns,
               " are no {source, target} pairs");
  NEURON_CHECK(pairs.channel >= 1, kInvalid, "CollectivePermute: channel ", pairs.channel);
  for (size_t side = 0; side < 2; ++side) {
    Dims ids;
    for (size_t i = side; i < pairs.ids.size(); i += 2) ids.push_back(pairs.ids[i]);
    std::sort(ids.begin(), ids.end());
    NEURON_CHECK(ids[0] >= 0 && std::adjacent_find(ids.begin(), ids.end()) == ids.end(), kInvalid,
                 "CollectivePermute: a device is ", side == 0 ? "source" : "target",
                 " twice, or below 0");
  }
  return push(collective(Op::CollectivePermute, x, 0, 0, pairs));
}

Value Builder::collective_broadcast(Value x, const ReplicaGroups& groups) {
  check_operand(Op::CollectiveBroadcast, x);
  check_groups(Op::CollectiveBroadcast, groups);
  return push(collective(Op::CollectiveBroadcast, x, 0, 0, groups));
}

}  // namespace neuron::hlo
