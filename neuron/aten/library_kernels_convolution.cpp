#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "neuron/aten/library_kernels.h"
#include "neuron/hlo/builder.h"

// "neuron.convolution": ints as hlo::ConvolutionDims::encode(); NC<spatial> by OI<spatial>.
namespace neuron::aten::library {
namespace {

using hlo::ConvolutionDims;

std::vector<int64_t> to_vector(const Dims& dims) { return {dims.begin(), dims.end()}; }

bool all_are(const Dims& dims, int64_t value) {
  return std::all_of(dims.begin(), dims.end(), [&](int64_t d) { return d == value; });
}

// Inserts dilation - 1 zeros between neighbours of each spatial dim.
at::Tensor spread(const at::Tensor& x, const Dims& dilation) {
  std::vector<int64_t> sizes = x.sizes().vec();
  for (size_t d = 0; d < dilation.size(); ++d) {
    sizes[d + 2] = sizes[d + 2] == 0 ? 0 : (sizes[d + 2] - 1) * dilation[d] + 1;
  }
  at::Tensor wide = at::zeros(sizes, x.options());
  at::Tensor target = wide;
  for (size_t d = 0; d < dilation.size(); ++d) {
    target = target.slice(static_cast<int64_t>(d) + 2, 0, sizes[d + 2], dilation[d]);
  }
  target.copy_(x);
  return wide;
}

at::Tensor pad(const at::Tensor& x, const Dims& low, const Dims& high) {
  std::vector<int64_t> amounts;
  for (size_t d = low.size(); d-- > 0;) {
    amounts.push_back(low[d]);
    amounts.push_back(high[d]);
  }
  return at::constant_pad_nd(x, amounts, 0);
}

// [groups * out, in / groups, ..] -> [in, out / groups, ..], as transposed convolution wants it.
at::Tensor swap_channels(const at::Tensor& kernel, int64_t groups) {
  std::vector<int64_t> split = kernel.sizes().vec();
  const int64_t out = split[0] / groups, in = split[1];
  split[0] = groups;
  split.insert(split.begin() + 1, out);
  std::vector<int64_t> joined = kernel.sizes().vec();
  joined[0] = groups * in;
  joined[1] = out;
  return kernel.reshape(split).transpose(1, 2).reshape(joined);
}

at::Tensor convolve(const at::Tensor& given, const at::Tensor& kernel,
                    const ConvolutionDims& dims) {
  at::Tensor x = given, weight = kernel;
  const size_t n = dims.stride.size();
  const std::optional<at::Tensor> no_bias;
  const std::vector<int64_t> dilation = to_vector(dims.rhs_dilation);
  if (dims.reverse_kernel && all_are(dims.stride, 1)) {
    // The transposed convolution of torch, if its padding can say it.
    std::vector<int64_t> padding, extra;
    bool fits = true;
    for (size_t d = 0; d < n; ++d) {
      const int64_t reach = dims.rhs_dilation[d] * (kernel.size(static_cast<int64_t>(d) + 2) - 1);
      padding.push_back(reach - dims.pad_low[d]);
      extra.push_back(dims.pad_high[d] - dims.pad_low[d]);
      fits = fits && padding[d] >= 0 && extra[d] >= 0 &&
             extra[d] < std::max(dims.lhs_dilation[d], dims.rhs_dilation[d]);
    }
    if (fits) {
      return at::convolution(x, swap_channels(kernel, dims.groups), no_bias,
                             to_vector(dims.lhs_dilation), padding, dilation, true, extra,
                             dims.groups);
    }
  }
  if (dims.reverse_kernel) {
    std::vector<int64_t> spatial;
    for (size_t d = 0; d < n; ++d) spatial.push_back(static_cast<int64_t>(d) + 2);
    weight = kernel.flip(spatial);
  }
  if (!all_are(dims.lhs_dilation, 1)) x = spread(x, dims.lhs_dilation);
  Dims low = dims.pad_low, high = dims.pad_high;
  std::vector<int64_t> padding(n, 0);
  bool uneven = false;
  for (size_t d = 0; d < n; ++d) {
    padding[d] = std::max<int64_t>(0, std::min(low[d], high[d]));
    low[d] -= padding[d];
    high[d] -= padding[d];
    uneven = uneven || low[d] != 0 || high[d] != 0;
  }
  if (uneven) x = pad(x, low, high);
  return at::convolution(x, weight, no_bias, to_vector(dims.stride), padding, dilation, false,
                         std::vector<int64_t>(n, 0), dims.groups);
}

void convolution(void*, const Run& run) {
  const auto dims = ConvolutionDims::decode({run.call->ints, run.call->int_count});
  const at::Tensor x = run.input(0), kernel = run.input(1);
  at::Tensor out = run.output(0);
  if (out.numel() == 0) return;
  if (dims.batch_groups != 1) {
    // Group g of the batch meets group g of the output channels.
    const int64_t groups = dims.batch_groups;
    ConvolutionDims one = dims;
    one.batch_groups = 1;
    const int64_t batch = x.size(0) / groups, channels = kernel.size(0) / groups;
    for (int64_t g = 0; g < groups; ++g) {
      out.narrow(1, g * channels, channels)
          .copy_(convolve(x.narrow(0, g * batch, batch), kernel.narrow(0, g * channels, channels),
                          one));
    }
    return;
  }
  const double flops = 2.0 * static_cast<double>(out.numel()) *
                       static_cast<double>(kernel.numel() / std::max<int64_t>(kernel.size(0), 1));
  const auto wanted = std::clamp<int64_t>(static_cast<int64_t>(flops / 4e6), 1, 16);
  if (x.size(0) > 1) {
    const int64_t grain = (x.size(0) + wanted - 1) / wanted;
    run.parallel_for(x.size(0), grain, [&](int64_t begin, int64_t end) {
      run.output(0)
          .narrow(0, begin, end - begin)
          .copy_(convolve(run.input(0).narrow(0, begin, end - begin), run.input(1), dims));
    });
    return;
  }
  if (dims.groups == 1 && kernel.size(0) >= 32) {
    int64_t grain = (kernel.size(0) + wanted - 1) / wanted;
    grain = (grain + 15) / 16 * 16;
    const int64_t pieces = (kernel.size(0) + grain - 1) / grain;
    run.parallel_for(pieces, 1, [&](int64_t first, int64_t last) {
      const int64_t begin = first * grain;
      const int64_t count = std::min(last * grain, kernel.size(0)) - begin;
      run.output(0)
          .narrow(1, begin, count)
          .copy_(convolve(run.input(0), run.input(1).narrow(0, begin, count), dims));
    });
    return;
  }
  out.copy_(convolve(x, kernel, dims));
}

}  // namespace

void register_convolution() {
  register_kernel("neuron.convolution",
                  {sizeof(nrtsim_lib_kernel_t), nullptr, &run_kernel<convolution>, nullptr});
}

}  // namespace neuron::aten::library
