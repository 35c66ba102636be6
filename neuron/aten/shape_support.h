#pragma once

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>

#include <string_view>
#include <unordered_map>
#include <vector>

#include "neuron/aten/meta.h"

// What shape functions are made of.
namespace neuron::aten {

using Arguments = std::vector<c10::IValue>;

inline at::IntArrayRef ref(const Dims& dims) { return {dims.data(), dims.size()}; }

inline const at::Tensor& tensor(const Arguments& a, size_t i) {
  static const at::Tensor undefined;
  return a[i].isTensor() ? a[i].toTensor() : undefined;
}

inline Dims to_dims(const c10::IValue& list) {
  Dims dims;
  if (list.isInt()) {
    dims.push_back(list.toInt());
  } else if (!list.isNone()) {
    for (const c10::IValue& member : list.toListRef()) dims.push_back(member.toInt());
  }
  return dims;
}

inline Dims sizes_of(const at::Tensor& t) { return Dims(t.sizes().begin(), t.sizes().end()); }

inline bool is_floating(const at::Tensor& t) { return at::isFloatingType(t.scalar_type()); }

// Strides as empty_like(..., preserve_format) and one-operand iterators give them.
inline void add_like(const at::Tensor& t, c10::ScalarType dtype, Metadata& result) {
  if (t.is_non_overlapping_and_dense()) {
    result.add(dtype, t.sizes(), t.strides());
  } else {
    const auto strides = at::infer_dense_strides(t.sizes(), t.strides());
    result.add(dtype, t.sizes(), strides);
  }
}

inline void add_formatted(c10::ScalarType dtype, at::IntArrayRef sizes, c10::MemoryFormat format,
                          Metadata& result) {
  switch (format) {
    case c10::MemoryFormat::ChannelsLast:
      result.add(dtype, sizes, c10::get_channels_last_strides_2d(sizes));
      return;
    case c10::MemoryFormat::ChannelsLast3d:
      result.add(dtype, sizes, c10::get_channels_last_strides_3d(sizes));
      return;
    default:
      result.add(dtype, sizes);
      return;
  }
}

/// Shape functions of losses, normalisation, convolution, pooling and attention.
const std::unordered_map<std::string_view, ShapeFunction>& network_shapes();

/// Shape functions of ops that have no Meta kernel, or whose Meta kernel lets bad arguments pass.
const std::unordered_map<std::string_view, ShapeFunction>& checked_shapes();

}  // namespace neuron::aten
