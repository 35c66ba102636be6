#include "neuron/base/env.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "neuron/base/error.h"

namespace neuron {
namespace {

class EnvTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const env::Variable& row : env::table()) unsetenv(row.name);
    env::reload();
  }
  void TearDown() override { SetUp(); }
  static void set(const char* name, const char* value) {
    setenv(name, value, 1);
    env::reload();
  }
};

TEST_F(EnvTest, DefaultsHold) {
  EXPECT_EQ(env::nrt(), env::Nrt::Auto);
  EXPECT_EQ(env::target(), "trn2");
  EXPECT_EQ(env::target_override(), "");
  EXPECT_TRUE(env::cache_enabled());
  EXPECT_EQ(env::logical_nc_config(), 2);
  EXPECT_EQ(env::fallback(), env::Fallback::Warn);
  EXPECT_FALSE(env::visible_cores().has_value());
  EXPECT_NO_THROW(env::validate());
}

TEST_F(EnvTest, ReadsChoicesRangesAndSuffixes) {
  set("TORCH_NEURONX_COMPILER", "neuronx-cc");
  EXPECT_EQ(env::compiler(), env::Compiler::NeuronxCc);
  set("NEURON_RT_VISIBLE_CORES", "3-5,6");
  EXPECT_EQ(*env::visible_cores(), (std::vector<int>{3, 4, 5, 6}));
  set("TORCH_NEURONX_HBM_LIMIT", "24M");
  EXPECT_EQ(env::hbm_limit(), 24u << 20);
  set("NEURON_RT_VIRTUAL_CORE_SIZE", "1");
  EXPECT_EQ(env::logical_nc_config(), 1);
  set("NEURON_LOGICAL_NC_CONFIG", "2");
  EXPECT_EQ(env::logical_nc_config(), 2);
  set("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3");
  EXPECT_EQ(env::target(), "trn3");
}

TEST_F(EnvTest, MalformedValueNamesVariableValueAndChoices) {
  set("TORCH_NEURONX_NRT", "cuda");
  try {
    env::nrt();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    EXPECT_STREQ(error.what(),
                 "environment variable TORCH_NEURONX_NRT is 'cuda', allowed: auto, hardware, sim");
  }
  EXPECT_THROW(env::nrt(), Error);  // Again: the mistake is still there.
  EXPECT_THROW(env::validate(), Error);
}

TEST_F(EnvTest, RejectsNumbersThatAreNone) {
  for (const char* text : {"x", "1x", "-1", "99999999999999999999"}) {
    set("TORCH_NEURONX_NUM_THREADS", text);
    EXPECT_THROW(env::num_threads(), Error) << text;
  }
  for (const char* text : {"1-", "2,1", "0,2", "a", ",", "3-1"}) {
    set("NEURON_RT_VISIBLE_CORES", text);
    EXPECT_THROW(env::visible_cores(), Error) << text;
  }
  for (const char* text : {"1T", "1KB", "G", "18446744073709551615G"}) {
    set("TORCH_NEURONX_HBM_LIMIT", text);
    EXPECT_THROW(env::hbm_limit(), Error) << text;
  }
}

TEST_F(EnvTest, SimulatorHasACoreForEachLocalRank) {
  EXPECT_EQ(env::sim_cores(), 2);
  for (const auto& [ranks, cores] : {std::pair{"4", 4}, {"1", 2}, {"500", 64}, {"x", 2}}) {
    set("LOCAL_WORLD_SIZE", ranks);
    EXPECT_EQ(env::sim_cores(), cores) << ranks;
  }
  set("LOCAL_WORLD_SIZE", "");
  set("NEURON_LOGICAL_NC_CONFIG", "1");
  EXPECT_EQ(env::sim_cores(), 128);
  set("NEURON_SIM_CORES", "3");
  EXPECT_EQ(env::sim_cores(), 3);
  unsetenv("LOCAL_WORLD_SIZE");
}

TEST_F(EnvTest, EveryVariableIsDocumented) {
  const std::string text = env::table_as_markdown();
  for (const env::Variable& row : env::table()) {
    EXPECT_NE(text.find(std::string("`") + row.name + "`"), std::string::npos);
    EXPECT_GT(std::string(row.description).size(), 10u) << row.name;
  }
}

}  // namespace
}  // namespace neuron
