#include "neuron/nrtsim/comm_transfer.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "neuron/base/error.h"

namespace neuron::nrtsim::comm {
namespace {

// Small messages that a rank may send to another before they are asked for.
constexpr uint64_t kBuffered = uint64_t{4} << 20;
// What one poll() moves through one pipe.
constexpr int64_t kPollBytes = 1 << 20;
// Larger messages are not sent before they are asked for.
constexpr int64_t kSmall = 64 << 10;

uint64_t key_of(int rank, uint64_t id) { return static_cast<uint64_t>(rank) << 48 | id; }

}  // namespace

Transfer::Transfer(std::shared_ptr<Group> group, const nrtsim_comm_transfer_t& call,
                   const nrtsim_comm_start_t& start)
    : Operation(std::move(group), start),
      is_send(call.is_send != 0),
      dtype(static_cast<DType>(call.dtype)),
      peer(call.peer),
      tag(call.tag),
      data(static_cast<std::byte*>(call.piece.address)),
      count(call.piece.count),
      bytes(call.piece.count * static_cast<int64_t>(size_of(static_cast<DType>(call.dtype)))) {
  const char* const what = is_send ? "send" : "recv";
  NEURON_CHECK(peer < this->group().size() && peer >= (is_send ? 0 : -1), kInvalid, what, ": ",
               is_send ? "destination " : "source ", peer, " is not in a group of ",
               this->group().size(), " ranks");
  NEURON_CHECK(count >= 0 && (count == 0 || data != nullptr), kInvalid, what, " of ", count,
               " elements", count >= 0 ? " without memory" : "");
  if (!is_send && peer >= 0) set_source(peer);
}

std::string Transfer::describe() const {
  return internal::join(is_send ? "send" : "recv", " (", neuron::name_of(dtype), " [", count,
                        "], tag ", tag, is_send ? ") to " : ") from ",
                        peer < 0 ? "any rank" : group().name_of(peer), " of group '",
                        group().name(), "'");
}

std::vector<int> Transfer::blocked_on() {
  if (peer >= 0) return {peer};
  if (matched_with >= 0) return {matched_with};
  std::vector<int> ranks;
  for (int rank = 0; rank < group().size(); ++rank) {
    if (rank != group().rank()) ranks.push_back(rank);
  }
  return ranks;
}

std::string Transfer::explain_wait() {
  if (is_held()) return "earlier work of its stream has not ended";
  if (matched_with >= 0) {
    return internal::join(group().name_of(matched_with), " has stopped after ", moved, " of ",
                          bytes, " bytes");
  }
  if (peer < 0) return "no rank has sent anything with this tag";
  return group().name_of(peer) + (is_send ? " has not called recv" : " has not called send");
}

// --- Starting and ending -------------------------------------------------------------------------

Transfers::Outgoing& Transfers::outgoing(int rank) {
  if (outgoing_.empty()) {
    outgoing_.resize(static_cast<size_t>(group_.size()));
    unread_.resize(static_cast<size_t>(group_.size() + 63) / 64);
  }
  auto& slot = outgoing_[static_cast<size_t>(rank)];
  if (slot == nullptr) slot = std::make_unique<Outgoing>();
  return *slot;
}

void Transfers::add(Ref op) {
  ++running_;
  if (op->is_send) {
    outgoing(op->peer).fresh.push_back(std::move(op));
  } else {
    recvs_.push_back(std::move(op));
  }
}

void Transfers::end(Transfer& op) {
  --running_;
  op.finish();
}

void Transfers::append_outstanding(std::vector<std::shared_ptr<Operation>>& ops) const {
  ops.insert(ops.end(), recvs_.begin(), recvs_.end());
  for (const auto& [key, op] : receiving_) ops.push_back(op);
  for (const auto& lane : outgoing_) {
    if (lane == nullptr) continue;
    ops.insert(ops.end(), lane->fresh.begin(), lane->fresh.end());
    for (const auto& [id, op] : lane->requested) ops.push_back(op);
    ops.insert(ops.end(), lane->cleared.begin(), lane->cleared.end());
  }
}

void Transfers::clear() {
  recvs_.clear();
  receiving_.clear();
  early_.clear();
  outgoing_.clear();
  running_ = 0;
}

void Transfers::drop(Operation& op, Failure failure) {
  const auto is_it = [&](const Ref& other) { return other.get() == &op; };
  const Ref kept = std::static_pointer_cast<Transfer>(op.shared_from_this());
  std::erase_if(recvs_, is_it);
  for (const auto& lane : outgoing_) {
    if (lane == nullptr) continue;
    std::erase_if(lane->fresh, is_it);
    // A later answer to the request finds nobody and is refused.
    std::erase_if(lane->requested, [&](const auto& entry) { return is_it(entry.second); });
  }
  --running_;
  kept->fail(std::move(failure));
}

// --- Sending -------------------------------------------------------------------------------------

size_t Transfers::room(int rank) const {
  Pipe& pipe = group_.layout().pipe(group_.base(), group_.rank(), rank);
  const uint64_t used =
      pipe.head.load(std::memory_order_relaxed) - pipe.tail.load(std::memory_order_acquire);
  return group_.layout().pipe_bytes() - static_cast<size_t>(used);
}

// False if there is no room; then the receiver will ring.
bool Transfers::write(int rank, const Frame& frame, const void* payload) {
  const size_t needed = sizeof(Frame) + static_cast<size_t>(padded(frame.payload));
  Pipe& pipe = group_.layout().pipe(group_.base(), group_.rank(), rank);
  if (room(rank) < needed) {
    pipe.wants_room.store(1, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (room(rank) < needed) return false;
  }
  std::byte* const ring = group_.layout().pipe_data(group_.base(), group_.rank(), rank);
  const size_t size = group_.layout().pipe_bytes();
  const uint64_t head = pipe.head.load(std::memory_order_relaxed);
  const auto put = [&](uint64_t at, const void* from, size_t bytes) {
    const size_t offset = static_cast<size_t>(at % size);
    const size_t first = std::min(bytes, size - offset);
    if (first > 0) std::memcpy(ring + offset, from, first);
    if (bytes > first)
      std::memcpy(ring, static_cast<const std::byte*>(from) + first, bytes - first);
  };
  put(head, &frame, sizeof(Frame));
  put(head + sizeof(Frame), payload, static_cast<size_t>(frame.payload));
  pipe.head.store(head + needed, std::memory_order_release);
  const int me = group_.rank();
  group_.control(rank).has_data[me / 64].fetch_or(uint64_t{1} << (me % 64),
                                                  std::memory_order_seq_cst);
  group_.ring(rank);
  return true;
}

bool Transfers::pump(int rank) {
  Outgoing& lane = outgoing(rank);
  bool any = false;
  while (!lane.control.empty()) {
    const Control& control = lane.control.front();
    if (!write(rank, control.frame, control.payload.data())) return any;
    lane.control.pop_front();
    any = true;
  }
  const auto limit = static_cast<int64_t>(group_.layout().pipe_bytes() / 4);
  while (!lane.fresh.empty()) {
    const Ref op = lane.fresh.front();
    if (op->is_held()) break;
    if (!op->deadline.has_value()) op->deadline = Clock::now() + group_.timeout_of(*op);
    Frame frame{kMessage, static_cast<uint32_t>(op->dtype), op->tag, 0, op->bytes, op->bytes};
    const Pipe& pipe = group_.layout().pipe(group_.base(), group_.rank(), rank);
    const uint64_t unmatched = lane.buffered - pipe.matched.load(std::memory_order_relaxed);
    const bool is_small = op->bytes <= std::min(limit, kSmall) &&
                          unmatched + static_cast<uint64_t>(op->bytes) <= kBuffered;
    if (!is_small) {
      if (op->id == 0) op->id = next_id_++;
      frame.type = kRequest;
      frame.id = op->id;
      frame.payload = 0;
    }
    if (!write(rank, frame, op->data)) return any;
    any = true;
    lane.fresh.pop_front();
    if (is_small) {
      lane.buffered += static_cast<uint64_t>(op->bytes);
      end(*op);
    } else {
      lane.requested.emplace(op->id, op);
    }
  }
  int64_t budget = kPollBytes;
  while (!lane.cleared.empty() && budget > 0) {
    const Ref op = lane.cleared.front();
    const int64_t some = std::min(op->bytes - op->moved, limit);
    const Frame frame{kData, static_cast<uint32_t>(op->dtype), op->tag, op->id, op->bytes, some};
    if (!write(rank, frame, op->data + op->moved)) return any;
    any = true;
    op->moved += some;
    budget -= some;
    lane.cleared.pop_front();
    if (op->moved < op->bytes) {
      lane.cleared.push_back(op);
    } else {
      end(*op);
    }
  }
  return any;
}

// --- Receiving -----------------------------------------------------------------------------------

void Transfers::read_ring(int rank, uint64_t at, void* to, size_t bytes) const {
  if (bytes == 0) return;
  const std::byte* const ring = group_.layout().pipe_data(group_.base(), rank, group_.rank());
  const size_t size = group_.layout().pipe_bytes();
  const size_t offset = static_cast<size_t>(at % size);
  const size_t first = std::min(bytes, size - offset);
  std::memcpy(to, ring + offset, first);
  if (bytes > first) std::memcpy(static_cast<std::byte*>(to) + first, ring, bytes - first);
}

namespace {
bool wants(const Transfer& recv, int from, int64_t tag) {
  return (recv.peer < 0 || recv.peer == from) && recv.tag == tag;
}
}  // namespace

// The oldest one that wants it; a held one keeps its place.
std::list<Transfers::Ref>::iterator Transfers::find_recv(int from, int64_t tag) {
  const auto found = std::find_if(recvs_.begin(), recvs_.end(),
                                  [&](const Ref& recv) { return wants(*recv, from, tag); });
  return found != recvs_.end() && (*found)->is_held() ? recvs_.end() : found;
}

void Transfers::note_matched(int from, int64_t bytes) {
  group_.layout()
      .pipe(group_.base(), from, group_.rank())
      .matched.fetch_add(static_cast<uint64_t>(bytes), std::memory_order_relaxed);
}

// A sender has been found. False: the two do not fit, and the recv has failed.
bool Transfers::accept(Transfer& recv, int from, const Frame& frame) {
  recv.set_source(from);
  if (recv.bytes == frame.bytes && recv.dtype == static_cast<DType>(frame.dtype)) return true;
  const auto sent = static_cast<DType>(frame.dtype);
  const std::string text =
      internal::join(group_.name_of(from), " sends ", neuron::name_of(sent), " [",
                     frame.bytes / static_cast<int64_t>(size_of(sent)), "] to ",
                     group_.name_of(group_.rank()), ", which expects ", neuron::name_of(recv.dtype),
                     " [", recv.count, "] (tag ", frame.tag, ", group '", group_.name(), "')");
  if (frame.type == kRequest) {
    outgoing(from).control.push_back(
        {{kRefuse, frame.dtype, frame.tag, frame.id, 0, static_cast<int64_t>(text.size())}, text});
  }
  --running_;
  recv.fail({ErrorKind::kInvalid, text});
  return false;
}

void Transfers::handle(int rank, const Frame& frame, uint64_t at) {
  switch (frame.type) {
    case kMessage:
    case kRequest: {
      const auto found = find_recv(rank, frame.tag);
      if (found == recvs_.end()) {
        Early early{rank, frame, std::vector<std::byte>(static_cast<size_t>(frame.payload))};
        read_ring(rank, at, early.data.data(), early.data.size());
        early_.push_back(std::move(early));
        return;
      }
      const Ref recv = *found;
      recvs_.erase(found);
      if (frame.type == kMessage) note_matched(rank, frame.bytes);
      if (!accept(*recv, rank, frame)) return;
      if (frame.type == kMessage) {
        read_ring(rank, at, recv->data, static_cast<size_t>(recv->bytes));
        end(*recv);
        return;
      }
      recv->matched_with = rank;
      receiving_.emplace(key_of(rank, frame.id), recv);
      outgoing(rank).control.push_back(
          {{kClear, frame.dtype, frame.tag, frame.id, frame.bytes, 0}, {}});
      return;
    }
    case kClear: {
      Outgoing& lane = outgoing(rank);
      const auto found = lane.requested.find(frame.id);
      if (found == lane.requested.end()) {
        const std::string text =
            internal::join(group_.name_of(group_.rank()), " gave up its send (tag ", frame.tag,
                           ", group '", group_.name(), "')");
        lane.control.push_back(
            {{kRefuse, frame.dtype, frame.tag, frame.id, 1, static_cast<int64_t>(text.size())},
             text});
        return;
      }
      found->second->matched_with = rank;
      lane.cleared.push_back(std::move(found->second));
      lane.requested.erase(found);
      return;
    }
    case kData: {
      const auto found = receiving_.find(key_of(rank, frame.id));
      if (found == receiving_.end()) return;
      Transfer& recv = *found->second;
      read_ring(rank, at, recv.data + recv.moved, static_cast<size_t>(frame.payload));
      recv.moved += frame.payload;
      if (recv.moved < recv.bytes) return;
      const Ref kept = std::move(found->second);
      receiving_.erase(found);
      end(*kept);
      return;
    }
    case kRefuse: {
      // bytes 0: by the receiver; 1: by the sender.
      Ref op;
      if (frame.bytes == 0) {
        auto& requested = outgoing(rank).requested;
        if (const auto found = requested.find(frame.id); found != requested.end()) {
          op = std::move(found->second);
          requested.erase(found);
        }
      } else if (const auto found = receiving_.find(key_of(rank, frame.id));
                 found != receiving_.end()) {
        op = std::move(found->second);
        receiving_.erase(found);
      }
      if (op == nullptr) return;
      std::string text(static_cast<size_t>(frame.payload), '\0');
      read_ring(rank, at, text.data(), text.size());
      --running_;
      op->fail({frame.bytes == 0 ? ErrorKind::kInvalid : ErrorKind::kDevice, std::move(text)});
      return;
    }
    default:
      return;
  }
}

bool Transfers::drain(int rank) {
  Pipe& pipe = group_.layout().pipe(group_.base(), rank, group_.rank());
  uint64_t tail = pipe.tail.load(std::memory_order_relaxed);
  int64_t budget = kPollBytes;
  bool any = false;
  while (budget > 0 && pipe.head.load(std::memory_order_acquire) != tail) {
    Frame frame;
    read_ring(rank, tail, &frame, sizeof(frame));
    handle(rank, frame, tail + sizeof(frame));
    tail += sizeof(frame) + static_cast<uint64_t>(padded(frame.payload));
    budget -= frame.payload + static_cast<int64_t>(sizeof(frame));
    pipe.tail.store(tail, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (pipe.wants_room.load(std::memory_order_relaxed) != 0 &&
        pipe.wants_room.exchange(0, std::memory_order_seq_cst) != 0) {
      group_.ring(rank);
    }
    any = true;
  }
  if (pipe.head.load(std::memory_order_acquire) == tail) {
    unread_[static_cast<size_t>(rank) / 64] &= ~(uint64_t{1} << (rank % 64));
  }
  return any;
}

bool Transfers::poll() {
  bool any = false;
  // Recvs that are new find what has come before them.
  if (!early_.empty()) {
    for (auto next = early_.begin(); next != early_.end();) {
      const auto found = find_recv(next->from, next->frame.tag);
      if (found == recvs_.end()) {
        ++next;
        continue;
      }
      const Ref op = *found;
      recvs_.erase(found);
      const Early early = std::move(*next);
      next = early_.erase(next);
      any = true;
      if (early.frame.type == kMessage) note_matched(early.from, early.frame.bytes);
      if (!accept(*op, early.from, early.frame)) continue;
      if (early.frame.type == kMessage) {
        if (op->bytes > 0) {
          std::memcpy(op->data, early.data.data(), static_cast<size_t>(op->bytes));
        }
        end(*op);
        continue;
      }
      op->matched_with = early.from;
      receiving_.emplace(key_of(early.from, early.frame.id), op);
      outgoing(early.from)
          .control.push_back(
              {{kClear, early.frame.dtype, early.frame.tag, early.frame.id, early.frame.bytes, 0},
               {}});
    }
  }
  for (const Ref& recv : recvs_) {
    if (!recv->deadline.has_value() && !recv->is_held()) {
      recv->deadline = Clock::now() + group_.timeout_of(*recv);
    }
  }
  RankControl& own = group_.control(group_.rank());
  const auto words = static_cast<size_t>(group_.size() + 63) / 64;
  for (size_t word = 0; word < words; ++word) {
    if (own.has_data[word].load(std::memory_order_relaxed) != 0) {
      if (unread_.empty()) outgoing(group_.rank());
      unread_[word] |= own.has_data[word].exchange(0, std::memory_order_acquire);
    }
    if (unread_.empty()) continue;
    for (uint64_t bits = unread_[word]; bits != 0; bits &= bits - 1) {
      any |= drain(static_cast<int>(word) * 64 + std::countr_zero(bits));
    }
  }
  for (size_t rank = 0; rank < outgoing_.size(); ++rank) {
    if (outgoing_[rank] != nullptr && !outgoing_[rank]->is_idle()) {
      any |= pump(static_cast<int>(rank));
    }
  }
  return any;
}

}  // namespace neuron::nrtsim::comm
