#include <algorithm>

#include "neuron/hlo/builder.h"
#include "neuron/hlo/evaluate_internal.h"

namespace neuron::hlo::internal {

namespace {

/// Stores a sum of products of type A, rounded to the array's dtype.
template <typename A>
void store_total(Array& result, int64_t i, A total) {
  with_compute_type(result.type.dtype,
                    [&](auto tag) { store_at(result, i, convert_number<decltype(tag)>(total)); });
}

Array dot_general(const Node& node, const Array& lhs, const Array& rhs) {
  Array result = make_array(node.type);
  const DotDims dims = DotDims::decode(node.ints);
  const Dims lhs_strides = contiguous_strides(lhs.type.dims);
  const Dims rhs_strides = contiguous_strides(rhs.type.dims);
  // Strides of the two operands along the result's dims, then along the contracted ones.
  Dims left, right, left_inner, right_inner, inner;
  auto has = [](const Dims& set, size_t d) {
    return std::find(set.begin(), set.end(), static_cast<int64_t>(d)) != set.end();
  };
  for (size_t i = 0; i < dims.lhs_batch.size(); ++i) {
    left.push_back(lhs_strides[static_cast<size_t>(dims.lhs_batch[i])]);
    right.push_back(rhs_strides[static_cast<size_t>(dims.rhs_batch[i])]);
  }
  for (size_t d = 0; d < lhs_strides.size(); ++d) {
    if (has(dims.lhs_batch, d) || has(dims.lhs_contract, d)) continue;
    left.push_back(lhs_strides[d]);
    right.push_back(0);
  }
  for (size_t d = 0; d < rhs_strides.size(); ++d) {
    if (has(dims.rhs_batch, d) || has(dims.rhs_contract, d)) continue;
    left.push_back(0);
    right.push_back(rhs_strides[d]);
  }
  for (size_t i = 0; i < dims.lhs_contract.size(); ++i) {
    inner.push_back(lhs.type.dims[static_cast<size_t>(dims.lhs_contract[i])]);
    left_inner.push_back(lhs_strides[static_cast<size_t>(dims.lhs_contract[i])]);
    right_inner.push_back(rhs_strides[static_cast<size_t>(dims.rhs_contract[i])]);
  }
  with_compute_type(lhs.type.dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = accumulator_t<T>;
    for_each_index(node.type.dims, [&](const Dims& index, int64_t linear) {
      const int64_t l = offset_of(index, left), r = offset_of(index, right);
      A total = A(0);
      for_each_index(inner, [&](const Dims& k, int64_t) {
        total = plus<A>(
            total, times<A>(convert_number<A>(load_at<T>(lhs, l + offset_of(k, left_inner))),
                            convert_number<A>(load_at<T>(rhs, r + offset_of(k, right_inner)))));
      });
      store_total(result, linear, total);
    });
  });
  return result;
}

Array convolution(const Node& node, const Array& input, const Array& kernel) {
  Array result = make_array(node.type);
  const ConvolutionDims dims = ConvolutionDims::decode(node.ints);
  const size_t n = dims.stride.size();
  const Dims in_strides = contiguous_strides(input.type.dims);
  const Dims k_strides = contiguous_strides(kernel.type.dims);
  const int64_t outs = kernel.type.dims[0], depth = kernel.type.dims[1];
  // One tap: the channel, then the kernel's spatial index.
  Dims taps;
  taps.push_back(depth);
  for (size_t d = 0; d < n; ++d) taps.push_back(kernel.type.dims[d + 2]);
  with_compute_type(input.type.dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = accumulator_t<T>;
    for_each_index(node.type.dims, [&](const Dims& index, int64_t linear) {
      const int64_t out = index[1];
      const int64_t group = out / (outs / dims.groups);
      const int64_t batch_group = out / (outs / dims.batch_groups);
      const int64_t batch = batch_group * node.type.dims[0] + index[0];
      A total = A(0);
      for_each_index(taps, [&](const Dims& tap, int64_t) {
        int64_t at = batch * in_strides[0] + (group * depth + tap[0]) * in_strides[1];
        int64_t k = out * k_strides[0] + tap[0] * k_strides[1];
        for (size_t d = 0; d < n; ++d) {
          const int64_t position =
              index[d + 2] * dims.stride[d] + tap[d + 1] * dims.rhs_dilation[d] - dims.pad_low[d];
          if (position < 0 || position % dims.lhs_dilation[d] != 0) return;
          const int64_t i = position / dims.lhs_dilation[d];
          if (i >= input.type.dims[d + 2]) return;
          at += i * in_strides[d + 2];
          k += (dims.reverse_kernel ? taps[d + 1] - 1 - tap[d + 1] : tap[d + 1]) * k_strides[d + 2];
        }
        total = plus<A>(total, times<A>(convert_number<A>(load_at<T>(input, at)),
                                        convert_number<A>(load_at<T>(kernel, k))));
      });
      store_total(result, linear, total);
    });
  });
  return result;
}

}  // namespace

Array evaluate_product(const Node& node, Operands operands) {
  return node.op == Op::DotGeneral ? dot_general(node, *operands[0], *operands[1])
                                   : convolution(node, *operands[0], *operands[1]);
}

}  // namespace neuron::hlo::internal
