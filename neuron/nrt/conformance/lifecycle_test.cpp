#include <cstdlib>
#include <cstring>

#include "neuron/nrt/conformance/suite.h"

namespace neuron::nrt::conformance {
namespace {

TEST(Lifecycle, CountsAndInstanceNeedNoInit) {
  const Api& nrt = library();
  uint32_t total = 0, visible = 0;
  ASSERT_NRT(nrt.nrt_get_total_vnc_count(&total));
  ASSERT_NRT(nrt.nrt_get_visible_vnc_count(&visible));
  EXPECT_GE(total, visible);
  EXPECT_GE(visible, 1u);
  nrt_instance_info_t info{};
  ASSERT_NRT(nrt.nrt_get_instance_info(&info, sizeof(info)));
  EXPECT_NE(info.arch_name[0], '\0');
  nrt_version_t version{};
  ASSERT_NRT(nrt.nrt_get_version(&version, sizeof(version)));
  EXPECT_GE(version.rt_major, 2u);
}

TEST(Lifecycle, StructsHaveTheDocumentedLayout) {
  EXPECT_EQ(sizeof(nrt_instance_info_t), 32u);
  EXPECT_EQ(sizeof(nrt_version_t), 224u);
  EXPECT_EQ(sizeof(nrt_tensor_batch_op_t), 24u);
  EXPECT_EQ(sizeof(nrt_tensor_batch_t), 24u);
  EXPECT_EQ(sizeof(nrt_tensor_device_allocation_info_t), 24u);
  EXPECT_EQ(sizeof(nrt_vnc_memory_stats_t), 16u);
  EXPECT_EQ(sizeof(nrt_tensor_info_t), 296u);
  EXPECT_EQ(offsetof(nrt_tensor_info_t, shape), 280u);
  EXPECT_EQ(sizeof(nrt_model_info_t), 4u);
}

TEST(Lifecycle, CallsOutsideInitAndCloseSaySo) {
  const Api& nrt = library();
  nrt_tensor_t* tensor = nullptr;
  const int before = nrt.nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, 64, "", &tensor);
  EXPECT_TRUE(before == NRT_UNINITIALIZED || before == NRT_CLOSED) << before;
  ASSERT_NRT(nrt.nrt_init(NRT_FRAMEWORK_TYPE_PYTORCH, "2.0", "1.0"));
  nrt.nrt_close();
  EXPECT_NRT(nrt.nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, 64, "", &tensor), NRT_CLOSED);
  EXPECT_EQ(tensor, nullptr);
  nrt.nrt_close();  // Harmless.
  // Again in the same process.
  ASSERT_NRT(nrt.nrt_init(NRT_FRAMEWORK_TYPE_PYTORCH, "2.0", "1.0"));
  EXPECT_NRT(nrt.nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, 64, "", &tensor), NRT_SUCCESS);
  nrt.nrt_tensor_free(&tensor);
  nrt.nrt_close();
}

TEST(Lifecycle, HandlesOutliveCloseWithoutHarm) {
  const Api& nrt = library();
  ASSERT_NRT(nrt.nrt_init(NRT_FRAMEWORK_TYPE_NO_FW, "", ""));
  nrt_tensor_t* tensor = nullptr;
  ASSERT_NRT(nrt.nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, 64, "", &tensor));
  nrt.nrt_close();
  char byte = 0;
  EXPECT_NRT(nrt.nrt_tensor_read(tensor, &byte, 0, 1), NRT_CLOSED);
  nrt.nrt_tensor_free(&tensor);
  EXPECT_EQ(tensor, nullptr);
}

// The environment of the simulator is read again at every init.
TEST(Lifecycle, EnvironmentChoosesCores) {
  const Api& nrt = library();
  if (!nrt.is_simulator) GTEST_SKIP() << "the environment belongs to the device";
  uint32_t count = 0;
  setenv("NEURON_RT_VISIBLE_CORES", "3-5", 1);
  ASSERT_NRT(nrt.nrt_get_visible_vnc_count(&count));
  EXPECT_EQ(count, 3u);
  setenv("NEURON_RT_VISIBLE_CORES", "60-64", 1);
  EXPECT_NRT(nrt.nrt_get_visible_vnc_count(&count), NRT_INVALID);
  setenv("NEURON_RT_VISIBLE_CORES", "nonsense", 1);
  EXPECT_NRT(nrt.nrt_init(NRT_FRAMEWORK_TYPE_NO_FW, "", ""), NRT_INVALID);
  EXPECT_NE(detail().find("NEURON_RT_VISIBLE_CORES"), std::string::npos) << detail();
  unsetenv("NEURON_RT_VISIBLE_CORES");
  setenv("NEURON_LOGICAL_NC_CONFIG", "1", 1);
  ASSERT_NRT(nrt.nrt_get_total_vnc_count(&count));
  EXPECT_EQ(count, 128u);
  unsetenv("NEURON_LOGICAL_NC_CONFIG");
  setenv("NEURON_RT_NUM_CORES", "5", 1);
  ASSERT_NRT(nrt.nrt_get_visible_vnc_count(&count));
  EXPECT_EQ(count, 5u);
  unsetenv("NEURON_RT_NUM_CORES");
  setenv("TORCH_NEURONX_TARGET", "trn3", 1);
  nrt_instance_info_t info{};
  ASSERT_NRT(nrt.nrt_get_instance_info(&info, sizeof(info)));
  EXPECT_EQ(info.family, 14u);
  unsetenv("TORCH_NEURONX_TARGET");
  ASSERT_NRT(nrt.nrt_get_total_vnc_count(&count));
  EXPECT_EQ(count, 64u);
}

TEST(Lifecycle, TwoLogicalCoresShareABankAtLnc1) {
  const Api& nrt = library();
  if (!nrt.is_simulator) GTEST_SKIP() << "the environment belongs to the device";
  setenv("NEURON_LOGICAL_NC_CONFIG", "1", 1);
  setenv("NEURON_SIM_CORES", "3", 1);
  ASSERT_NRT(nrt.nrt_init(NRT_FRAMEWORK_TYPE_NO_FW, "", ""));
  nrt_tensor_t* tensor = nullptr;
  ASSERT_NRT(nrt.nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, 1 << 20, "", &tensor));
  size_t used[3];
  for (uint32_t core = 0; core < 3; ++core) {
    nrt_vnc_memory_stats_t stats{};
    size_t written = 0;
    ASSERT_NRT(nrt.nrt_get_vnc_memory_stats(core, &stats, sizeof(stats), &written));
    used[core] = stats.bytes_used;
    EXPECT_EQ(stats.bytes_limit, 24ull << 30);
  }
  EXPECT_EQ(used[0], used[1]);
  EXPECT_EQ(used[2], 0u);
  nrt.nrt_tensor_free(&tensor);
  nrt.nrt_close();
  unsetenv("NEURON_LOGICAL_NC_CONFIG");
  unsetenv("NEURON_SIM_CORES");
}

}  // namespace
}  // namespace neuron::nrt::conformance
