#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "neuron/base/dtype.h"
#include "neuron/nrtsim/comm_engine.h"
#include "neuron/nrtsim/comm_group.h"

namespace neuron::nrtsim::comm {

/// One send or recv on one rank.
class Transfer final : public Operation {
 public:
  /// Throws Error for arguments that make no sense.
  Transfer(std::shared_ptr<Group> group, const nrtsim_comm_transfer_t& call,
           const nrtsim_comm_start_t& start);

  std::string describe() const override;
  std::vector<int> blocked_on() override;
  bool needs_all() const override { return peer >= 0 || matched_with >= 0; }
  bool may_end_alone() const override { return matched_with < 0; }
  std::string explain_wait() override;
  void set_source(int rank) { source_.store(rank, std::memory_order_relaxed); }

  const bool is_send;
  const DType dtype;
  const int peer;  // -1: any.
  const int64_t tag;
  std::byte* const data;
  const int64_t count;
  const int64_t bytes;

  // Progress.
  uint64_t id = 0;        // Of the sender, for messages that are not buffered.
  int matched_with = -1;  // The rank whose recv (send) has been found.
  int64_t moved = 0;      // Bytes.
};

/// Sends and recvs of one rank.
///
/// Each pair of ranks has a pipe in each direction that carries frames. Small messages travel at
/// once and are kept by the receiver until somebody asks for them; of large ones a request travels,
/// which the receiver clears when it has a recv for it. A pipe is always read, so nothing waits
/// behind something that nobody has asked for.
class Transfers {
 public:
  explicit Transfers(Group& group) : group_(group) {}

  void add(std::shared_ptr<Transfer> op);
  bool poll();
  bool is_idle() const { return running_ == 0; }
  void append_outstanding(std::vector<std::shared_ptr<Operation>>& ops) const;
  /// Fails one that may_end_alone().
  void drop(Operation& op, Failure failure);
  void clear();

 private:
  using Ref = std::shared_ptr<Transfer>;

  enum FrameType : uint32_t { kMessage, kRequest, kClear, kData, kRefuse };
  struct Frame {
    uint32_t type;
    uint32_t dtype;
    int64_t tag;
    uint64_t id;
    int64_t bytes;    // Of the whole message.
    int64_t payload;  // Bytes that follow.
  };
  struct Control {
    Frame frame;
    std::string payload;
  };
  // To one rank.
  struct Outgoing {
    std::deque<Control> control;
    std::deque<Ref> fresh;                        // In their order.
    std::unordered_map<uint64_t, Ref> requested;  // Waiting to be cleared.
    std::deque<Ref> cleared;                      // Taking turns.
    uint64_t buffered = 0;                        // Bytes of small messages so far.
    bool is_idle() const { return control.empty() && fresh.empty() && cleared.empty(); }
  };
  // Arrived before its recv.
  struct Early {
    int from;
    Frame frame;
    std::vector<std::byte> data;
  };

  Outgoing& outgoing(int rank);
  bool pump(int rank);
  bool write(int rank, const Frame& frame, const void* payload);
  size_t room(int rank) const;
  bool drain(int rank);
  void handle(int rank, const Frame& frame, uint64_t at);
  void read_ring(int rank, uint64_t at, void* to, size_t bytes) const;
  std::list<Ref>::iterator find_recv(int from, int64_t tag);
  bool accept(Transfer& recv, int from, const Frame& frame);
  void note_matched(int from, int64_t bytes);
  void end(Transfer& op);
  static int64_t padded(int64_t bytes) { return (bytes + 15) / 16 * 16; }

  Group& group_;
  std::vector<std::unique_ptr<Outgoing>> outgoing_;
  std::list<Ref> recvs_;                         // Without a sender yet, in their order.
  std::list<Early> early_;                       // In order of arrival.
  std::unordered_map<uint64_t, Ref> receiving_;  // Cleared; by sender and id.
  std::vector<uint64_t> unread_;                 // Bits of pipes that are known to have data.
  uint64_t next_id_ = 1;
  int64_t running_ = 0;
};

}  // namespace neuron::nrtsim::comm
