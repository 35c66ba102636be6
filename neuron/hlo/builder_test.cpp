#include "neuron/hlo/builder.h"

#include <gtest/gtest.h>

#include <functional>

#include "neuron/base/error.h"

namespace neuron::hlo {
namespace {

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Builder, BroadcastsOperandsOfElementwiseOps) {
  Builder b;
  const Value x = b.parameter(DType::f32, {{2, 3}});
  const Value y = b.parameter(DType::f32, {{3}});
  const Value z = b.add(x, y);
  EXPECT_EQ(to_string(z.type()), "f32[2, 3]");
  const Node& add = b.module().node(z.id());
  EXPECT_EQ(add.operands[0], x.id());
  const Node& broadcast = b.module().node(add.operands[1]);
  EXPECT_EQ(broadcast.op, Op::BroadcastInDim);
  EXPECT_EQ(broadcast.ints, (Ints{1}));
}

TEST(Builder, FoldsTrivialWork) {
  Builder b;
  const Value x = b.parameter(DType::f32, {{2, 3}});
  const size_t before = b.module().size();
  EXPECT_EQ(b.convert(x, DType::f32).id(), x.id());
  EXPECT_EQ(b.reshape(x, {{2, 3}}).id(), x.id());
  EXPECT_EQ(b.transpose(x, {{0, 1}}).id(), x.id());
  EXPECT_EQ(b.broadcast_to(x, {{2, 3}}).id(), x.id());
  EXPECT_EQ(b.slice(x, {{0, 0}}, {{2, 3}}).id(), x.id());
  EXPECT_EQ(b.as_strided(x, {{2, 3}}, {{3, 1}}, 0).id(), x.id());
  EXPECT_EQ(b.reduce(ReduceKind::Sum, x, {}).id(), x.id());
  EXPECT_EQ(b.module().size(), before);
}

TEST(Builder, NamesBothSidesOfAMismatch) {
  Builder b;
  const Value x = b.parameter(DType::f32, {{2, 3}});
  const Value y = b.parameter(DType::i32, {{2, 3}});
  const Value z = b.parameter(DType::f32, {{4}});
  EXPECT_EQ(error_of([&] { b.add(x, y); }),
            "Add: operands are f32[2, 3] and i32[2, 3]; they must have one dtype");
  EXPECT_NE(error_of([&] { b.add(x, z); }).find("[2, 3] with [4]"), std::string::npos);
  EXPECT_EQ(error_of([&] { b.erf(y); }), "Erf: operand is i32[2, 3]; it takes floats");
  EXPECT_NE(error_of([&] { b.reshape(x, {{5}}); }).find("cannot become [5]"), std::string::npos);
  EXPECT_NE(error_of([&] { b.matmul(x, x); }), "");
  EXPECT_NE(error_of([&] { b.as_strided(x, {{2, 3}}, {{4, 1}}, 0); }), "");
}

TEST(Builder, InfersStructuredShapes) {
  Builder b;
  const Value x = b.parameter(DType::bf16, {{4, 5, 6}});
  const Value i = b.parameter(DType::i64, {{7, 1}});
  const Value j = b.parameter(DType::i32, {{7, 1}});
  const Value both[] = {i, j};
  EXPECT_EQ(to_string(b.gather(x, both, {{0, 2}}, 1).type()), "bf16[5, 7, 1]");
  EXPECT_EQ(to_string(b.gather(x, both, {{0, 2}}, 0).type()), "bf16[7, 1, 5]");
  EXPECT_EQ(to_string(b.sum(x, {{-1, 0}}, true).type()), "bf16[1, 5, 1]");
  EXPECT_EQ(to_string(b.arg_reduce(true, x, 1).type()), "i64[4, 6]");
  const Value y = b.parameter(DType::bf16, {{4, 6, 2}});
  EXPECT_EQ(to_string(b.matmul(x, y).type()), "bf16[4, 5, 2]");
  WindowDims window;
  window.size = {1, 2, 2};
  window.stride = {1, 1, 2};
  EXPECT_EQ(to_string(b.reduce_window(ReduceKind::Max, x, window).type()), "bf16[4, 4, 3]");
  const Value image = b.parameter(DType::f32, {{2, 4, 9, 9}});
  const Value kernel = b.parameter(DType::f32, {{8, 2, 3, 3}});
  ConvolutionDims dims;
  dims.stride = {2, 1};
  dims.pad_low = {1, 0};
  dims.pad_high = {1, 0};
  dims.lhs_dilation = {1, 1};
  dims.rhs_dilation = {1, 2};
  dims.groups = 2;
  EXPECT_EQ(to_string(b.convolution(image, kernel, dims).type()), "f32[2, 8, 5, 5]");
  EXPECT_EQ(ConvolutionDims::decode(dims.encode()).encode(), dims.encode());
}

// A lowering may keep x.dims() while it builds more; the reference must not move.
TEST(Builder, TypesStayAtTheirAddress) {
  Builder b;
  const Value x = b.parameter(DType::f32, {{2, 3}});
  const Dims& dims = x.dims();
  for (int i = 0; i < 1000; ++i) b.neg(x);
  EXPECT_EQ(&dims, &x.dims());
  EXPECT_EQ(to_string(dims), "[2, 3]");
}

TEST(Builder, ConstantsConvertAndWrap) {
  Builder b;
  auto byte = [&](Value v) { return std::to_integer<int>(b.module().node(v.id()).bytes[0]); };
  EXPECT_EQ(byte(b.constant(DType::u8, 257)), 1);
  EXPECT_EQ(byte(b.constant(DType::i8, -1)), 255);
  EXPECT_EQ(byte(b.constant(DType::pred, 0.5)), 1);
  EXPECT_EQ(byte(b.constant(DType::f8e4m3fn, 1e9)), 0x7E);
  const float ones[] = {1, 1, 1};
  const Value splat = b.literal(DType::f32, {{3}}, std::as_bytes(std::span(ones)));
  EXPECT_EQ(b.module().node(splat.id()).bytes.size(), 4u);
}

Module small_module(int64_t size, bool dead_code) {
  Builder b;
  const Value x = b.parameter(DType::f32, {{size}});
  if (dead_code) b.neg(x);
  b.result(b.mul(b.add(x, x), b.constant(DType::f32, 2)));
  return b.finish();
}

TEST(Fingerprint, DependsOnStructureOnly) {
  EXPECT_EQ(fingerprint(small_module(3, false)), fingerprint(small_module(3, false)));
  EXPECT_EQ(fingerprint(small_module(3, false)), fingerprint(small_module(3, true)));
  EXPECT_NE(fingerprint(small_module(3, false)), fingerprint(small_module(4, false)));
}

}  // namespace
}  // namespace neuron::hlo
