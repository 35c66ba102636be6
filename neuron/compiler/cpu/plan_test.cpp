#include "neuron/compiler/cpu/plan.h"

#include <gtest/gtest.h>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/testing/run_plan.h"
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

TEST(Plan, RunsEverySampleInterpreted) { check_samples(testing::interpreted()); }
TEST(Plan, RunsEverySampleAsGeneratedCode) { check_samples(testing::generated()); }

}  // namespace
}  // namespace neuron::compiler::cpu
