// Sparse tensors on the device, COO and compressed: indices and values live there as ordinary
// tensors; what has no kernel of its own is computed on the CPU and moved back.

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/ccol_indices_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/col_indices_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/crow_indices_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/resize_as_sparse_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/row_indices_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/sparse_resize_and_clear_native.h>
#include <ATen/ops/sparse_resize_native.h>
#include <ATen/ops/values_native.h>
#include <torch/library.h>

#include "neuron/aten/fallback.h"
#include "neuron/aten/install.h"
#include "neuron/aten/op_tracking.h"
#include "neuron/aten/tensor.h"

namespace neuron::aten {
namespace {

const c10::Device kHost(c10::DeviceType::CPU);

bool is_ours(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::DeviceType::PrivateUse1;
}

at::Tensor to_host(const at::Tensor& tensor, c10::Device& device) {
  if (!is_ours(tensor)) return tensor;
  device = tensor.device();
  return tensor.to(kHost);
}

// As the boxed fallback of dense tensors does it, but through the dispatcher: which CPU kernel runs
// depends on the layouts of all arguments.
void on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size();
  const size_t base = stack->size() - count;
  const std::string name = c10::toString(op.operator_name());
  check_fallback_allowed(name, *stack, count);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::Device device(c10::DeviceType::PrivateUse1, current_device());
  std::vector<std::pair<at::Tensor, at::Tensor>> written;  // On the device, on the host.
  torch::jit::Stack work;
  for (size_t i = 0; i < count; ++i) {
    const c10::IValue& value = (*stack)[base + i];
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (value.isTensor()) {
      const at::Tensor host = to_host(value.toTensor(), device);
      if (alias != nullptr && alias->isWrite()) written.emplace_back(value.toTensor(), host);
      work.emplace_back(host);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> members;
      for (const c10::IValue& member : value.toListRef()) {
        members.push_back(to_host(member.toTensor(), device));
      }
      work.emplace_back(std::move(members));
    } else if (value.isDevice() && value.toDevice().type() == c10::DeviceType::PrivateUse1) {
      work.emplace_back(kHost);
    } else {
      work.push_back(value);
    }
  }
  counter_of(name).fallback.fetch_add(1, std::memory_order_relaxed);
  op.callBoxed(&work);
  for (auto& [original, host] : written) original.copy_(host);
  torch::jit::drop(*stack, count);
  for (const c10::IValue& result : work) {
    if (!result.isTensor() || !result.toTensor().defined()) {
      stack->push_back(result);
      continue;
    }
    at::Tensor moved;
    for (const auto& [original, host] : written) {
      if (host.is_same(result.toTensor())) moved = original;
    }
    stack->emplace_back(moved.defined() ? moved : result.toTensor().to(device));
  }
}

}  // namespace

// Structured ops have a kernel for every backend that makes its result with the layout of the first
// argument; it would come before the fallback below.
void install_compressed_sparse() {
  static auto* const library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::SparseCsrPrivateUse1, __FILE__, __LINE__);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const std::optional<c10::OperatorHandle> op = dispatcher.findOp(name);
    if (!name.name.starts_with("aten::") || !op.has_value()) continue;
    if (op->hasKernelForDispatchKey(c10::DispatchKey::SparseCsrCPU) &&
        !op->hasKernelForDispatchKey(c10::DispatchKey::SparseCsrPrivateUse1)) {
      library->impl(c10::toString(name).c_str(),
                    torch::CppFunction::makeFromBoxedFunction<&on_host>());
    }
  }
}

}  // namespace neuron::aten

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(at::native::empty_sparse_symint));
  m.impl("_sparse_coo_tensor_with_dims", TORCH_FN(at::native::new_with_dims_sparse));
  m.impl("_sparse_coo_tensor_with_dims_and_tensors",
         TORCH_FN(at::native::new_with_dims_and_tensor_sparse_symint));
  m.impl("copy_", TORCH_FN(at::native::copy_sparse_wrapper_));
  m.impl("copy_sparse_to_sparse_", TORCH_FN(at::native::copy_sparse_));
  m.impl("clone", TORCH_FN(at::native::clone_sparse));
  m.impl("_indices", TORCH_FN(at::native::_indices_sparse));
  m.impl("_values", TORCH_FN(at::native::_values_sparse));
  m.impl("indices", TORCH_FN(at::native::indices_sparse));
  m.impl("values", TORCH_FN(at::native::values_sparse));
  m.impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  m.impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
  m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
  m.impl("sparse_resize_", TORCH_FN(at::native::sparse_resize_));
  m.impl("sparse_resize_and_clear_", TORCH_FN(at::native::sparse_resize_and_clear_));
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(at::native::empty_sparse_compressed_symint));
  m.impl("empty_like", TORCH_FN(at::native::empty_like_sparse_csr));
  m.impl("copy_", TORCH_FN(at::native::copy_sparse_compressed_));
  m.impl("clone", TORCH_FN(at::native::clone_sparse_compressed));
  m.impl("crow_indices", TORCH_FN(at::native::crow_indices_sparse_csr));
  m.impl("col_indices", TORCH_FN(at::native::col_indices_sparse_csr));
  m.impl("ccol_indices", TORCH_FN(at::native::ccol_indices_sparse_csr));
  m.impl("row_indices", TORCH_FN(at::native::row_indices_sparse_csr));
  m.impl("values", TORCH_FN(at::native::values_sparse_csr));
  m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse_csr));
  m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse_csr));
  m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse_csr));
  m.impl("resize_", TORCH_FN(at::native::resize_sparse_csr_));
  m.impl("resize_as_sparse_", TORCH_FN(at::native::resize_as_sparse_compressed_));
}

TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&neuron::aten::on_host>());
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&neuron::aten::on_host>());
}
