#include <ATen/NativeFunctions.h>
#include <ATen/Operators.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

// Autocast with CUDA's own op lists, bf16 by default.
namespace neuron::aten {
namespace {

at::Tensor binary_cross_entropy_banned(const at::Tensor&, const at::Tensor&,
                                       const std::optional<at::Tensor>&, int64_t) {
  TORCH_CHECK(false,
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
              "autocast; combine the sigmoid and the loss with binary_cross_entropy_with_logits or "
              "torch.nn.BCEWithLogitsLoss, which are safe, or disable autocast around the call");
}

struct DefaultDtype {
  DefaultDtype() { at::autocast::set_autocast_dtype(at::kPrivateUse1, at::kBFloat16); }
} const default_dtype;

}  // namespace
}  // namespace neuron::aten

namespace at::autocast {
namespace {

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define NEURON_KERNEL_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define NEURON_KERNEL_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define NEURON_KERNEL_FP32_OPT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define NEURON_KERNEL_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(NEURON_KERNEL_LOWER)
  AT_FORALL_FP32(NEURON_KERNEL_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(NEURON_KERNEL_FP32_OPT)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(NEURON_KERNEL_PROMOTE)
  m.impl("binary_cross_entropy", TORCH_FN(neuron::aten::binary_cross_entropy_banned));
}

}  // namespace
}  // namespace at::autocast
