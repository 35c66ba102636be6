#include <gtest/gtest.h>

#include "neuron/base/error.h"
#include "neuron/hlo/builder.h"
#include "neuron/hlo/testing/samples.h"

namespace neuron::hlo {
namespace {

TEST(Print, PlainModule) {
  Builder b;
  const Value x = b.parameter(DType::f32, {{2, 3}});
  const Value alpha = b.scalar(DType::f64);
  const Value y = b.mul(x, b.convert(alpha, DType::f32));
  b.result(b.sum(y, {{1}}));
  EXPECT_EQ(to_stablehlo(b.finish(), "scaled_sum"),
            R"(module @scaled_sum {
  func.func public @main(%arg0: tensor<2x3xf32>, %scalar0: tensor<f64>) -> (tensor<2xf32>) {
    %0 = "stablehlo.convert"(%scalar0) : (tensor<f64>) -> tensor<f32>
    %1 = "stablehlo.broadcast_in_dim"(%0) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2x3xf32>
    %2 = stablehlo.multiply %arg0, %1 : tensor<2x3xf32>
    %3 = stablehlo.constant dense<0.0> : tensor<f32>
    %5 = "stablehlo.reduce"(%2, %3) <{dimensions = array<i64: 1>}> ({
    ^bb0(%x0: tensor<f32>, %x1: tensor<f32>):
      %4 = stablehlo.add %x0, %x1 : tensor<f32>
      stablehlo.return %4 : tensor<f32>
    }) : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
    return %5 : tensor<2xf32>
  }
}
)");
}

TEST(Print, MissingOpsAreComposites) {
  Builder b;
  const Value x = b.parameter(DType::f32, {{4}});
  b.result(b.is_nan(x));
  b.result(b.unary(Op::Trunc, b.unary(Op::Trunc, x)));
  const std::string text = to_stablehlo(b.finish());
  EXPECT_NE(text.find("name = \"neuron.is_nan\""), std::string::npos) << text;
  // One decomposition serves both uses.
  EXPECT_NE(text.find("@trunc_2("), std::string::npos) << text;
  EXPECT_EQ(text.find("@trunc_3"), std::string::npos) << text;
}

TEST(Print, AliasedResultsReturnTheWholeBuffer) {
  Builder b;
  const Value x = b.parameter(DType::f32, {{3, 4}}, {{8, 2}});
  b.result(b.neg(x), {{8, 2}}, 0);
  const std::string text = to_stablehlo(b.finish());
  EXPECT_NE(text.find("@main(%arg0: tensor<23xf32> {tf.aliasing_output = 0 : i32}) -> "
                      "(tensor<23xf32>)"),
            std::string::npos)
      << text;
}

TEST(Print, DeadNodesAreLeftOut) {
  Builder b;
  const Value x = b.parameter(DType::f32, {{3}});
  b.exp(x);
  b.result(b.neg(x));
  EXPECT_EQ(to_stablehlo(b.finish()).find("exponential"), std::string::npos);
}

bool same_numbers(const Array& a, const Array& b) { return a.bytes == b.bytes; }

// What is read back prints as it was written, and computes the same.
TEST(Parse, ReadsBackEverySample) {
  for (const Sample& sample : all_samples()) {
    SCOPED_TRACE(sample.name);
    verify(sample.module);
    const std::string text = to_stablehlo(sample.module);
    Module module;
    try {
      module = parse_stablehlo(text);
    } catch (const Error& e) {
      FAIL() << e.what() << "\n" << text;
    }
    EXPECT_EQ(to_stablehlo(module), text);
    // A strided parameter reads back as its flat buffer, which takes other arrays.
    if (sample.name == "strided_arguments") continue;
    const auto before = evaluate(sample.module, sample.parameters, sample.scalars);
    const auto after = evaluate(module, sample.parameters, sample.scalars);
    ASSERT_EQ(before.size(), after.size());
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(same_numbers(before[i], after[i])) << "result " << i;
    }
  }
}

TEST(Parse, ReadsLibraryCalls) {
  Builder b;
  const Value x = b.parameter(DType::f32, {{3}});
  const Type types[] = {{DType::f32, {3}}, {DType::i64, {2}}};
  const std::byte bytes[] = {std::byte{1}, std::byte{0xAB}};
  const int64_t ints[] = {4, -5};
  const Values values = b.library_call("aten::thing.x", {&x, 1}, types, bytes, ints);
  b.result(values[1]);
  const std::string text = to_stablehlo(b.finish());
  const Module module = parse_stablehlo(text);
  EXPECT_EQ(to_stablehlo(module), text);
  const Node& call = module.node(1);
  EXPECT_EQ(call.name, "aten::thing.x");
  EXPECT_EQ(call.ints, (Ints{4, -5}));
  EXPECT_EQ(call.bytes, (std::vector<std::byte>{std::byte{1}, std::byte{0xAB}}));
}

TEST(Parse, NamesTheLineOfAnError) {
  try {
    parse_stablehlo(
        "module @m {\n  func.func public @main() -> (tensor<f32>) {\n    %0 = nope %1\n");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("line 3"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace neuron::hlo
