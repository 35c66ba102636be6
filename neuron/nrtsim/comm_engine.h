#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "neuron/base/error.h"
#include "neuron/nrtsim/comm.h"
#include "neuron/nrtsim/comm_memory.h"

// What moves the operations of this process: state machines that never block, and whoever calls
// poll() on them. That is the thread that waits for an operation, if there is one; else a
// background thread, which otherwise sleeps. Both sleep on the process's bell, a word in shared
// memory that peers ring when they have done something that somebody waits for.
namespace neuron::nrtsim::comm {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

class Group;

struct Failure {
  ErrorKind kind = ErrorKind::kDevice;
  std::string text;
};

/// Where a process is woken. In shared memory.
struct Bell {
  // Whose sleep a ring has to end.
  enum Attention : uint32_t { kBackgroundAsleep = 1, kForegroundAsleep = 2, kForegroundAwake = 4 };
  std::atomic<uint32_t> rings;
  std::atomic<uint32_t> attention;
  Token token;

  void ring();
};

/// Another process, or this one.
class Peer {
 public:
  /// Throws Error(kDevice) if it has ended.
  Peer(int pid, uint64_t start_time, int bell_fd, const Token& token);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  int pid() const { return pid_; }
  Bell& bell() const { return *bell_; }
  /// Asks the system; once true, always true.
  bool has_died();
  /// What has been found out so far.
  bool is_dead() const { return dead_; }
  /// Asks for all of them with one call.
  static void look_for_deaths(const std::vector<std::shared_ptr<Peer>>& peers);

 private:
  const int pid_;
  const uint64_t start_time_;
  SharedMemory memory_;  // Empty for this process itself.
  Bell* bell_ = nullptr;
  int pidfd_ = -1;
  std::atomic<bool> dead_{false};
};

/// Something that has been started. Members without a comment belong to the engine's lock.
class Operation : public std::enable_shared_from_this<Operation> {
 public:
  Operation(std::shared_ptr<Group> group, const nrtsim_comm_start_t& start);
  virtual ~Operation() = default;

  // From any thread.
  int state() const { return state_.load(std::memory_order_acquire); }
  const Failure& failure() const { return failure_; }  // Once FAILED.
  int source() const { return source_.load(std::memory_order_relaxed); }
  bool is_held() const { return held_.load(std::memory_order_acquire); }
  void release() { held_.store(false, std::memory_order_release); }
  Group& group() const { return *group_; }
  /// "all_reduce #7 (sum of f32 [1024]) of group 'default_pg'".
  virtual std::string describe() const = 0;
  virtual uint64_t sequence() const { return 0; }

  /// Ranks without which it cannot go on: needs_all() of them, or one.
  virtual std::vector<int> blocked_on() = 0;
  virtual bool needs_all() const { return true; }
  /// Its failure leaves the group in order.
  virtual bool may_end_alone() const { return false; }
  /// "rank 1 had not arrived, rank 2 ...", for a timeout.
  virtual std::string explain_wait() = 0;
  void finish();
  void fail(Failure failure);
  /// Runs the callback; without the lock.
  void notify();

  Milliseconds timeout;                       // 0: the group's.
  std::optional<Clock::time_point> deadline;  // Set when it begins.

 protected:
  std::atomic<int> source_{-1};

 private:
  void end(int state);

  const std::shared_ptr<Group> group_;
  std::atomic<int> state_{NRTSIM_COMM_RUNNING};
  std::atomic<bool> held_;
  Failure failure_;
  void (*done_)(void*, const nrtsim_comm_error_t*);
  void* const user_;
};

class Engine {
 public:
  using Lock = std::unique_lock<std::mutex>;

  /// Throws Error(kIo) where there is no shared memory, Error(kInvalid) in a forked child.
  static Engine& instance();
  static bool is_forked_child();

  int bell_fd() const { return memory_.fd(); }
  Bell& bell() const { return *bell_; }
  /// The process, shared between groups.
  std::shared_ptr<Peer> find_peer(int pid, uint64_t start_time, int bell_fd, const Token& token);

  void add(std::shared_ptr<Group> group);
  /// Something new may be possible: does a little of it here, the rest elsewhere.
  void poke();
  /// Moves operations until this one has ended or the time has come. Returns its state.
  int wait(Operation& op, std::optional<Clock::time_point> deadline);
  /// For what is not an operation: locks, so that nothing moves.
  Lock lock() { return Lock(mutex_); }
  /// Callbacks of operations that have ended under `lock`; releases it meanwhile.
  void run_ended(Lock& lock);
  /// Says goodbye to all groups and ends the thread, if there ever was one.
  static void leave_if_running();

  /// With the lock held.
  void note_ended(std::shared_ptr<Operation> op) { ended_.push_back(std::move(op)); }

 private:
  Engine();
  void run();
  void leave_all();
  void start_thread();
  bool poll();
  void check(Clock::time_point now);
  void forget_orphans();
  bool is_idle() const;
  void sleep(Bell::Attention who, uint32_t seen, int64_t nanoseconds);
  void spin(uint32_t seen) const;

  SharedMemory memory_;
  Bell* bell_ = nullptr;
  const int cores_;

  std::mutex mutex_;  // Guards the rest, and all groups' state machines.
  std::vector<std::shared_ptr<Group>> groups_;
  std::vector<std::weak_ptr<Peer>> peers_;
  std::vector<std::shared_ptr<Operation>> ended_;
  bool foreground_ = false;  // A thread in wait() moves the operations.
  int waiting_ = 0;          // Other threads in wait().
  std::condition_variable changed_;
  Clock::time_point next_check_{};
  std::thread thread_;
  bool has_thread_ = false;
  bool stopping_ = false;
  std::atomic<int> wanted_{0};  // Threads that are about to become the foreground.
};

}  // namespace neuron::nrtsim::comm
