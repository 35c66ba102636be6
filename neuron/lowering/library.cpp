// Ops that only a library implements: one LibraryCall each, named after the op. The kernel behind
// the name runs the same op on host tensors over the same buffers.
//
// Operands of the call are the tensor arguments in schema order (members of lists one by one,
// undefined ones left out), then seed and offset if the op draws random numbers. Results are those
// that torch defines; an output that torch leaves undefined is skipped. Numbers are encoded, and so
// are constants of the program.

#include "neuron/base/error.h"
#include "neuron/lowering/library_call.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

using neff::LibraryArgument;
using Kind = LibraryArgument::Kind;

LibraryArgument number_argument(const Number& number) {
  switch (number.kind) {
    case DType::pred:
      return {Kind::Bool, {number.integer != 0}, {}, {}};
    case DType::f64:
      return {Kind::Double, {}, {number.real_imag.real()}, {}};
    case DType::c128:
      return {Kind::Complex, {}, {number.real_imag.real(), number.real_imag.imag()}, {}};
    default:
      return {Kind::Int, {number.integer}, {}, {}};
  }
}

std::vector<int64_t> to_vector(const Dims& dims) { return {dims.begin(), dims.end()}; }

}  // namespace

LibraryCall::LibraryCall(std::string name, const OpCall& call) : name_(std::move(name)) {
  bool random = false;
  for (size_t i = 0; i < call.size(); ++i) {
    if (call.argument(i).kind == Argument::Kind::Generator) random = true;
    add(call, i);
  }
  if (random) {
    // One counter per element is more than any of these ops draws from the stream it seeds.
    int64_t count = 1;
    for (size_t k = 0; k < call.result_count(); ++k) {
      if (call.result(k).defined) count += count_elements(call.result(k).dims);
    }
    const PhiloxState state = call.philox(count);
    operands_.push_back(state.seed);
    operands_.push_back(state.offset);
  }
}

void LibraryCall::add(const OpCall& call, size_t i) {
  const Argument& argument = call.argument(i);
  switch (argument.kind) {
    case Argument::Kind::None:
      arguments_.push_back({Kind::None, {}, {}, {}});
      return;
    case Argument::Kind::Tensor:
      add(call.tensor(i));
      return;
    case Argument::Kind::TensorList: {
      LibraryArgument list{Kind::TensorList, {0}, {}, {}};
      for (const Value& member : argument.tensors) {
        list.ints.push_back(member.defined());
        ++list.ints[0];
        if (member.defined()) operands_.push_back(member);
      }
      arguments_.push_back(std::move(list));
      return;
    }
    case Argument::Kind::Scalar:
      arguments_.push_back(number_argument(call.exact_number(i)));
      return;
    case Argument::Kind::ScalarList: {
      LibraryArgument list{Kind::DoubleList, {}, {}, {}};
      // Reading one member makes the whole argument part of the key.
      if (!argument.numbers.empty()) call.exact_number(i);
      for (const Number& number : argument.numbers) list.doubles.push_back(number.as_double());
      arguments_.push_back(std::move(list));
      return;
    }
    case Argument::Kind::Int:
      arguments_.push_back({Kind::Int, to_vector(argument.ints), {}, {}});
      return;
    case Argument::Kind::IntList:
      arguments_.push_back({Kind::IntList, to_vector(argument.ints), {}, {}});
      return;
    case Argument::Kind::Bool:
      arguments_.push_back({Kind::Bool, to_vector(argument.ints), {}, {}});
      return;
    case Argument::Kind::BoolList:
      arguments_.push_back({Kind::BoolList, to_vector(argument.ints), {}, {}});
      return;
    case Argument::Kind::Type:
      arguments_.push_back({Kind::Type, {static_cast<int64_t>(argument.dtype)}, {}, {}});
      return;
    case Argument::Kind::String:
      arguments_.push_back({Kind::String, {}, {}, argument.text});
      return;
    case Argument::Kind::Generator:
      arguments_.push_back({Kind::Generator, {}, {}, {}});
      return;
    case Argument::Kind::Ignored:
      arguments_.push_back({Kind::Default, {}, {}, {}});
      return;
  }
}

void LibraryCall::add(Value tensor) {
  if (!tensor.defined()) {
    arguments_.push_back({Kind::None, {}, {}, {}});
    return;
  }
  operands_.push_back(tensor);
  arguments_.push_back({Kind::Tensor, {}, {}, {}});
}

void LibraryCall::add(LibraryArgument argument) { arguments_.push_back(std::move(argument)); }

Values LibraryCall::emit(Builder& b, std::span<const ResultType> results) {
  std::vector<hlo::Type> types;
  for (const ResultType& result : results) {
    if (result.defined) types.push_back({result.dtype, result.dims});
  }
  if (types.empty()) return Values(results.size());
  const std::vector<std::byte> bytes = neff::encode_arguments(arguments_);
  const Values made = b.library_call(std::move(name_), operands_, types, bytes);
  Values values;
  size_t next = 0;
  for (const ResultType& result : results) {
    values.push_back(result.defined ? made[next++] : Value());
  }
  return values;
}

std::vector<ResultType> results_of(const OpCall& call) {
  std::vector<ResultType> results;
  for (size_t k = 0; k < call.result_count(); ++k) results.push_back(call.result(k));
  return results;
}

Values library_lowering(Builder& builder, const OpCall& call) {
  const char* schema = call.trace().schema;
  NEURON_ASSERT(schema != nullptr, "a library lowering outside of the driver");
  const std::string_view text = schema;
  LibraryCall library(std::string(text.substr(0, text.find('('))), call);
  return library.emit(builder, results_of(call));
}

}  // namespace neuron::lowering
