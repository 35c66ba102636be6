#include <span>

#include "neuron/nrtsim/builtin_support.h"

// neuron.gather: inputs x, indices..; ints {position, mode (0 fail, 1 zero), dims..}.
// neuron.scatter: inputs x, updates, indices..; ints {position, kind, dims..}; kind: set, add,
// multiply, min, max. Updates combine in row-major order, so duplicates are deterministic.
// neuron.dynamic_update_slice: inputs x, update, starts..
// neuron.as_strided_scatter: inputs x, update; ints {offset, strides..}.
namespace neuron::nrtsim {
namespace {

constexpr int64_t kOutside = -1;

/// How gather and scatter split dims: those of x that are indexed, those before and after the place
/// where the index shape stands in the gathered tensor.
struct IndexPlan {
  Dims before_sizes, before_x, before_g;  // g: the gathered (or updates) tensor.
  Dims after_sizes, after_x, after_g;
  Dims index_sizes, index_g;
  /// In x, for each index element in row-major order, or kOutside.
  std::span<int64_t> offsets;

  int64_t before() const { return count_elements(before_sizes); }
  int64_t after() const { return count_elements(after_sizes); }
};

int64_t unravel(int64_t linear, DimsRef sizes, DimsRef strides) {
  int64_t offset = 0;
  for (size_t d = sizes.size(); d-- > 0;) {
    offset += linear % sizes[d] * strides[d];
    linear /= sizes[d];
  }
  return offset;
}

/// Room for as many offsets, kept by the thread while it is not large: fresh pages cost more than
/// what is written there. Valid until the next call.
std::span<int64_t> take_offsets(size_t count) {
  constexpr size_t kMostKept = size_t{1} << 20;
  thread_local std::vector<int64_t> room;
  if (room.size() > kMostKept && count <= kMostKept) std::vector<int64_t>().swap(room);
  if (room.size() < count) room.resize(count);
  return std::span(room).first(count);
}

/// What one step in row-major order moves by, if it is always the same; 0 otherwise.
int64_t linear_step(DimsRef sizes, DimsRef strides) {
  int64_t step = 0, reach = 0;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] == 1) continue;
    if (reach == 0) {
      step = strides[d];
      reach = step;
    }
    if (strides[d] != reach) return 0;
    reach *= sizes[d];
  }
  return step;
}

IndexPlan plan_of(const Call& call, const View& x, const View& g, size_t first_index, bool fail) {
  const DimsRef ints = call.ints();
  NEURON_CHECK(ints.size() >= 2, kInvalid, ints.size(), " integers");
  const DimsRef dims = ints.subspan(2);
  const auto position = static_cast<size_t>(ints[0]);
  NEURON_CHECK(!dims.empty() && call.input_count() == first_index + dims.size(), kInvalid,
               call.input_count(), " inputs for ", dims.size(), " indexed dims");
  IndexPlan plan;
  std::vector<View> indices;
  for (size_t k = 0; k < dims.size(); ++k) {
    indices.push_back(call.input(first_index + k));
    check_same_sizes(indices[k], indices[0], "indices");
    NEURON_CHECK(dims[k] >= 0 && dims[k] < static_cast<int64_t>(x.rank()), kInvalid, "indexed dim ",
                 dims[k], " of rank ", x.rank());
  }
  plan.index_sizes = indices[0].sizes;
  const size_t index_rank = plan.index_sizes.size();
  NEURON_CHECK(g.rank() == x.rank() - dims.size() + index_rank && position + index_rank <= g.rank(),
               kInvalid, to_string(g.dtype, g.sizes), " is not ", to_string(x.dtype, x.sizes),
               " indexed by ", to_string(plan.index_sizes));
  for (size_t d = 0; d < index_rank; ++d) {
    NEURON_CHECK(g.sizes[position + d] == plan.index_sizes[d], kInvalid, "shape ",
                 to_string(g.sizes), " does not hold the indices ", to_string(plan.index_sizes));
    plan.index_g.push_back(g.strides[position + d]);
  }
  size_t next = 0;
  for (size_t d = 0; d < x.rank(); ++d) {
    if (std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) != dims.end()) continue;
    const bool is_after = next >= position;
    const size_t at = next + (is_after ? index_rank : 0);
    NEURON_CHECK(g.sizes[at] == x.sizes[d], kInvalid, "shape ", to_string(g.sizes),
                 " does not fit ", to_string(x.sizes));
    (is_after ? plan.after_sizes : plan.before_sizes).push_back(x.sizes[d]);
    (is_after ? plan.after_x : plan.before_x).push_back(x.strides[d]);
    (is_after ? plan.after_g : plan.before_g).push_back(g.strides[at]);
    ++next;
  }

  const int64_t count = count_elements(plan.index_sizes);
  plan.offsets = take_offsets(static_cast<size_t>(count));
  for (size_t k = 0; k < dims.size(); ++k) {
    const auto dim = static_cast<size_t>(dims[k]);
    const int64_t size = x.sizes[dim], stride = x.strides[dim];
    const Rows<1> rows(indices[k].sizes, {DimsRef(indices[k].strides)});
    int64_t row_number = 0;
    rows.walk(0, rows.count(), [&](const auto& offsets) {
      const int64_t base = row_number++ * rows.length();
      if (indices[k].dtype == DType::i64) {  // As nearly all of them are: without conversion.
        const auto* items = reinterpret_cast<const int64_t*>(indices[k].at(offsets[0]));
        const int64_t step = rows.row_strides()[0];
        int64_t* to = plan.offsets.data() + base;
        for (int64_t i = 0; i < rows.length(); ++i) {
          const int64_t index = items[i * step];
          if (static_cast<uint64_t>(index) >= static_cast<uint64_t>(size)) [[unlikely]] {
            NEURON_CHECK(!fail, kIndex, "index ", index, " is out of range for dim ", dim,
                         " of size ", size);
            to[i] = kOutside;
          } else if (k == 0) {
            to[i] = index * stride;
          } else if (to[i] != kOutside) {
            to[i] += index * stride;
          }
        }
        return;
      }
      with_compute(indices[k].dtype, [&](auto tag) {
        using T = decltype(tag);
        Chunk<T> line;
        for (int64_t i = 0; i < rows.length(); i += kChunk) {
          const int64_t n = std::min(kChunk, rows.length() - i);
          load_chunk<T>(indices[k].dtype, indices[k].at(offsets[0] + i * rows.row_strides()[0]),
                        rows.row_strides()[0], n, line.items);
          for (int64_t j = 0; j < n; ++j) {
            const auto index = convert<int64_t>(line.items[j]);
            int64_t& offset = plan.offsets[static_cast<size_t>(base + i + j)];
            if (index < 0 || index >= size) {
              NEURON_CHECK(!fail, kIndex, "index ", index, " is out of range for dim ", dim,
                           " of size ", size);
              offset = kOutside;
            } else if (k == 0) {
              offset = index * stride;
            } else if (offset != kOutside) {
              offset += index * stride;
            }
          }
        }
      });
    });
  }
  return plan;
}

}  // namespace

void run_gather(const Call& call) {
  const View x = call.input(0), y = call.output();
  NEURON_CHECK(x.dtype == y.dtype, kInvalid, "gather of ", name_of(x.dtype), " into ",
               name_of(y.dtype));
  const bool fail = call.integer(1) == 0;
  if (y.count() == 0) return;
  const IndexPlan plan = plan_of(call, x, y, 1, fail);
  const auto count = static_cast<int64_t>(plan.offsets.size());
  const Rows<2> after(plan.after_sizes, {DimsRef(plan.after_x), DimsRef(plan.after_g)});
  const size_t bytes = x.element_bytes();
  const int64_t work = std::max<int64_t>(1, plan.after());
  const auto [x_step, y_step] = after.row_strides();
  call.parallel(plan.before() * count, std::max<int64_t>(1, kCheapGrain / work / 2),
                [&, x_step = x_step, y_step = y_step](int64_t begin, int64_t end) {
                  for (int64_t i = begin; i < end; ++i) {
                    const int64_t outer = i / count, inner = i % count;
                    const int64_t from = plan.offsets[static_cast<size_t>(inner)];
                    const int64_t x_base = unravel(outer, plan.before_sizes, plan.before_x) + from;
                    const int64_t y_base = unravel(outer, plan.before_sizes, plan.before_g) +
                                           unravel(inner, plan.index_sizes, plan.index_g);
                    after.walk(0, after.count(), [&](const auto& offsets) {
                      const std::byte* source = x.at(x_base + offsets[0]);
                      std::byte* target = y.at(y_base + offsets[1]);
                      const int64_t n = after.length();
                      if (from == kOutside) {
                        for (int64_t k = 0; k < n; ++k) {
                          std::memset(target + k * y_step * static_cast<int64_t>(bytes), 0, bytes);
                        }
                      } else if (n == 1 || (x_step == 1 && y_step == 1)) {
                        std::memcpy(target, source, static_cast<size_t>(n) * bytes);
                      } else {
                        for (int64_t k = 0; k < n; ++k) {
                          std::memcpy(target + k * y_step * static_cast<int64_t>(bytes),
                                      source + k * x_step * static_cast<int64_t>(bytes), bytes);
                        }
                      }
                    });
                  }
                });
}

namespace {

/// Combines rows of n updates, `step` apart, into the places at `offsets`.
template <typename Combine, typename S>
void combine_rows(std::span<const int64_t> offsets, S* to, int64_t step, const S* from, int64_t n,
                  Combine combine) {
  for (size_t j = 0; j < offsets.size(); ++j) {
    S* target = to + offsets[j];
    const S* source = from + static_cast<int64_t>(j) * step;
    for (int64_t k = 0; k < n; ++k) combine(target[k], source[k]);
  }
}

}  // namespace

void run_scatter(const Call& call) {
  const View x = call.input(0), updates = call.input(1), y = call.output();
  NEURON_CHECK(x.dtype == y.dtype && updates.dtype == y.dtype, kInvalid, "scatter of ",
               name_of(updates.dtype), " into ", name_of(x.dtype));
  const int64_t kind = call.integer(1);
  NEURON_CHECK(kind >= 0 && kind <= 4, kInvalid, "scatter kind ", kind);
  NEURON_CHECK(kind < 3 || !is_complex(y.dtype), kUnsupported, "complex numbers have no order");
  // Before anything is written: a wrong index must leave the result as it was.
  const bool none = updates.count() == 0;
  const IndexPlan plan = none ? IndexPlan() : plan_of(call, y, updates, 2, true);
  if (x.data != y.data || x.strides != y.strides) copy_view(call, x, y);
  if (none) return;
  const auto count = static_cast<int64_t>(plan.offsets.size());
  // Only the index dims can hit one place twice: the others are split freely.
  const int64_t after = plan.after();
  const int64_t columns = std::max<int64_t>(1, std::min<int64_t>(after, 64));
  const int64_t index_step = linear_step(plan.index_sizes, plan.index_g);
  const bool is_row = after == 1 || (linear_step(plan.after_sizes, plan.after_x) == 1 &&
                                     linear_step(plan.after_sizes, plan.after_g) == 1);
  const int64_t blocks = (after + columns - 1) / columns;
  with_stored(y.dtype, [&](auto tag) {
    using S = decltype(tag);
    using T = Compute<S>;
    const auto apply = [&](auto combine) {
      call.parallel(plan.before() * blocks,
                    std::max<int64_t>(1, kCheapGrain / 4 / (count * columns)),
                    [&](int64_t begin, int64_t end) {
                      std::vector<int64_t> to(static_cast<size_t>(columns));
                      std::vector<int64_t> from(static_cast<size_t>(columns));
                      for (int64_t i = begin; i < end; ++i) {
                        const int64_t outer = i / blocks, first = i % blocks * columns;
                        const int64_t n = std::min(columns, after - first);
                        const int64_t y_base = unravel(outer, plan.before_sizes, plan.before_x);
                        const int64_t u_base = unravel(outer, plan.before_sizes, plan.before_g);
                        if (is_row && index_step != 0) {
                          S* to_row = reinterpret_cast<S*>(y.at(y_base + first));
                          const S* rows = reinterpret_cast<const S*>(updates.at(u_base + first));
                          if (n == 1) {  // The compiler leaves out the inner loop.
                            combine_rows(plan.offsets, to_row, index_step, rows, 1, combine);
                          } else {
                            combine_rows(plan.offsets, to_row, index_step, rows, n, combine);
                          }
                          continue;
                        }
                        for (int64_t k = 0; k < n; ++k) {
                          to[static_cast<size_t>(k)] =
                              y_base + unravel(first + k, plan.after_sizes, plan.after_x);
                          from[static_cast<size_t>(k)] =
                              u_base + unravel(first + k, plan.after_sizes, plan.after_g);
                        }
                        auto* target = reinterpret_cast<S*>(y.data);
                        const auto* source = reinterpret_cast<const S*>(updates.data);
                        for (int64_t j = 0; j < count; ++j) {
                          const int64_t place = plan.offsets[static_cast<size_t>(j)];
                          const int64_t update = unravel(j, plan.index_sizes, plan.index_g);
                          for (int64_t k = 0; k < n; ++k) {
                            combine(target[place + to[static_cast<size_t>(k)]],
                                    source[update + from[static_cast<size_t>(k)]]);
                          }
                        }
                      }
                    });
    };
    switch (kind) {
      case 0:
        return apply([](S& old, const S& update) { old = update; });
      case 1:
        return apply(
            [](S& old, const S& update) { old = narrow_to<S>(plus<T>(load(old), load(update))); });
      case 2:
        return apply(
            [](S& old, const S& update) { old = narrow_to<S>(times<T>(load(old), load(update))); });
      case 3:
        return apply([](S& old, const S& update) {
          old = narrow_to<S>(smaller<T>(load(old), load(update)));
        });
      default:
        return apply([](S& old, const S& update) {
          old = narrow_to<S>(larger<T>(load(old), load(update)));
        });
    }
  });
}

void run_dynamic_update_slice(const Call& call) {
  const View x = call.input(0), update = call.input(1), y = call.output();
  check_same_sizes(x, y, "dynamic_update_slice");
  NEURON_CHECK(update.rank() == y.rank() && call.input_count() == 2 + y.rank(), kInvalid,
               call.input_count() - 2, " starts for rank ", y.rank());
  if (x.data != y.data || x.strides != y.strides) copy_view(call, x, y);
  View place = y;
  place.sizes = update.sizes;
  int64_t offset = 0;
  for (size_t d = 0; d < y.rank(); ++d) {
    NEURON_CHECK(update.sizes[d] <= y.sizes[d], kInvalid, "update ", to_string(update.sizes),
                 " is larger than ", to_string(y.sizes));
    const View start = call.input(2 + d);
    // Clamped so that the update fits.
    const int64_t at =
        std::clamp<int64_t>(load_integer(start.dtype, start.data), 0, y.sizes[d] - update.sizes[d]);
    offset += at * y.strides[d];
  }
  place.data = y.at(offset);
  copy_view(call, update, place);
}

void run_as_strided_scatter(const Call& call) {
  const View x = call.input(0), update = call.input(1), y = call.output();
  const DimsRef ints = call.ints();
  NEURON_CHECK(ints.size() == update.rank() + 1, kInvalid, ints.size(), " integers for rank ",
               update.rank());
  const Dims strides{ints.subspan(1)};
  if (x.data != y.data || x.strides != y.strides) copy_view(call, x, y);
  if (update.count() == 0) return;
  const int64_t extent = storage_extent(update.sizes, strides);
  NEURON_CHECK(ints[0] >= 0 && ints[0] + extent <= y.count(), kInvalid, "elements ", ints[0],
               " to ", ints[0] + extent, " of ", y.count());
  if (is_contiguous(y.sizes, y.strides) && !may_self_overlap(update.sizes, strides)) {
    View place = y;
    place.sizes = update.sizes;
    place.strides = strides;
    place.data = y.at(ints[0]);
    return copy_view(call, update, place);
  }
  // In row-major order, so that of overlapping elements the last one stays.
  const int64_t count = update.count();
  const size_t bytes = y.element_bytes();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t flat = ints[0] + unravel(i, update.sizes, strides);
    std::memcpy(y.at(unravel(flat, y.sizes, y.strides)),
                update.at(unravel(i, update.sizes, update.strides)), bytes);
  }
}

}  // namespace neuron::nrtsim
