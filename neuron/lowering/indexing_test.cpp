#include <limits>

#include "neuron/lowering/call_testing.h"

namespace neuron::lowering::testing {
namespace {

constexpr auto kF32 = DType::f32;
const double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(IndexLowering, WrapsNegativeIndices) {
  const auto call = TestCall("aten::index.Tensor")
                        .tensor(count_up({4}))
                        .tensors({i64({2}, {-1, 0})})
                        .returns(kF32, {2});
  EXPECT_EQ(call.result(), (Numbers{3, 0}));
}

TEST(IndexLowering, FailsOutOfRange) {
  const auto call = TestCall("aten::index.Tensor")
                        .tensor(count_up({4}))
                        .tensors({i64({1}, {4})})
                        .returns(kF32, {1});
  EXPECT_THROW(call.run(), Error);
}

// A plain dim between two indexed ones sends the indices' dims to the front.
TEST(IndexLowering, SeparatedIndicesComeFirst) {
  const auto call = TestCall("aten::index.Tensor")
                        .tensor(count_up({2, 2, 2}))
                        .tensors({i64({2}, {0, 1}), TestCall::undefined(), i64({1}, {1})})
                        .returns(kF32, {2, 2});
  EXPECT_EQ(call.result(), (Numbers{1, 3, 5, 7}));
}

TEST(IndexLowering, RefusesMasks) {
  const auto call = TestCall("aten::index.Tensor")
                        .tensor(count_up({2}))
                        .tensors({array(DType::pred, {2}, {1, 0})})
                        .returns(kF32, {1});
  EXPECT_THROW(call.lowered(), Error);
}

TEST(IndexPutLowering, AccumulatesDuplicates) {
  const auto call = TestCall("aten::index_put")
                        .tensor(f32({3}, {0, 0, 0}))
                        .tensors({i64({3}, {1, 1, -1})})
                        .tensor(f32({3}, {1, 2, 4}))
                        .flag(true)
                        .returns(kF32, {3});
  EXPECT_EQ(call.result(), (Numbers{0, 3, 4}));
}

TEST(IndexPutLowering, MasksTakeOneValueForAll) {
  const auto call = TestCall("aten::index_put")
                        .tensor(count_up({4}))
                        .tensors({array(DType::pred, {4}, {1, 0, 1, 0})})
                        .tensor(f32({}, {9}))
                        .flag(false)
                        .returns(kF32, {4});
  EXPECT_EQ(call.result(), (Numbers{9, 1, 9, 3}));
}

TEST(IndexPutLowering, MasksTakeValuesInOrder) {
  const auto call = TestCall("aten::index_put")
                        .tensor(count_up({2, 3}))
                        .tensors({TestCall::undefined(), array(DType::pred, {3}, {1, 0, 1})})
                        .tensor(f32({2, 2}, {-1, -2, -3, -4}))
                        .flag(false)
                        .returns(kF32, {2, 3});
  EXPECT_EQ(call.result(), (Numbers{-1, 1, -2, -3, 4, -4}));
}

TEST(MaskedScatterLowering, ReadsTheSourceInOrder) {
  const auto call = TestCall("aten::masked_scatter")
                        .tensor(count_up({4}))
                        .tensor(array(DType::pred, {4}, {0, 1, 0, 1}))
                        .tensor(f32({3}, {10, 20, 30}))
                        .returns(kF32, {4});
  EXPECT_EQ(call.result(), (Numbers{0, 10, 2, 20}));
}

TEST(NonzeroStaticLowering, FillsAndCuts) {
  const auto longer = TestCall("aten::nonzero_static")
                          .tensor(f32({2, 2}, {0, 1, 1, 0}))
                          .integer(3)
                          .integer(-1)
                          .returns(DType::i64, {3, 2});
  EXPECT_EQ(longer.result(), (Numbers{0, 1, 1, 0, -1, -1}));
  const auto shorter = TestCall("aten::nonzero_static")
                           .tensor(f32({2, 2}, {0, 1, 1, 0}))
                           .integer(1)
                           .integer(-1)
                           .returns(DType::i64, {1, 2});
  EXPECT_EQ(shorter.result(), (Numbers{0, 1}));
}

TEST(RepeatInterleaveLowering, SkipsZeroCounts) {
  const auto call = TestCall("aten::repeat_interleave.Tensor")
                        .tensor(i64({4}, {2, 0, 1, 0}))
                        .integer(3)
                        .returns(DType::i64, {3});
  EXPECT_EQ(call.result(), (Numbers{0, 0, 2}));
}

TEST(GatherLowering, ReadsAlongADimOnly) {
  const auto call = TestCall("aten::gather")
                        .tensor(count_up({2, 3}))
                        .integer(1)
                        .tensor(i64({1, 2}, {2, 0}))
                        .flag(false)
                        .returns(kF32, {1, 2});
  EXPECT_EQ(call.result(), (Numbers{2, 0}));
}

// Unlike indexing, gather takes no negative index.
TEST(GatherLowering, FailsBelowZero) {
  const auto call = TestCall("aten::gather")
                        .tensor(count_up({3}))
                        .integer(0)
                        .tensor(i64({1}, {-1}))
                        .flag(false)
                        .returns(kF32, {1});
  EXPECT_THROW(call.run(), Error);
}

TEST(ScatterLowering, TheIndexMaySeePartOfTheSource) {
  const auto call = TestCall("aten::scatter.src")
                        .tensor(f32({2, 2}, {0, 0, 0, 0}))
                        .integer(0)
                        .tensor(i64({1, 2}, {1, 0}))
                        .tensor(f32({2, 2}, {5, 6, 7, 8}))
                        .returns(kF32, {2, 2});
  EXPECT_EQ(call.result(), (Numbers{0, 6, 5, 0}));
}

TEST(ScatterLowering, SumsOfMasksAreDisjunctions) {
  const auto call = TestCall("aten::scatter_add")
                        .tensor(array(DType::pred, {2}, {0, 0}))
                        .integer(0)
                        .tensor(i64({2}, {1, 1}))
                        .tensor(array(DType::pred, {2}, {1, 1}))
                        .returns(DType::pred, {2});
  EXPECT_EQ(call.result(), (Numbers{0, 1}));
}

TEST(ScatterReduceLowering, MeanWithoutSelfKeepsUntouched) {
  const auto call = TestCall("aten::scatter_reduce.two")
                        .tensor(f32({3}, {100, 200, 300}))
                        .integer(0)
                        .tensor(i64({3}, {0, 0, 2}))
                        .tensor(f32({3}, {1, 2, 5}))
                        .text("mean")
                        .flag(false)
                        .returns(kF32, {3});
  EXPECT_EQ(call.result(), (Numbers{1.5, 200, 5}));
}

// torch divides integer means downwards.
TEST(ScatterReduceLowering, IntegerMeanRoundsDown) {
  const auto call = TestCall("aten::scatter_reduce.two")
                        .tensor(i64({1}, {-2}))
                        .integer(0)
                        .tensor(i64({1}, {0}))
                        .tensor(i64({1}, {-1}))
                        .text("mean")
                        .flag(true)
                        .returns(DType::i64, {1});
  EXPECT_EQ(call.result(), (Numbers{-2}));
}

// In bf16 the running sum of ones would stall at 256.
TEST(EmbeddingLowering, GradientsOfNarrowTablesSumInF32) {
  const auto call = TestCall("aten::embedding_dense_backward")
                        .tensor(array(DType::bf16, {300, 1}, Numbers(300, 1)))
                        .tensor(i64({300}, Numbers(300, 1)))
                        .integer(2)
                        .integer(-1)
                        .flag(false)
                        .returns(DType::bf16, {2, 1});
  EXPECT_EQ(call.result(), (Numbers{0, 300}));
}

TEST(EmbeddingLowering, PaddingGetsNoGradientAndFrequencyDivides) {
  const auto call = TestCall("aten::embedding_dense_backward")
                        .tensor(f32({4, 1}, {1, 2, 3, 4}))
                        .tensor(i64({4}, {0, 1, 1, 2}))
                        .integer(3)
                        .integer(0)
                        .flag(true)
                        .returns(kF32, {3, 1});
  EXPECT_EQ(call.result(), (Numbers{0, 2.5, 4}));
}

TEST(EmbeddingBagLowering, EmptyBagsAreZero) {
  const auto call = TestCall("aten::_embedding_bag")
                        .tensor(count_up({3, 1}))
                        .tensor(i64({3}, {1, 2, 2}))
                        .tensor(i64({3}, {0, 2, 2}))
                        .flag(false)
                        .integer(1)
                        .flag(false)
                        .none()
                        .flag(false)
                        .integer(-1)
                        .returns(kF32, {3, 1})
                        .returns(DType::i64, {3})
                        .returns(DType::i64, {3})
                        .returns(DType::i64, {0});
  EXPECT_EQ(call.result(0), (Numbers{1.5, 0, 2}));
  EXPECT_EQ(call.result(1), (Numbers{0, 0, 2}));
  EXPECT_EQ(call.result(2), (Numbers{2, 0, 1}));
}

TEST(ScanLowering, ExtremesMoveOnEqualAndNan) {
  const auto call = TestCall("aten::cummax")
                        .tensor(f32({5}, {2, 2, 1, kNan, 9}))
                        .integer(0)
                        .returns(kF32, {5})
                        .returns(DType::i64, {5});
  EXPECT_EQ(call.result(1), (Numbers{0, 1, 1, 3, 3}));
}

TEST(ScanLowering, NarrowSumsRunInF32) {
  const auto call = TestCall("aten::cumsum")
                        .tensor(array(DType::bf16, {512}, Numbers(512, 1)))
                        .integer(0)
                        .none()
                        .returns(DType::bf16, {512});
  EXPECT_EQ(call.result().back(), 512);
}

}  // namespace
}  // namespace neuron::lowering::testing
