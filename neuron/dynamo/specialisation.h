#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "neuron/dynamo/sizes.h"
#include "neuron/runtime/runtime.h"

namespace neuron::dynamo {

struct GraphOutput;

/// What the caller gives for one input: a tensor, or a number if that is undefined.
struct CallInput {
  at::Tensor tensor;
  Number number;
};

/// What the caller gets for one output, by the output's kind.
struct CallOutput {
  at::Tensor tensor;
  Number number;
};

/// A graph at one set of sizes: a loaded program and how its operands map to tensors. Immutable;
/// shared; run() may be called from several threads.
class Specialisation {
 public:
  /// Runs on the device's current stream; one result per returned output (Input: empty). Inputs
  /// on the host (other than host scalars) are moved to the device first. Throws torch's
  /// exceptions.
  std::vector<CallOutput> run(std::vector<CallInput> inputs) const;

 private:
  friend class Graph;
  struct Parameter {
    size_t input;
    c10::ScalarType dtype;
    at::DimVector sizes, strides;
    bool overwritten = false;
  };
  struct Output {
    const GraphOutput* described;  // Owned by the graph, which outlives its specialisations' runs.
    at::DimVector sizes, strides;
    Number number;  // Number; View: the offset.
  };
  struct Scalar {
    enum class Kind : uint8_t { HostTensor, Expression, Seed, Offset } kind;
    int64_t index = 0;  // HostTensor: the input. Expression: its id.
  };

  /// Puts the operand where the program expects it; true if that made a copy.
  bool place(at::Tensor& tensor, const Parameter& expected) const;
  runtime::ScalarSlot value_of(const Scalar& scalar, const std::vector<CallInput>& inputs,
                               const std::vector<Number>& values, uint64_t seed,
                               uint64_t offset) const;

  const char* op_ = nullptr;
  c10::DeviceIndex device_ = 0;
  std::vector<Parameter> parameters_;
  std::vector<Scalar> scalars_;
  std::vector<Output> outputs_;
  runtime::ProgramRef program_;  // Null: nothing to compute.
  int64_t philox_counters_ = 0;
  /// Values of all expressions; anew at each call if some depend on what is not part of the key.
  std::vector<Number> values_;
  const class Graph* graph_ = nullptr;
  bool values_change_ = false;
};

}  // namespace neuron::dynamo
