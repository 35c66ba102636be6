#pragma once

#include <atomic>
#include <string>

#include "neuron/base/env.h"
#include "neuron/compiler/compiler.h"
#include "neuron/neff/program.h"

namespace neuron::compiler::cpu {

/// Compiles for the simulator: fused loop nests as machine code of this host, and library steps.
class CpuCompiler : public Compiler {
 public:
  explicit CpuCompiler(std::string_view target, env::SimNumerics numerics = env::sim_numerics())
      : target_(target), numerics_(numerics) {}

  std::string_view name() const override { return "cpu"; }
  std::vector<std::byte> compile(const hlo::Module& module) override;
  CompilerStats stats() const override;
  void forget() override;

  /// The program before it is written as a NEFF.
  neff::Program compile_program(const hlo::Module& module);
  /// Drops what is remembered of programs' structures, so that the next is planned anew.
  static void forget_plans();

 private:
  std::string target_;
  const env::SimNumerics numerics_;
  std::atomic<uint64_t> programs_{0};
  std::atomic<uint64_t> known_hits_{0};
};

}  // namespace neuron::compiler::cpu
