#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

#include "neuron/base/error.h"
#include "neuron/base/hash.h"
#include "neuron/nrtsim/comm_collective.h"

// What the ranks tell each other about a collective before its data is used, and in errors.
namespace neuron::nrtsim::comm {
namespace {

constexpr int kKinds = 9;
constexpr const char* kKindNames[kKinds] = {"barrier", "broadcast",      "all_reduce",
                                            "reduce",  "all_gather",     "gather",
                                            "scatter", "reduce_scatter", "all_to_all"};

bool reduces(int kind) {
  return kind == NRTSIM_COMM_ALL_REDUCE || kind == NRTSIM_COMM_REDUCE ||
         kind == NRTSIM_COMM_REDUCE_SCATTER;
}

bool has_root(int kind) {
  return kind == NRTSIM_COMM_BROADCAST || kind == NRTSIM_COMM_REDUCE ||
         kind == NRTSIM_COMM_GATHER || kind == NRTSIM_COMM_SCATTER;
}

// "[4, 4, 7]", shortened.
std::string list_of_counts(const Pieces& pieces) {
  constexpr size_t kShown = 8;
  std::string text = "[";
  for (size_t i = 0; i < std::min(pieces.size(), kShown); ++i) {
    text += internal::join(i == 0 ? "" : ", ", pieces.count(i));
  }
  if (pieces.size() > kShown) {
    text += internal::join(", ...; ", pieces.size(), " pieces of ", pieces.total());
  }
  return text + "]";
}

// All counts, or -1 if they differ.
int64_t uniform_count(const Pieces& pieces) {
  for (size_t i = 1; i < pieces.size(); ++i) {
    if (pieces.count(i) != pieces.count(0)) return -1;
  }
  return pieces.size() == 0 ? 0 : pieces.count(0);
}

}  // namespace

std::string Collective::describe_call() const {
  std::string text = name_.empty() ? kKindNames[kind_] : name_;
  if (kind_ == NRTSIM_COMM_BARRIER) return text;
  text += " (";
  if (reduces(kind_)) {
    text += internal::join(nrtsim::name_of(reduction_));
    if (factor_ != 1) text += internal::join(" scaled by ", factor_);
    text += " of ";
  }
  text += std::string(neuron::name_of(dtype_)) + " ";
  const bool in_and_out = kind_ == NRTSIM_COMM_ALL_GATHER || kind_ == NRTSIM_COMM_REDUCE_SCATTER ||
                          kind_ == NRTSIM_COMM_ALL_TO_ALL;
  text += list_of_counts(inputs_.size() > 0 ? inputs_ : outputs_);
  if (in_and_out) text += " to " + list_of_counts(outputs_);
  if (has_root(kind_)) text += internal::join(", root ", root_);
  return text + ")";
}

std::string Collective::describe() const {
  return internal::join(describe_call(), " #", sequence_, " of group '", group().name(), "'");
}

// What this rank can see to be wrong by itself.
void Collective::check_arguments() const {
  NEURON_CHECK(kind_ >= 0 && kind_ < kKinds, kInternal, "no collective ", kind_);
  const auto n = static_cast<size_t>(size_);
  const std::string what = name_.empty() ? kKindNames[kind_] : name_;
  NEURON_CHECK(static_cast<int>(dtype_) < kDTypeCount, kInvalid, what, ": no dtype ",
               static_cast<int>(dtype_));
  NEURON_CHECK(!has_root(kind_) || (root_ >= 0 && root_ < size_), kInvalid, what, ": root ", root_,
               " is not in a group of ", size_, " ranks");
  NEURON_CHECK(!reduces(kind_) || can_reduce(dtype_, reduction_, factor_), kUnsupported, what, ": ",
               nrtsim::name_of(reduction_),
               factor_ != 1 ? internal::join(" scaled by ", factor_) : "", " of ",
               neuron::name_of(dtype_), " is not supported");
  for (const Pieces* pieces : {&inputs_, &outputs_}) {
    for (size_t i = 0; i < pieces->size(); ++i) {
      NEURON_CHECK(
          pieces->count(i) >= 0 && (pieces->count(i) == 0 || pieces->address(i) != nullptr),
          kInvalid, what, ": piece ", i, " has ", pieces->count(i), " elements",
          pieces->count(i) >= 0 ? " and no memory" : "");
    }
  }
  const auto expect = [&](const Pieces& pieces, const char* which, size_t wanted) {
    NEURON_CHECK(pieces.size() == wanted, kInvalid, what, ": ", wanted, " ", which,
                 " expected in a group of ", size_, " ranks, got ", pieces.size());
  };
  const auto expect_equal = [&](size_t input, size_t output) {
    NEURON_CHECK(inputs_.count(input) == outputs_.count(output), kInvalid, what, ": input ", input,
                 " has ", inputs_.count(input), " elements, output ", output, " has ",
                 outputs_.count(output));
  };
  const auto me = static_cast<size_t>(rank_);
  switch (kind_) {
    case NRTSIM_COMM_BARRIER:
      break;
    case NRTSIM_COMM_BROADCAST:
      if (is_root() && outputs_.size() == 0) break;
      if (!is_root()) break;
      [[fallthrough]];
    case NRTSIM_COMM_ALL_REDUCE:
    case NRTSIM_COMM_REDUCE:
      if (kind_ == NRTSIM_COMM_REDUCE && !is_root()) break;
      expect(outputs_, "outputs", inputs_.size());
      for (size_t i = 0; i < inputs_.size(); ++i) expect_equal(i, i);
      break;
    case NRTSIM_COMM_ALL_GATHER:
      expect(inputs_, "inputs", 1);
      expect(outputs_, "outputs", n);
      expect_equal(0, me);
      break;
    case NRTSIM_COMM_GATHER:
      expect(inputs_, "inputs", 1);
      if (is_root()) {
        expect(outputs_, "outputs", n);
        expect_equal(0, me);
      }
      break;
    case NRTSIM_COMM_SCATTER:
      expect(outputs_, "outputs", 1);
      if (is_root()) {
        expect(inputs_, "inputs", n);
        expect_equal(me, 0);
      }
      break;
    case NRTSIM_COMM_REDUCE_SCATTER:
      expect(inputs_, "inputs", n);
      expect(outputs_, "outputs", 1);
      expect_equal(me, 0);
      break;
    default:
      expect(inputs_, "inputs", n);
      expect(outputs_, "outputs", n);
      expect_equal(me, me);
  }
}

// Everything that must be the same on all ranks.
void Collective::hash_request(uint64_t (&hash)[2]) const {
  Hasher hasher;
  hasher.add(static_cast<uint64_t>(kind_));
  if (kind_ != NRTSIM_COMM_BARRIER) hasher.add(static_cast<uint64_t>(dtype_));
  if (reduces(kind_)) {
    hasher.add(static_cast<uint64_t>(reduction_));
    hasher.add(std::bit_cast<uint64_t>(factor_));
  }
  if (has_root(kind_)) hasher.add(static_cast<uint64_t>(root_));
  const auto add = [&](const Pieces& pieces) {
    hasher.add(pieces.size());
    for (size_t i = 0; i < pieces.size(); ++i) hasher.add(static_cast<uint64_t>(pieces.count(i)));
  };
  if (kind_ == NRTSIM_COMM_BROADCAST) add(is_root() ? inputs_ : outputs_);
  if (reduces(kind_)) add(inputs_);
  if (kind_ == NRTSIM_COMM_ALL_GATHER) add(outputs_);
  const Hash128 result = hasher.finish();
  hash[0] = result.low;
  hash[1] = result.high;
}

void Collective::announce() {
  announced_ = true;
  const Layout& layout = group().layout();
  Description& own = layout.description(group().base(), rank_, sequence_);
  hash_request(own.fingerprint);
  own.uniform_gives = own.uniform_takes = 0;
  const auto publish_counts = [&](const Pieces& pieces, int64_t& uniform, int64_t* table) {
    uniform = uniform_count(pieces);
    if (uniform >= 0) return;
    for (size_t i = 0; i < pieces.size(); ++i) table[i] = pieces.count(i);
  };
  switch (kind_) {
    case NRTSIM_COMM_ALL_GATHER:
    case NRTSIM_COMM_GATHER:
    case NRTSIM_COMM_SCATTER:
    case NRTSIM_COMM_REDUCE_SCATTER:
    case NRTSIM_COMM_ALL_TO_ALL:
      publish_counts(inputs_, own.uniform_gives, layout.gives(own));
      publish_counts(outputs_, own.uniform_takes, layout.takes(own));
      break;
    default:
      break;
  }
  std::snprintf(own.text, sizeof(own.text), "%s", describe_call().c_str());
  RankControl& control = group().control(rank_);
  control.announced.store(sequence_, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  first_absent_ = 0;
  if (have_all_announced()) group().ring_all();
}

bool Collective::have_all_announced() {
  while (first_absent_ < size_ &&
         (first_absent_ == rank_ ||
          group().control(first_absent_).announced.load(std::memory_order_acquire) >= sequence_)) {
    ++first_absent_;
  }
  return first_absent_ == size_;
}

int64_t Collective::gives(int rank, int to) const {
  Description& other = group().layout().description(group().base(), rank, sequence_);
  return other.uniform_gives >= 0 ? other.uniform_gives : group().layout().gives(other)[to];
}

int64_t Collective::takes(int rank, int from) const {
  Description& other = group().layout().description(group().base(), rank, sequence_);
  return other.uniform_takes >= 0 ? other.uniform_takes : group().layout().takes(other)[from];
}

void Collective::fail_disagreement(int one, int other, const std::string& what) {
  const auto text = [&](int rank) {
    const Description& of = group().layout().description(group().base(), rank, sequence_);
    return internal::join(group().name_of(rank), ": ", of.text);
  };
  fail({ErrorKind::kInvalid,
        internal::join("group '", group().name(), "', collective #", sequence_, ": ", what, "; ",
                       text(one), "; ", text(other), "; this is ", group().name_of(rank_))});
}

bool Collective::check_sizes(int giver, int taker) {
  const int64_t given = gives(giver, taker);
  const int64_t taken = takes(taker, giver);
  if (given == taken) return true;
  fail_disagreement(giver, taker,
                    internal::join(group().name_of(giver), " gives ", given, " elements, ",
                                   group().name_of(taker), " expects ", taken, " from it"));
  return false;
}

// All ranks compare the same things in the same order, so they all report the same two ranks.
bool Collective::agree() {
  const Layout& layout = group().layout();
  const auto of = [&](int rank) -> const Description& {
    return layout.description(group().base(), rank, sequence_);
  };
  for (int rank = 1; rank < size_; ++rank) {
    if (std::memcmp(of(rank).fingerprint, of(0).fingerprint, sizeof(of(0).fingerprint)) != 0) {
      fail_disagreement(0, rank, "the ranks ask for different things");
      return false;
    }
  }
  switch (kind_) {
    case NRTSIM_COMM_ALL_GATHER:
      for (int rank = 0; rank < size_; ++rank) {
        if (!check_sizes(rank, 0)) return false;
      }
      break;
    case NRTSIM_COMM_REDUCE_SCATTER:
      for (int rank = 0; rank < size_; ++rank) {
        if (!check_sizes(0, rank)) return false;
      }
      break;
    case NRTSIM_COMM_GATHER:
      for (int rank = 0; rank < size_; ++rank) {
        if (!check_sizes(rank, root_)) return false;
      }
      break;
    case NRTSIM_COMM_SCATTER:
      for (int rank = 0; rank < size_; ++rank) {
        if (!check_sizes(root_, rank)) return false;
      }
      break;
    case NRTSIM_COMM_ALL_TO_ALL: {
      bool even = true;
      for (int rank = 0; rank < size_ && even; ++rank) {
        even = of(rank).uniform_gives >= 0 && of(rank).uniform_gives == of(0).uniform_gives &&
               of(rank).uniform_takes == of(0).uniform_gives;
      }
      is_even_ = even;
      for (int giver = 0; giver < size_ && !even; ++giver) {
        for (int taker = 0; taker < size_; ++taker) {
          if (!check_sizes(giver, taker)) return false;
        }
      }
      break;
    }
    default:
      break;
  }
  return true;
}

std::string Collective::explain_wait() {
  if (is_held()) return "earlier work of its stream has not ended";
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  const bool arrived = have_all_announced();
  for (const int rank : blocked_on()) {
    if (arrived) {
      add(group().name_of(rank) + " has stopped in the middle of it");
      continue;
    }
    const uint64_t last = group().control(rank).announced.load(std::memory_order_acquire);
    if (last == 0) {
      add(group().name_of(rank) + " had not arrived (it has not begun any collective)");
      continue;
    }
    char about[sizeof(Description::text)];
    std::snprintf(about, sizeof(about), "%s",
                  group().layout().description(group().base(), rank, last).text);
    add(internal::join(group().name_of(rank), " had not arrived (its last collective was #", last,
                       ", ", about, ")"));
  }
  return text.empty() ? "it waits for an earlier collective" : text;
}

}  // namespace neuron::nrtsim::comm
