#include <bit>
#include <numeric>

#include "neuron/nrtsim/builtin_support.h"

// neuron.sort: ints {dim, descending + 2 * any order}; outputs values and i64 indices. Stable; NaN
// is the greatest.
namespace neuron::nrtsim {
namespace {

/// A number whose unsigned order is the order of the values; equal values (both zeros, all NaNs)
/// give equal numbers.
template <typename T>
uint64_t key_of(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    constexpr Bits kSign = Bits(1) << (sizeof(T) * 8 - 1);
    if (value != value) return static_cast<Bits>(~Bits(0));
    const Bits bits = std::bit_cast<Bits>(value == 0 ? T(0) : value);
    return static_cast<Bits>((bits & kSign) != 0 ? ~bits : bits | kSign);
  } else if constexpr (std::is_signed_v<T>) {
    using Bits = std::make_unsigned_t<T>;
    return static_cast<Bits>(static_cast<Bits>(value) ^ (Bits(1) << (sizeof(T) * 8 - 1)));
  } else {
    return static_cast<uint64_t>(value);
  }
}

struct Item {
  uint64_t key;
  int64_t index;
};

/// Sorts by key, then by index. `items` come with rising indices. `scratch` has the same size.
void sort_items(std::vector<Item>& items, std::vector<Item>& scratch) {
  const size_t n = items.size();
  if (n < 512) {
    std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
      return a.key != b.key ? a.key < b.key : a.index < b.index;
    });
    return;
  }
  // Bytes from the lowest up, each pass stable; bytes that are equal everywhere are left out.
  uint64_t all_or = 0, all_and = ~uint64_t{0};
  for (const Item& item : items) {
    all_or |= item.key;
    all_and &= item.key;
  }
  for (int shift = 0; shift < 64; shift += 8) {
    if ((((all_or ^ all_and) >> shift) & 0xFF) == 0) continue;
    size_t starts[257] = {};
    for (const Item& item : items) ++starts[((item.key >> shift) & 0xFF) + 1];
    for (size_t b = 1; b < 257; ++b) starts[b] += starts[b - 1];
    for (const Item& item : items) scratch[starts[(item.key >> shift) & 0xFF]++] = item;
    items.swap(scratch);
  }
}

}  // namespace

void run_sort(const Call& call) {
  const View x = call.input(0), values = call.output(0), indices = call.output(1);
  const int64_t dim = call.integer(0);
  const bool descending = (call.integer(1) & 1) != 0;
  check_same_sizes(x, values, "sort");
  check_same_sizes(x, indices, "sort");
  NEURON_CHECK(!is_complex(x.dtype), kUnsupported, "complex numbers have no order");
  NEURON_CHECK(x.dtype == values.dtype && indices.dtype == DType::i64 && dim >= 0 &&
                   dim < static_cast<int64_t>(x.rank()),
               kInvalid, "sorting ", to_string(x.dtype, x.sizes), " along dim ", dim, " into ",
               name_of(values.dtype), " and ", name_of(indices.dtype));
  if (x.count() == 0) return;
  const auto d = static_cast<size_t>(dim);
  const auto length = static_cast<size_t>(x.sizes[d]);
  Dims outer = x.sizes;
  outer[d] = 1;
  const Rows<3> rows(outer,
                     {DimsRef(x.strides), DimsRef(values.strides), DimsRef(indices.strides)});
  with_stored(x.dtype, [&](auto tag) {
    using S = decltype(tag);
    if constexpr (!kIsComplex<S>) {
      rows.parallel(
          call, std::max<int64_t>(1, 2048 / static_cast<int64_t>(length)),
          [&](const auto& offsets, int64_t, int64_t n) {
            std::vector<Item> items(length), scratch(length);
            std::vector<S> sorted(length);  // The result may lie over x.
            for (int64_t i = 0; i < n; ++i) {
              const auto* from =
                  reinterpret_cast<const S*>(x.at(offsets[0] + i * rows.row_strides()[0]));
              auto* to = reinterpret_cast<S*>(values.at(offsets[1] + i * rows.row_strides()[1]));
              auto* index_to =
                  reinterpret_cast<int64_t*>(indices.at(offsets[2] + i * rows.row_strides()[2]));
              for (size_t k = 0; k < length; ++k) {
                const uint64_t key =
                    key_of<Compute<S>>(load(from[static_cast<int64_t>(k) * x.strides[d]]));
                items[k] = {descending ? ~key : key, static_cast<int64_t>(k)};
              }
              sort_items(items, scratch);
              for (size_t k = 0; k < length; ++k) sorted[k] = from[items[k].index * x.strides[d]];
              for (size_t k = 0; k < length; ++k) {
                to[static_cast<int64_t>(k) * values.strides[d]] = sorted[k];
                index_to[static_cast<int64_t>(k) * indices.strides[d]] = items[k].index;
              }
            }
          });
    }
  });
}

}  // namespace neuron::nrtsim
