#pragma once

#include "neuron/compiler/cpu/nest.h"
#include "neuron/compiler/cpu/plan.h"

namespace neuron::compiler::cpu {

/// Orders the steps, sends results that cannot be written in place through the arena, and marks
/// neighbours that may run side by side.
void schedule(Fusion& fusion, NestBuilder& builder, Plan* plan);

/// Gives every arena place an offset (steps then hold offsets instead of places); returns the size.
int64_t plan_memory(const Fusion& fusion, Plan* plan);

}  // namespace neuron::compiler::cpu
