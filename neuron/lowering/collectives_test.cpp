#include "neuron/lowering/collectives.h"

#include <gtest/gtest.h>

#include "neuron/base/error.h"
#include "neuron/lowering/lower.h"

namespace neuron::lowering {
namespace {

Dims ids_of(const Dims& ranks, int64_t count) { return replica_groups_of(ranks, count).ids; }

TEST(ReplicaGroups, OfAMeshDimAreAllGroupsOfThatDimWhoeverAsks) {
  const Dims rows = {0, 1, 2, 3, 4, 5}, columns = {0, 3, 1, 4, 2, 5};
  for (const Dims& mine : {Dims{0, 1, 2}, Dims{3, 4, 5}}) EXPECT_EQ(ids_of(mine, 6), rows);
  for (const Dims& mine : {Dims{0, 3}, Dims{1, 4}, Dims{2, 5}}) EXPECT_EQ(ids_of(mine, 6), columns);
  EXPECT_EQ(ids_of({0, 1, 2, 3, 4, 5}, 6), rows);
}

TEST(ReplicaGroups, OfOtherRanksAreTheGroupAlone) {
  for (const Dims& mine : {Dims{0, 1, 3}, Dims{1, 2}, Dims{2, 0}, Dims{1}, Dims{0, 2, 4}}) {
    EXPECT_EQ(ids_of(mine, 5), mine);
  }
  EXPECT_EQ(ids_of({1, 2}, 6), (Dims{1, 2}));  // Not at a place where a dim could begin.
}

/// One call of a lowering in group "g" of ranks 0 and 2 of 4.
hlo::Module lowered(const char* name, const Dims& dims, std::vector<Argument> rest,
                    ResultType result) {
  set_group_resolver([](const std::string& group) {
    NEURON_CHECK(group == "g", kUnsupported, "no group ", group);
    ProgramGroup found;
    found.ranks = {0, 2};
    found.groups = replica_groups_of(found.ranks, 4);
    return found;
  });
  Builder b;
  Argument x;
  x.kind = Argument::Kind::Tensor;
  x.tensors.push_back(b.parameter(result.dtype, dims));
  rest.insert(rest.begin(), x);
  const OpCall call(b, std::move(rest), {result}, DType::f32);
  for (const Value value : lower_into(b, *find_lowering(name), call)) b.result(value);
  return b.finish();
}
Argument text(const char* value) {
  Argument argument;
  argument.kind = Argument::Kind::String;
  argument.text = value;
  return argument;
}
Argument ints(Argument::Kind kind, Dims values) {
  Argument argument;
  argument.kind = kind;
  argument.ints = std::move(values);
  return argument;
}
std::vector<hlo::Op> ops_of(const hlo::Module& module) {
  std::vector<hlo::Op> ops;
  for (const hlo::Node& node : module.nodes()) ops.push_back(node.op);
  return ops;
}

TEST(Collectives, AverageHalvesInF32AndRoundOnce) {
  const hlo::Module module = lowered("_c10d_functional::all_reduce", {4}, {text("avg"), text("g")},
                                     {true, DType::bf16, {4}});
  using hlo::Op;
  const std::vector<Op> ops = ops_of(module);
  EXPECT_EQ(ops[1], Op::Convert);
  EXPECT_EQ(ops[2], Op::AllReduce);
  EXPECT_EQ(module.node(2).type.dtype, DType::f32);
  EXPECT_EQ(hlo::CollectiveInts::decode(module.node(2).ints).groups.ids, (Dims{0, 2, 1, 3}));
  EXPECT_EQ(ops.back(), Op::Convert);
}

TEST(Collectives, BroadcastPutsTheSourceFirstInEachGroup) {
  const hlo::Module module =
      lowered("_c10d_functional::broadcast", {4}, {ints(Argument::Kind::Int, {1}), text("g")},
              {true, DType::f32, {4}});
  EXPECT_EQ(hlo::CollectiveInts::decode(module.nodes().back().ints).groups.ids, (Dims{2, 0, 3, 1}));
}

TEST(Collectives, WhatNoStablehloCollectiveDoesIsUnsupported) {
  const auto kind_of = [](auto&& body) {
    try {
      body();
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::kInternal;
  };
  const ResultType f32{true, DType::f32, {4}}, i32{true, DType::i32, {4}};
  const char* const all_reduce = "_c10d_functional::all_reduce";
  for (const auto& [reduction, group, type] :
       {std::tuple{"bxor", "g", i32}, std::tuple{"avg", "g", i32}, std::tuple{"band", "g", f32},
        std::tuple{"sum", "g", ResultType{true, DType::pred, {4}}},
        std::tuple{"sum", "other", f32}}) {
    EXPECT_EQ(kind_of([&] { lowered(all_reduce, {4}, {text(reduction), text(group)}, type); }),
              ErrorKind::kUnsupported)
        << reduction << " " << group;
  }
}

}  // namespace
}  // namespace neuron::lowering
