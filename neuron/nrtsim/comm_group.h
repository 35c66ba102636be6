#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "neuron/nrtsim/comm_engine.h"
#include "neuron/nrtsim/comm_memory.h"

namespace neuron::nrtsim::comm {

class Collective;
class Transfer;
class Transfers;

/// One communicator: its memory, its peers and what has been started on it.
///
/// Members without a comment belong to the engine's lock.
class Group : public std::enable_shared_from_this<Group> {
 public:
  /// Meets the other ranks. Throws Error(kDevice) with the absent ranks after the timeout; null if
  /// the exchange of values has failed.
  static std::shared_ptr<Group> create(const nrtsim_comm_config_t& config);
  ~Group();

  // --- From any thread ---
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Throw Error for bad arguments and on a group that has failed.
  std::shared_ptr<Operation> start(const nrtsim_comm_collective_t& call,
                                   const nrtsim_comm_start_t& start);
  std::shared_ptr<Operation> start(const nrtsim_comm_transfer_t& call,
                                   const nrtsim_comm_start_t& start);
  uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }
  void set_timeout(Milliseconds timeout) { timeout_ms_.store(timeout.count()); }
  /// Ends everything here and at the others.
  void abort(const std::string& reason);
  /// Waits for what is outstanding; then leave() and forget.
  void close();
  /// Nobody will start anything any more; what is outstanding runs on.
  void orphan();

  // --- For operations and the engine ---
  bool poll();
  bool is_idle() const;
  /// Time limits and deaths.
  void check(Clock::time_point now);
  bool is_orphaned() const { return orphaned_; }
  /// Ends everything here; the others find out by leave().
  void end(Failure failure) { fail(std::move(failure), false); }
  /// Tells the others that this rank will do nothing any more.
  void leave();

  const Layout& layout() const { return layout_; }
  std::byte* base() const { return memory_.address(); }
  RankControl& control(int rank) const { return layout_.control(base(), rank); }
  Header& header() const { return layout_.header(base()); }
  /// Rings at the end of poll().
  void ring(int rank) { to_ring_[static_cast<size_t>(rank)] = true; }
  void ring_all() { ring_everybody_ = true; }
  Milliseconds timeout_of(const Operation& op) const;

  /// "rank 2", "rank 2 (global rank 6)".
  std::string name_of(int rank) const;
  const std::string& name() const { return name_; }

 private:
  Group(const nrtsim_comm_config_t& config);
  bool meet(const nrtsim_comm_config_t& config);
  [[noreturn]] void give_up(const std::string& text);
  void arrive();
  void check_arrivals(bool mapped, bool is_late);
  void await_all(bool mapped, Clock::time_point deadline);
  void publish_abort(const std::string& text);
  void check_usable() const;
  void take_inbox();
  void ring_peers();
  /// Ends all operations and the group; `tell` the others why.
  void fail(Failure failure, bool tell);
  std::vector<std::shared_ptr<Operation>> outstanding() const;

  const int rank_, size_;
  const std::string name_;
  std::vector<int> global_ranks_;
  const Layout layout_;
  SharedMemory memory_;
  std::vector<std::shared_ptr<Peer>> peers_;
  std::atomic<int64_t> timeout_ms_;
  std::atomic<uint64_t> sequence_{0};

  // What has been started but not yet seen by poll().
  mutable std::mutex inbox_mutex_;
  std::atomic<bool> has_inbox_{false};
  std::deque<std::shared_ptr<Operation>> inbox_;  // Guarded by inbox_mutex_.
  std::optional<Failure> failure_;  // Guarded by inbox_mutex_: nothing may be started.

  std::deque<std::shared_ptr<Collective>> collectives_;  // The first one runs.
  std::unique_ptr<Transfers> transfers_;
  std::vector<bool> to_ring_;
  bool ring_everybody_ = false;
  bool failed_ = false;
  bool left_ = false;
  bool orphaned_ = false;
};

}  // namespace neuron::nrtsim::comm
