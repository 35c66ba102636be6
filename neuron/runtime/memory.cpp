#include <atomic>
#include <mutex>

#include "neuron/runtime/device.h"
#include "neuron/runtime/device_allocator.h"
#include "neuron/runtime/executor.h"
#include "neuron/runtime/program.h"
#include "neuron/runtime/runtime.h"

// The public memory functions: find the device's allocator and ask it.
namespace neuron::runtime {
namespace {

// Allocators are leaked: tensors in static storage are freed after main().
std::atomic<DeviceAllocator*> g_allocators[kMaxDevices];

bool is_device_number(int device) { return device >= 0 && device < kMaxDevices; }

void check_device_number(int device) {
  NEURON_CHECK(is_device_number(device) && device < device_count(), kInvalid,
               "no device neuron:", device, "; ", device_count(), " are visible");
}

}  // namespace

void open_allocator(int device, RegionSource* source) {
  auto* allocator = new DeviceAllocator(device, source);
  DeviceAllocator* none = nullptr;
  if (!g_allocators[device].compare_exchange_strong(none, allocator)) delete allocator;
}

DeviceAllocator* find_allocator(int device) noexcept {
  if (!is_device_number(device)) return nullptr;
  return g_allocators[device].load(std::memory_order_acquire);
}

DeviceAllocator& allocator_of(int device) {
  if (in_bad_fork()) [[unlikely]] {
    raise_bad_fork();
  }
  DeviceAllocator* allocator = find_allocator(device);
  if (allocator == nullptr) [[unlikely]] {
    ensure_device(device);
    allocator = find_allocator(device);
  }
  return *allocator;
}

DeviceRange range_of(const Block* block, const void* address, size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(address);
  const std::byte* end = block->address + block->size;
  NEURON_ASSERT(
      begin >= block->address && begin <= end && bytes <= static_cast<size_t>(end - begin),
      "a buffer of ", bytes, " bytes does not lie in its block of ", block->size);
  const Region& region = block->segment->region;
  return {region.handle,
          static_cast<size_t>(begin - static_cast<const std::byte*>(region.address))};
}

DeviceRange find_range(const void* address) {
  for (int device = 0; device < kMaxDevices; ++device) {
    DeviceAllocator* allocator = find_allocator(device);
    if (allocator == nullptr) continue;
    const Region region = allocator->find_region(address);
    if (region.address == nullptr) continue;
    return {region.handle, static_cast<size_t>(static_cast<const std::byte*>(address) -
                                               static_cast<const std::byte*>(region.address))};
  }
  return {};
}

int device_of(const Block* block) noexcept { return block->segment->owner->device(); }

void retain(Block* block) noexcept { block->references.fetch_add(1, std::memory_order_relaxed); }

void release(Block* block) noexcept {
  // Whoever holds the only reference needs no atomic subtraction: nobody can add one meanwhile.
  if (block->references.load(std::memory_order_acquire) != 1 &&
      block->references.fetch_sub(1, std::memory_order_acq_rel) != 1) {
    return;
  }
  if (in_bad_fork()) return;  // The lock may be held by a thread that does not exist here.
  block->segment->owner->free(block);
}

void* address_of(const Block* block) noexcept {
  return block == nullptr ? nullptr : block->address;
}
size_t size_of(const Block* block) noexcept { return block == nullptr ? 0 : block->requested; }

BlockRef allocate(int device, size_t bytes, int64_t stream) {
  return BlockRef(allocator_of(device).allocate(bytes, stream));
}

void record_stream(Block* block, int64_t stream) {
  if (block == nullptr || stream == block->stream) return;
  NEURON_CHECK(stream >= 0 && stream < kStreams, kInvalid, "no stream ", stream,
               "; ids go from 0 to ", kStreams - 1);
  block->used_streams.fetch_or(uint64_t{1} << stream, std::memory_order_relaxed);
}

void empty_cache() {
  if (in_bad_fork()) return;
  drain();
  drop_cached_bindings();
  for (int device = 0; device < kMaxDevices; ++device) {
    if (DeviceAllocator* allocator = find_allocator(device)) allocator->empty_cache();
  }
}

MemoryStats memory_stats(int device) {
  check_device_number(device);
  DeviceAllocator* allocator = find_allocator(device);
  return allocator == nullptr || in_bad_fork() ? MemoryStats() : allocator->stats();
}

void reset_peak_stats(int device) {
  check_device_number(device);
  DeviceAllocator* allocator = find_allocator(device);
  if (allocator != nullptr && !in_bad_fork()) allocator->reset_peak_stats();
}

void reset_accumulated_stats(int device) {
  check_device_number(device);
  DeviceAllocator* allocator = find_allocator(device);
  if (allocator != nullptr && !in_bad_fork()) allocator->reset_accumulated_stats();
}

std::pair<size_t, size_t> memory_info(int device) { return allocator_of(device).memory_info(); }

void set_memory_fraction(int device, double fraction) {
  allocator_of(device).set_memory_fraction(fraction);
}

std::vector<SegmentInfo> memory_snapshot() {
  std::vector<SegmentInfo> segments;
  if (in_bad_fork()) return segments;
  for (int device = 0; device < kMaxDevices; ++device) {
    if (DeviceAllocator* allocator = find_allocator(device)) allocator->snapshot(segments);
  }
  return segments;
}

}  // namespace neuron::runtime
