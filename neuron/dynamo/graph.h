#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "neuron/hlo/builder.h"
#include "neuron/lowering/op_call.h"
#include "neuron/runtime/runtime.h"

namespace neuron::dynamo {

/// One compiled graph: a loaded program and how its inputs and outputs map to tensors.
/// Immutable, shared; run() may be called from several threads.
class CompiledGraph {
 public:
  struct Input {
    c10::ScalarType dtype;
    at::DimVector sizes, strides;
    /// A 0-dim host tensor, read when the graph is called.
    bool host_scalar = false;
    bool used = true;
  };
  struct Output {
    c10::ScalarType dtype;
    at::DimVector sizes, strides;
    /// Input that this output overwrites; -1: a fresh tensor. Overwriting outputs are not returned.
    int64_t mutates = -1;
  };

  /// Runs the graph on the inputs' current stream. Inputs on the host (other than host scalars) are
  /// moved to the device first. Throws torch's exceptions.
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) const;
  /// StableHLO text of the whole graph.
  const std::string& stablehlo() const { return text_; }

 private:
  friend class Graph;
  std::string name_;
  const char* op_ = nullptr;  // The name, for ever.
  c10::DeviceIndex device_ = 0;
  runtime::ProgramRef program_;
  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
  std::vector<int64_t> parameters_;  // Graph input of each program parameter.
  std::vector<int64_t> scalars_;     // Graph input of each host scalar; kSeed/kOffset otherwise.
  int64_t philox_counters_ = 0;
  std::string text_;
};

/// Collects an FX graph, node by node, into one hlo module. Values are named by small integers.
/// Not thread-safe; dead after compile().
class Graph {
 public:
  Graph(std::string name, c10::DeviceIndex device, bool keep_text);

  int64_t input(CompiledGraph::Input input);
  /// Runs the lowering registered under `op` ("aten::add.Tensor"). Throws NotImplementedError if
  /// there is none or it refuses the call.
  std::vector<int64_t> call(const std::string& op, std::vector<lowering::Argument> arguments,
                            std::vector<lowering::ResultType> results);
  /// A number that stands where the schema has a tensor: a rank-0 constant of its own kind.
  hlo::Value number(const lowering::Number& number);
  void output(int64_t value, CompiledGraph::Output output);
  std::shared_ptr<const CompiledGraph> compile();

  hlo::Value value(int64_t id) const { return values_[static_cast<size_t>(id)]; }

 private:
  static constexpr int64_t kSeed = -1;
  static constexpr int64_t kOffset = -2;
  friend class CompiledGraph;

  hlo::Builder builder_;
  hlo::Values values_;
  hlo::Value seed_, offset_;  // Philox key and first counter, shared by all random calls.
  std::shared_ptr<CompiledGraph> graph_;
  bool keep_text_;
};

}  // namespace neuron::dynamo
