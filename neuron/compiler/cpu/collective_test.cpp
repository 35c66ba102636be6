#include <gtest/gtest.h>

#include "neuron/compiler/cpu/cpu_compiler.h"
#include "neuron/compiler/cpu/plan.h"
#include "neuron/hlo/builder.h"

namespace neuron::compiler::cpu {
namespace {

using hlo::Builder;
using hlo::ReduceKind;
using hlo::Value;

const hlo::ReplicaGroups kGroups{2, {0, 1}, 1};

std::vector<std::string> collectives_of(const Plan& plan) {
  std::vector<std::string> names;
  for (const PlannedStep& step : plan.steps) {
    if (step.collective) names.push_back(step.call.name);
  }
  return names;
}

TEST(Collective, IsAStepOfItsOwnBetweenKernels) {
  Builder b;
  const Value x = b.parameter(DType::f32, {{64, 64}});
  const Value y = b.all_reduce(ReduceKind::Sum, b.add(x, x), kGroups);
  b.result(b.mul(y, y));
  const Plan plan = make_plan(b.finish());
  ASSERT_EQ(plan.steps.size(), 3u) << to_string(plan);
  EXPECT_FALSE(plan.steps[0].library);
  EXPECT_TRUE(plan.steps[1].collective);
  EXPECT_FALSE(plan.steps[2].library);
  for (const PlannedStep& step : plan.steps) EXPECT_EQ(step.parallel_group, -1);
}

TEST(Collective, RunsInTheOrderOfTheModuleAlthoughNothingElseOrdersThem) {
  // The second needs nothing, the first waits for a chain of work; what reads the second would fit
  // into the kernel that feeds the first.
  Builder b;
  const Value x = b.parameter(DType::f32, {{64, 64}});
  const Value y = b.parameter(DType::f32, {{64, 64}});
  const Value first = b.all_gather(b.dot_general(b.exp(x), x, {{}, {}, {1}, {0}}), 0, kGroups);
  const Value second = b.reduce_scatter(ReduceKind::Sum, y, 0, kGroups);
  const Value third = b.all_to_all(y, 0, 0, kGroups);
  b.result(b.add(second, b.slice_dim(b.exp(x), 0, 0, 32)));
  b.result(b.add(third, b.exp(x)));
  b.result(first);
  const Plan plan = make_plan(b.finish());
  EXPECT_EQ(collectives_of(plan),
            (std::vector<std::string>{"all_gather", "reduce_scatter", "all_to_all"}))
      << to_string(plan);
}

TEST(Collective, StaysWhenNothingReadsItAndTwoEqualOnesAreTwo) {
  Builder b;
  Value x = b.parameter(DType::f32, {{8}});
  b.all_reduce(ReduceKind::Sum, x, kGroups);
  b.result(b.all_reduce(ReduceKind::Sum, x, kGroups));
  for (int i = 0; i < 30; ++i) x = b.neg(b.exp(x));  // Enough for the simplifier.
  b.result(x);
  EXPECT_EQ(collectives_of(make_plan(b.finish())).size(), 2u);
}

TEST(Collective, IsCarriedInTheNeff) {
  Builder b;
  const Value x = b.parameter(DType::f32, {{8}});
  b.result(b.all_reduce(ReduceKind::Max, x, kGroups));
  CpuCompiler compiler("trn2");
  const std::vector<std::byte> file = compiler.compile(b.finish());
  const neff::Program program = neff::read_neff(file.data(), file.size());
  ASSERT_EQ(program.steps.size(), 1u);
  EXPECT_EQ(program.steps[0].kind, neff::Step::Kind::Collective);
  EXPECT_EQ(program.steps[0].library.name, "all_reduce");
  EXPECT_EQ(program.steps[0].library.ints,
            (Dims{static_cast<int64_t>(ReduceKind::Max), 0, 1, 2, 0, 1}));
}

}  // namespace
}  // namespace neuron::compiler::cpu
