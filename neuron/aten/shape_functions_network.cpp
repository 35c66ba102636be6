// Shapes of losses, normalisation, convolution, pooling and attention; see shape_functions.cpp.

#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>

#include "neuron/aten/shape_support.h"

namespace neuron::aten {
namespace {

// --- Losses
// ---------------------------------------------------------------------------------------

template <size_t kReduction>
bool reduced_loss(const Arguments& a, Metadata& result) {
  const at::Tensor& self = tensor(a, 0);
  if (!is_floating(self) || self.sizes() != tensor(a, 1).sizes()) return false;
  if (a[kReduction].toInt() != 0) {
    result.add(self.scalar_type(), {});
  } else {
    add_like(self, self.scalar_type(), result);
  }
  return true;
}
// grad_output may be a scalar.
bool loss_backward(const Arguments& a, Metadata& result) {
  if (tensor(a, 1).sizes() != tensor(a, 2).sizes()) return false;
  add_like(tensor(a, 1), tensor(a, 1).scalar_type(), result);
  return true;
}
bool log_sigmoid_forward(const Arguments& a, Metadata& result) {
  const at::Tensor& self = tensor(a, 0);
  if (!is_floating(self)) return false;
  add_like(self, self.scalar_type(), result);
  add_like(self, self.scalar_type(), result);
  return true;
}
bool native_dropout(const Arguments& a, Metadata& result) {
  if (!is_floating(tensor(a, 0))) return false;
  add_like(tensor(a, 0), tensor(a, 0).scalar_type(), result);
  add_like(tensor(a, 0), at::kBool, result);
  return true;
}

// --- Normalisation
// --------------------------------------------------------------------------------

// The type of statistics on the CPU: that of the parameters if they are wider than the input.
c10::ScalarType statistics_type(const at::Tensor& input, const at::Tensor& weight) {
  const bool narrow = input.scalar_type() == at::kBFloat16 || input.scalar_type() == at::kHalf;
  return narrow && weight.defined() && weight.scalar_type() == at::kFloat ? at::kFloat
                                                                          : input.scalar_type();
}

bool native_layer_norm(const Arguments& a, Metadata& result) {
  const at::Tensor &input = tensor(a, 0), &weight = tensor(a, 2), &bias = tensor(a, 3);
  const Dims shape = to_dims(a[1]);
  const auto rank = static_cast<int64_t>(shape.size());
  if (rank == 0 || input.dim() < rank || !is_floating(input)) return false;
  if (input.sizes().slice(static_cast<size_t>(input.dim() - rank)) != ref(shape)) return false;
  if (weight.defined() && weight.sizes() != ref(shape)) return false;
  if (bias.defined() && bias.sizes() != ref(shape)) return false;
  Dims statistics = sizes_of(input);
  for (int64_t d = input.dim() - rank; d < input.dim(); ++d) statistics[static_cast<size_t>(d)] = 1;
  result.add(input.scalar_type(), input.sizes());
  const c10::ScalarType dtype = statistics_type(input, weight);
  result.add(dtype, ref(statistics));
  result.add(dtype, ref(statistics));
  return true;
}
void add_masked(const c10::IValue& mask, size_t k, const at::Tensor& like, Metadata& result) {
  if (mask.toListRef()[k].toBool() && like.defined()) {
    result.add(like.scalar_type(), like.sizes());
  } else {
    result.add_undefined();
  }
}
bool native_layer_norm_backward(const Arguments& a, Metadata& result) {
  add_masked(a[7], 0, tensor(a, 1), result);
  add_masked(a[7], 1, tensor(a, 5), result);
  add_masked(a[7], 2, tensor(a, 6), result);
  return true;
}
bool native_group_norm(const Arguments& a, Metadata& result) {
  const at::Tensor &input = tensor(a, 0), &weight = tensor(a, 1);
  if (!is_floating(input)) return false;
  add_formatted(input.scalar_type(), input.sizes(), input.suggest_memory_format(), result);
  const c10::ScalarType dtype = statistics_type(input, weight);
  const Dims sizes = {a[3].toInt(), a[6].toInt()};
  result.add(dtype, ref(sizes));
  result.add(dtype, ref(sizes));
  return true;
}
bool native_group_norm_backward(const Arguments& a, Metadata& result) {
  const at::Tensor &input = tensor(a, 1), &weight = tensor(a, 4);
  const auto mask = a[9].toListRef();
  if (mask[0].toBool()) {
    add_formatted(input.scalar_type(), input.sizes(), input.suggest_memory_format(), result);
  } else {
    result.add_undefined();
  }
  const c10::ScalarType dtype = weight.defined() ? weight.scalar_type() : input.scalar_type();
  for (size_t k = 1; k < 3; ++k) {
    if (mask[k].toBool()) {
      result.add(dtype, {a[6].toInt()});
    } else {
      result.add_undefined();
    }
  }
  return true;
}
bool batch_norm_with(const at::Tensor& input, const at::Tensor& weight, bool training,
                     Metadata& result) {
  if (!is_floating(input) || input.dim() < 2) return false;
  add_formatted(input.scalar_type(), input.sizes(), input.suggest_memory_format(), result);
  const c10::ScalarType dtype = statistics_type(input, weight);
  const int64_t channels = training ? input.size(1) : 0;
  result.add(dtype, {channels});
  result.add(dtype, {channels});
  return true;
}
bool native_batch_norm(const Arguments& a, Metadata& result) {
  return batch_norm_with(tensor(a, 0), tensor(a, 1), a[5].toBool(), result);
}
bool batch_norm_legit_functional(const Arguments& a, Metadata& result) {
  if (!native_batch_norm(a, result)) return false;
  result.add(tensor(a, 3).scalar_type(), tensor(a, 3).sizes());
  result.add(tensor(a, 4).scalar_type(), tensor(a, 4).sizes());
  return true;
}
bool batch_norm_no_stats(const Arguments& a, Metadata& result) {
  return batch_norm_with(tensor(a, 0), tensor(a, 1), a[3].toBool(), result);
}
// The fourth result is a buffer that only other backends use.
bool batch_norm_no_update(const Arguments& a, Metadata& result) {
  if (!batch_norm_with(tensor(a, 0), tensor(a, 1), !tensor(a, 3).defined(), result)) return false;
  result.add(at::kByte, {0});
  return true;
}
bool batch_norm_with_update(const Arguments& a, Metadata& result) {
  if (!batch_norm_with(tensor(a, 0), tensor(a, 1), true, result)) return false;
  result.add(at::kByte, {0});
  result.add(tensor(a, 3).scalar_type(), tensor(a, 3).sizes());
  result.add(tensor(a, 4).scalar_type(), tensor(a, 4).sizes());
  return true;
}
bool native_batch_norm_backward(const Arguments& a, Metadata& result) {
  const at::Tensor &input = tensor(a, 1), &weight = tensor(a, 2);
  const auto mask = a[9].toListRef();
  if (mask[0].toBool()) {
    add_formatted(input.scalar_type(), input.sizes(), input.suggest_memory_format(), result);
  } else {
    result.add_undefined();
  }
  const c10::ScalarType dtype = weight.defined() ? weight.scalar_type() : input.scalar_type();
  for (size_t k = 1; k < 3; ++k) {
    if (mask[k].toBool()) {
      result.add(dtype, {input.size(1)});
    } else {
      result.add_undefined();
    }
  }
  return true;
}

// --- Convolution, pooling, attention
// --------------------------------------------------------------

int64_t at_or_last(const Dims& dims, size_t i) {
  return dims[i < dims.size() ? i : dims.size() - 1];
}

c10::MemoryFormat convolution_format(const at::Tensor& input, const at::Tensor& weight) {
  const c10::MemoryFormat of_input = input.suggest_memory_format();
  return of_input != c10::MemoryFormat::Contiguous ? of_input : weight.suggest_memory_format();
}

// In the CPU's words; by dtype and layout torch itself checks some of this before it calls a
// device.
void check_convolution(const Arguments& a) {
  const at::Tensor &input = tensor(a, 0), &weight = tensor(a, 1);
  const Dims stride = to_dims(a[3]), padding = to_dims(a[4]), dilation = to_dims(a[5]),
             extra = to_dims(a[7]);
  const int64_t groups = a[8].toInt();
  const auto all = [](const Dims& values, int64_t least) {
    return std::all_of(values.begin(), values.end(), [&](int64_t v) { return v >= least; });
  };
  TORCH_CHECK(all(padding, 0), "negative padding is not supported");
  TORCH_CHECK(all(extra, 0), "negative output_padding is not supported");
  TORCH_CHECK(all(stride, 1), "non-positive stride is not supported");
  TORCH_CHECK(all(dilation, 1), "dilation should be greater than zero");
  TORCH_CHECK(groups > 0, "non-positive groups is not supported");
  TORCH_CHECK(weight.size(0) >= groups, "Given groups=", groups,
              ", expected weight to be at least ", groups,
              " at dimension 0, but got weight of size ", weight.sizes(), " instead");
  TORCH_CHECK(weight.size(0) % groups == 0, "Given groups=", groups,
              ", expected weight to be divisible by ", groups,
              " at dimension 0, but got weight of size [", weight.sizes(), "] instead");
  if (!a[6].toBool()) {
    TORCH_CHECK(input.size(1) == weight.size(1) * groups, "Given groups=", groups,
                ", weight of size ", weight.sizes(), ", expected input", input.sizes(), " to have ",
                weight.size(1) * groups, " channels, but got ", input.size(1), " channels instead");
    return;
  }
  TORCH_CHECK(input.size(1) == weight.size(0), "Given transposed=1, weight of size ",
              weight.sizes(), ", expected input", input.sizes(), " to have ", weight.size(0),
              " channels, but got ", input.size(1), " channels instead");
  for (size_t k = 0; k + 2 < static_cast<size_t>(input.dim()); ++k) {
    TORCH_CHECK(at_or_last(extra, k) < at_or_last(stride, k) ||
                    at_or_last(extra, k) < at_or_last(dilation, k),
                "output padding must be smaller than either stride or dilation, but got "
                "output_padding: ",
                ref(extra), " stride: ", ref(stride), " dilation: ", ref(dilation));
  }
}

bool convolution(const Arguments& a, Metadata& result) {
  const at::Tensor &input = tensor(a, 0), &weight = tensor(a, 1);
  const Dims stride = to_dims(a[3]), padding = to_dims(a[4]), dilation = to_dims(a[5]),
             extra = to_dims(a[7]);
  const bool transposed = a[6].toBool();
  const int64_t groups = a[8].toInt();
  if (input.dim() < 3 || input.dim() != weight.dim()) return false;
  check_convolution(a);
  Dims sizes = {input.size(0), transposed ? weight.size(1) * groups : weight.size(0)};
  for (int64_t d = 2; d < input.dim(); ++d) {
    const auto k = static_cast<size_t>(d - 2);
    const int64_t kernel = at_or_last(dilation, k) * (weight.size(d) - 1) + 1;
    const int64_t size =
        transposed
            ? (input.size(d) - 1) * at_or_last(stride, k) - 2 * at_or_last(padding, k) + kernel +
                  at_or_last(extra, k)
            : (input.size(d) + 2 * at_or_last(padding, k) - kernel) / at_or_last(stride, k) + 1;
    if (size < 0) return false;
    sizes.push_back(size);
  }
  add_formatted(input.scalar_type(), ref(sizes), convolution_format(input, weight), result);
  return true;
}
bool convolution_backward(const Arguments& a, Metadata& result) {
  const at::Tensor &input = tensor(a, 1), &weight = tensor(a, 2);
  // (grad_output, input, weight[, bias_sizes], stride, ..., output_mask)
  const auto mask = a.back().toListRef();
  const c10::MemoryFormat format = convolution_format(input, weight);
  if (mask[0].toBool()) {
    add_formatted(input.scalar_type(), input.sizes(), format, result);
  } else {
    result.add_undefined();
  }
  if (mask[1].toBool()) {
    add_formatted(weight.scalar_type(), weight.sizes(), format, result);
  } else {
    result.add_undefined();
  }
  if (mask[2].toBool()) {
    result.add(weight.scalar_type(), {tensor(a, 0).size(1)});
  } else {
    result.add_undefined();
  }
  return true;
}
bool adaptive_avg_pool2d(const Arguments& a, Metadata& result) {
  const at::Tensor& self = tensor(a, 0);
  const Dims wanted = to_dims(a[1]);
  if (self.dim() < 3 || self.dim() > 4 || wanted.size() != 2) return false;
  Dims sizes = sizes_of(self);
  sizes[sizes.size() - 2] = wanted[0];
  sizes[sizes.size() - 1] = wanted[1];
  add_formatted(self.scalar_type(), ref(sizes), self.suggest_memory_format(), result);
  return true;
}
bool adaptive_avg_pool2d_backward(const Arguments& a, Metadata& result) {
  const at::Tensor& self = tensor(a, 1);
  add_formatted(self.scalar_type(), self.sizes(), self.suggest_memory_format(), result);
  return true;
}

bool attention(const Arguments& a, Metadata& result) {
  const at::Tensor &query = tensor(a, 0), &key = tensor(a, 1), &value = tensor(a, 2);
  if (query.dim() != 4 || key.dim() != 4 || value.dim() != 4) return false;
  if (query.size(3) == value.size(3)) {
    // Mostly a transposed view: merging the heads again then costs nothing.
    add_like(query, query.scalar_type(), result);
  } else {
    result.add(query.scalar_type(), {query.size(0), query.size(1), query.size(2), value.size(3)});
  }
  result.add(at::kFloat, {query.size(0), query.size(1), query.size(2)});
  result.add_undefined();     // cum_seq_q
  result.add_undefined();     // cum_seq_k
  result.add(at::kLong, {});  // philox_seed
  result.add(at::kLong, {});  // philox_offset
  result.add_undefined();     // debug_attn_mask
  result.integers = {0, 0, 0, 0, query.size(2), key.size(2), 0, 0, 0};
  return true;
}
bool attention_backward(const Arguments& a, Metadata& result) {
  const auto mask = a[5].toListRef();
  for (size_t k = 0; k < 4; ++k) {
    const at::Tensor& of = tensor(a, k + 1);
    if (!mask[k].toBool() || !of.defined()) {
      result.add_undefined();
    } else {
      add_like(of, of.scalar_type(), result);
    }
  }
  return true;
}

}  // namespace

const std::unordered_map<std::string_view, ShapeFunction>& network_shapes() {
  static const auto* functions = new std::unordered_map<std::string_view, ShapeFunction>({
      {"aten::native_dropout", native_dropout},
      {"aten::binary_cross_entropy", reduced_loss<3>},
      {"aten::huber_loss", reduced_loss<2>},
      {"aten::soft_margin_loss", reduced_loss<2>},
      {"aten::binary_cross_entropy_backward", loss_backward},
      {"aten::mse_loss_backward", loss_backward},
      {"aten::smooth_l1_loss_backward", loss_backward},
      {"aten::huber_loss_backward", loss_backward},
      {"aten::log_sigmoid_forward", log_sigmoid_forward},
      {"aten::native_layer_norm", native_layer_norm},
      {"aten::native_layer_norm_backward", native_layer_norm_backward},
      {"aten::native_group_norm", native_group_norm},
      {"aten::native_group_norm_backward", native_group_norm_backward},
      {"aten::native_batch_norm", native_batch_norm},
      {"aten::_native_batch_norm_legit_functional", batch_norm_legit_functional},
      {"aten::_native_batch_norm_legit.no_stats", batch_norm_no_stats},
      {"aten::_batch_norm_no_update", batch_norm_no_update},
      {"aten::_batch_norm_with_update_functional", batch_norm_with_update},
      {"aten::native_batch_norm_backward", native_batch_norm_backward},
      {"aten::convolution", convolution},
      {"aten::convolution_backward", convolution_backward},
      {"aten::convolution_overrideable", convolution},
      {"aten::convolution_backward_overrideable", convolution_backward},
      {"aten::_adaptive_avg_pool2d", adaptive_avg_pool2d},
      {"aten::_adaptive_avg_pool2d_backward", adaptive_avg_pool2d_backward},
      {"aten::_scaled_dot_product_fused_attention_overrideable", attention},
      {"aten::_scaled_dot_product_fused_attention_overrideable_backward", attention_backward},
  });
  return *functions;
}

}  // namespace neuron::aten
