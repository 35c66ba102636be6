#include "neuron/nrtsim/comm_collective.h"

#include <algorithm>
#include <cstring>

#include "neuron/base/error.h"

namespace neuron::nrtsim::comm {
namespace {

// Reductions of so little (over all ranks) are done by every rank for itself: one wait, not two.
constexpr int64_t kDirectBytes = 128 << 10;
// What one round moves at most: much more than a wake-up costs, little enough for the last cache.
constexpr int64_t kRoundBytes = 1 << 20;
constexpr int64_t kReduceBlock = 16 << 10;

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
int64_t round_down(int64_t value, int64_t unit) { return value / unit * unit; }

}  // namespace

// --- Pieces --------------------------------------------------------------------------------------

Pieces::Pieces(const nrtsim_comm_piece_t* pieces, size_t count, size_t element_bytes)
    : pieces_(pieces, pieces + count), element_bytes_(element_bytes) {
  int64_t end = 0;
  for (const nrtsim_comm_piece_t& piece : pieces_) ends_.push_back(end += piece.count);
}

template <typename Body>
void Pieces::for_each(int64_t begin, int64_t end, Body body) const {
  auto index =
      static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
  for (int64_t position = begin; position < end; ++index) {
    const int64_t at = position - (ends_[index] - pieces_[index].count);
    const int64_t count = std::min(end, ends_[index]) - position;
    if (count > 0) body(index, at, count, position - begin);
    position += count;
  }
}

void Pieces::copy_out(int64_t begin, int64_t end, std::byte* to) const {
  for_each(begin, end, [&](size_t piece, int64_t at, int64_t count, int64_t before) {
    std::memcpy(to + before * static_cast<int64_t>(element_bytes_), address(piece, at),
                static_cast<size_t>(count) * element_bytes_);
  });
}

void Pieces::copy_in(int64_t begin, int64_t end, const std::byte* from) const {
  for_each(begin, end, [&](size_t piece, int64_t at, int64_t count, int64_t before) {
    std::memcpy(address(piece, at), from + before * static_cast<int64_t>(element_bytes_),
                static_cast<size_t>(count) * element_bytes_);
  });
}

// --- Plan ----------------------------------------------------------------------------------------

Collective::Collective(std::shared_ptr<Group> group, const nrtsim_comm_collective_t& call,
                       const nrtsim_comm_start_t& start)
    : Operation(std::move(group), start),
      rank_(this->group().rank()),
      size_(this->group().size()),
      kind_(call.kind),
      dtype_(static_cast<DType>(call.dtype)),
      reduction_(static_cast<CommReduction>(call.reduction)),
      factor_(call.factor),
      root_(call.root),
      name_(call.name == nullptr ? "" : call.name),
      element_(static_cast<int64_t>(size_of(dtype_))),
      inputs_(call.inputs, call.input_count, static_cast<size_t>(element_)),
      outputs_(call.outputs, call.output_count, static_cast<size_t>(element_)),
      publishes_(static_cast<size_t>(size_)),
      collects_(static_cast<size_t>(size_)) {
  // Pieces that the kind does not look at.
  if (kind_ == NRTSIM_COMM_BROADCAST && !is_root()) inputs_ = Pieces();
  if (kind_ == NRTSIM_COMM_SCATTER && !is_root()) inputs_ = Pieces();
  if ((kind_ == NRTSIM_COMM_GATHER || kind_ == NRTSIM_COMM_REDUCE) && !is_root()) {
    outputs_ = Pieces();
  }
  check_arguments();
  plan();
  plan_own_copies();
}

void Collective::plan() {
  const int64_t stage = static_cast<int64_t>(group().layout().stage_bytes());
  const auto at = [](Rounds& rounds, int rank) -> int64_t& {
    return rounds[static_cast<size_t>(rank)];
  };
  depth_ = 4;
  slot_bytes_ = stage / depth_;
  chunk_ = slot_bytes_ / element_;
  is_even_ = true;
  switch (kind_) {
    case NRTSIM_COMM_BARRIER:
      break;
    case NRTSIM_COMM_BROADCAST: {
      const int64_t rounds = rounds_of((is_root() ? inputs_ : outputs_).total());
      at(publishes_, root_) = rounds;
      for (int rank = 0; rank < size_; ++rank) at(collects_, rank) = rank == root_ ? 0 : rounds;
      break;
    }
    case NRTSIM_COMM_ALL_REDUCE:
    case NRTSIM_COMM_REDUCE:
      plan_reduction(inputs_.total());
      break;
    case NRTSIM_COMM_ALL_GATHER:
      for (int rank = 0; rank < size_; ++rank) {
        const int64_t rounds = rounds_of(outputs_.count(static_cast<size_t>(rank)));
        at(publishes_, rank) = rounds;
        for (int other = 0; other < size_; ++other) {
          if (other != rank) at(collects_, other) = std::max(at(collects_, other), rounds);
        }
      }
      break;
    case NRTSIM_COMM_GATHER:
      is_even_ = false;
      for (int rank = 0; rank < size_; ++rank) {
        if (rank == root_ || (rank != rank_ && !is_root())) continue;
        const int64_t count =
            is_root() ? outputs_.count(static_cast<size_t>(rank)) : inputs_.count(0);
        at(publishes_, rank) = rounds_of(count);
        at(collects_, root_) = std::max(at(collects_, root_), at(publishes_, rank));
      }
      break;
    case NRTSIM_COMM_SCATTER:
    case NRTSIM_COMM_REDUCE_SCATTER:
    case NRTSIM_COMM_ALL_TO_ALL:
      plan_lanes();
      break;
  }
  if (size_ > 1) publish_rounds_ = at(publishes_, rank_);
  collect_rounds_ = at(collects_, rank_);
  if (kind_ == NRTSIM_COMM_ALL_TO_ALL) {
    // Own rounds follow from what others take; publishes_ is what they have for this rank.
    publish_rounds_ = collect_rounds_ = 0;
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      publish_rounds_ = std::max(publish_rounds_, at(collects_, rank));
      collect_rounds_ = std::max(collect_rounds_, at(publishes_, rank));
    }
  }
  const int64_t most = std::max({publish_rounds_, combine_rounds_, collect_rounds_});
  NEURON_CHECK(most <= kMaxRounds, kUnsupported, describe_call(), " is too large");
}

void Collective::plan_reduction(int64_t total) {
  const int64_t bytes = total * element_;
  const int64_t stage = static_cast<int64_t>(group().layout().stage_bytes());
  is_direct_ = size_ == 1 || bytes * size_ <= kDirectBytes;
  if (is_direct_) {
    depth_ = 1;
    slot_bytes_ = stage;
    if (size_ > 1) chunk_ = std::max<int64_t>(total, 1);
  } else {
    depth_ = 2;
    // Slots for operands, then slots for results, each a part of one.
    int64_t most = std::min(kRoundBytes, round_down(stage / depth_ * size_ / (size_ + 1), 64));
    while (depth_ * (most + round_up((most + size_ - 1) / size_, 64)) > stage) most -= 64;
    const int64_t rounds = (bytes + most - 1) / most;
    slot_bytes_ = round_up((bytes + rounds - 1) / rounds, 64);
    part_bytes_ = round_up((slot_bytes_ + size_ - 1) / size_, 64);
    chunk_ = slot_bytes_ / element_;
  }
  const int64_t rounds = rounds_of(total);
  for (int rank = 0; rank < size_; ++rank) {
    const bool collects = kind_ == NRTSIM_COMM_ALL_REDUCE || rank == root_;
    publishes_[static_cast<size_t>(rank)] = rounds;
    collects_[static_cast<size_t>(rank)] = collects ? rounds : 0;
  }
  if (!is_direct_) combine_rounds_ = rounds;
}

// Slots are cut into a lane for each other rank.
void Collective::plan_lanes() {
  const int64_t stage = static_cast<int64_t>(group().layout().stage_bytes());
  depth_ = size_ <= 4 ? 4 : 2;
  slot_bytes_ = stage / depth_;
  lane_bytes_ = round_down(slot_bytes_ / std::max(size_ - 1, 1), 64);
  chunk_ = lane_bytes_ / element_;
  const bool all_to_all = kind_ == NRTSIM_COMM_ALL_TO_ALL;
  is_even_ = kind_ == NRTSIM_COMM_REDUCE_SCATTER;
  for (int rank = 0; rank < size_; ++rank) {
    const auto index = static_cast<size_t>(rank);
    if (kind_ == NRTSIM_COMM_SCATTER) {
      if (rank == root_ || (rank != rank_ && !is_root())) continue;
      collects_[index] = rounds_of(is_root() ? inputs_.count(index) : outputs_.count(0));
      auto& most = publishes_[static_cast<size_t>(root_)];
      most = std::max(most, collects_[index]);
      continue;
    }
    if (all_to_all && rank == rank_) continue;
    collects_[index] = rounds_of(inputs_.count(index));
    if (all_to_all) {
      publishes_[index] = rounds_of(outputs_.count(index));
      continue;
    }
    for (int other = 0; other < size_; ++other) {
      auto& most = publishes_[static_cast<size_t>(other)];
      if (other != rank) most = std::max(most, collects_[index]);
    }
  }
}

void Collective::plan_own_copies() {
  const auto me = static_cast<size_t>(rank_);
  const auto add = [&](size_t from, size_t to) {
    if (inputs_.count(from) == 0 || inputs_.address(from) == outputs_.address(to)) return;
    own_copies_.push_back(
        {inputs_.address(from), outputs_.address(to), inputs_.count(from) * element_});
  };
  switch (kind_) {
    case NRTSIM_COMM_BROADCAST:
      for (size_t i = 0; is_root() && i < outputs_.size(); ++i) add(i, i);
      break;
    case NRTSIM_COMM_ALL_GATHER:
      add(0, me);
      break;
    case NRTSIM_COMM_GATHER:
      if (is_root()) add(0, me);
      break;
    case NRTSIM_COMM_SCATTER:
      if (is_root()) add(me, 0);
      break;
    case NRTSIM_COMM_ALL_TO_ALL:
      add(me, me);
      break;
    default:
      break;
  }
}

// --- Where things lie ----------------------------------------------------------------------------

std::byte* Collective::slot(int rank, int64_t round) const {
  return group().layout().stage(group().base(), rank, sequence_) + round % depth_ * slot_bytes_;
}

std::byte* Collective::lane(int rank, int64_t round, int of) const {
  return slot(rank, round) + (of > rank ? of - 1 : of) * lane_bytes_;
}

std::byte* Collective::result_slot(int rank, int64_t round) const {
  return group().layout().stage(group().base(), rank, sequence_) + depth_ * slot_bytes_ +
         round % depth_ * part_bytes_;
}

std::pair<int64_t, int64_t> Collective::range(int64_t round) const {
  return {round * chunk_, std::min((round + 1) * chunk_, inputs_.total())};
}

std::pair<int64_t, int64_t> Collective::part(int rank, int64_t round) const {
  const auto [begin, end] = range(round);
  const int64_t count = end - begin;
  // At least a cache line each, so that parts do not share one.
  const int64_t each = round_up((count + size_ - 1) / size_, std::max<int64_t>(64 / element_, 1));
  return {std::min(rank * each, count), std::min((rank + 1) * each, count)};
}

// --- Rounds --------------------------------------------------------------------------------------

// Whether every other rank that takes part in `round` (all, without a list) has ended it.
bool Collective::have_reached(std::atomic<uint64_t> RankControl::* counter, const Rounds* rounds,
                              int64_t round, int* first) const {
  for (int rank = first == nullptr ? 0 : *first; rank < size_; ++rank) {
    if (rank == rank_ || (rounds != nullptr && (*rounds)[static_cast<size_t>(rank)] <= round)) {
      continue;
    }
    if (!has_reached(group().control(rank).*counter, round + 1)) return false;
    if (first != nullptr) *first = rank;
  }
  return true;
}

bool Collective::can_publish() const {
  if (published_ >= publish_rounds_) return false;
  const int64_t reused = published_ - depth_;
  if (reused < 0) return true;
  return combine_rounds_ > 0 ? have_reached(&RankControl::combined, nullptr, reused)
                             : have_reached(&RankControl::collected, &collects_, reused);
}

bool Collective::can_combine() const {
  if (combined_ >= combine_rounds_ || published_ <= combined_) return false;
  if (!have_reached(&RankControl::published, nullptr, combined_)) return false;
  const int64_t reused = combined_ - depth_;
  return reused < 0 || have_reached(&RankControl::collected, &collects_, reused);
}

bool Collective::can_collect() const {
  if (collected_ >= collect_rounds_) return false;
  if (combine_rounds_ > 0) {
    return combined_ > collected_ && have_reached(&RankControl::combined, nullptr, collected_);
  }
  // Where operands are overwritten they have been given away first.
  if (is_direct_ && size_ > 1 && published_ <= collected_) return false;
  return have_reached(&RankControl::published, &publishes_, collected_);
}

void Collective::publish() {
  const int64_t round = published_;
  std::byte* const to = slot(rank_, round);
  switch (kind_) {
    case NRTSIM_COMM_ALL_REDUCE:
    case NRTSIM_COMM_REDUCE: {
      const auto [begin, end] = range(round);
      // The own part of a round stays where it is.
      const auto [from, until] =
          is_direct_ ? std::pair<int64_t, int64_t>(0, 0) : part(rank_, round);
      inputs_.copy_out(begin, begin + from, to);
      inputs_.copy_out(begin + until, end, to + until * element_);
      break;
    }
    case NRTSIM_COMM_BROADCAST:
    case NRTSIM_COMM_ALL_GATHER:
    case NRTSIM_COMM_GATHER: {
      const auto [begin, end] = range(round);
      inputs_.copy_out(begin, end, to);
      break;
    }
    default:
      for (int rank = 0; rank < size_; ++rank) {
        const auto index = static_cast<size_t>(rank);
        const int64_t begin = round * chunk_;
        const int64_t end = std::min(begin + chunk_, inputs_.count(index));
        if (rank == rank_ || end <= begin) continue;
        std::memcpy(lane(rank_, round, rank), inputs_.address(index, begin),
                    static_cast<size_t>((end - begin) * element_));
      }
  }
  ++published_;
  group().control(rank_).published.store(progress_of(sequence_, published_),
                                         std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (kind_ == NRTSIM_COMM_GATHER || (kind_ == NRTSIM_COMM_REDUCE && is_direct_)) {
    group().ring(root_);
  } else if (!is_even_ || have_reached(&RankControl::published, &publishes_, round)) {
    group().ring_all();  // Nobody gets anywhere before the last one has published.
  }
}

// Reduces operands [begin, end) of all ranks, which lie at stage_offset of their slots of the
// current round, into `result` and the outputs, where there are such.
void Collective::reduce_range(int64_t begin, int64_t end, int64_t stage_offset, std::byte* result) {
  const int64_t round = result == nullptr ? collected_ : combined_;
  std::vector<const void*> from(static_cast<size_t>(size_));
  const int64_t block = kReduceBlock / element_;
  inputs_.for_each(begin, end, [&](size_t piece, int64_t at, int64_t count, int64_t before) {
    for (int64_t done = 0; done < count; done += block) {
      const int64_t some = std::min(block, count - done);
      const int64_t offset = (before + done) * element_;
      for (int rank = 0; rank < size_; ++rank) {
        from[static_cast<size_t>(rank)] = rank == rank_ ? inputs_.address(piece, at + done)
                                                        : slot(rank, round) + stage_offset + offset;
      }
      std::byte* const output = outputs_.size() > 0 ? outputs_.address(piece, at + done) : nullptr;
      std::byte* const to = output != nullptr ? output : result + offset;
      reduce({dtype_, reduction_, factor_, size_, from.data(), to, some});
      if (output != nullptr && result != nullptr) {
        std::memcpy(result + offset, output, static_cast<size_t>(some * element_));
      }
    }
  });
}

void Collective::combine() {
  const int64_t round = combined_;
  const auto [begin, end] = range(round);
  const auto [from, until] = part(rank_, round);
  reduce_range(begin + from, begin + until, from * element_, result_slot(rank_, round));
  ++combined_;
  group().control(rank_).combined.store(progress_of(sequence_, combined_),
                                        std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (have_reached(&RankControl::combined, nullptr, round)) group().ring_all();
}

void Collective::collect_from(int rank) {
  const auto index = static_cast<size_t>(rank);
  const int64_t round = collected_;
  const auto copy = [&](size_t piece, const std::byte* from) {
    const int64_t begin = round * chunk_;
    const int64_t end = std::min(begin + chunk_, outputs_.count(piece));
    if (end <= begin) return;
    std::memcpy(outputs_.address(piece, begin), from,
                static_cast<size_t>((end - begin) * element_));
  };
  switch (kind_) {
    case NRTSIM_COMM_ALL_REDUCE:
    case NRTSIM_COMM_REDUCE: {
      const int64_t begin = range(round).first;
      const auto [from, until] = part(rank, round);
      if (until > from) outputs_.copy_in(begin + from, begin + until, result_slot(rank, round));
      break;
    }
    case NRTSIM_COMM_BROADCAST:
      if (rank == root_) {
        const int64_t begin = round * chunk_;
        const int64_t end = std::min(begin + chunk_, outputs_.total());
        outputs_.copy_in(begin, end, slot(root_, round));
      }
      break;
    case NRTSIM_COMM_ALL_GATHER:
    case NRTSIM_COMM_GATHER:
      copy(index, slot(rank, round));
      break;
    case NRTSIM_COMM_SCATTER:
      if (rank == root_) copy(0, lane(root_, round, rank_));
      break;
    case NRTSIM_COMM_ALL_TO_ALL:
      copy(index, lane(rank, round, rank_));
      break;
    default:
      break;
  }
}

void Collective::collect() {
  const int64_t round = collected_;
  if (is_direct_) {
    const auto [begin, end] = range(round);
    reduce_range(begin, end, 0, nullptr);
  } else if (kind_ == NRTSIM_COMM_REDUCE_SCATTER) {
    const auto me = static_cast<size_t>(rank_);
    const int64_t begin = round * chunk_;
    const int64_t count = std::min(chunk_, inputs_.count(me) - begin);
    std::vector<const void*> from(static_cast<size_t>(size_));
    const int64_t block = kReduceBlock / element_;
    for (int64_t done = 0; done < count; done += block) {
      for (int rank = 0; rank < size_; ++rank) {
        from[static_cast<size_t>(rank)] = rank == rank_
                                              ? inputs_.address(me, begin + done)
                                              : lane(rank, round, rank_) + done * element_;
      }
      reduce({dtype_, reduction_, factor_, size_, from.data(), outputs_.address(0, begin + done),
              std::min(block, count - done)});
    }
  } else {
    // Each rank begins with its neighbour, so that they do not all read the same memory.
    for (int step = 1; step < size_; ++step) collect_from((rank_ + step) % size_);
  }
  ++collected_;
  group().control(rank_).collected.store(progress_of(sequence_, collected_),
                                         std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // Somebody may wait for the slot.
  const int64_t rounds = *std::max_element(publishes_.begin(), publishes_.end());
  if (std::max(rounds, publish_rounds_) <= depth_) return;
  if (!is_even_ || have_reached(&RankControl::collected, &collects_, round)) group().ring_all();
}

bool Collective::copy_own() {
  if (own_copies_.empty()) return false;
  Copy& copy = own_copies_.back();
  const int64_t bytes = std::min(copy.bytes, kRoundBytes);
  std::memcpy(copy.to, copy.from, static_cast<size_t>(bytes));
  copy = {copy.from + bytes, copy.to + bytes, copy.bytes - bytes};
  if (copy.bytes == 0) own_copies_.pop_back();
  return true;
}

bool Collective::has_ended() const {
  return agreed_ && published_ == publish_rounds_ && combined_ == combine_rounds_ &&
         collected_ == collect_rounds_ && own_copies_.empty();
}

bool Collective::poll() {
  bool any = false;
  if (!announced_) {
    announce();
    any = true;
  }
  if (can_publish()) {
    publish();
    any = true;
  }
  if (!agreed_) {
    if (!have_all_announced()) return any;
    if (!agree()) return true;
    agreed_ = any = true;
  }
  if (can_combine()) {
    combine();
    any = true;
  }
  if (can_collect()) {
    collect();
    any = true;
  }
  if (copy_own()) any = true;
  if (has_ended()) finish();
  return any;
}

// --- Waiting -------------------------------------------------------------------------------------

// body(rank) for each that has not done what this one waits for. Ranks may be named twice.
template <typename Body>
void Collective::for_each_lacking(Body body) const {
  const auto lacking = [&](std::atomic<uint64_t> RankControl::* counter, const Rounds* rounds,
                           int64_t round) {
    for (int rank = 0; rank < size_; ++rank) {
      const auto index = static_cast<size_t>(rank);
      if (rank == rank_ || (rounds != nullptr && (*rounds)[index] <= round)) continue;
      if (!has_reached(group().control(rank).*counter, round + 1)) body(rank);
    }
  };
  if (combined_ < combine_rounds_) {
    lacking(&RankControl::published, nullptr, combined_);
    if (combined_ >= depth_) lacking(&RankControl::collected, &collects_, combined_ - depth_);
  }
  if (collected_ < collect_rounds_) {
    if (combine_rounds_ > 0) {
      lacking(&RankControl::combined, nullptr, collected_);
    } else {
      lacking(&RankControl::published, &publishes_, collected_);
    }
  }
  if (published_ < publish_rounds_ && published_ >= depth_) {
    if (combine_rounds_ > 0) {
      lacking(&RankControl::combined, nullptr, published_ - depth_);
    } else {
      lacking(&RankControl::collected, &collects_, published_ - depth_);
    }
  }
}

std::vector<int> Collective::blocked_on() {
  std::vector<int> ranks;
  if (have_all_announced()) {
    for_each_lacking([&](int rank) { ranks.push_back(rank); });
  } else {
    for (int rank = 0; rank < size_; ++rank) {
      if (group().control(rank).announced.load(std::memory_order_acquire) < sequence_) {
        ranks.push_back(rank);
      }
    }
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace neuron::nrtsim::comm
