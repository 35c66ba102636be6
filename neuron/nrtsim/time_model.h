#pragma once

#include "neuron/neff/program.h"
#include "neuron/target/target.h"

namespace neuron::nrtsim {

/// Time that one step would take on a logical core: the slowest of its tensor engine, vector
/// engines and memory, which overlap. A first model: no instruction overheads, 16-bit matmul rate.
double step_time_ns(const neff::Work& work, const Target& target, int lnc);
/// All steps and one launch.
double program_time_ns(const neff::Program& program, const Target& target, int lnc);

}  // namespace neuron::nrtsim
