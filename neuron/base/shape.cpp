#include "neuron/base/shape.h"

#include <algorithm>

#include "neuron/base/error.h"

namespace neuron {

int64_t count_elements(DimsRef sizes) {
  int64_t count = 1;
  for (int64_t size : sizes) count *= size;
  return count;
}

Dims contiguous_strides(DimsRef sizes) {
  Dims strides(sizes.size(), 1);
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = step;
    step *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

bool is_contiguous(DimsRef sizes, DimsRef strides) {
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 0) return true;
    if (sizes[i] == 1) continue;
    if (strides[i] != step) return false;
    step *= sizes[i];
  }
  return true;
}

int64_t storage_extent(DimsRef sizes, DimsRef strides) {
  int64_t last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return 0;
    last += (sizes[i] - 1) * strides[i];
  }
  return last + 1;
}

bool may_self_overlap(DimsRef sizes, DimsRef strides) {
  struct Dim {
    int64_t stride, size;
    bool operator<(const Dim& other) const { return stride < other.stride; }
  };
  SmallVector<Dim, 6> dims;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return false;
    if (sizes[i] > 1) dims.push_back({strides[i], sizes[i]});
  }
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;  // Last offset that the dims seen so far can produce.
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

Dims broadcast_shapes(DimsRef a, DimsRef b) {
  const size_t rank = std::max(a.size(), b.size());
  Dims out(rank, 1);
  for (size_t i = 0; i < rank; ++i) {
    const int64_t x = i < rank - a.size() ? 1 : a[i - (rank - a.size())];
    const int64_t y = i < rank - b.size() ? 1 : b[i - (rank - b.size())];
    NEURON_CHECK(x == y || x == 1 || y == 1, kInvalid, "cannot broadcast ", to_string(a), " with ",
                 to_string(b), ": sizes ", x, " and ", y, " differ in dim ", i,
                 " and neither is 1");
    out[i] = x == 1 ? y : x;
  }
  return out;
}

std::string to_string(DimsRef dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(dims[i]);
  }
  return text + "]";
}

std::string to_string(DType type, DimsRef dims) {
  return std::string(name_of(type)) + to_string(dims);
}

}  // namespace neuron
