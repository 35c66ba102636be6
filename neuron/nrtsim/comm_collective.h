#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "neuron/base/dtype.h"
#include "neuron/nrtsim/comm_engine.h"
#include "neuron/nrtsim/comm_group.h"
#include "neuron/nrtsim/comm_reduce.h"

namespace neuron::nrtsim::comm {

/// Pieces of memory read as one after the other.
class Pieces {
 public:
  Pieces() = default;
  Pieces(const nrtsim_comm_piece_t* pieces, size_t count, size_t element_bytes);

  size_t size() const { return pieces_.size(); }
  int64_t count(size_t index) const { return pieces_[index].count; }
  int64_t total() const { return ends_.empty() ? 0 : ends_.back(); }
  std::byte* address(size_t index) const { return static_cast<std::byte*>(pieces_[index].address); }
  /// Element `at` of piece `index`.
  std::byte* address(size_t index, int64_t at) const {
    return address(index) + at * static_cast<int64_t>(element_bytes_);
  }
  /// body(piece, first element in it, elements, elements since begin) for each contiguous part of
  /// [begin, end).
  template <typename Body>
  void for_each(int64_t begin, int64_t end, Body body) const;
  void copy_out(int64_t begin, int64_t end, std::byte* to) const;
  void copy_in(int64_t begin, int64_t end, const std::byte* from) const;

 private:
  std::vector<nrtsim_comm_piece_t> pieces_;
  std::vector<int64_t> ends_;
  size_t element_bytes_ = 1;
};

/// One collective on one rank.
///
/// Data goes in rounds through the ranks' stages. In a round a rank publishes (writes its stage),
/// combines (reduces its part of everybody's stage into a result in its own stage; only large
/// all_reduce and reduce) and collects (reads the others' stages). Rounds use the slots of a stage
/// in turn; collectives use the two halves of a stage in turn. That is safe without waiting: a rank
/// that begins collective s has seen all others begin s - 1, so they have ended s - 2.
class Collective final : public Operation {
 public:
  /// Throws Error for arguments that make no sense on their own.
  Collective(std::shared_ptr<Group> group, const nrtsim_comm_collective_t& call,
             const nrtsim_comm_start_t& start);

  void set_sequence(uint64_t sequence) { sequence_ = sequence; }
  uint64_t sequence() const override { return sequence_; }
  std::string describe() const override;
  std::vector<int> blocked_on() override;
  std::string explain_wait() override;

  /// Does what can be done now, at most one round. False: nothing.
  bool poll();

 private:
  using Rounds = std::vector<int64_t>;

  void check_arguments() const;
  std::string describe_call() const;
  void plan();
  void plan_own_copies();
  void plan_reduction(int64_t total);
  void plan_lanes();
  int64_t rounds_of(int64_t count) const { return (count + chunk_ - 1) / chunk_; }

  // Agreement.
  void announce();
  bool have_all_announced();
  bool agree();  // False: failed.
  void hash_request(uint64_t (&hash)[2]) const;
  int64_t gives(int rank, int to) const;
  int64_t takes(int rank, int from) const;
  bool check_sizes(int giver, int taker);
  void fail_disagreement(int one, int other, const std::string& what);

  // Rounds.
  bool can_publish() const;
  bool can_combine() const;
  bool can_collect() const;
  void publish();
  void combine();
  void collect();
  bool copy_own();
  void collect_from(int rank);
  void reduce_range(int64_t begin, int64_t end, int64_t stage_offset, std::byte* result);
  template <typename Body>
  void for_each_lacking(Body body) const;
  bool has_ended() const;
  bool have_reached(std::atomic<uint64_t> RankControl::* counter, const Rounds* rounds,
                    int64_t round, int* first = nullptr) const;
  std::byte* slot(int rank, int64_t round) const;
  std::byte* lane(int rank, int64_t round, int of) const;
  std::byte* result_slot(int rank, int64_t round) const;
  // Elements of rank `rank`'s part of a round of a reduction, relative to the round.
  std::pair<int64_t, int64_t> part(int rank, int64_t round) const;
  std::pair<int64_t, int64_t> range(int64_t round) const;
  bool has_reached(const std::atomic<uint64_t>& counter, int64_t rounds) const {
    return counter.load(std::memory_order_acquire) >= progress_of(sequence_, rounds);
  }
  bool is_root() const { return rank_ == root_; }

  const int rank_, size_;
  const int kind_;
  const DType dtype_;
  const CommReduction reduction_;
  const double factor_;
  const int root_;
  const std::string name_;
  const int64_t element_;
  Pieces inputs_, outputs_;
  uint64_t sequence_ = 0;

  // The plan. publishes_[q]: rounds in which rank q's stage has something for this rank;
  // collects_[q]: rounds in which rank q reads this rank's stage.
  Rounds publishes_, collects_;
  int64_t publish_rounds_ = 0, combine_rounds_ = 0, collect_rounds_ = 0;  // This rank's.
  int64_t chunk_ = 1;  // Elements in a slot, or in a lane of it.
  int64_t depth_ = 1;  // Slots.
  int64_t slot_bytes_ = 0, lane_bytes_ = 0, part_bytes_ = 0;
  bool is_direct_ = false;  // A small reduction: everybody reduces everything.
  bool is_even_ = false;    // All ranks know the rounds of all.
  struct Copy {
    const std::byte* from;
    std::byte* to;
    int64_t bytes;
  };
  std::vector<Copy> own_copies_;  // What this rank gives to itself.

  // Progress.
  bool announced_ = false, agreed_ = false;
  int first_absent_ = 0;
  int64_t published_ = 0, combined_ = 0, collected_ = 0;
};

}  // namespace neuron::nrtsim::comm
