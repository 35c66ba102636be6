#include <memory>

#include "neuron/nrtsim/builtin_support.h"

// neuron.convolution: inputs [n, c, spatial..] and kernel [o, c / groups, spatial..]. Ints:
// {spatial rank r, stride*r, pad_low*r, pad_high*r, lhs_dilation*r, rhs_dilation*r, groups,
// batch_groups, reverse kernel}.
namespace neuron::nrtsim {
namespace {

struct Window {
  size_t rank = 0;
  DimsRef stride, pad_low, lhs_dilation, rhs_dilation;
  int64_t groups = 1, batch_groups = 1;
  bool reverse = false;

  explicit Window(DimsRef ints) {
    rank = ints.empty() ? 0 : static_cast<size_t>(ints[0]);
    NEURON_CHECK(!ints.empty() && ints[0] >= 0 && ints.size() == 5 * rank + 4, kInvalid,
                 ints.size(), " integers for ", rank, " spatial dims");
    stride = ints.subspan(1, rank);
    pad_low = ints.subspan(1 + rank, rank);
    lhs_dilation = ints.subspan(1 + 3 * rank, rank);
    rhs_dilation = ints.subspan(1 + 4 * rank, rank);
    groups = ints[1 + 5 * rank];
    batch_groups = ints[2 + 5 * rank];
    reverse = ints[3 + 5 * rank] != 0;
  }
};

// Output positions [first, last) along one dim for which a tap reads inside the input, if the input
// is not dilated; position of the input for output o: o * stride + shift.
void valid_range(int64_t outputs, int64_t inputs, int64_t stride, int64_t shift, int64_t& first,
                 int64_t& last) {
  first = shift >= 0 ? 0 : (-shift + stride - 1) / stride;
  const int64_t end = inputs - shift;  // o * stride must be below it.
  last = end <= 0 ? 0 : std::min(outputs, (end + stride - 1) / stride);
  first = std::min(first, last);
}

// One plane of the result, [spatial..] of one batch and output channel, is summed in `sums`: for
// every channel and tap a scaled row of the input is added to each row of the plane.
template <typename T>
class Planes {
 public:
  Planes(const View& x, const View& w, const View& y, const Window& window)
      : x_(x), w_(w), y_(y), window_(window) {
    plane_ = 1;
    taps_ = 1;
    for (size_t d = 0; d < window.rank; ++d) {
      plane_ *= y.sizes[d + 2];
      taps_ *= w.sizes[d + 2];
    }
    width_ = window.rank == 0 ? 1 : y.sizes[window.rank + 1];
  }

  int64_t plane() const { return plane_; }
  int64_t taps() const { return taps_; }

  void run(int64_t batch, int64_t out, T* sums) const {
    std::fill(sums, sums + plane_, T(0));
    const int64_t outs = w_.sizes[0], depth = w_.sizes[1];
    const int64_t group = out / (outs / window_.groups);
    const int64_t source = out / (outs / window_.batch_groups) * y_.sizes[0] + batch;
    const size_t rank = window_.rank;
    Dims tap(rank, 0);
    for (int64_t c = 0; c < depth; ++c) {
      const int64_t base = source * x_.strides[0] + (group * depth + c) * x_.strides[1];
      for (int64_t t = 0; t < taps_; ++t) {
        int64_t rest = t;
        for (size_t d = rank; d-- > 0;) {
          tap[d] = rest % w_.sizes[d + 2];
          rest /= w_.sizes[d + 2];
        }
        int64_t at = out * w_.strides[0] + c * w_.strides[1];
        for (size_t d = 0; d < rank; ++d) {
          at += (window_.reverse ? w_.sizes[d + 2] - 1 - tap[d] : tap[d]) * w_.strides[d + 2];
        }
        add_tap(base, tap, load_one<T>(w_.dtype, w_.at(at)), sums);
      }
    }
  }

 private:
  // Adds weight * input along the last dim, for every combination of the other ones.
  void add_tap(int64_t base, const Dims& tap, T weight, T* sums) const {
    const size_t rank = window_.rank;
    if (rank == 0) {
      sums[0] = plus(sums[0], times(weight, load_one<T>(x_.dtype, x_.at(base))));
      return;
    }
    const size_t last = rank - 1;
    const int64_t rows = plane_ / std::max<int64_t>(width_, 1);
    for (int64_t row = 0; row < rows; ++row) {
      int64_t rest = row, at = base;
      bool inside = true;
      for (size_t d = last; d-- > 0 && inside;) {
        const int64_t o = rest % y_.sizes[d + 2];
        rest /= y_.sizes[d + 2];
        const int64_t i = input_of(d, o, tap[d]);
        inside = i >= 0;
        at += i * x_.strides[d + 2];
      }
      if (inside) add_row(at, tap[last], weight, sums + row * width_);
    }
  }

  // Input position, or -1 if there is none.
  int64_t input_of(size_t d, int64_t o, int64_t tap) const {
    const int64_t position =
        o * window_.stride[d] + tap * window_.rhs_dilation[d] - window_.pad_low[d];
    if (position < 0 || position % window_.lhs_dilation[d] != 0) return -1;
    const int64_t i = position / window_.lhs_dilation[d];
    return i < x_.sizes[d + 2] ? i : -1;
  }

  void add_row(int64_t at, int64_t tap, T weight, T* sums) const {
    const size_t d = window_.rank - 1;
    const int64_t step = x_.strides[d + 2];
    if (window_.lhs_dilation[d] != 1) {
      for (int64_t o = 0; o < width_; ++o) {
        const int64_t i = input_of(d, o, tap);
        if (i < 0) continue;
        sums[o] = plus(sums[o], times(weight, load_one<T>(x_.dtype, x_.at(at + i * step))));
      }
      return;
    }
    const int64_t shift = tap * window_.rhs_dilation[d] - window_.pad_low[d];
    int64_t first, last;
    valid_range(width_, x_.sizes[d + 2], window_.stride[d], shift, first, last);
    Chunk<T> line;
    for (int64_t o = first; o < last; o += kChunk) {
      const int64_t n = std::min(kChunk, last - o);
      load_chunk<T>(x_.dtype, x_.at(at + (o * window_.stride[d] + shift) * step),
                    window_.stride[d] * step, n, line.items);
      for (int64_t i = 0; i < n; ++i) sums[o + i] = plus(sums[o + i], times(weight, line.items[i]));
    }
  }

  const View& x_;
  const View& w_;
  const View& y_;
  const Window& window_;
  int64_t plane_, taps_, width_;
};

}  // namespace

void run_convolution(const Call& call) {
  const View x = call.input(0), w = call.input(1), y = call.output();
  const Window window(call.ints());
  NEURON_CHECK(x.rank() == window.rank + 2 && w.rank() == x.rank() && y.rank() == x.rank() &&
                   x.dtype == w.dtype && window.groups >= 1 && window.batch_groups >= 1 &&
                   w.sizes[0] % window.groups == 0 && w.sizes[0] % window.batch_groups == 0 &&
                   x.sizes[1] == w.sizes[1] * window.groups && y.sizes[1] == w.sizes[0] &&
                   y.sizes[0] * window.batch_groups == x.sizes[0],
               kInvalid, "input ", to_string(x.dtype, x.sizes), " and kernel ",
               to_string(w.dtype, w.sizes), " do not give ", to_string(y.dtype, y.sizes));
  if (y.count() == 0) return;
  with_compute(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const Planes<T> planes(x, w, y, window);
    const int64_t work = std::max<int64_t>(1, planes.plane() * planes.taps() * w.sizes[1]);
    // Strides of a plane of y.
    View plane = y;
    plane.sizes = Dims(y.sizes.begin() + 2, y.sizes.end());
    plane.strides = Dims(y.strides.begin() + 2, y.strides.end());
    const Rows<1> rows(plane.sizes, {DimsRef(plane.strides)});
    call.parallel(y.sizes[0] * y.sizes[1], std::max<int64_t>(1, 50000 / work),
                  [&](int64_t begin, int64_t end) {
                    const auto sums = std::make_unique<T[]>(static_cast<size_t>(planes.plane()));
                    for (int64_t i = begin; i < end; ++i) {
                      const int64_t batch = i / y.sizes[1], out = i % y.sizes[1];
                      planes.run(batch, out, sums.get());
                      const int64_t base = batch * y.strides[0] + out * y.strides[1];
                      int64_t done = 0;
                      rows.walk(0, rows.count(), [&](const auto& offsets) {
                        with_compute(y.dtype, [&](auto result) {
                          using U = decltype(result);
                          Chunk<U> line;
                          for (int64_t o = 0; o < rows.length(); o += kChunk) {
                            const int64_t n = std::min(kChunk, rows.length() - o);
                            for (int64_t k = 0; k < n; ++k) {
                              line.items[k] = convert<U>(sums[static_cast<size_t>(done + o + k)]);
                            }
                            store_chunk<U>(y.dtype, line.items, n,
                                           y.at(base + offsets[0] + o * rows.row_strides()[0]),
                                           rows.row_strides()[0]);
                          }
                        });
                        done += rows.length();
                      });
                    }
                  });
  });
}

}  // namespace neuron::nrtsim
