#include "neuron/runtime/device_allocator.h"

#include <algorithm>
#include <bit>
#include <string>

#include "neuron/base/error.h"
#include "neuron/runtime/executor.h"
#include "neuron/runtime/memory_history.h"
#include "neuron/runtime/program.h"

namespace neuron::runtime {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMaxRequest = size_t{1} << 46;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

DeviceAllocator::~DeviceAllocator() {
  for (Segment* segment : segments_) {
    source_->free(segment->region);
    delete segment;
  }
}

int DeviceAllocator::small_bin(size_t size) {
  return static_cast<int>(std::min<size_t>(size / kAlignment - 1, kSmallLimit / kAlignment));
}

int DeviceAllocator::large_bin(size_t size) {
  const int exponent = 63 - std::countl_zero(static_cast<uint64_t>(size));
  return (exponent - 20) * 32 + static_cast<int>((size >> (exponent - 5)) & 31);
}

void DeviceAllocator::increase(int pool, Counter counter, int64_t amount) {
  for (Counters* counters : {&counters_[0], &counters_[pool]}) {
    const int64_t now = counters->current[counter] += amount;
    counters->increased[counter] += amount;
    if (now > counters->peak[counter]) counters->peak[counter] = now;
  }
}

void DeviceAllocator::decrease(int pool, Counter counter, int64_t amount) {
  counters_[0].current[counter] -= amount;
  counters_[pool].current[counter] -= amount;
}

Block* DeviceAllocator::new_record() {
  if (spare_records_ == nullptr) {
    constexpr int kBatch = 256;
    auto batch = std::make_unique<Block[]>(kBatch);
    for (int i = 0; i < kBatch; ++i) {
      batch[i].bin_next = spare_records_;
      spare_records_ = &batch[i];
    }
    records_.push_back(std::move(batch));
  }
  Block* block = spare_records_;
  spare_records_ = block->bin_next;
  block->bin_next = nullptr;
  return block;
}

void DeviceAllocator::drop_record(Block* block) {
  block->bin_next = spare_records_;
  spare_records_ = block;
}

DeviceAllocator::StreamPools& DeviceAllocator::pools(int64_t stream) {
  auto& pools = pools_[stream];
  if (pools == nullptr) [[unlikely]] {
    pools = std::make_unique<StreamPools>();
  }
  return *pools;
}

// A free block counts as "inactive split" while its segment is cut. That cannot change while it is
// in a bin: a neighbour that merges with something else is still a neighbour.
void DeviceAllocator::insert(StreamPools& pools, Block* block) {
  if (block->is_split()) {
    increase(block->pool, kInactiveSplit, 1);
    increase(block->pool, kInactiveSplitBytes, static_cast<int64_t>(block->size));
  }
  block->state = Block::State::kFree;
  if (block->pool == 1) {
    pools.small.insert(small_bin(block->size), block);
  } else {
    pools.large.insert(large_bin(block->size), block);
  }
}

void DeviceAllocator::remove(StreamPools& pools, Block* block) {
  if (block->is_split()) {
    decrease(block->pool, kInactiveSplit, 1);
    decrease(block->pool, kInactiveSplitBytes, static_cast<int64_t>(block->size));
  }
  if (block->pool == 1) {
    pools.small.remove(small_bin(block->size), block);
  } else {
    pools.large.remove(large_bin(block->size), block);
  }
}

// Cuts `block`, which is in no bin, to `size` and bins the rest.
void DeviceAllocator::split(StreamPools& pools, Block* block, size_t size) {
  Block* rest = new_record();
  rest->address = block->address + size;
  rest->size = block->size - size;
  rest->requested = 0;
  rest->pool = block->pool;
  rest->stream = block->stream;
  rest->segment = block->segment;
  rest->previous = block;
  rest->next = block->next;
  if (block->next != nullptr) block->next->previous = rest;
  block->next = rest;
  block->size = size;
  insert(pools, rest);
}

// Joins `block`, which is in no bin, with its free neighbours.
Block* DeviceAllocator::merge(StreamPools& pools, Block* block) {
  if (Block* next = block->next; next != nullptr && next->state == Block::State::kFree) {
    remove(pools, next);
    block->size += next->size;
    block->next = next->next;
    if (next->next != nullptr) next->next->previous = block;
    drop_record(next);
  }
  if (Block* previous = block->previous;
      previous != nullptr && previous->state == Block::State::kFree) {
    remove(pools, previous);
    previous->size += block->size;
    previous->next = block->next;
    if (block->next != nullptr) block->next->previous = previous;
    drop_record(block);
    block = previous;
  }
  return block;
}

void DeviceAllocator::merge_small(StreamPools& pools) {
  pools.unmerged = false;
  for (Segment* segment : segments_) {
    if (segment->pool != 1 || pools_[segment->stream].get() != &pools) continue;
    for (Block* block = segment->first; block != nullptr; block = block->next) {
      if (block->state != Block::State::kFree || block->next == nullptr ||
          block->next->state != Block::State::kFree) {
        continue;
      }
      remove(pools, block);
      while (block->next != nullptr && block->next->state == Block::State::kFree) {
        block = merge(pools, block);
      }
      insert(pools, block);
    }
  }
}

Block* DeviceAllocator::take_large(StreamPools& pools, size_t size) {
  const int own = large_bin(size);
  Block* best = nullptr;
  for (Block* block = pools.large.head(own); block != nullptr; block = block->bin_next) {
    if (block->size >= size && (best == nullptr || block->size < best->size)) {
      best = block;
      if (best->size == size) break;
    }
  }
  if (best == nullptr) {
    const int bin = pools.large.first_from(own + 1);
    if (bin < 0) return nullptr;
    int left = 32;  // All of them fit; the first few are as good as the best.
    for (Block* block = pools.large.head(bin); block != nullptr && left > 0;
         block = block->bin_next, --left) {
      if (best == nullptr || block->size < best->size) best = block;
    }
  }
  remove(pools, best);
  if (best->size - size > kSmallLimit) split(pools, best, size);
  return best;
}

// The best fitting free block, cut to size and in no bin; null if there is none.
Block* DeviceAllocator::take(StreamPools& pools, size_t size) {
  if (size > kSmallLimit) return take_large(pools, size);
  const int own = small_bin(size);
  Block* block = pools.small.head(own);
  if (block == nullptr) {
    int bin = pools.small.first_from(own + 1);
    if (bin < 0 && pools.unmerged) {
      merge_small(pools);
      bin = pools.small.first_from(own);
    }
    if (bin < 0) return nullptr;
    block = pools.small.head(bin);
  }
  remove(pools, block);
  if (block->size > size) split(pools, block, size);
  return block;
}

void DeviceAllocator::hand_out(Block* block, size_t requested) {
  block->state = Block::State::kAllocated;
  block->requested = requested;
  block->references.store(1, std::memory_order_relaxed);
  const auto size = static_cast<int64_t>(block->size);
  increase(block->pool, kAllocation, 1);
  increase(block->pool, kActive, 1);
  increase(block->pool, kAllocatedBytes, size);
  increase(block->pool, kActiveBytes, size);
  increase(block->pool, kRequestedBytes, static_cast<int64_t>(requested));
}

void DeviceAllocator::put_free(Block* block) {
  decrease(block->pool, kActive, 1);
  decrease(block->pool, kActiveBytes, static_cast<int64_t>(block->size));
  StreamPools& owner = *pools_[block->stream];
  if (block->pool == 1) {
    owner.unmerged = true;
  } else {
    block = merge(owner, block);
  }
  insert(owner, block);
}

void DeviceAllocator::process_pending() {
  const uint64_t completed = completed_sequence();
  size_t kept = 0;
  for (const Pending& pending : pending_) {
    if (pending.sequence <= completed) {
      put_free(pending.block);
    } else {
      pending_[kept++] = pending;
    }
  }
  pending_.resize(kept);
}

Block* DeviceAllocator::allocate(size_t bytes, int64_t stream) {
  if (bytes == 0) return nullptr;
  NEURON_CHECK(stream >= 0 && stream < kStreams, kInvalid, "neuron:", device_, ": no stream ",
               stream, "; ids go from 0 to ", kStreams - 1);
  if (bytes > kMaxRequest) [[unlikely]] {
    fail(bytes);
  }
  const size_t size = (bytes + kAlignment - 1) & ~(kAlignment - 1);
  Block* found = nullptr;
  {
    Guard guard(lock_);
    if (!pending_.empty()) [[unlikely]] {
      process_pending();
    }
    if (Block* block = take(pools(stream), size); block != nullptr) [[likely]] {
      hand_out(block, bytes);
      found = block;
    }
  }
  if (found == nullptr) found = allocate_slow(bytes, size, stream);
  if (recording_memory.load(std::memory_order_relaxed)) [[unlikely]] {
    note_memory_event(device_, MemoryEvent::Kind::Alloc, found->address, found->size, stream);
  }
  return found;
}

void DeviceAllocator::free(Block* block) noexcept {
  uint64_t last_use = 0;
  if (uint64_t used = block->used_streams.load(std::memory_order_relaxed); used != 0) [[unlikely]] {
    block->used_streams.store(0, std::memory_order_relaxed);
    for (; used != 0; used &= used - 1) {
      const StreamState& stream = stream_state_unchecked(device_, std::countr_zero(used));
      last_use = std::max(last_use, stream.last_submitted.load(std::memory_order_acquire));
    }
  }
  if (recording_memory.load(std::memory_order_relaxed)) [[unlikely]] {
    for (const auto kind : {MemoryEvent::Kind::FreeRequested, MemoryEvent::Kind::FreeCompleted}) {
      note_memory_event(device_, kind, block->address, block->size, block->stream);
    }
  }
  const uint64_t submitted = submitted_sequence();
  Guard guard(lock_);
  block->segment->last_use = submitted;
  decrease(block->pool, kAllocation, 1);
  decrease(block->pool, kAllocatedBytes, static_cast<int64_t>(block->size));
  decrease(block->pool, kRequestedBytes, static_cast<int64_t>(block->requested));
  if (last_use > completed_sequence()) [[unlikely]] {
    block->state = Block::State::kPending;
    pending_.push_back({block, last_use});
    return;
  }
  put_free(block);
}

Region DeviceAllocator::ask(size_t bytes) {
  double fraction, reserved;
  {
    Guard guard(lock_);
    fraction = fraction_;
    reserved = static_cast<double>(counters_[0].current[kReservedBytes]);
  }
  if (fraction < 1.0) {
    const double limit = fraction * static_cast<double>(source_->usage().second);
    if (reserved + static_cast<double>(bytes) > limit) return {};
  }
  return source_->allocate(bytes);
}

// Adds a segment that can hold `size`. No NRT call is made under lock_.
bool DeviceAllocator::grow(size_t size, int64_t stream) {
  const bool small = size <= kSmallLimit;
  const size_t exact = round_up(size, kHugePage);
  const size_t wanted = small ? kSmallSegment : std::max(kLargeSegment, exact);
  Region region = ask(wanted);
  if (region.address == nullptr && exact < wanted) region = ask(exact);
  if (region.address == nullptr) return false;

  if (recording_memory.load(std::memory_order_relaxed)) {
    note_memory_event(device_, MemoryEvent::Kind::SegmentAlloc, region.address, region.bytes,
                      stream);
  }
  auto segment = std::make_unique<Segment>();
  segment->owner = this;
  segment->region = region;
  segment->pool = small ? 1 : 2;
  segment->stream = static_cast<uint8_t>(stream);
  Guard guard(lock_);
  Block* block = new_record();
  block->address = static_cast<std::byte*>(region.address);
  block->size = region.bytes;
  block->requested = 0;
  block->pool = segment->pool;
  block->stream = segment->stream;
  block->segment = segment.get();
  block->previous = block->next = nullptr;
  segment->first = block;
  segments_.push_back(segment.release());
  increase(block->pool, kSegment, 1);
  increase(block->pool, kReservedBytes, static_cast<int64_t>(region.bytes));
  ++device_allocs_;
  insert(pools(stream), block);
  return true;
}

Block* DeviceAllocator::allocate_slow(size_t bytes, size_t size, int64_t stream) {
  for (int failures = 0;;) {
    bool grown;
    {
      std::lock_guard growth(growth_);
      {
        // Another thread may have grown the pool while this one waited.
        Guard guard(lock_);
        if (!pending_.empty()) process_pending();
        if (Block* block = take(pools(stream), size); block != nullptr) {
          hand_out(block, bytes);
          return block;
        }
      }
      grown = grow(size, stream);
    }
    if (grown) continue;
    if (failures == 0) {
      // Queued work may hold blocks. Outside growth_, since that work may allocate.
      drain();
      std::lock_guard growth(growth_);
      Guard guard(lock_);
      ++retries_;
      ++syncs_;
    } else if (failures == 1) {
      drop_cached_bindings();
      std::lock_guard growth(growth_);
      release_segments();
    } else {
      fail(bytes);
    }
    ++failures;
  }
}

// Gives back every segment that is one free block. growth_ is held.
size_t DeviceAllocator::release_segments() {
  std::vector<Segment*> unused;
  {
    Guard guard(lock_);
    process_pending();
    for (const auto& pools : pools_) {
      if (pools != nullptr && pools->unmerged) merge_small(*pools);
    }
    const auto is_used = [completed = completed_sequence()](const Segment* segment) {
      return segment->first->state != Block::State::kFree || segment->first->is_split() ||
             segment->last_use > completed;
    };
    const auto middle = std::stable_partition(segments_.begin(), segments_.end(), is_used);
    unused.assign(middle, segments_.end());
    segments_.erase(middle, segments_.end());
    for (Segment* segment : unused) {
      remove(*pools_[segment->stream], segment->first);
      drop_record(segment->first);
      decrease(segment->pool, kSegment, 1);
      decrease(segment->pool, kReservedBytes, static_cast<int64_t>(segment->region.bytes));
      ++device_frees_;
    }
  }
  size_t released = 0;
  for (Segment* segment : unused) {
    released += segment->region.bytes;
    if (recording_memory.load(std::memory_order_relaxed)) {
      note_memory_event(device_, MemoryEvent::Kind::SegmentFree, segment->region.address,
                        segment->region.bytes, segment->stream);
    }
    source_->free(segment->region);
    delete segment;
  }
  return released;
}

void DeviceAllocator::fail(size_t bytes) {
  int64_t used, reserved;
  double fraction;
  {
    Guard guard(lock_);
    ++ooms_;
    used = counters_[0].current[kAllocatedBytes];
    reserved = counters_[0].current[kReservedBytes];
    fraction = fraction_;
  }
  const auto [device_used, total] = source_->usage();
  if (recording_memory.load(std::memory_order_relaxed)) {
    // By torch's convention the address of such an event is the free memory.
    const size_t left = total > device_used ? total - device_used : 0;
    note_memory_event(device_, MemoryEvent::Kind::OutOfMemory, reinterpret_cast<void*>(left), bytes,
                      0);
  }
  std::string rest;
  if (device_used > static_cast<size_t>(reserved) + kHugePage) {
    rest += internal::join(", ", Bytes(device_used - static_cast<size_t>(reserved)),
                           " used by programs and others");
  }
  if (fraction < 1.0) {
    rest += internal::join(", limited to ",
                           Bytes(static_cast<uint64_t>(fraction * static_cast<double>(total))),
                           " by set_per_process_memory_fraction");
  }
  raise(ErrorKind::kOutOfMemory, "neuron:", device_, ": out of memory: cannot allocate ",
        Bytes(bytes), ": ", Bytes(static_cast<uint64_t>(used)), " of ", Bytes(total), " in use, ",
        Bytes(static_cast<uint64_t>(reserved - used)), " cached", rest,
        "; lower the batch size, free tensors or call torch.neuron.empty_cache()");
}

void DeviceAllocator::empty_cache() {
  drain();
  std::lock_guard growth(growth_);
  release_segments();
  Guard guard(lock_);
  ++syncs_;
}

MemoryStats DeviceAllocator::stats() {
  MemoryStats stats;
  Guard guard(lock_);
  if (!pending_.empty()) process_pending();
  Stat* const table[kCounters] = {
      stats.allocation,      stats.active,       stats.inactive_split,
      stats.allocated_bytes, stats.active_bytes, stats.inactive_split_bytes,
      stats.requested_bytes, stats.segment,      stats.reserved_bytes,
  };
  for (int counter = 0; counter < kCounters; ++counter) {
    for (int pool = 0; pool < 3; ++pool) {
      const Counters& counters = counters_[pool];
      Stat& stat = table[counter][pool];
      stat.current = counters.current[counter];
      stat.peak = counters.peak[counter];
      stat.allocated = counters.increased[counter];
      stat.freed = counters.increased[counter] + counters.base[counter] - stat.current;
    }
  }
  stats.num_alloc_retries = retries_;
  stats.num_ooms = ooms_;
  stats.num_sync_all_streams = syncs_;
  stats.num_device_alloc = device_allocs_;
  stats.num_device_free = device_frees_;
  return stats;
}

void DeviceAllocator::reset_peak_stats() {
  Guard guard(lock_);
  for (Counters& counters : counters_) {
    std::copy(std::begin(counters.current), std::end(counters.current), counters.peak);
  }
}

void DeviceAllocator::reset_accumulated_stats() {
  Guard guard(lock_);
  for (Counters& counters : counters_) {
    std::copy(std::begin(counters.current), std::end(counters.current), counters.base);
    std::fill(std::begin(counters.increased), std::end(counters.increased), 0);
  }
  retries_ = ooms_ = syncs_ = device_allocs_ = device_frees_ = 0;
}

std::pair<size_t, size_t> DeviceAllocator::memory_info() {
  const auto [used, total] = source_->usage();
  return {total > used ? total - used : 0, total};
}

void DeviceAllocator::set_memory_fraction(double fraction) {
  NEURON_CHECK(fraction >= 0.0 && fraction <= 1.0, kInvalid,
               "memory fraction must lie in [0, 1], got ", fraction);
  Guard guard(lock_);
  fraction_ = fraction;
}

Region DeviceAllocator::find_region(const void* address) {
  const auto* wanted = static_cast<const std::byte*>(address);
  Guard guard(lock_);
  for (const Segment* segment : segments_) {
    const auto* begin = static_cast<const std::byte*>(segment->region.address);
    if (wanted >= begin && wanted < begin + segment->region.bytes) return segment->region;
  }
  return {};
}

void DeviceAllocator::snapshot(std::vector<SegmentInfo>& out) {
  const size_t first = out.size();
  {
    Guard guard(lock_);
    if (!pending_.empty()) process_pending();
    for (const Segment* segment : segments_) {
      SegmentInfo info{device_,
                       reinterpret_cast<uint64_t>(segment->region.address),
                       segment->region.bytes,
                       segment->stream,
                       segment->pool == 2,
                       {}};
      for (const Block* block = segment->first; block != nullptr; block = block->next) {
        const bool allocated = block->state == Block::State::kAllocated;
        info.blocks.push_back({reinterpret_cast<uint64_t>(block->address), block->size,
                               allocated ? block->requested : 0, allocated,
                               block->state != Block::State::kFree});
      }
      out.push_back(std::move(info));
    }
  }
  std::sort(out.begin() + static_cast<ptrdiff_t>(first), out.end(),
            [](const SegmentInfo& a, const SegmentInfo& b) { return a.address < b.address; });
}

}  // namespace neuron::runtime
