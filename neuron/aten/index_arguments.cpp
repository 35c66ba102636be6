#include "neuron/aten/index_arguments.h"

#include <ATen/core/List.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/stack.h>

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
