#include "neuron/aten/fallback.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/ops/_copy_from.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <unordered_set>

#include "neuron/aten/dispatch.h"
#include "neuron/aten/schema_match.h"
#include "neuron/aten/tensor.h"
#include "neuron/base/env.h"

namespace neuron::aten {
namespace {

std::atomic<int> allowed_setting{-1};  // -1: what the environment says.

// Device tensors of one call and their host copies, one copy for each tensor object.
class HostCopies {
 public:
  at::Tensor copy(const at::Tensor& tensor) {
    if (!tensor.defined() || !on_device(tensor)) return tensor;
    device_ = tensor.device();
    for (const auto& [original, host] : copies_) {
      if (original.is_same(tensor)) return host;
    }
    at::Tensor dense = tensor;
    if (!dtype_of(tensor.scalar_type()).has_value() && !tensor.is_non_overlapping_and_dense()) {
      // No program gathers such elements, so contiguous() would end up here again.
      dense = at::empty(tensor.sizes(), tensor.options());
      at::_copy_from(tensor, dense);
    }
    at::Tensor host = dense.to(c10::Device(c10::DeviceType::CPU));
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      host.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    copies_.emplace_back(tensor, host);
    return host;
  }
  /// The device of the call's tensors, or the current one.
  c10::Device device() const { return device_; }
  void set_device(c10::Device device) { device_ = device; }
  /// The device tensor of which `host` is the copy, or an undefined one.
  at::Tensor original(const at::Tensor& host) const {
    for (const auto& [original, copied] : copies_) {
      if (copied.is_same(host)) return original;
    }
    return {};
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
  c10::Device device_{c10::DeviceType::PrivateUse1, current_device()};
};

void write_back(const at::Tensor& host, const at::Tensor& original) {
  if (!host.defined() || !original.defined() || host.is_same(original)) return;
  if (host.sizes() == original.sizes()) {
    original.copy_(host);
  } else {
    original.resize_(host.sizes());
    original.copy_(host);
  }
}

at::Generator host_generator(const c10::IValue& value, c10::Device device) {
  std::optional<at::Generator> given;
  if (!value.isNone()) given = value.toGenerator();
  if (given.has_value() && given->device().type() == c10::DeviceType::CPU) return *given;
  // Seeded from the device's own state, so that manual_seed makes the op repeatable.
  const PhiloxDraw draw = draw_philox(given, device.index(), 4);
  return at::make_generator<at::CPUGeneratorImpl>(draw.seed ^ draw.offset * 0x9E3779B97F4A7C15ull);
}

c10::IValue to_host(const c10::IValue& value, HostCopies& copies) {
  if (value.isTensor()) return copies.copy(value.toTensor());
  if (value.isDevice() && value.toDevice().type() == c10::DeviceType::PrivateUse1) {
    copies.set_device(value.toDevice().has_index()
                          ? value.toDevice()
                          : c10::Device(c10::DeviceType::PrivateUse1, current_device()));
    return c10::Device(c10::DeviceType::CPU);
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> members;
    for (const c10::IValue& member : value.toListRef()) {
      members.push_back(copies.copy(member.toTensor()));
    }
    return members;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> members;
    for (const c10::IValue& member : value.toListRef()) {
      members.push_back(member.isNone()
                            ? std::nullopt
                            : std::optional<at::Tensor>(copies.copy(member.toTensor())));
    }
    return members;
  }
  return value;
}

at::Tensor to_device(const at::Tensor& host, const HostCopies& copies) {
  if (!host.defined()) return host;
  if (const at::Tensor original = copies.original(host); original.defined()) return original;
  return host.to(copies.device());
}

c10::IValue to_device(const c10::IValue& value, const HostCopies& copies) {
  if (value.isTensor()) return to_device(value.toTensor(), copies);
  if (value.isTensorList()) {
    c10::List<at::Tensor> members;
    for (const c10::IValue& member : value.toListRef()) {
      members.push_back(to_device(member.toTensor(), copies));
    }
    return members;
  }
  return value;
}

}  // namespace

void set_fallback_allowed(bool allowed) { allowed_setting.store(allowed ? 1 : 0); }
int exchange_fallback_setting(int setting) { return allowed_setting.exchange(setting); }

void check_fallback_allowed(const std::string& name, const torch::jit::Stack& stack,
                            size_t arguments) {
  const int setting = allowed_setting.load(std::memory_order_relaxed);
  const env::Fallback mode = translating_errors([] { return env::fallback(); });
  const bool allowed = setting >= 0 ? setting != 0 : mode != env::Fallback::Error;
  if (!allowed) {
    std::ostringstream inputs;
    for (size_t i = stack.size() - arguments; i < stack.size(); ++i) {
      if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
      const at::Tensor& tensor = stack[i].toTensor();
      inputs << (inputs.tellp() > 0 ? ", " : "") << tensor.scalar_type() << tensor.sizes();
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, name, ": no lowering for neuron and CPU fallback is off (inputs: ", inputs.str(),
        "); move them with .cpu(), or allow the fallback");
  }
  if (mode == env::Fallback::Allow) return;
  static std::mutex mutex;
  static auto* warned = new std::unordered_set<std::string>();
  {
    const std::lock_guard lock(mutex);
    if (!warned->insert(name).second) return;
  }
  TORCH_WARN(name,
             " has no neuron kernel for these arguments and runs on the CPU; "
             "torch.neuron counts such calls (get_fallback_ops)");
}

void run_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack, OpCounter& counter,
                  const std::vector<std::string>& writes) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size();
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU), counter.name,
      ": no lowering for neuron, and the CPU has no kernel to fall back to");
  check_fallback_allowed(counter.name, *stack, count);
  counter.fallback.fetch_add(1, std::memory_order_relaxed);

  const size_t base = stack->size() - count;
  HostCopies copies;
  torch::jit::Stack originals(stack->begin() + static_cast<std::ptrdiff_t>(base), stack->end());
  torch::jit::Stack hosts;
  hosts.reserve(count);
  for (const c10::IValue& value : originals) hosts.push_back(to_host(value, copies));
  for (size_t i = 0; i < count; ++i) {
    if (argument_type(schema.arguments()[i]) == ArgumentType::Generator) {
      hosts[i] = host_generator(originals[i], copies.device());
    }
  }
  torch::jit::Stack work = hosts;
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &work);
  }
  for (size_t i = 0; i < count; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const bool marked = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (!marked && std::find(writes.begin(), writes.end(), argument.name()) == writes.end()) {
      continue;
    }
    if (originals[i].isTensor()) {
      write_back(hosts[i].toTensor(), originals[i].toTensor());
    } else if (originals[i].isList()) {
      const auto from = hosts[i].toListRef();
      const auto to = originals[i].toListRef();
      for (size_t k = 0; k < to.size(); ++k) {
        if (to[k].isTensor()) write_back(from[k].toTensor(), to[k].toTensor());
      }
    }
  }
  torch::jit::drop(*stack, count);
  for (const c10::IValue& result : work) stack->push_back(to_device(result, copies));
}

namespace {

// Arguments that torch writes without a mark.
std::vector<std::string> unmarked_writes(const std::string& name) {
  if (name.starts_with("aten::native_batch_norm") || name.starts_with("aten::batch_norm_") ||
      name.starts_with("aten::_batch_norm_impl") || name.starts_with("aten::miopen_batch_norm") ||
      name.starts_with("aten::cudnn_batch_norm")) {
    return {"running_mean", "running_var"};
  }
  return {};
}

void boxed_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string name = c10::toString(op.operator_name());
  run_fallback(op, stack, counter_of(name), unmarked_writes(name));
}

}  // namespace
}  // namespace neuron::aten

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&neuron::aten::boxed_fallback>());
}
