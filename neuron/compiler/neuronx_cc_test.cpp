#include "neuron/compiler/neuronx_cc.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "neuron/base/env.h"
#include "neuron/base/error.h"
#include "neuron/hlo/builder.h"

// The real compiler is not here: a shell script on PATH stands in for it.
namespace neuron::compiler {
namespace {

/// The test program keeps what it compiles in a folder of its own.
class OwnCacheFolder : public ::testing::Environment {
 public:
  OwnCacheFolder() {
    char pattern[] = "/tmp/neuronx_cc_cache_XXXXXX";
    path_ = ::mkdtemp(pattern);
    ::setenv("TORCH_NEURONX_CACHE_DIR", path_.c_str(), 1);
  }
  void TearDown() override {
    const std::string command = "rm -rf " + path_;
    if (std::system(command.c_str()) != 0) ADD_FAILURE() << command;
  }

 private:
  std::string path_;
};
const auto* const own_folder = ::testing::AddGlobalTestEnvironment(new OwnCacheFolder);

hlo::Module sample(double number) {
  hlo::Builder b;
  const hlo::Value x = b.parameter(DType::f32, Dims{4});
  b.result(b.add(x, b.like(x, number)));
  return b.finish();
}

class NeuronxCcTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/neuronx_cc_test_XXXXXX";
    folder_ = ::mkdtemp(pattern);
    old_path_ = std::getenv("PATH");
    ::setenv("PATH", (folder_ + ":/usr/bin:/bin").c_str(), 1);
    ::unsetenv("NEURON_CC_FLAGS");
    env::reload();
  }
  void TearDown() override {
    ::setenv("PATH", old_path_.c_str(), 1);
    ::unsetenv("NEURON_CC_FLAGS");
    env::reload();
    const std::string command = "rm -rf " + folder_;
    if (std::system(command.c_str()) != 0) ADD_FAILURE() << command;
  }
  void install(const std::string& body) {
    const std::string path = folder_ + "/neuronx-cc";
    std::ofstream(path) << "#!/bin/sh\n" << body;
    ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
  }
  std::string message_of(const hlo::Module& module) {
    NeuronxCc compiler("trn2");
    try {
      compiler.compile(module);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kIo);
      return error.what();
    }
    return "";
  }
  static std::string text_of(const std::vector<std::byte>& bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  std::string folder_;
  std::string old_path_;
};

TEST_F(NeuronxCcTest, PassesModuleAndFlagsAndReadsTheNeff) {
  install(R"(echo "$@" > module.neff; cat module.mlir >> module.neff; exit 0)");
  ::setenv("NEURON_CC_FLAGS", "-O1 --logfile='a b.txt'", 1);
  env::reload();
  NeuronxCc compiler("trn3");
  const std::string neff = text_of(compiler.compile(sample(1)));
  EXPECT_NE(neff.find("compile module.mlir --framework XLA --target trn3 --lnc 2 --auto-cast=none "
                      "-O1 --logfile=a b.txt --output module.neff"),
            std::string::npos)
      << neff;
  EXPECT_NE(neff.find("stablehlo.add"), std::string::npos) << neff;
  EXPECT_EQ(compiler.stats().programs, 1u);
}

TEST_F(NeuronxCcTest, CompilesTheSameModuleOnce) {
  install("echo run >> " + folder_ + "/runs; echo neff > module.neff");
  NeuronxCc first("trn2");
  NeuronxCc second("trn2");
  first.compile(sample(2));
  second.compile(sample(2));
  second.compile(sample(3));
  std::ifstream runs(folder_ + "/runs");
  const std::string all{std::istreambuf_iterator<char>(runs), std::istreambuf_iterator<char>()};
  if (env::cache_enabled() && !env::cache_dir().empty()) {
    EXPECT_EQ(all, "run\nrun\n");
    EXPECT_EQ(second.stats().disk_hits, 1u);
  }
}

TEST_F(NeuronxCcTest, FailuresCarryTheLog) {
  install("echo '[ERROR] [NCC_EVRF001] Operator x is not supported' >&2; exit 70");
  const std::string message = message_of(sample(4));
  EXPECT_NE(message.find("status 70"), std::string::npos) << message;
  EXPECT_NE(message.find("NCC_EVRF001"), std::string::npos) << message;
  EXPECT_NE(message.find("--target trn2"), std::string::npos) << message;
}

TEST_F(NeuronxCcTest, SuccessWithoutANeffIsAFailure) {
  install("exit 0");
  EXPECT_NE(message_of(sample(5)).find("wrote no NEFF"), std::string::npos);
}

TEST_F(NeuronxCcTest, SaysWhereItLookedForTheProgram) {
  ::setenv("PATH", "/nowhere/bin:/usr/bin", 1);
  env::reload();
  const std::string message = message_of(sample(6));
  EXPECT_NE(message.find("/nowhere/bin:/usr/bin"), std::string::npos) << message;
  EXPECT_NE(message.find("TORCH_NEURONX_COMPILER=cpu"), std::string::npos) << message;
}

TEST(SplitFlags, FollowsTheShell) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(split_flags(""), Words{});
  EXPECT_EQ(split_flags("  -O1\t--x=1 "), (Words{"-O1", "--x=1"}));
  EXPECT_EQ(split_flags(R"(--a='b c' "d\"e" f\ g '')"), (Words{"--a=b c", "d\"e", "f g", ""}));
  EXPECT_THROW(split_flags("'open"), Error);
}

TEST(MakeCompiler, NamesItsChoices) {
  EXPECT_EQ(make_compiler("neuronx-cc", "trn2")->name(), "neuronx-cc");
  EXPECT_THROW(make_compiler("gcc", "trn2"), Error);
  EXPECT_THROW(make_compiler("neuronx-cc", "trn9"), Error);
}

}  // namespace
}  // namespace neuron::compiler
