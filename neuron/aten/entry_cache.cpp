#include "neuron/aten/entry_cache.h"

#include <algorithm>
#include <cstring>

namespace neuron::aten {
namespace {

std::atomic<size_t> g_entries{0};  // Of all caches.

}  // namespace

std::shared_ptr<const Entry>* EntryCache::probe(uint64_t hash, std::span<const uint64_t> key) {
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash & mask;; i = (i + 1) & mask) {
    std::shared_ptr<const Entry>& slot = slots_[i];
    if (slot == nullptr) return &slot;
    if (slot->hash == hash && slot->key.size() == key.size() &&
        std::memcmp(slot->key.data(), key.data(), key.size_bytes()) == 0) {
      return &slot;
    }
  }
}

std::shared_ptr<const Entry> EntryCache::find(const CallView& view) {
  const Lock lock(busy_);
  if (slots_.empty()) return nullptr;
  const std::shared_ptr<const Entry>& slot = *probe(view.hash, view.key);
  if (slot != nullptr) slot->last_used = ++clock_;
  return slot;
}

std::shared_ptr<const Entry> EntryCache::insert(std::shared_ptr<Entry> entry) {
  std::vector<std::shared_ptr<const Entry>> dropped;  // Destroyed after the lock is released.
  const Lock lock(busy_);
  if (slots_.empty()) slots_.resize(16);
  entry->last_used = ++clock_;
  std::shared_ptr<const Entry>* slot = probe(entry->hash, entry->key);
  if (*slot != nullptr) return *slot;
  *slot = entry;
  ++count_;
  const size_t all = g_entries.fetch_add(1, std::memory_order_relaxed) + 1;
  if (count_ > kLimit || (all > kLimitOfAll && count_ > kAlwaysKept)) {
    drop_oldest(dropped);
  } else if (count_ * 2 > slots_.size()) {
    rebuild(slots_.size() * 2);
  }
  return entry;
}

void EntryCache::clear() {
  std::vector<std::shared_ptr<const Entry>> dropped;  // Destroyed after the lock is released.
  const Lock lock(busy_);
  dropped.swap(slots_);
  g_entries.fetch_sub(count_, std::memory_order_relaxed);
  count_ = 0;
}

void EntryCache::rebuild(size_t capacity) {
  std::vector<std::shared_ptr<const Entry>> old(capacity);
  old.swap(slots_);
  for (std::shared_ptr<const Entry>& entry : old) {
    if (entry == nullptr) continue;
    *probe(entry->hash, entry->key) = std::move(entry);
  }
}

void EntryCache::drop_oldest(std::vector<std::shared_ptr<const Entry>>& dropped) {
  std::vector<uint64_t> ages;
  ages.reserve(count_);
  for (const auto& entry : slots_) {
    if (entry != nullptr) ages.push_back(entry->last_used);
  }
  const size_t quarter = ages.size() / 4;
  std::nth_element(ages.begin(), ages.begin() + static_cast<std::ptrdiff_t>(quarter), ages.end());
  const uint64_t limit = ages[quarter];
  count_ = 0;
  for (auto& entry : slots_) {
    if (entry == nullptr) continue;
    if (entry->last_used < limit) {
      dropped.push_back(std::move(entry));
      entry.reset();
    } else {
      ++count_;
    }
  }
  g_entries.fetch_sub(dropped.size(), std::memory_order_relaxed);
  rebuild(slots_.size());
}

}  // namespace neuron::aten
