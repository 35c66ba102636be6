#include "neuron/base/thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "neuron/base/env.h"

namespace neuron {
namespace {

// Long enough to bridge the gap between two steps of one program, short enough not to take the
// core from Python between two operators.
constexpr auto kSpin = std::chrono::microseconds(20);

thread_local bool t_in_region = false;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr,
          nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word, int count) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, count, nullptr,
          nullptr, 0);
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int default_threads() {
  if (const int asked = env::num_threads(); asked > 0) return asked;
  // On larger machines an executor thread launches while Python runs on: one core is left to it.
  const int cores = usable_cores();
  return cores <= 3 ? cores : cores - 1;
}

std::atomic<ThreadPool*> g_pool{nullptr};

}  // namespace

ThreadPool& ThreadPool::instance() {
  ThreadPool* pool = g_pool.load(std::memory_order_acquire);
  if (pool == nullptr) [[unlikely]] {
    // The threads do not survive a fork; the child drops the old pool, whose locks may be held,
    // and builds its own on demand.
    static const int registered =
        pthread_atfork(nullptr, nullptr, [] { g_pool.store(nullptr, std::memory_order_release); });
    static_cast<void>(registered);
    auto* fresh = new ThreadPool(default_threads());
    if (g_pool.compare_exchange_strong(pool, fresh, std::memory_order_acq_rel)) return *fresh;
    delete fresh;
  }
  return *pool;
}

ThreadPool::ThreadPool(int threads)
    : threads_(std::max(1, threads)), shares_(std::min(threads_, kShares)) {}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  epoch_.fetch_add(1);
  futex_wake(epoch_, 1 << 30);
  while (running_.load(std::memory_order_acquire) > 0) std::this_thread::yield();
}

bool ThreadPool::in_region() { return t_in_region; }

bool ThreadPool::run_one(Slot& slot, Share& share) {
  uint64_t ticket = share.ticket.load(std::memory_order_relaxed);
  if (static_cast<uint32_t>(ticket) >= ticket >> 32) return false;
  ticket = share.ticket.fetch_add(1, std::memory_order_acq_rel);
  const auto index = static_cast<uint32_t>(ticket);
  if (index >= ticket >> 32) return false;
  const int64_t begin = index * slot.piece;
  const int64_t end = std::min(begin + slot.piece, slot.count);
  if (!slot.failed.load(std::memory_order_relaxed)) {
    try {
      (*slot.body)(begin, end);
    } catch (...) {
      if (!slot.failed.exchange(true)) slot.error = std::current_exception();
    }
  }
  slot.done.fetch_add(1, std::memory_order_release);
  return true;
}

bool ThreadPool::run_all(Slot& slot, int first) {
  bool any = false;
  for (int k = 0; k < shares_; ++k) {
    Share& share = slot.shares[(first + k) % shares_];
    while (run_one(slot, share)) any = true;
  }
  return any;
}

bool ThreadPool::run_any(int thread) {
  bool any = false;
  for (Slot& slot : slots_) any = run_all(slot, thread) || any;
  return any;
}

void ThreadPool::parallel_for(int64_t count, int64_t grain, Body body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (count <= grain || threads_ == 1 || t_in_region) {
    body(0, count);
    return;
  }
  Slot* slot = nullptr;
  for (Slot& candidate : slots_) {
    if (!candidate.taken.load(std::memory_order_relaxed) &&
        !candidate.taken.exchange(true, std::memory_order_acquire)) {
      slot = &candidate;
      break;
    }
  }
  if (slot == nullptr) {
    body(0, count);
    return;
  }
  if (!started_.load(std::memory_order_acquire)) [[unlikely]]
    start();

  // Four pieces a thread: one whose core was taken away then costs a quarter of its share.
  const int64_t grains = (count + grain - 1) / grain;
  const int64_t per_piece = (grains + threads_ * 4 - 1) / (threads_ * 4);
  slot->piece = per_piece * grain;
  const auto pieces = static_cast<uint32_t>((count + slot->piece - 1) / slot->piece);
  slot->body = &body;
  slot->count = count;
  slot->failed.store(false, std::memory_order_relaxed);
  slot->done.store(0, std::memory_order_relaxed);
  for (int k = shares_; k-- > 0;) {
    const auto begin =
        static_cast<uint64_t>(pieces) * static_cast<uint64_t>(k) / static_cast<uint64_t>(shares_);
    const auto end = static_cast<uint64_t>(pieces) * static_cast<uint64_t>(k + 1) /
                     static_cast<uint64_t>(shares_);
    slot->shares[k].ticket.store(end << 32 | begin, std::memory_order_release);
  }
  epoch_.fetch_add(1);
  if (const int asleep = sleepers_.load(); asleep > 0) {
    futex_wake(epoch_, std::min<int>(asleep, static_cast<int>(pieces) - 1));
  }

  t_in_region = true;
  run_all(*slot, 0);
  t_in_region = false;
  // Only pieces that another thread has started are left: they end soon, unless its core is gone.
  for (int round = 0; slot->done.load(std::memory_order_acquire) != pieces; ++round) {
    if (round < 2000) {
      pause_cpu();
    } else {
      std::this_thread::yield();
    }
  }
  std::exception_ptr error;
  if (slot->failed.load(std::memory_order_acquire)) [[unlikely]] {
    error = std::exchange(slot->error, nullptr);
  }
  slot->taken.store(false, std::memory_order_release);
  if (error) std::rethrow_exception(error);
}

void ThreadPool::start() {
  const std::lock_guard<std::mutex> lock(start_mutex_);
  if (started_.load()) return;
  // Signals belong to the program's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int i = 1; i < threads_; ++i) {
    running_.fetch_add(1);
    try {
      std::thread([this, i] {
        pthread_setname_np(pthread_self(), "neuron-pool");
        work(i);
      }).detach();
    } catch (...) {
      running_.fetch_sub(1);  // Fewer threads only make it slower: the launcher works too.
      break;
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  started_.store(true, std::memory_order_release);
}

void ThreadPool::work(int thread) {
  t_in_region = true;
  auto last = std::chrono::steady_clock::now();
  int rounds = 0;
  while (!stopping_.load(std::memory_order_relaxed)) {
    if (run_any(thread)) {
      last = std::chrono::steady_clock::now();
      rounds = 0;
      continue;
    }
    pause_cpu();
    // The clock costs more than a look at the slots.
    if (++rounds % 32 != 0 || std::chrono::steady_clock::now() - last < kSpin) continue;
    const uint32_t seen = epoch_.load();
    sleepers_.fetch_add(1);
    // A launch before `seen` was read shows in the slots, one after it changes the epoch.
    if (!run_any(thread) && !stopping_.load()) futex_wait(epoch_, seen);
    sleepers_.fetch_sub(1);
    last = std::chrono::steady_clock::now();
  }
  running_.fetch_sub(1, std::memory_order_release);
}

}  // namespace neuron
