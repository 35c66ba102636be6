#include <cmath>

#include "neuron/nrtsim/builtin_support.h"

// neuron.reduce: ints {kind, dims..}; neuron.scan: {kind, dim}; neuron.arg_reduce: {dim, is_max};
// neuron.reduce_window: {kind, rank n, size*n, stride*n, dilation*n, pad_low*n, pad_high*n}.
// Kinds: sum, product, max, min, and, or. Sums and products of floats are kept in double and
// rounded once; max and min propagate NaN.
namespace neuron::nrtsim {
namespace {

enum Kind : int64_t { kSum, kProduct, kMax, kMin, kAnd, kOr };

template <typename T>
T identity_of(int64_t kind) {
  switch (kind) {
    case kProduct:
      return T(1);
    case kAnd:
      if constexpr (std::is_same_v<T, bool>) return true;
      if constexpr (std::is_integral_v<T>) return static_cast<T>(-1);
      return T(1);
    case kMax:
      if constexpr (std::is_floating_point_v<T>) return -std::numeric_limits<T>::infinity();
      if constexpr (std::is_integral_v<T>) return std::numeric_limits<T>::lowest();
      return T(0);
    case kMin:
      if constexpr (std::is_floating_point_v<T>) return std::numeric_limits<T>::infinity();
      if constexpr (std::is_integral_v<T>) return std::numeric_limits<T>::max();
      return T(0);
    default:
      return T(0);
  }
}

template <typename T>
bool is_nan(T value) {
  if constexpr (std::is_floating_point_v<T>) return value != value;
  return false;
}

void check_kind(int64_t kind, DType dtype) {
  NEURON_CHECK(kind >= kSum && kind <= kOr, kInvalid, "reduction kind ", kind);
  NEURON_CHECK((kind != kMax && kind != kMin) || !is_complex(dtype), kUnsupported,
               "complex numbers have no order");
  NEURON_CHECK(kind < kAnd || is_integer(dtype) || dtype == DType::pred, kUnsupported,
               "bitwise reduction of ", name_of(dtype));
}

template <int64_t kind>
struct Combine {
  template <typename A>
  A operator()(A a, A b) const {
    if constexpr (kind == kSum) return plus(a, b);
    if constexpr (kind == kProduct) return times(a, b);
    if constexpr (kind == kMax) return larger(a, b);
    if constexpr (kind == kMin) return smaller(a, b);
    if constexpr (std::is_integral_v<A>) {
      if constexpr (kind == kAnd) return static_cast<A>(a & b);
      if constexpr (kind == kOr) return static_cast<A>(a | b);
    }
    return a;
  }
};

/// Calls body(Combine<kind>{}) of a scan's kind, so that the choice stays outside of loops.
template <typename Body>
void with_combine(int64_t kind, Body&& body) {
  switch (kind) {
    case kSum:
      return body(Combine<kSum>{});
    case kProduct:
      return body(Combine<kProduct>{});
    case kMax:
      return body(Combine<kMax>{});
    default:
      return body(Combine<kMin>{});
  }
}

/// Calls body(T{}, A{}) with the compute type and what totals are kept in.
template <typename Body>
void with_accumulator(DType dtype, int64_t kind, Body&& body) {
  with_compute(dtype, [&](auto tag) {
    using T = decltype(tag);
    if (kind == kSum || kind == kProduct) {
      body(tag, Wide<T>{});
    } else {
      body(tag, tag);
    }
  });
}

// Combines n items in eight lanes, then the lanes: a fixed order, and no chain of dependent adds.
template <typename T, typename A, typename Combine>
A combine_chunk(const T* items, int64_t n, A start, Combine combine) {
  constexpr int64_t kLanes = 8;
  if (n < kLanes) {
    for (int64_t i = 0; i < n; ++i) start = combine(start, convert<A>(items[i]));
    return start;
  }
  A lanes[kLanes];
  for (int64_t k = 0; k < kLanes; ++k) lanes[k] = convert<A>(items[k]);
  int64_t i = kLanes;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) lanes[k] = combine(lanes[k], convert<A>(items[i + k]));
  }
  for (; i < n; ++i) lanes[i % kLanes] = combine(lanes[i % kLanes], convert<A>(items[i]));
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t k = 0; k < width; ++k) lanes[k] = combine(lanes[k], lanes[k + width]);
  }
  return combine(start, lanes[0]);
}

/// The dims of x split into kept and reduced ones.
struct Split {
  Dims kept_sizes, kept_x, kept_y;
  Dims reduced_sizes, reduced_x;
};

Split split_of(const View& x, const View& y, DimsRef dims) {
  Split split;
  const bool keeps_rank = y.rank() == x.rank() && !dims.empty();
  size_t next = 0;
  for (size_t d = 0; d < x.rank(); ++d) {
    if (std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) != dims.end()) {
      split.reduced_sizes.push_back(x.sizes[d]);
      split.reduced_x.push_back(x.strides[d]);
      if (keeps_rank) ++next;
      continue;
    }
    NEURON_CHECK(next < y.rank() && y.sizes[next] == x.sizes[d], kInvalid, "reducing ",
                 to_string(x.dtype, x.sizes), " over ", to_string(dims), " does not give ",
                 to_string(y.sizes));
    split.kept_sizes.push_back(x.sizes[d]);
    split.kept_x.push_back(x.strides[d]);
    split.kept_y.push_back(y.strides[next++]);
  }
  NEURON_CHECK(next == y.rank(), kInvalid, "reducing ", to_string(x.dtype, x.sizes), " over ",
               to_string(dims), " does not give ", to_string(y.sizes));
  return split;
}

int64_t smallest_stride(DimsRef sizes, DimsRef strides) {
  int64_t smallest = std::numeric_limits<int64_t>::max();
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1) smallest = std::min(smallest, strides[d]);
  }
  return smallest;
}

}  // namespace

namespace {

/// What reducing needs of the types, as plain functions, so that the walking code exists once.
/// Totals live in a buffer of kChunk accumulators.
struct ReduceFunctions {
  void (*start)(void* totals, int64_t n);
  /// Combines n elements into one total.
  void (*along)(DType dtype, const std::byte* from, int64_t step, int64_t n, void* total);
  /// Combines element i into total i.
  void (*across)(DType dtype, const std::byte* from, int64_t step, int64_t n, void* totals);
  void (*store)(DType dtype, const void* totals, int64_t n, std::byte* to, int64_t step);
  size_t total_bytes;
};

template <typename T, typename A, int64_t kind>
ReduceFunctions reduce_functions() {
  return {[](void* totals, int64_t n) {
            std::fill_n(static_cast<A*>(totals), n, identity_of<A>(kind));
          },
          [](DType dtype, const std::byte* from, int64_t step, int64_t n, void* total) {
            Chunk<T> line;
            load_chunk<T>(dtype, from, step, n, line.items);
            auto* to = static_cast<A*>(total);
            *to = combine_chunk<T, A>(line.items, n, *to, Combine<kind>{});
          },
          [](DType dtype, const std::byte* from, int64_t step, int64_t n, void* totals) {
            Chunk<T> line;
            load_chunk<T>(dtype, from, step, n, line.items);
            auto* to = static_cast<A*>(totals);
            for (int64_t i = 0; i < n; ++i)
              to[i] = Combine<kind>{}(to[i], convert<A>(line.items[i]));
          },
          [](DType dtype, const void* totals, int64_t n, std::byte* to, int64_t step) {
            Chunk<T> line;
            const auto* from = static_cast<const A*>(totals);
            for (int64_t i = 0; i < n; ++i) line.items[i] = convert<T>(from[i]);
            store_chunk<T>(dtype, line.items, n, to, step);
          },
          sizeof(A)};
}

ReduceFunctions functions_of(DType dtype, int64_t kind) {
  return with_compute(dtype, [&](auto tag) {
    using T = decltype(tag);
    switch (kind) {
      case kSum:
        return reduce_functions<T, Wide<T>, kSum>();
      case kProduct:
        return reduce_functions<T, Wide<T>, kProduct>();
      case kMax:
        return reduce_functions<T, T, kMax>();
      case kMin:
        return reduce_functions<T, T, kMin>();
      case kAnd:
        return reduce_functions<T, T, kAnd>();
      default:
        return reduce_functions<T, T, kOr>();
    }
  });
}

}  // namespace

void run_reduce(const Call& call) {
  const View x = call.input(0), y = call.output();
  const int64_t kind = call.integer(0);
  check_kind(kind, x.dtype);
  NEURON_CHECK(x.dtype == y.dtype, kUnsupported, "reducing ", name_of(x.dtype), " to ",
               name_of(y.dtype));
  const Split split = split_of(x, y, call.ints().subspan(1));
  if (y.count() == 0) return;
  const Rows<2> kept(split.kept_sizes, {DimsRef(split.kept_x), DimsRef(split.kept_y)});
  const Rows<1> reduced(split.reduced_sizes, {DimsRef(split.reduced_x)});
  const int64_t inner = reduced.count() * reduced.length();
  // Whichever is closer together in memory is read along.
  const bool along_reduced = smallest_stride(split.reduced_sizes, split.reduced_x) <=
                             smallest_stride(split.kept_sizes, split.kept_x);
  const int64_t grain =
      std::max<int64_t>(along_reduced ? 1 : kChunk, kCheapGrain / std::max<int64_t>(1, inner));
  const ReduceFunctions f = functions_of(x.dtype, kind);
  const int64_t x_step = kept.row_strides()[0], y_step = kept.row_strides()[1];
  const int64_t row_step = reduced.row_strides()[0];
  kept.parallel(call, grain, [&](const auto& offsets, int64_t, int64_t length) {
    alignas(64) std::byte totals[kChunk * sizeof(std::complex<double>)];
    for (int64_t first = 0; first < length; first += kChunk) {
      const int64_t n = std::min(kChunk, length - first);
      f.start(totals, n);
      const int64_t base = offsets[0] + first * x_step;
      if (along_reduced) {
        for (int64_t i = 0; i < n; ++i) {
          void* total = totals + static_cast<size_t>(i) * f.total_bytes;
          reduced.walk(0, reduced.count(), [&](const auto& at) {
            for (int64_t k = 0; k < reduced.length(); k += kChunk) {
              f.along(x.dtype, x.at(base + i * x_step + at[0] + k * row_step), row_step,
                      std::min(kChunk, reduced.length() - k), total);
            }
          });
        }
      } else {
        reduced.walk(0, reduced.count(), [&](const auto& at) {
          for (int64_t k = 0; k < reduced.length(); ++k) {
            f.across(x.dtype, x.at(base + at[0] + k * row_step), x_step, n, totals);
          }
        });
      }
      f.store(y.dtype, totals, n, y.at(offsets[1] + first * y_step), y_step);
    }
  });
}

void run_scan(const Call& call) {
  const View x = call.input(0), y = call.output();
  const int64_t kind = call.integer(0), dim = call.integer(1);
  check_kind(kind, x.dtype);
  check_same_sizes(x, y, "scan");
  NEURON_CHECK(kind <= kMin && dim >= 0 && dim < static_cast<int64_t>(x.rank()), kInvalid,
               "scan of kind ", kind, " along dim ", dim);
  if (x.count() == 0) return;
  const auto d = static_cast<size_t>(dim);
  const int64_t length = x.sizes[d], x_step = x.strides[d], y_step = y.strides[d];
  Dims outer = x.sizes;
  outer[d] = 1;
  const Rows<2> rows(outer, {DimsRef(x.strides), DimsRef(y.strides)});
  with_accumulator(x.dtype, kind, [&](auto tag, auto wide) {
    using T = decltype(tag);
    using A = decltype(wide);
    with_combine(kind, [&](auto combine) {
      rows.parallel(call, std::max<int64_t>(1, kCheapGrain / 4 / length),
                    [&](const auto& offsets, int64_t, int64_t n) {
                      for (int64_t i = 0; i < n; ++i) {
                        const int64_t from = offsets[0] + i * rows.row_strides()[0];
                        const int64_t to = offsets[1] + i * rows.row_strides()[1];
                        A total = identity_of<A>(kind);
                        Chunk<T> line;
                        for (int64_t k = 0; k < length; k += kChunk) {
                          const int64_t m = std::min(kChunk, length - k);
                          load_chunk<T>(x.dtype, x.at(from + k * x_step), x_step, m, line.items);
                          for (int64_t j = 0; j < m; ++j) {
                            total = combine(total, convert<A>(line.items[j]));
                            line.items[j] = convert<T>(total);
                          }
                          store_chunk<T>(y.dtype, line.items, m, y.at(to + k * y_step), y_step);
                        }
                      }
                    });
    });
  });
}

void run_arg_reduce(const Call& call) {
  const View x = call.input(0), y = call.output();
  const int64_t dim = call.integer(0);
  const bool is_max = call.integer(1) != 0;
  NEURON_CHECK(!is_complex(x.dtype), kUnsupported, "complex numbers have no order");
  NEURON_CHECK(dim >= 0 && dim < static_cast<int64_t>(x.rank()) && y.dtype == DType::i64, kInvalid,
               "dim ", dim, " of rank ", x.rank(), ", result ", name_of(y.dtype));
  const Split split = split_of(x, y, DimsRef(&dim, 1));
  if (y.count() == 0) return;
  const int64_t length = split.reduced_sizes[0], step = split.reduced_x[0];
  NEURON_CHECK(length > 0, kInvalid, "no elements to choose from along dim ", dim);
  const Rows<2> kept(split.kept_sizes, {DimsRef(split.kept_x), DimsRef(split.kept_y)});
  with_compute(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    if constexpr (!kIsComplex<T>) {
      kept.parallel(call, std::max<int64_t>(1, kCheapGrain / 2 / length),
                    [&](const auto& offsets, int64_t, int64_t n) {
                      Chunk<T> line;
                      for (int64_t i = 0; i < n; ++i) {
                        const int64_t base = offsets[0] + i * kept.row_strides()[0];
                        int64_t best = 0;
                        T extreme{};
                        bool done = false;
                        for (int64_t k = 0; k < length && !done; k += kChunk) {
                          const int64_t m = std::min(kChunk, length - k);
                          load_chunk<T>(x.dtype, x.at(base + k * step), step, m, line.items);
                          if (k == 0) {
                            extreme = line.items[0];
                            done = is_nan(extreme);
                          }
                          for (int64_t j = 0; j < m && !done; ++j) {
                            const T value = line.items[j];
                            if (is_nan(value) || (is_max ? value > extreme : value < extreme)) {
                              best = k + j;
                              extreme = value;
                              done = is_nan(value);
                            }
                          }
                        }
                        store_one<int64_t>(DType::i64, best,
                                           y.at(offsets[1] + i * kept.row_strides()[1]));
                      }
                    });
    }
  });
}

namespace {

// Results side by side are worth combining tap by tap from this many on.
constexpr int64_t kMinWindowRow = 4;

// Rows of results: each tap is combined into all of them before the next, so that a result takes
// its taps in row-major order.
void reduce_window_rows(const Call& call, const View& x, const View& y, const ReduceFunctions& f) {
  const size_t rank = x.rank(), last = rank - 1;
  const DimsRef ints = call.ints();
  const DimsRef size = ints.subspan(2, rank), stride = ints.subspan(2 + rank, rank),
                dilation = ints.subspan(2 + 2 * rank, rank), low = ints.subspan(2 + 3 * rank, rank);
  const int64_t width = y.sizes[last], step = stride[last] * x.strides[last];
  call.parallel(
      y.count() / width,
      std::max<int64_t>(1, kCheapGrain / 2 / (width * std::max<int64_t>(1, count_elements(size)))),
      [&](int64_t begin, int64_t end) {
        Dims index(rank, 0), tap(rank, 0), from(rank, 0), to(rank, 0);
        alignas(64) std::byte totals[kChunk * sizeof(std::complex<double>)];
        for (int64_t i = begin; i < end; ++i) {
          int64_t rest = i, target = 0;
          bool any = true;
          for (size_t d = last; d-- > 0;) {
            index[d] = rest % y.sizes[d];
            rest /= y.sizes[d];
            target += index[d] * y.strides[d];
            // Taps that read inside x along this dim.
            const int64_t start = index[d] * stride[d] - low[d], room = x.sizes[d] - start;
            from[d] = start >= 0 ? 0 : (-start + dilation[d] - 1) / dilation[d];
            to[d] = room <= 0 ? 0 : std::min(size[d], (room + dilation[d] - 1) / dilation[d]);
            any = any && from[d] < to[d];
          }
          for (int64_t j = 0; j < width; j += kChunk) {
            const int64_t n = std::min(kChunk, width - j);
            f.start(totals, n);
            for (size_t d = 0; d < last; ++d) tap[d] = from[d];
            for (bool more = any; more;) {
              int64_t base = 0;
              for (size_t d = 0; d < last; ++d) {
                base += (index[d] * stride[d] - low[d] + tap[d] * dilation[d]) * x.strides[d];
              }
              for (int64_t k = 0; k < size[last]; ++k) {
                // Results whose tap k lies in x: 0 <= first + j * stride < its size.
                const int64_t first = k * dilation[last] - low[last];
                const int64_t room = x.sizes[last] - first;
                const int64_t lower =
                    std::max(j, first >= 0 ? 0 : (-first + stride[last] - 1) / stride[last]);
                const int64_t upper =
                    std::min(j + n, room <= 0 ? 0 : (room + stride[last] - 1) / stride[last]);
                if (lower >= upper) continue;
                f.across(x.dtype, x.at(base + first * x.strides[last] + lower * step), step,
                         upper - lower, totals + static_cast<size_t>(lower - j) * f.total_bytes);
              }
              more = false;
              for (size_t d = last; d-- > 0;) {
                if (++tap[d] < to[d]) {
                  more = true;
                  break;
                }
                tap[d] = from[d];
              }
            }
            f.store(y.dtype, totals, n, y.at(target + j * y.strides[last]), y.strides[last]);
          }
        }
      });
}

}  // namespace

void run_reduce_window(const Call& call) {
  const View x = call.input(0), y = call.output();
  const DimsRef ints = call.ints();
  const int64_t kind = call.integer(0);
  const size_t rank = x.rank();
  check_kind(kind, x.dtype);
  NEURON_CHECK(call.integer(1) == static_cast<int64_t>(rank) && ints.size() == 2 + 5 * rank &&
                   y.rank() == rank && x.dtype == y.dtype,
               kInvalid, ints.size(), " integers for rank ", rank, ", ", name_of(x.dtype), " to ",
               name_of(y.dtype));
  const DimsRef size = ints.subspan(2, rank), stride = ints.subspan(2 + rank, rank),
                dilation = ints.subspan(2 + 2 * rank, rank), low = ints.subspan(2 + 3 * rank, rank);
  if (y.count() == 0) return;
  const int64_t taps = std::max<int64_t>(1, count_elements(size));
  const ReduceFunctions f = functions_of(x.dtype, kind);
  if (rank > 0 && y.sizes.back() >= kMinWindowRow && size.back() <= y.sizes.back()) {
    return reduce_window_rows(call, x, y, f);
  }
  call.parallel(
      y.count(), std::max<int64_t>(1, kCheapGrain / 8 / taps), [&](int64_t begin, int64_t end) {
        Dims index(rank, 0), tap(rank, 0), first(rank, 0), last(rank, 0);
        alignas(64) std::byte total[sizeof(std::complex<double>)];
        for (int64_t i = begin; i < end; ++i) {
          int64_t rest = i, to = 0, inside = 1;
          for (size_t d = rank; d-- > 0;) {
            index[d] = rest % y.sizes[d];
            rest /= y.sizes[d];
            to += index[d] * y.strides[d];
            // Taps that read inside x along this dim.
            const int64_t start = index[d] * stride[d] - low[d];
            first[d] = start >= 0 ? 0 : (-start + dilation[d] - 1) / dilation[d];
            const int64_t room = x.sizes[d] - start;
            last[d] = room <= 0 ? 0 : std::min(size[d], (room + dilation[d] - 1) / dilation[d]);
            inside *= std::max<int64_t>(0, last[d] - first[d]);
          }
          f.start(total, 1);
          for (size_t d = 0; d < rank; ++d) tap[d] = first[d];
          for (bool more = inside > 0; more;) {
            // The last dim's taps lie a fixed step apart.
            int64_t at = 0;
            for (size_t d = 0; d < rank; ++d) {
              at += (index[d] * stride[d] - low[d] + tap[d] * dilation[d]) * x.strides[d];
            }
            const int64_t run = rank == 0 ? 1 : last[rank - 1] - first[rank - 1];
            const int64_t step = rank == 0 ? 1 : dilation[rank - 1] * x.strides[rank - 1];
            for (int64_t k = 0; k < run; k += kChunk) {
              f.along(x.dtype, x.at(at + k * step), step, std::min(kChunk, run - k), total);
            }
            more = false;
            for (size_t d = rank == 0 ? 0 : rank - 1; d-- > 0;) {
              if (++tap[d] < last[d]) {
                more = true;
                break;
              }
              tap[d] = first[d];
            }
          }
          f.store(y.dtype, total, 1, y.at(to), 1);
        }
      });
}

}  // namespace neuron::nrtsim
