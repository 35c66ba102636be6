#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <thread>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/kernel_counters.h"
#include "neuron/compiler/cpu/nest_builder_test.h"
#include "neuron/neff/program.h"

namespace neuron::compiler::cpu {
namespace {

/// The whole test program keeps its kernels in a folder of its own.
class OwnCacheFolder : public ::testing::Environment {
 public:
  OwnCacheFolder() {
    char pattern[] = "/tmp/neuron_kernel_test_XXXXXX";
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

using hlo::Op;
using testing::compute;
using testing::load;
using testing::store;

LoopNest chain(const std::vector<Op>& ops, int64_t row) {
  LoopNest nest;
  nest.row = row;
  nest.pointer_count = 2;
  Sweep sweep;
  sweep.body = {load(0, DType::f32, {1})};
  for (Op op : ops) {
    sweep.body.push_back(compute(op, DType::f32, {static_cast<int>(sweep.body.size()) - 1}));
  }
  sweep.stores = {store(static_cast<int>(sweep.body.size()) - 1, 1, DType::f32, {1})};
  nest.sweeps = {sweep};
  return nest;
}

// A shape that was not seen before needs no new code.
TEST(KernelCache, EqualStructuresShareOneObject) {
  const LoopNest a = chain({Op::Abs, Op::Sqrt}, 5);
  const LoopNest b = chain({Op::Abs, Op::Sqrt}, 50000);
  const LoopNest c = chain({Op::Sqrt, Op::Abs}, 5);
  const LoopNest* nests[] = {&a, &b, &c, &a};
  const auto kernels = kernel_cache().get(nests);
  ASSERT_EQ(kernels.size(), 4u);
  EXPECT_EQ(kernels[0].object, kernels[1].object);
  EXPECT_EQ(kernels[0].object, kernels[3].object);
  EXPECT_NE(kernels[0].object, kernels[2].object);
  const KernelCounters before = kernel_counters();
  const auto again = kernel_cache().get(nests);
  EXPECT_EQ(again[2].object, kernels[2].object);
  const KernelCounters after = kernel_counters();
  EXPECT_EQ(after.generated, before.generated);
  EXPECT_EQ(after.disk_hits, before.disk_hits);
  EXPECT_EQ(after.hits, before.hits + 4);
}

TEST(KernelCache, ObjectsHoldOneFunctionNamedAfterTheHash) {
  const LoopNest nest = chain({Op::Exp, Op::Log, Op::Tanh, Op::Erf, Op::Sine}, 5);
  const LoopNest* nests[] = {&nest};
  const auto kernel = kernel_cache().get(nests).front();
  const testing::LoadedKernel loaded(*kernel.object);  // Throws on undefined symbols.
  EXPECT_EQ(loaded.name, neff::kernel_symbol(kernel.hash));
  EXPECT_EQ(loaded.globals, 1);
}

TEST(KernelCache, ThreadsGetTheSameKernels) {
  std::vector<LoopNest> nests;
  for (Op a : {Op::Abs, Op::Negate, Op::Ceil}) {
    for (Op b : {Op::Floor, Op::Trunc, Op::Sign}) nests.push_back(chain({a, b, Op::Sqrt}, 9));
  }
  std::vector<const LoopNest*> list;
  for (const LoopNest& nest : nests) list.push_back(&nest);
  std::vector<std::vector<KernelCache::Kernel>> results(3);
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&] { result = kernel_cache().get(list); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t k = 0; k < list.size(); ++k) {
    EXPECT_EQ(results[0][k].object, results[1][k].object);
    EXPECT_EQ(results[0][k].object, results[2][k].object);
  }
}

TEST(KernelCache, WhatMemoryLostComesBackFromDisk) {
  const LoopNest nest = chain({Op::Exp, Op::Rsqrt}, 5);
  const LoopNest* nests[] = {&nest};
  const auto first = kernel_cache().get(nests).front();
  const KernelCounters before = kernel_counters();
  forget_kernels();
  const auto second = kernel_cache().get(nests).front();
  EXPECT_NE(first.object, second.object);
  EXPECT_EQ(*first.object, *second.object);
  EXPECT_EQ(kernel_counters().disk_hits, before.disk_hits + 1);
  EXPECT_EQ(kernel_counters().generated, before.generated);
}

TEST(KernelCache, FailuresReachTheCaller) {
  LoopNest nest = chain({Op::Exp}, 5);
  nest.sweeps[0].body[1].op = Op::Lgamma;
  const LoopNest* nests[] = {&nest};
  EXPECT_THROW(kernel_cache().get(nests), Error);
}

}  // namespace
}  // namespace neuron::compiler::cpu
