#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "neuron/base/error.h"
#include "neuron/runtime/device.h"
#include "neuron/runtime/executor.h"
#include "neuron/runtime/pinned.h"
#include "neuron/runtime/runtime.h"

// Pinned host memory. All of it lies in one reserved range of addresses, so that is_pinned() is two
// comparisons. The NRT transfers from any host memory without a copy of its own; what "pinned"
// promises here is that a block stays valid until every queued transfer has passed.
namespace neuron::runtime {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kLargestReservation = size_t{256} << 30;
constexpr size_t kSmallestReservation = size_t{1} << 30;

struct Range {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> top{0};  // End of what was ever handed out.
};
Range g_range;  // Constant-initialised: is_pinned() works at any time.

// Powers of two from one page up. Thread-safe; leaked.
class PinnedAllocator {
 public:
  void* allocate(size_t bytes) {
    const size_t size = std::bit_ceil(std::max(bytes, kPage));
    std::lock_guard lock(mutex_);
    auto& list = free_[std::countr_zero(size)];
    const uint64_t completed = completed_sequence();
    for (size_t i = list.size(); i-- > 0;) {
      if (list[i].sequence > completed) continue;
      const Free block = list[i];
      list.erase(list.begin() + static_cast<ptrdiff_t>(i));
      sizes_[block.address] = size;
      count(size);
      return reinterpret_cast<void*>(block.address);
    }
    const uintptr_t address = carve(bytes, size);
    sizes_[address] = size;
    stats_.blocks.increase(1);
    stats_.reserved_bytes.increase(static_cast<int64_t>(size));
    ++stats_.carved;
    count(size);
    return reinterpret_cast<void*>(address);
  }

  void free(void* address) noexcept {
    std::lock_guard lock(mutex_);
    const auto found = sizes_.find(reinterpret_cast<uintptr_t>(address));
    if (found == sizes_.end()) return;
    // Queued transfers may still use it.
    free_[std::countr_zero(found->second)].push_back({found->first, submitted_sequence(), false});
    stats_.requests.decrease(1);
    stats_.active_bytes.decrease(static_cast<int64_t>(found->second));
    sizes_.erase(found);
  }

  // The addresses stay reserved; the pages go back to the system.
  void empty_cache() {
    drain();
    std::lock_guard lock(mutex_);
    for (size_t exponent = 0; exponent < std::size(free_); ++exponent) {
      for (Free& block : free_[exponent]) {
        if (block.is_cold || block.sequence > completed_sequence()) continue;
        madvise(reinterpret_cast<void*>(block.address), size_t{1} << exponent, MADV_DONTNEED);
        block.is_cold = true;
      }
    }
  }

  PinnedStats stats() {
    std::lock_guard lock(mutex_);
    return stats_;
  }
  void reset_peak() {
    std::lock_guard lock(mutex_);
    for (Stat* stat :
         {&stats_.requests, &stats_.active_bytes, &stats_.blocks, &stats_.reserved_bytes}) {
      stat->peak = stat->current;
    }
  }
  void reset_accumulated() {
    std::lock_guard lock(mutex_);
    for (Stat* stat :
         {&stats_.requests, &stats_.active_bytes, &stats_.blocks, &stats_.reserved_bytes}) {
      stat->allocated = stat->freed = 0;
    }
    stats_.carved = 0;
  }

 private:
  void count(size_t size) {
    stats_.requests.increase(1);
    stats_.active_bytes.increase(static_cast<int64_t>(size));
  }

  struct Free {
    uintptr_t address;
    uint64_t sequence;  // Reusable once the executor has passed this.
    bool is_cold;       // Has no pages.
  };

  uintptr_t carve(size_t bytes, size_t size) {
    if (end_ == 0) reserve();
    const uintptr_t alignment = std::min(size, kHugePage);
    const uintptr_t address = (g_range.top.load() + alignment - 1) & ~(alignment - 1);
    void* const place = reinterpret_cast<void*>(address);
    const bool fits = end_ != 0 && size <= end_ && address <= end_ - size;
    NEURON_CHECK(fits && mprotect(place, size, PROT_READ | PROT_WRITE) == 0, kOutOfMemory,
                 "cannot allocate ", Bytes(bytes),
                 " of pinned host memory: ", Bytes(g_range.top.load() - g_range.begin.load()),
                 " of ", Bytes(end_ - g_range.begin.load()),
                 " of address space in use; free pinned tensors or use pageable memory");
    if (size >= kHugePage) madvise(place, size, MADV_HUGEPAGE);
    g_range.top.store(address + size, std::memory_order_release);
    return address;
  }

  // As much address space as the process may have; it costs nothing until it is touched.
  void reserve() {
    for (size_t size = kLargestReservation; size >= kSmallestReservation; size /= 2) {
      void* const base =
          mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (base == MAP_FAILED) continue;
      madvise(base, size, MADV_DONTDUMP);
      g_range.begin.store(reinterpret_cast<uintptr_t>(base));
      g_range.top.store(reinterpret_cast<uintptr_t>(base), std::memory_order_release);
      end_ = reinterpret_cast<uintptr_t>(base) + size;
      return;
    }
  }

  std::mutex mutex_;
  PinnedStats stats_;
  uintptr_t end_ = 0;
  std::unordered_map<uintptr_t, size_t> sizes_;
  std::vector<Free> free_[64];  // By log2 of the size.
};

PinnedAllocator& pinned_allocator() {
  static PinnedAllocator* const instance = new PinnedAllocator;
  return *instance;
}

}  // namespace

void* allocate_pinned(size_t bytes) {
  if (bytes == 0) return nullptr;
  if (in_bad_fork()) raise_bad_fork();
  NEURON_CHECK(bytes <= kLargestReservation, kOutOfMemory, "cannot allocate ", Bytes(bytes),
               " of pinned host memory: at most ", Bytes(kLargestReservation));
  return pinned_allocator().allocate(bytes);
}

void free_pinned(void* address) noexcept {
  if (address == nullptr || in_bad_fork()) return;
  pinned_allocator().free(address);
}

bool is_pinned(const void* address) noexcept {
  const auto value = reinterpret_cast<uintptr_t>(address);
  return value >= g_range.begin.load(std::memory_order_relaxed) &&
         value < g_range.top.load(std::memory_order_acquire);
}

PinnedStats pinned_stats() { return pinned_allocator().stats(); }
void reset_peak_pinned_stats() { pinned_allocator().reset_peak(); }
void reset_accumulated_pinned_stats() { pinned_allocator().reset_accumulated(); }

void empty_pinned_cache() {
  if (!in_bad_fork()) pinned_allocator().empty_cache();
}

}  // namespace neuron::runtime
