#include "neuron/runtime/communicator_test.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <complex>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <thread>

#include "neuron/base/float_formats.h"

namespace neuron::runtime {
namespace {

TEST(Rank, Plays) {
  const char* scenario = std::getenv("NEURON_TEST_SCENARIO");
  if (scenario == nullptr) GTEST_SKIP() << "for the processes that the other tests start";
  Rank rank;
  rank.rank = std::atoi(std::getenv("NEURON_TEST_RANK"));
  rank.size = std::atoi(std::getenv("NEURON_TEST_SIZE"));
  rank.folder = std::getenv("NEURON_TEST_FOLDER");
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  scenarios().at(scenario)(rank);
  if (rank.comm != nullptr) rank.comm->close();
}

// --- Values --------------------------------------------------------------------------------------

constexpr int kWide = 16;  // Bytes of the widest element.

void encode(DType dtype, double value, void* to) {
  const auto store = [&](auto typed) { std::memcpy(to, &typed, sizeof(typed)); };
  const float narrow = static_cast<float>(value);
  switch (dtype) {
    case DType::pred:
      return store(static_cast<uint8_t>(value != 0));
    case DType::i8:
      return store(static_cast<int8_t>(static_cast<int64_t>(value)));
    case DType::i16:
      return store(static_cast<int16_t>(static_cast<int64_t>(value)));
    case DType::i32:
      return store(static_cast<int32_t>(value));
    case DType::i64:
      return store(static_cast<int64_t>(value));
    case DType::u8:
      return store(static_cast<uint8_t>(static_cast<int64_t>(value)));
    case DType::u16:
      return store(static_cast<uint16_t>(static_cast<int64_t>(value)));
    case DType::u32:
      return store(static_cast<uint32_t>(value));
    case DType::u64:
      return store(static_cast<uint64_t>(value));
    case DType::f16:
      return store(float_to_f16(narrow));
    case DType::bf16:
      return store(float_to_bf16(narrow));
    case DType::f32:
      return store(narrow);
    case DType::f64:
      return store(value);
    case DType::f8e4m3fn:
      return store(float_to_f8e4m3fn(narrow));
    case DType::f8e4m3:
      return store(float_to_f8e4m3(narrow));
    case DType::f8e5m2:
      return store(float_to_f8e5m2(narrow));
    case DType::c64:
      return store(std::complex<float>(narrow, 0));
    case DType::c128:
      return store(std::complex<double>(value, 0));
  }
}

// Elements of one type, filled by a function of the position.
class Values {
 public:
  template <typename Function>
  Values(DType dtype, int64_t count, Function value)
      : dtype_(dtype), count_(count), bytes_(static_cast<size_t>(count) * size_of(dtype) + kWide) {
    for (int64_t i = 0; i < count; ++i) encode(dtype, value(i), at(i));
  }
  Values(DType dtype, int64_t count) : Values(dtype, count, [](int64_t) { return 0.0; }) {}

  std::byte* at(int64_t i) { return bytes_.data() + static_cast<size_t>(i) * size_of(dtype_); }
  Piece piece() { return {{bytes_.data(), nullptr}, count_}; }
  Piece piece(int64_t begin, int64_t count) { return {{at(begin), nullptr}, count}; }
  // Position of the first difference, or -1.
  template <typename Function>
  int64_t difference(Function expected) {
    for (int64_t i = 0; i < count_; ++i) {
      std::byte wanted[kWide] = {};
      encode(dtype_, expected(i), wanted);
      if (std::memcmp(wanted, at(i), size_of(dtype_)) != 0) return i;
    }
    return -1;
  }
  int64_t count() const { return count_; }

 private:
  DType dtype_;
  int64_t count_;
  std::vector<std::byte> bytes_;
};

// Small enough to be exact in every type, whatever is done with eight of them.
double value_of(int rank, int64_t i) { return (i + rank) % 3 == 0 ? 2 : 1; }

Collective make(CollectiveKind kind, DType dtype = DType::f32,
                Reduction reduction = Reduction::kSum, int root = 0) {
  Collective call;
  call.kind = kind;
  call.dtype = dtype;
  call.reduction = reduction;
  call.root = root;
  return call;
}

void finish(Rank& r, Collective call) { r.comm->start(std::move(call), 0, 0)->wait(); }

// --- Scenarios -----------------------------------------------------------------------------------

double reduced(Reduction reduction, DType dtype, int size, int64_t i) {
  double result = value_of(0, i);
  for (int rank = 1; rank < size; ++rank) {
    const double value = value_of(rank, i);
    const auto a = static_cast<int64_t>(result), b = static_cast<int64_t>(value);
    switch (reduction) {
      case Reduction::kSum:
      case Reduction::kAverage:
        result += value;
        break;
      case Reduction::kProduct:
        result *= value;
        break;
      case Reduction::kMin:
        result = std::min(result, value);
        break;
      case Reduction::kMax:
        result = std::max(result, value);
        break;
      case Reduction::kBitAnd:
        result = static_cast<double>(a & b);
        break;
      case Reduction::kBitOr:
        result = static_cast<double>(a | b);
        break;
      case Reduction::kBitXor:
        result = static_cast<double>(a ^ b);
        break;
    }
  }
  if (reduction == Reduction::kAverage) {
    result /= size;
    if (is_integer(dtype)) result = static_cast<double>(static_cast<int64_t>(result));
    if (size_of(dtype) < 4 || dtype == DType::f32 || dtype == DType::c64) {
      result = static_cast<float>(result);
    }
  }
  if (dtype == DType::pred) {
    // All values are true.
    const bool both = reduction != Reduction::kBitXor || size % 2 == 1;
    result = both ? 1 : 0;
  }
  return result;
}

bool is_supported(Reduction reduction, DType dtype) {
  if (reduction >= Reduction::kBitAnd) return is_integer(dtype) || dtype == DType::pred;
  if (reduction == Reduction::kMin || reduction == Reduction::kMax) return !is_complex(dtype);
  return reduction != Reduction::kAverage || dtype != DType::pred;
}

// Small, cut into uneven parts, several rounds.
constexpr int64_t kCounts[] = {0, 1, 77, 5000, 400001};

SCENARIO(reduces_everything) {
  r.comm = r.join("g", milliseconds(60000));
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    for (int o = 0; o < 8; ++o) {
      const auto reduction = static_cast<Reduction>(o);
      // Large ones for the types whose sizes and accumulators differ.
      const bool often = dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::c128;
      const int64_t count = kCounts[1 + (d + o) % (often ? 4 : 3)];
      Values data(dtype, count, [&](int64_t i) { return value_of(r.rank, i); });
      Collective call = make(CollectiveKind::kAllReduce, dtype, reduction);
      call.inputs = call.outputs = {data.piece()};
      if (!is_supported(reduction, dtype)) {
        try {
          r.comm->start(call, 0, 0);
          ADD_FAILURE() << o << " of " << name_of(dtype) << " is not refused";
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kUnsupported) << error.what();
        }
        continue;
      }
      finish(r, call);
      EXPECT_EQ(data.difference([&](int64_t i) { return reduced(reduction, dtype, r.size, i); }),
                -1)
          << "all_reduce " << o << " of " << name_of(dtype) << " [" << count << "]";

      // Its part of each sum, pieces of different sizes.
      std::vector<int64_t> begins{0};
      for (int q = 0; q < r.size; ++q) begins.push_back(begins.back() + count / r.size + q % 2);
      Values input(dtype, begins.back(), [&](int64_t i) { return value_of(r.rank, i); });
      const int64_t begin = begins[static_cast<size_t>(r.rank)];
      Values output(dtype, begins[static_cast<size_t>(r.rank) + 1] - begin);
      call = make(CollectiveKind::kReduceScatter, dtype, reduction);
      for (int q = 0; q < r.size; ++q) {
        const auto index = static_cast<size_t>(q);
        call.inputs.push_back(input.piece(begins[index], begins[index + 1] - begins[index]));
      }
      call.outputs = {output.piece()};
      finish(r, call);
      EXPECT_EQ(output.difference(
                    [&](int64_t i) { return reduced(reduction, dtype, r.size, begin + i); }),
                -1)
          << "reduce_scatter " << o << " of " << name_of(dtype) << " [" << count << "]";
    }
  }
}

SCENARIO(reduces_to_each_root) {
  r.comm = r.join("g", milliseconds(60000));
  for (const int64_t count : kCounts) {
    for (int root = 0; root < r.size; ++root) {
      Values a(DType::f32, count, [&](int64_t i) { return value_of(r.rank, i); });
      Values b(DType::f32, 3, [&](int64_t i) { return value_of(r.rank, i); });
      Values sum(DType::f32, count), other(DType::f32, 3);
      Collective call = make(CollectiveKind::kReduce, DType::f32, Reduction::kSum, root);
      call.factor = 0.5;
      call.inputs = {a.piece(), b.piece()};
      call.outputs = {sum.piece(), other.piece()};
      finish(r, call);
      const auto expected = [&](int64_t i) {
        return r.rank == root ? reduced(Reduction::kSum, DType::f32, r.size, i) / 2 : 0.0;
      };
      EXPECT_EQ(sum.difference(expected), -1) << count << " to " << root;
      EXPECT_EQ(other.difference(expected), -1) << count << " to " << root;
    }
  }
}

double moved(int from, int to, int64_t i) {
  return static_cast<double>((from * 31 + to * 7 + i) % 113);
}

SCENARIO(moves_everything) {
  r.comm = r.join("g", milliseconds(60000));
  const auto n = static_cast<size_t>(r.size);
  const DType dtype = DType::i16;
  for (const int64_t base : kCounts) {
    // Counts that differ between ranks, some of them 0.
    const auto count = [&](int from, int to) { return (from + 2 * to) % 3 == 0 ? 0 : base + from; };
    for (int root = 0; root < r.size; ++root) {
      Values data(dtype, base, [&](int64_t i) { return r.rank == root ? moved(root, 0, i) : 0; });
      Collective call = make(CollectiveKind::kBroadcast, dtype, Reduction::kSum, root);
      call.inputs = call.outputs = {data.piece()};
      finish(r, call);
      EXPECT_EQ(data.difference([&](int64_t i) { return moved(root, 0, i); }), -1)
          << "broadcast from " << root;

      std::vector<Values> pieces;
      for (int q = 0; q < r.size; ++q) {
        pieces.emplace_back(dtype, count(root, q), [&](int64_t i) { return moved(root, q, i); });
      }
      Values mine(dtype, count(root, r.rank));
      call = make(CollectiveKind::kScatter, dtype, Reduction::kSum, root);
      for (Values& piece : pieces) call.inputs.push_back(piece.piece());
      call.outputs = {mine.piece()};
      finish(r, call);
      EXPECT_EQ(mine.difference([&](int64_t i) { return moved(root, r.rank, i); }), -1)
          << "scatter from " << root;

      Values given(dtype, count(r.rank, 0), [&](int64_t i) { return moved(r.rank, 0, i); });
      pieces.clear();
      for (int q = 0; q < r.size; ++q) pieces.emplace_back(dtype, count(q, 0));
      call = make(CollectiveKind::kGather, dtype, Reduction::kSum, root);
      call.inputs = {given.piece()};
      for (Values& piece : pieces) call.outputs.push_back(piece.piece());
      finish(r, call);
      for (size_t q = 0; r.rank == root && q < n; ++q) {
        EXPECT_EQ(pieces[q].difference([&](int64_t i) { return moved(static_cast<int>(q), 0, i); }),
                  -1)
            << "gather of " << q << " to " << root;
      }
    }
    Values given(dtype, count(r.rank, 0), [&](int64_t i) { return moved(r.rank, 0, i); });
    std::vector<Values> pieces;
    for (int q = 0; q < r.size; ++q) pieces.emplace_back(dtype, count(q, 0));
    Collective call = make(CollectiveKind::kAllGather, dtype);
    call.inputs = {given.piece()};
    for (Values& piece : pieces) call.outputs.push_back(piece.piece());
    finish(r, call);
    for (size_t q = 0; q < n; ++q) {
      EXPECT_EQ(pieces[q].difference([&](int64_t i) { return moved(static_cast<int>(q), 0, i); }),
                -1)
          << "all_gather of " << q;
    }
    std::vector<Values> from, to;
    for (int q = 0; q < r.size; ++q) {
      from.emplace_back(dtype, count(r.rank, q), [&](int64_t i) { return moved(r.rank, q, i); });
      to.emplace_back(dtype, count(q, r.rank));
    }
    call = make(CollectiveKind::kAllToAll, dtype);
    for (size_t q = 0; q < n; ++q) {
      call.inputs.push_back(from[q].piece());
      call.outputs.push_back(to[q].piece());
    }
    finish(r, call);
    for (size_t q = 0; q < n; ++q) {
      EXPECT_EQ(to[q].difference([&](int64_t i) { return moved(static_cast<int>(q), r.rank, i); }),
                -1)
          << "all_to_all from " << q;
    }
    finish(r, make(CollectiveKind::kBarrier));
  }
  EXPECT_EQ(r.comm->sequence(), 5u * (3u * n + 3u));
}

SCENARIO(keeps_many_in_flight) {
  r.comm = r.join("g", milliseconds(60000));
  std::vector<Values> data;
  std::vector<OperationRef> ops;
  std::atomic<int> ended{0};
  for (int k = 0; k < 40; ++k) {
    data.emplace_back(DType::f32, k % 4 == 0 ? 300000 : 10 + k,
                      [&](int64_t i) { return value_of(r.rank, i + k); });
  }
  for (int k = 0; k < 40; ++k) {
    Collective call = make(CollectiveKind::kAllReduce);
    call.inputs = call.outputs = {data[static_cast<size_t>(k)].piece()};
    ops.push_back(r.comm->start(call, 0, 0));
    ops.back()->on_done([&] { ++ended; });
    EXPECT_EQ(ops.back()->sequence(), static_cast<uint64_t>(k + 1));
  }
  for (const OperationRef& op : ops) op->wait();
  for (int k = 0; k < 40; ++k) {
    EXPECT_EQ(data[static_cast<size_t>(k)].difference(
                  [&](int64_t i) { return reduced(Reduction::kSum, DType::f32, r.size, i + k); }),
              -1)
        << k;
  }
  for (int i = 0; i < 1000 && ended < 40; ++i) usleep(1000);
  EXPECT_EQ(ended, 40);
}

// Without anybody waiting the background thread does it all.
SCENARIO(needs_no_waiter) {
  r.comm = r.join("g", milliseconds(60000));
  Values data(DType::f32, 1000000, [&](int64_t i) { return value_of(r.rank, i); });
  Collective call = make(CollectiveKind::kAllReduce);
  call.inputs = call.outputs = {data.piece()};
  const OperationRef op = r.comm->start(call, 0, 0);
  for (int i = 0; i < 20000 && !op->done(); ++i) usleep(1000);
  ASSERT_TRUE(op->done());
  EXPECT_EQ(op->error(), nullptr);
  EXPECT_EQ(
      data.difference([&](int64_t i) { return reduced(Reduction::kSum, DType::f32, r.size, i); }),
      -1);
}

SCENARIO(sends_and_receives) {
  r.comm = r.join("g", milliseconds(60000));
  const int64_t counts[] = {0, 5, 3000, 700001};
  // All to all, sends first; tags in the opposite order at the receiver.
  std::vector<Values> out, in;
  std::vector<OperationRef> ops;
  for (int q = 0; q < r.size; ++q) {
    for (int t = 0; t < 4; ++t) {
      out.emplace_back(DType::i32, counts[t], [&](int64_t i) { return moved(r.rank, q + t, i); });
    }
  }
  for (int q = 0; q < r.size; ++q) {
    for (int t = 3; t >= 0; --t) {
      in.emplace_back(DType::i32, counts[t]);
    }
  }
  for (int q = 0; q < r.size; ++q) {
    for (int t = 0; t < 4; ++t) {
      ops.push_back(
          r.comm->send(out[static_cast<size_t>(q * 4 + t)].piece(), DType::i32, q, t, 0, 0));
    }
  }
  for (int q = 0; q < r.size; ++q) {
    for (int t = 3; t >= 0; --t) {
      ops.push_back(
          r.comm->recv(in[static_cast<size_t>(q * 4 + 3 - t)].piece(), DType::i32, q, t, 0, 0));
    }
  }
  for (const OperationRef& op : ops) op->wait();
  for (int q = 0; q < r.size; ++q) {
    for (int t = 3; t >= 0; --t) {
      EXPECT_EQ(in[static_cast<size_t>(q * 4 + 3 - t)].difference(
                    [&](int64_t i) { return moved(q, r.rank + t, i); }),
                -1)
          << "from " << q << " tag " << t;
    }
  }
  // Equal tags match in order, whatever their sizes.
  const int next = (r.rank + 1) % r.size, before = (r.rank + r.size - 1) % r.size;
  std::vector<Values> first, second;
  ops.clear();
  for (int k = 0; k < 6; ++k) {
    const int64_t count = k % 2 == 0 ? 400000 : 10;
    first.emplace_back(DType::f32, count, [&](int64_t i) { return moved(r.rank, k, i); });
    second.emplace_back(DType::f32, count);
  }
  for (size_t k = 0; k < 6; ++k) {
    ops.push_back(r.comm->send(first[k].piece(), DType::f32, next, 9, 0, 0));
    ops.push_back(r.comm->recv(second[k].piece(), DType::f32, before, 9, 0, 0));
  }
  for (const OperationRef& op : ops) op->wait();
  for (size_t k = 0; k < 6; ++k) {
    EXPECT_EQ(
        second[k].difference([&](int64_t i) { return moved(before, static_cast<int>(k), i); }), -1);
  }
  // From anybody.
  if (r.rank == 0) {
    std::vector<bool> seen(static_cast<size_t>(r.size));
    for (int q = 1; q < r.size; ++q) {
      Values got(DType::i64, 2);
      const OperationRef op = r.comm->recv(got.piece(), DType::i64, -1, 5, 0, 0);
      op->wait();
      const int source = op->source_rank();
      EXPECT_EQ(got.difference([&](int64_t) { return source; }), -1);
      EXPECT_FALSE(seen[static_cast<size_t>(source)]);
      seen[static_cast<size_t>(source)] = true;
    }
  } else {
    Values sent(DType::i64, 2, [&](int64_t) { return r.rank; });
    r.comm->send(sent.piece(), DType::i64, 0, 5, 0, 0)->wait();
  }
  finish(r, make(CollectiveKind::kBarrier));
}

// A ring that gets lost costs a tick of the sleeping thread, 0.2 s.
SCENARIO(loses_no_ring) {
  r.comm = r.join("g", milliseconds(60000));
  const auto other = r.join("h", milliseconds(60000));
  const int next = (r.rank + 1) % r.size, before = (r.rank + r.size - 1) % r.size;
  Values a(DType::f32, 50000), b(DType::f32, 50), c(DType::f32, 50), d(DType::f32, 30000),
      e(DType::f32, 30000);
  int slow = 0;
  for (int step = 0; step < 1500; ++step) {
    const auto start = std::chrono::steady_clock::now();
    Collective call = make(CollectiveKind::kAllReduce);
    Values& data = step % 7 == 0 ? a : b;
    call.inputs = call.outputs = {data.piece()};
    const OperationRef first = r.comm->start(call, 0, 0);
    call.inputs = call.outputs = {c.piece()};
    const OperationRef second = other->start(call, 0, 0);
    if (step % 5 == 0) {
      const bool large = step % 10 == 0;
      const auto send = r.comm->send(large ? d.piece() : b.piece(0, 20), DType::f32, next, 1, 0, 0);
      const auto recv =
          r.comm->recv(large ? e.piece() : e.piece(0, 20), DType::f32, before, 1, 0, 0);
      if (step % 3 == 0) {
        std::thread([&] { send->wait(); }).join();
      }
      recv->wait();
      send->wait();
    }
    if (step % 4 == 0) {
      while (!second->done()) usleep(100);  // The background thread's work.
    }
    (step % 2 == 0 ? first : second)->wait();
    (step % 2 == 0 ? second : first)->wait();
    if (std::chrono::steady_clock::now() - start > milliseconds(90)) ++slow;
  }
  EXPECT_LT(slow, 15) << "a busy machine makes some steps slow, lost rings make many";
  other->close();
}

SCENARIO(is_one_of_many) {
  r.comm = r.join("g", milliseconds(60000));
  Values data(DType::f32, 1 << 18);
  milliseconds best(60000);
  for (int i = 0; i < 3; ++i) {
    data = Values(DType::f32, 1 << 18, [&](int64_t k) { return value_of(r.rank, k); });
    finish(r, make(CollectiveKind::kBarrier));
    const auto start = std::chrono::steady_clock::now();
    Collective call = make(CollectiveKind::kAllReduce);
    call.inputs = call.outputs = {data.piece()};
    finish(r, call);
    best = std::min(
        best, std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - start));
  }
  EXPECT_EQ(
      data.difference([&](int64_t i) { return reduced(Reduction::kSum, DType::f32, r.size, i); }),
      -1);
  EXPECT_LT(best, milliseconds(1000));
}
TEST(Many, SixteenRanksReduceOneMebibyteInASecond) { run("is_one_of_many", 16); }

// Times, for work on the transport: --gtest_also_run_disabled_tests --gtest_filter=*Speed*.
SCENARIO(measures) {
  const auto begin = std::chrono::steady_clock::now();
  r.comm = r.join("g", milliseconds(60000));
  if (r.rank == 0) {
    printf("%d ranks met after %.3f s\n", r.size,
           std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  const auto time = [&](const char* what, size_t bytes, int repeats, const auto& body) {
    body();
    finish(r, make(CollectiveKind::kBarrier));
    std::vector<double> seconds;
    const std::clock_t before = std::clock();
    const int rounds = r.size <= 16 ? 7 : 3;
    for (int round = 0; round < rounds; ++round) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < repeats; ++i) body();
      seconds.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
          repeats);
    }
    const double busy =
        static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC / rounds / repeats;
    std::sort(seconds.begin(), seconds.end());
    if (r.rank == 0) {
      printf(
          "%d ranks %-15s %9zu bytes: median %9.1f us, best %9.1f us, %6.2f GB/s, CPU %8.1f us\n",
          r.size, what, bytes, seconds[seconds.size() / 2] * 1e6, seconds[0] * 1e6,
          static_cast<double>(bytes) / seconds[seconds.size() / 2] * 1e-9, busy * 1e6);
      fflush(stdout);
    }
  };
  const auto n = static_cast<int64_t>(r.size);
  const size_t most = r.size <= 4 ? size_t{64} << 20 : size_t{1} << 20;
  for (const size_t bytes : {size_t{1} << 10, size_t{64} << 10, size_t{1} << 20, most}) {
    const int repeats = bytes <= 65536 ? 50 : bytes <= (1 << 20) ? 8 : 1;
    const auto count = static_cast<int64_t>(bytes / 4);
    std::vector<float> a(static_cast<size_t>(count), 1), all(static_cast<size_t>(count * n), 0);
    Collective call = make(CollectiveKind::kAllReduce, DType::f32, Reduction::kMax);
    call.inputs = call.outputs = {{{a.data(), nullptr}, count}};
    time("all_reduce", bytes, repeats, [&] { finish(r, call); });
    call = make(CollectiveKind::kAllGather);
    call.inputs = {{{a.data(), nullptr}, count}};
    for (int64_t q = 0; q < n; ++q) call.outputs.push_back({{&all[q * count], nullptr}, count});
    time("all_gather", bytes, repeats, [&] { finish(r, call); });
    call = make(CollectiveKind::kReduceScatter);
    for (int64_t q = 0; q < n; ++q) call.inputs.push_back({{&all[q * count], nullptr}, count});
    call.outputs = {{{a.data(), nullptr}, count}};
    time("reduce_scatter", bytes, repeats, [&] { finish(r, call); });
    if (bytes < most) {
      call = make(CollectiveKind::kAllToAll);
      for (int64_t q = 0; q < n; ++q) {
        call.inputs.push_back({{&all[q * count], nullptr}, count / n});
        call.outputs.push_back({{&a[q * (count / n)], nullptr}, count / n});
      }
      time("all_to_all", bytes, repeats, [&] { finish(r, call); });
    }
    call = make(CollectiveKind::kBroadcast);
    call.inputs = call.outputs = {{{a.data(), nullptr}, count}};
    time("broadcast", bytes, repeats, [&] { finish(r, call); });
    const int next = (r.rank + 1) % r.size, before = (r.rank + r.size - 1) % r.size;
    time("send and recv", bytes, repeats, [&] {
      const auto send = r.comm->send(call.inputs[0], DType::f32, next, 0, 0, 0);
      r.comm->recv({{all.data(), nullptr}, count}, DType::f32, before, 0, 0, 0)->wait();
      send->wait();
    });
  }
  time("barrier", 0, 50, [&] { finish(r, make(CollectiveKind::kBarrier)); });
}
class DISABLED_Speed : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, DISABLED_Speed, ::testing::Values(2, 4, 16, 64));
TEST_P(DISABLED_Speed, OfTheTransport) {
  Ranks ranks("measures", GetParam());
  ranks.expect_success();
  printf("%s\n", ranks.text(0).c_str());
}

class Sizes : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Sizes, ::testing::Values(1, 2, 3, 4, 8));

TEST_P(Sizes, ReducesEverything) { run("reduces_everything", GetParam()); }
TEST_P(Sizes, ReducesToEachRoot) { run("reduces_to_each_root", GetParam()); }
TEST_P(Sizes, MovesEverything) { run("moves_everything", GetParam()); }
TEST_P(Sizes, KeepsManyInFlight) { run("keeps_many_in_flight", GetParam()); }
TEST_P(Sizes, NeedsNoWaiter) { run("needs_no_waiter", GetParam()); }
TEST_P(Sizes, LosesNoRing) { run("loses_no_ring", GetParam()); }
TEST_P(Sizes, SendsAndReceives) { run("sends_and_receives", GetParam()); }

}  // namespace
}  // namespace neuron::runtime
