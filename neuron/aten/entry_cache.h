#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "neuron/aten/prepare.h"

namespace neuron::aten {

/// The entries of one overload: open addressing by hash, full keys compared. The oldest quarter is
/// dropped when this cache, or all of them together, hold too many. Thread-safe; the lock is held
/// for a probe only.
class EntryCache {
 public:
  std::shared_ptr<const Entry> find(const CallView& view);
  /// The first of two equal entries wins and is returned.
  std::shared_ptr<const Entry> insert(std::shared_ptr<Entry> entry);
  void clear();

 private:
  static constexpr size_t kLimit = 512;
  static constexpr size_t kLimitOfAll = 4096;
  static constexpr size_t kAlwaysKept = 32;  // Whatever the other caches hold.

  struct Lock {
    explicit Lock(std::atomic_flag& flag) : flag_(flag) {
      while (flag_.test_and_set(std::memory_order_acquire)) {
        while (flag_.test(std::memory_order_relaxed)) {
        }
      }
    }
    ~Lock() { flag_.clear(std::memory_order_release); }
    std::atomic_flag& flag_;
  };

  std::shared_ptr<const Entry>* probe(uint64_t hash, std::span<const uint64_t> key);
  void rebuild(size_t capacity);
  void drop_oldest(std::vector<std::shared_ptr<const Entry>>& dropped);

  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  std::vector<std::shared_ptr<const Entry>> slots_;  // A power of two, at most half full.
  size_t count_ = 0;
  uint64_t clock_ = 0;
};

}  // namespace neuron::aten
