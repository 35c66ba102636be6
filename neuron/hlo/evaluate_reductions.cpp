#include <algorithm>
#include <numeric>

#include "neuron/hlo/evaluate_internal.h"

namespace neuron::hlo::internal {

namespace {

bool accumulates_wide(ReduceKind kind) {
  return kind == ReduceKind::Sum || kind == ReduceKind::Product;
}

/// Runs body(A{}) with the accumulator type of the kind and dtype.
template <typename Body>
void with_accumulator(DType dtype, ReduceKind kind, Body&& body) {
  with_compute_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    if (accumulates_wide(kind)) {
      body(tag, accumulator_t<T>{});
    } else {
      body(tag, T{});
    }
  });
}

Array reduce(const Node& node, const Array& x) {
  Array result = make_array(node.type);
  const auto kind = static_cast<ReduceKind>(node.ints[0]);
  // Strides into the result; 0 along reduced dims.
  Dims strides = x.type.dims;
  const Dims kept = contiguous_strides(node.type.dims);
  size_t next = 0;
  for (size_t d = 0; d < strides.size(); ++d) {
    const DimsRef reduced = DimsRef(node.ints).subspan(1);
    const bool gone = std::find(reduced.begin(), reduced.end(), d) != reduced.end();
    strides[d] = gone ? 0 : kept[next++];
  }
  with_accumulator(x.type.dtype, kind, [&](auto tag, auto wide) {
    using T = decltype(tag);
    using A = decltype(wide);
    std::vector<A> totals(static_cast<size_t>(count_elements(node.type.dims)),
                          identity_of<A>(kind));
    for_each_index(x.type.dims, [&](const Dims& index, int64_t linear) {
      const auto to = static_cast<size_t>(offset_of(index, strides));
      totals[to] = combine<A>(kind, totals[to], convert_number<A>(load_at<T>(x, linear)));
    });
    for (size_t i = 0; i < totals.size(); ++i) {
      store_at<T>(result, static_cast<int64_t>(i), convert_number<T>(A(totals[i])));
    }
  });
  return result;
}

Array arg_reduce(const Node& node, const Array& x) {
  Array result = make_array(node.type);
  const auto dim = static_cast<size_t>(node.ints[0]);
  const bool is_max = node.ints[1] != 0;
  Dims outer = x.type.dims;
  const int64_t size = outer[dim];
  outer[dim] = 1;
  const Dims strides = contiguous_strides(x.type.dims);
  with_compute_type(x.type.dtype, [&](auto tag) {
    using T = decltype(tag);
    if constexpr (!is_complex_v<T>) {
      for_each_index(outer, [&](const Dims& index, int64_t linear) {
        const int64_t base = offset_of(index, strides);
        int64_t best = 0;
        T extreme = load_at<T>(x, base);
        for (int64_t i = 1; i < size && extreme == extreme; ++i) {
          const T value = load_at<T>(x, base + i * strides[dim]);
          if (value != value || (is_max ? value > extreme : value < extreme)) {
            best = i;
            extreme = value;
          }
        }
        store_at<int64_t>(result, linear, best);
      });
    }
  });
  return result;
}

ReduceKind reduction_of(ScanKind kind) {
  switch (kind) {
    case ScanKind::Sum:
      return ReduceKind::Sum;
    case ScanKind::Product:
      return ReduceKind::Product;
    case ScanKind::Max:
      return ReduceKind::Max;
    case ScanKind::Min:
      return ReduceKind::Min;
  }
  return ReduceKind::Sum;
}

Array scan(const Node& node, const Array& x) {
  Array result = make_array(node.type);
  const ReduceKind kind = reduction_of(static_cast<ScanKind>(node.ints[0]));
  const auto dim = static_cast<size_t>(node.ints[1]);
  Dims outer = x.type.dims;
  const int64_t size = outer[dim];
  outer[dim] = std::min<int64_t>(size, 1);
  const Dims strides = contiguous_strides(x.type.dims);
  with_accumulator(x.type.dtype, kind, [&](auto tag, auto wide) {
    using T = decltype(tag);
    using A = decltype(wide);
    for_each_index(outer, [&](const Dims& index, int64_t) {
      const int64_t base = offset_of(index, strides);
      A total = identity_of<A>(kind);
      for (int64_t i = 0; i < size; ++i) {
        const int64_t at = base + i * strides[dim];
        total = combine<A>(kind, total, convert_number<A>(load_at<T>(x, at)));
        store_at<T>(result, at, convert_number<T>(total));
      }
    });
  });
  return result;
}

Array reduce_window(const Node& node, const Array& x) {
  Array result = make_array(node.type);
  const auto kind = static_cast<ReduceKind>(node.ints[0]);
  const size_t rank = x.type.dims.size();
  const DimsRef ints = DimsRef(node.ints).subspan(2);
  const DimsRef size = ints.subspan(0, rank), stride = ints.subspan(rank, rank),
                dilation = ints.subspan(2 * rank, rank), low = ints.subspan(3 * rank, rank);
  const Dims strides = contiguous_strides(x.type.dims);
  with_accumulator(x.type.dtype, kind, [&](auto tag, auto wide) {
    using T = decltype(tag);
    using A = decltype(wide);
    for_each_index(node.type.dims, [&](const Dims& index, int64_t linear) {
      A total = identity_of<A>(kind);
      for_each_index(size, [&](const Dims& tap, int64_t) {
        int64_t at = 0;
        for (size_t d = 0; d < rank; ++d) {
          const int64_t i = index[d] * stride[d] + tap[d] * dilation[d] - low[d];
          if (i < 0 || i >= x.type.dims[d]) return;
          at += i * strides[d];
        }
        total = combine<A>(kind, total, convert_number<A>(load_at<T>(x, at)));
      });
      store_at<T>(result, linear, convert_number<T>(total));
    });
  });
  return result;
}

}  // namespace

Array evaluate_reduction(const Node& node, Operands operands) {
  switch (node.op) {
    case Op::Reduce:
      return reduce(node, *operands[0]);
    case Op::ArgReduce:
      return arg_reduce(node, *operands[0]);
    case Op::Scan:
      return scan(node, *operands[0]);
    default:
      return reduce_window(node, *operands[0]);
  }
}

std::vector<Array> evaluate_sort(const Node& node, Operands operands) {
  const Array& x = *operands[0];
  Array values = make_array(node.results[0]), indices = make_array(node.results[1]);
  const auto dim = static_cast<size_t>(node.ints[0]);
  const bool descending = (node.ints[1] & 1) != 0;
  Dims outer = x.type.dims;
  const int64_t size = outer[dim];
  outer[dim] = std::min<int64_t>(size, 1);
  const Dims strides = contiguous_strides(x.type.dims);
  with_compute_type(x.type.dtype, [&](auto tag) {
    using T = decltype(tag);
    if constexpr (!is_complex_v<T>) {
      for_each_index(outer, [&](const Dims& index, int64_t) {
        const int64_t base = offset_of(index, strides);
        std::vector<int64_t> order(static_cast<size_t>(size));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int64_t i, int64_t k) {
          T a = load_at<T>(x, base + i * strides[dim]);
          T b = load_at<T>(x, base + k * strides[dim]);
          if (descending) std::swap(a, b);
          return a < b || (a == a && b != b);
        });
        for (int64_t i = 0; i < size; ++i) {
          const int64_t from = order[static_cast<size_t>(i)];
          copy_element(x, base + from * strides[dim], values, base + i * strides[dim]);
          store_at<int64_t>(indices, base + i * strides[dim], from);
        }
      });
    }
  });
  return {std::move(values), std::move(indices)};
}

}  // namespace neuron::hlo::internal
