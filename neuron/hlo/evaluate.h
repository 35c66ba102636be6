#pragma once

#include <complex>
#include <span>
#include <vector>

#include "neuron/hlo/module.h"

namespace neuron::hlo {

/// A dense row-major array on the host.
struct Array {
  Type type;
  std::vector<std::byte> bytes;
};

/// Reference meaning of a library kernel, for LibraryCall nodes.
using LibraryFunction = std::vector<Array> (*)(const Node& node, std::span<const Array> operands);

/// Runs the module the slow and obvious way: the oracle for passes and code generation.
/// `parameters`: dense values in each parameter's logical shape. `scalars`: one c128 each (integers
/// exact to 2^53). Returns dense values in logical shapes.
/// LibraryCall nodes throw Error(kUnsupported) unless `library` resolves their name.
std::vector<Array> evaluate(const Module& module, std::span<const Array> parameters,
                            std::span<const std::complex<double>> scalars = {},
                            LibraryFunction library = nullptr);

}  // namespace neuron::hlo
