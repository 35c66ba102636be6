#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "neuron/hlo/module.h"
#include "neuron/lowering/op_call.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {

/// A tensor argument before it is a Value.
struct TensorInput {
  bool defined = true;
  DType dtype = DType::f32;
  Dims dims;
  Dims strides;
  bool wrapped_number = false;
  /// A 0-dim tensor in host memory: its value is a run-time scalar of the program.
  bool host_scalar = false;
};

/// An argument before lowering: like Argument, with TensorInput in place of Value.
struct CallArgument {
  Argument::Kind kind = Argument::Kind::None;
  std::vector<TensorInput> tensors;
  std::vector<Number> numbers;
  Dims ints;
  DType dtype = DType::f32;
  std::string text;
};

/// A result: what torch expects, and where it goes.
struct CallResult {
  ResultType type;
  Dims strides;
  /// Written argument (index, list member) that this result overwrites; -1: a fresh buffer.
  int32_t alias_argument = -1;
  int32_t alias_member = 0;
  /// The written buffer overlaps another operand other than as the very same view.
  bool staged = false;
};

/// Where the k-th parameter or scalar of the program comes from at run time.
struct InputSource {
  enum class Kind : uint8_t { Tensor, Number, HostScalar, PhiloxSeed, PhiloxOffset, OutBuffer };
  Kind kind;
  int32_t argument = 0;
  int32_t member = 0;
};

struct LoweredCall {
  hlo::Module module;
  std::vector<InputSource> parameters;  // Kind Tensor (read, or written through an alias).
  std::vector<InputSource> scalars;     // Kinds Number, HostScalar, PhiloxSeed, PhiloxOffset.
  /// For each result of the module: its index in Call::results. Undefined results have none, nor
  /// have written arguments that keep their value.
  std::vector<int32_t> results;
  /// Arguments whose numbers the lowering read as constants: they belong to the key.
  uint64_t static_arguments = 0;
  /// Philox counters that one run uses up.
  int64_t philox_counters = 0;
};

/// One call to lower. `results` lists returned tensors and then written arguments of the
/// functional form, in the order the lowering returns them; an in-place or out= form has the same
/// list with alias_argument set. An out= buffer that is no argument of the functional form has
/// alias_argument = arguments.size() + k, described by out_buffers[k].
struct Call {
  const Lowering* lowering = nullptr;
  std::vector<CallArgument> arguments;
  std::vector<CallResult> results;
  std::vector<TensorInput> out_buffers;
  DType default_dtype = DType::f32;
};

/// Builds the program of one call: parameters for every tensor argument in order (host scalars and
/// numbers become scalars), the lowering's values, results converted to the expected dtype and
/// broadcast-checked. Parameters that nothing reads and no result aliases are left out.
/// Throws Error(kUnsupported) if the lowering refuses these dtypes.
LoweredCall lower(const Call& call);

/// The driver's core, for graphs: runs the lowering on values of an existing builder. The result
/// list matches `results` (converted to its dtypes).
Values lower_into(Builder& builder, const Lowering& lowering, const OpCall& call);

}  // namespace neuron::lowering
