#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "neuron/runtime/block.h"
#include "neuron/runtime/free_bins.h"
#include "neuron/runtime/runtime.h"
#include "neuron/runtime/spin_lock.h"
#include "neuron/runtime/stream.h"

namespace neuron::runtime {

/// Contiguous device memory from the NRT; `handle` is the NRT tensor that owns it.
struct Region {
  void* address = nullptr;
  size_t bytes = 0;
  void* handle = nullptr;
};

/// Where an allocator gets its regions. Thread-safe.
class RegionSource {
 public:
  virtual ~RegionSource() = default;
  /// A null address if the device has no room; throws Error for any other failure.
  virtual Region allocate(size_t bytes) = 0;
  virtual void free(const Region& region) noexcept = 0;
  /// {used, total} bytes of the device, by whomever.
  virtual std::pair<size_t, size_t> usage() = 0;
};

/// One region and the blocks that it is cut into.
struct Segment {
  DeviceAllocator* owner = nullptr;
  Region region;
  uint8_t pool = 0;
  uint8_t stream = 0;
  Block* first = nullptr;
  // Queued work up to this task may use memory that was freed here: reuse in stream order needs no
  // reference, giving the segment back does.
  uint64_t last_use = 0;
};

/// The caching allocator of one device.
///
/// Requests are rounded to 512 bytes. Up to 1 MiB they come from 2 MiB segments, above from 64 MiB
/// segments (larger requests get a segment of their own size). Each stream has its own pools, so a
/// freed block is reused at once, in stream order. Small blocks are kept as they were cut until the
/// pool runs dry: the next request of that size pops the head of a list. Best fit otherwise.
///
/// Thread-safe; borrows the source. Never destroyed in the running system: tensors in static
/// storage are freed after main().
class DeviceAllocator {
 public:
  static constexpr size_t kAlignment = 512;
  static constexpr size_t kSmallLimit = size_t{1} << 20;
  static constexpr size_t kSmallSegment = size_t{2} << 20;
  static constexpr size_t kLargeSegment = size_t{64} << 20;

  DeviceAllocator(int device, RegionSource* source) : device_(device), source_(source) {}
  ~DeviceAllocator();
  DeviceAllocator(const DeviceAllocator&) = delete;
  DeviceAllocator& operator=(const DeviceAllocator&) = delete;

  int device() const { return device_; }

  /// A block with one reference, or null for 0 bytes. Throws Error(kOutOfMemory).
  Block* allocate(size_t bytes, int64_t stream);
  /// The last reference is gone. From any thread.
  void free(Block* block) noexcept;

  /// Returns unused segments to the device after waiting for queued work.
  void empty_cache();
  MemoryStats stats();
  void reset_peak_stats();
  void reset_accumulated_stats();
  std::pair<size_t, size_t> memory_info();
  void set_memory_fraction(double fraction);
  void snapshot(std::vector<SegmentInfo>& out);
  /// The region that holds the address; a null one if it is not this device's memory. Slow.
  Region find_region(const void* address);

 private:
  enum Counter {
    kAllocation,
    kActive,
    kInactiveSplit,
    kAllocatedBytes,
    kActiveBytes,
    kInactiveSplitBytes,
    kRequestedBytes,
    kSegment,
    kReservedBytes,
    kCounters,
  };
  // What has been freed follows from the rest, so a free updates `current` only.
  struct Counters {
    int64_t current[kCounters] = {};
    int64_t peak[kCounters] = {};
    int64_t increased[kCounters] = {};  // Since the accumulated statistics were reset.
    int64_t base[kCounters] = {};       // `current` at that time.
  };
  // Classes of 512 bytes; the last one takes whatever is larger than any small request.
  using SmallBins = FreeBins<2049>;
  // 32 classes per power of two from 1 MiB to 128 TiB.
  using LargeBins = FreeBins<27 * 32>;
  struct StreamPools {
    SmallBins small;
    LargeBins large;
    bool unmerged = false;  // Small blocks were freed since the last merge.
  };
  struct Pending {
    Block* block;
    uint64_t sequence;  // Free once the executor has passed this.
  };
  using Guard = std::lock_guard<SpinLock>;

  static int small_bin(size_t size);
  static int large_bin(size_t size);

  StreamPools& pools(int64_t stream);
  Block* take(StreamPools& pools, size_t size);
  Block* take_large(StreamPools& pools, size_t size);
  void split(StreamPools& pools, Block* block, size_t size);
  void insert(StreamPools& pools, Block* block);
  void remove(StreamPools& pools, Block* block);
  Block* merge(StreamPools& pools, Block* block);
  void merge_small(StreamPools& pools);
  void put_free(Block* block);
  void hand_out(Block* block, size_t requested);
  void process_pending();
  Block* allocate_slow(size_t bytes, size_t size, int64_t stream);
  bool grow(size_t size, int64_t stream);
  Region ask(size_t bytes);
  size_t release_segments();
  [[noreturn]] void fail(size_t bytes);

  void increase(int pool, Counter counter, int64_t amount);
  void decrease(int pool, Counter counter, int64_t amount);

  Block* new_record();
  void drop_record(Block* block);

  const int device_;
  RegionSource* const source_;  // Borrowed.

  // Guards everything below except where noted.
  SpinLock lock_;
  Counters counters_[3];  // 0: `current` and `peak` of all; 1: small; 2: large.
  std::unique_ptr<StreamPools> pools_[kStreams];
  std::vector<Segment*> segments_;
  std::vector<Pending> pending_;
  Block* spare_records_ = nullptr;  // Linked through bin_next.
  std::vector<std::unique_ptr<Block[]>> records_;
  int64_t retries_ = 0, ooms_ = 0, syncs_ = 0, device_allocs_ = 0, device_frees_ = 0;
  double fraction_ = 1.0;

  // One thread at a time asks the device for memory. Taken before lock_.
  std::mutex growth_;
};

/// The allocator of an opened device.
DeviceAllocator& allocator_of(int device);

}  // namespace neuron::runtime
