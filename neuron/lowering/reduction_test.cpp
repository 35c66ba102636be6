#include <cmath>
#include <limits>

#include "neuron/lowering/call_testing.h"

namespace neuron::lowering::testing {
namespace {

constexpr auto kF32 = DType::f32;
constexpr auto kBf16 = DType::bf16;
constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

// Pins the f32 accumulation: in bf16 the sum would stall at 256.
TEST(SumLowering, AddsHalvesInF32) {
  const auto call = TestCall("aten::sum")
                        .tensor(array(kBf16, {1024}, std::vector<double>(1024, 1.0)))
                        .none()
                        .returns(kBf16, {});
  EXPECT_EQ(call.result(), (Numbers{1024}));
}

TEST(SumLowering, WidensIntegers) {
  const auto call = TestCall("aten::sum.dim_IntList")
                        .tensor(array(DType::u8, {2, 2}, {200, 100, 1, 2}))
                        .ints({-1})
                        .flag(true)
                        .none()
                        .returns(DType::i64, {2, 1});
  EXPECT_EQ(call.result(), (Numbers{300, 3}));
}

TEST(SoftmaxLowering, SumsBf16RowsInF32) {
  const auto call = TestCall("aten::_softmax")
                        .tensor(array(kBf16, {1024}, std::vector<double>(1024, 0.0)))
                        .integer(0)
                        .flag(false)
                        .returns(kBf16, {1024});
  EXPECT_EQ(call.result()[0], 1.0 / 1024);
}

TEST(SoftmaxLowering, OfMaskedRowsIsNanOrZero) {
  const auto of = [](const char* name) {
    TestCall call(name);
    call.tensor(f32({2}, {-kInf, -kInf})).integer(0);
    return call;
  };
  EXPECT_TRUE(std::isnan(of("aten::_softmax").flag(false).returns(kF32, {2}).result()[0]));
  EXPECT_EQ(of("aten::_safe_softmax").none().returns(kF32, {2}).result(), (Numbers{0, 0}));
}

TEST(ExtremeLowering, FindsTheFirstNan) {
  const auto call = TestCall("aten::max.dim")
                        .tensor(f32({4}, {1, kNan, 3, kNan}))
                        .integer(0)
                        .flag(false)
                        .returns(kF32, {})
                        .returns(DType::i64, {});
  EXPECT_TRUE(std::isnan(call.result(0)[0]));
  EXPECT_EQ(call.result(1), (Numbers{1}));
}

TEST(TruthLowering, EmptyListOfDimsReducesNothing) {
  const auto call = TestCall("aten::any.dims")
                        .tensor(f32({2}, {0, 3}))
                        .ints({})
                        .flag(false)
                        .returns(DType::pred, {2});
  EXPECT_EQ(call.result(), (Numbers{0, 1}));
}

TEST(VarianceLowering, CorrectionIsARunTimeNumber) {
  const auto call = [](double correction) {
    return TestCall("aten::var.correction")
        .tensor(f32({3}, {1, 2, 6}))
        .none()
        .number(correction)
        .flag(false)
        .returns(kF32, {});
  };
  EXPECT_EQ(call(1).result(), (Numbers{7}));
  EXPECT_EQ(call(3).result(), (Numbers{kInf}));
  EXPECT_EQ(call(1).lowered().static_arguments, 0u);
}

TEST(NormLowering, KnowsItsOrders) {
  const auto call = [](double order) {
    return TestCall("aten::linalg_vector_norm")
        .tensor(f32({3}, {3, -4, 0}))
        .number(order)
        .none()
        .flag(false)
        .none()
        .returns(kF32, {});
  };
  EXPECT_EQ(call(2).result(), (Numbers{5}));
  EXPECT_EQ(call(1).result(), (Numbers{7}));
  EXPECT_EQ(call(0).result(), (Numbers{2}));
  EXPECT_EQ(call(kInf).result(), (Numbers{4}));
  EXPECT_EQ(call(-kInf).result(), (Numbers{0}));
}

TEST(LayerNormLowering, NormalizesRows) {
  const auto call = TestCall("aten::native_layer_norm")
                        .tensor(f32({2, 2}, {1, 3, 10, 30}))
                        .ints({2})
                        .tensor(f32({2}, {2, 2}))
                        .tensor(f32({2}, {0, 1}))
                        .number(0)
                        .returns(kF32, {2, 2})
                        .returns(kF32, {2, 1})
                        .returns(kF32, {2, 1});
  expect_near(call.result(0), {-2, 3, -2, 3});
  expect_near(call.result(1), {2, 20});
  expect_near(call.result(2), {1, 0.1});
}

// The running statistics are written although the schema does not say so: results 3 and 4.
TEST(BatchNormLowering, MovesItsStatistics) {
  const auto call = TestCall("aten::native_batch_norm")
                        .tensor(f32({2, 1}, {1, 3}))
                        .none()
                        .none()
                        .tensor(f32({1}, {10}))
                        .tensor(f32({1}, {1}))
                        .flag(true)
                        .number(0.5)
                        .number(0)
                        .returns(kF32, {2, 1})
                        .returns(kF32, {1})
                        .returns(kF32, {1})
                        .returns(kF32, {1})
                        .overwrites(3)
                        .returns(kF32, {1})
                        .overwrites(4);
  expect_near(call.result(0), {-1, 1});
  expect_near(call.result(3), {6});
  expect_near(call.result(4), {1.5});
}

TEST(NllLowering, IgnoresTargetsEvenIfTheyAreNoClass) {
  TestCall call("aten::nll_loss_forward");
  call.tensor(f32({2, 2}, {-1, -2, kNan, kNan}))
      .tensor(i64({2}, {1, -100}))
      .none()
      .integer(1)
      .integer(-100)
      .returns(kF32, {})
      .returns(kF32, {});
  EXPECT_EQ(call.result(0), (Numbers{2}));
  EXPECT_EQ(call.result(1), (Numbers{1}));
}

TEST(AdamLowering, SkipsTheStepThatOverflowed) {
  const auto step = [](double found) {
    TestCall call("aten::_fused_adamw");
    call.tensors({f32({1}, {1})})
        .tensors({f32({1}, {8})})
        .tensors({f32({1}, {0})})
        .tensors({f32({1}, {0})})
        .tensors({})
        .tensors({f32({}, {1})})
        .number(0.1)
        .number(0.9)
        .number(0.999)
        .number(0)
        .number(0)
        .flag(false)
        .flag(false)
        .tensor(f32({}, {4}))
        .tensor(f32({}, {found}));
    for (int32_t i = 0; i < 4; ++i) call.returns(kF32, {1}).overwrites(i);
    return call;
  };
  expect_near(step(0).result(0), {0.9});
  expect_near(step(0).result(1), {2});
  EXPECT_EQ(step(1).result(0), (Numbers{1}));
  EXPECT_EQ(step(1).result(1), (Numbers{8}));
}

TEST(ArangeLowering, CountsFloatsInDouble) {
  const auto call = TestCall("aten::arange.start_step")
                        .number(0)
                        .number(1)
                        .number(0.1)
                        .none()
                        .ignored(3)
                        .returns(kF32, {10});
  EXPECT_EQ(call.result()[7], static_cast<double>(static_cast<float>(0.1 * 7)));
}

TEST(DropoutLowering, OfOneKeepsNothing) {
  const auto call = TestCall("aten::native_dropout")
                        .tensor(f32({4}, {1, 2, 3, kInf}))
                        .number(1)
                        .flag(true)
                        .returns(kF32, {4})
                        .returns(DType::pred, {4});
  EXPECT_EQ(call.result(1), (Numbers{0, 0, 0, 0}));
}

TEST(RandomLowering, StaysBelowOneInHalves) {
  const auto call = TestCall("aten::rand").ints({512}).none().ignored(3).returns(kBf16, {512});
  for (double u : call.result()) {
    EXPECT_GE(u, 0);
    EXPECT_LT(u, 1);
  }
}

}  // namespace
}  // namespace neuron::lowering::testing
