#include "neuron/lowering/call_testing.h"

namespace neuron::lowering::testing {
namespace {

constexpr auto kF32 = DType::f32;

// torch skips one-dimensional empties of any rank mix, and promotes the rest.
TEST(CatLowering, SkipsEmptiesAndPromotes) {
  const auto call = TestCall("aten::cat")
                        .tensors({f32({0}, {}), i64({1, 2}, {1, 2}), f32({1, 2}, {3.5, 4})})
                        .integer(0)
                        .returns(kF32, {2, 2});
  EXPECT_EQ(call.result(), (Numbers{1, 2, 3.5, 4}));
}

TEST(StackLowering, PutsANewDimAtTheEnd) {
  const auto call = TestCall("aten::stack")
                        .tensors({f32({2}, {1, 2}), f32({2}, {3, 4})})
                        .integer(-1)
                        .returns(kF32, {2, 2});
  EXPECT_EQ(call.result(), (Numbers{1, 3, 2, 4}));
}

TEST(RepeatLowering, AddsLeadingDims) {
  const auto call =
      TestCall("aten::repeat").tensor(count_up({2})).ints({2, 2}).returns(kF32, {2, 4});
  EXPECT_EQ(call.result(), (Numbers{0, 1, 0, 1, 0, 1, 0, 1}));
}

TEST(RollLowering, FlattensWithoutDims) {
  const auto call =
      TestCall("aten::roll").tensor(count_up({2, 2})).ints({-1}).ints({}).returns(kF32, {2, 2});
  EXPECT_EQ(call.result(), (Numbers{1, 2, 3, 0}));
}

TEST(PadLowering, CropsAndFills) {
  const auto call = TestCall("aten::constant_pad_nd")
                        .tensor(count_up({3}))
                        .ints({-1, 2})
                        .number(9)
                        .returns(kF32, {4});
  EXPECT_EQ(call.result(), (Numbers{1, 2, 9, 9}));
}

TEST(PadLowering, ReflectsAndGathersGradients) {
  const auto forward = TestCall("aten::reflection_pad1d")
                           .tensor(count_up({1, 4}))
                           .ints({2, 1})
                           .returns(kF32, {1, 7});
  EXPECT_EQ(forward.result(), (Numbers{2, 1, 0, 1, 2, 3, 2}));
  const auto backward = TestCall("aten::reflection_pad1d_backward")
                            .tensor(f32({1, 7}, {1, 2, 4, 8, 16, 32, 64}))
                            .tensor(count_up({1, 4}))
                            .ints({2, 1})
                            .returns(kF32, {1, 4});
  EXPECT_EQ(backward.result(), (Numbers{4, 10, 81, 32}));
}

// Wide borders take the reduction path of the taps.
TEST(PadLowering, ReplicatesFarAndSumsGradients) {
  const auto forward = TestCall("aten::replication_pad1d")
                           .tensor(f32({1, 2}, {5, 6}))
                           .ints({6, 0})
                           .returns(kF32, {1, 8});
  EXPECT_EQ(forward.result(), (Numbers{5, 5, 5, 5, 5, 5, 5, 6}));
  const auto backward = TestCall("aten::replication_pad1d_backward")
                            .tensor(f32({1, 8}, Numbers(8, 1)))
                            .tensor(f32({1, 2}, {5, 6}))
                            .ints({6, 0})
                            .returns(kF32, {1, 2});
  EXPECT_EQ(backward.result(), (Numbers{7, 1}));
}

// Short tensors are filled up to whole chunks.
TEST(ChunkCatLowering, FillsTheLastChunk) {
  const auto call = TestCall("aten::_chunk_cat")
                        .tensors({f32({3}, {1, 2, 3}), f32({2}, {4, 5})})
                        .integer(0)
                        .integer(2)
                        .returns(kF32, {2, 3});
  EXPECT_EQ(call.result(), (Numbers{1, 2, 4, 3, 0, 5}));
}

}  // namespace
}  // namespace neuron::lowering::testing
