// Op tracking for what torch takes apart before the device sees it. The kernels here do what torch
// would have done without them; they exist so that a program's own operators are among the names
// that get_executed_ops() gives.

#include <ATen/core/Tensor.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/linear_native.h>
#include <ATen/ops/matmul_native.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/new_empty_native.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include "neuron/aten/op_tracking.h"

namespace neuron::aten {
namespace {

// Being traced, not run.
bool is_traced(const at::Tensor& tensor) { return tensor.key_set().has(c10::DispatchKey::Python); }

/// A composite op above autograd: counted, then torch's own decomposition, which is what the second
/// spare backend has in the same place of the dispatch table.
class CountedComposite final : public c10::OperatorKernel {
 public:
  explicit CountedComposite(const char* name)
      : counter_(counter_of(std::string("aten::") + name)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    if (!keys.has(c10::DispatchKey::Python)) {
      counter_.native.fetch_add(1, std::memory_order_relaxed);
    }
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::AutogradPrivateUse2), stack);
  }

 private:
  OpCounter& counter_;
};

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias) {
  static OpCounter& forward = counter_of("aten::linear");
  static OpCounter& backward = counter_of("aten::linear_backward");
  at::Tensor out = at::native::linear(input, weight, bias);
  if (is_traced(out)) return out;
  forward.native.fetch_add(1, std::memory_order_relaxed);
  if (out.requires_grad()) {
    // Its backward is the products' own; its name is due when they run.
    out.register_hook(
        [](const at::Tensor&) { backward.native.fetch_add(1, std::memory_order_relaxed); });
  }
  return out;
}

at::Tensor matmul(const at::Tensor& a, const at::Tensor& b) {
  static OpCounter& counter = counter_of("aten::matmul");
  if (!is_traced(a) && !is_traced(b)) counter.native.fetch_add(1, std::memory_order_relaxed);
  return at::native::matmul(a, b);
}

at::Tensor to_copy(const at::Tensor& self, std::optional<c10::ScalarType> dtype,
                   std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                   std::optional<bool> pin_memory, bool non_blocking,
                   std::optional<c10::MemoryFormat> format) {
  static OpCounter& counter = counter_of("aten::_to_copy");
  counter.native.fetch_add(1, std::memory_order_relaxed);
  return at::native::_to_copy(self, dtype, layout, device, pin_memory, non_blocking, format);
}

at::Tensor empty_like(const at::Tensor& self, std::optional<c10::ScalarType> dtype,
                      std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                      std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format) {
  static OpCounter& counter = counter_of("aten::empty_like");
  counter.native.fetch_add(1, std::memory_order_relaxed);
  return at::native::empty_like(self, dtype, layout, device, pin_memory, format);
}

at::Tensor new_empty(const at::Tensor& self, c10::SymIntArrayRef sizes,
                     std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                     std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  static OpCounter& counter = counter_of("aten::new_empty");
  counter.native.fetch_add(1, std::memory_order_relaxed);
  return at::native::new_empty_symint(self, sizes, dtype, layout, device, pin_memory);
}

// The sizes of the products are values of `offsets`: they are read, and one product runs for each
// group. A graph, which cannot read values, has the lowering for groups of one size.
at::Tensor grouped_mm(const at::Tensor& a, const at::Tensor& b,
                      const std::optional<at::Tensor>& offsets,
                      const std::optional<at::Tensor>& bias,
                      std::optional<c10::ScalarType> out_dtype) {
  static OpCounter& counter = counter_of("aten::_grouped_mm");
  TORCH_CHECK((a.dim() == 2 || a.dim() == 3) && (b.dim() == 2 || b.dim() == 3),
              "_grouped_mm: both matrices must have 2 or 3 dims, got ", a.sizes(), " and ",
              b.sizes());
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "_grouped_mm: expected one dtype, got ",
              a.scalar_type(), " and ", b.scalar_type());
  TORCH_CHECK(a.size(-1) == b.size(-2), "contraction dimension of mat_a and mat_b must match");
  TORCH_CHECK(!bias.has_value() || !bias->defined(), "Bias not supported yet");
  const bool has_offsets = offsets.has_value() && offsets->defined();
  TORCH_CHECK(has_offsets == (a.dim() == 2 || b.dim() == 2),
              "Have to provide offsets if there is a 2d matrix, or no offset if both are 3d");
  const c10::ScalarType dtype = out_dtype.value_or(a.scalar_type());
  counter.native.fetch_add(1, std::memory_order_relaxed);
  if (!has_offsets) return at::bmm(a, b).to(dtype);
  TORCH_CHECK(offsets->dim() == 1 && offsets->scalar_type() == at::kInt,
              "Offsets have to be a 1d tensor of int32");
  const at::Tensor ends = offsets->cpu().contiguous();
  const int64_t groups = ends.numel();
  const int64_t batch = a.dim() == 3 ? a.size(0) : b.dim() == 3 ? b.size(0) : groups;
  TORCH_CHECK(batch == groups, "matrix batch sizes have to match: ", batch, " and ", groups,
              " offsets");
  std::vector<int64_t> sizes{a.size(-2), b.size(-1)};
  if (a.dim() == 2 && b.dim() == 2) sizes.insert(sizes.begin(), groups);
  at::Tensor out = at::zeros(sizes, a.options().dtype(dtype));
  int64_t begin = 0;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t end = ends.const_data_ptr<int32_t>()[g];
    const int64_t extent = a.dim() == 3 ? b.size(1) : b.dim() == 3 ? a.size(0) : a.size(1);
    TORCH_CHECK_INDEX(begin <= end && end <= extent, "_grouped_mm: offset ", end, " of group ", g,
                      " must lie between ", begin, " and ", extent);
    if (b.dim() == 3) {
      out.slice(0, begin, end).copy_(at::mm(a.slice(0, begin, end), b.select(0, g)));
    } else if (a.dim() == 3) {
      out.slice(1, begin, end).copy_(at::mm(a.select(0, g), b.slice(1, begin, end)));
    } else {
      out.select(0, g).copy_(at::mm(a.slice(1, begin, end), b.slice(0, begin, end)));
    }
    begin = end;
  }
  return out;
}

}  // namespace
}  // namespace neuron::aten

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_grouped_mm", TORCH_FN(neuron::aten::grouped_mm));
  m.impl("_to_copy", TORCH_FN(neuron::aten::to_copy));
  m.impl("empty_like", TORCH_FN(neuron::aten::empty_like));
  m.impl("new_empty", TORCH_FN(neuron::aten::new_empty));
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("linear", TORCH_FN(neuron::aten::linear));
  m.impl("matmul", TORCH_FN(neuron::aten::matmul));
  for (const char* name : {"isfinite", "one_hot", "index_select_backward", "square",
                           "value_selecting_reduction_backward", "cross_entropy_loss"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedKernel(c10::BoxedKernel::makeFromFunctor(
                     std::make_unique<neuron::aten::CountedComposite>(name))));
  }
}
