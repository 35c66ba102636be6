#include "neuron/aten/index_arguments.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/List.h>
#include <ATen/ops/any.h>
#include <ATen/ops/index_fill.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/stack.h>

#include <algorithm>

#include "neuron/aten/tensor.h"

namespace neuron::aten {
namespace {

bool is_mask(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
}

// self[mask] = number, which needs no index list: (self, indices, values, accumulate, ...).
bool fill_by_mask(const Overload& overload, torch::jit::Stack* stack, size_t base,
                  size_t indices_at) {
  if (overload.variant.form != Form::InPlace) return false;
  const c10::IValue* arguments = stack->data() + base;
  const at::Tensor& values = arguments[indices_at + 1].toTensor();
  if (arguments[indices_at + 2].toBool() || values.numel() != 1) return false;
  at::Tensor mask;
  int64_t dims = 0;
  for (const c10::IValue& member : arguments[indices_at].toListRef()) {
    if (member.isNone() || !member.toTensor().defined()) {
      if (mask.defined()) return false;
      ++dims;
      continue;
    }
    if (mask.defined() || member.toTensor().scalar_type() != at::kBool) return false;
    mask = member.toTensor();
  }
  if (!mask.defined()) return false;
  at::Tensor self = arguments[0].toTensor();
  if (mask.device() != self.device() || mask.dim() + dims > self.dim()) return false;
  for (int64_t d = 0; d < mask.dim(); ++d) {
    if (mask.size(d) != self.size(dims + d)) return false;
  }
  for (int64_t d = dims + mask.dim(); d < self.dim(); ++d) mask = mask.unsqueeze(-1);
  self.masked_fill_(mask, values.dim() == 0 ? values : values.reshape({}));
  torch::jit::drop(*stack, overload.variant.arguments.size());
  stack->emplace_back(std::move(self));
  return true;
}

}  // namespace

bool rewrite_indices(const Overload& overload, torch::jit::Stack* stack) {
  const size_t base = stack->size() - overload.variant.arguments.size();
  size_t at_argument = 0;
  while (overload.variant.arguments[at_argument].type != ArgumentType::TensorList) ++at_argument;
  c10::IValue& given = (*stack)[base + at_argument];
  bool plain = true;
  for (const c10::IValue& member : given.toListRef()) {
    if (member.isNone() || !member.toTensor().defined()) continue;
    plain &= on_device(member.toTensor()) && !is_mask(member.toTensor());
  }
  if (plain) return false;
  const bool writes = overload.name.find("put") != std::string::npos;
  if (writes && fill_by_mask(overload, stack, base, at_argument)) return true;

  const at::Tensor& self = (*stack)[base].toTensor();
  c10::List<std::optional<at::Tensor>> indices;
  int64_t dim = 0;
  for (const c10::IValue& member : given.toListRef()) {
    if (member.isNone() || !member.toTensor().defined()) {
      indices.push_back(std::nullopt);
      ++dim;
      continue;
    }
    at::Tensor index = member.toTensor();
    if (index.is_cpu()) index = index.to(self.device());
    if (!is_mask(index)) {
      indices.push_back(index);
      ++dim;
      continue;
    }
    for (int64_t d = 0; d < index.dim(); ++d) {
      TORCH_CHECK_INDEX(dim + d < self.dim() && index.size(d) == self.size(dim + d),
                        "The shape of the mask ", index.sizes(), " at index ", d,
                        " does not match the shape of the indexed tensor ", self.sizes(),
                        " at index ", dim + d);
    }
    const at::Tensor where = at::nonzero(index);
    for (int64_t d = 0; d < index.dim(); ++d) indices.push_back(where.select(1, d));
    dim += index.dim();
  }
  given = std::move(indices);
  return false;
}

bool rewrite_overlapping_fill(const Overload& overload, torch::jit::Stack* stack) {
  const size_t count = overload.variant.arguments.size();
  c10::IValue* arguments = stack->data() + (stack->size() - count);
  const at::Tensor& self = arguments[0].toTensor();
  if (self.numel() == 0 && overload.name.starts_with("aten::index_fill_")) {
    // No program runs that would find out.
    const int64_t dim = at::maybe_wrap_dim(arguments[1].toInt(), self.dim());
    const auto empty_dims = std::count(self.sizes().begin(), self.sizes().end(), 0);
    TORCH_CHECK_INDEX(self.size(dim) > 0 || empty_dims > 1 || arguments[2].toTensor().numel() == 0,
                      "index_fill_: an index is out of bounds for dimension ", dim, " with size 0");
  }
  if (!on_device(self) || at::has_internal_overlap(self) != at::MemOverlap::Yes) return false;
  at::Tensor base = self;
  std::vector<int64_t> expanded;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (self.stride(d) != 0 || self.size(d) < 2) continue;
    expanded.push_back(d);
    base = base.narrow(d, 0, 1);
  }
  if (overload.name.starts_with("aten::masked_fill_")) {
    const at::Tensor& mask = arguments[1].toTensor();
    TORCH_CHECK(mask.scalar_type() == at::kBool,
                "masked_fill_ only supports boolean masks, but got mask with dtype ", mask.dtype());
    const at::Tensor any = mask.expand(self.sizes()).any(expanded, /*keepdim=*/true);
    arguments[2].isTensor() ? base.masked_fill_(any, arguments[2].toTensor())
                            : base.masked_fill_(any, arguments[2].toScalar());
  } else {
    const int64_t dim = at::maybe_wrap_dim(arguments[1].toInt(), self.dim());
    at::Tensor index = arguments[2].toTensor();
    if (base.size(dim) != self.size(dim)) index = index.mul(0);
    arguments[3].isTensor() ? base.index_fill_(dim, index, arguments[3].toTensor())
                            : base.index_fill_(dim, index, arguments[3].toScalar());
  }
  const at::Tensor written = self;
  torch::jit::drop(*stack, count);
  stack->emplace_back(written);
  return true;
}

bool rewrite_repeats(const Overload& overload, torch::jit::Stack* stack) {
  const size_t base = stack->size() - overload.variant.arguments.size();
  const at::Tensor& repeats = (*stack)[base].toTensor();
  c10::IValue& size = (*stack)[base + 1];
  if (!size.isNone() || repeats.dim() != 1 || !at::isIntegralType(repeats.scalar_type(), false)) {
    return false;
  }
  int64_t total = 0;
  if (repeats.numel() > 0) {
    const at::Tensor facts = at::stack({repeats.sum(at::kLong), repeats.min().to(at::kLong)});
    const at::Tensor host = facts.cpu();
    total = host[0].item<int64_t>();
    TORCH_CHECK(host[1].item<int64_t>() >= 0, "repeats can not be negative");
  }
  size = total;
  return false;
}

}  // namespace neuron::aten
