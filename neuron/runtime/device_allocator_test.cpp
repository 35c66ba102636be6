#include "neuron/runtime/device_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "neuron/base/error.h"
#include "neuron/runtime/executor.h"
#include "neuron/runtime/runtime.h"

namespace neuron::runtime {
namespace {

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;

// Host memory with a limit.
class FakeSource : public RegionSource {
 public:
  explicit FakeSource(size_t limit) : limit_(limit) {}
  ~FakeSource() override { EXPECT_EQ(used_, 0u) << "a region was not given back"; }
  Region allocate(size_t bytes) override {
    if (used_ + bytes > limit_) return {};
    used_ += bytes;
    ++calls;
    void* address = std::aligned_alloc(2 * kMiB, bytes);
    return {address, bytes, address};
  }
  void free(const Region& region) noexcept override {
    used_ -= region.bytes;
    std::free(region.address);
  }
  std::pair<size_t, size_t> usage() override { return {used_, limit_}; }
  int calls = 0;

 private:
  const size_t limit_;
  std::atomic<size_t> used_{0};
};

void expect_consistent(DeviceAllocator& allocator) {
  std::vector<SegmentInfo> segments;
  allocator.snapshot(segments);
  const MemoryStats stats = allocator.stats();
  int64_t allocated[3] = {}, active[3] = {}, reserved[3] = {}, requested[3] = {}, count[3] = {},
          split[3] = {}, split_bytes[3] = {};
  uint64_t last_end = 0;
  for (const SegmentInfo& segment : segments) {
    EXPECT_GE(segment.address, last_end);
    last_end = segment.address + segment.total_size;
    uint64_t address = segment.address;
    for (const BlockInfo& block : segment.blocks) {
      EXPECT_EQ(block.address, address);
      EXPECT_EQ(block.size % 512, 0u);
      address += block.size;
      const int pool = segment.large ? 2 : 1;
      for (int p : {0, pool}) {
        if (block.allocated) {
          allocated[p] += static_cast<int64_t>(block.size);
          requested[p] += static_cast<int64_t>(block.requested);
          ++count[p];
        }
        if (block.active) active[p] += static_cast<int64_t>(block.size);
        if (!block.active && segment.blocks.size() > 1) {
          ++split[p];
          split_bytes[p] += static_cast<int64_t>(block.size);
        }
      }
    }
    EXPECT_EQ(address, last_end);
    reserved[0] += static_cast<int64_t>(segment.total_size);
    reserved[segment.large ? 2 : 1] += static_cast<int64_t>(segment.total_size);
  }
  for (int p = 0; p < 3; ++p) {
    EXPECT_EQ(stats.allocated_bytes[p].current, allocated[p]);
    EXPECT_EQ(stats.allocation[p].current, count[p]);
    EXPECT_EQ(stats.active_bytes[p].current, active[p]);
    EXPECT_EQ(stats.reserved_bytes[p].current, reserved[p]);
    EXPECT_EQ(stats.requested_bytes[p].current, requested[p]);
    EXPECT_EQ(stats.inactive_split[p].current, split[p]);
    EXPECT_EQ(stats.inactive_split_bytes[p].current, split_bytes[p]);
    EXPECT_GE(stats.allocated_bytes[p].peak, stats.allocated_bytes[p].current);
  }
}

class DeviceAllocatorTest : public ::testing::Test {
 protected:
  void SetUp() override { set_inline_for_testing(true); }
  void TearDown() override { set_inline_for_testing(true); }
};

TEST_F(DeviceAllocatorTest, RoundsTo512BytesAndCountsExactly) {
  FakeSource source(1024 * kMiB);
  DeviceAllocator allocator(0, &source);
  EXPECT_EQ(allocator.allocate(0, 0), nullptr);
  Block* a = allocator.allocate(1, 0);
  Block* b = allocator.allocate(513, 0);
  Block* c = allocator.allocate(3 * kMiB, 0);
  EXPECT_EQ(a->size, 512u);
  EXPECT_EQ(b->size, 1024u);
  EXPECT_EQ(c->size, 3 * kMiB);
  MemoryStats stats = allocator.stats();
  EXPECT_EQ(stats.allocated_bytes[0].current, static_cast<int64_t>(1536 + 3 * kMiB));
  EXPECT_EQ(stats.allocated_bytes[1].current, 1536);
  EXPECT_EQ(stats.allocated_bytes[2].current, static_cast<int64_t>(3 * kMiB));
  EXPECT_EQ(stats.requested_bytes[1].current, 514);
  EXPECT_EQ(stats.reserved_bytes[1].current, static_cast<int64_t>(2 * kMiB));
  EXPECT_EQ(stats.reserved_bytes[2].current, static_cast<int64_t>(64 * kMiB));
  EXPECT_EQ(stats.allocation[0].current, 3);
  EXPECT_EQ(stats.segment[0].current, 2);
  EXPECT_EQ(stats.num_device_alloc, 2);
  expect_consistent(allocator);
  allocator.free(b);
  allocator.free(c);
  stats = allocator.stats();
  EXPECT_EQ(stats.allocated_bytes[0].current, 512);
  EXPECT_EQ(stats.allocated_bytes[0].peak, static_cast<int64_t>(1536 + 3 * kMiB));
  EXPECT_EQ(stats.allocation[0].freed, 2);
  EXPECT_EQ(stats.allocated_bytes[0].freed, static_cast<int64_t>(1024 + 3 * kMiB));
  expect_consistent(allocator);
  allocator.reset_peak_stats();
  allocator.reset_accumulated_stats();
  stats = allocator.stats();
  EXPECT_EQ(stats.allocated_bytes[0].peak, 512);
  EXPECT_EQ(stats.allocated_bytes[0].allocated, 0);
  EXPECT_EQ(stats.allocated_bytes[0].freed, 0);
  allocator.free(a);
  stats = allocator.stats();
  EXPECT_EQ(stats.allocated_bytes[0].freed, 512);
  expect_consistent(allocator);
}

TEST_F(DeviceAllocatorTest, ReusesAFreedBlockAtOnce) {
  FakeSource source(1024 * kMiB);
  DeviceAllocator allocator(0, &source);
  for (size_t bytes : {size_t{4}, 100 * kKiB, 1 * kMiB, 5 * kMiB, 100 * kMiB}) {
    Block* first = allocator.allocate(bytes, 0);
    void* address = first->address;
    allocator.free(first);
    Block* second = allocator.allocate(bytes, 0);
    EXPECT_EQ(second->address, address);
    allocator.free(second);
  }
  EXPECT_EQ(source.calls, 3);
}

TEST_F(DeviceAllocatorTest, KeepsStreamsApart) {
  FakeSource source(1024 * kMiB);
  DeviceAllocator allocator(0, &source);
  Block* a = allocator.allocate(4096, 0);
  void* address = a->address;
  allocator.free(a);
  Block* b = allocator.allocate(4096, 5);
  EXPECT_NE(b->address, address);
  EXPECT_EQ(allocator.stats().segment[0].current, 2);
  allocator.free(b);
  EXPECT_THROW(allocator.allocate(1, 64), Error);
  EXPECT_THROW(allocator.allocate(1, -1), Error);
}

// Freed small pieces are kept apart for speed; a request that none of them satisfies joins them.
TEST_F(DeviceAllocatorTest, MergesSmallBlocksBeforeGrowing) {
  FakeSource source(1024 * kMiB);
  DeviceAllocator allocator(0, &source);
  std::vector<Block*> blocks;
  for (int i = 0; i < 4096; ++i) blocks.push_back(allocator.allocate(512, 0));
  EXPECT_EQ(source.calls, 1);
  for (Block* block : blocks) allocator.free(block);
  expect_consistent(allocator);
  Block* a = allocator.allocate(1 * kMiB, 0);
  Block* b = allocator.allocate(1 * kMiB, 0);
  EXPECT_EQ(source.calls, 1);
  expect_consistent(allocator);
  allocator.free(a);
  allocator.free(b);
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().reserved_bytes[0].current, 0);
  EXPECT_EQ(allocator.stats().inactive_split[0].current, 0);
}

TEST_F(DeviceAllocatorTest, OutOfMemoryReleasesTheCacheThenExplains) {
  FakeSource source(200 * kMiB);
  DeviceAllocator allocator(3, &source);
  Block* small = allocator.allocate(100, 0);
  Block* a = allocator.allocate(60 * kMiB, 0);
  Block* b = allocator.allocate(60 * kMiB, 1);
  allocator.free(a);
  allocator.free(b);
  Block* c = allocator.allocate(150 * kMiB, 0);  // Only fits once both segments are gone.
  MemoryStats stats = allocator.stats();
  EXPECT_EQ(stats.num_alloc_retries, 1);
  EXPECT_EQ(stats.num_ooms, 0);
  EXPECT_EQ(stats.num_device_free, 2);
  try {
    allocator.allocate(100 * kMiB, 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
    const std::string text = error.what();
    EXPECT_NE(
        text.find(
            "neuron:3: out of memory: cannot allocate 100.00 MiB: 150.00 MiB of 200.00 MiB in use"),
        std::string::npos)
        << text;
    EXPECT_NE(text.find("cached"), std::string::npos);
  }
  EXPECT_EQ(allocator.stats().num_ooms, 1);
  // A smaller request still fits, with a segment of its own size instead of 64 MiB.
  Block* d = allocator.allocate(40 * kMiB, 0);
  expect_consistent(allocator);
  EXPECT_THROW(allocator.allocate(size_t{1} << 60, 0), Error);
  for (Block* block : {small, c, d}) allocator.free(block);
  allocator.empty_cache();
  EXPECT_EQ(allocator.memory_info().first, 200 * kMiB);
}

TEST_F(DeviceAllocatorTest, HonoursTheMemoryFraction) {
  FakeSource source(1000 * kMiB);
  DeviceAllocator allocator(0, &source);
  allocator.set_memory_fraction(0.1);
  EXPECT_THROW(allocator.allocate(200 * kMiB, 0), Error);
  Block* a = allocator.allocate(90 * kMiB, 0);
  EXPECT_THROW(allocator.allocate(20 * kMiB, 0), Error);
  allocator.set_memory_fraction(1);
  Block* b = allocator.allocate(20 * kMiB, 0);
  allocator.free(a);
  allocator.free(b);
  EXPECT_THROW(allocator.set_memory_fraction(1.5), Error);
  EXPECT_THROW(allocator.set_memory_fraction(-1), Error);
}

// Random sizes, streams and lifetimes from several threads; every block carries a pattern, so an
// overlap would show.
TEST_F(DeviceAllocatorTest, SurvivesRandomUseFromManyThreads) {
  FakeSource source(2048 * kMiB);
  DeviceAllocator allocator(0, &source);
  std::atomic<int64_t> total_requests{0};
  const auto body = [&](unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::pair<Block*, unsigned char>> live;
    for (int step = 0; step < 15000; ++step) {
      if (live.size() > 60 || (!live.empty() && random() % 2 == 0)) {
        const size_t i = random() % live.size();
        auto [block, pattern] = live[i];
        ASSERT_EQ(static_cast<unsigned char>(block->address[0]), pattern);
        ASSERT_EQ(static_cast<unsigned char>(block->address[block->requested - 1]), pattern);
        allocator.free(block);
        live[i] = live.back();
        live.pop_back();
        continue;
      }
      const int magnitude = 1 + static_cast<int>(random() % 22);
      const size_t bytes = 1 + random() % (size_t{1} << magnitude);
      Block* block = allocator.allocate(bytes, random() % 3);
      const auto pattern = static_cast<unsigned char>(random());
      block->address[0] = static_cast<std::byte>(pattern);
      block->address[bytes - 1] = static_cast<std::byte>(pattern);
      live.emplace_back(block, pattern);
      ++total_requests;
    }
    for (auto [block, pattern] : live) allocator.free(block);
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 3; ++i) threads.emplace_back(body, i + 1);
  for (int i = 0; i < 20; ++i) {
    allocator.stats();
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  expect_consistent(allocator);
  const MemoryStats stats = allocator.stats();
  EXPECT_EQ(stats.allocated_bytes[0].current, 0);
  EXPECT_EQ(stats.requested_bytes[0].current, 0);
  EXPECT_EQ(stats.allocation[0].allocated, total_requests);
  EXPECT_EQ(stats.allocation[0].freed, total_requests);
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().reserved_bytes[0].current, 0);
}

// A block that another stream uses is not handed out again before that stream has passed.
TEST_F(DeviceAllocatorTest, WaitsForRecordedStreams) {
  set_inline_for_testing(false);
  FakeSource source(1024 * kMiB);
  DeviceAllocator allocator(0, &source);
  std::atomic<bool> go{false};
  enqueue(
      0, 7,
      [&] {
        while (!go) std::this_thread::yield();
      },
      {}, "test::wait");
  Block* a = allocator.allocate(4096, 0);
  void* address = a->address;
  record_stream(a, 7);
  allocator.free(a);
  MemoryStats stats = allocator.stats();
  EXPECT_EQ(stats.allocated_bytes[0].current, 0);
  EXPECT_EQ(stats.active_bytes[0].current, 4096);
  EXPECT_EQ(stats.active[0].current, 1);
  expect_consistent(allocator);
  Block* b = allocator.allocate(4096, 0);
  EXPECT_NE(b->address, address);
  go = true;
  synchronize_stream(0, 7);
  Block* c = allocator.allocate(4096, 0);
  EXPECT_EQ(c->address, address);
  EXPECT_EQ(allocator.stats().active_bytes[0].current, 8192);
  allocator.free(b);
  allocator.free(c);
  EXPECT_EQ(allocator.stats().active_bytes[0].current, 0);
}

TEST_F(DeviceAllocatorTest, ReferencesKeepABlock) {
  FakeSource source(1024 * kMiB);
  DeviceAllocator allocator(0, &source);
  {
    BlockRef a(allocator.allocate(1000, 0));
    EXPECT_EQ(size_of(a.get()), 1000u);
    EXPECT_EQ(address_of(a.get()), a.get()->address);
    BlockRef b = a;
    a = BlockRef();
    EXPECT_EQ(allocator.stats().allocation[0].current, 1);
    BlockRef c = std::move(b);
    EXPECT_EQ(b.get(), nullptr);
    EXPECT_EQ(allocator.stats().allocation[0].current, 1);
  }
  EXPECT_EQ(allocator.stats().allocation[0].current, 0);
  EXPECT_EQ(address_of(nullptr), nullptr);
}

// Prints what one allocation and its release cost; a loose bound catches an accident.
TEST_F(DeviceAllocatorTest, IsFast) {
  FakeSource source(1024 * kMiB);
  DeviceAllocator allocator(0, &source);
  for (size_t bytes : {size_t{4096}, 4 * kMiB}) {
    double best = 1e9;
    for (int round = 0; round < 20; ++round) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < 10000; ++i) release(allocator.allocate(bytes, 0));
      const std::chrono::duration<double, std::nano> taken =
          std::chrono::steady_clock::now() - start;
      best = std::min(best, taken.count() / 10000);
    }
    std::printf("allocate + release of %zu bytes: %.1f ns\n", bytes, best);
    EXPECT_LT(best, 50000);
  }
}

}  // namespace
}  // namespace neuron::runtime
