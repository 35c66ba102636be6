// Convolution. The device gets the overrideable forms in eager mode, graphs have the plain ones.

#include "neuron/base/error.h"
#include "neuron/lowering/library_call.h"
#include "neuron/lowering/numerics.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

using neff::LibraryArgument;

// One number stands for all spatial dims.
Dims spatial(const Dims& given, size_t n) { return given.size() == 1 ? Dims(n, given[0]) : given; }

// [in, out / groups, ..] -> [out, in / groups, ..], group by group.
Value swap_channels(Builder& b, Value weight, int64_t groups) {
  const int64_t in = weight.dim(0), out = weight.dim(1);
  Dims split{groups, in / groups, out}, order{0, 2, 1}, joined{groups * out, in / groups};
  for (int64_t i = 2; i < weight.rank(); ++i) {
    split.push_back(weight.dim(i));
    order.push_back(i + 1);
    joined.push_back(weight.dim(i));
  }
  return b.reshape(b.transpose(b.reshape(weight, split), order), joined);
}

// Arguments: input, weight, bias, stride, padding, dilation, transposed, output_padding, groups.
Values convolution(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const Value weight = call.tensor(1);
  const auto n = static_cast<size_t>(x.rank()) - 2;
  const Dims& sizes = call.result().dims;
  if (count_elements(sizes) == 0) return {b.zeros(x.dtype(), sizes)};
  const Dims stride = spatial(call.ints(3), n), padding = spatial(call.ints(4), n);
  hlo::ConvolutionDims dims;
  dims.rhs_dilation = spatial(call.ints(5), n);
  dims.groups = call.integer(8);
  Value kernel = weight;
  if (call.flag(6)) {
    // The gradient of a convolution: the input spread by the stride, the kernel turned around.
    kernel = swap_channels(b, weight, dims.groups);
    const Dims extra = spatial(call.ints(7), n);
    dims.stride = Dims(n, 1);
    dims.lhs_dilation = stride;
    dims.reverse_kernel = true;
    for (size_t i = 0; i < n; ++i) {
      const int64_t reach = dims.rhs_dilation[i] * (weight.dims()[i + 2] - 1);
      dims.pad_low.push_back(reach - padding[i]);
      dims.pad_high.push_back(reach - padding[i] + extra[i]);
    }
  } else {
    dims.stride = stride;
    dims.lhs_dilation = Dims(n, 1);
    dims.pad_low = dims.pad_high = padding;
  }
  if (!call.has(2)) return {b.convolution(x, kernel, dims)};
  // Rounded once, behind the bias; the compiler sees through the widening.
  const DType wide = opmath(x.dtype());
  const Value y = b.convolution(b.convert(x, wide), b.convert(kernel, wide), dims);
  const Value bias = along(b, b.convert(call.tensor(2), wide), y.rank(), 1);
  return {b.convert(b.add(y, bias), x.dtype())};
}
NEURON_LOWERING(
    "aten::convolution_overrideable(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, "
    "SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups) "
    "-> Tensor",
    convolution);
NEURON_LOWERING(
    "aten::convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] "
    "padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups) -> "
    "Tensor",
    convolution);

// All three gradients come out of one library call: they share packed operands.
NEURON_LIBRARY_OP(
    "aten::convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? "
    "bias_sizes, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] "
    "output_padding, SymInt groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)");

// The same call; it differs by the sizes of the bias only.
Values convolution_backward_overrideable(Builder& b, const OpCall& call) {
  LibraryCall library("aten::convolution_backward");
  for (size_t i = 0; i < 3; ++i) library.add(call, i);
  const Value weight = call.tensor(2);
  const int64_t outputs = call.flag(6) ? weight.dim(1) * call.integer(8) : weight.dim(0);
  library.add(LibraryArgument{LibraryArgument::Kind::IntList, {outputs}, {}, {}});
  for (size_t i = 3; i < call.size(); ++i) library.add(call, i);
  return library.emit(b, results_of(call));
}
NEURON_LOWERING(
    "aten::convolution_backward_overrideable(Tensor grad_output, Tensor input, Tensor weight, "
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] "
    "output_padding, SymInt groups, bool[3] output_mask) -> (Tensor grad_input, Tensor "
    "grad_weight, Tensor grad_bias)",
    convolution_backward_overrideable);

}  // namespace
}  // namespace neuron::lowering
