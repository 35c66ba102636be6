#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "neuron/neff/program.h"
#include "neuron/nrt/nrt.h"
#include "neuron/nrtsim/library.h"
#include "neuron/nrtsim/object_loader.h"

extern "C" uint64_t nrtsim_device_time_ns(uint32_t vnc);
extern "C" NRT_STATUS nrtsim_set_faults(const char* spec);

namespace neuron::nrtsim {
namespace {

using Kind = neff::BufferRef::Kind;

std::vector<std::byte> test_object(const std::string& name) {
  std::stringstream paths(NRTSIM_TEST_OBJECTS);
  std::string path;
  while (std::getline(paths, path, ':')) {
    if (path.find(name) == std::string::npos) continue;
    std::ifstream file(path, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(file)), {});
    std::vector<std::byte> result(bytes.size());
    std::memcpy(result.data(), bytes.data(), bytes.size());
    return result;
  }
  return {};
}

neff::TensorInfo floats(int64_t count) { return {DType::f32, {count}, count * 4, -1}; }

// out = in + table * 2, over `count` floats.
neff::Program add_table(int64_t count, int64_t grain = 0) {
  neff::Program program;
  program.target = "trn2";
  program.parameters = {floats(count)};
  program.results = {floats(count)};
  program.kernels = {{{1, 1}, test_object("kernels")}};
  neff::Step step;
  step.kernel = {0, count, {{Kind::Parameter, 0, 0}, {Kind::Result, 0, 0}}, {2}, grain};
  step.work = {4.0 * count, 4.0 * count, 1.0 * count, 0};
  program.steps = {step};
  return program;
}

class ModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(nrt_init(NRT_FRAMEWORK_TYPE_NO_FW, "", ""), NRT_SUCCESS) << nrtsim_last_error();
  }
  void TearDown() override {
    nrtsim_set_faults("");
    nrt_close();
  }
  static nrt_model_t* load(const neff::Program& program) {
    const std::vector<std::byte> file = neff::write_neff(program);
    nrt_model_t* model = nullptr;
    EXPECT_EQ(nrt_load(file.data(), file.size(), 0, 1, &model), NRT_SUCCESS) << nrtsim_last_error();
    return model;
  }
  static nrt_tensor_set_t* set_of(std::vector<std::pair<const char*, nrt_tensor_t*>> tensors) {
    nrt_tensor_set_t* set = nullptr;
    nrt_allocate_tensor_set(&set);
    for (auto& [name, tensor] : tensors) nrt_add_tensor_to_tensor_set(set, name, tensor);
    return set;
  }
  static nrt_tensor_t* attached(void* data, size_t bytes) {
    nrt_tensor_t* tensor = nullptr;
    nrt_tensor_allocate_empty("", &tensor);
    nrt_tensor_attach_buffer(tensor, data, bytes);
    return tensor;
  }
};

TEST_F(ModelTest, RunsAGeneratedKernelOnAnySplit) {
  for (const int64_t grain : {0, 1, 7, 4096}) {
    constexpr int64_t kCount = 5000;
    nrt_model_t* model = load(add_table(kCount, grain));
    std::vector<float> in(kCount), out(kCount);
    for (int64_t i = 0; i < kCount; ++i) in[i] = static_cast<float>(i);
    nrt_tensor_t* x = attached(in.data(), kCount * 4);
    nrt_tensor_t* y = attached(out.data(), kCount * 4);
    nrt_tensor_set_t* inputs = set_of({{"input0", x}});
    nrt_tensor_set_t* outputs = set_of({{"output0", y}});
    ASSERT_EQ(nrt_execute(model, inputs, outputs), NRT_SUCCESS) << nrtsim_last_error();
    for (int64_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(out[i], in[i] + (1.5f + static_cast<float>(i & 7)) * 2) << i;
    }
    EXPECT_EQ(nrt_tensor_check_output_completion(y, 0, 1), NRT_SUCCESS);
    EXPECT_EQ(nrt_tensor_check_output_completion(y, 100, 2), NRT_TIMEOUT);
    nrt_destroy_tensor_set(&inputs);
    nrt_destroy_tensor_set(&outputs);
    nrt_tensor_free(&x);
    nrt_tensor_free(&y);
    EXPECT_EQ(nrt_unload(model), NRT_SUCCESS);
    EXPECT_EQ(nrt_unload(model), NRT_INVALID_HANDLE);
  }
  EXPECT_GT(nrtsim_device_time_ns(0), 0u);
}

TEST_F(ModelTest, SameSetsMayPointElsewhereAtEveryRun) {
  nrt_model_t* model = load(add_table(8));
  std::vector<float> in(16, 1.0f), out(16);
  nrt_tensor_t* x = attached(in.data(), 32);
  nrt_tensor_t* y = attached(out.data(), 32);
  nrt_tensor_set_t* inputs = set_of({{"input0", x}});
  nrt_tensor_set_t* outputs = set_of({{"output0", y}});
  ASSERT_EQ(nrt_execute(model, inputs, outputs), NRT_SUCCESS);
  nrt_tensor_attach_buffer(y, out.data() + 8, 32);
  ASSERT_EQ(nrt_execute(model, inputs, outputs), NRT_SUCCESS);
  EXPECT_EQ(out[0], 4.0f);
  EXPECT_EQ(out[8], 4.0f);

  nrt_tensor_attach_buffer(y, out.data(), 31);
  EXPECT_EQ(nrt_execute(model, inputs, outputs), NRT_INVALID);
  EXPECT_STREQ(nrtsim_last_error(), "tensor output0 has 31 bytes, the program needs 32");
  nrt_tensor_attach_buffer(y, out.data(), 32);

  nrt_tensor_set_t* none = set_of({});
  EXPECT_EQ(nrt_execute(model, none, outputs), NRT_EXEC_BAD_INPUT);
  EXPECT_STREQ(nrtsim_last_error(), "the input set has no tensor input0");

  constexpr int kRounds = 200000;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kRounds; ++i) {
    nrt_tensor_attach_buffer(x, in.data(), 32);
    nrt_tensor_attach_buffer(y, out.data(), 32);
    nrt_execute(model, inputs, outputs);
  }
  std::printf(
      "execute: %.0f ns\n",
      std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() /
          kRounds);
  nrt_destroy_tensor_set(&none);
  nrt_destroy_tensor_set(&inputs);
  nrt_destroy_tensor_set(&outputs);
  nrt_tensor_free(&x);
  nrt_tensor_free(&y);
  nrt_unload(model);
}

TEST_F(ModelTest, IndexOutOfRangeIsReportedAsSuch) {
  neff::Program program;
  program.parameters = {floats(4), {DType::i64, {3}, 24, -1}};
  program.results = {floats(3)};
  program.kernels = {{{2, 1}, test_object("kernels")}};
  neff::Step step;
  step.kernel = {0,
                 3,
                 {{Kind::Parameter, 0, 0},
                  {Kind::Parameter, 1, 0},
                  {Kind::Result, 0, 0},
                  {Kind::Status, 0, 0}},
                 {4, 1},
                 0};
  program.steps = {step};
  nrt_model_t* model = load(program);
  std::vector<float> in = {1, 2, 3, 4}, out(3);
  std::vector<int64_t> index = {3, 0, 4};
  nrt_tensor_t* tensors[] = {attached(in.data(), 16), attached(index.data(), 24),
                             attached(out.data(), 12)};
  nrt_tensor_set_t* inputs = set_of({{"input1", tensors[1]}, {"input0", tensors[0]}});
  nrt_tensor_set_t* outputs = set_of({{"output0", tensors[2]}});
  EXPECT_EQ(nrt_execute(model, inputs, outputs), NRT_EXEC_OOB);
  EXPECT_NE(std::string(nrtsim_last_error()).find("index out of range in step 0"),
            std::string::npos);
  index[2] = 1;
  EXPECT_EQ(nrt_execute(model, inputs, outputs), NRT_SUCCESS);
  EXPECT_EQ(out, (std::vector<float>{4, 1, 2}));
  nrt_destroy_tensor_set(&inputs);
  nrt_destroy_tensor_set(&outputs);
  for (nrt_tensor_t*& tensor : tensors) nrt_tensor_free(&tensor);
  nrt_unload(model);
}

// Scalars, constants, arena and a group of independent steps in one program.
TEST_F(ModelTest, GroupsOfStepsShareThePool) {
  constexpr int64_t kCount = 64, kSteps = 40;
  neff::Program program;
  program.scalar_count = 2;
  program.constants.resize(8);
  const float half = 0.5f;
  std::memcpy(program.constants.data() + 4, &half, 4);
  program.arena_bytes = kCount * 4 * kSteps;
  program.results = {floats(kCount * kSteps)};
  const std::vector<std::byte> object = test_object("kernels");
  program.kernels = {{{3, 1}, object}, {{1, 1}, object}};
  for (int64_t i = 0; i < kSteps; ++i) {
    neff::Step step;
    step.parallel_group = 1;
    step.kernel = {
        0,
        kCount,
        {{Kind::Scalars, 0, 16}, {Kind::Constant, 0, 4}, {Kind::Arena, 0, i * kCount * 4}},
        {},
        32};
    program.steps.push_back(step);
  }
  neff::Step last;
  last.kernel = {1, kCount * kSteps, {{Kind::Arena, 0, 0}, {Kind::Result, 0, 0}}, {0}, 100};
  program.steps.push_back(last);
  nrt_model_t* model = load(program);
  std::vector<float> out(kCount * kSteps);
  std::vector<double> scalars = {0, 0, 7, 0};
  nrt_tensor_t* y = attached(out.data(), out.size() * 4);
  nrt_tensor_t* s = attached(scalars.data(), 32);
  nrt_tensor_set_t* inputs = set_of({{"scalars", s}});
  nrt_tensor_set_t* outputs = set_of({{"output0", y}});
  for (int round = 0; round < 50; ++round) {
    scalars[2] = round;
    ASSERT_EQ(nrt_execute(model, inputs, outputs), NRT_SUCCESS) << nrtsim_last_error();
    for (int64_t i = 0; i < kCount * kSteps; ++i) {
      ASSERT_EQ(out[i], static_cast<float>(round + 0.5 * static_cast<double>(i % kCount)));
    }
  }
  nrt_destroy_tensor_set(&inputs);
  nrt_destroy_tensor_set(&outputs);
  nrt_tensor_free(&y);
  nrt_tensor_free(&s);
  nrt_unload(model);
}

TEST_F(ModelTest, SeveralThreadsRunOneModel) {
  nrt_model_t* model = load(add_table(1000, 50));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<float> in(1000, static_cast<float>(t)), out(1000);
      nrt_tensor_t* x = attached(in.data(), 4000);
      nrt_tensor_t* y = attached(out.data(), 4000);
      nrt_tensor_set_t* inputs = set_of({{"input0", x}});
      nrt_tensor_set_t* outputs = set_of({{"output0", y}});
      for (int i = 0; i < 200; ++i) {
        ASSERT_EQ(nrt_execute(model, inputs, outputs), NRT_SUCCESS);
        ASSERT_EQ(out[999], static_cast<float>(t) + 17.0f);
      }
      nrt_destroy_tensor_set(&inputs);
      nrt_destroy_tensor_set(&outputs);
      nrt_tensor_free(&x);
      nrt_tensor_free(&y);
    });
  }
  for (std::thread& thread : threads) thread.join();
  nrt_unload(model);
}

TEST_F(ModelTest, ObjectsThatAreNotSelfContainedAreRefused) {
  neff::Program program = add_table(4);
  program.kernels = {{{1, 2}, test_object("undefined")}};
  std::vector<std::byte> file = neff::write_neff(program);
  nrt_model_t* model = nullptr;
  EXPECT_EQ(nrt_load(file.data(), file.size(), 0, 1, &model), NRT_INVALID);
  EXPECT_EQ(model, nullptr);
  EXPECT_NE(std::string(nrtsim_last_error()).find("undefined symbol elsewhere"), std::string::npos)
      << nrtsim_last_error();
  // Unknown hash without code.
  program.kernels = {{{99, 99}, {}}};
  file = neff::write_neff(program);
  EXPECT_EQ(nrt_load(file.data(), file.size(), 0, 1, &model), NRT_INVALID);
  // Garbage, and every truncation of a good object.
  const std::vector<std::byte> good = test_object("kernels");
  for (size_t size = 1; size < good.size(); size += 13) {
    program.kernels = {{{77, size}, std::vector<std::byte>(good.begin(), good.begin() + size)}};
    file = neff::write_neff(program);
    EXPECT_EQ(nrt_load(file.data(), file.size(), 0, 1, &model), NRT_INVALID) << size;
  }
}

TEST_F(ModelTest, KnownKernelsNeedNoCode) {
  nrt_model_t* first = load(add_table(4));
  const LoaderStats before = loader_stats();
  neff::Program program = add_table(8);
  nrt_model_t* second = load(program);
  program.kernels[0].object.clear();
  nrt_model_t* third = load(program);
  EXPECT_EQ(loader_stats().objects, before.objects);
  nrt_unload(first);
  nrt_unload(second);
  nrt_unload(third);

  const std::vector<std::byte> file = neff::write_neff(program);
  constexpr int kRounds = 20000;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kRounds; ++i) {
    nrt_model_t* model = nullptr;
    nrt_load(file.data(), file.size(), 0, 1, &model);
    nrt_unload(model);
  }
  std::printf(
      "load and unload: %.2f us\n",
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() /
          kRounds);
}

TEST_F(ModelTest, ForeignAndBrokenNeffsAreRefused) {
  nrt_model_t* model = nullptr;
  const std::vector<std::byte> zeros(2000);
  EXPECT_EQ(nrt_load(zeros.data(), zeros.size(), 0, 1, &model), NRT_INVALID);
  neff::Program program = add_table(4);
  program.target = "trn3";
  std::vector<std::byte> file = neff::write_neff(program);
  EXPECT_EQ(nrt_load(file.data(), file.size(), 0, 1, &model), NRT_INVALID);
  EXPECT_STREQ(nrtsim_last_error(), "the NEFF is compiled for trn3, the simulator imitates trn2");
  program = add_table(4);
  neff::Step step;
  step.kind = neff::Step::Kind::Library;
  step.library.name = "no.such.kernel";
  program.steps.push_back(step);
  file = neff::write_neff(program);
  EXPECT_EQ(nrt_load(file.data(), file.size(), 0, 1, &model), NRT_INVALID);
  EXPECT_EQ(nrt_load(file.data(), file.size(), 5, 1, &model), NRT_INVALID);
  EXPECT_STREQ(nrtsim_last_error(), "core 5, but this process owns cores 0 to 1");
}

int g_prepared = 0;
int g_destroyed = 0;

TEST_F(ModelTest, LibraryKernelsComeFromTheTable) {
  nrtsim_lib_kernel_t kernel{};
  kernel.struct_size = sizeof(kernel);
  kernel.prepare = [](const nrtsim_lib_call_t*) -> void* {
    ++g_prepared;
    return &g_prepared;
  };
  kernel.destroy = [](void*) { ++g_destroyed; };
  kernel.run = [](void*, const nrtsim_lib_call_t* call, void* const* inputs, void* const* outputs,
                  const nrtsim_lib_context_t* context, char* message, size_t bytes) {
    if (call->ints[0] == 13) {
      std::snprintf(message, bytes, "unlucky");
      return static_cast<int>(NRT_FAILURE);
    }
    struct Job {
      const float* in;
      float* out;
      float add;
    } job = {static_cast<const float*>(inputs[0]), static_cast<float*>(outputs[0]),
             static_cast<float>(call->ints[0])};
    context->parallel_for(
        [](void* user, int64_t begin, int64_t end) {
          auto* j = static_cast<Job*>(user);
          for (int64_t i = begin; i < end; ++i) j->out[i] = j->in[i] + j->add;
        },
        &job, call->inputs[0].sizes[0], 2);
    return 0;
  };
  nrtsim_register_kernel("test.*", &kernel);
  neff::Program program;
  program.parameters = {floats(6)};
  program.results = {floats(6)};
  neff::Step step;
  step.kind = neff::Step::Kind::Library;
  step.library = {"test.add",
                  {{{Kind::Parameter, 0, 0}, DType::f32, {6}, {1}}},
                  {{{Kind::Result, 0, 0}, DType::f32, {6}, {1}}},
                  {5},
                  {}};
  program.steps = {step};
  nrt_model_t* model = load(program);
  EXPECT_EQ(g_prepared, 1);
  std::vector<float> in = {1, 2, 3, 4, 5, 6}, out(6);
  nrt_tensor_t* x = attached(in.data(), 24);
  nrt_tensor_t* y = attached(out.data(), 24);
  nrt_tensor_set_t* inputs = set_of({{"input0", x}});
  nrt_tensor_set_t* outputs = set_of({{"output0", y}});
  ASSERT_EQ(nrt_execute(model, inputs, outputs), NRT_SUCCESS) << nrtsim_last_error();
  EXPECT_EQ(out, (std::vector<float>{6, 7, 8, 9, 10, 11}));
  nrt_unload(model);
  EXPECT_EQ(g_destroyed, 1);
  program.steps[0].library.ints = {13};
  model = load(program);
  EXPECT_EQ(nrt_execute(model, inputs, outputs), NRT_FAILURE);
  EXPECT_STREQ(nrtsim_last_error(), "test.add: unlucky");
  nrt_unload(model);
  nrt_destroy_tensor_set(&inputs);
  nrt_destroy_tensor_set(&outputs);
  nrt_tensor_free(&x);
  nrt_tensor_free(&y);
}

TEST_F(ModelTest, InjectedFaultsStrikeOnceOrAlways) {
  nrt_model_t* model = load(add_table(4));
  std::vector<float> in(4), out(4);
  nrt_tensor_t* x = attached(in.data(), 16);
  nrt_tensor_t* y = attached(out.data(), 16);
  nrt_tensor_set_t* inputs = set_of({{"input0", x}});
  nrt_tensor_set_t* outputs = set_of({{"output0", y}});
  ASSERT_EQ(nrtsim_set_faults("nrt_execute:NRT_EXEC_NC_BUSY@2,nrt_tensor_allocate:4@*"),
            NRT_SUCCESS);
  EXPECT_EQ(nrt_execute(model, inputs, outputs), NRT_SUCCESS);
  EXPECT_EQ(nrt_execute(model, inputs, outputs), NRT_EXEC_NC_BUSY);
  EXPECT_EQ(nrt_execute(model, inputs, outputs), NRT_SUCCESS);
  nrt_tensor_t* tensor = nullptr;
  EXPECT_EQ(nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, 64, "", &tensor), NRT_RESOURCE);
  EXPECT_EQ(nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, 64, "", &tensor), NRT_RESOURCE);
  for (const char* bad :
       {"nrt_execute", "nrt_foo:4", "nrt_load:x", "nrt_load:4@0", ":", "nrt_load:0"}) {
    EXPECT_EQ(nrtsim_set_faults(bad), NRT_INVALID) << bad;
  }
  // A timeout ends the core until the runtime restarts.
  ASSERT_EQ(nrtsim_set_faults("nrt_execute:TIMEOUT"), NRT_SUCCESS);
  EXPECT_EQ(nrt_execute(model, inputs, outputs), NRT_TIMEOUT);
  EXPECT_EQ(nrt_execute(model, inputs, outputs), NRT_EXEC_UNIT_UNRECOVERABLE);
  nrt_close();
  EXPECT_EQ(nrt_execute(model, inputs, outputs), NRT_CLOSED);
  ASSERT_EQ(nrt_init(NRT_FRAMEWORK_TYPE_NO_FW, "", ""), NRT_SUCCESS);
  nrt_destroy_tensor_set(&inputs);
  nrt_destroy_tensor_set(&outputs);
  nrt_tensor_free(&x);
  nrt_tensor_free(&y);
  nrt_unload(model);
}

}  // namespace
}  // namespace neuron::nrtsim
