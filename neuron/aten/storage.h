#pragma once

#include <c10/core/StorageImpl.h>

#include <cstddef>

namespace neuron::aten {

/// Gives the storage `bytes` bytes, keeping the common prefix, in the current stream's order.
void resize_storage(c10::StorageImpl* storage, size_t bytes);

}  // namespace neuron::aten
