#pragma once

#include <ATen/core/Tensor.h>

#include "neuron/runtime/communicator.h"

namespace neuron::distributed {

/// `bytes` holds one block of elements per rank; returns the bytes of their reduction in rank
/// order.
at::Tensor reduce_on_host(const at::Tensor& bytes, int ranks, DType dtype,
                          runtime::Reduction reduction, double factor);

}  // namespace neuron::distributed
