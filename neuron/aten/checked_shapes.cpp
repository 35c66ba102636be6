// Shapes of ops that have no Meta kernel, most of them library kernels, and checks of arguments
// that Meta kernels let pass. A function that only checks answers false: the Meta kernel goes on.

#include <ATen/WrapDimUtils.h>
#include <ATen/core/Reduction.h>

#include <algorithm>

#include "neuron/aten/shape_support.h"

namespace neuron::aten {
namespace {

// --- Results like an argument
// ---------------------------------------------------------------------

template <size_t kArgument>
bool contiguous_like(const Arguments& a, Metadata& result) {
  result.add(tensor(a, kArgument).scalar_type(), tensor(a, kArgument).sizes());
  return true;
}
template <size_t kArgument>
bool like(const Arguments& a, Metadata& result) {
  add_like(tensor(a, kArgument), tensor(a, kArgument).scalar_type(), result);
  return true;
}

// --- Fake quantisation
// ----------------------------------------------------------------------------

bool fake_quantize_mask(const Arguments& a, Metadata& result) {
  add_like(tensor(a, 0), tensor(a, 0).scalar_type(), result);
  add_like(tensor(a, 0), at::kBool, result);
  return true;
}
bool learnable_quantize_backward(const Arguments& a, Metadata& result) {
  const at::Tensor& self = tensor(a, 1);
  add_like(self, self.scalar_type(), result);
  for (const size_t parameter : {2, 3}) {
    if (self.numel() == 0) {
      result.add(tensor(a, parameter).scalar_type(), tensor(a, parameter).sizes());
    } else {
      result.add(self.scalar_type(), {1});
    }
  }
  return true;
}
bool learnable_channel_quantize_backward(const Arguments& a, Metadata& result) {
  const at::Tensor& self = tensor(a, 1);
  add_like(self, self.scalar_type(), result);
  for (const size_t parameter : {2, 3}) {
    result.add(self.scalar_type(), tensor(a, parameter).sizes());
  }
  return true;
}

// --- Cells and batch norm in parts
// ----------------------------------------------------------------

bool lstm_cell(const Arguments& a, Metadata& result) {
  const at::Tensor &gates = tensor(a, 0), &hidden = tensor(a, 1), &cx = tensor(a, 2);
  TORCH_CHECK(gates.dim() == 2 && cx.dim() == 2 && gates.sizes() == hidden.sizes() &&
                  gates.size(0) == cx.size(0) && gates.size(1) == 4 * cx.size(1),
              "_thnn_fused_lstm_cell: expected gates of [batch, 4 * hidden size] and a state of "
              "[batch, hidden size], but got ",
              gates.sizes(), ", ", hidden.sizes(), " and ", cx.sizes());
  result.add(cx.scalar_type(), cx.sizes());
  result.add(cx.scalar_type(), cx.sizes());
  result.add(gates.scalar_type(), gates.sizes());
  return true;
}
bool lstm_cell_backward(const Arguments& a, Metadata& result) {
  const at::Tensor &cx = tensor(a, 2), &workspace = tensor(a, 4);
  if (!tensor(a, 0).defined() && !tensor(a, 1).defined()) {
    for (int i = 0; i < 3; ++i) result.add_undefined();
    return true;
  }
  result.add(workspace.scalar_type(), workspace.sizes());
  result.add(cx.scalar_type(), cx.sizes());
  if (a[5].toBool()) {
    result.add(workspace.scalar_type(), {workspace.size(1)});
  } else {
    result.add_undefined();
  }
  return true;
}
bool gru_cell(const Arguments& a, Metadata& result) {
  const at::Tensor &gates = tensor(a, 0), &hx = tensor(a, 2);
  result.add(hx.scalar_type(), hx.sizes());
  result.add(gates.scalar_type(), {gates.size(0), gates.size(1) / 3 * 5});
  return true;
}
bool gru_cell_backward(const Arguments& a, Metadata& result) {
  const at::Tensor &grad = tensor(a, 0), &workspace = tensor(a, 1);
  const c10::ScalarType dtype = workspace.scalar_type();
  const int64_t gates = workspace.size(1) / 5 * 3;
  result.add(dtype, {workspace.size(0), gates});
  result.add(dtype, {workspace.size(0), gates});
  result.add(dtype, grad.sizes());
  for (int bias = 0; bias < 2; ++bias) {
    if (a[2].toBool()) {
      result.add(dtype, {gates});
    } else {
      result.add_undefined();
    }
  }
  return true;
}

c10::ScalarType statistics_type(const at::Tensor& t) {
  return t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16 ? at::kFloat
                                                                          : t.scalar_type();
}
// (input, ...) -> two statistics per channel.
bool channel_statistics(const Arguments& a, Metadata& result) {
  const at::Tensor& input = tensor(a, 0);
  if (input.dim() < 2) return false;
  result.add(statistics_type(input), {input.size(1)});
  result.add(statistics_type(input), {input.size(1)});
  return true;
}
// (grad_out, input, mean, invstd, weight, input_g, weight_g, bias_g)
bool channel_sums(const Arguments& a, Metadata& result) {
  const at::Tensor &input = tensor(a, 1), &mean = tensor(a, 2), &weight = tensor(a, 4);
  const c10::ScalarType of_weight = weight.defined() ? weight.scalar_type() : mean.scalar_type();
  const std::pair<bool, c10::ScalarType> wanted[] = {{a[5].toBool(), mean.scalar_type()},
                                                     {a[5].toBool(), mean.scalar_type()},
                                                     {a[6].toBool(), of_weight},
                                                     {a[7].toBool(), of_weight}};
  for (const auto& [given, dtype] : wanted) {
    if (given) {
      result.add(dtype, {input.size(1)});
    } else {
      result.add_undefined();
    }
  }
  return true;
}

// --- Others
// ---------------------------------------------------------------------------------------

bool ctc_loss_backward(const Arguments& a, Metadata& result) {
  result.add(tensor(a, 1).scalar_type(), tensor(a, 1).sizes());
  return true;
}
bool geqrf(const Arguments& a, Metadata& result) {
  const at::Tensor& self = tensor(a, 0);
  TORCH_CHECK(self.dim() >= 2, "torch.geqrf: input must have at least 2 dimensions, but got ",
              self.dim());
  // Matrices lie column by column, as LAPACK leaves them.
  Dims sizes = sizes_of(self);
  std::swap(sizes[sizes.size() - 1], sizes[sizes.size() - 2]);
  Dims strides = contiguous_strides(sizes);
  std::swap(strides[strides.size() - 1], strides[strides.size() - 2]);
  result.add(self.scalar_type(), self.sizes(), ref(strides));
  Dims tau(self.sizes().begin(), self.sizes().end() - 2);
  tau.push_back(std::min(self.size(-2), self.size(-1)));
  result.add(self.scalar_type(), ref(tau));
  return true;
}
bool histogram_by_count(const Arguments& a, Metadata& result) {
  const int64_t bins = a[1].toInt();
  TORCH_CHECK(bins > 0, "torch.histogram(): bins must be > 0, but got ", bins);
  result.add(tensor(a, 0).scalar_type(), {bins});
  result.add(tensor(a, 0).scalar_type(), {bins + 1});
  return true;
}
bool histogram_by_edges(const Arguments& a, Metadata& result) {
  const at::Tensor& edges = tensor(a, 1);
  if (edges.dim() != 1 || edges.numel() == 0) return false;
  result.add(tensor(a, 0).scalar_type(), {edges.numel() - 1});
  result.add(tensor(a, 0).scalar_type(), {edges.numel()});
  return true;
}
bool histogramdd_edges(const Arguments& a, Metadata& result) {
  const at::Tensor& self = tensor(a, 0);
  const Dims bins = to_dims(a[1]);
  if (self.dim() < 2 || self.size(-1) != static_cast<int64_t>(bins.size())) return false;
  for (const int64_t count : bins) {
    if (count <= 0) return false;
    result.add(self.scalar_type(), {count + 1});
  }
  result.counts.assign(1, static_cast<int32_t>(bins.size()));
  return true;
}
bool histogramdd_by_counts(const Arguments& a, Metadata& result) {
  const at::Tensor& self = tensor(a, 0);
  const Dims bins = to_dims(a[1]);
  if (self.dim() < 2 || self.size(-1) != static_cast<int64_t>(bins.size())) return false;
  if (std::any_of(bins.begin(), bins.end(), [](int64_t count) { return count <= 0; })) return false;
  result.add(self.scalar_type(), ref(bins));
  return true;
}
bool histogramdd_by_edges(const Arguments& a, Metadata& result) {
  const at::Tensor& self = tensor(a, 0);
  Dims bins;
  for (const c10::IValue& edges : a[1].toListRef()) {
    const at::Tensor& line = edges.toTensor();
    if (line.dim() != 1 || line.numel() < 2 || line.scalar_type() != self.scalar_type()) {
      return false;
    }
    bins.push_back(line.numel() - 1);
  }
  if (self.dim() < 2 || self.size(-1) != static_cast<int64_t>(bins.size())) return false;
  result.add(self.scalar_type(), ref(bins));
  return true;
}
// Refuses what an order cannot be asked of.
bool aminmax_all(const Arguments& a, Metadata& result) {
  if (tensor(a, 0).numel() == 0) return false;
  result.add(tensor(a, 0).scalar_type(), {});
  result.add(tensor(a, 0).scalar_type(), {});
  return true;
}
bool aminmax_dim(const Arguments& a, Metadata& result) {
  const at::Tensor& self = tensor(a, 0);
  const int64_t dim = at::maybe_wrap_dim(a[1].toInt(), self.dim());
  Dims sizes;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (d != dim) sizes.push_back(self.size(d));
    if (d == dim && a[2].toBool()) sizes.push_back(1);
  }
  if (self.dim() > 0 && self.size(dim) == 0) return false;
  result.add(self.scalar_type(), ref(sizes));
  result.add(self.scalar_type(), ref(sizes));
  return true;
}

// --- Checks
// ---------------------------------------------------------------------------------------

bool bucketize(const Arguments& a, Metadata&) {
  TORCH_CHECK(tensor(a, 1).dim() == 1, "boundaries tensor must be 1 dimension, but got dim(",
              tensor(a, 1).dim(), ")");
  return false;
}
bool logcumsumexp(const Arguments& a, Metadata& result) {
  at::maybe_wrap_dim(a[1].toInt(), tensor(a, 0).dim());
  return contiguous_like<0>(a, result);
}
bool roll(const Arguments& a, Metadata& result) {
  const at::Tensor& self = tensor(a, 0);
  const Dims shifts = to_dims(a[1]), dims = to_dims(a[2]);
  TORCH_CHECK(!shifts.empty(), "`shifts` required");
  TORCH_CHECK(dims.size() == shifts.size() || (dims.empty() && shifts.size() == 1),
              "shifts and dimensions must align. shifts: ", shifts.size(), ", dims:", dims.size());
  for (const int64_t dim : dims) at::maybe_wrap_dim(dim, self.dim(), /*wrap_scalar=*/false);
  return contiguous_like<0>(a, result);
}
bool multinomial(const Arguments& a, Metadata&) {
  const at::Tensor& self = tensor(a, 0);
  const int64_t samples = a[1].toInt();
  TORCH_CHECK(is_floating(self), "multinomial only supports floating-point dtypes for input, got: ",
              self.scalar_type());
  TORCH_CHECK(self.dim() > 0 && self.dim() <= 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(samples > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(a[2].toBool() || samples <= self.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  return false;
}
// The Meta kernel would promote.
bool complex(const Arguments& a, Metadata&) {
  const at::Tensor &real = tensor(a, 0), &imaginary = tensor(a, 1);
  TORCH_CHECK(is_floating(real) && is_floating(imaginary),
              "Expected both inputs to be Half, Float or Double tensors but got ",
              real.scalar_type(), " and ", imaginary.scalar_type());
  TORCH_CHECK(real.scalar_type() == imaginary.scalar_type(), "Expected object of scalar type ",
              real.scalar_type(), " but got scalar type ", imaginary.scalar_type(),
              " for second argument");
  return false;
}
bool masked_scatter(const Arguments& a, Metadata& result) {
  const at::Tensor &self = tensor(a, 0), &mask = tensor(a, 1), &source = tensor(a, 2);
  TORCH_CHECK(self.scalar_type() == source.scalar_type(),
              "masked_scatter: expected self and source to have same dtypes but got ",
              self.scalar_type(), " and ", source.scalar_type());
  TORCH_CHECK(mask.scalar_type() == at::kBool,
              "masked_scatter_ only supports boolean masks, but got mask with dtype ",
              mask.scalar_type());
  const auto sizes = at::infer_size(self.sizes(), mask.sizes());
  result.add(self.scalar_type(), sizes);
  return true;
}

// --- Losses
// ---------------------------------------------------------------------------------------

// One sample without a batch dim gives a scalar whatever the reduction.
bool multilabel_margin_loss(const Arguments& a, Metadata& result) {
  const at::Tensor &self = tensor(a, 0), &target = tensor(a, 1);
  const bool batched = self.dim() == 2;
  TORCH_CHECK(
      (batched && self.size(1) > 0) || (self.dim() == 1 && self.size(0) > 0) || self.dim() == 0,
      "Expected non-empty vector or matrix with optional 0-dim batch size, but got: ",
      self.sizes());
  TORCH_CHECK(batched ? target.sizes() == self.sizes()
                      : target.dim() <= 1 && target.numel() == self.numel(),
              "inconsistent target size: ", target.sizes(), " for input of size: ", self.sizes());
  if (batched && a[2].toInt() == at::Reduction::None) {
    result.add(self.scalar_type(), {self.size(0)});
  } else {
    result.add(self.scalar_type(), {});
  }
  result.add(self.scalar_type(), target.sizes());
  return true;
}
bool multi_margin_loss(const Arguments& a, Metadata&) {
  const at::Tensor &self = tensor(a, 0), &target = tensor(a, 1);
  if (self.dim() > 2) return false;
  const int64_t samples = self.dim() == 2 ? self.size(0) : 1;
  TORCH_CHECK(target.dim() <= 1 && target.numel() == samples,
              "multi_margin_loss: target tensor should be 1-D with size equal to the number of "
              "input samples (batch size). Expected target size [",
              samples, "], but got ", target.sizes(), ". Input has shape ", self.sizes(), ".");
  return false;
}

}  // namespace

const std::unordered_map<std::string_view, ShapeFunction>& checked_shapes() {
  static const auto* functions = new std::unordered_map<std::string_view, ShapeFunction>({
      {"aten::_aminmax", aminmax_all},
      {"aten::_aminmax.dim", aminmax_dim},
      {"aten::_ctc_loss_backward", ctc_loss_backward},
      {"aten::_ctc_loss_backward.Tensor", ctc_loss_backward},
      {"aten::_dirichlet_grad", contiguous_like<0>},
      {"aten::_sample_dirichlet", contiguous_like<0>},
      {"aten::_standard_gamma_grad", contiguous_like<0>},
      {"aten::binomial", contiguous_like<0>},
      {"aten::_fake_quantize_learnable_per_channel_affine", like<0>},
      {"aten::_fake_quantize_learnable_per_channel_affine_backward",
       learnable_channel_quantize_backward},
      {"aten::_fake_quantize_learnable_per_tensor_affine", like<0>},
      {"aten::_fake_quantize_learnable_per_tensor_affine_backward", learnable_quantize_backward},
      {"aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", fake_quantize_mask},
      {"aten::fake_quantize_per_channel_affine_cachemask", fake_quantize_mask},
      {"aten::fake_quantize_per_tensor_affine_cachemask", fake_quantize_mask},
      {"aten::_masked_softmax", like<0>},
      {"aten::_masked_softmax_backward", like<0>},
      {"aten::_thnn_fused_gru_cell", gru_cell},
      {"aten::_thnn_fused_lstm_cell", lstm_cell},
      {"aten::_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward},
      {"aten::multilabel_margin_loss_forward", multilabel_margin_loss},
      {"aten::multi_margin_loss", multi_margin_loss},
      {"aten::_thnn_fused_gru_cell_backward", gru_cell_backward},
      {"aten::batch_norm_backward_elemt", like<1>},
      {"aten::batch_norm_backward_reduce", channel_sums},
      {"aten::batch_norm_elemt", like<0>},
      {"aten::batch_norm_gather_stats", channel_statistics},
      {"aten::batch_norm_gather_stats_with_counts", channel_statistics},
      {"aten::batch_norm_stats", channel_statistics},
      {"aten::batch_norm_update_stats", channel_statistics},
      {"aten::fractional_max_pool3d_backward", contiguous_like<1>},
      {"aten::geqrf", geqrf},
      {"aten::glu_backward_jvp", like<0>},
      {"aten::glu_jvp", like<0>},
      {"aten::histogram.bin_ct", histogram_by_count},
      {"aten::histogram.bins_tensor", histogram_by_edges},
      {"aten::_histogramdd_bin_edges", histogramdd_edges},
      {"aten::_histogramdd_from_bin_cts", histogramdd_by_counts},
      {"aten::_histogramdd_from_bin_tensors", histogramdd_by_edges},
      {"aten::multi_margin_loss_backward", contiguous_like<1>},
      {"aten::multilabel_margin_loss_backward", contiguous_like<1>},
      {"aten::bucketize.Tensor", bucketize},
      {"aten::bucketize.Scalar", bucketize},
      {"aten::logcumsumexp", logcumsumexp},
      {"aten::_logcumsumexp", logcumsumexp},
      {"aten::complex", complex},
      {"aten::multinomial", multinomial},
      {"aten::masked_scatter", masked_scatter},
      {"aten::roll", roll},
  });
  return *functions;
}

}  // namespace neuron::aten
