#include "neuron/nrtsim/comm_engine.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "neuron/nrtsim/comm_group.h"

namespace neuron::nrtsim::comm {
namespace {

// How soon the death of a peer and the end of a time limit are noticed.
constexpr auto kTick = std::chrono::milliseconds(200);
constexpr int64_t kNanosecondsPerTick = 200'000'000;
constexpr int64_t kLong = int64_t{3600} * 1'000'000'000;
// For operations that are under way when the process ends.
constexpr auto kGrace = std::chrono::seconds(1);
// What a thread that starts something spends on moving it before others take over.
constexpr auto kShort = std::chrono::microseconds(100);
// About what a wake-up costs. Only where every rank can have a core.
constexpr auto kSpin = std::chrono::microseconds(30);

std::atomic<bool> g_forked{false};
std::atomic<Engine*> g_engine{nullptr};

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// --- Bell and peers ------------------------------------------------------------------------------

void Bell::ring() {
  rings.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t who = attention.load(std::memory_order_seq_cst);
  if ((who & kForegroundAwake) != 0) return;
  if ((who & kForegroundAsleep) != 0) {
    futex_wake(rings, 1, kForegroundAsleep);
  } else if ((who & kBackgroundAsleep) != 0) {
    futex_wake(rings, 1, kBackgroundAsleep);
  }
}

Peer::Peer(int pid, uint64_t start_time, int bell_fd, const Token& token)
    : pid_(pid), start_time_(start_time) {
  pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  NEURON_CHECK(!has_died(), kDevice, "process ", pid, " has ended");
  if (pid == getpid()) {
    bell_ = &Engine::instance().bell();
    return;
  }
  memory_ = SharedMemory::open(pid, bell_fd, sizeof(Bell));
  bell_ = reinterpret_cast<Bell*>(memory_.address());
  NEURON_CHECK(bell_->token == token, kDevice, "process ", pid, " has ended");
}

Peer::~Peer() {
  if (pidfd_ >= 0) ::close(pidfd_);
}

bool Peer::has_died() {
  if (dead_ || pid_ == getpid()) return dead_;
  if (pidfd_ >= 0) {
    pollfd entry{pidfd_, POLLIN, 0};
    dead_ = ::poll(&entry, 1, 0) == 1;
    // The descriptor may have been opened for a later process of the same number.
    if (!dead_ && bell_ == nullptr) dead_ = start_time_of(pid_) != start_time_;
  } else {
    dead_ = start_time_of(pid_) != start_time_;  // An old kernel; a zombie still has its time.
  }
  return dead_;
}

void Peer::look_for_deaths(const std::vector<std::shared_ptr<Peer>>& peers) {
  std::vector<pollfd> entries;
  std::vector<Peer*> asked;
  for (const auto& peer : peers) {
    if (peer->dead_ || peer->pid_ == getpid()) continue;
    if (peer->pidfd_ < 0) {
      peer->has_died();
      continue;
    }
    entries.push_back({peer->pidfd_, POLLIN, 0});
    asked.push_back(peer.get());
  }
  if (::poll(entries.data(), entries.size(), 0) <= 0) return;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].revents != 0) asked[i]->dead_ = true;
  }
}

// --- Operations ----------------------------------------------------------------------------------

Operation::Operation(std::shared_ptr<Group> group, const nrtsim_comm_start_t& start)
    : timeout(start.timeout_ms),
      group_(std::move(group)),
      held_(start.held != 0),
      done_(start.done),
      user_(start.user) {}

void Operation::end(int state) {
  state_.store(state, std::memory_order_release);
  Engine::instance().note_ended(shared_from_this());
}

void Operation::finish() { end(NRTSIM_COMM_DONE); }

void Operation::fail(Failure failure) {
  failure_ = std::move(failure);
  end(NRTSIM_COMM_FAILED);
}

void Operation::notify() {
  if (done_ == nullptr) return;
  if (state() == NRTSIM_COMM_DONE) {
    done_(user_, nullptr);
    return;
  }
  nrtsim_comm_error_t error;
  error.kind = static_cast<int32_t>(failure_.kind);
  std::snprintf(error.text, sizeof(error.text), "%s", failure_.text.c_str());
  done_(user_, &error);
}

// --- Engine --------------------------------------------------------------------------------------

bool Engine::is_forked_child() { return g_forked.load(std::memory_order_relaxed); }

Engine& Engine::instance() {
  NEURON_CHECK(!is_forked_child(), kInvalid,
               "process groups cannot be used in a forked child of a process that has used them; "
               "use the 'spawn' start method");
  Engine* engine = g_engine.load(std::memory_order_acquire);
  if (engine == nullptr) {
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    engine = g_engine.load(std::memory_order_acquire);
    if (engine == nullptr) {
      engine = new Engine;  // Never destroyed: peers' memory may be in use until the very end.
      g_engine.store(engine, std::memory_order_release);
      pthread_atfork(nullptr, nullptr, [] { g_forked.store(true); });
    }
  }
  return *engine;
}

Engine::Engine() : memory_(SharedMemory::create(sizeof(Bell))), cores_(available_cores()) {
  bell_ = new (memory_.address()) Bell{};
  bell_->token = random_token();
}

std::shared_ptr<Peer> Engine::find_peer(int pid, uint64_t start_time, int bell_fd,
                                        const Token& token) {
  const Lock lock(mutex_);
  std::erase_if(peers_, [](const auto& peer) { return peer.expired(); });
  for (const auto& known : peers_) {
    const std::shared_ptr<Peer> peer = known.lock();
    if (peer != nullptr && peer->pid() == pid && peer->bell().token == token) return peer;
  }
  auto peer = std::make_shared<Peer>(pid, start_time, bell_fd, token);
  peers_.push_back(peer);
  return peer;
}

void Engine::add(std::shared_ptr<Group> group) {
  const Lock lock(mutex_);
  NEURON_CHECK(!stopping_, kDevice, "this process is ending");
  groups_.push_back(std::move(group));
  start_thread();
}

void Engine::forget_orphans() {
  const auto is_done = [](const auto& group) { return group->is_orphaned() && group->is_idle(); };
  for (const auto& group : groups_) {
    if (is_done(group)) group->leave();
  }
  std::erase_if(groups_, is_done);
}

void Engine::start_thread() {
  if (has_thread_ || stopping_) return;
  has_thread_ = true;
  // Signals are for the program's own threads.
  sigset_t all, previous;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
}

bool Engine::is_idle() const {
  return std::all_of(groups_.begin(), groups_.end(),
                     [](const auto& group) { return group->is_idle(); });
}

bool Engine::poll() {
  bool any = false;
  for (const auto& group : groups_) any |= group->poll();
  if (const Clock::time_point now = Clock::now(); now >= next_check_) check(now);
  return any;
}

void Engine::check(Clock::time_point now) {
  next_check_ = now + kTick / 2;
  std::vector<std::shared_ptr<Peer>> peers;
  for (const auto& known : peers_) {
    if (auto peer = known.lock()) peers.push_back(std::move(peer));
  }
  Peer::look_for_deaths(peers);
  for (const auto& group : groups_) group->check(now);
  forget_orphans();
}

void Engine::run_ended(Lock& lock) {
  while (!ended_.empty()) {
    std::vector<std::shared_ptr<Operation>> batch;
    batch.swap(ended_);
    if (waiting_ > 0) changed_.notify_all();
    lock.unlock();
    for (const auto& op : batch) op->notify();
    batch.clear();  // May destroy groups, which lock.
    lock.lock();
  }
}

void Engine::sleep(Bell::Attention who, uint32_t seen, int64_t nanoseconds) {
  const uint32_t change =
      who == Bell::kBackgroundAsleep ? who : Bell::kForegroundAsleep | Bell::kForegroundAwake;
  bell_->attention.fetch_xor(change, std::memory_order_seq_cst);
  if (bell_->rings.load(std::memory_order_seq_cst) == seen) {
    futex_wait(bell_->rings, seen, nanoseconds, who);
  }
  bell_->attention.fetch_xor(change, std::memory_order_seq_cst);
}

void Engine::spin(uint32_t seen) const {
  const Clock::time_point until = Clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      if (bell_->rings.load(std::memory_order_acquire) != seen) return;
      pause_cpu();
    }
  } while (Clock::now() < until);
}

void Engine::run() {
  pthread_setname_np(pthread_self(), "neuron-comm");
  Lock lock(mutex_);
  while (!stopping_) {
    const uint32_t seen = bell_->rings.load(std::memory_order_acquire);
    bool any = false;
    if (!foreground_) {
      any = poll();
      run_ended(lock);
    }
    if (any && wanted_.load(std::memory_order_relaxed) == 0) continue;
    const int64_t nanoseconds = groups_.empty() ? kLong : kNanosecondsPerTick;
    lock.unlock();
    sleep(Bell::kBackgroundAsleep, seen, nanoseconds);
    lock.lock();
  }
}

void Engine::poke() {
  Lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) {
    const Clock::time_point until = Clock::now() + kShort;
    bool any = true;
    while (any && Clock::now() < until) {
      any = poll();
      run_ended(lock);
    }
    if (!any) return;
    lock.unlock();
  }
  bell_->ring();
}

int Engine::wait(Operation& op, std::optional<Clock::time_point> deadline) {
  if (op.state() != NRTSIM_COMM_RUNNING) return op.state();
  wanted_.fetch_add(1, std::memory_order_relaxed);
  Lock lock(mutex_);
  wanted_.fetch_sub(1, std::memory_order_relaxed);
  const bool may_spin = op.group().size() <= cores_;
  const auto remaining = [&]() -> int64_t {
    if (!deadline.has_value()) return kNanosecondsPerTick;
    return std::min<int64_t>(
        kNanosecondsPerTick,
        std::chrono::duration_cast<std::chrono::nanoseconds>(*deadline - Clock::now()).count());
  };
  bool has_moved = false;
  while (op.state() == NRTSIM_COMM_RUNNING && remaining() > 0) {
    if (foreground_) {
      ++waiting_;
      changed_.wait_for(lock, std::chrono::nanoseconds(remaining()));
      --waiting_;
      continue;
    }
    foreground_ = has_moved = true;
    bell_->attention.fetch_or(Bell::kForegroundAwake, std::memory_order_seq_cst);
    uint32_t seen = 0;
    bool any = false;
    while (true) {
      seen = bell_->rings.load(std::memory_order_acquire);
      any = poll();
      run_ended(lock);
      const int64_t left = remaining();
      if (op.state() != NRTSIM_COMM_RUNNING || left <= 0) break;
      if (any) continue;
      lock.unlock();
      if (may_spin) spin(seen);
      if (bell_->rings.load(std::memory_order_acquire) == seen) {
        sleep(Bell::kForegroundAsleep, seen, left);
      }
      lock.lock();
    }
    foreground_ = false;
    bell_->attention.fetch_and(~Bell::kForegroundAwake, std::memory_order_seq_cst);
    // What is left to do is the background's; rings of this very moment are, too.
    if ((any && !is_idle()) || bell_->rings.load(std::memory_order_seq_cst) != seen) bell_->ring();
    if (waiting_ > 0) changed_.notify_all();
  }
  // The background may have stepped back for this thread.
  if (!has_moved && !is_idle()) bell_->ring();
  return op.state();
}

void Engine::leave_if_running() {
  Engine* const engine = g_engine.load(std::memory_order_acquire);
  if (engine != nullptr && !is_forked_child()) engine->leave_all();
}

void Engine::leave_all() {
  Lock lock(mutex_);
  // What is under way may still end well, and others may need it.
  const Clock::time_point until = Clock::now() + kGrace;
  ++waiting_;
  while (!is_idle() && Clock::now() < until) changed_.wait_for(lock, kTick / 10);
  --waiting_;
  stopping_ = true;
  for (const auto& group : groups_) {
    group->end({ErrorKind::kDevice, "this process is ending"});
    group->leave();
  }
  run_ended(lock);
  bell_->ring();
  // Not joined: a callback may wait for a lock of this thread's, such as Python's.
  if (thread_.joinable()) thread_.detach();
}

}  // namespace neuron::nrtsim::comm
