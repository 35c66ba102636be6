#include "neuron/hlo/builder.h"
#include "neuron/hlo/evaluate_internal.h"

namespace neuron::hlo::internal {

namespace {

/// Index of the operand's element that becomes result element `index`; -1 for a pad's fill.
int64_t source_of(const Node& node, const Array& x, DimsRef strides, const Dims& index) {
  const size_t rank = x.type.dims.size();
  int64_t offset = 0;
  switch (node.op) {
    case Op::BroadcastInDim:
      for (size_t d = 0; d < rank; ++d) {
        if (x.type.dims[d] != 1) offset += index[static_cast<size_t>(node.ints[d])] * strides[d];
      }
      return offset;
    case Op::Transpose:
      for (size_t d = 0; d < rank; ++d)
        offset += index[d] * strides[static_cast<size_t>(node.ints[d])];
      return offset;
    case Op::Slice:
      for (size_t d = 0; d < rank; ++d) {
        offset += (node.ints[d] + index[d] * node.ints[2 * rank + d]) * strides[d];
      }
      return offset;
    case Op::Pad:
      for (size_t d = 0; d < rank; ++d) {
        const int64_t at = index[d] - node.ints[d];
        const int64_t step = node.ints[2 * rank + d] + 1;
        if (at < 0 || at % step != 0 || at / step >= x.type.dims[d]) return -1;
        offset += at / step * strides[d];
      }
      return offset;
    case Op::Reverse:
      for (size_t d = 0; d < rank; ++d) {
        bool reversed = false;
        for (int64_t dim : node.ints) reversed = reversed || dim == static_cast<int64_t>(d);
        offset += (reversed ? x.type.dims[d] - 1 - index[d] : index[d]) * strides[d];
      }
      return offset;
    case Op::AsStrided:
      return node.ints[0] + offset_of(index, DimsRef(node.ints).subspan(1));
    default:
      break;
  }
  NEURON_ASSERT(false, "not a view: ", name_of(node.op));
}

Array concatenate(const Node& node, Operands operands) {
  Array result = make_array(node.type);
  const Dims strides = contiguous_strides(node.type.dims);
  const auto dim = static_cast<size_t>(node.ints[0]);
  int64_t base = 0;
  for (const Array* part : operands) {
    for_each_index(part->type.dims, [&](const Dims& index, int64_t linear) {
      copy_element(*part, linear, result, offset_of(index, strides) + base * strides[dim]);
    });
    base += part->type.dims[dim];
  }
  return result;
}

/// Splits an index of the gathered shape into the operand's offset. `skip` is set when an index is
/// out of range and `fill` allows it.
class GatherMap {
 public:
  GatherMap(const Node& node, const Array& x, Operands indices, bool fill)
      : node_(node), x_(x), indices_(indices), fill_(fill) {
    strides_ = contiguous_strides(x.type.dims);
    index_strides_ = contiguous_strides(indices[0]->type.dims);
  }

  /// Offset in the operand, or -1.
  int64_t offset(const Dims& index) const {
    const auto position = static_cast<size_t>(node_.ints[0]);
    const DimsRef dims = DimsRef(node_.ints).subspan(2);
    const size_t index_rank = index_strides_.size();
    int64_t at = 0;  // In the index tensors.
    for (size_t d = 0; d < index_rank; ++d) at += index[position + d] * index_strides_[d];
    int64_t offset = 0;
    size_t next = 0;
    for (size_t d = 0; d < strides_.size(); ++d) {
      size_t k = 0;
      while (k < dims.size() && dims[k] != static_cast<int64_t>(d)) ++k;
      if (k < dims.size()) {
        const int64_t i = load_integer(*indices_[k], at);
        if (i < 0 || i >= x_.type.dims[d]) {
          NEURON_CHECK(fill_, kIndex, name_of(node_.op), ": index ", i, " is out of range for dim ",
                       d, " of ", to_string(x_.type));
          return -1;
        }
        offset += i * strides_[d];
      } else {
        if (next == position) next += index_rank;
        offset += index[next++] * strides_[d];
      }
    }
    return offset;
  }

 private:
  const Node& node_;
  const Array& x_;
  Operands indices_;
  bool fill_;
  Dims strides_, index_strides_;
};

Array gather(const Node& node, Operands operands) {
  Array result = make_array(node.type);
  const bool fill = static_cast<OutOfBounds>(node.ints[1]) == OutOfBounds::Fill;
  const GatherMap map(node, *operands[0], operands.subspan(1), fill);
  for_each_index(node.type.dims, [&](const Dims& index, int64_t linear) {
    const int64_t from = map.offset(index);
    if (from >= 0) copy_element(*operands[0], from, result, linear);
  });
  return result;
}

Array scatter(const Node& node, Operands operands) {
  Array result = *operands[0];
  const Array& updates = *operands[1];
  const auto kind = static_cast<ScatterKind>(node.ints[1]);
  const GatherMap map(node, *operands[0], operands.subspan(2), false);
  with_compute_type(node.type.dtype, [&](auto tag) {
    using T = decltype(tag);
    for_each_index(updates.type.dims, [&](const Dims& index, int64_t linear) {
      const int64_t to = map.offset(index);
      const T update = load_at<T>(updates, linear);
      const T old = load_at<T>(result, to);
      switch (kind) {
        case ScatterKind::Set:
          copy_element(updates, linear, result, to);
          break;
        case ScatterKind::Add:
          store_at<T>(result, to, plus(old, update));
          break;
        case ScatterKind::Multiply:
          store_at<T>(result, to, times(old, update));
          break;
        case ScatterKind::Min:
          store_at<T>(result, to, smaller(old, update));
          break;
        case ScatterKind::Max:
          store_at<T>(result, to, larger(old, update));
          break;
      }
    });
  });
  return result;
}

}  // namespace

Array evaluate_view(const Node& node, Operands operands) {
  if (node.op == Op::Concatenate) return concatenate(node, operands);
  const Array& x = *operands[0];
  if (node.op == Op::Reshape) return {node.type, x.bytes};
  Array result = make_array(node.type);
  const Dims strides = contiguous_strides(x.type.dims);
  for_each_index(node.type.dims, [&](const Dims& index, int64_t linear) {
    const int64_t from = source_of(node, x, strides, index);
    if (from >= 0) {
      copy_element(x, from, result, linear);
    } else {
      copy_element(*operands[1], 0, result, linear);
    }
  });
  return result;
}

Array evaluate_indexed(const Node& node, Operands operands) {
  switch (node.op) {
    case Op::Gather:
      return gather(node, operands);
    case Op::Scatter:
      return scatter(node, operands);
    default:
      break;
  }
  Array result = *operands[0];
  const Array& update = *operands[1];
  Dims strides;
  int64_t base = 0;
  if (node.op == Op::AsStridedScatter) {
    base = node.ints[0];
    strides = Dims(DimsRef(node.ints).subspan(1));
  } else {
    strides = contiguous_strides(result.type.dims);
    for (size_t d = 0; d < strides.size(); ++d) {
      const int64_t room = result.type.dims[d] - update.type.dims[d];
      // An unsigned start beyond the signed range is as large as can be.
      int64_t start = load_integer(*operands[2 + d], 0);
      if (start < 0) start = operands[2 + d]->type.dtype == DType::u64 ? room : 0;
      base += std::min(start, room) * strides[d];
    }
  }
  for_each_index(update.type.dims, [&](const Dims& index, int64_t linear) {
    copy_element(update, linear, result, base + offset_of(index, strides));
  });
  return result;
}

}  // namespace neuron::hlo::internal
