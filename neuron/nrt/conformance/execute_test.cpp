#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "neuron/nrt/conformance/suite.h"

namespace neuron::nrt::conformance {
namespace {

class ExecuteTest : public Opened {
 protected:
  static constexpr int64_t kCount = 1000;

  void SetUp() override {
    Opened::SetUp();
    model_ = load_add(kCount);
    if (model_ == nullptr) GTEST_SKIP() << "no compiler for " << nrt.path;
    for (nrt_tensor_t*& tensor : io_) tensor = device_tensor(kCount * 4);
    inputs_ = make_set({{"input0", io_[0]}, {"input1", io_[1]}});
    outputs_ = make_set({{"output0", io_[2]}});
    write(io_[0], 1);
    write(io_[1], 2);
    write(io_[2], 0);
  }
  void write(nrt_tensor_t* tensor, float value) {
    const std::vector<float> data(kCount, value);
    EXPECT_NRT(nrt.nrt_tensor_write(tensor, data.data(), 0, kCount * 4), NRT_SUCCESS);
  }
  float read(nrt_tensor_t* tensor) {
    float value = -1;
    EXPECT_NRT(nrt.nrt_tensor_read(tensor, &value, (kCount - 1) * 4, 4), NRT_SUCCESS);
    return value;
  }

  nrt_model_t* model_ = nullptr;
  nrt_tensor_t* io_[3] = {};
  nrt_tensor_set_t* inputs_ = nullptr;
  nrt_tensor_set_t* outputs_ = nullptr;
};

TEST_F(ExecuteTest, RunsAProgram) {
  EXPECT_NRT(nrt.nrt_execute(model_, inputs_, outputs_), NRT_SUCCESS);
  EXPECT_EQ(read(io_[2]), 3);
  write(io_[0], 10);
  EXPECT_NRT(nrt.nrt_execute(model_, inputs_, outputs_), NRT_SUCCESS);
  EXPECT_EQ(read(io_[2]), 12);
}

TEST_F(ExecuteTest, DescribesTheProgramsTensors) {
  if (nrt.nrt_get_model_tensor_info == nullptr) GTEST_SKIP();
  nrt_tensor_info_array_t* info = nullptr;
  ASSERT_NRT(nrt.nrt_get_model_tensor_info(model_, &info));
  ASSERT_EQ(info->tensor_count, 3u);
  EXPECT_STREQ(info->tensor_array[0].name, "input0");
  EXPECT_STREQ(info->tensor_array[2].name, "output0");
  EXPECT_EQ(info->tensor_array[2].usage, NRT_TENSOR_USAGE_OUTPUT);
  EXPECT_EQ(info->tensor_array[1].size, kCount * 4u);
  EXPECT_EQ(info->tensor_array[1].dtype, NRT_DTYPE_FLOAT32);
  ASSERT_EQ(info->tensor_array[1].ndim, 1u);
  EXPECT_EQ(info->tensor_array[1].shape[0], kCount);
  EXPECT_NRT(nrt.nrt_free_model_tensor_info(info), NRT_SUCCESS);
  nrt_model_info_t model_info{};
  size_t written = 0;
  EXPECT_NRT(nrt.nrt_get_model_info(model_, &model_info, sizeof(model_info), &written),
             NRT_SUCCESS);
  EXPECT_EQ(model_info.vnc, 0u);
}

TEST_F(ExecuteTest, WrongSetsAreRefused) {
  nrt_tensor_set_t* half = make_set({{"input0", io_[0]}});
  EXPECT_NRT(nrt.nrt_execute(model_, half, outputs_), NRT_EXEC_BAD_INPUT);
  nrt_tensor_set_t* small = make_set({{"input0", io_[0]}, {"input1", device_tensor(16)}});
  EXPECT_NRT(nrt.nrt_execute(model_, small, outputs_), NRT_INVALID);
  EXPECT_NRT(nrt.nrt_execute(nullptr, inputs_, outputs_), NRT_INVALID_HANDLE);
  EXPECT_NRT(nrt.nrt_execute(model_, nullptr, outputs_), NRT_INVALID_HANDLE);
}

TEST_F(ExecuteTest, SlicesServeAsTensors) {
  nrt_tensor_t* big = device_tensor(kCount * 12);
  nrt_tensor_t* slice = nullptr;
  ASSERT_NRT(nrt.nrt_tensor_allocate_slice(big, kCount * 8, kCount * 4, "", &slice));
  tensors_.push_back(slice);
  nrt_tensor_set_t* outputs = make_set({{"output0", slice}});
  EXPECT_NRT(nrt.nrt_execute(model_, inputs_, outputs), NRT_SUCCESS);
  EXPECT_EQ(read(slice), 3);
}

TEST_F(ExecuteTest, LoadChecksItsArguments) {
  const std::vector<std::byte> neff = add_program(4);
  nrt_model_t* model = nullptr;
  EXPECT_NRT(nrt.nrt_load(neff.data(), neff.size(), 4000, 1, &model), NRT_INVALID);
  EXPECT_NRT(nrt.nrt_load(nullptr, 10, 0, 1, &model), NRT_INVALID);
  EXPECT_NRT(nrt.nrt_load(neff.data(), neff.size() / 2, 0, 1, &model), NRT_INVALID);
  const std::vector<std::byte> garbage(4096, std::byte{0x5A});
  EXPECT_NRT(nrt.nrt_load(garbage.data(), garbage.size(), 0, 1, &model), NRT_INVALID);
  EXPECT_EQ(model, nullptr);
  // Both spellings of one core that callers use.
  for (const int count : {1, -1}) {
    ASSERT_NRT(nrt.nrt_load(neff.data(), neff.size(), 0, count, &model));
    EXPECT_NRT(nrt.nrt_unload(model), NRT_SUCCESS);
  }
}

TEST_F(ExecuteTest, IndexOutOfRangeHasItsOwnStatus) {
  const std::vector<std::byte> neff = gather_program();
  nrt_model_t* model = nullptr;
  ASSERT_NRT(nrt.nrt_load(neff.data(), neff.size(), 0, 1, &model));
  models_.push_back(model);
  nrt_tensor_t* index = device_tensor(24);
  int64_t items[] = {0, 4, 1};
  nrt.nrt_tensor_write(index, items, 0, 24);
  nrt_tensor_set_t* inputs = make_set({{"input0", io_[0]}, {"input1", index}});
  EXPECT_NRT(nrt.nrt_execute(model, inputs, outputs_), NRT_EXEC_OOB);
  items[1] = 3;
  nrt.nrt_tensor_write(index, items, 0, 24);
  EXPECT_NRT(nrt.nrt_execute(model, inputs, outputs_), NRT_SUCCESS);
}

TEST_F(ExecuteTest, ThreadsShareOneModel) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    nrt_tensor_t* out = device_tensor(kCount * 4);
    nrt_tensor_set_t* outputs = make_set({{"output0", out}});
    threads.emplace_back([this, out, outputs] {
      for (int i = 0; i < 100; ++i) ASSERT_NRT(nrt.nrt_execute(model_, inputs_, outputs));
      EXPECT_EQ(read(out), 3);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// --- Asynchronous --------------------------------------------------------------------------------

class AsyncTest : public ExecuteTest {
 protected:
  void SetUp() override {
    ExecuteTest::SetUp();
    if (model_ != nullptr && nrt.nrta_execute_schedule == nullptr) GTEST_SKIP() << "no async calls";
  }
  void wait(nrta_seq_t seq) {
    bool done = false;
    for (int i = 0; i < 100000 && !done; ++i) {
      ASSERT_NRT(nrt.nrta_is_completed(seq, &done));
      if (!done) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    ASSERT_TRUE(done);
  }
};

TEST_F(AsyncTest, SetsMayBeDestroyedRightAfterScheduling) {
  NRT_STATUS status = NRT_FAILURE;
  nrta_seq_t seq = 0;
  nrt_tensor_set_t* in = nullptr;
  nrt_tensor_set_t* out = nullptr;
  ASSERT_NRT(nrt.nrt_allocate_tensor_set(&in));
  ASSERT_NRT(nrt.nrt_allocate_tensor_set(&out));
  nrt.nrt_add_tensor_to_tensor_set(in, "input0", io_[0]);
  nrt.nrt_add_tensor_to_tensor_set(in, "input1", io_[1]);
  nrt.nrt_add_tensor_to_tensor_set(out, "output0", io_[2]);
  ASSERT_NRT(nrt.nrta_execute_schedule(model_, in, out, 0, &status, &seq));
  nrt.nrt_destroy_tensor_set(&in);
  nrt.nrt_destroy_tensor_set(&out);
  wait(seq);
  EXPECT_EQ(status, NRT_SUCCESS);
  EXPECT_EQ(read(io_[2]), 3);
}

TEST_F(AsyncTest, OneQueueKeepsOrder) {
  std::vector<NRT_STATUS> statuses(20, NRT_FAILURE);
  nrta_seq_t last = 0, before = 0;
  std::vector<float> data(kCount, 5), result(kCount);
  for (int i = 0; i < 20; ++i) {
    ASSERT_NRT(nrt.nrta_execute_schedule(model_, inputs_, outputs_, 0, &statuses[i], &last));
    EXPECT_GT(NRTA_SEQ_NUMBER(last), NRTA_SEQ_NUMBER(before));
    before = last;
  }
  wait(last);
  for (const NRT_STATUS status : statuses) EXPECT_EQ(status, NRT_SUCCESS);
  nrta_seq_t completed = 0;
  EXPECT_NRT(nrt.nrta_get_sequence(0, NRTA_XU_COMPUTE, 0, &completed), NRT_SUCCESS);
  EXPECT_EQ(completed, last);

  NRT_STATUS write_status = NRT_FAILURE, copy_status = NRT_FAILURE, read_status = NRT_FAILURE;
  nrta_seq_t seq = 0;
  ASSERT_NRT(nrt.nrta_tensor_write(io_[0], data.data(), 0, kCount * 4, 0, 0, &write_status, &seq));
  ASSERT_NRT(nrt.nrta_tensor_copy(io_[0], 0, io_[1], 0, kCount * 4, 0, 0, &copy_status, &seq));
  ASSERT_NRT(nrt.nrta_tensor_read(result.data(), io_[1], 0, kCount * 4, 0, 0, &read_status, &seq));
  wait(seq);
  EXPECT_EQ(write_status, NRT_SUCCESS);
  EXPECT_EQ(copy_status, NRT_SUCCESS);
  EXPECT_EQ(read_status, NRT_SUCCESS);
  EXPECT_EQ(result, data);
}

TEST_F(AsyncTest, FullQueueSaysSo) {
  if (nrt.nrtsim_set_faults == nullptr) GTEST_SKIP() << "needs slow executions";
  nrt.nrtsim_set_faults("nrt_execute:delay=3000@*");
  std::vector<NRT_STATUS> statuses(200, NRT_FAILURE);
  nrta_seq_t seq = 0;
  int accepted = 0, status = NRT_SUCCESS;
  while (status == NRT_SUCCESS && accepted < 200) {
    status = nrt.nrta_execute_schedule(model_, inputs_, outputs_, 0, &statuses[accepted], &seq);
    if (status == NRT_SUCCESS) ++accepted;
  }
  EXPECT_EQ(status, NRT_QUEUE_FULL);
  EXPECT_GE(accepted, 2);
  nrt.nrtsim_set_faults("");
  wait(seq);
}

TEST_F(AsyncTest, EventDescriptorsSignalCompletion) {
  if (nrt.nrta_event_register_seq_id_completion == nullptr) GTEST_SKIP();
  const int descriptor = eventfd(0, EFD_CLOEXEC);
  ASSERT_GE(descriptor, 0);
  nrta_seq_t seq = 0;
  NRT_STATUS status = NRT_FAILURE;
  const auto signalled = [&] {
    pollfd entry = {descriptor, POLLIN, 0};
    if (poll(&entry, 1, 5000) != 1) return false;
    uint64_t count = 0;
    return ::read(descriptor, &count, sizeof(count)) == sizeof(count) && count > 0;
  };
  ASSERT_NRT(nrt.nrta_execute_schedule(model_, inputs_, outputs_, 0, &status, &seq));
  ASSERT_NRT(nrt.nrta_event_register_seq_id_completion(seq, descriptor));
  EXPECT_TRUE(signalled());
  EXPECT_EQ(status, NRT_SUCCESS);
  // Completed long ago: signals at once.
  ASSERT_NRT(nrt.nrta_event_register_seq_id_completion(seq, descriptor));
  EXPECT_TRUE(signalled());
  ASSERT_NRT(nrt.nrta_event_register_xu_completion(0, NRTA_XU_COMPUTE, 0, descriptor));
  ASSERT_NRT(nrt.nrta_execute_schedule(model_, inputs_, outputs_, 0, &status, &seq));
  EXPECT_TRUE(signalled());
  ASSERT_NRT(nrt.nrta_event_register_xu_completion(0, NRTA_XU_COMPUTE, 0, -1));
  close(descriptor);
}

TEST_F(AsyncTest, UnknownUnitsAndSequencesAreRefused) {
  bool done = false;
  EXPECT_NRT(nrt.nrta_is_completed(nrta_seq_t{9999} << 48 | 1, &done), NRT_INVALID);
  nrta_seq_t seq = 0;
  EXPECT_NRT(nrt.nrta_get_sequence(0, static_cast<nrta_xu_t>(3), 0, &seq), NRT_INVALID);
  EXPECT_NRT(nrt.nrta_get_sequence(0, NRTA_XU_COMPUTE, 1, &seq), NRT_INVALID);
}

TEST_F(AsyncTest, FailureIsWrittenToTheStatusWord) {
  if (nrt.nrtsim_set_faults == nullptr) GTEST_SKIP() << "needs injected faults";
  nrt.nrtsim_set_faults("nrt_execute:NRT_EXEC_COMPLETED_WITH_ERR");
  nrta_seq_t seq = 0;
  NRT_STATUS status = NRT_SUCCESS;
  ASSERT_NRT(nrt.nrta_execute_schedule(model_, inputs_, outputs_, 0, &status, &seq));
  wait(seq);
  EXPECT_EQ(status, NRT_EXEC_COMPLETED_WITH_ERR);
}

TEST_F(ExecuteTest, DeviceClockMovesWithWork) {
  if (nrt.nrtsim_device_time_ns == nullptr) GTEST_SKIP();
  const uint64_t before = nrt.nrtsim_device_time_ns(0);
  EXPECT_NRT(nrt.nrt_execute(model_, inputs_, outputs_), NRT_SUCCESS);
  EXPECT_GT(nrt.nrtsim_device_time_ns(0), before);
}

}  // namespace
}  // namespace neuron::nrt::conformance
