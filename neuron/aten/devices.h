#pragma once

#include <c10/core/Device.h>

namespace neuron::aten {

/// Throws if this process has no such device.
void check_device_index(int64_t index);
/// The program's own choice, as opposed to a guard's: the thread's device from now on. What the
/// main thread chooses is inherited by threads that never choose.
void choose_device(c10::DeviceIndex device);
/// The program has chosen a device for this thread or for the process.
bool device_chosen() noexcept;

}  // namespace neuron::aten
