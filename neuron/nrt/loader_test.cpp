#include "neuron/nrt/loader.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "neuron/base/env.h"
#include "neuron/base/error.h"
#include "neuron/nrt/status.h"

namespace neuron::nrt {
namespace {

std::string message_of(void (*body)()) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    return error.what();
  }
  return "";
}

TEST(Loader, NamesTheLibraryThatCannotBeLoaded) {
  const std::string message = message_of([] { load_library("/nowhere/libnrt.so"); });
  EXPECT_NE(message.find("/nowhere/libnrt.so"), std::string::npos) << message;
}

TEST(Loader, NamesTheFunctionsThatALibraryLacks) {
  const std::string message = message_of([] { load_library("libm.so.6"); });
  EXPECT_NE(message.find("it lacks nrt_init, nrt_close"), std::string::npos) << message;
}

// On a machine with the vendor's library this test has nothing to show.
TEST(Loader, SaysWhereItLookedForTheHardwareRuntime) {
  setenv("TORCH_NEURONX_NRT", "hardware", 1);
  env::reload();
  const std::string message = message_of([] { api(); });
  unsetenv("TORCH_NEURONX_NRT");
  env::reload();
  if (message.empty()) GTEST_SKIP() << "libnrt.so is installed";
  EXPECT_NE(message.find("/opt/aws/neuron/lib/libnrt.so"), std::string::npos) << message;
  EXPECT_NE(message.find("TORCH_NEURONX_NRT=sim"), std::string::npos) << message;
}

TEST(Status, NamesAndKinds) {
  EXPECT_STREQ(status_name(NRT_RESOURCE), "NRT_RESOURCE");
  EXPECT_STREQ(status_name(8), "unknown NRT status");
  EXPECT_EQ(status_from_name("NRT_EXEC_OOB"), 1006);
  EXPECT_EQ(status_from_name("TIMEOUT"), 5);
  EXPECT_EQ(status_from_name("nonsense"), -1);
  EXPECT_EQ(error_kind(NRT_RESOURCE), ErrorKind::kOutOfMemory);
  EXPECT_EQ(error_kind(NRT_EXEC_OOB), ErrorKind::kIndex);
  EXPECT_EQ(error_kind(4242), ErrorKind::kDevice);
  EXPECT_TRUE(is_fatal(NRT_EXEC_HW_ERR_HBM_UE));
  EXPECT_FALSE(is_fatal(NRT_QUEUE_FULL));
}

}  // namespace
}  // namespace neuron::nrt
