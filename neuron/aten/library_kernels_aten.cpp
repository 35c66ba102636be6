#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>

#include "neuron/aten/library_kernels.h"
#include "neuron/aten/schema_match.h"
#include "neuron/aten/tensor.h"
#include "neuron/neff/arguments.h"

// "aten::*": a step named after an ATen op runs that op's CPU kernel on the step's buffers.
namespace neuron::aten::library {
namespace {

using neff::LibraryArgument;
using Kind = LibraryArgument::Kind;

struct OpState {
  explicit OpState(c10::OperatorHandle op) : op(std::move(op)) {}
  c10::OperatorHandle op;
  std::vector<LibraryArgument> arguments;
};

std::optional<c10::OperatorHandle> find_op(const std::string& name) {
  const size_t dot = name.find('.');
  return c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
}

void* prepare(const nrtsim_lib_call_t* call) {
  const std::optional<c10::OperatorHandle> op = find_op(call->name);
  if (!op.has_value()) return nullptr;
  auto* state = new OpState(*op);
  state->arguments = neff::decode_arguments(
      {static_cast<const std::byte*>(call->arguments), call->argument_bytes});
  return state;
}

void destroy(void* state) { delete static_cast<OpState*>(state); }

c10::IValue number(const LibraryArgument& argument, ArgumentType type) {
  switch (argument.kind) {
    case Kind::Int:
      return argument.ints[0];
    case Kind::Bool:
      return argument.ints[0] != 0;
    case Kind::Complex:
      return c10::complex<double>(argument.doubles[0], argument.doubles[1]);
    default:
      return argument.doubles[0];
  }
}

c10::IValue list_of_ints(const LibraryArgument& argument) {
  c10::List<int64_t> list;
  for (const int64_t value : argument.ints) list.push_back(value);
  return list;
}

bool holds_optionals(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  const auto list = type->cast<c10::ListType>();
  return list != nullptr && list->getElementType()->kind() == c10::TypeKind::OptionalType;
}

void run_op(void* opaque, const Run& run) {
  TORCH_CHECK(opaque != nullptr, run.call->name, ": torch has no such operator");
  const auto& state = *static_cast<const OpState*>(opaque);
  const c10::FunctionSchema& schema = state.op.schema();
  torch::jit::Stack stack;
  uint32_t next = 0;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& expected = schema.arguments()[i];
    if (i >= state.arguments.size()) {
      stack.push_back(expected.default_value().value_or(c10::IValue()));
      continue;
    }
    const LibraryArgument& given = state.arguments[i];
    switch (given.kind) {
      case Kind::None:
        stack.emplace_back();
        break;
      case Kind::Default:
        stack.push_back(expected.default_value().value_or(c10::IValue()));
        break;
      case Kind::Tensor:
        stack.emplace_back(run.input(next++));
        break;
      case Kind::TensorList:
        if (holds_optionals(expected)) {
          c10::List<std::optional<at::Tensor>> members;
          for (int64_t k = 0; k < given.ints[0]; ++k) {
            members.push_back(given.ints[static_cast<size_t>(k) + 1] != 0
                                  ? std::optional<at::Tensor>(run.input(next++))
                                  : std::nullopt);
          }
          stack.emplace_back(std::move(members));
        } else {
          c10::List<at::Tensor> members;
          for (int64_t k = 0; k < given.ints[0]; ++k) members.push_back(run.input(next++));
          stack.emplace_back(std::move(members));
        }
        break;
      case Kind::Int:
      case Kind::Bool:
      case Kind::Double:
      case Kind::Complex:
        if (argument_type(expected) == ArgumentType::Number &&
            expected.real_type()->str().find("float") != std::string::npos &&
            given.kind == Kind::Int) {
          stack.emplace_back(static_cast<double>(given.ints[0]));
        } else {
          stack.push_back(number(given, argument_type(expected)));
        }
        break;
      case Kind::IntList:
        stack.push_back(list_of_ints(given));
        break;
      case Kind::BoolList: {
        c10::List<bool> list;
        for (const int64_t value : given.ints) list.push_back(value != 0);
        stack.emplace_back(std::move(list));
        break;
      }
      case Kind::DoubleList: {
        c10::List<double> list;
        for (const double value : given.doubles) list.push_back(value);
        stack.emplace_back(std::move(list));
        break;
      }
      case Kind::Type:
        stack.emplace_back(scalar_type_of(static_cast<DType>(given.ints[0])));
        break;
      case Kind::String:
        stack.emplace_back(given.text);
        break;
      case Kind::MemoryFormat:
        stack.emplace_back(static_cast<c10::MemoryFormat>(given.ints[0]));
        break;
      case Kind::Generator: {
        // Seed and offset are the last two operands.
        const uint32_t last = run.call->input_count;
        const uint64_t seed = *static_cast<const uint64_t*>(run.inputs[last - 2]);
        const uint64_t offset = *static_cast<const uint64_t*>(run.inputs[last - 1]);
        stack.emplace_back(
            at::make_generator<at::CPUGeneratorImpl>(seed ^ offset * 0x9E3779B97F4A7C15ull));
        break;
      }
    }
  }
  state.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  uint32_t result = 0;
  const auto store = [&](const at::Tensor& value) {
    if (!value.defined() || result >= run.call->output_count) return;
    at::Tensor out = run.output(result++);
    out.copy_(value);
  };
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) {
      store(value.toTensor());
    } else if (value.isTensorList()) {
      for (const c10::IValue& member : value.toListRef()) store(member.toTensor());
    }
  }
}

}  // namespace

void register_aten() {
  register_kernel("aten::*",
                  {sizeof(nrtsim_lib_kernel_t), &prepare, &run_kernel<run_op>, &destroy});
}

}  // namespace neuron::aten::library
