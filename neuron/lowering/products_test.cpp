// Matrix products, convolution, pooling, resampling, recurrent cells and library calls.

#include <cmath>
#include <limits>

#include "neuron/lowering/call_testing.h"
#include "neuron/neff/arguments.h"

namespace neuron::lowering::testing {
namespace {

constexpr auto kF32 = DType::f32;
const double kNan = std::numeric_limits<double>::quiet_NaN();

TestCall addmm(double beta, double alpha, DType dtype, double self) {
  return TestCall("aten::addmm")
      .tensor(array(dtype, {1}, {self}))
      .tensor(array(dtype, {1, 2}, {1, 257}))
      .tensor(array(dtype, {2, 1}, {1, 1}))
      .number(beta)
      .number(alpha)
      .returns(dtype, {1, 1});
}

TEST(AddmmLowering, BetaZeroHidesNan) {
  EXPECT_EQ(addmm(0, 2, kF32, kNan).result(), (Numbers{516}));
  EXPECT_TRUE(std::isnan(addmm(1, 2, kF32, kNan).result()[0]));
}

// bf16 reads 257 as 256, and the product 257 does not fit it either: what cancels against self must
// do so before the rounding.
TEST(AddmmLowering, RoundsOnceBehindTheSum) {
  EXPECT_EQ(addmm(1, 1, DType::bf16, -256).result(), (Numbers{1}));
}

TEST(AddmmLowering, NumbersAreNotPartOfTheKey) {
  EXPECT_EQ(addmm(1, 1, kF32, 1).lowered().static_arguments, 0u);
}

TEST(MatmulLowering, IntegersMultiplyExactly) {
  const auto call = TestCall("aten::mm")
                        .tensor(i64({1, 2}, {1LL << 40, 3}))
                        .tensor(i64({2, 1}, {1LL << 12, 1}))
                        .returns(DType::i64, {1, 1});
  EXPECT_EQ(call.result(), (Numbers{static_cast<double>(1LL << 52) + 3}));
}

TEST(MatmulLowering, VdotConjugatesItsFirstOperand) {
  const auto make = [](double re, double im) {
    return TestCall("aten::view_as_complex")
        .tensor(f32({1, 2}, {re, im}))
        .returns(DType::c64, {1})
        .run()[0];
  };
  const auto call =
      TestCall("aten::vdot").tensor(make(1, 2)).tensor(make(3, 4)).returns(DType::c64, {});
  const hlo::Array product = call.run()[0];
  float parts[2];
  std::memcpy(parts, product.bytes.data(), sizeof(parts));
  EXPECT_EQ(parts[0], 11);
  EXPECT_EQ(parts[1], -2);
}

TestCall convolution(bool transposed, Dims stride, Dims padding, Dims extra, int64_t groups,
                     hlo::Array x, hlo::Array weight, Dims result) {
  return TestCall("aten::convolution_overrideable")
      .tensor(std::move(x))
      .tensor(std::move(weight))
      .none()
      .ints(stride)
      .ints(padding)
      .ints({1})
      .flag(transposed)
      .ints(extra)
      .integer(groups)
      .returns(kF32, result);
}

TEST(ConvolutionLowering, Groups) {
  const auto call = convolution(false, {1}, {0}, {0}, 2, f32({1, 2, 3}, {1, 2, 3, 10, 20, 30}),
                                f32({2, 1, 2}, {1, 1, 1, -1}), {1, 2, 2});
  EXPECT_EQ(call.result(), (Numbers{3, 5, -10, -10}));
}

// Every input element stamps the kernel at its place.
TEST(ConvolutionLowering, TransposedStampsTheKernel) {
  const auto call = convolution(true, {2}, {0}, {1}, 1, f32({1, 1, 2}, {1, 10}),
                                f32({1, 1, 3}, {1, 2, 3}), {1, 1, 6});
  EXPECT_EQ(call.result(), (Numbers{1, 2, 13, 20, 30, 0}));
}

TEST(ConvolutionLowering, TransposedGroupsSwapChannels) {
  const auto call = convolution(true, {1}, {0}, {0}, 2, f32({1, 2, 1}, {1, 10}),
                                f32({2, 2, 1}, {1, 2, 3, 4}), {1, 4, 1});
  EXPECT_EQ(call.result(), (Numbers{1, 2, 30, 40}));
}

// The window that hangs over the end counts what is inside the padding only.
TEST(PoolingLowering, CeilModeCountsInsideThePadding) {
  const auto call = TestCall("aten::avg_pool2d")
                        .tensor(f32({1, 1, 3}, {2, 4, 6}))
                        .ints({1, 2})
                        .ints({1, 2})
                        .ints({0, 0})
                        .flag(true)
                        .flag(true)
                        .none()
                        .returns(kF32, {1, 1, 2});
  EXPECT_EQ(call.result(), (Numbers{3, 6}));
}

TEST(PoolingLowering, AverageGradientSharesOut) {
  const auto call = TestCall("aten::avg_pool2d_backward")
                        .tensor(f32({1, 1, 2}, {2, 4}))
                        .tensor(f32({1, 1, 3}, {0, 0, 0}))
                        .ints({1, 2})
                        .ints({1, 1})
                        .ints({0, 0})
                        .flag(false)
                        .flag(true)
                        .none()
                        .returns(kF32, {1, 1, 3});
  EXPECT_EQ(call.result(), (Numbers{1, 3, 2}));
}

// Uneven windows overlap; an infinity outside of a window must not reach it.
TEST(PoolingLowering, AdaptiveWindowsKeepInfinitiesOut) {
  const double inf = std::numeric_limits<double>::infinity();
  const auto call = TestCall("aten::_adaptive_avg_pool2d")
                        .tensor(f32({1, 1, 3}, {1, 3, inf}))
                        .ints({1, 2})
                        .returns(kF32, {1, 1, 2});
  EXPECT_EQ(call.result(), (Numbers{2, inf}));
}

TEST(PoolingLowering, ColumnsAddUpWhereWindowsOverlap) {
  const auto columns = TestCall("aten::im2col")
                           .tensor(count_up({1, 1, 3}))
                           .ints({1, 2})
                           .ints({1, 1})
                           .ints({0, 0})
                           .ints({1, 1})
                           .returns(kF32, {2, 2});
  EXPECT_EQ(columns.result(), (Numbers{0, 1, 1, 2}));
  const auto image = TestCall("aten::col2im")
                         .tensor(f32({2, 2}, {0, 1, 1, 2}))
                         .ints({1, 3})
                         .ints({1, 2})
                         .ints({1, 1})
                         .ints({0, 0})
                         .ints({1, 1})
                         .returns(kF32, {1, 1, 3});
  EXPECT_EQ(image.result(), (Numbers{0, 2, 2}));
}

TEST(UpsampleLowering, LinearAndItsGradientAreTransposed) {
  const auto forward = TestCall("aten::upsample_linear1d")
                           .tensor(f32({1, 1, 2}, {0, 4}))
                           .ints({4})
                           .flag(false)
                           .none()
                           .returns(kF32, {1, 1, 4});
  expect_near(forward.result(), {0, 1, 3, 4});
  const auto backward = TestCall("aten::upsample_linear1d_backward")
                            .tensor(f32({1, 1, 4}, {1, 1, 1, 1}))
                            .ints({4})
                            .ints({1, 1, 2})
                            .flag(false)
                            .none()
                            .returns(kF32, {1, 1, 2});
  expect_near(backward.result(), {2, 2});
}

TEST(UpsampleLowering, NearestFollowsTheGivenScale) {
  const auto call = TestCall("aten::upsample_nearest1d")
                        .tensor(count_up({1, 1, 4}))
                        .ints({5})
                        .number(1.3)
                        .returns(kF32, {1, 1, 5});
  EXPECT_EQ(call.result(), (Numbers{0, 0, 1, 2, 3}));
  EXPECT_EQ(call.lowered().static_arguments, 4u);
}

TEST(RecurrentLowering, LstmCellOfZeroGates) {
  const auto call = TestCall("aten::_thnn_fused_lstm_cell")
                        .tensor(f32({1, 4}, {0, 0, 0, 0}))
                        .tensor(f32({1, 4}, {0, 0, 0, 0}))
                        .tensor(f32({1, 1}, {2}))
                        .none()
                        .none()
                        .returns(kF32, {1, 1})
                        .returns(kF32, {1, 1})
                        .returns(kF32, {1, 4});
  expect_near(call.result(1), {1});
  expect_near(call.result(0), {0.5 * std::tanh(1.0)});
  expect_near(call.result(2), {0.5, 0.5, 0, 0.5});
}

// What the kernel behind a library op is told.
const hlo::Node* library_node(const LoweredCall& lowered) {
  for (const hlo::Node& node : lowered.module.nodes()) {
    if (node.op == hlo::Op::LibraryCall) return &node;
  }
  return nullptr;
}

TEST(LibraryLowering, EncodesArgumentsAndKeysNumbers) {
  const LoweredCall lowered = TestCall("aten::_cdist_forward")
                                  .tensor(count_up({2, 3}))
                                  .tensor(count_up({4, 3}))
                                  .number(1.5)
                                  .none()
                                  .returns(kF32, {2, 4})
                                  .lowered();
  const hlo::Node* node = library_node(lowered);
  ASSERT_NE(node, nullptr);
  EXPECT_EQ(node->name, "aten::_cdist_forward");
  EXPECT_EQ(node->operands.size(), 2u);
  EXPECT_EQ(lowered.static_arguments, 4u);
  EXPECT_TRUE(lowered.scalars.empty());
  const auto arguments = neff::decode_arguments(node->bytes);
  ASSERT_EQ(arguments.size(), 4u);
  EXPECT_EQ(arguments[1].kind, neff::LibraryArgument::Kind::Tensor);
  EXPECT_EQ(arguments[2].doubles, std::vector<double>{1.5});
  EXPECT_EQ(arguments[3].kind, neff::LibraryArgument::Kind::None);
}

TEST(LibraryLowering, LeavesOutUndefinedResults) {
  const LoweredCall lowered = TestCall("aten::convolution_backward_overrideable")
                                  .tensor(f32({1, 1, 2}, {1, 1}))
                                  .tensor(count_up({1, 1, 3}))
                                  .tensor(count_up({1, 1, 2}))
                                  .ints({1})
                                  .ints({0})
                                  .ints({1})
                                  .flag(false)
                                  .ints({0})
                                  .integer(1)
                                  .flags({0, 1, 1})
                                  .returns_undefined()
                                  .returns(kF32, {1, 1, 2})
                                  .returns(kF32, {1})
                                  .lowered();
  const hlo::Node* node = library_node(lowered);
  ASSERT_NE(node, nullptr);
  EXPECT_EQ(node->name, "aten::convolution_backward");
  EXPECT_EQ(node->results.size(), 2u);
  // The sizes of the bias stand where the plain op has them.
  EXPECT_EQ(neff::decode_arguments(node->bytes)[3].ints, std::vector<int64_t>{1});
}

TEST(LibraryLowering, AttentionIsOneCall) {
  const LoweredCall lowered = TestCall("aten::_scaled_dot_product_fused_attention_overrideable")
                                  .tensor(count_up({1, 2, 3, 4}))
                                  .tensor(count_up({1, 2, 5, 4}))
                                  .tensor(count_up({1, 2, 5, 4}))
                                  .none()
                                  .number(0.25)
                                  .flag(true)
                                  .flag(false)
                                  .none()
                                  .returns(kF32, {1, 2, 3, 4})
                                  .returns(kF32, {1, 2, 3})
                                  .returns_undefined()
                                  .returns_undefined()
                                  .returns(DType::i64, {})
                                  .returns(DType::i64, {})
                                  .returns_undefined()
                                  .lowered();
  const hlo::Node* node = library_node(lowered);
  ASSERT_NE(node, nullptr);
  EXPECT_EQ(node->name, "neuron.sdpa");
  // query, key, value, seed, offset.
  EXPECT_EQ(node->operands.size(), 5u);
  // A counter has four words, one per score.
  EXPECT_EQ(lowered.philox_counters, (2 * 3 * 5 + 3) / 4);
}

}  // namespace
}  // namespace neuron::lowering::testing
