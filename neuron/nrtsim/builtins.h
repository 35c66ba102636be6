#pragma once

#include <span>
#include <string_view>

#include "neuron/nrtsim/library.h"

namespace neuron::nrtsim {

/// A library kernel that the simulator brings along: plain code, correct for all dtypes, used where
/// the host program registers nothing faster.
struct Builtin {
  std::string_view name;
  nrtsim_lib_kernel_t kernel;
};
std::span<const Builtin> builtins();

}  // namespace neuron::nrtsim
