#pragma once

#include "neuron/compiler/cpu/loop_nest.h"

namespace neuron::compiler::cpu {

/// Runs a nest the slow and obvious way, with the reference evaluator's meaning of every op: what
/// generated code is tested against, and what tests fusion without code generation.
void interpret_nest(const LoopNest& nest, void* const* pointers);

}  // namespace neuron::compiler::cpu
