#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "neuron/compiler/compiler.h"

namespace neuron::compiler {

/// Compiles with AWS's neuronx-cc, which the user has installed: writes the module as StableHLO
/// text, runs the program, and keeps the NEFF in the disk cache. Thread-safe.
class NeuronxCc : public Compiler {
 public:
  explicit NeuronxCc(std::string_view target) : target_(target) {}

  std::string_view name() const override { return "neuronx-cc"; }
  /// Throws Error(kIo) if the program is not on PATH, or with the end of its log if it fails.
  std::vector<std::byte> compile(const hlo::Module& module) override;
  CompilerStats stats() const override;

 private:
  const std::string target_;
  std::atomic<uint64_t> programs_{0};
  std::atomic<uint64_t> disk_hits_{0};
};

/// Splits as a shell would: blanks separate, quotes and backslashes keep together. Throws
/// Error(kInvalid) on an open quote.
std::vector<std::string> split_flags(std::string_view text);

}  // namespace neuron::compiler
