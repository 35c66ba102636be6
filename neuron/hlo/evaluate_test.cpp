#include "neuron/hlo/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "neuron/base/error.h"
#include "neuron/hlo/builder.h"
#include "neuron/hlo/element.h"

namespace neuron::hlo {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

Array array(DType dtype, DimsRef dims, std::vector<double> numbers) {
  Array a{{dtype, Dims(dims)}, std::vector<std::byte>(numbers.size() * size_of(dtype))};
  with_compute_type(dtype, [&](auto tag) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      store_element(dtype, convert_number<decltype(tag)>(numbers[i]),
                    a.bytes.data() + i * size_of(dtype));
    }
  });
  return a;
}

std::vector<double> numbers(const Array& a) {
  std::vector<double> out;
  with_compute_type(a.type.dtype, [&](auto tag) {
    for (size_t at = 0; at < a.bytes.size(); at += size_of(a.type.dtype)) {
      out.push_back(
          convert_number<double>(load_element<decltype(tag)>(a.type.dtype, a.bytes.data() + at)));
    }
  });
  return out;
}

/// Runs `body` over one parameter per array and returns the numbers of its result.
template <typename Body>
std::vector<double> run(std::vector<Array> arrays, Body body) {
  Builder b;
  Values values;
  for (const Array& a : arrays) values.push_back(b.parameter(a.type.dtype, a.type.dims));
  b.result(body(b, values));
  const Module module = b.finish();
  verify(module);
  return numbers(evaluate(module, arrays)[0]);
}

using Numbers = std::vector<double>;

TEST(Evaluate, IntegerDivisionByZeroGivesAllOnes) {
  const Array a = array(DType::i32, {{5}}, {7, -7, 5, -2147483648.0, -7});
  const Array b = array(DType::i32, {{5}}, {2, 2, 0, -1, -2});
  EXPECT_EQ(run({a, b}, [](Builder& h, Values& v) { return h.div(v[0], v[1]); }),
            (Numbers{3, -3, -1, -2147483648.0, 3}));
  EXPECT_EQ(run({a, b}, [](Builder& h, Values& v) { return h.rem(v[0], v[1]); }),
            (Numbers{1, -1, 5, 0, -1}));
}

TEST(Evaluate, ShiftsBeyondTheWidthEmptyTheWord) {
  const Array a = array(DType::i8, {{4}}, {-128, 1, -1, 64});
  const Array n = array(DType::i8, {{4}}, {8, 7, -1, 2});
  auto shift = [&](Op op) {
    return run({a, n}, [&](Builder& h, Values& v) { return h.binary(op, v[0], v[1]); });
  };
  EXPECT_EQ(shift(Op::ShiftLeft), (Numbers{0, -128, 0, 0}));
  EXPECT_EQ(shift(Op::ShiftRightArithmetic), (Numbers{-1, 0, -1, 16}));
  EXPECT_EQ(shift(Op::ShiftRightLogical), (Numbers{0, 0, 0, 16}));
}

// 256 + 1 is not a bf16 number: every op must round, whatever the op before kept.
TEST(Evaluate, Bf16ChainsRoundAfterEveryOp) {
  const Array a = array(DType::bf16, {{1}}, {256});
  EXPECT_EQ(
      run({a}, [](Builder& h, Values& v) { return h.sub(h.add(v[0], h.like(v[0], 1)), v[0]); }),
      Numbers{0});
}

TEST(Evaluate, SumsBf16InF32) {
  const Array a = array(DType::bf16, {{512}}, Numbers(512, 1));
  EXPECT_EQ(run({a}, [](Builder& h, Values& v) { return h.sum(v[0], {{0}}); }), Numbers{512});
}

TEST(Evaluate, ExtremesPropagateNan) {
  const Array a = array(DType::f32, {{2, 3}}, {1, kNan, 3, -1, 5, 2});
  const Numbers max = run({a}, [](Builder& h, Values& v) { return h.max_keepdim(v[0], 1); });
  EXPECT_TRUE(std::isnan(max[0]));
  EXPECT_EQ(max[1], 5);
  EXPECT_EQ(run({a}, [](Builder& h, Values& v) { return h.arg_reduce(true, v[0], 1); }),
            (Numbers{1, 1}));
  EXPECT_EQ(run({a}, [](Builder& h, Values& v) { return h.sign(v[0]); }),
            (Numbers{1, 0, 1, -1, 1, 1}));
}

TEST(Evaluate, SortIsStableWithNanGreatest) {
  const Array a = array(DType::f32, {{6}}, {2, kNan, -kInf, 2, 0, -0.0});
  auto indices = [&](bool descending) {
    return run({a}, [&](Builder& h, Values& v) { return h.sort(v[0], 0, descending)[1]; });
  };
  EXPECT_EQ(indices(false), (Numbers{2, 4, 5, 0, 3, 1}));
  EXPECT_EQ(indices(true), (Numbers{1, 0, 3, 4, 5, 2}));
}

TEST(Evaluate, GatherAndScatterAreInverse) {
  Numbers n(24);
  std::iota(n.begin(), n.end(), 0);
  const Array x = array(DType::f32, {{2, 3, 4}}, n);
  const Array i = array(DType::i64, {{2}}, {2, 0});
  // x[:, [2, 0], :]
  EXPECT_EQ(
      run({x, i},
          [](Builder& h, Values& v) { return h.gather(v[0], std::span(v).subspan(1), {{1}}, 1); }),
      (Numbers{8, 9, 10, 11, 0, 1, 2, 3, 20, 21, 22, 23, 12, 13, 14, 15}));
  const Array zeros = array(DType::f32, {{3}}, {0, 0, 0});
  const Array updates = array(DType::f32, {{4}}, {1, 2, 3, 4});
  const Array at = array(DType::i32, {{4}}, {0, 2, 2, 0});
  auto scatter = [&](ScatterKind kind) {
    return run({zeros, updates, at}, [&](Builder& h, Values& v) {
      return h.scatter(kind, v[0], v[1], std::span(v).subspan(2), {{0}}, 0);
    });
  };
  EXPECT_EQ(scatter(ScatterKind::Add), (Numbers{5, 0, 5}));
  EXPECT_EQ(scatter(ScatterKind::Set), (Numbers{4, 0, 3}));
  EXPECT_THROW(
      run({zeros, array(DType::i64, {{1}}, {3})},
          [](Builder& h, Values& v) { return h.gather(v[0], std::span(v).subspan(1), {{0}}, 0); }),
      Error);
}

TEST(Evaluate, ViewsMoveElements) {
  const Array x = array(DType::i32, {{2, 3}}, {0, 1, 2, 3, 4, 5});
  EXPECT_EQ(run({x}, [](Builder& h, Values& v) { return h.transpose(v[0], {{1, 0}}); }),
            (Numbers{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(run({x}, [](Builder& h, Values& v) { return h.slice_dim(v[0], 1, 0, 3, 2); }),
            (Numbers{0, 2, 3, 5}));
  EXPECT_EQ(run({x},
                [](Builder& h, Values& v) {
                  return h.pad(v[0], h.like(v[0], 9), {{0, -1}}, {{0, 1}}, {{1, 0}});
                }),
            (Numbers{1, 2, 9, 9, 9, 9, 4, 5, 9}));
  EXPECT_EQ(run({x}, [](Builder& h, Values& v) { return h.reverse(v[0], {{1}}); }),
            (Numbers{2, 1, 0, 5, 4, 3}));
  EXPECT_EQ(
      run({x}, [](Builder& h, Values& v) { return h.as_strided(v[0], {{2, 2}}, {{1, 2}}, 1); }),
      (Numbers{1, 3, 2, 4}));
  EXPECT_EQ(run({x},
                [](Builder& h, Values& v) {
                  const Value parts[] = {v[0], v[0]};
                  return h.concatenate(parts, 1);
                }),
            (Numbers{0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5}));
  EXPECT_EQ(run({x, array(DType::i32, {{1, 2}}, {8, 9})},
                [](Builder& h, Values& v) {
                  const Value starts[] = {h.constant(DType::i64, 1), h.constant(DType::i64, 7)};
                  return h.dynamic_update_slice(v[0], v[1], starts);
                }),
            (Numbers{0, 1, 2, 3, 8, 9}));
}

TEST(Evaluate, ScansAndWindows) {
  const Array x = array(DType::f32, {{4}}, {1, 3, 2, 4});
  EXPECT_EQ(run({x}, [](Builder& h, Values& v) { return h.scan(ScanKind::Sum, v[0], 0); }),
            (Numbers{1, 4, 6, 10}));
  EXPECT_EQ(run({x}, [](Builder& h, Values& v) { return h.scan(ScanKind::Max, v[0], 0); }),
            (Numbers{1, 3, 3, 4}));
  WindowDims window;
  window.size = {2};
  window.stride = {2};
  window.pad_low = {1};
  window.pad_high = {1};
  EXPECT_EQ(run({x}, [&](Builder& h,
                         Values& v) { return h.reduce_window(ReduceKind::Max, v[0], window); }),
            (Numbers{1, 3, 4}));
}

TEST(Evaluate, Products) {
  const Array a = array(DType::f32, {{2, 2}}, {1, 2, 3, 4});
  const Array b = array(DType::f32, {{2, 2}}, {5, 6, 7, 8});
  EXPECT_EQ(run({a, b}, [](Builder& h, Values& v) { return h.matmul(v[0], v[1]); }),
            (Numbers{19, 22, 43, 50}));
  ConvolutionDims dims;
  dims.stride = dims.lhs_dilation = dims.rhs_dilation = {1};
  dims.pad_low = dims.pad_high = {1};
  const Array x = array(DType::f32, {{1, 1, 3}}, {1, 2, 3});
  const Array k = array(DType::f32, {{1, 1, 3}}, {1, 0, -1});
  EXPECT_EQ(run({x, k}, [&](Builder& h, Values& v) { return h.convolution(v[0], v[1], dims); }),
            (Numbers{-2, -2, 2}));
}

// The published test vector of Philox4x32-10 for an all-zero key and counter.
TEST(Evaluate, PhiloxMatchesThePublishedVector) {
  const double expected[] = {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u};
  for (int word = 0; word < 4; ++word) {
    EXPECT_EQ(run({},
                  [&](Builder& h, Values&) {
                    const Value zero = h.constant(DType::u64, 0);
                    return h.philox_word(zero, zero, word, {{1}});
                  }),
              Numbers{expected[word]});
  }
}

TEST(Evaluate, SpecialFunctions) {
  auto at = [](Op op, double x) {
    return run({array(DType::f64, {}, {x})},
               [&](Builder& h, Values& v) { return h.unary(op, v[0]); })[0];
  };
  for (double y : {-3.0, -0.5, 1e-9, 0.3, 1.7, 4.5}) {
    EXPECT_NEAR(at(Op::ErfInv, std::erf(y)), y, 1e-7 * std::fabs(y)) << y;
  }
  EXPECT_NEAR(at(Op::Digamma, 1), -0.57721566490153286, 1e-15);
  EXPECT_NEAR(at(Op::Digamma, -0.5), 0.03648997397857652, 1e-15);
  EXPECT_EQ(at(Op::Digamma, 0), -kInf);
  EXPECT_TRUE(std::isnan(at(Op::Digamma, -2)));
  EXPECT_EQ(at(Op::ErfInv, 1), kInf);
}

TEST(Evaluate, NarrowFormatsRoundAndOverflowAsTorchDoes) {
  const Array x = array(DType::f32, {{6}}, {1e9, 449, kNan, 1.0625, -kInf, 0.0009765625});
  auto through = [&](DType dtype) {
    return run(
        {x}, [&](Builder& h, Values& v) { return h.convert(h.convert(v[0], dtype), DType::f32); });
  };
  const Numbers e4m3fn = through(DType::f8e4m3fn);
  EXPECT_EQ(e4m3fn[0], 448);
  EXPECT_EQ(e4m3fn[1], 448);
  EXPECT_TRUE(std::isnan(e4m3fn[2]));
  EXPECT_EQ(e4m3fn[3], 1);
  EXPECT_EQ(e4m3fn[4], -448);
  EXPECT_EQ(e4m3fn[5], 0);  // Half of the smallest subnormal: to even.
  EXPECT_EQ(through(DType::f8e4m3)[0], kInf);
  EXPECT_EQ(through(DType::f8e5m2)[1], 448);
  EXPECT_EQ(through(DType::f16)[0], kInf);
  EXPECT_EQ(through(DType::bf16)[1], 448);
}

// All 16- and 8-bit patterns survive widening and narrowing.
TEST(FloatFormats, RoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto b = static_cast<uint16_t>(bits);
    if (!std::isnan(f16_to_float(b))) {
      EXPECT_EQ(float_to_f16(f16_to_float(b)), b);
    }
    if (!std::isnan(bf16_to_float(b))) {
      EXPECT_EQ(float_to_bf16(bf16_to_float(b)), b);
    }
  }
  for (uint32_t bits = 0; bits < 0x100; ++bits) {
    const auto b = static_cast<uint8_t>(bits);
    if (!std::isnan(f8e4m3fn_to_float(b))) {
      EXPECT_EQ(float_to_f8e4m3fn(f8e4m3fn_to_float(b)), b);
    }
    if (!std::isnan(f8e4m3_to_float(b))) {
      EXPECT_EQ(float_to_f8e4m3(f8e4m3_to_float(b)), b);
    }
    if (!std::isnan(f8e5m2_to_float(b))) {
      EXPECT_EQ(float_to_f8e5m2(f8e5m2_to_float(b)), b);
    }
  }
}

TEST(Verify, NamesTheBrokenNode) {
  Builder b;
  const Value x = b.parameter(DType::f32, {{2}});
  b.result(b.add(x, x));
  Module module = b.finish();
  verify(module);
  module.mutable_nodes()[1].type.dims[0] = 3;
  EXPECT_THROW(verify(module), Error);
}

}  // namespace
}  // namespace neuron::hlo
