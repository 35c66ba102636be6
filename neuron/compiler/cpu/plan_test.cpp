#include "neuron/compiler/cpu/plan.h"

#include <gtest/gtest.h>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/testing/run_plan.h"
#include "neuron/hlo/builder.h"
#include "neuron/hlo/evaluate_internal.h"
#include "neuron/hlo/testing/samples.h"

namespace neuron::compiler::cpu {
namespace {

using testing::difference;
using testing::NestRunner;
using testing::RunOutcome;

/// Every sample, against the reference evaluator.
void check_samples(const NestRunner& runner) {
  int ran = 0;
  for (const hlo::Sample& sample : hlo::all_samples()) {
    SCOPED_TRACE(sample.name);
    std::vector<hlo::Array> expected;
    try {
      expected = hlo::evaluate(sample.module, sample.parameters, sample.scalars);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kUnsupported) continue;
      throw;
    }
    try {
      const Plan plan = make_plan(sample.module);
      const RunOutcome outcome =
          testing::run_plan(sample.module, plan, sample.parameters, sample.scalars, runner);
      ++ran;
      for (size_t r = 0; r < expected.size(); ++r) {
        EXPECT_EQ(difference(outcome.results[r], expected[r], std::max(sample.rtol, 2e-6),
                             std::max(sample.atol, 1e-6)),
                  "")
            << "result " << r;
      }
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kUnsupported) {
        printf("unsupported: %s: %s\n", sample.name.c_str(), error.what());
        continue;
      }
      ADD_FAILURE() << error.what();
    }
  }
  EXPECT_GT(ran, 50);
}

/// One module on given operands against the evaluator, interpreted and generated.
void check_module(hlo::Builder& b, std::vector<hlo::Array> parameters) {
  const hlo::Module module = b.finish();
  hlo::verify(module);
  const std::vector<hlo::Array> expected = hlo::evaluate(module, parameters);
  const Plan plan = make_plan(module);
  for (const NestRunner& runner : {testing::interpreted(), testing::generated()}) {
    const RunOutcome outcome = testing::run_plan(module, plan, parameters, {}, runner);
    for (size_t r = 0; r < expected.size(); ++r) {
      EXPECT_EQ(difference(outcome.results[r], expected[r], 1e-5, 1e-5), "")
          << "result " << r << "\n"
          << to_string(plan);
    }
  }
}

hlo::Array ramp(DType type, Dims dims) {
  hlo::Array array{{type, dims}, {}};
  const int64_t count = count_elements(dims);
  array.bytes.resize(static_cast<size_t>(count) * size_of(type));
  hlo::with_compute_type(type, [&](auto tag) {
    using T = decltype(tag);
    if constexpr (!hlo::is_complex_v<T>) {
      for (int64_t i = 0; i < count; ++i) {
        hlo::store_element<T>(type, static_cast<T>((i * 7) % 23),
                              array.bytes.data() + static_cast<size_t>(i) * size_of(type));
      }
    }
  });
  return array;
}

TEST(Plan, EmptyTensorsAreNoSpecialCase) {
  hlo::Builder b;
  const hlo::Value x = b.parameter(DType::f32, Dims{0, 4});
  const hlo::Value y = b.parameter(DType::f32, Dims{3, 4});
  b.result(b.add(x, x));
  b.result(b.sum(x, Dims{0}));
  b.result(b.reduce(hlo::ReduceKind::Max, x, Dims{0}));
  b.result(b.sum(x, Dims{1}));
  const hlo::Value parts[] = {x, y, x};
  b.result(b.concatenate(parts, 0));
  b.result(b.pad(x, b.constant(DType::f32, 2), Dims{1, 0}, Dims{1, 0}));
  b.result(b.matmul(b.transpose(x, Dims{1, 0}), x));
  b.result(b.reshape(x, Dims{4, 0, 2}));
  check_module(b, {ramp(DType::f32, {0, 4}), ramp(DType::f32, {3, 4})});
}

TEST(Plan, LongReductionsAreRightWhereverTheyAreCut) {
  for (int64_t n : {4095, 32768, 32769, 40960, 100003}) {
    hlo::Builder b;
    const hlo::Value x = b.parameter(DType::i32, Dims{n});
    b.result(b.sum(x, Dims{0}));
    b.result(b.reduce(hlo::ReduceKind::Max, b.neg(x), Dims{0}));
    b.result(b.sum(b.mul(x, x), Dims{0}, true));
    check_module(b, {ramp(DType::i32, {n})});
  }
  for (int64_t n : {129, 256, 257, 4099}) {
    hlo::Builder b;
    const hlo::Value x = b.parameter(DType::i32, Dims{n, 300});
    b.result(b.sum(x, Dims{0}));
    b.result(b.reduce(hlo::ReduceKind::Min, x, Dims{0}));
    b.result(b.sum(x, Dims{0, 1}));
    check_module(b, {ramp(DType::i32, {n, 300})});
  }
}

TEST(Plan, BatchStatisticsReduceAroundAKeptDim) {
  hlo::Builder b;
  const hlo::Value x = b.parameter(DType::i32, Dims{4, 3, 5, 7});
  b.result(b.sum(x, Dims{0, 2, 3}));
  b.result(b.sum(b.mul(x, x), Dims{0, 2, 3}, true));
  b.result(b.reduce(hlo::ReduceKind::Max, x, Dims{1, 3}));
  check_module(b, {ramp(DType::i32, {4, 3, 5, 7})});
}

TEST(Plan, SumsOfBf16AreRoundedOnce) {
  hlo::Builder b;
  const hlo::Value x = b.parameter(DType::bf16, Dims{40000});
  const hlo::Value one = b.constant(DType::bf16, 1, Dims{40000});
  b.result(b.sum(b.add(b.mul(x, b.like(x, 0)), one), Dims{0}));
  check_module(b, {ramp(DType::bf16, {40000})});
}

TEST(Plan, WritesThroughStagesWhenBuffersMayOverlap) {
  hlo::Builder b;
  const hlo::Value x = b.parameter(DType::f32, Dims{6, 4});
  const hlo::Value y = b.parameter(DType::f32, Dims{6, 4});
  b.result(b.add(x, y), {}, 0, true);
  b.result(b.mul(x, y), {}, 1, true);
  check_module(b, {ramp(DType::f32, {6, 4}), ramp(DType::f32, {6, 4})});
}

TEST(Plan, SwapsTwoParametersInPlace) {
  hlo::Builder b;
  const hlo::Value x = b.parameter(DType::f32, Dims{100});
  const hlo::Value y = b.parameter(DType::f32, Dims{100});
  b.result(b.mul(y, b.like(y, 2)), {}, 0);
  b.result(b.add(x, b.like(x, 1)), {}, 1);
  check_module(b, {ramp(DType::f32, {100}), ramp(DType::f32, {100})});
}

TEST(Plan, ReportsAnIndexOutOfRange) {
  hlo::Builder b;
  const hlo::Value x = b.parameter(DType::f32, Dims{5, 3});
  const hlo::Value i = b.parameter(DType::i64, Dims{4});
  b.result(b.gather(b.mul(x, b.like(x, 2)), {{i}}, Dims{0}, 0));
  const hlo::Module module = b.finish();
  hlo::Array indices = ramp(DType::i64, {4});  // 0, 7, 14, 21
  const Plan plan = make_plan(module);
  for (const NestRunner& runner : {testing::interpreted(), testing::generated()}) {
    const std::vector<hlo::Array> parameters{ramp(DType::f32, {5, 3}), indices};
    EXPECT_GE(testing::run_plan(module, plan, parameters, {}, runner).status, 1);
  }
}

TEST(Plan, RunsEverySampleInterpreted) { check_samples(testing::interpreted()); }
TEST(Plan, RunsEverySampleAsGeneratedCode) { check_samples(testing::generated()); }

}  // namespace
}  // namespace neuron::compiler::cpu
