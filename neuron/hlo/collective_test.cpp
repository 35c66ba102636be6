#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "neuron/base/error.h"
#include "neuron/hlo/builder.h"
#include "neuron/hlo/testing/samples.h"

namespace neuron::hlo {
namespace {

ReplicaGroups pairs_of_four() { return {2, {0, 1, 2, 3}, 1}; }

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Collective, InfersShapes) {
  const Module module = collective_sample();
  std::vector<std::string> types;
  for (const Result& result : module.results()) {
    types.push_back(to_string(module.node(result.value).type));
  }
  EXPECT_EQ(types, (std::vector<std::string>{"f32[4, 6]", "f32[4, 12]", "f32[1, 6]", "f32[8, 3]",
                                             "f32[4, 6]", "f32[4, 6]"}));
  verify(module);
}

TEST(Collective, PrintsAndParses) {
  const Module module = collective_sample();
  const std::string text = to_stablehlo(module);
  EXPECT_NE(text.find("\"stablehlo.all_gather\"(%arg0) <{all_gather_dim = 1 : i64, channel_handle "
                      "= #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = "
                      "dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> : "
                      "(tensor<4x6xf32>) -> tensor<4x12xf32>"),
            std::string::npos)
      << text;
  const Module read = parse_stablehlo(text);
  EXPECT_EQ(fingerprint(read), fingerprint(module)) << text;
  EXPECT_EQ(to_stablehlo(read), text);
}

TEST(Collective, TakesPartInTheFingerprintWithItsGroupsEvenIfNothingReadsIt) {
  const auto with = [](const ReplicaGroups* groups) {
    Builder b;
    const Value x = b.parameter(DType::f32, {{4}});
    if (groups != nullptr) b.all_reduce(ReduceKind::Sum, x, *groups);
    b.result(b.neg(x));
    return fingerprint(b.finish());
  };
  const ReplicaGroups one = pairs_of_four(), other{2, {0, 2, 1, 3}, 1};
  EXPECT_NE(with(nullptr), with(&one));
  EXPECT_NE(with(&one), with(&other));
  EXPECT_EQ(with(&one), with(&one));
}

TEST(Collective, RefusesWhatMakesNoSense) {
  Builder b;
  const Value x = b.parameter(DType::f32, {{3}});
  const Value p = b.parameter(DType::pred, {{4}});
  const Value c = b.parameter(DType::c64, {{4}});
  const auto all_reduce = [&](ReduceKind kind, Value value, const ReplicaGroups& groups) {
    return error_of([&] { b.all_reduce(kind, value, groups); });
  };
  EXPECT_NE(all_reduce(ReduceKind::Sum, x, {2, {0, 1, 2}, 1}).find("in groups of 2"),
            std::string::npos);
  EXPECT_NE(all_reduce(ReduceKind::Sum, x, {2, {0, 1, 1, 2}, 1}).find("device 1 is in two places"),
            std::string::npos);
  EXPECT_NE(all_reduce(ReduceKind::Sum, x, {2, {0, -1}, 1}).find("device id -1"),
            std::string::npos);
  EXPECT_NE(all_reduce(ReduceKind::Sum, x, {2, {0, 1}, 0}).find("channel 0"), std::string::npos);
  EXPECT_NE(all_reduce(ReduceKind::Sum, p, pairs_of_four()).find("pred"), std::string::npos);
  EXPECT_NE(all_reduce(ReduceKind::Max, c, pairs_of_four()).find("no order"), std::string::npos);
  EXPECT_NE(all_reduce(ReduceKind::And, x, pairs_of_four()).find("no bitwise"), std::string::npos);
  EXPECT_NE(error_of([&] {
              b.reduce_scatter(ReduceKind::Sum, x, 0, pairs_of_four());
            }).find("not a multiple"),
            std::string::npos);
  EXPECT_NE(error_of([&] { b.all_gather(x, 1, pairs_of_four()); }).find("dim 1"),
            std::string::npos);
  EXPECT_NE(error_of([&] { b.collective_permute(x, {2, {0, 1, 0, 2}, 1}); }).find("source twice"),
            std::string::npos);
  // A module whose groups were broken afterwards.
  const Value good = b.all_reduce(ReduceKind::Sum, x, pairs_of_four());
  b.result(good);
  Module module = b.finish();
  module.mutable_nodes()[good.id()].ints.push_back(9);
  EXPECT_THROW(verify(module), Error);
}

TEST(Collective, OfOneDeviceIsAnIdentityAndOfSeveralHasNoReference) {
  for (const int64_t size : {1, 2}) {
    Builder b;
    const Value x = b.parameter(DType::i32, {{2}});
    ReplicaGroups groups{size, {0}, 1};
    if (size == 2) groups.ids.push_back(1);
    b.result(b.all_gather(x, 0, groups));
    const Module module = b.finish();
    const int32_t numbers[] = {5, 7};
    Array array{{DType::i32, {2}}, std::vector<std::byte>(8)};
    std::memcpy(array.bytes.data(), numbers, 8);
    const std::vector<Array> arrays = {array};
    if (size == 1) {
      EXPECT_EQ(evaluate(module, arrays)[0].bytes, array.bytes);
    } else {
      EXPECT_THROW(evaluate(module, arrays), Error);
    }
  }
}

}  // namespace
}  // namespace neuron::hlo
