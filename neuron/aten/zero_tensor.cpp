// Tensors of zeros without memory: autograd's and forward mode's derivatives that are known to
// vanish.

#include "neuron/aten/zero_tensor.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/zeros.h>
#include <c10/core/SymIntArrayRef.h>
#include <torch/library.h>

#include <vector>

#include "neuron/aten/op_tracking.h"
#include "neuron/aten/tensor.h"

namespace neuron::aten {
namespace {

at::native::ZeroTensorAllocator* allocator_of(c10::DeviceIndex device) {
  // Leaked: storages keep pointers to them.
  static const auto* const all = [] {
    auto* made = new std::vector<at::native::ZeroTensorAllocator>();
    for (int i = 0; i < runtime::device_count(); ++i) {
      made->emplace_back(
          c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(i)));
    }
    return made;
  }();
  TORCH_CHECK(device >= 0 && static_cast<size_t>(device) < all->size(),
              "neuron:", static_cast<int>(device), ": no such device");
  return const_cast<at::native::ZeroTensorAllocator*>(&(*all)[static_cast<size_t>(device)]);
}

at::Tensor zeros_without_memory(at::IntArrayRef sizes, std::optional<c10::ScalarType> type,
                                std::optional<c10::Layout> layout,
                                std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  static OpCounter& counter = counter_of("aten::_efficientzerotensor");
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  TORCH_CHECK(layout.value_or(c10::Layout::Strided) == c10::Layout::Strided,
              "_efficientzerotensor: only strided tensors");
  const c10::DeviceIndex index =
      device.has_value() && device->has_index() ? device->index() : current_device();
  constexpr c10::DispatchKeySet kKeys(
      {c10::DispatchKey::PrivateUse1, c10::DispatchKey::ZeroTensor});
  counter.native.fetch_add(1, std::memory_order_relaxed);
  return at::detail::empty_generic(sizes, allocator_of(index), kKeys,
                                   type.value_or(c10::get_default_dtype_as_scalartype()),
                                   std::nullopt);
}

}  // namespace

bool rewrite_zero_tensors(const Overload& overload, torch::jit::Stack* stack) {
  const size_t count = overload.variant.arguments.size();
  const size_t base = stack->size() - count;
  const bool is_clone = overload.name == "aten::clone";
  for (size_t i = 0; i < (is_clone ? 1 : 2); ++i) {
    const at::Tensor& argument = (*stack)[base + i].toTensor();
    if (!argument._is_zerotensor()) continue;
    at::Tensor zeros =
        at::zeros(is_clone ? argument.sizes() : at::IntArrayRef(), argument.options());
    torch::jit::drop(*stack, count);
    stack->emplace_back(std::move(zeros));
    return true;
  }
  return false;
}

}  // namespace neuron::aten

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_efficientzerotensor", TORCH_FN(neuron::aten::zeros_without_memory));
}
