#pragma once

#include <atomic>

#include "neuron/runtime/device_allocator.h"

namespace neuron::runtime {

namespace internal {
extern std::atomic<bool> bad_fork;
}

/// Throws the Error that asks for the spawn start method.
[[noreturn]] void raise_bad_fork();

/// Makes `source` the memory of a device; called once per device when it is opened.
void open_allocator(int device, RegionSource* source);
/// Null while the device is closed.
DeviceAllocator* find_allocator(int device) noexcept;

}  // namespace neuron::runtime
