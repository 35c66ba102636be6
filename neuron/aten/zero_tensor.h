#pragma once

#include <ATen/core/stack.h>

#include "neuron/aten/prepare.h"

namespace neuron::aten {

/// clone, dot and vdot meet tensors of zeros that have no memory. True if one was among the
/// arguments; the result is on the stack.
bool rewrite_zero_tensors(const Overload& overload, torch::jit::Stack* stack);

}  // namespace neuron::aten
