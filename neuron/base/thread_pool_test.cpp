#include "neuron/base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

namespace neuron {
namespace {

void expect_covers(ThreadPool& pool, int64_t count, int64_t grain) {
  std::vector<int> seen(static_cast<size_t>(count), 0);
  pool.parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
  });
  for (int64_t i = 0; i < count; ++i) ASSERT_EQ(seen[static_cast<size_t>(i)], 1) << i;
}

TEST(ThreadPool, RunsEveryIterationOnce) {
  ThreadPool pool(4);
  for (const int64_t count : {0, 1, 2, 3, 7, 64, 1000}) {
    for (const int64_t grain : {0, 1, 3, 64, 5000}) expect_covers(pool, count, grain);
  }
}

TEST(ThreadPool, PiecesStartAtMultiplesOfTheGrain) {
  ThreadPool pool(3);
  pool.parallel_for(1000, 7, [](int64_t begin, int64_t end) {
    EXPECT_EQ(begin % 7, 0);
    EXPECT_TRUE(end % 7 == 0 || end == 1000);
  });
}

TEST(ThreadPool, NestedRegionsRunAlone) {
  ThreadPool pool(2);
  std::atomic<int> total = 0;
  pool.parallel_for(8, 1, [&](int64_t begin, int64_t end) {
    EXPECT_TRUE(ThreadPool::in_region());
    for (int64_t i = begin; i < end; ++i) {
      pool.parallel_for(10, 1, [&](int64_t b, int64_t e) { total += static_cast<int>(e - b); });
    }
  });
  EXPECT_FALSE(ThreadPool::in_region());
  EXPECT_EQ(total, 80);
}

TEST(ThreadPool, ManyLaunchersAtOnce) {
  ThreadPool pool(3);
  std::vector<std::thread> launchers;
  for (int t = 0; t < 6; ++t) {
    launchers.emplace_back([&] {
      for (int round = 0; round < 300; ++round) expect_covers(pool, 50 + round % 7, 3);
    });
  }
  for (std::thread& launcher : launchers) launcher.join();
}

TEST(ThreadPool, RethrowsTheFirstException) {
  ThreadPool pool(2);
  EXPECT_THROW(pool.parallel_for(100, 1, [](int64_t, int64_t) { throw std::runtime_error("x"); }),
               std::runtime_error);
  expect_covers(pool, 100, 1);
}

TEST(ThreadPool, WorksAgainAfterTheThreadsSlept) {
  ThreadPool pool(2);
  for (int round = 0; round < 20; ++round) {
    expect_covers(pool, 16, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(ThreadPool, ForkedChildGetsItsOwn) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer does not follow threads of a forked child";
#endif
  expect_covers(ThreadPool::instance(), 1000, 1);
  const pid_t child = fork();
  if (child == 0) {
    int64_t sum = 0;
    std::atomic<int64_t> total = 0;
    ThreadPool::instance().parallel_for(100, 1, [&](int64_t b, int64_t e) {
      for (int64_t i = b; i < e; ++i) total += i;
    });
    sum = total;
    _exit(sum == 4950 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(ThreadPool, EmptyRegionIsCheap) {
  ThreadPool pool(2);
  constexpr int kRounds = 20000;
  for (int i = 0; i < 100; ++i) pool.parallel_for(2, 1, [](int64_t, int64_t) {});
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kRounds; ++i) pool.parallel_for(2, 1, [](int64_t, int64_t) {});
  const double ns =
      std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() /
      kRounds;
  std::printf("empty region: %.0f ns\n", ns);
  EXPECT_LT(ns, 50000);
}

}  // namespace
}  // namespace neuron
