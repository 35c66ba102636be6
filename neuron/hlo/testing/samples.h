#pragma once

#include <complex>
#include <string>
#include <vector>

#include "neuron/hlo/evaluate.h"
#include "neuron/hlo/module.h"

namespace neuron::hlo {

/// A module with arguments: what every consumer of modules (the printer, the parser, a compiler)
/// must get right. `evaluate` gives the expected results.
struct Sample {
  std::string name;
  Module module;
  std::vector<Array> parameters;
  std::vector<std::complex<double>> scalars;
  /// Of the largest deviation allowed to another implementation; 0 demands equal values.
  double rtol = 0;
  double atol = 0;
};

/// At least one sample per op, over the dtypes that the op takes.
std::vector<Sample> all_samples();

/// Every collective on one f32[4, 6] parameter, for the devices 0 to 3. Has no reference here.
Module collective_sample();

}  // namespace neuron::hlo
