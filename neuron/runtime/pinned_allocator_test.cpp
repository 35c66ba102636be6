#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "neuron/base/error.h"
#include "neuron/runtime/executor.h"
#include "neuron/runtime/runtime.h"

namespace neuron::runtime {
namespace {

TEST(PinnedMemory, IsRecognisedFromInside) {
  int local = 0;
  EXPECT_FALSE(is_pinned(&local));
  EXPECT_FALSE(is_pinned(nullptr));
  char* a = static_cast<char*>(allocate_pinned(10000));
  std::memset(a, 1, 10000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 4096, 0u);
  EXPECT_TRUE(is_pinned(a));
  EXPECT_TRUE(is_pinned(a + 9999));
  EXPECT_FALSE(is_pinned(&local));
  free_pinned(a);
  EXPECT_EQ(allocate_pinned(0), nullptr);
  free_pinned(nullptr);
  free_pinned(&local);  // Not ours: ignored.
}

TEST(PinnedMemory, IsReusedOnceQueuedWorkHasPassed) {
  set_inline_for_testing(false);
  std::atomic<bool> go{false};
  void* a = allocate_pinned(20000);
  enqueue(
      0, 0,
      [&] {
        while (!go) std::this_thread::yield();
      },
      {}, "test::wait");
  free_pinned(a);
  void* b = allocate_pinned(20000);
  EXPECT_NE(a, b);
  go = true;
  synchronize_device(0);
  void* c = allocate_pinned(20000);
  EXPECT_EQ(a, c);
  free_pinned(b);
  free_pinned(c);
  set_inline_for_testing(true);
}

TEST(PinnedMemory, EmptiesItsCache) {
  auto* a = static_cast<unsigned char*>(allocate_pinned(size_t{8} << 20));
  std::memset(a, 5, size_t{8} << 20);
  free_pinned(a);
  empty_pinned_cache();
  auto* b = static_cast<unsigned char*>(allocate_pinned(size_t{8} << 20));
  EXPECT_EQ(b, a);
  EXPECT_EQ(b[12345], 0);  // The old pages are gone.
  b[12345] = 1;
  free_pinned(b);
}

TEST(PinnedMemory, SurvivesManyThreads) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t) {
    threads.emplace_back([t] {
      std::mt19937 random(t);
      std::vector<std::pair<unsigned char*, size_t>> live;
      for (int i = 0; i < 3000; ++i) {
        if (live.size() > 20 || (!live.empty() && random() % 2)) {
          auto [p, n] = live.back();
          live.pop_back();
          ASSERT_EQ(p[0], static_cast<unsigned char>(n));
          ASSERT_EQ(p[n - 1], static_cast<unsigned char>(n));
          free_pinned(p);
        } else {
          const size_t n = 1 + random() % 40000;
          auto* p = static_cast<unsigned char*>(allocate_pinned(n));
          ASSERT_TRUE(is_pinned(p + n - 1));
          p[0] = p[n - 1] = static_cast<unsigned char>(n);
          live.emplace_back(p, n);
        }
      }
      for (auto [p, n] : live) free_pinned(p);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THROW(allocate_pinned(size_t{1} << 50), Error);
}

}  // namespace
}  // namespace neuron::runtime
