// What becomes one kernel: counts per pattern, so that a change of fusion shows.
#include "neuron/compiler/cpu/fuse.h"

#include <gtest/gtest.h>

#include "neuron/compiler/cpu/plan.h"
#include "neuron/hlo/builder.h"

namespace neuron::compiler::cpu {
namespace {

using hlo::Builder;
using hlo::Value;

struct Counts {
  int kernels = 0;
  int library = 0;
  int64_t arena = 0;
  std::string text;
};

Counts count_steps(Builder& b) {
  const hlo::Module module = b.finish();
  hlo::verify(module);
  const Plan plan = make_plan(module);
  Counts counts;
  for (const PlannedStep& step : plan.steps) ++(step.library ? counts.library : counts.kernels);
  counts.arena = plan.arena_bytes;
  counts.text = to_string(plan);
  return counts;
}

Value softmax(Builder& b, Value x, int64_t dim) {
  const Value e = b.exp(b.sub(x, b.max_keepdim(x, dim)));
  return b.div(e, b.sum_keepdim(e, dim));
}

struct Norm {
  Value out, normalized, scale;
};

Norm layer_norm(Builder& b, Value x, Value weight, Value bias) {
  const double n = static_cast<double>(x.dim(-1));
  const Value mean = b.mul(b.sum_keepdim(x, -1), b.like(x, 1 / n));
  const Value centred = b.sub(x, mean);
  const Value variance = b.mul(b.sum_keepdim(b.mul(centred, centred), -1), b.like(x, 1 / n));
  const Value scale = b.rsqrt(b.add(variance, b.like(x, 1e-5)));
  const Value normalized = b.mul(centred, scale);
  return {b.add(b.mul(normalized, weight), bias), normalized, scale};
}

TEST(Fusion, ChainIsOneKernel) {
  Builder b;
  const Value x = b.parameter(DType::f32, Dims{8, 64});
  const Value bias = b.parameter(DType::f32, Dims{64});
  b.result(b.tanh(b.add(b.mul(x, b.like(x, 2)), bias)));
  const Counts c = count_steps(b);
  EXPECT_EQ(c.kernels, 1) << c.text;
  EXPECT_EQ(c.arena, 0) << c.text;
}

TEST(Fusion, SoftmaxIsOneKernelAndKeepsTheExponentials) {
  Builder b;
  b.result(softmax(b, b.parameter(DType::f32, Dims{32, 100}), -1));
  const Counts c = count_steps(b);
  EXPECT_EQ(c.kernels, 1) << c.text;
  EXPECT_EQ(c.arena, 0) << c.text;
  EXPECT_NE(c.text.find("buffered"), std::string::npos) << c.text;
}

TEST(Fusion, SoftmaxOverAnInnerDimIsOneKernel) {
  Builder b;
  b.result(softmax(b, b.parameter(DType::f32, Dims{32, 10, 100}), 1));
  const Counts c = count_steps(b);
  EXPECT_EQ(c.kernels, 1) << c.text;
}

TEST(Fusion, LayerNormIsOneKernelWithItsStatisticsStored) {
  Builder b;
  const Value x = b.parameter(DType::f32, Dims{4, 16, 64});
  const Norm norm =
      layer_norm(b, x, b.parameter(DType::f32, Dims{64}), b.parameter(DType::f32, Dims{64}));
  b.result(norm.out);
  b.result(norm.scale);
  const Counts c = count_steps(b);
  EXPECT_EQ(c.kernels, 1) << c.text;
  EXPECT_EQ(c.arena, 0) << c.text;
}

TEST(Fusion, LayerNormBackwardIsARowKernelAndOneOfColumns) {
  Builder b;
  const Value dy = b.parameter(DType::f32, Dims{64, 96});
  const Value normalized = b.parameter(DType::f32, Dims{64, 96});
  const Value scale = b.parameter(DType::f32, Dims{64, 1});
  const Value weight = b.parameter(DType::f32, Dims{96});
  const Value g = b.mul(dy, weight);
  const Value m1 = b.mul(b.sum_keepdim(g, -1), b.like(g, 1.0 / 96));
  const Value m2 = b.mul(b.sum_keepdim(b.mul(g, normalized), -1), b.like(g, 1.0 / 96));
  b.result(b.mul(scale, b.sub(b.sub(g, m1), b.mul(normalized, m2))));
  b.result(b.sum(b.mul(dy, normalized), Dims{0}));
  b.result(b.sum(dy, Dims{0}));
  const Counts c = count_steps(b);
  EXPECT_EQ(c.kernels, 2) << c.text;
  EXPECT_EQ(c.arena, 0) << c.text;
}

TEST(Fusion, CrossEntropyReadsTheLogitsOnceEachWay) {
  Builder b;
  const Value logits = b.parameter(DType::f32, Dims{64, 1000});
  const Value target = b.parameter(DType::i64, Dims{64});
  const Value shifted = b.sub(logits, b.max_keepdim(logits, -1));
  const Value log_sum = b.log(b.sum_keepdim(b.exp(shifted), -1));
  const Value log_softmax = b.sub(shifted, log_sum);
  const Value row = b.iota(DType::i64, Dims{64}, 0);
  const Value picked = b.gather(log_softmax, {{row, target}}, Dims{0, 1}, 0);
  b.result(b.neg(b.mul(b.sum(picked, Dims{0}), b.constant(DType::f32, 1.0 / 64))));
  const Value hot = b.eq(b.iota(DType::i64, Dims{64, 1000}, 1),
                         b.broadcast_to(b.unsqueeze(target, 1), Dims{64, 1000}));
  b.result(b.sub(b.exp(log_softmax), b.convert(hot, DType::f32)));
  const Counts c = count_steps(b);
  // Row statistics and the gradient, then the picked elements.
  EXPECT_LE(c.kernels, 2) << c.text;
}

TEST(Fusion, OptimizerStepIsOneKernelInPlace) {
  Builder b;
  const Value rate = b.convert(b.scalar(DType::f64), DType::f32);
  const Dims dims{32, 48};
  const Value p = b.parameter(DType::f32, dims), g = b.parameter(DType::f32, dims);
  const Value m = b.parameter(DType::f32, dims), v = b.parameter(DType::f32, dims);
  const Value m2 = b.add(b.mul(m, b.like(m, 0.9)), b.mul(g, b.like(g, 0.1)));
  const Value v2 = b.add(b.mul(v, b.like(v, 0.99)), b.mul(b.mul(g, g), b.like(g, 0.01)));
  b.result(b.sub(p, b.div(b.mul(rate, m2), b.add(b.sqrt(v2), b.like(v, 1e-8)))), {}, 0);
  b.result(m2, {}, 2);
  b.result(v2, {}, 3);
  const Counts c = count_steps(b);
  EXPECT_EQ(c.kernels, 1) << c.text;
  EXPECT_EQ(c.arena, 0) << c.text;
}

TEST(Fusion, OverwritingAShiftedReadGoesThroughTheArena) {
  Builder b;
  const Value x = b.parameter(DType::f32, Dims{64});
  b.result(b.add(x, b.reverse(x, Dims{0})), {}, 0);
  const Counts c = count_steps(b);
  EXPECT_EQ(c.kernels, 2) << c.text;
  EXPECT_EQ(c.arena, 256) << c.text;
}

TEST(Fusion, ProductsReadAndWriteTurnedViewsWithoutCopies) {
  Builder b;
  // Attention's second product, turned back for the projection.
  const Value p = b.parameter(DType::f32, Dims{2, 4, 8, 8});
  const Value v = b.parameter(DType::f32, Dims{2, 8, 4, 16});
  const Value w = b.parameter(DType::f32, Dims{64, 32});
  const Value heads = b.matmul(p, b.transpose(v, Dims{0, 2, 1, 3}));
  const Value joined = b.reshape(b.transpose(heads, Dims{0, 2, 1, 3}), Dims{16, 64});
  b.result(b.matmul(joined, w));
  const Counts c = count_steps(b);
  EXPECT_EQ(c.kernels, 0) << c.text;
}

TEST(Fusion, ProductsWriteIntoTheConcatenation) {
  Builder b;
  const Value x = b.parameter(DType::f32, Dims{8, 16});
  const Value parts[] = {b.matmul(x, b.parameter(DType::f32, Dims{16, 4})),
                         b.matmul(x, b.parameter(DType::f32, Dims{16, 6}))};
  b.result(b.concatenate(parts, 1));
  const Counts c = count_steps(b);
  EXPECT_EQ(c.kernels, 0) << c.text;
  EXPECT_EQ(c.library, 2) << c.text;
}

TEST(Fusion, EmbeddingJoinsWhatReadsIt) {
  Builder b;
  const Value table = b.parameter(DType::f32, Dims{100, 64});
  const Value ids = b.parameter(DType::i64, Dims{4, 8});
  const Value positions = b.parameter(DType::f32, Dims{8, 64});
  b.result(b.add(b.gather(table, {{ids}}, Dims{0}, 0), positions));
  const Counts c = count_steps(b);
  EXPECT_EQ(c.kernels, 1) << c.text;
}

TEST(Fusion, LongSumIsCutIntoTwoSteps) {
  Builder b;
  b.result(b.sum(b.parameter(DType::f32, Dims{1 << 20}), Dims{0}));
  const Counts c = count_steps(b);
  EXPECT_EQ(c.kernels, 2) << c.text;
}

TEST(Fusion, ForeachStepsAreIndependent) {
  Builder b;
  for (int i = 0; i < 20; ++i) {
    const Value x = b.parameter(DType::f32, Dims{16 + i});
    b.result(b.mul(x, b.like(x, 2)), {}, i);
  }
  const hlo::Module module = b.finish();
  const Plan plan = make_plan(module);
  ASSERT_EQ(plan.steps.size(), 20u);
  for (const PlannedStep& step : plan.steps) {
    EXPECT_EQ(step.parallel_group, 0);
    EXPECT_EQ(key_of(step.nest), key_of(plan.steps[0].nest));
  }
}

TEST(Fusion, TenThousandOperationsTakeLinearTime) {
  Builder b;
  Value x = b.parameter(DType::f32, Dims{64, 64});
  const Value w = b.parameter(DType::f32, Dims{64, 64});
  for (int i = 0; i < 1000; ++i) {
    const Value y = b.matmul(x, w);
    x = b.add(x, softmax(b, b.tanh(y), -1));
  }
  b.result(x);
  const Counts c = count_steps(b);
  EXPECT_EQ(c.library, 1000);
  EXPECT_EQ(c.kernels, 1000);
  EXPECT_LE(c.arena, 8 * 64 * 64 * 4);
}

}  // namespace
}  // namespace neuron::compiler::cpu
