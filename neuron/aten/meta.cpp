#include "neuron/aten/meta.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <map>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "neuron/aten/dispatch.h"
#include "neuron/aten/schema_match.h"

namespace neuron::aten {
namespace {

at::Tensor meta_copy(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  at::Tensor copy =
      at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return copy;
}

c10::IValue meta_argument(const c10::Argument& argument, const c10::IValue& value) {
  switch (argument_type(argument)) {
    case ArgumentType::Tensor:
      return value.isTensor() ? c10::IValue(meta_copy(value.toTensor())) : value;
    case ArgumentType::TensorList: {
      if (value.isNone()) return value;
      const c10::TypePtr& type = value.type()->castRaw<c10::ListType>()->getElementType();
      if (type->kind() == c10::TypeKind::OptionalType) {
        c10::List<std::optional<at::Tensor>> members;
        for (const c10::IValue& member : value.toListRef()) {
          members.push_back(member.isNone()
                                ? std::nullopt
                                : std::optional<at::Tensor>(meta_copy(member.toTensor())));
        }
        return members;
      }
      c10::List<at::Tensor> members;
      for (const c10::IValue& member : value.toListRef()) {
        members.push_back(meta_copy(member.toTensor()));
      }
      return members;
    }
    case ArgumentType::Device:
      return c10::Device(c10::DeviceType::Meta);
    case ArgumentType::Generator:
      return c10::IValue();
    default:
      return value;
  }
}

void describe_tensor(const at::Tensor& tensor, Metadata& metadata) {
  if (!tensor.defined()) {
    metadata.values.emplace_back();
    metadata.values.back().defined = false;
    return;
  }
  ResultInfo info;
  info.dtype = tensor.scalar_type();
  info.sizes = Dims(tensor.sizes().begin(), tensor.sizes().end());
  info.strides = Dims(tensor.strides().begin(), tensor.strides().end());
  metadata.values.push_back(std::move(info));
}

struct RegisteredMetaCalls {
  std::mutex mutex;
  std::map<std::string, int64_t> by_name;
};
RegisteredMetaCalls& registered_calls() {
  static auto* calls = new RegisteredMetaCalls();
  return *calls;
}

}  // namespace

std::map<std::string, int64_t> registered_meta_calls() {
  RegisteredMetaCalls& calls = registered_calls();
  const std::lock_guard lock(calls.mutex);
  return calls.by_name;
}

void Metadata::add(c10::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides) {
  ResultInfo info;
  info.dtype = dtype;
  info.sizes = Dims(sizes.begin(), sizes.end());
  info.strides = Dims(strides.begin(), strides.end());
  values.push_back(std::move(info));
  counts.push_back(-1);
}

void Metadata::add(c10::ScalarType dtype, at::IntArrayRef sizes) {
  ResultInfo info;
  info.dtype = dtype;
  info.sizes = Dims(sizes.begin(), sizes.end());
  info.strides = contiguous_strides(info.sizes);
  values.push_back(std::move(info));
  counts.push_back(-1);
}

void Metadata::add_undefined() {
  values.emplace_back();
  values.back().defined = false;
  counts.push_back(-1);
}

const c10::KernelFunction* find_structured_meta(const std::string& name) {
  // Leaked: kernels outlive static destruction.
  static const auto* table = [] {
    auto* filled = new std::unordered_map<std::string_view, c10::KernelFunction>();
    for (auto part : {&internal::structured_metas_0, &internal::structured_metas_1,
                      &internal::structured_metas_2, &internal::structured_metas_3}) {
      for (internal::StructuredMeta& meta : part()) {
        filled->emplace(meta.name, std::move(meta.kernel));
      }
    }
    return filled;
  }();
  const auto found = table->find(name);
  return found == table->end() ? nullptr : &found->second;
}

bool accepts_mixed_devices(const std::string& name) {
  static const auto* names = new std::unordered_set<std::string_view>({
#include "neuron/aten/meta_device_checks.inc"
  });
  return names->count(name) != 0;
}

void call_structured_meta(const c10::KernelFunction& kernel, const c10::OperatorHandle& op,
                          torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  kernel.callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
}

Metadata describe_results(const c10::FunctionSchema& schema, const torch::jit::Stack& results) {
  Metadata metadata;
  for (size_t r = 0; r < results.size(); ++r) {
    const c10::IValue& value = results[r];
    metadata.integers.push_back(value.isInt() ? value.toInt() : 0);
    const ArgumentType type = argument_type(schema.returns()[r]);
    if (type == ArgumentType::Tensor) {
      describe_tensor(value.isTensor() ? value.toTensor() : at::Tensor(), metadata);
      metadata.counts.push_back(-1);
    } else if (type == ArgumentType::TensorList) {
      const auto members = value.toListRef();
      for (const c10::IValue& member : members) describe_tensor(member.toTensor(), metadata);
      metadata.counts.push_back(static_cast<int32_t>(members.size()));
    }
  }
  return metadata;
}

torch::jit::Stack meta_arguments(const c10::FunctionSchema& schema,
                                 const std::vector<c10::IValue>& arguments) {
  torch::jit::Stack stack;
  stack.reserve(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    stack.push_back(meta_argument(schema.arguments()[i], arguments[i]));
  }
  return stack;
}

Metadata run_registered_meta(const c10::OperatorHandle& op,
                             const std::vector<c10::IValue>& arguments) {
  {
    RegisteredMetaCalls& calls = registered_calls();
    const std::lock_guard lock(calls.mutex);
    ++calls.by_name[c10::toString(op.operator_name())];
  }
  torch::jit::Stack stack = meta_arguments(op.schema(), arguments);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_modes(c10::python_ks | c10::functorch_transforms_ks |
                                                    c10::functorch_batched_ks);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  return describe_results(op.schema(), stack);
}

}  // namespace neuron::aten
