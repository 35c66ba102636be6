#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "neuron/hlo/module.h"
#include "neuron/runtime/runtime.h"

namespace neuron::runtime {

/// Writes one program to the folder TORCH_NEURONX_DUMP for other tools to read:
///   <fingerprint>.mlir                  StableHLO text, when the program is built
///   <fingerprint>.in<k>, .out<k>, .op   raw bytes of its arguments and results, and the operator's
///                                       name, at its first run (with TORCH_NEURONX_DUMP_DATA=1)
/// A file that cannot be written raises Error(kIo). Thread-safe.
class ProgramDump {
 public:
  /// Null if the variable is not set.
  static std::unique_ptr<ProgramDump> create(const hlo::Module& module);

  /// True for the one run whose data is written.
  bool claim_run() noexcept;
  void write_inputs(std::span<const Buffer> parameters, std::span<const size_t> bytes,
                    std::span<const ScalarSlot> scalars) const;
  void write_outputs(std::span<const Buffer> results, std::span<const size_t> bytes) const;
  void write_op(const char* op) const;

 private:
  ProgramDump(std::string base, std::vector<DType> scalar_kinds, bool with_data)
      : base_(std::move(base)), scalar_kinds_(std::move(scalar_kinds)), data_pending_(with_data) {}

  const std::string base_;
  const std::vector<DType> scalar_kinds_;
  std::atomic<bool> data_pending_;
};

}  // namespace neuron::runtime
