#include "neuron/runtime/program.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "neuron/base/error.h"
#include "neuron/hlo/builder.h"
#include "neuron/neff/program.h"
#include "neuron/nrtsim/library.h"
#include "neuron/runtime/device.h"
#include "neuron/runtime/executor.h"
#include "neuron/runtime/program_cache.h"
#include "neuron/runtime/runtime.h"

namespace neuron::runtime {
namespace {

// --- A library kernel: every output is the sum of the inputs; status codes on request -----------

std::atomic<int> g_runs{0};
std::atomic<int> g_next_status{0};
std::atomic<bool> g_hold{false};

int run_sum(void*, const nrtsim_lib_call_t* call, void* const* inputs, void* const* outputs,
            const nrtsim_lib_context_t*, char* message, size_t message_bytes) {
  while (g_hold) std::this_thread::yield();
  ++g_runs;
  if (const int status = g_next_status.exchange(0); status != 0) {
    std::snprintf(message, message_bytes, "index 9 is out of range");
    return status;
  }
  int64_t count = 1;
  for (uint32_t d = 0; d < call->outputs[0].rank; ++d) count *= call->outputs[0].sizes[d];
  const bool has_scalar = call->int_count > 0 && call->ints[0] != 0;
  const uint32_t tensors = call->input_count - (has_scalar ? 1 : 0);
  const double added =
      has_scalar ? *static_cast<const double*>(inputs[call->input_count - 1]) : 0.0;
  for (int64_t i = 0; i < count; ++i) {
    float sum = static_cast<float>(added);
    for (uint32_t t = 0; t < tensors; ++t) sum += static_cast<const float*>(inputs[t])[i];
    static_cast<float*>(outputs[0])[i] = sum;
  }
  return 0;
}

const nrtsim_lib_kernel_t kSumKernel = {sizeof(nrtsim_lib_kernel_t), nullptr, run_sum, nullptr};

// --- A compiler that turns any module into one call of that kernel
// --------------------------------

class FakeCompiler : public compiler::Compiler {
 public:
  std::string_view name() const override { return "fake"; }
  compiler::CompilerStats stats() const override {
    compiler::CompilerStats stats;
    stats.kernels = static_cast<uint64_t>(calls);
    return stats;
  }
  std::vector<std::byte> compile(const hlo::Module& module) override {
    ++calls;
    while (hold) std::this_thread::yield();
    if (fail) raise(ErrorKind::kUnsupported, "no such thing");
    using Kind = neff::BufferRef::Kind;
    neff::Program program;
    program.target = "trn2";
    neff::Step step;
    step.kind = neff::Step::Kind::Library;
    step.library.name = "test.sum";
    const auto tensor = [](Kind kind, uint32_t index, const hlo::Type& type) {
      return neff::LibraryTensor{
          {kind, index, 0}, type.dtype, type.dims, contiguous_strides(type.dims)};
    };
    const auto info = [](const hlo::Type& type) {
      return neff::TensorInfo{type.dtype, type.dims,
                              count_elements(type.dims) * static_cast<int64_t>(size_of(type.dtype)),
                              -1};
    };
    for (uint32_t i = 0; i < module.parameters().size(); ++i) {
      const hlo::Type& type = module.parameters()[i].type;
      program.parameters.push_back(info(type));
      step.library.inputs.push_back(tensor(Kind::Parameter, i, type));
    }
    program.scalar_count = static_cast<uint32_t>(module.scalars().size());
    if (program.scalar_count > 0) {
      step.library.inputs.push_back(tensor(Kind::Scalars, 0, {DType::f64, {}}));
    }
    step.library.ints.push_back(program.scalar_count > 0);
    for (uint32_t i = 0; i < module.results().size(); ++i) {
      const hlo::Type& type = module.node(module.results()[i].value).type;
      program.results.push_back(info(type));
      program.results.back().alias = module.results()[i].alias;
      step.library.outputs.push_back(tensor(Kind::Result, i, type));
    }
    program.steps.push_back(std::move(step));
    return neff::write_neff(program);
  }

  std::atomic<int> calls{0};
  std::atomic<bool> hold{false};
  std::atomic<bool> fail{false};
};

hlo::Module sum_module(int inputs, int64_t count, bool scalar = false, int alias = -1) {
  hlo::Builder b;
  hlo::Value sum;
  for (int i = 0; i < inputs; ++i) {
    hlo::Value x = b.parameter(DType::f32, Dims{count});
    sum = sum.defined() ? b.binary(hlo::Op::Add, sum, x) : x;
  }
  if (scalar) sum = b.binary(hlo::Op::Add, sum, b.convert(b.scalar(DType::f64), DType::f32));
  b.result(sum, {}, alias);
  return b.finish();
}

class ProgramTest : public ::testing::TestWithParam<bool> {
 protected:
  static void SetUpTestSuite() { register_library_kernel("test.sum", &kSumKernel); }
  void SetUp() override {
    set_inline_for_testing(GetParam());
    compiler_ = std::make_shared<FakeCompiler>();
    set_compiler_for_testing(compiler_);
    g_next_status = 0;
    g_hold = false;
  }
  void TearDown() override {
    synchronize_device(0);
    set_compiler_for_testing(nullptr);
    set_blocking(false);
    set_inline_for_testing(true);
  }

  static Buffer device_buffer(std::vector<BlockRef>& owners, const std::vector<float>& values,
                              int device = 0, int64_t stream = 0) {
    owners.push_back(allocate(device, values.size() * 4, stream));
    Buffer buffer{address_of(owners.back().get()), owners.back().get()};
    write(device, stream, buffer, values.data(), values.size() * 4, true);
    return buffer;
  }
  static std::vector<float> host_values(Buffer buffer, size_t count, int device = 0,
                                        int64_t stream = 0) {
    std::vector<float> values(count);
    read(device, stream, values.data(), buffer, count * 4, true);
    return values;
  }

  std::shared_ptr<FakeCompiler> compiler_;
};
INSTANTIATE_TEST_SUITE_P(Modes, ProgramTest, ::testing::Values(true, false),
                         [](const auto& info) { return info.param ? "inline" : "thread"; });

TEST_P(ProgramTest, RunsWithParametersScalarsAndResults) {
  const ProgramRef program = load_program(0, sum_module(2, 4, true));
  std::vector<BlockRef> owners;
  const Buffer a = device_buffer(owners, {1, 2, 3, 4});
  const Buffer b = device_buffer(owners, {10, 20, 30, 40});
  const Buffer c = device_buffer(owners, {0, 0, 0, 0});
  ScalarSlot slot{};
  for (int i = 0; i < 3; ++i) {
    slot.real[0] = 0.5 + i;
    launch(0, 0, program, std::vector<Buffer>{a, b}, std::vector<ScalarSlot>{slot},
           std::vector<Buffer>{c}, "aten::add");
    EXPECT_EQ(host_values(c, 4)[3], 44.5f + static_cast<float>(i));
  }
  // Another binding of the same program.
  launch(0, 0, program, std::vector<Buffer>{c, c}, std::vector<ScalarSlot>{slot},
         std::vector<Buffer>{a}, "aten::add");
  EXPECT_EQ(host_values(a, 4), (std::vector<float>{29.5, 51.5, 73.5, 95.5}));
}

TEST_P(ProgramTest, AliasedResultsAndEmptyTensorsWork) {
  std::vector<BlockRef> owners;
  const Buffer a = device_buffer(owners, {1, 2});
  const Buffer b = device_buffer(owners, {5, 6});
  const ProgramRef in_place = load_program(0, sum_module(2, 2, false, 0));
  launch(0, 0, in_place, std::vector<Buffer>{a, b}, {}, std::vector<Buffer>{a}, "aten::add_");
  EXPECT_EQ(host_values(a, 2), (std::vector<float>{6, 8}));
  const ProgramRef empty = load_program(0, sum_module(2, 0));
  const Buffer nothing{};
  launch(0, 0, empty, std::vector<Buffer>{nothing, nothing}, {}, std::vector<Buffer>{nothing},
         "aten::add");
  EXPECT_NO_THROW(synchronize_device(0));
}

TEST_P(ProgramTest, RefusesOperandsThatDoNotFit) {
  const ProgramRef program = load_program(0, sum_module(1, 4));
  std::vector<BlockRef> owners;
  const Buffer a = device_buffer(owners, {1, 2, 3, 4});
  launch(0, 0, program, {}, {}, std::vector<Buffer>{a}, "aten::neg");
  EXPECT_THROW(synchronize_stream(0, 0), Error);
  launch(0, 0, program, std::vector<Buffer>{Buffer{}}, {}, std::vector<Buffer>{a}, "aten::neg");
  EXPECT_THROW(synchronize_stream(0, 0), Error);
  float host[1000];
  EXPECT_THROW(read(0, 0, host, a, 4000, true), Error);
  EXPECT_NO_THROW(synchronize_stream(0, 0));
}

TEST_P(ProgramTest, DefersFailuresAndPoisonsTheStream) {
  const ProgramRef program = load_program(0, sum_module(1, 4));
  std::vector<BlockRef> owners;
  const Buffer a = device_buffer(owners, {1, 2, 3, 4});
  const Buffer b = device_buffer(owners, {0, 0, 0, 0});
  const auto run = [&](int64_t stream, const char* op) {
    launch(0, stream, program, std::vector<Buffer>{a}, {}, std::vector<Buffer>{b}, op);
  };
  g_next_status = 1006;
  run(3, "aten::embedding");
  drain();
  const int runs = g_runs;
  run(3, "aten::add");  // Skipped.
  drain();
  EXPECT_EQ(g_runs, runs);
  run(4, "aten::add");  // Another stream is not concerned.
  EXPECT_NO_THROW(synchronize_stream(0, 4));
  EXPECT_EQ(g_runs, runs + 1);
  try {
    float host[4];
    read(0, 3, host, b, 16, true);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIndex);
    const std::string text = error.what();
    EXPECT_NE(text.find("aten::embedding(f32[4]) on neuron:0: NRT_EXEC_OOB (1006)"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("index 9 is out of range"), std::string::npos) << text;
  }
  EXPECT_NO_THROW(synchronize_device(0));
  run(3, "aten::add");
  EXPECT_NO_THROW(synchronize_stream(0, 3));
  EXPECT_EQ(g_runs, runs + 2);

  set_blocking(true);
  g_next_status = 1006;
  EXPECT_THROW(run(0, "aten::embedding"), Error);
  EXPECT_NO_THROW(run(0, "aten::add"));
  // A core is lost after a time-out; here only the number counts.
  g_next_status = 1004;
  try {
    run(0, "aten::add");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDevice);
  }
}

TEST_P(ProgramTest, ManyThreadsShareAProgram) {
  const ProgramRef program = load_program(0, sum_module(2, 64));
  const uint64_t before = runtime_stats().launches;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<BlockRef> owners;
      const Buffer a = device_buffer(owners, std::vector<float>(64, static_cast<float>(t)), 0, t);
      const Buffer b = device_buffer(owners, std::vector<float>(64, 100.0f), 0, t);
      for (int i = 0; i < 500; ++i) {
        BlockRef out = allocate(0, 256, t);
        const Buffer c{address_of(out.get()), out.get()};
        launch(0, t, program, std::vector<Buffer>{a, b}, {}, std::vector<Buffer>{c}, "aten::add");
        if (i % 50 == 0 && host_values(c, 64, 0, t)[63] != 100.0f + static_cast<float>(t)) ++wrong;
      }
      synchronize_stream(0, t);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(runtime_stats().launches - before, 2000u);
}

// A block may be dropped right after the launch that reads it; nothing is reused too early.
TEST_P(ProgramTest, BlocksMayBeFreedWhileTheirWorkIsQueued) {
  const ProgramRef program = load_program(0, sum_module(1, 1024));
  std::vector<BlockRef> owners;
  const Buffer result = device_buffer(owners, std::vector<float>(1024, 0));
  for (const int64_t reader : {int64_t{0}, int64_t{5}}) {
    std::vector<BlockRef> input;
    const Buffer a = device_buffer(input, std::vector<float>(1024, 7));
    if (!GetParam()) g_hold = true;
    launch(0, reader, program, std::vector<Buffer>{a}, {}, std::vector<Buffer>{result},
           "aten::clone");
    input.clear();
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      g_hold = false;
    });
    // Writes other values in stream order, perhaps into the same memory.
    std::vector<BlockRef> next;
    device_buffer(next, std::vector<float>(1024, 1));
    empty_cache();
    EXPECT_EQ(host_values(result, 1024, 0, reader)[1000], 7.0f);
    other.join();
  }
}

TEST_P(ProgramTest, TransfersOfAllSizesArrive) {
  for (const size_t count : {size_t{1}, size_t{3}, size_t{1000}, size_t{1} << 20}) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 1000);
    std::vector<BlockRef> owners;
    const Buffer a = device_buffer(owners, values);
    const Buffer b = device_buffer(owners, std::vector<float>(count, -1));
    copy(0, 0, b, a, count * 4);
    EXPECT_EQ(host_values(b, count), values);
    // Inside a block, and from pinned memory without waiting.
    auto* pinned = static_cast<float*>(allocate_pinned(count * 4));
    std::fill_n(pinned, count, 5.0f);
    write(0, 0, b, pinned, count * 4, false);
    std::fill_n(values.begin(), count, 5.0f);
    read(0, 0, pinned, b, count * 4, false);
    synchronize_stream(0, 0);
    EXPECT_TRUE(std::equal(values.begin(), values.end(), pinned));
    free_pinned(pinned);
    const Buffer inside{static_cast<float*>(b.address) + count / 2, b.block};
    const float mark = 77;
    write(0, 0, inside, &mark, 4, true);
    EXPECT_EQ(host_values(b, count)[count / 2], 77.0f);
  }
  write(0, 0, Buffer{}, nullptr, 0, true);
  float from = 3, to = 0;
  copy(0, 0, Buffer{&to, nullptr}, Buffer{&from, nullptr}, 4);  // Host memory on both sides.
  synchronize_stream(0, 0);
  EXPECT_EQ(to, 3.0f);
}

TEST_P(ProgramTest, CompilesOncePerModuleAndDevice) {
  const uint64_t built = runtime_stats().programs_built;
  const ProgramRef first = load_program(0, sum_module(3, 8));
  const ProgramRef second = load_program(0, sum_module(3, 8));
  EXPECT_EQ(first.get(), second.get());
  EXPECT_EQ(compiler_->calls, 1);
  EXPECT_EQ(runtime_stats().programs_built, built + 1);
  EXPECT_NE(load_program(0, sum_module(3, 9)).get(), first.get());
  EXPECT_EQ(runtime_stats().kernels_compiled, 2u);

  // Several threads that want the same new program wait for one compilation.
  compiler_->hold = true;
  std::vector<ProgramRef> programs(4);
  std::vector<std::thread> threads;
  for (ProgramRef& program : programs) {
    threads.emplace_back([&program] { program = load_program(0, sum_module(4, 8)); });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(load_program(0, sum_module(3, 8)).get(), first.get());  // Not blocked meanwhile.
  compiler_->hold = false;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(compiler_->calls, 3);
  for (const ProgramRef& program : programs) EXPECT_EQ(program.get(), programs[0].get());

  compiler_->fail = true;
  EXPECT_THROW(load_program(0, sum_module(5, 8)), Error);
  compiler_->fail = false;
  EXPECT_NO_THROW(load_program(0, sum_module(5, 8)));  // A failure is not remembered.
}

TEST_P(ProgramTest, TheCacheIsBounded) {
  set_cache_limits_for_testing({10, size_t{1} << 30});
  const ProgramRef held = load_program(0, sum_module(1, 1000));
  for (int i = 0; i < 40; ++i) load_program(0, sum_module(1, 1 + i));
  EXPECT_LE(cached_programs_for_testing(), 10u);
  const int calls = compiler_->calls;
  load_program(0, sum_module(1, 40));
  EXPECT_EQ(compiler_->calls, calls);
  load_program(0, sum_module(1, 1));
  EXPECT_EQ(compiler_->calls, calls + 1);
  std::vector<BlockRef> owners;
  const Buffer a = device_buffer(owners, std::vector<float>(1000, 1));
  launch(0, 0, held, std::vector<Buffer>{a}, {}, std::vector<Buffer>{a}, "aten::neg");
  EXPECT_NO_THROW(synchronize_stream(0, 0));
  set_cache_limits_for_testing({});
}

TEST(Runtime, LaunchIsCheap) {
  register_library_kernel("test.sum", &kSumKernel);
  set_inline_for_testing(true);
  auto compiler = std::make_shared<FakeCompiler>();
  set_compiler_for_testing(compiler);
  const ProgramRef program = load_program(0, sum_module(2, 1));
  BlockRef blocks[3] = {allocate(0, 4, 0), allocate(0, 4, 0), allocate(0, 4, 0)};
  Buffer buffers[3];
  for (int i = 0; i < 3; ++i) buffers[i] = {address_of(blocks[i].get()), blocks[i].get()};
  for (const bool rebind : {false, true}) {
    double best = 1e9;
    for (int round = 0; round < 20; ++round) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < 5000; ++i) {
        if (rebind) std::swap(buffers[0], buffers[1]);
        launch(0, 0, program, std::span<const Buffer>(buffers, 2), {},
               std::span<const Buffer>(buffers + 2, 1), "aten::add");
      }
      const std::chrono::duration<double, std::nano> taken =
          std::chrono::steady_clock::now() - start;
      best = std::min(best, taken.count() / 5000);
    }
    std::printf("launch, %s addresses: %.0f ns\n", rebind ? "other" : "same", best);
    EXPECT_LT(best, 20000);
  }
  EXPECT_NO_THROW(synchronize_device(0));
  set_compiler_for_testing(nullptr);
}

TEST(Runtime, ReportsDevicesAndMemory) {
  EXPECT_GE(device_count(), 1);
  ensure_device(0);
  EXPECT_TRUE(is_initialized());
  EXPECT_FALSE(in_bad_fork());
  EXPECT_THROW(ensure_device(-1), Error);
  EXPECT_THROW(ensure_device(1000), Error);
  EXPECT_THROW(allocate(device_count(), 4, 0), Error);
  const DeviceProperties properties = device_properties(0);
  EXPECT_TRUE(properties.name == "trn2" || properties.name == "trn3");
  EXPECT_GT(properties.total_memory, 0);
  const auto [before, total] = memory_info(0);
  EXPECT_EQ(total, static_cast<size_t>(properties.total_memory));
  {
    BlockRef block = allocate(0, size_t{100} << 20, 0);
    EXPECT_LT(memory_info(0).first, before);
    std::memset(address_of(block.get()), 1, size_t{100} << 20);
    EXPECT_FALSE(memory_snapshot().empty());
    EXPECT_GE(memory_stats(0).allocated_bytes[0].current, int64_t{100} << 20);
  }
  empty_cache();
  EXPECT_GE(memory_info(0).first, before);
  EXPECT_THROW(allocate(0, size_t{1} << 45, 0), Error);
}

TEST(Runtime, AForkedChildIsToldToSpawn) {
  ensure_device(0);
  BlockRef inherited = allocate(0, 100, 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bool good = in_bad_fork() && !is_initialized() && device_count() >= 1;
    inherited = BlockRef();
    const auto refuses = [](auto body) {
      try {
        body();
      } catch (const Error& error) {
        return std::string(error.what()).find("spawn") != std::string::npos;
      }
      return false;
    };
    good = good && refuses([] { ensure_device(0); });
    good = good && refuses([] { allocate(0, 4, 0); });
    good = good && refuses([] { enqueue(0, 0, [] {}, {}, "x"); });
    good = good && refuses([] { load_program(0, sum_module(1, 1)); });
    synchronize_device(0);
    empty_cache();
    shutdown();
    _exit(good ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Runs in a child that has opened nothing yet, so the rest of this binary can go on.
TEST(RuntimeDeathTest, ShutdownDrainsAndRefuses) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        set_inline_for_testing(false);
        static BlockRef kept = allocate(0, 100, 0);  // Freed after main.
        std::atomic<bool> ran{false};
        enqueue(
            0, 0,
            [&] {
              std::this_thread::sleep_for(std::chrono::milliseconds(20));
              ran = true;
            },
            {}, "x");
        shutdown();
        shutdown();
        bool refused = false;
        try {
          enqueue(0, 0, [] {}, {}, "y");
        } catch (const Error& error) {
          refused = std::string(error.what()).find("shut down") != std::string::npos;
        }
        Event* event = create_event(true);
        record_event(event, 0, 0);
        synchronize_event(event);
        destroy_event(event);
        std::exit(ran && refused ? 7 : 1);
      },
      ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace neuron::runtime
