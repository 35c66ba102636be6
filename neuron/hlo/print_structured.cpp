// Decompositions of ops that move or combine elements: by StableHLO's gather, scatter, variadic
// reduce, reduce_window and sort; and of random bits.
#include <algorithm>
#include <limits>

#include "neuron/base/error.h"
#include "neuron/hlo/builder.h"
#include "neuron/hlo/print_emitter.h"

namespace neuron::hlo::internal {

namespace {

Ref empty(Emitter& out, const Type& type) { return out.zeros(type); }

/// The index tensors side by side as [S..., k] of i64 (or i32 if they all are).
Ref index_vectors(Emitter& out, std::span<const Ref> indices) {
  const bool all_i32 = std::all_of(indices.begin(), indices.end(),
                                   [](const Ref& i) { return i.type.dtype == DType::i32; });
  Dims dims = indices[0].type.dims;
  dims.push_back(1);
  Refs parts;
  for (const Ref& index : indices) {
    parts.push_back(out.reshape(out.convert(index, all_i32 ? DType::i32 : DType::i64), dims));
  }
  if (parts.size() == 1) return parts[0];
  return out.concatenate(parts, static_cast<int64_t>(dims.size()) - 1);
}

/// Dims of the gathered shape that come from the operand (`position` of them before the indices').
Dims window_dims(int64_t kept, int64_t position, int64_t index_rank) {
  Dims dims;
  for (int64_t i = 0; i < kept; ++i) dims.push_back(i < position ? i : i + index_rank);
  return dims;
}

Dims sorted(DimsRef dims) {
  Dims result(dims);
  std::sort(result.begin(), result.end());
  return result;
}

Ref gather_op(Emitter& out, const Ref& x, const Ref& vectors, DimsRef dims, int64_t position,
              const Type& type) {
  const auto index_rank = static_cast<int64_t>(vectors.type.dims.size()) - 1;
  const auto kept = static_cast<int64_t>(x.type.dims.size() - dims.size());
  Dims sizes = x.type.dims;
  for (int64_t dim : dims) sizes[static_cast<size_t>(dim)] = 1;
  return out.generic("gather", {x, vectors}, type,
                     "dimension_numbers = #stablehlo.gather<offset_dims = " +
                         list_text(window_dims(kept, position, index_rank)) +
                         ", collapsed_slice_dims = " + list_text(sorted(dims)) +
                         ", start_index_map = " + list_text(dims) +
                         ", index_vector_dim = " + std::to_string(index_rank) +
                         ">, indices_are_sorted = false, slice_sizes = " + array_text(sizes));
}

Ref gather(Emitter& out, const Node& node, std::span<const Ref> operands) {
  const Ref& x = operands[0];
  const auto indices = operands.subspan(1);
  const int64_t position = node.ints[0];
  const DimsRef dims = DimsRef(node.ints).subspan(2);
  // Nothing to read, or (with an index out of range) nothing to read from.
  if (count_elements(node.type.dims) == 0 || count_elements(x.type.dims) == 0) {
    return empty(out, node.type);
  }
  const Ref value = gather_op(out, x, index_vectors(out, indices), dims, position, node.type);
  if (static_cast<OutOfBounds>(node.ints[1]) == OutOfBounds::Fail) return value;
  Ref inside;
  for (size_t k = 0; k < dims.size(); ++k) {
    const Ref index = out.convert(indices[k], DType::i64);
    const Ref high =
        out.like(index, static_cast<double>(x.type.dims[static_cast<size_t>(dims[k])]));
    const Ref fits = out.bit_and(out.compare(Direction::GE, index, out.like(index, 0)),
                                 out.compare(Direction::LT, index, high));
    inside = k == 0 ? fits : out.bit_and(inside, fits);
  }
  Dims mapping;
  for (size_t d = 0; d < inside.type.dims.size(); ++d) {
    mapping.push_back(position + static_cast<int64_t>(d));
  }
  inside = out.broadcast(inside, node.type.dims, mapping);
  return out.select(inside, value, out.zeros(node.type));
}

Ref scatter_op(Emitter& out, ScatterKind kind, const Ref& x, const Ref& vectors, const Ref& updates,
               DimsRef dims, int64_t position) {
  const auto index_rank = static_cast<int64_t>(vectors.type.dims.size()) - 1;
  const auto kept = static_cast<int64_t>(x.type.dims.size() - dims.size());
  const Type types[] = {{x.type.dtype, {}}, {x.type.dtype, {}}};
  const std::string region = region_text(out, types, [&](Emitter& inner, const Refs& v) -> Refs {
    switch (kind) {
      case ScatterKind::Set:
        return {v[1]};
      case ScatterKind::Add:
        return {inner.add(v[0], v[1])};
      case ScatterKind::Multiply:
        return {inner.mul(v[0], v[1])};
      case ScatterKind::Min:
        return {inner.same("minimum", {v[0], v[1]})};
      case ScatterKind::Max:
        return {inner.same("maximum", {v[0], v[1]})};
    }
    return {};
  });
  return out.generic(
      "scatter", {x, vectors, updates}, x.type,
      "indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<"
      "update_window_dims = " +
          list_text(window_dims(kept, position, index_rank)) + ", inserted_window_dims = " +
          list_text(sorted(dims)) + ", scatter_dims_to_operand_dims = " + list_text(dims) +
          ", index_vector_dim = " + std::to_string(index_rank) + ">, unique_indices = false",
      region);
}

Ref scatter(Emitter& out, const Node& node, std::span<const Ref> operands) {
  if (count_elements(operands[1].type.dims) == 0) return operands[0];
  return scatter_op(out, static_cast<ScatterKind>(node.ints[1]), operands[0],
                    index_vectors(out, operands.subspan(2)), operands[1],
                    DimsRef(node.ints).subspan(2), node.ints[0]);
}

/// offset + sum(index * stride) for every index of `dims`, as index vectors [dims..., 1].
Ref strided_indices(Emitter& out, DimsRef dims, DimsRef strides, int64_t offset, int64_t flat) {
  const DType dtype = flat <= std::numeric_limits<int32_t>::max() ? DType::i32 : DType::i64;
  const Type type{dtype, Dims(dims)};
  Ref index = out.constant(type, static_cast<double>(offset));
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == 1 || strides[d] == 0) continue;
    const Ref step = out.constant(type, static_cast<double>(strides[d]));
    index = out.add(index, out.mul(out.iota(type, static_cast<int64_t>(d)), step));
  }
  Dims with_vector(dims);
  with_vector.push_back(1);
  return out.reshape(index, with_vector);
}

/// Dims of a strided view that move through memory, outermost first.
struct Nest {
  Dims dims, sizes, strides;
  /// Each stride is a multiple of the next, which its dim does not outgrow: the view is a slice of
  /// a permuted reshape, and needs no gather.
  bool regular = true;
};

Nest nest_of(DimsRef dims, DimsRef strides) {
  Nest nest;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == 1 || strides[d] == 0) continue;
    size_t at = 0;
    while (at < nest.dims.size() && nest.strides[at] >= strides[d]) ++at;
    nest.dims.insert(at, static_cast<int64_t>(d));
    nest.sizes.insert(at, dims[d]);
    nest.strides.insert(at, strides[d]);
  }
  for (size_t i = 1; i < nest.dims.size(); ++i) {
    nest.regular = nest.regular && nest.strides[i - 1] % nest.strides[i] == 0 &&
                   nest.sizes[i] <= nest.strides[i - 1] / nest.strides[i];
  }
  return nest;
}

/// The box of memory that a regular nest is cut from: [size 0, stride 0 / stride 1, ..., stride k].
Dims box_of(const Nest& nest) {
  Dims box{nest.sizes[0]};
  for (size_t i = 1; i < nest.dims.size(); ++i) {
    box.push_back(nest.strides[i - 1] / nest.strides[i]);
  }
  box.push_back(nest.strides.back());
  return box;
}

Ref pad(Emitter& out, const Ref& x, const Ref& fill, DimsRef low, DimsRef high) {
  Type type = x.type;
  for (size_t d = 0; d < low.size(); ++d) type.dims[d] += low[d] + high[d];
  return out.generic("pad", {x, fill}, type,
                     "edge_padding_high = " + array_text(high) +
                         ", edge_padding_low = " + array_text(low) +
                         ", interior_padding = " + array_text(Dims(low.size(), 0)));
}

Ref as_strided(Emitter& out, const Node& node, const Ref& x) {
  const DimsRef dims = node.type.dims, strides = DimsRef(node.ints).subspan(1);
  const int64_t offset = node.ints[0];
  if (count_elements(dims) == 0) return empty(out, node.type);
  const int64_t flat = count_elements(x.type.dims);
  Ref value = out.reshape(x, {{flat}});
  const Nest nest = nest_of(dims, strides);
  if (!nest.regular) {
    const Ref indices = strided_indices(out, dims, strides, offset, flat);
    return gather_op(out, value, indices, {{0}}, 0, node.type);
  }
  Dims sizes;
  if (nest.dims.empty()) {
    if (flat > 1) value = out.slice(value, {{offset}}, {{offset + 1}}, {{1}});
    value = out.reshape(value, {});
  } else {
    const Dims box = box_of(nest);
    const int64_t total = count_elements(box), end = std::min(flat, offset + total);
    if (offset > 0 || end < flat) value = out.slice(value, {{offset}}, {{end}}, {{1}});
    if (end - offset < total) {
      value = pad(out, value, out.zeros({x.type.dtype, {}}), {{0}}, {{total - (end - offset)}});
    }
    Dims cut = nest.sizes;
    cut.push_back(1);
    value = out.reshape(value, box);
    if (box != cut) value = out.slice(value, Dims(cut.size(), 0), cut, Dims(cut.size(), 1));
    value = out.reshape(value, nest.sizes);
  }
  return out.broadcast(value, dims, nest.dims);
}

/// Writes `update` by padding it to x's memory and selecting: no scatter.
Ref regular_scatter(Emitter& out, const Nest& nest, int64_t offset, const Ref& x,
                    const Ref& update) {
  const int64_t flat = count_elements(x.type.dims);
  // Into memory order.
  Dims kept, order;
  for (size_t d = 0; d < update.type.dims.size(); ++d) {
    if (update.type.dims[d] != 1) kept.push_back(update.type.dims[d]);
  }
  Dims ascending = sorted(nest.dims);
  for (int64_t dim : nest.dims) {
    order.push_back(std::find(ascending.begin(), ascending.end(), dim) - ascending.begin());
  }
  const Ref permuted =
      out.generic("transpose", {out.reshape(update, kept)}, {x.type.dtype, nest.sizes},
                  "permutation = " + array_text(order));
  if (offset == 0 && count_elements(nest.sizes) == flat) {
    return out.reshape(permuted, x.type.dims);
  }
  const Dims box = box_of(nest);
  const int64_t total = count_elements(box);
  auto spread = [&](const Ref& values) {
    const Ref fill = out.zeros({values.type.dtype, {}});
    Dims cut = nest.sizes, high;
    cut.push_back(1);
    for (size_t d = 0; d < box.size(); ++d) high.push_back(box[d] - cut[d]);
    Ref all = out.reshape(values, cut);
    all = out.reshape(pad(out, all, fill, Dims(box.size(), 0), high), {{total}});
    // A box may reach beyond the buffer, where it is empty.
    return pad(out, all, fill, {{offset}}, {{flat - offset - total}});
  };
  const Ref inside = spread(out.constant({DType::pred, nest.sizes}, 1));
  const Ref written = out.select(inside, spread(permuted), out.reshape(x, {{flat}}));
  return out.reshape(written, x.type.dims);
}

Ref as_strided_scatter(Emitter& out, const Node& node, const Ref& x, const Ref& update) {
  const DimsRef dims = update.type.dims, strides = DimsRef(node.ints).subspan(1);
  if (count_elements(dims) == 0) return x;
  const Nest nest = nest_of(dims, strides);
  bool repeats = false;  // Several elements go to one place: the last one stays.
  for (size_t d = 0; d < dims.size(); ++d) repeats = repeats || (dims[d] > 1 && strides[d] == 0);
  if (nest.regular && !repeats && !nest.dims.empty()) {
    return regular_scatter(out, nest, node.ints[0], x, update);
  }
  const int64_t flat = count_elements(x.type.dims);
  const Ref indices = strided_indices(out, dims, strides, node.ints[0], flat);
  const Ref written =
      scatter_op(out, ScatterKind::Set, out.reshape(x, {{flat}}), indices, update, {{0}}, 0);
  return out.reshape(written, x.type.dims);
}

Ref arg_reduce(Emitter& out, const Node& node, const Ref& x) {
  const int64_t dim = node.ints[0];
  const bool is_max = node.ints[1] != 0;
  const DType dtype = x.type.dtype;
  const Ref positions = out.iota({DType::i64, x.type.dims}, dim);
  const Ref identity = identity_constant(out, is_max ? ReduceKind::Max : ReduceKind::Min, dtype);
  const Ref zero = out.zeros({DType::i64, {}});
  const Type scalar{dtype, {}}, position{DType::i64, {}};
  const Type arguments[] = {scalar, position, scalar, position};
  // The left one wins if it is more extreme (NaN above all), or equal and earlier. The identity
  // comes with position 0: where it ties, every element is equal to it and 0 is right.
  const std::string region = region_text(out, arguments, [&](Emitter& in, const Refs& v) {
    const Ref &a = v[0], &i = v[1], &b = v[2], &k = v[3];
    const Ref more = in.compare(is_max ? Direction::GT : Direction::LT, a, b);
    const Ref a_nan = in.compare(Direction::NE, a, a);
    const Ref b_nan = in.compare(Direction::NE, b, b);
    const Ref wins = in.bit_or(more, in.bit_and(a_nan, in.same("not", {b_nan})));
    const Ref tie = in.bit_or(in.compare(Direction::EQ, a, b), in.bit_and(a_nan, b_nan));
    const Ref first = in.bit_and(tie, in.compare(Direction::LT, i, k));
    const Ref left = in.bit_or(wins, first);
    return Refs{in.select(left, a, b), in.select(left, i, k)};
  });
  const Type types[] = {{dtype, node.type.dims}, node.type};
  const Ref operands[] = {x, positions, identity, zero};
  return out.generic_multi("reduce", operands, types, "dimensions = " + array_text({{dim}}),
                           region)[1];
}

Ref scan(Emitter& out, const Node& node, const Ref& x) {
  const auto dim = static_cast<size_t>(node.ints[1]);
  const size_t rank = x.type.dims.size();
  if (count_elements(x.type.dims) == 0) return x;
  ReduceKind kind = ReduceKind::Sum;
  switch (static_cast<ScanKind>(node.ints[0])) {
    case ScanKind::Sum:
      kind = ReduceKind::Sum;
      break;
    case ScanKind::Product:
      kind = ReduceKind::Product;
      break;
    case ScanKind::Max:
      kind = ReduceKind::Max;
      break;
    case ScanKind::Min:
      kind = ReduceKind::Min;
      break;
  }
  const bool widen = accumulates_in_f32(kind, x.type.dtype);
  const Ref wide = widen ? out.convert(x, DType::f32) : x;
  const DType dtype = wide.type.dtype;
  const Ref identity = identity_constant(out, kind, dtype);
  // A window as long as the dim that ends at the element.
  Dims size(rank, 1), ones(rank, 1);
  size[dim] = x.type.dims[dim];
  std::string padding;
  for (size_t d = 0; d < rank; ++d) {
    padding += (d > 0 ? ", [" : "[") + std::to_string(size[d] - 1) + ", 0]";
  }
  const std::string attributes =
      "padding = dense<[" + padding + "]> : tensor<" + std::to_string(rank) +
      "x2xi64>, window_dimensions = " + array_text(size) + ", window_strides = " + array_text(ones);
  const std::string region = reducer_text(out, kind, dtype);
  const Ref total = out.generic("reduce_window", {wide, identity}, wide.type, attributes, region);
  return out.convert(total, node.type.dtype);
}

Refs sort(Emitter& out, const Node& node, const Ref& x) {
  const int64_t dim = node.ints[0];
  const bool descending = (node.ints[1] & 1) != 0;
  const Ref positions = out.iota({DType::i64, x.type.dims}, dim);
  const Type scalar{x.type.dtype, {}}, position{DType::i64, {}};
  const Type arguments[] = {scalar, scalar, position, position};
  const bool floating = is_floating(x.type.dtype);
  const std::string region = region_text(out, arguments, [&](Emitter& in, const Refs& v) {
    // In the total order all zeros and all NaNs must be one, and NaN positive.
    auto key = [&](const Ref& a) {
      if (!floating) return a;
      Ref k = size_of(a.type.dtype) == 1 ? in.convert(a, DType::f32) : a;
      k = in.select(in.compare(Direction::EQ, k, in.like(k, 0)), in.like(k, 0), k);
      return in.select(in.compare(Direction::NE, k, k),
                       in.like(k, std::numeric_limits<double>::quiet_NaN()), k);
    };
    const Ref a = key(v[0]), b = key(v[1]);
    return Refs{in.compare(descending ? Direction::GT : Direction::LT, a, b, floating)};
  });
  const Ref operands[] = {x, positions};
  return out.generic_multi("sort", operands, node.results,
                           "dimension = " + std::to_string(dim) + " : i64, is_stable = true",
                           region);
}

// Spelt out in integer arithmetic: the target's compiler has no Philox of its own, and no 64-bit
// constants.
Ref philox_word(Emitter& out, const Node& node, std::span<const Ref> operands) {
  const int64_t count = count_elements(node.type.dims);
  if (count == 0) return empty(out, node.type);
  const Type wide{DType::u64, {count}}, narrow{DType::u32, {count}};
  const Ref shift = out.constant(wide, 32);
  auto low = [&](const Ref& x) { return out.convert(x, DType::u32); };
  auto high = [&](const Ref& x) { return low(out.same("shift_right_logical", {x, shift})); };
  auto bit_xor = [&](const Ref& a, const Ref& b) { return out.same("xor", {a, b}); };

  const Ref counter = out.add(out.broadcast(operands[1], {{count}}, {}), out.iota(wide, 0));
  const Ref seed = out.broadcast(operands[0], {{count}}, {});
  const Ref zero = out.zeros(narrow);
  Ref c[4] = {low(counter), high(counter), zero, zero};
  Ref k0 = low(seed), k1 = high(seed);
  const Ref m0 = out.constant(wide, 0xD2511F53u), m1 = out.constant(wide, 0xCD9E8D57u);
  const Ref w0 = out.constant(narrow, 0x9E3779B9u), w1 = out.constant(narrow, 0xBB67AE85u);
  for (int round = 0; round < 10; ++round) {
    const Ref p0 = out.mul(out.convert(c[0], DType::u64), m0);
    const Ref p1 = out.mul(out.convert(c[2], DType::u64), m1);
    const Ref first = bit_xor(bit_xor(high(p1), c[1]), k0);
    const Ref third = bit_xor(bit_xor(high(p0), c[3]), k1);
    c[0] = first;
    c[1] = low(p1);
    c[2] = third;
    c[3] = low(p0);
    if (round < 9) {
      k0 = out.add(k0, w0);
      k1 = out.add(k1, w1);
    }
  }
  return out.reshape(c[node.ints[0]], node.type.dims);
}

}  // namespace

Refs expand(Emitter& out, const Node& node, std::span<const Ref> operands) {
  switch (node.op) {
    case Op::Gather:
      return {gather(out, node, operands)};
    case Op::Scatter:
      return {scatter(out, node, operands)};
    case Op::AsStrided:
      return {as_strided(out, node, operands[0])};
    case Op::AsStridedScatter:
      return {as_strided_scatter(out, node, operands[0], operands[1])};
    case Op::ArgReduce:
      return {arg_reduce(out, node, operands[0])};
    case Op::Scan:
      return {scan(out, node, operands[0])};
    case Op::Sort:
      return sort(out, node, operands[0]);
    case Op::PhiloxWord:
      return {philox_word(out, node, operands)};
    default:
      return {expand_elementwise(out, node, operands)};
  }
}

std::string composite_name(const Module& module, const Node& node) {
  const std::string name(stablehlo_name(node.op));
  switch (node.op) {
    case Op::Parameter:
    case Op::ScalarParameter:
    case Op::TupleElement:
      return "";
    case Op::Sign:
      return is_floating(node.type.dtype) ? "neuron.sign" : "";
    case Op::Convert:
      return node.type.dtype == DType::f8e4m3fn ? "neuron.convert" : "";
    case Op::Gather:
    case Op::Scatter:
    case Op::Sort:
      return "neuron." + name;
    default:
      return name.starts_with("neuron.") ? name : "";
  }
}

}  // namespace neuron::hlo::internal
