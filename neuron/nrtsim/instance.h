#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "neuron/target/target.h"

namespace neuron::nrtsim {

struct Arena;

/// One HBM stack: memory is accounted here. Two logical cores share one at LNC 1. Thread-safe.
class Bank {
 public:
  explicit Bank(uint64_t limit) : limit_(limit) {}
  /// False if it does not fit; then nothing is charged.
  bool charge(uint64_t bytes);
  void release(uint64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }
  uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  uint64_t limit() const { return limit_; }

 private:
  std::atomic<uint64_t> used_{0};
  const uint64_t limit_;
};

/// A visible logical core. Thread-safe.
struct Core {
  int index = 0;     // Among the visible ones.
  int absolute = 0;  // On the instance.
  std::shared_ptr<Bank> bank;
  /// Device clock of the time model.
  std::atomic<uint64_t> time_ns{0};
  /// Status that ended the core, or 0.
  std::atomic<int> dead{0};
  /// Scratch memory between runs; a run takes one out and puts it back.
  std::array<std::atomic<Arena*>, 8> arenas{};

  Core() = default;
  ~Core();
  /// Gives all idle scratch memory back; true if there was any.
  bool trim_arenas();
};

/// Scratch of a run, charged to the core's bank.
struct Arena {
  std::shared_ptr<Bank> bank;
  std::byte* data = nullptr;
  size_t bytes = 0;
  ~Arena();
};
/// Takes an idle arena of at least `bytes` or makes one; null if HBM is full.
Arena* take_arena(Core& core, size_t bytes);
void put_arena(Core& core, Arena* arena);

/// What the environment says about the machine to imitate.
struct Topology {
  const Target* target = nullptr;
  int lnc = 2;
  int first_core = 0;
  int visible = 0;
  int total = 0;

  /// Reads the environment anew. Throws Error(kInvalid).
  static Topology from_environment();
};

/// The opened simulator. Lives from nrt_init to nrt_close; handles may outlive it.
class Instance {
 public:
  explicit Instance(const Topology& topology);
  const Topology& topology() const { return topology_; }
  /// Null if there is no such visible core.
  const std::shared_ptr<Core>& core(int64_t index) const;

 private:
  Topology topology_;
  std::vector<std::shared_ptr<Core>> cores_;
};

enum class State : uint8_t { Uninitialized, Open, Closed };
State state();
/// NRT_SUCCESS while open; else NRT_UNINITIALIZED or NRT_CLOSED with a message.
int check_open();
/// Null unless open.
std::shared_ptr<Instance> instance();
/// Throws Error; false if it is open already.
bool open_instance();
void close_instance();

/// Memory of at least `bytes`, zeroed, 2 MiB aligned and advised to huge pages if large. Null if
/// the host has none.
void* map_memory(size_t bytes);
void unmap_memory(void* address, size_t bytes);
/// What a request of `bytes` takes.
size_t rounded_size(size_t bytes);

}  // namespace neuron::nrtsim
