#include "neuron/aten/allocator.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <cstring>

#include "neuron/aten/tensor.h"
#include "neuron/runtime/pinned.h"

namespace neuron::aten {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;

void release_context(void* context) { runtime::release(static_cast<runtime::Block*>(context)); }

c10::CachingAllocator::Stat to_torch(const runtime::Stat& stat) {
  c10::CachingAllocator::Stat out;
  out.current = stat.current;
  out.peak = stat.peak;
  out.allocated = stat.allocated;
  out.freed = stat.freed;
  return out;
}

void fill(c10::CachingAllocator::StatArray& out, const runtime::Stat (&in)[3]) {
  for (size_t i = 0; i < 3; ++i) out[i] = to_torch(in[i]);
}

class NeuronAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override { return allocate_data(current_device(), bytes); }
  /// Blocks are reference counted, so the deleter's context is never the data pointer.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* destination, const void* source, size_t count) const override {
    const c10::DeviceIndex device = current_device();
    translating_errors([&] {
      runtime::copy(device, current_stream(device), {destination, nullptr},
                    {const_cast<void*>(source), nullptr}, count);
      runtime::synchronize_stream(device, current_stream(device));
    });
  }

  bool initialized() override { return runtime::is_initialized(); }
  void emptyCache(c10::MempoolId_t) override {
    translating_errors([] { runtime::empty_cache(); });
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    translating_errors([&] { runtime::record_stream(block_of(data), stream.id()); });
  }
  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const runtime::MemoryStats stats = runtime::memory_stats(device);
    DeviceStats out;
    fill(out.allocation, stats.allocation);
    fill(out.segment, stats.segment);
    fill(out.active, stats.active);
    fill(out.inactive_split, stats.inactive_split);
    fill(out.allocated_bytes, stats.allocated_bytes);
    fill(out.reserved_bytes, stats.reserved_bytes);
    fill(out.active_bytes, stats.active_bytes);
    fill(out.inactive_split_bytes, stats.inactive_split_bytes);
    fill(out.requested_bytes, stats.requested_bytes);
    out.num_alloc_retries = stats.num_alloc_retries;
    out.num_ooms = stats.num_ooms;
    out.num_sync_all_streams = stats.num_sync_all_streams;
    out.num_device_alloc = stats.num_device_alloc;
    out.num_device_free = stats.num_device_free;
    return out;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    runtime::reset_accumulated_stats(device);
  }
  void resetPeakStats(c10::DeviceIndex device) override { runtime::reset_peak_stats(device); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return translating_errors([&] {
      runtime::ensure_device(device);
      return runtime::memory_info(device);
    });
  }
};

void free_pinned_memory(void* address) { runtime::free_pinned(address); }

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* address =
        bytes == 0 ? nullptr : translating_errors([&] { return runtime::allocate_pinned(bytes); });
    return {address, address, &free_pinned_memory, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned_memory; }
  void copy_data(void* destination, const void* source, size_t count) const override {
    std::memcpy(destination, source, count);
  }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override { runtime::empty_pinned_cache(); }
  at::HostStats get_stats() override {
    const runtime::PinnedStats stats = runtime::pinned_stats();
    at::HostStats out;
    out.active_requests = to_torch(stats.requests);
    out.active_bytes = to_torch(stats.active_bytes);
    out.allocations = to_torch(stats.blocks);
    out.allocated_bytes = to_torch(stats.reserved_bytes);
    out.num_host_alloc = stats.carved;
    return out;
  }
  void reset_accumulated_stats() override { runtime::reset_accumulated_pinned_stats(); }
  void reset_peak_stats() override { runtime::reset_peak_pinned_stats(); }
};

NeuronAllocator* const kAllocator = new NeuronAllocator;  // Leaked: tensors outlive main().
PinnedAllocator* const kPinned = new PinnedAllocator;

}  // namespace

runtime::Block* block_of(const c10::DataPtr& data) {
  return data.get_deleter() == &release_context ? static_cast<runtime::Block*>(data.get_context())
                                                : nullptr;
}

c10::Allocator* device_allocator() { return kAllocator; }
c10::Allocator* pinned_allocator() { return kPinned; }

c10::DataPtr allocate_data(c10::DeviceIndex device, size_t bytes) {
  const c10::Device where(c10::DeviceType::PrivateUse1, device);
  if (bytes == 0) return {nullptr, where};
  runtime::Block* block = nullptr;
  try {
    block = runtime::allocate(device, bytes, current_stream(device)).detach();
  } catch (const Error& error) {
    rethrow_as_torch(error);
  }
  return {runtime::address_of(block), block, &release_context, where};
}

}  // namespace neuron::aten

namespace {
struct RegisterAllocators {
  RegisterAllocators() {
    c10::SetAllocator(c10::DeviceType::PrivateUse1, neuron::aten::device_allocator());
    at::setHostAllocator(c10::DeviceType::PrivateUse1,
                         static_cast<at::HostAllocator*>(neuron::aten::pinned_allocator()));
  }
} const register_allocators;
}  // namespace
