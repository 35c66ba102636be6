#pragma once

#include <memory>

#include "neuron/aten/prepare.h"
#include "neuron/lowering/registry.h"

namespace neuron::aten {

/// What the dispatcher knows of one overload that a lowering serves.
std::unique_ptr<Overload> make_overload(const c10::OperatorHandle& handle,
                                        const c10::OperatorHandle& functional,
                                        const lowering::Lowering& lowered, Variant variant);

/// Operators that the CPU has for compressed sparse tensors; part of install_kernels().
void install_compressed_sparse();

}  // namespace neuron::aten
