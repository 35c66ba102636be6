#include "neuron/nrtsim/comm_group.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "neuron/nrtsim/comm_collective.h"
#include "neuron/nrtsim/comm_transfer.h"
#include "neuron/nrtsim/program_collective.h"

namespace neuron::nrtsim::comm {
namespace {

// What rank 0 publishes. The number changes with the layout of the memory.
struct Invitation {
  uint64_t version = 1;
  int32_t pid = 0;
  int32_t fd = 0;
  uint64_t start_time = 0;
  uint64_t bytes = 0;
  Token token{};
};
constexpr const char* kInvitationKey = "transport";

std::string list_of(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ", ") + item;
  return text;
}

}  // namespace

Group::Group(const nrtsim_comm_config_t& config)
    : rank_(config.rank),
      size_(config.size),
      name_(config.group == nullptr ? "" : config.group),
      layout_(config.size),
      timeout_ms_(config.timeout_ms),
      to_ring_(static_cast<size_t>(config.size)) {
  if (config.global_ranks != nullptr) {
    global_ranks_.assign(config.global_ranks, config.global_ranks + config.size);
  }
  transfers_ = std::make_unique<Transfers>(*this);
}

Group::~Group() {
  if (!Engine::is_forked_child()) leave();
}

std::string Group::name_of(int rank) const {
  const int global = global_ranks_.empty() ? rank : global_ranks_[static_cast<size_t>(rank)];
  return global == rank ? internal::join("rank ", rank)
                        : internal::join("rank ", rank, " (global rank ", global, ")");
}

std::shared_ptr<Group> Group::create(const nrtsim_comm_config_t& config) {
  NEURON_CHECK(config.size >= 1 && config.size <= kMaxRanks, kInvalid, "a group of ", config.size,
               " ranks; the simulator has 1 to ", kMaxRanks, " on one host");
  NEURON_CHECK(config.rank >= 0 && config.rank < config.size, kInvalid, "rank ", config.rank,
               " is not in a group of ", config.size);
  std::shared_ptr<Group> group(new Group(config));
  if (!group->meet(config)) return nullptr;
  Engine::instance().add(group);
  if (config.for_programs != 0) {
    std::vector<int64_t> ranks(group->global_ranks_.begin(), group->global_ranks_.end());
    NEURON_CHECK(std::is_sorted(ranks.begin(), ranks.end()) && !ranks.empty(), kInvalid,
                 "a group for programs has its global ranks in ascending order");
    add_program_group(ranks, group);
  }
  return group;
}

// Rank 0 makes the memory; everybody writes where to be woken, then opens the others' bells. Only
// then are descriptors closed.
bool Group::meet(const nrtsim_comm_config_t& config) {
  Engine& engine = Engine::instance();
  const Clock::time_point deadline = Clock::now() + Milliseconds(config.timeout_ms);
  Invitation invitation;
  if (rank_ == 0) {
    memory_ = SharedMemory::create(layout_.bytes());
    header().token = invitation.token = random_token();
    header().size = size_;
    invitation.pid = getpid();
    invitation.fd = memory_.fd();
    invitation.start_time = start_time_of(getpid());
    invitation.bytes = layout_.bytes();
    if (size_ > 1 &&
        config.set(config.user, kInvitationKey, &invitation, sizeof(invitation)) != 0) {
      return false;
    }
  } else {
    const Invitation expected;
    if (config.get(config.user, kInvitationKey, &invitation, sizeof(invitation)) != 0) return false;
    NEURON_CHECK(invitation.version == expected.version && invitation.bytes == layout_.bytes(),
                 kDevice, "group '", name_, "': ", name_of(0),
                 " uses another version of torch_neuronx or another group size");
    memory_ = SharedMemory::open(invitation.pid, invitation.fd, layout_.bytes());
    NEURON_CHECK(header().token == invitation.token && header().size == size_, kDevice, "group '",
                 name_, "': ", name_of(0), " (process ", invitation.pid, ") has ended");
  }

  RankControl& own = control(rank_);
  NEURON_CHECK(own.joined.load() == 0, kInvalid, "group '", name_, "': two processes are ",
               name_of(rank_), "; the other is process ", own.pid);
  own.pid = getpid();
  own.start_time = start_time_of(getpid());
  own.bell_fd = engine.bell_fd();
  own.bell_token = engine.bell().token;
  own.joined.store(1, std::memory_order_release);
  arrive();
  await_all(false, deadline);

  for (int rank = 0; rank < size_; ++rank) {
    const RankControl& other = control(rank);
    try {
      peers_.push_back(
          engine.find_peer(other.pid, other.start_time, other.bell_fd, other.bell_token));
    } catch (const Error& error) {
      give_up(internal::join("group '", name_, "': ", name_of(rank), ": ", error.what()));
    }
  }
  own.mapped.store(1, std::memory_order_release);
  arrive();
  await_all(true, deadline);
  memory_.close_fd();
  return true;
}

void Group::arrive() {
  // Nobody has anything to do before the last one is there.
  const auto arrived = static_cast<int>(header().arrivals.fetch_add(1) + 1);
  if (arrived % size_ == 0) futex_wake(header().arrivals, kMaxRanks);
}

// Whoever gives up first says why, so that all ranks report the same.
void Group::give_up(const std::string& text) {
  Header& all = header();
  publish_abort(text);
  futex_wake(all.arrivals, kMaxRanks);
  const bool is_told = all.abort_state.load(std::memory_order_acquire) == kAborted;
  raise(ErrorKind::kDevice, is_told ? all.abort_text : text);
}

void Group::await_all(bool mapped, Clock::time_point deadline) {
  Header& all = header();
  const uint32_t expected = static_cast<uint32_t>(mapped ? 2 * size_ : size_);
  while (true) {
    const uint32_t seen = all.arrivals.load(std::memory_order_acquire);
    if (seen >= expected) return;
    NEURON_CHECK(all.abort_state.load(std::memory_order_acquire) != kAborted, kDevice,
                 all.abort_text);
    const Clock::time_point start = Clock::now();
    futex_wait(all.arrivals, seen, 100'000'000);
    const Clock::time_point now = Clock::now();
    // Deaths are looked for when nothing happens.
    if (now - start > Milliseconds(90) || now >= deadline) check_arrivals(mapped, now >= deadline);
  }
}

void Group::check_arrivals(bool mapped, bool is_late) {
  std::vector<std::string> absent;
  for (int rank = 0; rank < size_; ++rank) {
    const RankControl& other = control(rank);
    if (other.joined.load(std::memory_order_acquire) == 0) {
      absent.push_back(name_of(rank));
      continue;
    }
    if (mapped && other.mapped.load(std::memory_order_acquire) == 0) {
      absent.push_back(name_of(rank));
    } else if (mapped || rank == rank_) {
      continue;
    }
    if (other.left.load() != 0 || start_time_of(other.pid) != other.start_time ||
        (!peers_.empty() && peers_[static_cast<size_t>(rank)]->has_died())) {
      give_up(internal::join("group '", name_, "': ", name_of(rank), " (process ", other.pid,
                             ") ended while the group was being formed"));
    }
  }
  if (is_late && !absent.empty()) {
    give_up(internal::join("group '", name_, "' of ", size_, " ranks was not complete after ",
                           timeout_ms_.load(), " ms: ", list_of(absent), " did not arrive"));
  }
}

void Group::publish_abort(const std::string& text) {
  uint32_t none = kNotAborted;
  Header& all = header();
  if (!all.abort_state.compare_exchange_strong(none, kAborting)) return;
  all.abort_rank = rank_;
  std::snprintf(all.abort_text, sizeof(all.abort_text), "%s", text.c_str());
  all.abort_state.store(kAborted, std::memory_order_release);
}

// --- Starting ------------------------------------------------------------------------------------

void Group::check_usable() const {
  if (failure_.has_value()) throw Error(failure_->kind, failure_->text);
}

std::shared_ptr<Operation> Group::start(const nrtsim_comm_collective_t& call,
                                        const nrtsim_comm_start_t& start) {
  auto op = std::make_shared<Collective>(shared_from_this(), call, start);
  {
    const std::lock_guard lock(inbox_mutex_);
    check_usable();
    op->set_sequence(sequence_.fetch_add(1, std::memory_order_relaxed) + 1);
    inbox_.push_back(op);
    has_inbox_.store(true, std::memory_order_release);
  }
  Engine::instance().poke();
  return op;
}

std::shared_ptr<Operation> Group::start(const nrtsim_comm_transfer_t& call,
                                        const nrtsim_comm_start_t& start) {
  auto op = std::make_shared<Transfer>(shared_from_this(), call, start);
  {
    const std::lock_guard lock(inbox_mutex_);
    check_usable();
    inbox_.push_back(op);
    has_inbox_.store(true, std::memory_order_release);
  }
  Engine::instance().poke();
  return op;
}

void Group::take_inbox() {
  std::deque<std::shared_ptr<Operation>> batch;
  std::optional<Failure> failure;
  {
    const std::lock_guard lock(inbox_mutex_);
    batch.swap(inbox_);
    has_inbox_.store(false, std::memory_order_relaxed);
    failure = failure_;
  }
  for (auto& op : batch) {
    if (failure.has_value()) {
      op->fail(*failure);
    } else if (auto collective = std::dynamic_pointer_cast<Collective>(op)) {
      collectives_.push_back(std::move(collective));
    } else {
      transfers_->add(std::static_pointer_cast<Transfer>(op));
    }
  }
}

Milliseconds Group::timeout_of(const Operation& op) const {
  return op.timeout.count() > 0 ? op.timeout : Milliseconds(timeout_ms_.load());
}

// --- Moving --------------------------------------------------------------------------------------

bool Group::is_idle() const {
  return collectives_.empty() && transfers_->is_idle() &&
         !has_inbox_.load(std::memory_order_relaxed);
}

bool Group::poll() {
  if (has_inbox_.load(std::memory_order_acquire)) take_inbox();
  if (failed_) return false;
  if (header().abort_state.load(std::memory_order_acquire) == kAborted) [[unlikely]] {
    const Header& all = header();
    fail({ErrorKind::kDevice, internal::join(name_of(all.abort_rank), ": ", all.abort_text)},
         false);
    return true;
  }
  bool any = transfers_->poll();
  while (!collectives_.empty()) {
    Collective& first = *collectives_.front();
    if (first.is_held()) break;
    if (!first.deadline.has_value()) first.deadline = Clock::now() + timeout_of(first);
    if (!first.poll()) break;
    any = true;
    if (first.state() == NRTSIM_COMM_RUNNING) break;
    collectives_.pop_front();
  }
  ring_peers();
  return any;
}

void Group::ring_peers() {
  for (int rank = 0; rank < size_; ++rank) {
    const auto index = static_cast<size_t>(rank);
    if (rank != rank_ && (ring_everybody_ || to_ring_[index])) peers_[index]->bell().ring();
    to_ring_[index] = false;
  }
  ring_everybody_ = false;
}

// --- Ending --------------------------------------------------------------------------------------

std::vector<std::shared_ptr<Operation>> Group::outstanding() const {
  std::vector<std::shared_ptr<Operation>> ops(collectives_.begin(), collectives_.end());
  transfers_->append_outstanding(ops);
  return ops;
}

void Group::fail(Failure failure, bool tell) {
  if (failed_) return;
  failed_ = true;
  {
    const std::lock_guard lock(inbox_mutex_);
    failure_ = {failure.kind,
                internal::join("group '", name_, "' cannot be used any more: ", failure.text)};
  }
  if (tell) {
    publish_abort(failure.text);
    ring_all();
    ring_peers();
  }
  take_inbox();
  for (const auto& op : outstanding()) {
    const std::string about = op->describe();
    op->fail(
        {failure.kind, failure.text.starts_with(about)
                           ? failure.text
                           : internal::join(about, " on ", name_of(rank_), ": ", failure.text)});
  }
  collectives_.clear();
  transfers_->clear();
}

void Group::abort(const std::string& reason) {
  Engine& engine = Engine::instance();
  Engine::Lock lock = engine.lock();
  fail({ErrorKind::kDevice, "aborted: " + reason}, true);
  engine.run_ended(lock);
}

void Group::check(Clock::time_point now) {
  if (failed_ || size_ == 1) return;
  bool any_gone = false;
  for (int rank = 0; rank < size_; ++rank) {
    Peer& peer = *peers_[static_cast<size_t>(rank)];
    if (rank == rank_) continue;
    if (control(rank).left.load(std::memory_order_acquire) != 0) {
      any_gone = true;
    } else if (peer.is_dead()) {
      // It may have said goodbye, or have finished its part, just before.
      if (control(rank).left.load(std::memory_order_acquire) != 0) {
        any_gone = true;
        continue;
      }
      while (poll()) {
      }
      fail({ErrorKind::kDevice,
            internal::join(name_of(rank), " (process ", peer.pid(), ") has died")},
           true);
      return;
    }
  }
  for (const auto& op : outstanding()) {
    if (op->state() != NRTSIM_COMM_RUNNING || !op->deadline.has_value()) continue;
    if (any_gone) {
      const std::vector<int> needed = op->blocked_on();
      const auto has_left = [&](int rank) { return control(rank).left.load() != 0; };
      const bool all_needed = op->needs_all();
      const bool hopeless =
          !needed.empty() && (all_needed ? std::any_of(needed.begin(), needed.end(), has_left)
                                         : std::all_of(needed.begin(), needed.end(), has_left));
      // What it left behind may still be in the memory.
      if (hopeless && !poll() && op->state() == NRTSIM_COMM_RUNNING) {
        const int gone = *std::find_if(needed.begin(), needed.end(), has_left);
        fail({ErrorKind::kDevice,
              internal::join(op->describe(), ": ", name_of(gone),
                             " has left the group (its process ended, or it destroyed the group)")},
             true);
        return;
      }
    }
    if (now < *op->deadline) continue;
    Failure failure{ErrorKind::kDevice,
                    internal::join(op->describe(), " timed out after ", timeout_of(*op).count(),
                                   " ms: ", op->explain_wait())};
    if (op->may_end_alone()) {
      transfers_->drop(*op, failure);
    } else {
      fail(std::move(failure), true);
      return;
    }
  }
}

void Group::leave() {
  if (left_) return;
  left_ = true;
  if (memory_.address() == nullptr) return;
  control(rank_).left.store(1, std::memory_order_seq_cst);
  if (static_cast<int>(peers_.size()) < size_) return;
  ring_all();
  ring_peers();
}

void Group::orphan() {
  Engine& engine = Engine::instance();
  const Engine::Lock lock = engine.lock();
  orphaned_ = true;
  if (is_idle()) leave();
}

void Group::close() {
  Engine& engine = Engine::instance();
  while (true) {
    std::shared_ptr<Operation> op;
    {
      const Engine::Lock lock = engine.lock();
      take_inbox();
      const auto ops = outstanding();
      if (!ops.empty()) op = ops.front();
    }
    if (op == nullptr) break;
    engine.wait(*op, std::nullopt);
  }
  {
    const std::lock_guard lock(inbox_mutex_);
    if (!failure_.has_value()) {
      failure_ = {ErrorKind::kInvalid, internal::join("group '", name_, "' has been closed")};
    }
  }
  const Engine::Lock lock = engine.lock();
  leave();
  failed_ = true;
  orphaned_ = true;  // The engine forgets it.
}

}  // namespace neuron::nrtsim::comm
