#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>

#include "neuron/base/error.h"
#include "neuron/neff/program.h"

namespace neuron::neff {
namespace {

Program sample() {
  Program program;
  program.target = "trn2";
  program.cpu_features = "znver4+avx512f+avx512bf16";
  program.parameters = {{DType::f32, {3, 4}, 48, -1}, {DType::bf16, {}, 2, -1}};
  program.results = {{DType::f32, {3, 4}, 48, 0}};
  program.scalar_count = 2;
  program.arena_bytes = 4096;
  program.constants.resize(40, std::byte{7});
  program.kernels.push_back({{1, 2}, std::vector<std::byte>(100, std::byte{9})});
  Step kernel;
  kernel.kernel = {0,
                   12,
                   {{BufferRef::Kind::Parameter, 0, 0},
                    {BufferRef::Kind::Result, 0, 16},
                    {BufferRef::Kind::Arena, 0, 64},
                    {BufferRef::Kind::Status, 0, 0}},
                   {1, -2, 3},
                   4};
  kernel.work = {48, 48, 12, 0};
  kernel.parallel_group = 3;
  Step library;
  library.kind = Step::Kind::Library;
  library.library.name = "neuron.sort";
  library.library.inputs = {{{BufferRef::Kind::Parameter, 0, 0}, DType::f32, {3, 4}, {4, 1}}};
  library.library.outputs = {{{BufferRef::Kind::Arena, 0, 0}, DType::f32, {3, 4}, {4, 1}},
                             {{BufferRef::Kind::Constant, 0, 8}, DType::i64, {3, 4}, {4, 1}}};
  library.library.ints = {1, 0};
  library.library.arguments = {std::byte{1}, std::byte{2}};
  program.steps = {kernel, library};
  return program;
}

void expect_equal(const Program& a, const Program& b) {
  EXPECT_EQ(a.target, b.target);
  EXPECT_EQ(a.cpu_features, b.cpu_features);
  EXPECT_EQ(a.scalar_count, b.scalar_count);
  EXPECT_EQ(a.arena_bytes, b.arena_bytes);
  EXPECT_EQ(a.constants, b.constants);
  ASSERT_EQ(a.parameters.size(), b.parameters.size());
  for (size_t i = 0; i < a.parameters.size(); ++i) {
    EXPECT_EQ(a.parameters[i].dims, b.parameters[i].dims);
    EXPECT_EQ(a.parameters[i].dtype, b.parameters[i].dtype);
    EXPECT_EQ(a.parameters[i].bytes, b.parameters[i].bytes);
  }
  ASSERT_EQ(a.results.size(), b.results.size());
  EXPECT_EQ(a.results[0].alias, b.results[0].alias);
  ASSERT_EQ(a.kernels.size(), b.kernels.size());
  EXPECT_EQ(a.kernels[0].hash, b.kernels[0].hash);
  EXPECT_EQ(a.kernels[0].object, b.kernels[0].object);
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (size_t i = 0; i < a.steps.size(); ++i) {
    const Step& x = a.steps[i];
    const Step& y = b.steps[i];
    EXPECT_EQ(x.kind, y.kind);
    EXPECT_EQ(x.parallel_group, y.parallel_group);
    EXPECT_EQ(x.work.bytes_read, y.work.bytes_read);
    EXPECT_EQ(x.kernel.pointers, y.kernel.pointers);
    EXPECT_EQ(x.kernel.args, y.kernel.args);
    EXPECT_EQ(x.kernel.extent, y.kernel.extent);
    EXPECT_EQ(x.kernel.grain, y.kernel.grain);
    EXPECT_EQ(x.library.name, y.library.name);
    EXPECT_EQ(x.library.ints, y.library.ints);
    EXPECT_EQ(x.library.arguments, y.library.arguments);
    ASSERT_EQ(x.library.outputs.size(), y.library.outputs.size());
    for (size_t k = 0; k < x.library.outputs.size(); ++k) {
      EXPECT_EQ(x.library.outputs[k].buffer, y.library.outputs[k].buffer);
      EXPECT_EQ(x.library.outputs[k].dims, y.library.outputs[k].dims);
    }
  }
}

TEST(Neff, RoundTripKeepsEverything) {
  const Program program = sample();
  const std::vector<std::byte> file = write_neff(program);
  EXPECT_TRUE(is_our_neff(file.data(), file.size()));
  expect_equal(program, read_neff(file.data(), file.size()));
}

TEST(Neff, EveryTruncationIsRefused) {
  const std::vector<std::byte> file = write_neff(sample());
  for (size_t size = 0; size < file.size(); ++size) {
    // An exact copy, so that a read past the end is one past an allocation.
    const std::vector<std::byte> cut(file.begin(), file.begin() + static_cast<int64_t>(size));
    EXPECT_THROW(read_neff(cut.data(), cut.size()), Error) << size;
  }
}

TEST(Neff, EveryFlippedByteIsRefused) {
  std::vector<std::byte> file = write_neff(sample());
  for (std::byte& byte : file) {
    byte ^= std::byte{0x41};
    EXPECT_THROW(read_neff(file.data(), file.size()), Error);
    byte ^= std::byte{0x41};
  }
}

TEST(Neff, BrokenReferencesAreRefused) {
  const auto refuse = [](void (*spoil)(Program&)) {
    Program program = sample();
    spoil(program);
    const std::vector<std::byte> file = write_neff(program);
    EXPECT_THROW(read_neff(file.data(), file.size()), Error);
  };
  refuse([](Program& p) { p.steps[0].kernel.kernel = 1; });
  refuse([](Program& p) { p.steps[0].kernel.pointers[0].index = 2; });
  refuse([](Program& p) { p.steps[1].library.inputs[0].buffer.offset = -1; });
  refuse([](Program& p) { p.steps[1].library.inputs[0].buffer.offset = 1 << 30; });
  refuse([](Program& p) { p.steps[0].kernel.extent = -1; });
  refuse([](Program& p) { p.steps[1].library.inputs[0].dims = {-3, 4}; });
  refuse([](Program& p) { p.steps[1].library.inputs[0].strides = {1}; });
  refuse([](Program& p) { p.arena_bytes = -5; });
  refuse([](Program& p) { p.results[0].alias = 2; });
}

TEST(Neff, GuardedReadsMayStartOutsideTheirBuffer) {
  Program program = sample();
  program.steps[0].kernel.pointers[0].offset = -8;
  const std::vector<std::byte> file = write_neff(program);
  EXPECT_EQ(read_neff(file.data(), file.size()).steps[0].kernel.pointers[0].offset, -8);
}

TEST(Neff, SymbolIsKAnd32HexDigits) {
  EXPECT_EQ(kernel_symbol({0x1, 0xABCDEF0123456789ull}), "kabcdef01234567890000000000000001");
}

TEST(Neff, OneStepProgramIsQuick) {
  Program program = sample();
  program.steps.resize(1);
  program.kernels[0].object.clear();
  program.constants.clear();
  constexpr int kRounds = 20000;
  size_t total = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kRounds; ++i) {
    const std::vector<std::byte> file = write_neff(program);
    total += read_neff(file.data(), file.size()).steps.size();
  }
  const double us =
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() /
      kRounds;
  std::printf("write and read of one step: %.2f us\n", us);
  EXPECT_EQ(total, static_cast<size_t>(kRounds));
}

}  // namespace
}  // namespace neuron::neff
