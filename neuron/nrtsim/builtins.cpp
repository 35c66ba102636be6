#include "neuron/nrtsim/builtins.h"

#include <vector>

namespace neuron::nrtsim {

std::span<const Builtin> builtins() {
  static const std::vector<Builtin> list;
  return list;
}

}  // namespace neuron::nrtsim
