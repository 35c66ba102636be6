// Collectives as StableHLO has them. Ids are those of partitions of one replica, which is what
// global device ids are for all of these ops.
#include "neuron/hlo/print_emitter.h"

namespace neuron::hlo::internal {
namespace {

std::string groups_text(const ReplicaGroups& groups) {
  std::string text = "dense<[";
  for (int64_t row = 0; row < groups.rows(); ++row) {
    text += (row > 0 ? ", " : "") + list_text(groups.row(row));
  }
  return text + "]> : tensor<" + std::to_string(groups.rows()) + "x" +
         std::to_string(groups.columns) + "xi64>";
}

std::string number_text(int64_t number) { return std::to_string(number) + " : i64"; }

}  // namespace

Ref print_collective(Emitter& out, const Node& node, const Ref& x) {
  const CollectiveInts all = CollectiveInts::decode(node.ints);
  const std::string_view name = stablehlo_name(node.op);
  const std::string channel =
      "channel_handle = #stablehlo.channel_handle<handle = " + std::to_string(all.groups.channel) +
      ", type = 1>";
  const std::string groups = "replica_groups = " + groups_text(all.groups);
  const auto region = [&] {
    return reducer_text(out, static_cast<ReduceKind>(all.first), x.type.dtype);
  };
  switch (node.op) {
    case Op::AllReduce:
      return out.generic(name, {x}, node.type, channel + ", " + groups + ", use_global_device_ids",
                         region());
    case Op::AllGather:
      return out.generic(name, {x}, node.type,
                         "all_gather_dim = " + number_text(all.first) + ", " + channel + ", " +
                             groups + ", use_global_device_ids");
    case Op::ReduceScatter:
      return out.generic(name, {x}, node.type,
                         channel + ", " + groups + ", scatter_dimension = " +
                             number_text(all.second) + ", use_global_device_ids",
                         region());
    case Op::AllToAll:
      return out.generic(name, {x}, node.type,
                         channel + ", concat_dimension = " + number_text(all.second) + ", " +
                             groups + ", split_count = " + number_text(all.groups.columns) +
                             ", split_dimension = " + number_text(all.first));
    case Op::CollectivePermute:
      return out.generic(name, {x}, node.type,
                         channel + ", source_target_pairs = " + groups_text(all.groups));
    default:
      return out.generic(name, {x}, node.type, channel + ", " + groups);
  }
}

}  // namespace neuron::hlo::internal
