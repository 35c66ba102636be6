#include "neuron/lowering/lower.h"

#include <algorithm>

#include "neuron/base/error.h"

namespace neuron::lowering {
namespace {

DType kind_of_host_scalar(DType dtype) {
  if (is_complex(dtype)) return DType::c128;
  if (is_floating(dtype)) return DType::f64;
  return dtype == DType::u64 ? DType::u64 : DType::i64;
}

// Parameters and scalars as they are made, before the unread ones are dropped.
struct Inputs {
  std::vector<InputSource> parameters;
  std::vector<InputSource> scalars;
};

Value make_tensor(Builder& builder, Inputs& inputs, const TensorInput& tensor, int32_t argument,
                  int32_t member) {
  if (!tensor.defined) return {};
  if (tensor.host_scalar) {
    inputs.scalars.push_back({InputSource::Kind::HostScalar, argument, member});
    return builder.convert(builder.scalar(kind_of_host_scalar(tensor.dtype)), tensor.dtype);
  }
  inputs.parameters.push_back({InputSource::Kind::Tensor, argument, member});
  return builder.parameter(tensor.dtype, tensor.dims, tensor.strides);
}

Argument make_argument(Builder& builder, Inputs& inputs, const CallArgument& given, int32_t index) {
  Argument argument;
  argument.kind = given.kind;
  argument.ints = given.ints;
  argument.dtype = given.dtype;
  argument.text = given.text;
  argument.numbers = given.numbers;
  for (size_t k = 0; k < given.tensors.size(); ++k) {
    argument.tensors.push_back(
        make_tensor(builder, inputs, given.tensors[k], index, static_cast<int32_t>(k)));
    argument.wrapped.push_back(given.tensors[k].wrapped_number ? 1 : 0);
  }
  for (size_t k = 0; k < given.numbers.size(); ++k) {
    const DType kind = given.numbers[k].kind == DType::pred ? DType::i64 : given.numbers[k].kind;
    inputs.scalars.push_back({InputSource::Kind::Number, index, static_cast<int32_t>(k)});
    argument.runtime.push_back(builder.scalar(kind));
  }
  return argument;
}

// Drops nodes that no result needs, with the parameters and scalars that only they read. What a
// result overwrites stays.
void drop_unused(LoweredCall& lowered) {
  hlo::Module& module = lowered.module;
  std::vector<hlo::Node>& nodes = module.mutable_nodes();
  std::vector<uint8_t> used(nodes.size(), 0);
  for (const hlo::Result& result : module.results()) {
    used[result.value] = 1;
    if (result.alias >= 0) used[module.parameters()[static_cast<size_t>(result.alias)].value] = 1;
  }
  for (size_t i = nodes.size(); i-- > 0;) {
    if (hlo::is_collective(nodes[i].op)) used[i] = 1;
    if (!used[i]) continue;
    for (hlo::ValueId operand : nodes[i].operands) used[operand] = 1;
  }
  if (std::find(used.begin(), used.end(), 0) == used.end()) return;

  std::vector<hlo::ValueId> renamed(nodes.size(), hlo::kNoValue);
  size_t kept = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!used[i]) continue;
    renamed[i] = static_cast<hlo::ValueId>(kept);
    if (kept != i) nodes[kept] = std::move(nodes[i]);
    for (hlo::ValueId& operand : nodes[kept].operands) operand = renamed[operand];
    ++kept;
  }
  nodes.erase(nodes.begin() + static_cast<std::ptrdiff_t>(kept), nodes.end());

  std::vector<hlo::Parameter>& parameters = module.mutable_parameters();
  std::vector<int32_t> new_index(parameters.size(), -1);
  size_t count = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (renamed[parameters[i].value] == hlo::kNoValue) continue;
    new_index[i] = static_cast<int32_t>(count);
    parameters[i].value = renamed[parameters[i].value];
    nodes[parameters[i].value].ints[0] = static_cast<int64_t>(count);
    if (count != i) {
      parameters[count] = std::move(parameters[i]);
      lowered.parameters[count] = lowered.parameters[i];
    }
    ++count;
  }
  parameters.resize(count);
  lowered.parameters.resize(count);

  std::vector<hlo::Scalar>& scalars = module.mutable_scalars();
  count = 0;
  for (size_t i = 0; i < scalars.size(); ++i) {
    if (renamed[scalars[i].value] == hlo::kNoValue) continue;
    scalars[count] = {scalars[i].kind, renamed[scalars[i].value]};
    nodes[scalars[count].value].ints[0] = static_cast<int64_t>(count);
    lowered.scalars[count] = lowered.scalars[i];
    ++count;
  }
  scalars.resize(count);
  lowered.scalars.resize(count);

  for (hlo::Result& result : module.mutable_results()) {
    result.value = renamed[result.value];
    if (result.alias >= 0) result.alias = new_index[static_cast<size_t>(result.alias)];
  }
}

}  // namespace

Values lower_into(Builder& builder, const Lowering& lowering, const OpCall& call) {
  call.trace().schema = lowering.schema;
  try {
    Values values = lowering.function == nullptr ? library_lowering(builder, call)
                                                 : lowering.function(builder, call);
    NEURON_ASSERT(values.size() == call.result_count(), "the lowering gave ", values.size(),
                  " results, torch expects ", call.result_count());
    for (size_t k = 0; k < values.size(); ++k) {
      const ResultType& expected = call.result(k);
      if (!expected.defined) {
        values[k] = {};
        continue;
      }
      NEURON_ASSERT(values[k].defined(), "result ", k, " is missing");
      values[k] = builder.convert(values[k], expected.dtype);
      // Written arguments may be larger than what is computed; never smaller.
      if (values[k].dims() != expected.dims)
        values[k] = builder.broadcast_to(values[k], expected.dims);
    }
    return values;
  } catch (const Error& error) {
    // torch has checked the arguments before: what the builder refuses is a dtype or a shape that
    // the lowering was not made for.
    const ErrorKind kind =
        error.kind() == ErrorKind::kInvalid ? ErrorKind::kUnsupported : error.kind();
    throw Error(kind, ::neuron::internal::join(lowering.name(), ": ", error.what()));
  }
}

LoweredCall lower(const Call& call) {
  NEURON_ASSERT(call.lowering != nullptr, "a call without a lowering");
  Builder builder;
  Inputs inputs;
  std::vector<Argument> arguments;
  arguments.reserve(call.arguments.size());
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    arguments.push_back(make_argument(builder, inputs, call.arguments[i], static_cast<int32_t>(i)));
  }
  for (size_t k = 0; k < call.out_buffers.size(); ++k) {
    const TensorInput& buffer = call.out_buffers[k];
    inputs.parameters.push_back({InputSource::Kind::OutBuffer, static_cast<int32_t>(k), 0});
    builder.parameter(buffer.dtype, buffer.dims, buffer.strides);
  }
  std::vector<ResultType> types;
  types.reserve(call.results.size());
  for (const CallResult& result : call.results) types.push_back(result.type);

  const OpCall op(builder, std::move(arguments), std::move(types), call.default_dtype);
  const Values values = lower_into(builder, *call.lowering, op);

  const auto parameter_of = [&](const CallResult& result) -> int32_t {
    if (result.alias_argument < 0) return -1;
    const auto arguments_count = static_cast<int32_t>(call.arguments.size());
    const bool out = result.alias_argument >= arguments_count;
    const auto kind = out ? InputSource::Kind::OutBuffer : InputSource::Kind::Tensor;
    const int32_t argument = out ? result.alias_argument - arguments_count : result.alias_argument;
    const int32_t member = out ? 0 : result.alias_member;
    for (size_t i = 0; i < inputs.parameters.size(); ++i) {
      const InputSource& source = inputs.parameters[i];
      if (source.kind == kind && source.argument == argument && source.member == member) {
        return static_cast<int32_t>(i);
      }
    }
    raise(ErrorKind::kInternal, call.lowering->name(), ": result overwrites argument ", argument,
          ", which is no device tensor");
  };
  LoweredCall lowered;
  for (size_t k = 0; k < values.size(); ++k) {
    if (!values[k].defined()) continue;
    const CallResult& result = call.results[k];
    const int32_t alias = parameter_of(result);
    Value value = values[k];
    if (alias >= 0) {
      // An out= or in-place buffer may be of another type than what the op computes.
      const hlo::Parameter target = builder.module().parameters()[static_cast<size_t>(alias)];
      value = builder.convert(value, target.type.dtype);
      if (target.value == value.id() && target.strides == result.strides) continue;
    }
    builder.result(value, result.strides, alias, result.staged);
    lowered.results.push_back(static_cast<int32_t>(k));
  }

  const OpCall::Trace& trace = op.trace();
  const hlo::ValueId seed = trace.philox_seed.defined() ? trace.philox_seed.id() : hlo::kNoValue;
  const hlo::ValueId offset =
      trace.philox_offset.defined() ? trace.philox_offset.id() : hlo::kNoValue;
  lowered.static_arguments = trace.static_arguments;
  lowered.philox_counters = trace.philox_counters;
  lowered.module = builder.finish();
  lowered.parameters = std::move(inputs.parameters);
  lowered.scalars = std::move(inputs.scalars);
  const auto scalars = lowered.module.scalars();
  for (size_t i = lowered.scalars.size(); i < scalars.size(); ++i) {
    if (scalars[i].value == seed) {
      lowered.scalars.push_back({InputSource::Kind::PhiloxSeed, 0, 0});
    } else if (scalars[i].value == offset) {
      lowered.scalars.push_back({InputSource::Kind::PhiloxOffset, 0, 0});
    } else {
      raise(ErrorKind::kInternal, call.lowering->name(), ": a scalar of unknown origin");
    }
  }
  drop_unused(lowered);
  return lowered;
}

}  // namespace neuron::lowering
