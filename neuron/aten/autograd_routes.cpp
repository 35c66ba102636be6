// Composite ops kept whole: routed, above autograd, to an op that has a derivative formula and a
// lowering. Nothing composite may be registered on PrivateUse1 itself, where it would lose
// autograd.

#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_fused_attention_overrideable.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <limits>

namespace neuron::aten {
namespace {

// sdp::SDPBackend, whose header pulls in much more.
constexpr int64_t kMath = 0;
constexpr int64_t kOverrideable = 4;

bool has_forward_gradient(const at::Tensor& t) { return t.defined() && t._fw_grad(0).defined(); }

// torch.func's wrappers: the fused op has no batching rule, and none can be made for its integers.
bool in_transform(const at::Tensor& t) {
  constexpr c10::DispatchKeySet kWrappers{c10::DispatchKey::FuncTorchBatched,
                                          c10::DispatchKey::FuncTorchGradWrapper};
  return t.key_set().has_any(kWrappers) || c10::impl::tls_local_dispatch_key_set().included_.has(
                                               c10::DispatchKey::FuncTorchDynamicLayerBackMode);
}

// The tiled kernel: equal widths and heads, no dropout (whose backward it lacks), no forward mode.
bool can_fuse(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
              const std::optional<at::Tensor>& mask, double dropout, bool causal, bool enable_gqa) {
  if (query.dim() != 4 || key.dim() != 4 || value.dim() != 4 || dropout != 0) return false;
  const auto type = query.scalar_type();
  // The log-sum-exp kept for backward is f32: too little for f64.
  if (type != at::kFloat && type != at::kBFloat16 && type != at::kHalf) return false;
  if (key.scalar_type() != type || value.scalar_type() != type) return false;
  if (key.device() != query.device() || value.device() != query.device()) return false;
  if (query.sym_size(0) != key.sym_size(0) || query.sym_size(0) != value.sym_size(0)) return false;
  if (query.sym_size(1) != key.sym_size(1) || query.sym_size(1) != value.sym_size(1)) return false;
  if (key.sym_size(2) != value.sym_size(2)) return false;
  if (query.sym_size(3) != key.sym_size(3) || query.sym_size(3) != value.sym_size(3)) return false;
  if (query.sym_numel() == 0 || key.sym_numel() == 0) return false;
  if (query.is_nested() || enable_gqa) return false;
  if (mask.has_value() && mask->defined()) {
    if (causal || mask->device() != query.device() || mask->dim() < 2 || mask->dim() > 4) {
      return false;
    }
    if (mask->scalar_type() != at::kBool && mask->scalar_type() != type) return false;
    const int64_t rank = mask->dim();
    // The kernel broadcasts over batch and heads only.
    if (mask->sym_size(rank - 1) != key.sym_size(2) ||
        mask->sym_size(rank - 2) != query.sym_size(2)) {
      return false;
    }
    if (has_forward_gradient(*mask)) return false;
  }
  return !has_forward_gradient(query) && !has_forward_gradient(key) && !has_forward_gradient(value);
}

int64_t fused_sdp_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& mask, double dropout, bool causal,
                         std::optional<double> scale, bool enable_gqa) {
  return can_fuse(query, key, value, mask, dropout, causal, enable_gqa) ? kOverrideable : kMath;
}

at::Tensor scaled_dot_product_attention(const at::Tensor& query, const at::Tensor& key,
                                        const at::Tensor& value,
                                        const std::optional<at::Tensor>& mask, double dropout,
                                        bool causal, std::optional<double> scale, bool enable_gqa) {
  if (in_transform(query) || in_transform(key) || in_transform(value)) {
    return std::get<0>(at::_scaled_dot_product_attention_math(
        query, key, value, mask, dropout, causal, std::nullopt, scale, enable_gqa));
  }
  if (!can_fuse(query, key, value, mask, dropout, causal, enable_gqa)) {
    return at::native::scaled_dot_product_attention(query, key, value, mask, dropout, causal, scale,
                                                    enable_gqa);
  }
  std::optional<at::Tensor> bias;
  if (mask.has_value() && mask->defined()) {
    bias = *mask;
    if (mask->scalar_type() == at::kBool) {
      bias = at::zeros_symint(mask->sym_sizes(), query.options())
                 .masked_fill_(mask->logical_not(), -std::numeric_limits<double>::infinity());
    }
  }
  return std::get<0>(at::_scaled_dot_product_fused_attention_overrideable(
      query, key, value, bias, dropout, causal, /*return_debug_mask=*/false, scale));
}

}  // namespace
}  // namespace neuron::aten

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", TORCH_FN(neuron::aten::fused_sdp_choice));
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("scaled_dot_product_attention", TORCH_FN(neuron::aten::scaled_dot_product_attention));
}
