#pragma once

#include <span>

#include "neuron/runtime/runtime.h"

namespace neuron::runtime {

/// Runs once, on this thread. Throws Error naming `op`, the operands and the NRT status.
void run_program(const Program& program, std::span<const Buffer> parameters,
                 std::span<const ScalarSlot> scalars, std::span<const Buffer> results,
                 const char* op);

/// Forgets the NRT tensors that idle programs keep for the addresses of their last run: they would
/// keep device memory alive.
void drop_cached_bindings() noexcept;

}  // namespace neuron::runtime
