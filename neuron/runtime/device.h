#pragma once

#include "neuron/runtime/device_allocator.h"

namespace neuron::runtime {

/// Throws the Error that asks for the spawn start method.
[[noreturn]] void raise_bad_fork();

/// The NRT device memory under an address that lies in `block`: tensor handle and byte offset.
struct DeviceRange {
  void* handle;
  size_t offset;
};
/// The same for a buffer whose block is null: a null handle means host memory. Slow.
DeviceRange find_range(const void* address);
/// Throws Error(kInternal) if [address, address + bytes) is not inside the block.
DeviceRange range_of(const Block* block, const void* address, size_t bytes);
int device_of(const Block* block) noexcept;
/// The visible logical core behind a device index: the index, or core 0 for the indices that
/// set_local_ranks() has added.
int core_of(int device);

/// Makes `source` the memory of a device; called once per device when it is opened.
void open_allocator(int device, RegionSource* source);
/// Null while the device is closed.
DeviceAllocator* find_allocator(int device) noexcept;

}  // namespace neuron::runtime
