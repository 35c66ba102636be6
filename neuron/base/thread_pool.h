#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

namespace neuron {

/// A borrowed callable: two words, no allocation. What it refers to must outlive the call.
template <typename Signature>
class FunctionRef;

template <typename Result, typename... Args>
class FunctionRef<Result(Args...)> {
 public:
  template <typename F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef> &&
             std::is_invocable_r_v<Result, F&, Args...>)
  FunctionRef(F&& f)  // NOLINT: a view of its argument
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, Args... args) -> Result {
          return (*static_cast<std::remove_reference_t<F>*>(object))(std::forward<Args>(args)...);
        }) {}
  Result operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  void* object_;
  Result (*call_)(void*, Args...);
};

/// The compute threads of this process: our loops and the pieces of library calls run here.
///
/// Thread-safe. Several threads may launch at once: each takes a slot, pool threads serve all
/// slots; without a free slot, or inside another region, the caller runs alone. Threads start at
/// the first parallel region, spin about 20 us after work and then sleep. A forked child gets a
/// fresh pool.
class ThreadPool {
 public:
  using Body = FunctionRef<void(int64_t begin, int64_t end)>;

  /// The process's pool; lives for ever.
  static ThreadPool& instance();

  /// A pool of `threads`, the launching one included. Only tests make their own.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// Launching thread included; at least 1.
  int threads() const { return threads_; }

  /// Runs body over [0, count) in pieces of at least `grain`, on the caller and the pool, and
  /// returns when all pieces are done. Pieces have borders at multiples of `grain`. Rethrows the
  /// first exception of a piece; pieces not yet started are then skipped.
  void parallel_for(int64_t count, int64_t grain, Body body);

  /// The calling thread is inside a region: further regions would run alone.
  static bool in_region();

 private:
  static constexpr int kShares = 16;

  // Pieces [next, end) of a region: the end in the high half, the next one in the low half.
  struct alignas(64) Share {
    std::atomic<uint64_t> ticket{0};
  };
  // One running region. Its pieces lie in one share for each thread, so that a thread meets the
  // data again that the region before left in its cache; who has finished its own helps with the
  // others. A thread claims a piece with one fetch_add on a share's ticket; whoever holds a claimed
  // piece keeps the region open, so the other fields may be read after a successful claim and at no
  // other time.
  struct alignas(128) Slot {
    std::atomic<bool> taken{false};
    Share shares[kShares];
    const Body* body = nullptr;
    int64_t count = 0;
    int64_t piece = 0;
    std::atomic<bool> failed{false};
    std::exception_ptr error;  // Written by whoever set `failed`.
    alignas(64) std::atomic<uint32_t> done{0};
  };
  static constexpr int kSlots = 4;

  static bool run_one(Slot& slot, Share& share);
  // Runs what is left of the region, the share of thread `first` before the others.
  bool run_all(Slot& slot, int first);
  bool run_any(int thread);
  void start();
  void work(int thread);

  const int threads_;
  const int shares_;  // In use: as many as threads, up to kShares.
  Slot slots_[kSlots];
  alignas(64) std::atomic<uint32_t> epoch_{0};  // Counts launches; pool threads sleep on it.
  std::atomic<int> sleepers_{0};
  std::atomic<bool> started_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<int> running_{0};  // Pool threads alive.
  std::mutex start_mutex_;
};

}  // namespace neuron
