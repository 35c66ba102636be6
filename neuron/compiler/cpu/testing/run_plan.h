#pragma once

#include <complex>
#include <functional>
#include <span>
#include <vector>

#include "neuron/compiler/cpu/plan.h"
#include "neuron/hlo/evaluate.h"

namespace neuron::compiler::cpu::testing {

/// Runs one nest on its pointers: interpreted or as generated code.
using NestRunner = std::function<void(const LoopNest& nest, void* const* pointers)>;

NestRunner interpreted();
/// Generated code, run in `pieces` pieces.
NestRunner generated(int pieces = 1);

struct RunOutcome {
  std::vector<hlo::Array> results;
  int64_t status = 0;
  int kernel_steps = 0;
  int library_steps = 0;
};

/// Runs a module's plan on dense parameter values, library steps by the simulator's own kernels.
RunOutcome run_plan(const hlo::Module& module, const Plan& plan,
                    std::span<const hlo::Array> parameters,
                    std::span<const std::complex<double>> scalars, const NestRunner& runner);

/// Text of the first difference beyond rtol * |expected| + atol, or empty.
std::string difference(const hlo::Array& actual, const hlo::Array& expected, double rtol,
                       double atol);

}  // namespace neuron::compiler::cpu::testing
