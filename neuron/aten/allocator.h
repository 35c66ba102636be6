#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include "neuron/runtime/runtime.h"

namespace neuron::aten {

/// The c10 face of runtime::allocate: a c10::DeviceAllocator, registered for PrivateUse1.
c10::Allocator* device_allocator();
/// Memory for the current stream of `device`; a null pointer (with the device) for 0 bytes.
c10::DataPtr allocate_data(c10::DeviceIndex device, size_t bytes);

/// The block that the memory belongs to; null if another library owns it (DLPack).
runtime::Block* block_of(const c10::DataPtr& data);

/// Pinned host memory (at::HostAllocator).
c10::Allocator* pinned_allocator();

}  // namespace neuron::aten
