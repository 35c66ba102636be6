#pragma once

#include <c10/core/Device.h>

namespace neuron::aten {

/// The program's own choice, as opposed to a guard's: the thread's device from now on, and that of
/// threads that never choose.
void choose_device(c10::DeviceIndex device);
/// The program has chosen a device for this thread or for the process.
bool device_chosen() noexcept;

}  // namespace neuron::aten
