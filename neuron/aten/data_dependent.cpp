// Ops whose result sizes depend on values: count first, wait for the number, then run an op of known
// size.

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/index.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/nonzero_static.h>
#include <torch/library.h>

#include "neuron/aten/dispatch.h"

namespace neuron::aten {
namespace {

at::Tensor nonzero_by_count(const at::Tensor& self) {
  TORCH_CHECK(self.dim() <= 64, "nonzero is not supported for more than 64 dimensions");
  const int64_t count =
      self.numel() == 0 ? 0 : at::ne(self, 0).sum(at::kLong).item<int64_t>();
  count_native("aten::nonzero");
  // Laid out as the CPU does it: one column after the other.
  return at::nonzero_static(self, count);
}

at::Tensor& nonzero_by_count_out(const at::Tensor& self, at::Tensor& out) {
  TORCH_CHECK(out.scalar_type() == at::kLong,
              "nonzero: Expected out tensor to have scalar type Long but got scalar type ",
              out.scalar_type());
  TORCH_CHECK(self.device() == out.device(), "expected self and out to be on the same device, but got out on ",
              out.device(), " and self on ", self.device());
  const at::Tensor found = nonzero_by_count(self);
  at::native::resize_output(out, found.sizes());
  return out.copy_(found);
}

at::Tensor masked_select_by_count(const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_select: expected BoolTensor for mask");
  TORCH_CHECK(self.device() == mask.device() || self.dim() == 0 || mask.dim() == 0,
              "Expected all tensors to be on the same device, but got mask is on ", mask.device(),
              ", different from other tensors on ", self.device(),
              " (when checking argument in method aten::masked_select)");
  const at::Tensor on_device = mask.to(self.device());
  const auto [picked, wide] = [&] {
    const auto sizes = at::infer_size(self.sizes(), on_device.sizes());
    return std::pair(self.expand(sizes), on_device.expand(sizes));
  }();
  count_native("aten::masked_select");
  const at::Tensor flat = picked.dim() == 0 ? picked.reshape({1}) : picked;
  const at::Tensor flags = wide.dim() == 0 ? wide.reshape({1}) : wide;
  c10::List<std::optional<at::Tensor>> indices;
  const at::Tensor where = nonzero_by_count(flags);
  for (int64_t d = 0; d < flags.dim(); ++d) indices.push_back(where.select(1, d));
  return at::index(flat, indices);
}

at::Tensor& masked_select_by_count_out(const at::Tensor& self, const at::Tensor& mask, at::Tensor& out) {
  TORCH_CHECK(self.scalar_type() == out.scalar_type(),
              "masked_select(): self and result must have the same scalar type");
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, mask);
  const at::Tensor picked = masked_select_by_count(self, mask);
  at::native::resize_output(out, picked.sizes());
  return out.copy_(picked);
}

}  // namespace
}  // namespace neuron::aten

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("nonzero", TORCH_FN(neuron::aten::nonzero_by_count));
  m.impl("nonzero.out", TORCH_FN(neuron::aten::nonzero_by_count_out));
  m.impl("masked_select", TORCH_FN(neuron::aten::masked_select_by_count));
  m.impl("masked_select.out", TORCH_FN(neuron::aten::masked_select_by_count_out));
}
