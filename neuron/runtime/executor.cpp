#include "neuron/runtime/executor.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "neuron/base/env.h"
#include "neuron/runtime/communicator.h"
#include "neuron/runtime/device.h"
#include "neuron/runtime/launch_trace.h"
#include "neuron/runtime/program.h"

namespace neuron::runtime {
namespace {

enum Mode : int { kUndecided, kInline, kThread };

constexpr uint64_t kCapacity = 512;
// A worker beside Python costs more than it gives on so few cores.
constexpr int kInlineCores = 3;

std::atomic<int> g_mode{kUndecided};
std::atomic<uint64_t> g_submitted{0};
std::atomic<uint64_t> g_completed{0};
std::atomic<bool> g_shut_down{false};
thread_local bool t_is_executor = false;

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) {
    return static_cast<int>(std::thread::hardware_concurrency());
  }
  return CPU_COUNT(&set);
}

int decide_mode() noexcept {
  int mode = kInline;
  try {
    const env::Executor wanted = env::executor();
    if (wanted == env::Executor::Inline) {
      mode = kInline;
    } else if (wanted == env::Executor::Thread) {
      mode = kThread;
    } else {
      mode = available_cores() <= kInlineCores ? kInline : kThread;
    }
  } catch (...) {
    mode = kInline;
  }
  int expected = kUndecided;
  g_mode.compare_exchange_strong(expected, mode);
  return g_mode.load();
}

// The thread and its ring. Producers hold submit_mutex_; the thread takes no lock to run a task.
class Executor {
 public:
  uint64_t submit(Task&& task) {
    std::lock_guard lock(submit_mutex_);
    const uint64_t sequence = g_submitted.load(std::memory_order_relaxed) + 1;
    if (sequence > kCapacity) wait_for_sequence(sequence - kCapacity);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    task.state->last_submitted.store(sequence, std::memory_order_release);
    ring_[sequence % kCapacity] = std::move(task);
    g_submitted.store(sequence, std::memory_order_seq_cst);
    if (asleep_.load(std::memory_order_seq_cst)) {
      std::lock_guard sleep(sleep_mutex_);
      wake_.notify_one();
    }
    return sequence;
  }

  void wait(uint64_t sequence) {
    for (int spin = 0; spin < 200; ++spin) {
      if (g_completed.load(std::memory_order_acquire) >= sequence) return;
      if (spin >= 100) std::this_thread::yield();
    }
    std::unique_lock lock(done_mutex_);
    waiters_.fetch_add(1, std::memory_order_seq_cst);
    done_.wait(lock, [&] { return g_completed.load(std::memory_order_seq_cst) >= sequence; });
    waiters_.fetch_sub(1, std::memory_order_seq_cst);
  }

  void stop() {
    std::thread thread;
    {
      std::lock_guard lock(submit_mutex_);
      {
        std::lock_guard sleep(sleep_mutex_);
        stopping_ = true;
        wake_.notify_one();
      }
      thread = std::move(thread_);
    }
    if (thread.joinable()) thread.join();
    std::lock_guard sleep(sleep_mutex_);
    stopping_ = false;
  }

 private:
  void run() {
    t_is_executor = true;
    pthread_setname_np(pthread_self(), "neuron-exec");
    for (uint64_t next = 1 + g_completed.load();; ++next) {
      if (!await(next)) return;
      Task task = std::move(ring_[next % kCapacity]);
      run_task(task);
      task = Task();  // References are dropped before the task counts as done.
      g_completed.store(next, std::memory_order_seq_cst);
      if (waiters_.load(std::memory_order_seq_cst) > 0) {
        std::lock_guard lock(done_mutex_);
        done_.notify_all();
      }
    }
  }

  // False when stopping with an empty queue.
  bool await(uint64_t sequence) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(20);
    while (g_submitted.load(std::memory_order_acquire) < sequence) {
      if (std::chrono::steady_clock::now() < deadline) continue;
      std::unique_lock lock(sleep_mutex_);
      asleep_.store(true, std::memory_order_seq_cst);
      wake_.wait(lock, [&] {
        return stopping_ || g_submitted.load(std::memory_order_seq_cst) >= sequence;
      });
      asleep_.store(false, std::memory_order_relaxed);
      if (g_submitted.load(std::memory_order_acquire) < sequence) return false;
    }
    return true;
  }

  static void run_task(Task& task) {
    StreamState& state = *task.state;
    if (tracing_launches.load(std::memory_order_relaxed)) {
      set_launch_correlation(task.correlation);
    }
    if (task.even_if_poisoned || state.error.load(std::memory_order_acquire) == nullptr) {
      try {
        if (task.program != nullptr) {
          const std::span<const Buffer> buffers = task.buffers;
          run_program(*task.program, buffers.first(task.parameter_count), task.scalars,
                      buffers.subspan(task.parameter_count), task.op, task.stream);
        } else {
          task.work();
        }
      } catch (...) {
        store_current_exception(state, task.op);
      }
    } else if (task.program != nullptr) {
      abandon_groups(task.program->replica_groups(), kSkipped);
    }
    for (Block* block : task.blocks) release(block);
  }

  std::mutex submit_mutex_;
  std::thread thread_;  // Guarded by submit_mutex_.
  Task ring_[kCapacity];

  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::atomic<bool> asleep_{false};
  bool stopping_ = false;  // Guarded by sleep_mutex_.

  std::mutex done_mutex_;
  std::condition_variable done_;
  std::atomic<int> waiters_{0};
};

Executor& executor() {
  static Executor* const instance = new Executor;  // Leaked: outlives static storage.
  return *instance;
}

}  // namespace

uint64_t completed_sequence() noexcept { return g_completed.load(std::memory_order_acquire); }
uint64_t submitted_sequence() noexcept { return g_submitted.load(std::memory_order_acquire); }

bool is_inline() noexcept {
  int mode = g_mode.load(std::memory_order_relaxed);
  if (mode == kUndecided) [[unlikely]] {
    mode = decide_mode();
  }
  return mode == kInline;
}

bool runs_here() noexcept { return is_inline() || t_is_executor; }

uint64_t submit(Task task) {
  if (tracing_launches.load(std::memory_order_relaxed)) task.correlation = launch_correlation();
  const uint64_t sequence = executor().submit(std::move(task));
  return sequence;
}

void wait_for_sequence(uint64_t sequence) noexcept {
  if (completed_sequence() >= sequence || t_is_executor || in_bad_fork()) return;
  executor().wait(sequence);
}

void drain() noexcept { wait_for_sequence(submitted_sequence()); }

void stop_executor() noexcept {
  g_shut_down.store(true);
  if (in_bad_fork() || t_is_executor) return;
  drain();
  if (submitted_sequence() > 0) executor().stop();
}

bool is_shut_down() noexcept { return g_shut_down.load(std::memory_order_relaxed); }

void check_accepting() {
  if (in_bad_fork()) raise_bad_fork();
  NEURON_CHECK(!is_shut_down(), kDevice,
               "the neuron runtime has been shut down (the interpreter is exiting); no new work is "
               "accepted");
}

void set_inline_for_testing(bool inline_mode) {
  drain();
  g_mode.store(inline_mode ? kInline : kThread);
}

}  // namespace neuron::runtime
