#pragma once

#include <ATen/core/stack.h>

#include "neuron/aten/prepare.h"

namespace neuron::aten {

/// Indexing ops take masks (bool or uint8 tensors), which become nonzero(), and index tensors on
/// the CPU, which are moved. Rewrites the arguments on the stack; true if the call has been served
/// altogether (a masked fill).
bool rewrite_indices(const Overload& overload, torch::jit::Stack* stack);

/// masked_fill_ and index_fill_ of an expanded tensor: elements that coincide are filled if any of
/// their positions is. True if the tensor is one.
bool rewrite_overlapping_fill(const Overload& overload, torch::jit::Stack* stack);

/// repeat_interleave without the size of its result: adds the repeats up first, which waits for
/// them.
bool rewrite_repeats(const Overload& overload, torch::jit::Stack* stack);

}  // namespace neuron::aten
