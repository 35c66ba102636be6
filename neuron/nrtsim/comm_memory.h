#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

// Memory that the processes of a host share: anonymous files that peers open through
// /proc/<pid>/fd. They have no name in any file system, belong to one user (mode 0600), and go
// with the last process that maps them, however it ends.
namespace neuron::nrtsim {

using Token = std::array<uint8_t, 16>;
Token random_token();

/// One shared mapping. Forked children do not inherit it.
class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        fd_(std::exchange(other.fd_, -1)) {}
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~SharedMemory();

  /// Zeros. Throws Error(kIo).
  static SharedMemory create(size_t bytes);
  /// Maps what another process created. Throws Error(kDevice) if it is gone or not as expected.
  static SharedMemory open(int pid, int fd, size_t bytes);

  std::byte* address() const { return address_; }
  size_t bytes() const { return bytes_; }
  /// Of the creator, until close_fd(); others cannot open the memory afterwards.
  int fd() const { return fd_; }
  void close_fd();

 private:
  std::byte* address_ = nullptr;
  size_t bytes_ = 0;
  int fd_ = -1;
};

/// Waits while *word == expected; at most `nanoseconds`. May return early.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, int64_t nanoseconds,
                uint32_t bits = ~0u);
void futex_wake(std::atomic<uint32_t>& word, int count, uint32_t bits = ~0u);

/// Start of a living process in clock ticks since boot; 0 if there is none. With the pid it names
/// one process for good.
uint64_t start_time_of(int pid);

// --- What lies in a communicator's memory --------------------------------------------------------

inline constexpr size_t kLine = 64;
inline constexpr int kMaxRanks = 256;

/// How far a rank is in the current collective: number of the collective << 24 | rounds.
constexpr uint64_t progress_of(uint64_t sequence, int64_t rounds) {
  return sequence << 24 | static_cast<uint64_t>(rounds);
}
inline constexpr int64_t kMaxRounds = (int64_t{1} << 24) - 1;

/// Of one rank. The first three parts are written by that rank only.
struct alignas(kLine) RankControl {
  std::atomic<uint32_t> joined;  // What follows up to the token is valid.
  std::atomic<uint32_t> mapped;  // It has mapped everybody's bell.
  std::atomic<uint32_t> left;    // It will never take part again.
  int32_t pid;
  uint64_t start_time;
  int32_t bell_fd;
  Token bell_token;

  alignas(
      kLine) std::atomic<uint64_t> announced;  // Youngest collective whose description is there.
  std::atomic<uint64_t> published;             // progress_of() the three phases.
  std::atomic<uint64_t> combined;
  std::atomic<uint64_t> collected;

  // Written by the others: the pipes from the ranks of the set bits have data.
  alignas(kLine) std::atomic<uint64_t> has_data[kMaxRanks / 64];
};

enum AbortState : uint32_t { kNotAborted, kAborting, kAborted };

struct Header {
  Token token;
  int32_t size;
  std::atomic<uint32_t> arrivals;  // Counts steps of the meeting; ranks sleep on it.
  std::atomic<uint32_t> abort_state;
  int32_t abort_rank;
  char abort_text[2048];
};

/// What a rank asks for in one collective. Two for each rank, used in turn.
struct Description {
  std::atomic<uint64_t> sequence;
  uint64_t fingerprint[2];
  int64_t uniform_gives;  // All `gives` (`takes`) are this; -1: they are in the table.
  int64_t uniform_takes;
  char text[296];
  // Followed by gives[size], takes[size]: elements for, and expected from, each rank.
};

/// One direction between two ranks: a ring of bytes.
struct Pipe {
  alignas(kLine) std::atomic<uint64_t> head;  // Bytes written, by the sender.
  alignas(kLine) std::atomic<uint64_t> tail;  // Bytes taken, by the receiver.
  std::atomic<uint64_t> matched;              // Bytes of buffered messages that found their recv.
  std::atomic<uint32_t> wants_room;           // The sender waits for `tail`.
};

/// Addresses in a communicator's memory; they follow from the number of ranks.
class Layout {
 public:
  explicit Layout(int size);

  size_t bytes() const { return bytes_; }
  size_t stage_bytes() const { return stage_; }
  size_t pipe_bytes() const { return pipe_; }

  Header& header(std::byte* base) const { return *reinterpret_cast<Header*>(base); }
  RankControl& control(std::byte* base, int rank) const {
    return reinterpret_cast<RankControl*>(base + controls_)[rank];
  }
  Description& description(std::byte* base, int rank, uint64_t sequence) const {
    return *reinterpret_cast<Description*>(
        base + descriptions_ + (static_cast<size_t>(rank) * 2 + (sequence & 1)) * description_);
  }
  int64_t* gives(Description& description) const {
    return reinterpret_cast<int64_t*>(&description + 1);
  }
  int64_t* takes(Description& description) const { return gives(description) + size_; }
  Pipe& pipe(std::byte* base, int from, int to) const {
    return *reinterpret_cast<Pipe*>(base + pipes_ + pipe_index(from, to) * sizeof(Pipe));
  }
  std::byte* pipe_data(std::byte* base, int from, int to) const {
    return base + pipe_data_ + pipe_index(from, to) * pipe_;
  }
  /// Where `rank` puts its data of collectives with even (odd) numbers.
  std::byte* stage(std::byte* base, int rank, uint64_t sequence) const {
    return base + stages_ + (static_cast<size_t>(rank) * 2 + (sequence & 1)) * stage_;
  }

 private:
  size_t pipe_index(int from, int to) const {
    return static_cast<size_t>(from) * static_cast<size_t>(size_) + static_cast<size_t>(to);
  }

  int size_;
  size_t stage_, pipe_, description_;
  size_t controls_, descriptions_, pipes_, pipe_data_, stages_, bytes_;
};

}  // namespace neuron::nrtsim
