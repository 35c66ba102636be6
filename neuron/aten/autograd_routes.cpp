// Composite ops kept whole: routed, above autograd, to an op that has a derivative formula and a
// lowering. Nothing composite may be registered on PrivateUse1 itself, where it would lose
// autograd.

#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_fused_attention_overrideable.h>
#include <ATen/ops/_scaled_dot_product_fused_attention_overrideable_backward.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <array>
#include <limits>
#include <tuple>

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

bool is_broadcast_to(c10::SymIntArrayRef sizes, c10::SymIntArrayRef wanted) {
  if (sizes.size() > wanted.size()) return false;
  const size_t skipped = wanted.size() - sizes.size();
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != 1 && sizes[d] != wanted[skipped + d]) return false;
  }
  return true;
}

// [..., L, E] of one rank and with the same leading sizes; with enable_gqa, query heads may be a
// multiple of those of keys and values. Forward mode takes the composite apart.
bool can_fuse(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
              const std::optional<at::Tensor>& mask, double dropout, bool causal, bool enable_gqa) {
  const int64_t rank = query.dim();
  if (rank < 2 || rank > 4 || key.dim() != rank || value.dim() != rank) return false;
  if (!(dropout >= 0 && dropout <= 1)) return false;
  const auto type = query.scalar_type();
  if (type != at::kFloat && type != at::kBFloat16 && type != at::kHalf && type != at::kDouble) {
    return false;
  }
  if (key.scalar_type() != type || value.scalar_type() != type) return false;
  if (key.device() != query.device() || value.device() != query.device()) return false;
  if (query.is_nested() || query.sym_numel() == 0 || key.sym_numel() == 0 ||
      value.sym_numel() == 0) {
    return false;
  }
  if (query.sym_size(-1) != key.sym_size(-1) || key.sym_size(-2) != value.sym_size(-2))
    return false;
  for (int64_t d = 0; d < rank - 2; ++d) {
    if (key.sym_size(d) != value.sym_size(d)) return false;
    const bool shares = enable_gqa && d == rank - 3;
    if (shares ? query.sym_size(d) % key.sym_size(d) != 0 : query.sym_size(d) != key.sym_size(d)) {
      return false;
    }
  }
  if (mask.has_value() && mask->defined()) {
    if (causal || mask->device() != query.device()) return false;
    if (mask->scalar_type() != at::kBool && mask->scalar_type() != type) return false;
    c10::SymDimVector scores(query.sym_sizes().begin(), query.sym_sizes().end());
    scores.back() = key.sym_size(-2);
    if (mask->dim() < 2 || !is_broadcast_to(mask->sym_sizes(), scores)) return false;
    if (has_forward_gradient(*mask)) return false;
  }
  return !has_forward_gradient(query) && !has_forward_gradient(key) && !has_forward_gradient(value);
}

at::Tensor with_four_dims(at::Tensor t) {
  while (t.dim() < 4) t = t.unsqueeze(0);
  return t;
}

// What is added to the scores: the kernel broadcasts over batch and heads only.
std::optional<at::Tensor> bias_of(const std::optional<at::Tensor>& mask, const at::Tensor& query,
                                  const at::Tensor& key) {
  if (!mask.has_value() || !mask->defined()) return std::nullopt;
  at::Tensor bias = *mask;
  if (bias.scalar_type() == at::kBool) {
    bias = at::zeros_symint(mask->sym_sizes(), query.options())
               .masked_fill_(mask->logical_not(), -std::numeric_limits<double>::infinity());
  }
  c10::SymDimVector sizes(bias.sym_sizes().begin(), bias.sym_sizes().end());
  sizes[sizes.size() - 2] = query.sym_size(-2);
  sizes[sizes.size() - 1] = key.sym_size(-2);
  return bias.expand_symint(sizes);
}

int64_t fused_sdp_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& mask, double dropout, bool causal,
                         std::optional<double> scale, bool enable_gqa) {
  // torch's own composite hands the overrideable op four dims only, and no groups of heads.
  if (query.dim() != 4 || enable_gqa) return kMath;
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
  at::Tensor out = std::get<0>(at::_scaled_dot_product_fused_attention_overrideable(
      with_four_dims(query), with_four_dims(key), with_four_dims(value), bias_of(mask, query, key),
      dropout, causal, /*return_debug_mask=*/false, scale));
  while (out.dim() > query.dim()) out = out.squeeze(0);
  return out;
}

// --- The derivative of the derivative
// ------------------------------------------------------------------

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

struct AttentionBackward : torch::autograd::Function<AttentionBackward> {
  // Returns the gradients that are defined, and says in `made` which these are.
  static variable_list forward(AutogradContext* context, std::array<bool, 4>* made,
                               const at::Tensor& grad, const at::Tensor& query,
                               const at::Tensor& key, const at::Tensor& value,
                               const std::optional<at::Tensor>& bias, std::array<bool, 4> wanted,
                               const at::Tensor& out, const at::Tensor& sums,
                               const std::optional<at::Tensor>& starts_q,
                               const std::optional<at::Tensor>& starts_k, const c10::SymInt& most_q,
                               const c10::SymInt& most_k, double dropout, bool causal,
                               const at::Tensor& seed, const at::Tensor& offset,
                               std::optional<double> scale) {
    const auto or_undefined = [](const std::optional<at::Tensor>& t) {
      return t.has_value() ? *t : at::Tensor();
    };
    context->save_for_backward({grad, query, key, value, or_undefined(bias)});
    context->saved_data["dropout"] = dropout;
    context->saved_data["causal"] = causal;
    context->saved_data["scale"] = scale;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [dq, dk, dv, db] = at::_scaled_dot_product_fused_attention_overrideable_backward_symint(
        grad, query, key, value, or_undefined(bias), wanted, out, sums, or_undefined(starts_q),
        or_undefined(starts_k), most_q, most_k, dropout, causal, seed, offset, scale);
    variable_list defined;
    const at::Tensor* const all[] = {&dq, &dk, &dv, &db};
    for (size_t k = 0; k < 4; ++k) {
      (*made)[k] = all[k]->defined();
      if (all[k]->defined()) defined.push_back(*all[k]);
    }
    context->saved_data["made"] = c10::List<bool>({(*made)[0], (*made)[1], (*made)[2], (*made)[3]});
    return defined;
  }

  // Through the composite, whose own derivatives torch knows.
  static variable_list backward(AutogradContext* context, variable_list second) {
    TORCH_CHECK_NOT_IMPLEMENTED(context->saved_data["dropout"].toDouble() == 0,
                                "the second derivative of attention with dropout is not "
                                "implemented for neuron");
    variable_list inputs = context->get_saved_variables();  // grad, query, key, value, bias
    const at::AutoGradMode recording(true);
    variable_list known;
    for (at::Tensor& input : inputs) {
      if (!input.defined()) continue;
      input = input.detach().requires_grad_();
      known.push_back(input);
    }
    std::optional<at::Tensor> bias;
    if (inputs[4].defined()) bias = inputs[4];
    const bool groups = inputs[1].sym_size(1) != inputs[2].sym_size(1);
    const at::Tensor out = std::get<0>(at::_scaled_dot_product_attention_math(
        inputs[1], inputs[2], inputs[3], bias, 0.0, context->saved_data["causal"].toBool(),
        std::nullopt, context->saved_data["scale"].toOptional<double>(), groups));
    variable_list of;
    const c10::List<bool> made = context->saved_data["made"].toBoolList();
    for (size_t k = 0; k < 4; ++k) {
      if (made[k]) of.push_back(inputs[k + 1]);
    }
    const variable_list first = torch::autograd::grad({out}, of, {inputs[0]}, true, true, true);
    variable_list reached, given;
    for (size_t k = 0; k < first.size(); ++k) {
      if (!first[k].defined() || !second[k].defined()) continue;
      reached.push_back(first[k]);
      given.push_back(second[k]);
    }
    variable_list result(18);
    if (reached.empty()) return result;
    const variable_list found =
        torch::autograd::grad(reached, known, given, std::nullopt, false, true);
    for (size_t k = 0, next = 0; k < inputs.size(); ++k) {
      if (inputs[k].defined()) result[k + 1] = found[next++];
    }
    return result;
  }
};

Gradients attention_backward(const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key,
                             const at::Tensor& value, const at::Tensor& bias,
                             std::array<bool, 4> wanted, const at::Tensor& out,
                             const at::Tensor& sums, const at::Tensor& starts_q,
                             const at::Tensor& starts_k, c10::SymInt most_q, c10::SymInt most_k,
                             double dropout, bool causal, const at::Tensor& seed,
                             const at::Tensor& offset, std::optional<double> scale) {
  // Nothing flows back.
  if (!grad.defined()) return {};
  const auto some = [](const at::Tensor& t) {
    return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt;
  };
  std::array<bool, 4> made{};
  const variable_list defined = AttentionBackward::apply(
      &made, grad, query, key, value, some(bias), wanted, out, sums, some(starts_q), some(starts_k),
      most_q, most_k, dropout, causal, seed, offset, scale);
  at::Tensor all[4];
  for (size_t k = 0, next = 0; k < 4; ++k) {
    if (made[k]) all[k] = defined[next++];
  }
  return {all[0], all[1], all[2], all[3]};
}

}  // namespace
}  // namespace neuron::aten

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", TORCH_FN(neuron::aten::fused_sdp_choice));
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("scaled_dot_product_attention", TORCH_FN(neuron::aten::scaled_dot_product_attention));
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward",
         TORCH_FN(neuron::aten::attention_backward));
}
