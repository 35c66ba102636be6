#pragma once

#include <vector>

#include "neuron/compiler/cpu/fuse.h"
#include "neuron/compiler/cpu/plan.h"

namespace neuron::compiler::cpu {

/// Appends the step (rarely several) that runs node v as a library kernel.
void add_library_steps(Fusion& fusion, ValueId v, std::vector<PlannedStep>* steps);

/// Name of the library kernel that runs an op, e.g. "neuron.dot".
std::string_view library_name(hlo::Op op);

}  // namespace neuron::compiler::cpu
