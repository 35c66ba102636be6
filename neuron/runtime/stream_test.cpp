#include "neuron/runtime/stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "neuron/runtime/executor.h"
#include "neuron/runtime/runtime.h"

namespace neuron::runtime {
namespace {

// Every test runs in both modes: the contract is the same.
class StreamTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { set_inline_for_testing(GetParam()); }
  void TearDown() override {
    set_blocking(false);
    set_inline_for_testing(true);
  }
};
INSTANTIATE_TEST_SUITE_P(Modes, StreamTest, ::testing::Values(true, false),
                         [](const auto& info) { return info.param ? "inline" : "thread"; });

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_P(StreamTest, RunsInOrder) {
  std::vector<int> order;
  for (int i = 0; i < 2000; ++i) {
    enqueue(0, i % 3, [&order, i] { order.push_back(i); }, {}, "test::op");
  }
  synchronize_device(0);
  ASSERT_EQ(order.size(), 2000u);
  for (int i = 0; i < 2000; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  EXPECT_TRUE(query_stream(0, 0));
}

TEST_P(StreamTest, RaisesTheFirstErrorOnceAndSkipsWhatFollows) {
  std::atomic<int> ran{0};
  enqueue(0, 1, [] { raise(ErrorKind::kIndex, "index 7 is out of range"); }, {}, "aten::take");
  enqueue(0, 1, [&] { ++ran; }, {}, "aten::add");
  enqueue(0, 1, [] { raise(ErrorKind::kInternal, "second"); }, {}, "aten::mul");
  enqueue(0, 2, [&] { ran += 10; }, {}, "aten::sub");
  try {
    synchronize_stream(0, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "aten::take: index 7 is out of range");
    EXPECT_EQ(error.kind(), ErrorKind::kIndex);
  }
  EXPECT_NO_THROW(synchronize_stream(0, 1));
  EXPECT_NO_THROW(synchronize_device(0));
  EXPECT_EQ(ran, 10);
  enqueue(0, 1, [&] { ++ran; }, {}, "aten::add");  // The stream works again.
  synchronize_stream(0, 1);
  EXPECT_EQ(ran, 11);
}

TEST_P(StreamTest, TurnsForeignExceptionsIntoErrors) {
  enqueue(0, 0, [] { throw std::runtime_error("boom"); }, {}, "aten::x");
  EXPECT_EQ(error_of([] { synchronize_device(0); }), "aten::x: boom");
  enqueue(0, 0, [] { throw 7; }, {}, "aten::y");
  EXPECT_EQ(error_of([] { synchronize_device(0); }), "aten::y: unknown exception");
}

TEST_P(StreamTest, BlockingModeRaisesAtOnce) {
  set_blocking(true);
  EXPECT_NE(
      error_of([] { enqueue(0, 0, [] { raise(ErrorKind::kDevice, "bad"); }, {}, "aten::x"); }), "");
  EXPECT_NO_THROW(synchronize_device(0));
}

TEST_P(StreamTest, EventsMarkPoints) {
  Event* unrecorded = create_event(false);
  EXPECT_TRUE(query_event(unrecorded));
  EXPECT_NO_THROW(synchronize_event(unrecorded));
  std::atomic<bool> go{GetParam()};
  std::atomic<bool> done{false};
  enqueue(
      0, 3,
      [&] {
        while (!go) std::this_thread::yield();
        done = true;
      },
      {}, "test::wait");
  Event* event = create_event(false);
  record_event(event, 0, 3);
  EXPECT_EQ(query_event(event), GetParam());
  EXPECT_EQ(query_stream(0, 3), GetParam());
  stream_wait_event(0, 4, event);
  bool seen = false;
  enqueue(0, 4, [&] { seen = done; }, {}, "test::check");
  go = true;
  synchronize_event(event);
  EXPECT_TRUE(done);
  EXPECT_TRUE(query_event(event));
  synchronize_stream(0, 4);
  EXPECT_TRUE(seen);
  destroy_event(event);
  destroy_event(unrecorded);
  destroy_event(nullptr);
}

TEST_P(StreamTest, TimesIntervals) {
  Event* start = create_event(true);
  Event* end = create_event(true);
  Event* untimed = create_event(false);
  EXPECT_NE(error_of([&] { elapsed_ms(start, end); }), "");
  record_event(start, 0, 2);
  enqueue(0, 2, [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }, {}, "sleep");
  record_event(end, 0, 2);
  record_event(untimed, 0, 2);
  synchronize_event(end);
  EXPECT_GE(elapsed_ms(start, end), 4.5);
  EXPECT_LT(elapsed_ms(start, end), 1000);
  EXPECT_LE(elapsed_ms(end, start), -4.5);
  EXPECT_NE(error_of([&] { elapsed_ms(start, untimed); }), "");
  record_event(start, 0, 2);  // A second recording replaces the first.
  synchronize_stream(0, 2);
  EXPECT_LT(elapsed_ms(start, end), 0);
  record_event(end, 0, 2);
  for (Event* event : {start, end, untimed}) destroy_event(event);  // Also while queued.
  synchronize_device(0);
}

TEST_P(StreamTest, WorkMayUseTheRuntime) {
  int value = 0;
  enqueue(
      0, 0,
      [&] {
        enqueue(0, 0, [&] { value = 1; }, {}, "inner");
        synchronize_stream(0, 0);
        if (value == 1) value = 2;
      },
      {}, "outer");
  synchronize_device(0);
  EXPECT_EQ(value, 2);
}

TEST_P(StreamTest, ManyThreadsSubmit) {
  std::atomic<int> count{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 1000; ++i) {
        enqueue(0, t, [&] { ++count; }, {}, "test::op");
        if (i % 100 == 0) synchronize_stream(0, t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  synchronize_device(0);
  EXPECT_EQ(count, 4000);
}

TEST(Streams, ComeFromAPool) {
  const int64_t a = new_stream(0, 0);
  const int64_t b = new_stream(0, 0);
  EXPECT_NE(a, b);
  for (int i = 0; i < 100; ++i) {
    const int64_t normal = pooled_stream(0, false);
    const int64_t high = pooled_stream(0, true);
    EXPECT_GE(normal, 1);
    EXPECT_LT(normal, kFirstHighPriority);
    EXPECT_GE(high, kFirstHighPriority);
    EXPECT_LT(high, kStreams);
  }
  EXPECT_THROW(query_stream(0, 64), Error);
  EXPECT_THROW(query_stream(-1, 0), Error);
  EXPECT_THROW(synchronize_stream(100000, 0), Error);
}

}  // namespace
}  // namespace neuron::runtime
