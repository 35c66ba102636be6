#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "neuron/nrtsim/library.h"

// Kernels of libtorch that the simulator calls by name (matrix products, convolutions, sorting...).
namespace neuron::aten {

/// Hands every kernel to the NRT library, if that is the simulator. Does not open the runtime.
void install_library_kernels();

namespace internal {
void register_dot_kernels();
void register_convolution_kernels();
void register_attention_kernels();
void register_aten_kernels();
}  // namespace internal

}  // namespace neuron::aten
