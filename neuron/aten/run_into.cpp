#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <mutex>
#include <unordered_map>

#include "neuron/aten/dispatch.h"
#include "neuron/aten/install.h"
#include "neuron/aten/lowered_op.h"
#include "neuron/aten/tensor.h"

namespace neuron::aten {
namespace {

// run_lowering_into(): the functional form with one out= buffer appended.
std::unique_ptr<Overload> make_into(const std::string& name) {
  const lowering::Lowering* lowered = lowering::find_lowering(name);
  NEURON_ASSERT(lowered != nullptr, "no lowering ", name);
  const c10::OperatorName operator_name = torch::jit::parseSchema(lowered->schema).operator_name();
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(
      operator_name.name.c_str(), operator_name.overload_name.c_str());
  Variant variant;
  variant.form = Form::Out;
  for (size_t i = 0; i < handle.schema().arguments().size(); ++i) {
    VariantArgument argument;
    argument.type = argument_type(handle.schema().arguments()[i]);
    argument.functional = static_cast<int32_t>(i);
    variant.arguments.push_back(argument);
    variant.sources.push_back(static_cast<int32_t>(i));
  }
  VariantArgument out;
  out.type = ArgumentType::Tensor;
  out.out = out.written = true;
  variant.targets.push_back({static_cast<int32_t>(variant.arguments.size()), false});
  variant.arguments.push_back(out);
  variant.functional_values = 1;
  auto overload = make_overload(handle, handle, *lowered, std::move(variant));
  overload->trusted = true;
  return overload;
}

LoweredOp& op_of(const char* name) {
  struct Into {
    std::unique_ptr<Overload> overload;
    std::unique_ptr<LoweredOp> op;
  };
  static std::mutex mutex;
  static auto* made = new std::unordered_map<std::string, Into>();
  const std::lock_guard lock(mutex);
  Into& into = (*made)[name];
  if (into.op == nullptr) {
    into.overload = translating_errors([&] { return make_into(name); });
    into.op = std::make_unique<LoweredOp>(*into.overload);
  }
  return *into.op;
}

}  // namespace

void run_lowering_into(const char* name, std::vector<c10::IValue> arguments,
                       const at::Tensor& destination) {
  LoweredOp& op = op_of(name);
  arguments.emplace_back(destination);
  op.run_trusted(arguments);
}

}  // namespace neuron::aten
