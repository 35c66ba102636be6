#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

#include "neuron/runtime/capture.h"
#include "neuron/runtime/communicator_test.h"
#include "neuron/runtime/executor.h"

// Every way in which ranks disagree, are late or die ends with an error that names them.
namespace neuron::runtime {
namespace {

using Clock = std::chrono::steady_clock;

int64_t milliseconds_since(Clock::time_point start) {
  return std::chrono::duration_cast<milliseconds>(Clock::now() - start).count();
}

template <typename Body>
std::string error_of(Body body, ErrorKind* kind = nullptr) {
  try {
    body();
  } catch (const Error& error) {
    if (kind != nullptr) *kind = error.kind();
    return error.what();
  }
  return "";
}

void expect_parts(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
  }
}

Collective reduce_of(std::vector<float>& data) {
  Collective call;
  call.kind = CollectiveKind::kAllReduce;
  call.name = "all_reduce";
  call.inputs = call.outputs = {{{data.data(), nullptr}, static_cast<int64_t>(data.size())}};
  return call;
}

Collective barrier() { return Collective(); }

Piece piece_of(std::vector<float>& data) {
  return {{data.data(), nullptr}, static_cast<int64_t>(data.size())};
}

SCENARIO(disagrees) {
  r.comm = r.join("g", milliseconds(20000));
  const bool odd = r.rank == 2;
  std::vector<float> data(odd ? 100 : 1000, 7);
  ErrorKind kind{};
  std::string text = error_of([&] { r.comm->start(reduce_of(data), 0, 0)->wait(); }, &kind);
  EXPECT_EQ(kind, ErrorKind::kInvalid);
  expect_parts(text, {"rank 0: all_reduce (sum of f32 [1000])",
                      "rank 2: all_reduce (sum of f32 [100])", "#1", "group 'g'"});
  EXPECT_EQ(std::count(data.begin(), data.end(), 7.0f), static_cast<int64_t>(data.size()));

  // The same after a large one, and with other differences.
  std::vector<float> large(odd ? 1000000 : 2000000, 7);
  text = error_of([&] { r.comm->start(reduce_of(large), 0, 0)->wait(); });
  expect_parts(text, {"[2000000]", "[1000000]", "#2"});
  Collective call = reduce_of(large = std::vector<float>(1000, 1));
  if (odd) call.reduction = Reduction::kMax;
  expect_parts(error_of([&] { r.comm->start(call, 0, 0)->wait(); }),
               {"sum of", "max of", "rank 2"});
  call = reduce_of(large);
  if (odd) call.dtype = DType::i32;
  expect_parts(error_of([&] { r.comm->start(call, 0, 0)->wait(); }), {"f32", "i32", "rank 2"});
  call = reduce_of(large);
  if (odd) call = barrier();
  expect_parts(error_of([&] { r.comm->start(call, 0, 0)->wait(); }),
               {"rank 0: all_reduce", "rank 2: barrier"});
  call = reduce_of(large);
  call.kind = CollectiveKind::kReduce;
  call.name = "reduce";
  call.root = odd ? 1 : 0;
  if (odd) call.outputs.clear();
  expect_parts(error_of([&] { r.comm->start(call, 0, 0)->wait(); }), {"root 0", "root 1"});

  // Sizes that only two ranks know.
  std::vector<float> in(static_cast<size_t>(r.size) * 10, 1), out(in.size() + 1, 0);
  call = Collective();
  call.kind = CollectiveKind::kAllToAll;
  call.name = "all_to_all";
  for (int q = 0; q < r.size; ++q) {
    const bool wrong = r.rank == 1 && q == 0;
    call.inputs.push_back({{&in[static_cast<size_t>(q) * 10], nullptr}, 10});
    call.outputs.push_back({{&out[static_cast<size_t>(q) * 10], nullptr}, wrong ? 9 : 10});
  }
  expect_parts(error_of([&] { r.comm->start(call, 0, 0)->wait(); }),
               {"rank 0 gives 10 elements, rank 1 expects 9 from it", "all_to_all"});
  EXPECT_EQ(std::count(out.begin(), out.end(), 0.0f), static_cast<int64_t>(out.size()));

  // Nothing is broken by that.
  std::vector<float> good(100000, 1);
  r.comm->start(reduce_of(good), 0, 0)->wait();
  EXPECT_EQ(std::count(good.begin(), good.end(), static_cast<float>(r.size)), 100000);
}
TEST(Failure, Disagreement) {
  run("disagrees", 3);
  run("disagrees", 5);
}

SCENARIO(refuses_bad_arguments) {
  r.comm = r.join("g", milliseconds(20000));
  std::vector<float> data(10, 1);
  const auto refused = [&](Collective call, ErrorKind expected, const char* part) {
    ErrorKind kind{};
    const std::string text = error_of([&] { r.comm->start(std::move(call), 0, 0); }, &kind);
    EXPECT_EQ(kind, expected) << text;
    expect_parts(text, {part});
  };
  Collective call = reduce_of(data);
  call.reduction = Reduction::kBitXor;
  refused(call, ErrorKind::kUnsupported, "bxor of f32");
  call = reduce_of(data);
  call.dtype = DType::i32;
  call.factor = 2;
  refused(call, ErrorKind::kUnsupported, "scaled by 2 of i32");
  call = reduce_of(data);
  call.outputs[0].count = 9;
  refused(call, ErrorKind::kInvalid, "input 0 has 10 elements, output 0 has 9");
  call = reduce_of(data);
  call.inputs[0].count = call.outputs[0].count = -1;
  refused(call, ErrorKind::kInvalid, "piece 0");
  call = reduce_of(data);
  call.kind = CollectiveKind::kBroadcast;
  call.root = 5;
  refused(call, ErrorKind::kInvalid, "root 5");
  call = reduce_of(data);
  call.kind = CollectiveKind::kAllGather;
  refused(call, ErrorKind::kInvalid, "2 outputs expected in a group of 2 ranks, got 1");
  EXPECT_NE(error_of([&] { r.comm->send(piece_of(data), DType::f32, 2, 0, 0, 0); }), "");
  EXPECT_NE(error_of([&] { r.comm->recv(piece_of(data), DType::f32, 2, 0, 0, 0); }), "");
  EXPECT_EQ(r.comm->sequence(), 0u);
  r.comm->start(barrier(), 0, 0)->wait();
}
TEST(Failure, BadArguments) { run("refuses_bad_arguments", 2); }

SCENARIO(transfers_do_not_fit) {
  r.comm = r.join("g", milliseconds(20000));
  for (const size_t count : {size_t{10}, size_t{500000}}) {
    std::vector<float> sent(count, 1), wanted(count + 1, 0);
    const std::string text = error_of([&] {
      if (r.rank == 0) {
        r.comm->send(piece_of(sent), DType::f32, 1, 3, 0, 0)->wait();
      } else {
        r.comm->recv(piece_of(wanted), DType::f32, 0, 3, 0, 0)->wait();
      }
    });
    // A small message has left before.
    if (r.rank == 1 || count > 100000) {
      expect_parts(text, {"rank 0 sends f32 [", "to rank 1, which expects f32 ["});
    }
    if (r.rank == 0) {
      r.comm->send(piece_of(sent), DType::f32, 1, 3, 0, 0)->wait();
    } else {
      std::vector<float> right(count);
      r.comm->recv(piece_of(right), DType::f32, 0, 3, 0, 0)->wait();
      EXPECT_EQ(right, std::vector<float>(count, 1));
    }
  }
}
TEST(Failure, TransfersOfDifferentSizes) { run("transfers_do_not_fit", 2); }

SCENARIO(one_is_late) {
  r.comm = r.join("g", milliseconds(20000));
  std::vector<float> data(10, 1);
  r.comm->start(reduce_of(data), 0, 0)->wait();
  r.comm->set_timeout(milliseconds(700));
  if (r.rank == 1) {
    r.await("timed_out");
    const std::string text = error_of([&] { r.comm->start(reduce_of(data), 0, 0)->wait(); });
    expect_parts(text, {"rank 1 had not arrived", "all_reduce"});
    return;
  }
  // wait() with a limit of its own does not end the operation.
  const auto start = Clock::now();
  const OperationRef op = r.comm->start(reduce_of(data), 0, 0);
  std::string text = error_of([&] { op->wait(milliseconds(50)); });
  EXPECT_LT(milliseconds_since(start), 500);
  expect_parts(text, {"has not ended after 50 ms", "rank 1 had not arrived"});
  EXPECT_FALSE(op->done());
  ErrorKind kind{};
  text = error_of([&] { op->wait(); }, &kind);
  EXPECT_EQ(kind, ErrorKind::kDevice);
  expect_parts(text, {"all_reduce (sum of f32 [10]) #2 of group 'g'", "timed out after 700 ms",
                      "rank 1 had not arrived", "its last collective was #1, all_reduce"});
  EXPECT_GE(milliseconds_since(start), 650);
  EXPECT_LT(milliseconds_since(start), 3000);
  EXPECT_NE(op->error(), nullptr);
  text = error_of([&] { r.comm->start(reduce_of(data), 0, 0)->wait(); });
  expect_parts(text, {"cannot be used any more", "rank 1 had not arrived"});
  r.mark("timed_out");
}
TEST(Failure, LateRank) { run("one_is_late", 3); }

SCENARIO(nobody_sends) {
  r.comm = r.join("g", milliseconds(500));
  std::vector<float> data(10, 1), large(1000000, 1);
  std::string text;
  if (r.rank == 0) {
    text = error_of([&] { r.comm->recv(piece_of(data), DType::f32, 1, 3, 0, 0)->wait(); });
    expect_parts(text, {"recv (f32 [10], tag 3) from rank 1", "timed out after 500 ms",
                        "rank 1 has not called send"});
    text = error_of([&] { r.comm->recv(piece_of(data), DType::f32, -1, 3, 0, 0)->wait(); });
    expect_parts(text, {"from any rank", "no rank has sent anything with this tag"});
    text = error_of([&] { r.comm->send(piece_of(large), DType::f32, 1, 4, 0, 0)->wait(); });
    expect_parts(text, {"send (f32 [1000000], tag 4) to rank 1", "rank 1 has not called recv"});
    r.mark("gave_up");
  } else {
    r.await("gave_up");
    text = error_of([&] { r.comm->recv(piece_of(large), DType::f32, 0, 4, 0, 0)->wait(); });
    expect_parts(text, {"rank 0 gave up its send (tag 4"});
  }
  // The group goes on.
  r.comm->set_timeout(milliseconds(20000));
  r.comm->start(barrier(), 0, 0)->wait();
}
TEST(Failure, TransferWithoutPartner) { run("nobody_sends", 2); }

SCENARIO(one_never_joins) {
  if (r.rank == 2) return;
  const auto start = Clock::now();
  const std::string text = error_of([&] { r.join("g", milliseconds(600)); });
  expect_parts(text, {"group 'g' of 3 ranks", "rank 2 did not arrive"});
  EXPECT_LT(milliseconds_since(start), 3000);
}
TEST(Failure, IncompleteGroup) { run("one_never_joins", 3); }

SCENARIO(one_aborts) {
  r.comm = r.join("g", milliseconds(20000));
  std::vector<float> data(100, 1);
  const auto start = Clock::now();
  if (r.rank == 1) {
    usleep(200000);
    r.comm->abort("the loss is not a number");
  } else {
    const OperationRef op = r.comm->start(reduce_of(data), 0, 0);
    const OperationRef other = r.comm->recv(piece_of(data), DType::f32, 1, 0, 0, 0);
    for (const OperationRef& each : {op, other}) {
      expect_parts(error_of([&] { each->wait(); }), {"rank 1: aborted: the loss is not a number"});
    }
  }
  EXPECT_NE(error_of([&] { r.comm->start(reduce_of(data), 0, 0)->wait(); }), "");
  EXPECT_LT(milliseconds_since(start), 3000);
}
TEST(Failure, Abort) { run("one_aborts", 3); }

SCENARIO(one_leaves) {
  r.comm = r.join("g", milliseconds(20000));
  std::vector<float> data(100, 1), large(1000000, 2);
  r.comm->start(reduce_of(data), 0, 0)->wait();
  if (r.rank == 1) {
    r.comm->send(piece_of(data), DType::f32, 0, 0, 0, 0)->wait();
    shutdown();
    r.comm = nullptr;
    std::_Exit(testing::Test::HasFailure() ? 1 : 0);
  }
  usleep(300000);
  // What it sent before is there; others are not disturbed.
  if (r.rank == 0) {
    r.comm->recv(piece_of(data), DType::f32, 1, 0, 0, 0)->wait();
    r.comm->send(piece_of(large), DType::f32, 2, 0, 0, 0)->wait();
  }
  if (r.rank == 2) r.comm->recv(piece_of(large), DType::f32, 0, 0, 0, 0)->wait();
  const auto start = Clock::now();
  const std::string text = error_of([&] { r.comm->start(reduce_of(data), 0, 0)->wait(); });
  expect_parts(text, {"rank 1 has left the group", "all_reduce"});
  EXPECT_LT(milliseconds_since(start), 3000);
}
TEST(Failure, RankThatLeaves) { run("one_leaves", 3); }

SCENARIO(is_killed_while_others_wait) {
  r.comm = r.join("g", milliseconds(20000));
  std::vector<float> data(100, 1), large(500000, 1);
  r.comm->start(reduce_of(data), 0, 0)->wait();
  if (r.rank == 1) {
    r.mark("ready");
    while (true) pause();
  }
  const auto op = r.comm->start(reduce_of(data), 0, 0);
  const auto send = r.comm->send(piece_of(large), DType::f32, 1, 0, 0, 0);
  const auto recv = r.comm->recv(piece_of(data), DType::f32, 1, 0, 0, 0);
  r.await("killed");
  const auto start = Clock::now();
  for (const OperationRef& each : {op, send, recv}) {
    expect_parts(error_of([&] { each->wait(); }), {"rank 1 (process", ") has died", "group 'g'"});
  }
  expect_parts(error_of([&] { r.comm->start(reduce_of(data), 0, 0)->wait(); }), {"has died"});
  EXPECT_LT(milliseconds_since(start), 1000);
}
TEST(Failure, KilledRank) {
  Ranks ranks("is_killed_while_others_wait", 3);
  ranks.await("ready");
  usleep(100000);
  ranks.kill(1);
  std::ofstream(ranks.folder() / "killed") << "x";
  ranks.expect_success();
}

// All kinds of operations without end; only somebody's death ends it.
SCENARIO(works_until_death) {
  const auto start = Clock::now();
  std::string text;
  try {
    r.comm = r.join("g", milliseconds(2500));
    std::vector<float> data(300000, 1), other(300000, 1), small(64, 1);
    const int next = (r.rank + 1) % r.size, before = (r.rank + r.size - 1) % r.size;
    for (int step = 0;; ++step) {
      auto send = r.comm->send(piece_of(step % 2 ? data : small), DType::f32, next, step, 0, 0);
      auto reduce = r.comm->start(reduce_of(step % 3 ? small : other), 0, 0);
      auto recv = r.comm->recv(piece_of(step % 2 ? data : small), DType::f32, before, step, 0, 0);
      recv->wait();
      reduce->wait();
      send->wait();
      r.comm->start(barrier(), 0, 0)->wait();
      std::fill(other.begin(), other.end(), 1.0f);
    }
  } catch (const Error& error) {
    text = error.what();
  }
  EXPECT_NE(text, "");
  r.await("killed");
  EXPECT_LT(milliseconds_since(start), 9000);
  // In the middle of the meeting there may be nobody to name.
  EXPECT_TRUE(text.find("rank 2") != std::string::npos ||
              text.find("has ended") != std::string::npos)
      << text;
  r.comm = nullptr;
}

std::vector<std::string> shared_memory_files() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    // Semaphores are of other programs that happen to run.
    if (!name.starts_with("sem.")) names.push_back(name);
  }
  return names;
}

TEST(Failure, KilledAtAnyPoint) {
  const auto before = shared_memory_files();
  std::minstd_rand random(12345);
  for (int i = 0; i < 20; ++i) {
    Ranks ranks("works_until_death", 4);
    // The first few die while they meet.
    usleep(static_cast<useconds_t>(i < 5 ? 3000 * (i + 1) : random() % 400000 + 20000));
    ranks.kill(2);
    std::ofstream(ranks.folder() / "killed") << "x";
    ranks.expect_success();
  }
  EXPECT_EQ(shared_memory_files(), before);
}

SCENARIO(is_forked) {
  r.comm = r.join("g", milliseconds(20000));
  std::vector<float> data(100, 1);
  r.comm->start(reduce_of(data), 0, 0)->wait();
  const pid_t child = fork();
  if (child == 0) {
    const std::string text = error_of([&] { r.comm->start(reduce_of(data), 0, 0)->wait(); });
    const std::string joined = error_of([&] { r.join("h", milliseconds(1000)); });
    r.comm = nullptr;
    std::_Exit(
        text.find("forked") != std::string::npos && joined.find("forked") != std::string::npos ? 0
                                                                                               : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  r.comm->start(reduce_of(data), 0, 0)->wait();
}
TEST(Failure, ForkedChild) { run("is_forked", 2); }

// --- Streams -------------------------------------------------------------------------------------

SCENARIO(follows_its_stream) {
  set_inline_for_testing(false);
  r.comm = r.join("g", milliseconds(20000));
  std::vector<float> data(1000, 0);
  std::atomic<bool> go{false};
  enqueue(
      0, 1,
      [&] {
        while (!go) usleep(1000);
        std::fill(data.begin(), data.end(), 1.0f);
      },
      {}, "fill");
  const OperationRef op = r.comm->start(reduce_of(data), 0, 1);
  float sum = 0;
  op->order_before(0, 1);
  enqueue(0, 1, [&] { sum = data[999]; }, {}, "read");
  usleep(50000);
  EXPECT_FALSE(op->done());
  go = true;
  synchronize_stream(0, 1);
  EXPECT_TRUE(op->done());
  EXPECT_EQ(sum, static_cast<float>(r.size));

  // An error of the operation is the stream's.
  std::vector<float> wrong(r.rank == 0 ? 10 : 20, 1);
  const OperationRef bad = r.comm->start(reduce_of(wrong), 0, 1);
  bad->order_before(0, 1);
  expect_parts(error_of([&] { synchronize_stream(0, 1); }), {"ask for different things"});

  // A stream that has failed does not leave the others waiting.
  if (r.rank == 1) {
    enqueue(
        0, 2,
        [&] {
          usleep(50000);
          raise(ErrorKind::kIndex, "index out of range");
        },
        {}, "aten::take");
  }
  const OperationRef last = r.comm->start(reduce_of(data), 0, 2);
  expect_parts(error_of([&] { last->wait(); }), {"an earlier operation of the stream has failed"});
  EXPECT_EQ(error_of([&] { synchronize_stream(0, 2); }) != "", r.rank == 1);
}
TEST(Streams, OrderWithExecutorThread) { run("follows_its_stream", 2); }

SCENARIO(raises_inline) {
  set_inline_for_testing(true);
  r.comm = r.join("g", milliseconds(20000));
  std::vector<float> wrong(r.rank == 0 ? 10 : 20, 1);
  const OperationRef bad = r.comm->start(reduce_of(wrong), 0, 1);
  expect_parts(error_of([&] { bad->order_before(0, 1); }), {"ask for different things"});
  // A failed stream starts nothing.
  std::vector<float> data(10, 1);
  expect_parts(
      error_of([&] {
        enqueue(0, 1, [] { raise(ErrorKind::kIndex, "index out of range"); }, {}, "aten::take");
        r.comm->start(reduce_of(data), 0, 1);
      }),
      {"index out of range"});
  r.comm->start(reduce_of(data), 0, 1)->order_before(0, 1);
  EXPECT_EQ(data[9], static_cast<float>(r.size));
}
TEST(Streams, OrderInline) { run("raises_inline", 2); }

SCENARIO(is_captured) {
  r.comm = r.join("g", milliseconds(20000));
  std::vector<float> data(10, 1);
  const CaptureRef capture = begin_capture(0, 1);
  const OperationRef recorded = r.comm->start(reduce_of(data), 0, 1);
  recorded->order_before(0, 1);
  enqueue(0, 1, [&] { data[0] += 1; }, {}, "aten::add");  // Behind the collective at each replay.
  int calls = 0;
  recorded->on_done([&] { ++calls; });
  EXPECT_FALSE(recorded->done());
  end_capture(capture);
  EXPECT_TRUE(recorded->done());
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(data[9], 1);  // Nothing has run.
  const auto size = static_cast<float>(r.size);
  for (int times = 0; times < 3; ++times) replay(capture, 1);
  synchronize_stream(0, 1);
  EXPECT_EQ(data[9], size * size * size);
  EXPECT_EQ(data[0], ((size + 1) * size + 1) * size + 1);
}
TEST(Streams, RunsCapturedCollectivesAtEachReplay) { run("is_captured", 2); }

SCENARIO(waits_in_a_capture) {
  r.comm = r.join("g", milliseconds(20000));
  std::vector<float> data(10, 1);
  const OperationRef before = r.comm->start(reduce_of(data), 0, 1);
  const CaptureRef capture = begin_capture(0, 1);
  expect_parts(error_of([&] { before->order_before(0, 1); }), {"waiting for a collective"});
  expect_parts(error_of([&] { r.comm->start(reduce_of(data), 0, 1)->wait(); }),
               {"waiting for a collective", "not permitted when the stream is capturing"});
  EXPECT_NE(error_of([&] {
              end_capture(capture);
              replay(capture, 1);
            }),
            "");
  before->wait();
  r.comm->start(reduce_of(data), 0, 1)->wait();
  EXPECT_EQ(data[9], static_cast<float>(r.size * r.size));
}
TEST(Streams, RefusesToWaitInACapture) { run("waits_in_a_capture", 2); }

// Threads that wait for different operations of one process.
SCENARIO(waits_in_threads) {
  r.comm = r.join("g", milliseconds(20000));
  const auto second = r.join("h", milliseconds(20000));
  std::vector<std::vector<float>> data(8, std::vector<float>(200000, 1));
  std::vector<OperationRef> ops;
  for (size_t i = 0; i < data.size(); ++i) {
    ops.push_back((i % 2 ? *second : *r.comm).start(reduce_of(data[i]), 0, 0));
  }
  std::vector<std::thread> threads;
  for (size_t i = 0; i < data.size(); ++i) {
    threads.emplace_back([&, i] {
      ops[i]->wait();
      EXPECT_EQ(data[i].back(), static_cast<float>(r.size));
    });
  }
  for (std::thread& thread : threads) thread.join();
  second->close();
  EXPECT_NE(error_of([&] { second->start(barrier(), 0, 0); }), "");
}
TEST(Streams, ThreadsWait) { run("waits_in_threads", 3); }

TEST(Group, NeedsTheSimulator) {
  const std::string identity = host_identity();
  EXPECT_EQ(identity, host_identity());
  EXPECT_GT(identity.size(), 40u);
}

}  // namespace
}  // namespace neuron::runtime
