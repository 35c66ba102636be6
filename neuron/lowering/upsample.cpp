// Resampling of the trailing dims. Every method is separable: a few weighted neighbours per output
// position along each dim, known when the sizes are. The gradient is the transposed map.

#include <algorithm>
#include <cmath>
#include <map>

#include "neuron/base/error.h"
#include "neuron/lowering/numerics.h"
#include "neuron/lowering/registry.h"
#include "neuron/lowering/taps.h"

namespace neuron::lowering {
namespace {

enum class Method {
  Nearest,
  NearestExact,
  Linear,
  Cubic,
  LinearSmooth,
  CubicSmooth,
  LanczosSmooth,
};

struct Resize {
  int64_t input, output;
  bool align_corners;
  double given_scale;  // As the caller gave it, or 0.
};

// Input positions per output position. Real is the type torch computes positions in: which
// neighbour wins may hang on its rounding.
template <typename Real>
Real scale_of(const Resize& r) {
  if (r.align_corners) {
    return r.output > 1 ? static_cast<Real>(r.input - 1) / static_cast<Real>(r.output - 1) : 0;
  }
  if (r.given_scale > 0) return static_cast<Real>(1.0 / r.given_scale);
  return static_cast<Real>(r.input) / static_cast<Real>(r.output);
}

Taps nearest_taps(const Resize& r, bool exact) {
  std::vector<int64_t> sources;
  const float scale = scale_of<float>({r.input, r.output, false, r.given_scale});
  for (int64_t i = 0; i < r.output; ++i) {
    int64_t source;
    // The exact form follows a given scale even where the sizes agree.
    if (!exact && r.input == r.output) {
      source = i;
    } else if (!exact && r.output == 2 * r.input) {
      source = i / 2;
    } else {
      const float at =
          exact ? (static_cast<float>(i) + 0.5f) * scale : static_cast<float>(i) * scale;
      source = std::min(static_cast<int64_t>(std::floor(at)), r.input - 1);
    }
    sources.push_back(source);
  }
  return Taps::pick(r.input, sources);
}

template <typename Real>
Real source_position(Real scale, int64_t i, bool align_corners, bool cubic) {
  if (align_corners) return scale * static_cast<Real>(i);
  const Real at = scale * (static_cast<Real>(i) + Real(0.5)) - Real(0.5);
  return !cubic && at < 0 ? Real(0) : at;
}

template <typename Real>
Taps linear_taps(const Resize& r) {
  Taps taps(r.input, r.output);
  const Real scale = scale_of<Real>(r);
  for (int64_t i = 0; i < r.output; ++i) {
    if (r.input == r.output) {
      taps.add(i, i, 1.0);
      continue;
    }
    const Real at = source_position(scale, i, r.align_corners, false);
    const int64_t low = std::min(static_cast<int64_t>(at), r.input - 1);
    const int64_t high = std::min(low + 1, r.input - 1);
    const Real share = std::clamp(at - static_cast<Real>(low), Real(0), Real(1));
    taps.add(i, low, static_cast<double>(Real(1) - share));
    taps.add(i, high, static_cast<double>(share));
  }
  return taps;
}

// Keys' cubic convolution kernel at distance x.
double cubic_kernel(double x, double a) {
  x = std::abs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

template <typename Real>
Taps cubic_taps(const Resize& r) {
  Taps taps(r.input, r.output);
  const Real scale = scale_of<Real>(r);
  for (int64_t i = 0; i < r.output; ++i) {
    const Real at = source_position(scale, i, r.align_corners, true);
    const auto base = static_cast<int64_t>(std::floor(at));
    const double share = static_cast<double>(at - static_cast<Real>(base));
    for (int64_t k = -1; k <= 2; ++k) {
      taps.add(i, std::clamp<int64_t>(base + k, 0, r.input - 1),
               cubic_kernel(share - static_cast<double>(k), -0.75));
    }
  }
  return taps;
}

double smooth_kernel(Method method, double x) {
  switch (method) {
    case Method::CubicSmooth:
      return cubic_kernel(x, -0.5);
    case Method::LanczosSmooth: {
      if (std::abs(x) >= 3) return 0;
      if (x == 0) return 1;
      const double t = x * 3.14159265358979323846;
      return 3 * std::sin(t) * std::sin(t / 3) / (t * t);
    }
    default:
      return std::max(0.0, 1 - std::abs(x));
  }
}

// Antialiased: when shrinking, the kernel is stretched over the input it stands for.
Taps smooth_taps(const Resize& r, Method method) {
  Taps taps(r.input, r.output);
  const double scale = scale_of<double>(r);
  const double reach = method == Method::LinearSmooth ? 1 : method == Method::CubicSmooth ? 2 : 3;
  const double support = scale >= 1 ? reach * scale : reach;
  const double inverse = scale >= 1 ? 1 / scale : 1;
  for (int64_t i = 0; i < r.output; ++i) {
    const double center = scale * (static_cast<double>(i) + 0.5);
    const auto first = std::max<int64_t>(static_cast<int64_t>(center - support + 0.5), 0);
    const auto limit = std::min<int64_t>(static_cast<int64_t>(center + support + 0.5), r.input);
    double total = 0;
    std::vector<double> weights;
    for (int64_t k = first; k < limit; ++k) {
      weights.push_back(smooth_kernel(method, (static_cast<double>(k) - center + 0.5) * inverse));
      total += weights.back();
    }
    for (int64_t k = first; k < limit; ++k) {
      const double weight = weights[static_cast<size_t>(k - first)];
      taps.add(i, k, total != 0 ? weight / total : weight);
    }
  }
  return taps;
}

Taps taps_of(const Resize& r, Method method, DType dtype) {
  // Fixed-point weights come from positions in double precision.
  const bool wide = dtype == DType::f64 || is_integer(dtype);
  switch (method) {
    case Method::Nearest:
      return nearest_taps(r, false);
    case Method::NearestExact:
      return nearest_taps(r, true);
    case Method::Linear:
      return wide ? linear_taps<double>(r) : linear_taps<float>(r);
    case Method::Cubic:
      return wide ? cubic_taps<double>(r) : cubic_taps<float>(r);
    case Method::LinearSmooth:
    case Method::CubicSmooth:
    case Method::LanczosSmooth:
      break;
  }
  return smooth_taps(r, method);
}

bool has_align_corners(Method method) {
  return method != Method::Nearest && method != Method::NearestExact;
}

// Argument positions: self, output_size, [align_corners], scales...; the backward form has
// input_size behind output_size.
Resize resize_of(const OpCall& call, Method method, size_t next, int64_t input, int64_t output,
                 size_t k) {
  bool align = false;
  if (has_align_corners(method)) align = call.flag(next++);
  const double scale = call.has(next + k) ? call.number(next + k) : 0;
  return {input, output, align, scale};
}

// The CPU resamples images of u8 in fixed point: weights of at most 15 bits, a rounding after every
// dim. Products and sums of these are exact in f32.
Taps fixed_point(const Taps& taps) {
  // Neighbours that the border has moved onto one position count once.
  std::vector<std::map<int64_t, double>> weights(static_cast<size_t>(taps.output_size()));
  double largest = 0;
  for (int64_t i = 0; i < taps.output_size(); ++i) {
    auto& of = weights[static_cast<size_t>(i)];
    for (const Taps::Tap& tap : taps.of(i)) of[tap.source] += tap.weight;
    for (const auto& [source, weight] : of) largest = std::max(largest, weight);
  }
  int bits = 0;
  while (bits < 22 && 0.5 + largest * std::ldexp(1.0, bits + 1) < 32768.0) ++bits;
  Taps result(taps.input_size(), taps.output_size());
  for (int64_t i = 0; i < taps.output_size(); ++i) {
    for (const auto& [source, weight] : weights[static_cast<size_t>(i)]) {
      result.add(i, source, std::ldexp(std::round(std::ldexp(weight, bits)), -bits));
    }
  }
  return result;
}

Value rounded(Builder& b, Value y) {
  y = b.floor(b.add(y, b.like(y, 0.5)));
  return b.min(b.max(y, b.zeros(y.dtype())), b.like(y, 255));
}

template <Method method>
Values upsample(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const DType dtype = x.dtype();
  const Dims output = call.ints(1);
  const size_t n = output.size();
  const bool picks = !has_align_corners(method);
  Value y = picks ? x : b.convert(x, is_integer(dtype) ? DType::f32 : opmath(dtype));
  if (x.count() == 0) return {b.zeros(dtype, call.result().dims)};
  for (size_t k = n; k-- > 0;) {
    const int64_t dim = x.rank() - static_cast<int64_t>(n - k);
    const Resize r = resize_of(call, method, 2, x.dim(dim), output[k], k);
    if (picks && r.input == r.output && r.given_scale == 0) continue;
    const Taps taps = taps_of(r, method, dtype);
    if (picks || !is_integer(dtype)) {
      y = apply_taps(b, y, dim, taps);
    } else if (r.input != r.output) {
      y = rounded(b, apply_taps(b, y, dim, fixed_point(taps)));
    }
  }
  return {b.convert(y, dtype)};
}

template <Method method>
Values upsample_backward(Builder& b, const OpCall& call) {
  const Value grad = call.tensor(0);
  const DType dtype = grad.dtype();
  const Dims output = call.ints(1), input = call.ints(2);
  const size_t n = output.size();
  if (grad.count() == 0) return {b.zeros(dtype, input)};
  Value y = b.convert(grad, is_integer(dtype) ? DType::f32 : opmath(dtype));
  for (size_t k = 0; k < n; ++k) {
    const int64_t dim = grad.rank() - static_cast<int64_t>(n - k);
    const int64_t size = input[static_cast<size_t>(dim)];
    const Resize r = resize_of(call, method, 3, size, output[k], k);
    y = apply_taps(b, y, dim, taps_of(r, method, dtype).transposed());
  }
  return {b.convert(y, dtype)};
}

NEURON_LOWERING(
    "aten::upsample_nearest1d(Tensor self, SymInt[1] output_size, float? scales=None) -> Tensor",
    upsample<Method::Nearest>);
NEURON_LOWERING(
    "aten::upsample_nearest2d(Tensor self, SymInt[2] output_size, float? scales_h=None, float? "
    "scales_w=None) -> Tensor",
    upsample<Method::Nearest>);
NEURON_LOWERING(
    "aten::upsample_nearest3d(Tensor self, SymInt[3] output_size, float? scales_d=None, float? "
    "scales_h=None, float? scales_w=None) -> Tensor",
    upsample<Method::Nearest>);
NEURON_LOWERING(
    "aten::_upsample_nearest_exact1d(Tensor self, SymInt[1] output_size, float? scales=None) -> "
    "Tensor",
    upsample<Method::NearestExact>);
NEURON_LOWERING(
    "aten::_upsample_nearest_exact2d(Tensor self, SymInt[2] output_size, float? scales_h=None, "
    "float? scales_w=None) -> Tensor",
    upsample<Method::NearestExact>);
NEURON_LOWERING(
    "aten::_upsample_nearest_exact3d(Tensor self, SymInt[3] output_size, float? scales_d=None, "
    "float? scales_h=None, float? scales_w=None) -> Tensor",
    upsample<Method::NearestExact>);
NEURON_LOWERING(
    "aten::upsample_linear1d(Tensor self, SymInt[1] output_size, bool align_corners, float? "
    "scales=None) -> Tensor",
    upsample<Method::Linear>);
NEURON_LOWERING(
    "aten::upsample_bilinear2d(Tensor self, SymInt[2] output_size, bool align_corners, float? "
    "scales_h=None, float? scales_w=None) -> Tensor",
    upsample<Method::Linear>);
NEURON_LOWERING(
    "aten::upsample_trilinear3d(Tensor self, SymInt[3] output_size, bool align_corners, float? "
    "scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor",
    upsample<Method::Linear>);
NEURON_LOWERING(
    "aten::upsample_bicubic2d(Tensor self, SymInt[2] output_size, bool align_corners, float? "
    "scales_h=None, float? scales_w=None) -> Tensor",
    upsample<Method::Cubic>);
NEURON_LOWERING(
    "aten::_upsample_bilinear2d_aa(Tensor self, SymInt[2] output_size, bool align_corners, float? "
    "scales_h=None, float? scales_w=None) -> Tensor",
    upsample<Method::LinearSmooth>);
NEURON_LOWERING(
    "aten::_upsample_bicubic2d_aa(Tensor self, SymInt[2] output_size, bool align_corners, float? "
    "scales_h=None, float? scales_w=None) -> Tensor",
    upsample<Method::CubicSmooth>);
NEURON_LOWERING(
    "aten::_upsample_lanczos2d_aa(Tensor self, SymInt[2] output_size, bool align_corners, float? "
    "scales_h=None, float? scales_w=None) -> Tensor",
    upsample<Method::LanczosSmooth>);

NEURON_LOWERING(
    "aten::upsample_nearest1d_backward(Tensor grad_output, SymInt[1] output_size, SymInt[3] "
    "input_size, float? scales=None) -> Tensor",
    upsample_backward<Method::Nearest>);
NEURON_LOWERING(
    "aten::upsample_nearest2d_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] "
    "input_size, float? scales_h=None, float? scales_w=None) -> Tensor",
    upsample_backward<Method::Nearest>);
NEURON_LOWERING(
    "aten::upsample_nearest3d_backward(Tensor grad_output, SymInt[3] output_size, SymInt[5] "
    "input_size, float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor",
    upsample_backward<Method::Nearest>);
NEURON_LOWERING(
    "aten::_upsample_nearest_exact1d_backward(Tensor grad_output, SymInt[1] output_size, SymInt[3] "
    "input_size, float? scales=None) -> Tensor",
    upsample_backward<Method::NearestExact>);
NEURON_LOWERING(
    "aten::_upsample_nearest_exact2d_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] "
    "input_size, float? scales_h=None, float? scales_w=None) -> Tensor",
    upsample_backward<Method::NearestExact>);
NEURON_LOWERING(
    "aten::_upsample_nearest_exact3d_backward(Tensor grad_output, SymInt[3] output_size, SymInt[5] "
    "input_size, float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor",
    upsample_backward<Method::NearestExact>);
NEURON_LOWERING(
    "aten::upsample_linear1d_backward(Tensor grad_output, SymInt[1] output_size, SymInt[3] "
    "input_size, bool align_corners, float? scales=None) -> Tensor",
    upsample_backward<Method::Linear>);
NEURON_LOWERING(
    "aten::upsample_bilinear2d_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] "
    "input_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
    upsample_backward<Method::Linear>);
NEURON_LOWERING(
    "aten::upsample_trilinear3d_backward(Tensor grad_output, SymInt[3] output_size, SymInt[5] "
    "input_size, bool align_corners, float? scales_d=None, float? scales_h=None, float? "
    "scales_w=None) -> Tensor",
    upsample_backward<Method::Linear>);
NEURON_LOWERING(
    "aten::upsample_bicubic2d_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] "
    "input_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
    upsample_backward<Method::Cubic>);
NEURON_LOWERING(
    "aten::_upsample_bilinear2d_aa_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] "
    "input_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
    upsample_backward<Method::LinearSmooth>);
NEURON_LOWERING(
    "aten::_upsample_bicubic2d_aa_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] "
    "input_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
    upsample_backward<Method::CubicSmooth>);
NEURON_LOWERING(
    "aten::_upsample_lanczos2d_aa_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] "
    "input_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
    upsample_backward<Method::LanczosSmooth>);

// Positions given by a tensor.
NEURON_LIBRARY_OP(
    "aten::grid_sampler_2d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, "
    "bool align_corners) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::grid_sampler_2d_backward(Tensor grad_output, Tensor input, Tensor grid, int "
    "interpolation_mode, int padding_mode, bool align_corners, bool[2] output_mask) -> (Tensor, "
    "Tensor)");
NEURON_LIBRARY_OP(
    "aten::grid_sampler_3d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, "
    "bool align_corners) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::grid_sampler_3d_backward(Tensor grad_output, Tensor input, Tensor grid, int "
    "interpolation_mode, int padding_mode, bool align_corners, bool[2] output_mask) -> (Tensor, "
    "Tensor)");

}  // namespace
}  // namespace neuron::lowering
