#include <cmath>
#include <limits>

#include "neuron/lowering/call_testing.h"

namespace neuron::lowering::testing {
namespace {

constexpr auto kF32 = DType::f32;
constexpr auto kBf16 = DType::bf16;
constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

hlo::Array bf16(Dims dims, const std::vector<double>& numbers) {
  return array(kBf16, std::move(dims), numbers);
}

// A wrapped number never widens a tensor; a 0-dim tensor only does across categories.
TEST(Promotion, PutsTensorsBeforeNumbers) {
  const auto call =
      TestCall("aten::mul.Tensor").tensor(bf16({2}, {1, 2})).wrapped(0.5).returns(kBf16, {2});
  EXPECT_EQ(call.result(), (Numbers{0.5, 1}));
  const auto ranks = TestCall("aten::add.Tensor")
                         .tensor(array(DType::i32, {2}, {1, 2}))
                         .tensor(i64({}, {int64_t{1} << 31}))
                         .whole(1)
                         .returns(DType::i32, {2});
  EXPECT_EQ(ranks.result(), (Numbers{1 - std::ldexp(1, 31), 2 - std::ldexp(1, 31)}));
}

// 0.1 is multiplied as f32: rounding it to bf16 first would give 100.25 here.
TEST(Arithmetic, MultipliesHalvesByUnroundedNumbers) {
  const auto call =
      TestCall("aten::mul.Scalar").tensor(bf16({1}, {1000})).number(0.1).returns(kBf16, {1});
  EXPECT_EQ(call.result(), (Numbers{100}));
}

// Integers divide to the default float type.
TEST(Arithmetic, DividesIntegersTruly) {
  const auto call =
      TestCall("aten::div.Tensor").tensor(i64({2}, {1, 3})).tensor(i64({}, {2})).returns(kF32, {2});
  EXPECT_EQ(call.result(), (Numbers{0.5, 1.5}));
}

TEST(Arithmetic, FloorsAsPythonDoes) {
  const auto ints = TestCall("aten::floor_divide")
                        .tensor(i64({4}, {7, -7, 7, -7}))
                        .tensor(i64({4}, {2, 2, -2, -2}))
                        .returns(DType::i64, {4});
  EXPECT_EQ(ints.result(), (Numbers{3, -4, -4, 3}));
  const auto rest = TestCall("aten::remainder.Tensor")
                        .tensor(f32({4}, {7, -7, 7, -7}))
                        .tensor(f32({4}, {2, 2, -2, -2}))
                        .returns(kF32, {4});
  EXPECT_EQ(rest.result(), (Numbers{1, 1, -1, -1}));
}

// floor(1 / 0.1f) is 10 in f32, although ten times 0.1f is more than 1.
TEST(Arithmetic, FloorsTheExactQuotient) {
  const auto call = TestCall("aten::floor_divide")
                        .tensor(f32({1}, {1}))
                        .tensor(f32({1}, {0.1}))
                        .returns(kF32, {1});
  EXPECT_EQ(call.result(), (Numbers{9}));
}

TEST(Arithmetic, KeepsNanInClamp) {
  const auto call = TestCall("aten::clamp")
                        .tensor(f32({3}, {kNan, -5, 5}))
                        .number(-1)
                        .number(1)
                        .returns(kF32, {3});
  const Numbers result = call.result();
  EXPECT_TRUE(std::isnan(result[0]));
  EXPECT_EQ(result[1], -1);
  EXPECT_EQ(result[2], 1);
}

TEST(Arithmetic, LerpsFromTheNearerEnd) {
  const auto call = TestCall("aten::lerp.Scalar")
                        .tensor(f32({2}, {-1e8, 0}))
                        .tensor(f32({2}, {1, 4}))
                        .number(1)
                        .returns(kF32, {2});
  EXPECT_EQ(call.result(), (Numbers{1, 4}));
}

TEST(Arithmetic, AddsBoolsAsOr) {
  const auto call = TestCall("aten::add.Tensor")
                        .tensor(array(DType::pred, {3}, {0, 1, 1}))
                        .tensor(array(DType::pred, {3}, {0, 0, 1}))
                        .whole(1)
                        .returns(DType::pred, {3});
  EXPECT_EQ(call.result(), (Numbers{0, 1, 1}));
}

TEST(Power, TruncatesNegativeIntegerPowers) {
  const auto call = TestCall("aten::pow.Tensor_Tensor")
                        .tensor(i64({5}, {1, -1, -1, 2, 3}))
                        .tensor(i64({5}, {-1, -1, -2, -3, 2}))
                        .returns(DType::i64, {5});
  EXPECT_EQ(call.result(), (Numbers{1, -1, 1, 0, 9}));
}

TEST(Compare, OfIntegersWithFloatsIsExact) {
  const auto call =
      TestCall("aten::lt.Scalar").tensor(i64({2}, {2, 3})).number(2.5).returns(DType::pred, {2});
  EXPECT_EQ(call.result(), (Numbers{1, 0}));
}

TEST(Unary, SignBitSeesNegativeZero) {
  const auto call =
      TestCall("aten::signbit").tensor(bf16({3}, {-0.0, 0, -2})).returns(DType::pred, {3});
  EXPECT_EQ(call.result(), (Numbers{1, 0, 1}));
}

TEST(Unary, FrexpOfSubnormals) {
  const auto call = TestCall("aten::frexp.Tensor")
                        .tensor(f32({3}, {std::ldexp(3, -140), 6, kInf}))
                        .returns(kF32, {3})
                        .returns(DType::i32, {3});
  EXPECT_EQ(call.result(0), (Numbers{0.75, 0.75, kInf}));
  EXPECT_EQ(call.result(1), (Numbers{-138, 3, 0}));
}

TEST(Activation, ReluKeepsNan) {
  const Numbers y =
      TestCall("aten::relu").tensor(f32({3}, {kNan, -1, 2})).returns(kF32, {3}).result();
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[1], 0);
  EXPECT_EQ(y[2], 2);
}

// Past the threshold softplus is its argument: exp would overflow.
TEST(Activation, SoftplusSwitchesToTheLine) {
  const auto call = TestCall("aten::softplus")
                        .tensor(f32({2}, {1000, -1000}))
                        .whole(1)
                        .whole(20)
                        .returns(kF32, {2});
  EXPECT_EQ(call.result(), (Numbers{1000, 0}));
}

TEST(Activation, GeluRoundsHalvesOnce) {
  const auto call = TestCall("aten::gelu").tensor(bf16({1}, {1})).text("none").returns(kBf16, {1});
  // 0.8413447 in bf16.
  EXPECT_EQ(call.result(), (Numbers{0.83984375}));
}

TEST(Foreach, SharesTheSingleLowering) {
  const auto call = TestCall("aten::_foreach_add.List")
                        .tensors({f32({2}, {1, 2}), bf16({1}, {3})})
                        .tensors({f32({2}, {10, 20}), bf16({1}, {30})})
                        .number(2)
                        .returns(kF32, {2})
                        .returns(kBf16, {1});
  EXPECT_EQ(call.result(0), (Numbers{21, 42}));
  EXPECT_EQ(call.result(1), (Numbers{63}));
  EXPECT_EQ(call.lowered().static_arguments, 0u);
}

TEST(Foreach, PassesCompileTimeReadsOn) {
  const auto call = TestCall("aten::_foreach_pow.Scalar")
                        .tensors({f32({1}, {3}), f32({1}, {4})})
                        .whole(2)
                        .returns(kF32, {1})
                        .returns(kF32, {1});
  EXPECT_EQ(call.lowered().static_arguments, 1u << 1);
  EXPECT_EQ(call.result(1), (Numbers{16}));
}

}  // namespace
}  // namespace neuron::lowering::testing
