#pragma once

#include <span>
#include <vector>

#include "neuron/base/error.h"
#include "neuron/hlo/element.h"
#include "neuron/hlo/evaluate.h"

namespace neuron::hlo::internal {

/// Operands of the node under evaluation; borrowed.
using Operands = std::span<const Array* const>;

// Each handles the ops of its group.
Array evaluate_elementwise(const Node& node, Operands operands);
Array evaluate_view(const Node& node, Operands operands);
Array evaluate_indexed(const Node& node, Operands operands);
Array evaluate_reduction(const Node& node, Operands operands);
std::vector<Array> evaluate_sort(const Node& node, Operands operands);
Array evaluate_product(const Node& node, Operands operands);
Array evaluate_philox(const Node& node, Operands operands);

inline Array make_array(const Type& type) {
  return {type, std::vector<std::byte>(static_cast<size_t>(count_elements(type.dims)) *
                                       size_of(type.dtype))};
}

template <typename T>
T load_at(const Array& array, int64_t i) {
  return load_element<T>(array.type.dtype,
                         array.bytes.data() + static_cast<size_t>(i) * size_of(array.type.dtype));
}
template <typename T>
void store_at(Array& array, int64_t i, T value) {
  store_element<T>(array.type.dtype, value,
                   array.bytes.data() + static_cast<size_t>(i) * size_of(array.type.dtype));
}
inline void copy_element(const Array& from, int64_t i, Array& to, int64_t k) {
  const size_t size = size_of(from.type.dtype);
  std::memcpy(to.bytes.data() + static_cast<size_t>(k) * size,
              from.bytes.data() + static_cast<size_t>(i) * size, size);
}
/// An integer element of any integer dtype.
inline int64_t load_integer(const Array& array, int64_t i) {
  return with_compute_type(array.type.dtype, [&](auto tag) -> int64_t {
    return convert_number<int64_t>(load_at<decltype(tag)>(array, i));
  });
}

/// Calls body(index, linear index) for every index in row-major order.
template <typename Body>
void for_each_index(DimsRef dims, Body&& body) {
  const int64_t count = count_elements(dims);
  Dims index(dims.size(), 0);
  for (int64_t linear = 0; linear < count; ++linear) {
    body(static_cast<const Dims&>(index), linear);
    for (size_t d = dims.size(); d-- > 0;) {
      if (++index[d] < dims[d]) break;
      index[d] = 0;
    }
  }
}

inline int64_t offset_of(DimsRef index, DimsRef strides) {
  int64_t offset = 0;
  for (size_t d = 0; d < index.size(); ++d) offset += index[d] * strides[d];
  return offset;
}

/// Where sums and products are kept: wide enough that the order does not matter to a test.
template <typename T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<float> {
  using type = double;
};
template <>
struct Accumulator<double> {
  using type = long double;
};
template <>
struct Accumulator<std::complex<float>> {
  using type = std::complex<double>;
};
template <typename T>
using accumulator_t = typename Accumulator<T>::type;

/// a + b and a * b with integers wrapping, bool as or / and, complex without special cases for
/// infinities.
template <typename T>
T plus(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a || b;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}
template <typename T>
T times(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a && b;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  } else if constexpr (is_complex_v<T>) {
    return T(a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real());
  } else {
    return a * b;
  }
}
/// NaN wins; of equal values the first.
template <typename T>
T larger(T a, T b) {
  if constexpr (is_complex_v<T>) {
    NEURON_ASSERT(false, "complex numbers have no order");
  } else {
    if (a != a) return a;
    return b > a || b != b ? b : a;
  }
}
template <typename T>
T smaller(T a, T b) {
  if constexpr (is_complex_v<T>) {
    NEURON_ASSERT(false, "complex numbers have no order");
  } else {
    if (a != a) return a;
    return b < a || b != b ? b : a;
  }
}

/// The neutral element of a reduction in compute type T.
template <typename T>
T identity_of(ReduceKind kind) {
  switch (kind) {
    case ReduceKind::Sum:
    case ReduceKind::Or:
      return T(0);
    case ReduceKind::Product:
      return T(1);
    case ReduceKind::And:
      if constexpr (std::is_same_v<T, bool>) return true;
      if constexpr (std::is_integral_v<T>) return static_cast<T>(-1);
      return T(1);
    case ReduceKind::Max:
      if constexpr (std::is_floating_point_v<T>) return -std::numeric_limits<T>::infinity();
      if constexpr (std::is_integral_v<T>) return std::numeric_limits<T>::lowest();
      return T(0);
    case ReduceKind::Min:
      if constexpr (std::is_floating_point_v<T>) return std::numeric_limits<T>::infinity();
      if constexpr (std::is_integral_v<T>) return std::numeric_limits<T>::max();
      return T(0);
  }
  return T(0);
}

template <typename T>
T combine(ReduceKind kind, T a, T b) {
  switch (kind) {
    case ReduceKind::Sum:
      return plus(a, b);
    case ReduceKind::Product:
      return times(a, b);
    case ReduceKind::Max:
      return larger(a, b);
    case ReduceKind::Min:
      return smaller(a, b);
    case ReduceKind::And:
      if constexpr (std::is_integral_v<T>) return static_cast<T>(a & b);
      break;
    case ReduceKind::Or:
      if constexpr (std::is_integral_v<T>) return static_cast<T>(a | b);
      break;
  }
  NEURON_ASSERT(false, "bitwise reduction of a float");
  return a;
}

}  // namespace neuron::hlo::internal
