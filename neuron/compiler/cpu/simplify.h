#pragma once

#include <optional>

#include "neuron/hlo/module.h"

namespace neuron::compiler::cpu {

/// Computes what hangs on constants alone, drops operations that change nothing (bit for bit),
/// joins chains of views and equal nodes, and leaves dead nodes behind. Nothing if the module is as
/// simple already.
std::optional<hlo::Module> simplify(const hlo::Module& module);

}  // namespace neuron::compiler::cpu
