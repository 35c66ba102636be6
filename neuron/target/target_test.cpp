#include "neuron/target/target.h"

#include <gtest/gtest.h>

#include <string>

#include "neuron/base/error.h"

namespace neuron {
namespace {

TEST(Target, Trn2InstanceHas64LogicalCoresAtLnc2) {
  const Target& target = find_target("trn2");
  EXPECT_EQ(target.cores_per_instance() / 2, 64);
  EXPECT_EQ(target.hbm_bytes_per_stack(), 24ull << 30);
}

// The array's size times its clock is what the documentation calls the peak.
TEST(Target, TensorPeakFollowsFromTheClock) {
  for (const Target* target : all_targets()) {
    const TensorEngine& engine = target->tensor;
    const double peak = 2.0 * engine.rows * engine.columns * engine.ghz / 1000.0;
    EXPECT_NEAR(engine.tflops_bf16, peak, 0.02 * peak) << target->name;
  }
}

TEST(Target, CoreBandwidthIsTheSmallerOfHbmShareAndDma) {
  EXPECT_DOUBLE_EQ(kTrn2.core_gb_per_second(), 2900.0 / 8);
  EXPECT_DOUBLE_EQ(kTrn3.core_gb_per_second(), 528.0);
}

TEST(Target, UnknownNameListsTheKnownOnes) {
  try {
    find_target("trn9");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    EXPECT_STREQ(error.what(), "unknown target 'trn9', known: trn2, trn3");
  }
}

}  // namespace
}  // namespace neuron
