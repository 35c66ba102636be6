#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "neuron/base/dtype.h"
#include "neuron/base/small_vector.h"

namespace neuron {

/// Sizes, strides (in elements) or dimension numbers of a tensor.
using Dims = SmallVector<int64_t, 6>;
using DimsRef = std::span<const int64_t>;

/// Product of the sizes; 1 for rank 0.
int64_t count_elements(DimsRef sizes);
/// Row-major strides in elements; sizes of 0 count as 1, as torch does.
Dims contiguous_strides(DimsRef sizes);
bool is_contiguous(DimsRef sizes, DimsRef strides);
/// Elements between the first and one past the last that the view touches; 0 if it is empty.
int64_t storage_extent(DimsRef sizes, DimsRef strides);
/// Two elements of the view may share an address (an expanded dim, say). Exact for sorted strides,
/// conservative (true) otherwise.
bool may_self_overlap(DimsRef sizes, DimsRef strides);
/// Numpy broadcasting; throws Error(kInvalid) naming both shapes if they do not fit.
Dims broadcast_shapes(DimsRef a, DimsRef b);
/// "[2, 3]".
std::string to_string(DimsRef dims);
/// "f32[2, 3]".
std::string to_string(DType type, DimsRef dims);

}  // namespace neuron
