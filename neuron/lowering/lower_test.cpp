#include "neuron/lowering/lower.h"

#include <set>

#include "neuron/lowering/call_testing.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering::testing {
namespace {

constexpr auto kF32 = DType::f32;

TEST(Registry, FindsByNameWithOverload) {
  const Lowering* add = find_lowering("aten::add.Tensor");
  ASSERT_NE(add, nullptr);
  EXPECT_EQ(add->name(), "aten::add.Tensor");
  EXPECT_EQ(find_lowering("aten::add"), nullptr);
}

TEST(Registry, NamesAreUnique) {
  std::set<std::string> names;
  for (const Lowering& lowering : all_lowerings())
    EXPECT_TRUE(names.insert(lowering.name()).second);
  EXPECT_GT(names.size(), 400u);
}

// A new learning rate must not mean a new program.
TEST(Lower, KeepsNumbersOutOfTheProgram) {
  const auto call = [](double factor) {
    return TestCall("aten::mul.Scalar").tensor(f32({2}, {1, 2})).number(factor).returns(kF32, {2});
  };
  EXPECT_EQ(hlo::fingerprint(call(2).lowered().module), hlo::fingerprint(call(3).lowered().module));
  EXPECT_EQ(call(3).lowered().static_arguments, 0u);
  EXPECT_EQ(call(3).result(), (Numbers{3, 6}));
}

// The exponent changes the structure, so it belongs to the key: argument 1.
TEST(Lower, ReportsNumbersReadAtCompileTime) {
  const auto call =
      TestCall("aten::pow.Tensor_Scalar").tensor(f32({2}, {3, 4})).whole(2).returns(kF32, {2});
  const LoweredCall lowered = call.lowered();
  EXPECT_EQ(lowered.static_arguments, 1u << 1);
  EXPECT_TRUE(lowered.scalars.empty());
  EXPECT_EQ(call.result(), (Numbers{9, 16}));
}

// fill reads only its number, but overwrites its tensor.
TEST(Lower, LeavesOutWhatNothingReads) {
  const auto fresh = TestCall("aten::fill.Scalar").tensor(f32({2}, {1, 2})).number(5);
  TestCall functional = fresh;
  functional.returns(kF32, {2});
  EXPECT_TRUE(functional.lowered().parameters.empty());
  EXPECT_EQ(functional.result(), (Numbers{5, 5}));
  TestCall in_place = fresh;
  in_place.returns(kF32, {2}).overwrites(0);
  const LoweredCall lowered = in_place.lowered();
  ASSERT_EQ(lowered.parameters.size(), 1u);
  EXPECT_EQ(lowered.module.results()[0].alias, 0);
  hlo::verify(lowered.module);
}

// An argument that keeps its value is not stored again.
TEST(Lower, DropsWritesThatChangeNothing) {
  const auto call = TestCall("aten::native_batch_norm")
                        .tensor(f32({2, 1}, {1, 3}))
                        .none()
                        .none()
                        .tensor(f32({1}, {0}))
                        .tensor(f32({1}, {1}))
                        .flag(false)
                        .number(0.1)
                        .number(0)
                        .returns(kF32, {2, 1})
                        .returns(kF32, {0})
                        .returns(kF32, {0})
                        .returns(kF32, {1})
                        .overwrites(3)
                        .returns(kF32, {1})
                        .overwrites(4);
  EXPECT_EQ(call.lowered().results, (std::vector<int32_t>{0, 1, 2}));
}

TEST(Lower, ConvertsToTheExpectedType) {
  const auto call = TestCall("aten::add.Tensor")
                        .tensor(f32({2}, {1, 2}))
                        .tensor(f32({2}, {3, 4}))
                        .whole(1)
                        .returns(DType::f64, {2});
  EXPECT_EQ(call.run()[0].type.dtype, DType::f64);
}

TEST(Lower, CountsPhiloxCounters) {
  const auto call = TestCall("aten::rand").ints({3, 5}).none().ignored(3).returns(kF32, {3, 5});
  EXPECT_EQ(call.lowered().philox_counters, 15);
}

TEST(Lower, NamesTheOpInErrors) {
  const auto call = TestCall("aten::mm")
                        .tensor(array(kF32, {1, 2}, {1, 2}))
                        .tensor(array(kF32, {1, 2}, {1, 2}))
                        .returns(kF32, {1, 2});
  try {
    call.lowered();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("aten::mm"), std::string::npos);
  }
}

}  // namespace
}  // namespace neuron::lowering::testing
