#include "neuron/lowering/taps.h"

#include <algorithm>

#include "neuron/base/error.h"
#include "neuron/lowering/indices.h"

namespace neuron::lowering {

Taps Taps::pick(int64_t input_size, std::span<const int64_t> sources) {
  Taps taps(input_size, static_cast<int64_t>(sources.size()));
  for (size_t i = 0; i < sources.size(); ++i) taps.add(static_cast<int64_t>(i), sources[i], 1.0);
  return taps;
}

size_t Taps::width() const {
  size_t width = 0;
  for (const auto& list : taps_) width = std::max(width, list.size());
  return width;
}

Taps Taps::transposed() const {
  Taps result(output_size(), input_size_);
  for (size_t i = 0; i < taps_.size(); ++i) {
    for (const Tap& tap : taps_[i]) result.add(tap.source, static_cast<int64_t>(i), tap.weight);
  }
  return result;
}

namespace {

// Above this, one gather of all taps and a reduction beats a gather per tap.
constexpr size_t kUnrolledTaps = 4;

// Per output position (and tap): where to read, how much it counts, whether it exists.
struct Table {
  std::vector<int64_t> sources;
  std::vector<double> weights;
  std::vector<std::byte> present;
  bool all_present = true;
  bool all_ones = true;

  void add(const Taps& taps, int64_t output, size_t k) {
    const auto& list = taps.of(output);
    const bool exists = k < list.size();
    sources.push_back(exists ? list[k].source : 0);
    weights.push_back(exists ? list[k].weight : 0.0);
    present.push_back(std::byte{exists});
    all_present = all_present && exists;
    all_ones = all_ones && (!exists || list[k].weight == 1.0);
  }
};

// A constant over `shape` (the dims of x from `dim` on that the taps replaced), aligned for
// broadcasting against a result of rank `rank`.
Dims aligned(DimsRef shape, int64_t dim, int64_t rank) {
  Dims sizes(static_cast<size_t>(rank), 1);
  for (size_t i = 0; i < shape.size(); ++i) sizes[static_cast<size_t>(dim) + i] = shape[i];
  return sizes;
}

Value read(Builder& b, Value x, int64_t dim, const Table& table, DimsRef shape) {
  const Value index[] = {b.reshape(index_literal(b, table.sources), shape)};
  Value part = b.gather(x, index, Dims{dim}, dim);
  const Dims sizes = aligned(shape, dim, part.rank());
  if (!table.all_ones) {
    part = b.mul(part, b.reshape(float_literal(b, x.dtype(), table.weights), sizes));
  }
  if (!table.all_present) {
    const Value mask = b.literal(DType::pred, sizes, table.present);
    part = b.select(mask, part, b.zeros(x.dtype()));
  }
  return part;
}

}  // namespace

Value apply_taps(Builder& b, Value x, int64_t dim, const Taps& taps) {
  NEURON_ASSERT(x.dim(dim) == taps.input_size(), "taps for ", taps.input_size(),
                " positions on a dim of ", x.dim(dim));
  const int64_t outputs = taps.output_size();
  const size_t width = taps.width();
  if (width == 0) {
    Dims sizes = x.dims();
    sizes[static_cast<size_t>(dim)] = outputs;
    return b.zeros(x.dtype(), sizes);
  }
  if (width <= kUnrolledTaps) {
    Value total;
    for (size_t k = 0; k < width; ++k) {
      Table table;
      for (int64_t i = 0; i < outputs; ++i) table.add(taps, i, k);
      const Value part = read(b, x, dim, table, Dims{outputs});
      total = total.defined() ? b.add(total, part) : part;
    }
    return total;
  }
  Table table;
  for (int64_t i = 0; i < outputs; ++i) {
    for (size_t k = 0; k < width; ++k) table.add(taps, i, k);
  }
  const Value all = read(b, x, dim, table, Dims{outputs, static_cast<int64_t>(width)});
  return b.sum(all, Dims{dim + 1});
}

}  // namespace neuron::lowering
