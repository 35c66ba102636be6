#include <limits>

#include "neuron/lowering/call_testing.h"

namespace neuron::lowering::testing {
namespace {

constexpr auto kF32 = DType::f32;

TEST(SliceLowering, ClampsAndSteps) {
  const auto call = TestCall("aten::slice.Tensor")
                        .tensor(count_up({6}))
                        .integer(0)
                        .integer(-5)
                        .integer(INT64_MAX)
                        .integer(2)
                        .returns(kF32, {3});
  EXPECT_EQ(call.result(), (Numbers{1, 3, 5}));
}

TEST(SliceLowering, ScattersIntoSteps) {
  const auto call = TestCall("aten::slice_scatter")
                        .tensor(count_up({2, 4}))
                        .tensor(f32({2, 2}, {-1, -2, -3, -4}))
                        .integer(1)
                        .integer(1)
                        .none()
                        .integer(2)
                        .returns(kF32, {2, 4});
  EXPECT_EQ(call.result(), (Numbers{0, -1, 2, -2, 4, -3, 6, -4}));
}

TEST(SliceLowering, SpreadsGradients) {
  const auto call = TestCall("aten::slice_backward")
                        .tensor(f32({2}, {5, 6}))
                        .ints({6})
                        .integer(0)
                        .integer(1)
                        .integer(5)
                        .integer(3)
                        .returns(kF32, {6});
  EXPECT_EQ(call.result(), (Numbers{0, 5, 0, 0, 6, 0}));
}

TEST(SliceLowering, AnEmptySliceHasNoGradient) {
  const auto call = TestCall("aten::slice_backward")
                        .tensor(f32({0}, {}))
                        .ints({3})
                        .integer(0)
                        .integer(2)
                        .integer(2)
                        .integer(1)
                        .returns(kF32, {3});
  EXPECT_EQ(call.result(), (Numbers{0, 0, 0}));
}

TEST(SelectLowering, CountsFromTheEnd) {
  const auto call = TestCall("aten::select.int")
                        .tensor(count_up({3, 2}))
                        .integer(0)
                        .integer(-1)
                        .returns(kF32, {2});
  EXPECT_EQ(call.result(), (Numbers{4, 5}));
}

TEST(SelectLowering, RefusesAnIndexOutOfRange) {
  const auto call = TestCall("aten::select.int")
                        .tensor(count_up({3, 2}))
                        .integer(0)
                        .integer(3)
                        .returns(kF32, {2});
  EXPECT_THROW(call.lowered(), Error);
}

TEST(SplitLowering, TakesLengthsFromTheResults) {
  const auto call = TestCall("aten::split.Tensor")
                        .tensor(count_up({5}))
                        .integer(3)
                        .integer(0)
                        .returns(kF32, {3})
                        .returns(kF32, {2});
  EXPECT_EQ(call.result(0), (Numbers{0, 1, 2}));
  EXPECT_EQ(call.result(1), (Numbers{3, 4}));
}

TEST(DiagonalLowering, ScattersBelowTheMainDiagonal) {
  const auto call = TestCall("aten::diagonal_scatter")
                        .tensor(f32({3, 3}, Numbers(9, 0)))
                        .tensor(f32({2}, {7, 8}))
                        .integer(-1)
                        .integer(0)
                        .integer(1)
                        .returns(kF32, {3, 3});
  EXPECT_EQ(call.result(), (Numbers{0, 0, 0, 7, 0, 0, 0, 8, 0}));
}

TEST(DiagonalLowering, EmbedsSwappedDims) {
  const auto call = TestCall("aten::diag_embed")
                        .tensor(f32({2}, {1, 2}))
                        .integer(1)
                        .integer(1)
                        .integer(0)
                        .returns(kF32, {3, 3});
  EXPECT_EQ(call.result(), (Numbers{0, 0, 0, 1, 0, 0, 0, 2, 0}));
}

// A masked NaN must vanish, so the mask selects and does not multiply.
TEST(TriangleLowering, DropsNan) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto call =
      TestCall("aten::tril").tensor(f32({2, 2}, {1, nan, 2, 3})).integer(0).returns(kF32, {2, 2});
  EXPECT_EQ(call.result(), (Numbers{1, 0, 2, 3}));
}

TEST(UnfoldLowering, WindowsOverlapAndTheirGradientsAdd) {
  const auto forward = TestCall("aten::unfold")
                           .tensor(count_up({5}))
                           .integer(0)
                           .integer(3)
                           .integer(2)
                           .returns(kF32, {2, 3});
  EXPECT_EQ(forward.result(), (Numbers{0, 1, 2, 2, 3, 4}));
  const auto backward = TestCall("aten::unfold_backward")
                            .tensor(f32({2, 3}, Numbers(6, 1)))
                            .ints({5})
                            .integer(0)
                            .integer(3)
                            .integer(2)
                            .returns(kF32, {5});
  EXPECT_EQ(backward.result(), (Numbers{1, 1, 2, 1, 1}));
}

TEST(ShapeLowering, ComplexAndRealViewsAreInverse) {
  const auto forward =
      TestCall("aten::view_as_complex").tensor(f32({2, 2}, {1, 2, 3, 4})).returns(DType::c64, {2});
  const hlo::Array complex = forward.run()[0];
  const auto back = TestCall("aten::view_as_real").tensor(complex).returns(kF32, {2, 2});
  EXPECT_EQ(back.result(), (Numbers{1, 2, 3, 4}));
}

TEST(ShapeLowering, RefusesViewsOfAnotherElementSize) {
  const auto call =
      TestCall("aten::view_copy.dtype").tensor(f32({2}, {1, 2})).none().returns(DType::i64, {1});
  EXPECT_THROW(call.lowered(), Error);
}

}  // namespace
}  // namespace neuron::lowering::testing
