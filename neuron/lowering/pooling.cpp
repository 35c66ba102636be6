// Windows over the trailing dims: averages, maxima, and their unfolded forms.

#include <algorithm>

#include "neuron/base/error.h"
#include "neuron/lowering/indices.h"
#include "neuron/lowering/numerics.h"
#include "neuron/lowering/registry.h"
#include "neuron/lowering/taps.h"

namespace neuron::lowering {
namespace {

// An int[n] argument: one number stands for all, an empty list for `if_empty`.
Dims expanded(const Dims& given, size_t n, const Dims& if_empty = {}) {
  if (given.empty()) return if_empty;
  return given.size() == 1 ? Dims(n, given[0]) : given;
}

// --- Average pooling ------------------------------------------------------------------------

struct AveragePool {
  size_t n;
  Dims kernel, stride, padding, input, output;
  bool count_padding;
  bool has_divisor;
  int64_t divisor;
};

AveragePool average_pool_of(const OpCall& call, size_t n, size_t first, DimsRef input,
                            DimsRef output) {
  AveragePool p;
  p.n = n;
  p.kernel = expanded(call.ints(first), n);
  p.stride = expanded(call.ints(first + 1), n, p.kernel);
  p.padding = expanded(call.ints(first + 2), n);
  p.count_padding = call.flag(first + 4);
  p.has_divisor = call.has(first + 5);
  p.divisor = call.integer(first + 5, 1);
  p.input = Dims(input.end() - static_cast<ptrdiff_t>(n), input.end());
  p.output = Dims(output.end() - static_cast<ptrdiff_t>(n), output.end());
  return p;
}

// 1 / (elements a window counts) is a product over the dims; here the factor of one dim.
std::vector<double> window_counts(const AveragePool& p, size_t k) {
  std::vector<double> counts;
  for (int64_t i = 0; i < p.output[k]; ++i) {
    const int64_t start = i * p.stride[k] - p.padding[k];
    const int64_t limit = std::min(start + p.kernel[k], p.input[k] + p.padding[k]);
    const int64_t inside = std::min(limit, p.input[k]) - std::max<int64_t>(start, 0);
    counts.push_back(static_cast<double>(p.count_padding ? limit - start : inside));
  }
  return counts;
}

// x, shaped like the pool's output, divided by the windows' counts.
Value divide_by_counts(Builder& b, Value x, const AveragePool& p) {
  if (p.has_divisor) return b.div(x, b.like(x, static_cast<double>(p.divisor)));
  double same = 1;
  for (size_t k = 0; k < p.n; ++k) {
    const std::vector<double> counts = window_counts(p, k);
    if (std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end()) {
      if (!counts.empty()) same *= counts[0];
      continue;
    }
    const int64_t dim = x.rank() - static_cast<int64_t>(p.n - k);
    x = b.div(x, along(b, float_literal(b, x.dtype(), counts), x.rank(), dim));
  }
  return same == 1 ? x : b.div(x, b.like(x, same));
}

DType pool_dtype(DType dtype) { return is_integer(dtype) ? DType::f64 : opmath(dtype); }

template <size_t n>
Values average_pool(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const AveragePool p = average_pool_of(call, n, 1, x.dims(), call.result().dims);
  hlo::WindowDims window;
  const size_t lead = static_cast<size_t>(x.rank()) - n;
  window.size = window.stride = Dims(lead, 1);
  window.pad_low = window.pad_high = Dims(lead, 0);
  for (size_t k = 0; k < n; ++k) {
    window.size.push_back(p.kernel[k]);
    window.stride.push_back(p.stride[k]);
    window.pad_low.push_back(p.padding[k]);
    // Rounding the output size up lets the last window hang over.
    const int64_t reach = (p.output[k] - 1) * p.stride[k] + p.kernel[k];
    window.pad_high.push_back(std::max<int64_t>(reach - p.input[k] - p.padding[k], 0));
  }
  const Value wide = b.convert(x, pool_dtype(x.dtype()));
  const Value sum = b.reduce_window(hlo::ReduceKind::Sum, wide, window);
  return {b.convert(divide_by_counts(b, sum, p), x.dtype())};
}
NEURON_LOWERING(
    "aten::avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, bool "
    "ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> Tensor",
    average_pool<2>);
NEURON_LOWERING(
    "aten::avg_pool3d(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, bool "
    "ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> Tensor",
    average_pool<3>);

// Every input element sums the shares of the windows over it: with the gradient spread out to where
// its windows start, those are again one window.
template <size_t n>
Values average_pool_backward(Builder& b, const OpCall& call) {
  const Value grad = call.tensor(0);
  const Value x = call.tensor(1);
  const AveragePool p = average_pool_of(call, n, 2, x.dims(), grad.dims());
  const Value share = divide_by_counts(b, b.convert(grad, pool_dtype(x.dtype())), p);
  const size_t lead = static_cast<size_t>(x.rank()) - n;
  Dims low(lead, 0), high(lead, 0), interior(lead, 0);
  hlo::WindowDims window;
  window.size = Dims(lead, 1);
  for (size_t k = 0; k < n; ++k) {
    low.push_back(p.kernel[k] - 1 - p.padding[k]);
    interior.push_back(p.stride[k] - 1);
    const int64_t spread = (p.output[k] - 1) * p.stride[k] + 1;
    high.push_back(p.input[k] + p.kernel[k] - 1 - low.back() - spread);
    window.size.push_back(p.kernel[k]);
  }
  const Value spread = b.pad(share, b.zeros(share.dtype()), low, high, interior);
  return {b.convert(b.reduce_window(hlo::ReduceKind::Sum, spread, window), x.dtype())};
}
NEURON_LOWERING(
    "aten::avg_pool2d_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, "
    "int[2] padding, bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor",
    average_pool_backward<2>);
NEURON_LOWERING(
    "aten::avg_pool3d_backward(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] stride, "
    "int[3] padding, bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor",
    average_pool_backward<3>);

// --- Adaptive average pooling ---------------------------------------------------------------

Taps adaptive_taps(int64_t input, int64_t output) {
  Taps taps(input, output);
  for (int64_t i = 0; i < output; ++i) {
    const int64_t start = i * input / output;
    const int64_t limit = ((i + 1) * input + output - 1) / output;
    for (int64_t k = start; k < limit; ++k) {
      taps.add(i, k, 1.0 / static_cast<double>(limit - start));
    }
  }
  return taps;
}

// Where every dim divides evenly: [.., out, in / out, ..] and the dims of the parts.
struct EvenSplit {
  Dims split, parts;
};

bool split_evenly(DimsRef input, DimsRef output, size_t n, EvenSplit& result) {
  const size_t lead = input.size() - n;
  for (size_t i = 0; i < input.size(); ++i) {
    if (i < lead) {
      result.split.push_back(input[i]);
      continue;
    }
    if (output[i] == 0 || input[i] % output[i] != 0) return false;
    result.split.push_back(output[i]);
    result.parts.push_back(static_cast<int64_t>(result.split.size()));
    result.split.push_back(input[i] / output[i]);
  }
  return true;
}

template <size_t n>
Values adaptive_average_pool(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const Dims& output = call.result().dims;
  if (count_elements(output) == 0) return {b.zeros(x.dtype(), output)};
  Value wide = b.convert(x, pool_dtype(x.dtype()));
  EvenSplit even;
  if (split_evenly(x.dims(), output, n, even)) {
    return {b.convert(mean(b, b.reshape(wide, even.split), even.parts, false), x.dtype())};
  }
  for (size_t k = 0; k < n; ++k) {
    const int64_t dim = x.rank() - static_cast<int64_t>(n - k);
    wide = apply_taps(b, wide, dim, adaptive_taps(x.dim(dim), output[static_cast<size_t>(dim)]));
  }
  return {b.convert(wide, x.dtype())};
}
NEURON_LOWERING("aten::_adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor",
                adaptive_average_pool<2>);
NEURON_LOWERING("aten::_adaptive_avg_pool3d(Tensor self, SymInt[3] output_size) -> Tensor",
                adaptive_average_pool<3>);

template <size_t n>
Values adaptive_average_pool_backward(Builder& b, const OpCall& call) {
  const Value grad = call.tensor(0);
  const Value x = call.tensor(1);
  if (grad.count() == 0) return {b.zeros(x.dtype(), x.dims())};
  Value wide = b.convert(grad, pool_dtype(x.dtype()));
  EvenSplit even;
  if (split_evenly(x.dims(), grad.dims(), n, even)) {
    int64_t count = 1;
    Dims kept = even.split;
    for (int64_t part : even.parts) {
      count *= kept[static_cast<size_t>(part)];
      kept[static_cast<size_t>(part)] = 1;
    }
    wide = b.div(wide, b.like(wide, static_cast<double>(count)));
    wide = b.broadcast_to(b.reshape(wide, kept), even.split);
    return {b.convert(b.reshape(wide, x.dims()), x.dtype())};
  }
  for (size_t k = 0; k < n; ++k) {
    const int64_t dim = x.rank() - static_cast<int64_t>(n - k);
    wide = apply_taps(b, wide, dim, adaptive_taps(x.dim(dim), grad.dim(dim)).transposed());
  }
  return {b.convert(wide, x.dtype())};
}
NEURON_LOWERING("aten::_adaptive_avg_pool2d_backward(Tensor grad_output, Tensor self) -> Tensor",
                adaptive_average_pool_backward<2>);
NEURON_LOWERING("aten::_adaptive_avg_pool3d_backward(Tensor grad_output, Tensor self) -> Tensor",
                adaptive_average_pool_backward<3>);

// --- Unfolded windows -----------------------------------------------------------------------

struct Windows {
  Dims kernel, dilation, padding, stride;
  Dims count;  // Windows along height and width.
};

Windows windows_of(const OpCall& call, size_t first, DimsRef image) {
  Windows w;
  w.kernel = expanded(call.ints(first), 2);
  w.dilation = expanded(call.ints(first + 1), 2);
  w.padding = expanded(call.ints(first + 2), 2);
  w.stride = expanded(call.ints(first + 3), 2);
  for (size_t k = 0; k < 2; ++k) {
    const int64_t reach = w.dilation[k] * (w.kernel[k] - 1) + 1;
    w.count.push_back((image[k] + 2 * w.padding[k] - reach) / w.stride[k] + 1);
  }
  return w;
}

// [.., C, H, W] -> [.., C * kh * kw, windows]: one strided read of the padded image.
Values im2col(Builder& b, const OpCall& call) {
  Value x = call.tensor(0);
  const Dims& result = call.result().dims;
  if (count_elements(result) == 0) return {b.zeros(x.dtype(), result)};
  const Windows w = windows_of(call, 1, Dims{x.dim(-2), x.dim(-1)});
  const int64_t planes = x.count() / (x.dim(-2) * x.dim(-1));
  x = b.reshape(x, Dims{planes, x.dim(-2), x.dim(-1)});
  const Dims pad{0, w.padding[0], w.padding[1]};
  x = b.pad(x, b.zeros(x.dtype()), pad, pad);
  const int64_t row = x.dim(2);
  const Value read = b.as_strided(
      x, Dims{planes, w.kernel[0], w.kernel[1], w.count[0], w.count[1]},
      Dims{x.dim(1) * row, w.dilation[0] * row, w.dilation[1], w.stride[0] * row, w.stride[1]}, 0);
  return {b.reshape(read, result)};
}
NEURON_LOWERING(
    "aten::im2col(Tensor self, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) "
    "-> Tensor",
    im2col);

Values col2im(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const Dims& result = call.result().dims;
  if (count_elements(result) == 0 || x.count() == 0) return {b.zeros(x.dtype(), result)};
  const Dims image = call.ints(1);
  const Windows w = windows_of(call, 2, image);
  const int64_t planes = count_elements(result) / (image[0] * image[1]);
  const Dims shape{w.kernel[0], w.kernel[1], w.count[0], w.count[1]};
  Dims full{planes};
  full.append(shape.begin(), shape.end());
  const Value parts = b.reshape(b.convert(x, opmath(x.dtype())), full);
  Values at;
  for (size_t k = 0; k < 2; ++k) {
    const auto dim = static_cast<int64_t>(k);
    const Value tap =
        b.mul(b.iota(DType::i64, shape, dim), b.constant_int(DType::i64, w.dilation[k]));
    const Value window =
        b.mul(b.iota(DType::i64, shape, dim + 2), b.constant_int(DType::i64, w.stride[k]));
    at.push_back(b.add(tap, window));
  }
  const Dims padded{planes, image[0] + 2 * w.padding[0], image[1] + 2 * w.padding[1]};
  const Value sum =
      scatter(b, hlo::ScatterKind::Add, b.zeros(parts.dtype(), padded), parts, at, Dims{1, 2}, 1);
  const Value cropped = b.slice(sum, Dims{0, w.padding[0], w.padding[1]},
                                Dims{planes, w.padding[0] + image[0], w.padding[1] + image[1]});
  return {b.convert(b.reshape(cropped, result), x.dtype())};
}
NEURON_LOWERING(
    "aten::col2im(Tensor self, SymInt[2] output_size, int[2] kernel_size, int[2] dilation, int[2] "
    "padding, int[2] stride) -> Tensor",
    col2im);

// --- Maxima with their positions ------------------------------------------------------------

NEURON_LIBRARY_OP(
    "aten::max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] "
    "padding=0, int[2] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)");
NEURON_LIBRARY_OP(
    "aten::max_pool2d_with_indices_backward(Tensor grad_output, Tensor self, int[2] kernel_size, "
    "int[2] stride, int[2] padding, int[2] dilation, bool ceil_mode, Tensor indices) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::max_pool3d_with_indices(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] "
    "padding=0, int[3] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)");
NEURON_LIBRARY_OP(
    "aten::max_pool3d_with_indices_backward(Tensor grad_output, Tensor self, int[3] kernel_size, "
    "int[3] stride, int[3] padding, int[3] dilation, bool ceil_mode, Tensor indices) -> Tensor");
NEURON_LIBRARY_OP("aten::adaptive_max_pool2d(Tensor self, int[2] output_size) -> (Tensor, Tensor)");
NEURON_LIBRARY_OP(
    "aten::adaptive_max_pool2d_backward(Tensor grad_output, Tensor self, Tensor indices) -> "
    "Tensor");
NEURON_LIBRARY_OP("aten::adaptive_max_pool3d(Tensor self, int[3] output_size) -> (Tensor, Tensor)");
NEURON_LIBRARY_OP(
    "aten::adaptive_max_pool3d_backward(Tensor grad_output, Tensor self, Tensor indices) -> "
    "Tensor");
NEURON_LIBRARY_OP(
    "aten::fractional_max_pool2d(Tensor self, int[2] kernel_size, int[2] output_size, Tensor "
    "random_samples) -> (Tensor, Tensor)");
NEURON_LIBRARY_OP(
    "aten::fractional_max_pool2d_backward(Tensor grad_output, Tensor self, int[2] kernel_size, "
    "int[2] output_size, Tensor indices) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::fractional_max_pool3d(Tensor self, int[3] kernel_size, int[3] output_size, Tensor "
    "random_samples) -> (Tensor, Tensor)");
NEURON_LIBRARY_OP(
    "aten::fractional_max_pool3d_backward(Tensor grad_output, Tensor self, int[3] kernel_size, "
    "int[3] output_size, Tensor indices) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::max_unpool2d(Tensor self, Tensor indices, SymInt[2] output_size) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::max_unpool3d(Tensor self, Tensor indices, SymInt[3] output_size, int[3] stride, int[3] "
    "padding) -> Tensor");

}  // namespace
}  // namespace neuron::lowering
