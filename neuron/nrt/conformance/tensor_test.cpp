#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>

#include "neuron/nrt/conformance/suite.h"

namespace neuron::nrt::conformance {
namespace {

class TensorTest : public Opened {};

TEST_F(TensorTest, KeepsWhatIsWritten) {
  for (const size_t bytes : {size_t{1}, size_t{100}, size_t{4096}, size_t{5} << 20}) {
    nrt_tensor_t* tensor = device_tensor(bytes);
    EXPECT_EQ(nrt.nrt_tensor_get_size(tensor), bytes);
    EXPECT_NE(nrt.nrt_tensor_get_va(tensor), nullptr);
    std::vector<uint8_t> in(bytes), out(bytes);
    for (size_t i = 0; i < bytes; ++i) in[i] = static_cast<uint8_t>(i * 31);
    EXPECT_NRT(nrt.nrt_tensor_write(tensor, in.data(), 0, bytes), NRT_SUCCESS);
    EXPECT_NRT(nrt.nrt_tensor_read(tensor, out.data(), 0, bytes), NRT_SUCCESS);
    EXPECT_EQ(in, out);
  }
}

TEST_F(TensorTest, AddressesAreUnique) {
  EXPECT_NE(nrt.nrt_tensor_get_va(device_tensor(64)), nrt.nrt_tensor_get_va(device_tensor(64)));
}

TEST_F(TensorTest, RangesAreChecked) {
  nrt_tensor_t* tensor = device_tensor(64);
  char buffer[128] = {};
  EXPECT_NRT(nrt.nrt_tensor_write(tensor, buffer, 60, 4), NRT_SUCCESS);
  EXPECT_NRT(nrt.nrt_tensor_write(tensor, buffer, 61, 4), NRT_INVALID);
  EXPECT_NRT(nrt.nrt_tensor_read(tensor, buffer, 0, 65), NRT_INVALID);
  EXPECT_NRT(nrt.nrt_tensor_read(tensor, buffer, SIZE_MAX, 2), NRT_INVALID);
  EXPECT_NRT(nrt.nrt_tensor_write(tensor, buffer, 64, 0), NRT_SUCCESS);
}

TEST_F(TensorTest, WrongArgumentsAreRefused) {
  nrt_tensor_t* tensor = nullptr;
  EXPECT_NRT(nrt.nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 4000, 64, "", &tensor),
             NRT_INVALID);
  EXPECT_NRT(nrt.nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, -1, 64, "", &tensor),
             NRT_INVALID);
  EXPECT_NRT(nrt.nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, 64, "", nullptr), NRT_INVALID);
  EXPECT_EQ(tensor, nullptr);
  nrt.nrt_tensor_free(&tensor);
  nrt.nrt_tensor_free(nullptr);
}

TEST_F(TensorTest, SlicesShareMemoryAndOutliveTheirSource) {
  nrt_tensor_t* tensor = nullptr;
  ASSERT_NRT(nrt.nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, 256, "t", &tensor));
  nrt_tensor_t* slice = nullptr;
  ASSERT_NRT(nrt.nrt_tensor_allocate_slice(tensor, 100, 50, "s", &slice));
  nrt_tensor_t* inner = nullptr;
  ASSERT_NRT(nrt.nrt_tensor_allocate_slice(slice, 10, 5, "i", &inner));
  nrt_tensor_t* bad = nullptr;
  EXPECT_NRT(nrt.nrt_tensor_allocate_slice(tensor, 250, 7, "b", &bad), NRT_INVALID);
  EXPECT_EQ(bad, nullptr);
  const char text[] = "abcde";
  EXPECT_NRT(nrt.nrt_tensor_write(tensor, text, 110, 5), NRT_SUCCESS);
  EXPECT_EQ(nrt.nrt_tensor_get_size(inner), 5u);
  nrt.nrt_tensor_free(&tensor);
  EXPECT_EQ(tensor, nullptr);
  nrt.nrt_tensor_free(&slice);
  char out[6] = {};
  EXPECT_NRT(nrt.nrt_tensor_read(inner, out, 0, 5), NRT_SUCCESS);
  EXPECT_STREQ(out, "abcde");
  nrt.nrt_tensor_free(&inner);
}

TEST_F(TensorTest, EmptyTensorsTakeTheCallersMemory) {
  nrt_tensor_t* tensor = nullptr;
  ASSERT_NRT(nrt.nrt_tensor_allocate_empty("e", &tensor));
  tensors_.push_back(tensor);
  char out[4] = {};
  EXPECT_NRT(nrt.nrt_tensor_read(tensor, out, 0, 4), NRT_INVALID);
  char memory[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  ASSERT_NRT(nrt.nrt_tensor_attach_buffer(tensor, memory, 8));
  EXPECT_EQ(nrt.nrt_tensor_get_size(tensor), 8u);
  EXPECT_NRT(nrt.nrt_tensor_read(tensor, out, 4, 4), NRT_SUCCESS);
  EXPECT_EQ(out[3], 8);
  ASSERT_NRT(nrt.nrt_tensor_attach_buffer(tensor, memory + 4, 4));
  EXPECT_EQ(nrt.nrt_tensor_get_size(tensor), 4u);
}

TEST_F(TensorTest, CopyAndMemset) {
  nrt_tensor_t* a = device_tensor(64);
  nrt_tensor_t* b = device_tensor(64);
  if (nrt.nrt_tensor_memset != nullptr) {
    EXPECT_NRT(nrt.nrt_tensor_memset(a, 0, 7, 64), NRT_SUCCESS);
    EXPECT_NRT(nrt.nrt_tensor_memset(a, 60, 7, 5), NRT_INVALID);
  }
  EXPECT_NRT(nrt.nrt_tensor_memset(b, 0, 0, 64), NRT_SUCCESS);
  EXPECT_NRT(nrt.nrt_tensor_copy(a, 0, b, 8, 4), NRT_SUCCESS);
  char out[64];
  EXPECT_NRT(nrt.nrt_tensor_read(b, out, 0, 64), NRT_SUCCESS);
  EXPECT_EQ(std::accumulate(out, out + 64, 0), 28);
  EXPECT_NRT(nrt.nrt_tensor_copy(a, 62, b, 0, 4), NRT_INVALID);
  uint32_t visible = 0;
  nrt.nrt_get_visible_vnc_count(&visible);
  if (visible > 1) {
    EXPECT_NRT(nrt.nrt_tensor_copy(a, 0, device_tensor(64, 1), 0, 4), NRT_INVALID);
  }
}

TEST_F(TensorTest, BatchesReadAndWrite) {
  if (nrt.nrt_tensor_read_batch == nullptr) GTEST_SKIP();
  nrt_tensor_t* tensor = device_tensor(16);
  char in[] = "0123456789abcdef", out[16] = {};
  const nrt_tensor_batch_op_t writes[] = {{8, 8, in + 8}, {0, 8, in}};
  const nrt_tensor_batch_t write = {tensor, writes, 2};
  EXPECT_NRT(nrt.nrt_tensor_write_batch(&write, 1, false), NRT_SUCCESS);
  const nrt_tensor_batch_op_t reads[] = {{4, 4, out}, {12, 4, out + 4}};
  const nrt_tensor_batch_t read = {tensor, reads, 2};
  EXPECT_NRT(nrt.nrt_tensor_read_batch(&read, 1, true), NRT_SUCCESS);
  EXPECT_STREQ(out, "4567cdef");
}

TEST_F(TensorTest, MemoryIsAccountedAndLimited) {
  if (nrt.nrt_get_vnc_memory_stats == nullptr) GTEST_SKIP();
  const auto used = [&] {
    nrt_vnc_memory_stats_t stats{};
    size_t written = 0;
    EXPECT_NRT(nrt.nrt_get_vnc_memory_stats(0, &stats, sizeof(stats), &written), NRT_SUCCESS);
    EXPECT_EQ(written, sizeof(stats));
    EXPECT_LE(stats.bytes_used, stats.bytes_limit);
    return stats;
  };
  const size_t before = used().bytes_used;
  nrt_tensor_t* tensor = nullptr;
  ASSERT_NRT(nrt.nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, 10 << 20, "", &tensor));
  EXPECT_GE(used().bytes_used, before + (10 << 20));
  nrt_tensor_t* slice = nullptr;
  ASSERT_NRT(nrt.nrt_tensor_allocate_slice(tensor, 0, 1, "", &slice));
  nrt.nrt_tensor_free(&tensor);
  EXPECT_GE(used().bytes_used, before + (10 << 20));  // The slice keeps it.
  nrt.nrt_tensor_free(&slice);
  EXPECT_EQ(used().bytes_used, before);
  // More than there is.
  EXPECT_NRT(
      nrt.nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, used().bytes_limit + 1, "", &tensor),
      NRT_RESOURCE);
  EXPECT_EQ(used().bytes_used, before);
  nrt_vnc_memory_stats_t stats{};
  size_t written = 0;
  EXPECT_NRT(nrt.nrt_get_vnc_memory_stats(4000, &stats, sizeof(stats), &written), NRT_INVALID);
}

TEST_F(TensorTest, HostTensorsTakeNoHbm) {
  nrt_vnc_memory_stats_t before{}, after{};
  size_t written = 0;
  nrt.nrt_get_vnc_memory_stats(0, &before, sizeof(before), &written);
  nrt_tensor_t* tensor = nullptr;
  ASSERT_NRT(nrt.nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_HOST, 0, 4096, "", &tensor));
  tensors_.push_back(tensor);
  nrt.nrt_get_vnc_memory_stats(0, &after, sizeof(after), &written);
  EXPECT_EQ(before.bytes_used, after.bytes_used);
  nrt_tensor_device_allocation_info_t info{};
  EXPECT_NRT(nrt.nrt_tensor_get_device_allocation_info(tensor, &info), NRT_INVALID);
  EXPECT_NRT(nrt.nrt_tensor_get_device_allocation_info(device_tensor(64), &info), NRT_SUCCESS);
  EXPECT_GE(info.size, 64u);
}

TEST_F(TensorTest, SetsNameTheirTensors) {
  nrt_tensor_t* a = device_tensor(8);
  nrt_tensor_t* b = device_tensor(8);
  nrt_tensor_set_t* set = make_set({{"x", a}});
  nrt_tensor_t* found = nullptr;
  EXPECT_NRT(nrt.nrt_get_tensor_from_tensor_set(set, "x", &found), NRT_SUCCESS);
  EXPECT_EQ(found, a);
  EXPECT_NRT(nrt.nrt_add_tensor_to_tensor_set(set, "x", b), NRT_SUCCESS);  // Replaces.
  EXPECT_NRT(nrt.nrt_get_tensor_from_tensor_set(set, "x", &found), NRT_SUCCESS);
  EXPECT_EQ(found, b);
  EXPECT_NRT(nrt.nrt_get_tensor_from_tensor_set(set, "y", &found), NRT_FAILURE);
}

TEST_F(TensorTest, ThreadsAllocateSideBySide) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this] {
      for (int i = 0; i < 50; ++i) {
        nrt_tensor_t* tensor = nullptr;
        ASSERT_NRT(nrt.nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, 10000, "", &tensor));
        const int value = i;
        int back = -1;
        ASSERT_NRT(nrt.nrt_tensor_write(tensor, &value, 5000, sizeof(value)));
        ASSERT_NRT(nrt.nrt_tensor_read(tensor, &back, 5000, sizeof(back)));
        ASSERT_EQ(back, value);
        nrt.nrt_tensor_free(&tensor);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace neuron::nrt::conformance
