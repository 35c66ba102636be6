#include "neuron/compiler/cpu/index_map.h"

#include <algorithm>

#include "neuron/base/error.h"

namespace neuron::compiler::cpu {

bool Affine::add_term(uint16_t axis_number, int64_t value) {
  if (value == 0) return true;
  int at = 0;
  while (at < count && axis[at] < axis_number) ++at;
  if (at < count && axis[at] == axis_number) {
    coefficient[at] += value;
    if (coefficient[at] == 0) {
      for (int i = at + 1; i < count; ++i) {
        axis[i - 1] = axis[i];
        coefficient[i - 1] = coefficient[i];
      }
      --count;
    }
    return true;
  }
  if (count == kMaxTerms) return false;
  for (int i = count; i > at; --i) {
    axis[i] = axis[i - 1];
    coefficient[i] = coefficient[i - 1];
  }
  axis[at] = axis_number;
  coefficient[at] = value;
  ++count;
  return true;
}

bool Affine::add(const Affine& other, int64_t scale) {
  if (scale == 0) return true;
  offset += other.offset * scale;
  for (int i = 0; i < other.count; ++i) {
    if (!add_term(other.axis[i], other.coefficient[i] * scale)) return false;
  }
  return true;
}

int64_t Affine::of(uint16_t axis_number) const {
  for (int i = 0; i < count; ++i) {
    if (axis[i] == axis_number) return coefficient[i];
  }
  return 0;
}

bool operator==(const Affine& a, const Affine& b) {
  if (a.offset != b.offset || a.count != b.count) return false;
  for (int i = 0; i < a.count; ++i) {
    if (a.axis[i] != b.axis[i] || a.coefficient[i] != b.coefficient[i]) return false;
  }
  return true;
}

bool range_of(const Affine& e, DimsRef extents, int64_t* low, int64_t* high) {
  *low = *high = e.offset;
  for (int i = 0; i < e.count; ++i) {
    if (e.axis[i] >= kFirstVariable) return false;
    const int64_t reach = e.coefficient[i] * (extents[e.axis[i]] - 1);
    (reach < 0 ? *low : *high) += reach;
  }
  return true;
}

namespace {

int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b != 0 && a < 0 ? 1 : 0); }

/// e = quotient * divisor + rest with 0 <= rest < divisor everywhere.
MapStep split(const Affine& e, int64_t divisor, DimsRef extents, Affine* quotient, Affine* rest) {
  using Status = MapStep::Status;
  *quotient = {};
  *rest = {};
  for (int i = 0; i < e.count; ++i) {
    const int64_t c = e.coefficient[i];
    if (c % divisor == 0) {
      if (!quotient->add_term(e.axis[i], c / divisor)) return {Status::Fail};
      continue;
    }
    if (e.axis[i] >= kFirstVariable) return {Status::Fail};
    const int64_t extent = extents[e.axis[i]];
    if (c > 0 && divisor % c == 0) {
      const int64_t factor = divisor / c;
      if (extent > factor && extent % factor == 0) return {Status::Refine, e.axis[i], factor};
    }
    if (!rest->add_term(e.axis[i], c)) return {Status::Fail};
  }
  quotient->offset = floor_divide(e.offset, divisor);
  rest->offset = e.offset - quotient->offset * divisor;
  int64_t low, high;
  if (!range_of(*rest, extents, &low, &high) || low < 0 || high >= divisor) return {Status::Fail};
  return {};
}

}  // namespace

MapStep map_reshape(DimsRef from, DimsRef to, const Affine* map, DimsRef extents, Affine* result) {
  using Status = MapStep::Status;
  size_t f = 0, t = 0;
  while (f < from.size() || t < to.size()) {
    // The shortest runs of dims [f, f1) and [t, t1) with equal products.
    size_t f1 = f, t1 = t;
    int64_t from_product = 1, to_product = 1;
    if (f1 < from.size()) from_product = from[f1++];
    if (t1 < to.size()) to_product = to[t1++];
    while (from_product != to_product) {
      if (from_product < to_product) {
        if (f1 == from.size()) return {Status::Fail};
        from_product *= from[f1++];
      } else {
        if (t1 == to.size()) return {Status::Fail};
        to_product *= to[t1++];
      }
    }
    Affine linear;
    int64_t stride = 1;
    for (size_t i = t1; i-- > t;) {
      if (to[i] != 1 && !linear.add(map[i], stride)) return {Status::Fail};
      stride *= to[i];
    }
    size_t last = f1;  // The slowest dim of the run that is not of size 1.
    for (size_t i = f1; i-- > f;) {
      if (from[i] != 1) last = i;
    }
    for (size_t i = f1; i-- > f;) {
      if (from[i] == 1) {
        result[i] = {};
      } else if (i == last) {
        result[i] = linear;
      } else {
        Affine quotient;
        const MapStep step = split(linear, from[i], extents, &quotient, &result[i]);
        if (step.status != Status::Ok) return step;
        linear = quotient;
      }
    }
    f = f1;
    t = t1;
  }
  return {};
}

MapStep map_view(const hlo::Module& module, const hlo::Node& node, size_t index, const Affine* map,
                 DimsRef extents, SmallVector<Affine, 4>* result) {
  using Status = MapStep::Status;
  const Dims& from = module.node(node.operands[index]).type.dims;
  const size_t rank = from.size();
  result->clear();
  result->resize(rank);
  Affine* out = result->data();
  switch (node.op) {
    case hlo::Op::BroadcastInDim:
      for (size_t i = 0; i < rank; ++i) {
        if (from[i] != 1) out[i] = map[node.ints[i]];
      }
      return {};
    case hlo::Op::Reshape:
      return map_reshape(from, node.type.dims, map, extents, out);
    case hlo::Op::Transpose:
      for (size_t i = 0; i < rank; ++i) out[node.ints[i]] = map[i];
      return {};
    case hlo::Op::Slice:
      for (size_t i = 0; i < rank; ++i) {
        out[i].offset = node.ints[i];
        if (!out[i].add(map[i], node.ints[2 * rank + i])) return {Status::Fail};
      }
      return {};
    case hlo::Op::Reverse:
      for (size_t i = 0; i < rank; ++i) out[i] = map[i];
      for (int64_t d : node.ints) {
        out[d] = {};
        out[d].offset = from[d] - 1;
        if (!out[d].add(map[d], -1)) return {Status::Fail};
      }
      return {};
    case hlo::Op::Pad:
      if (index == 1) return {};
      for (size_t i = 0; i < rank; ++i) {
        if (node.ints[2 * rank + i] != 0 && from[i] > 1) return {Status::Fail};
        out[i] = map[i];
        out[i].offset -= node.ints[i];
      }
      return {};
    case hlo::Op::Concatenate: {
      for (size_t i = 0; i < rank; ++i) out[i] = map[i];
      const auto dim = static_cast<size_t>(node.ints[0]);
      for (size_t k = 0; k < index; ++k) {
        out[dim].offset -= module.node(node.operands[k]).type.dims[dim];
      }
      return {};
    }
    case hlo::Op::AsStrided: {
      result->clear();
      Affine flat;
      flat.offset = node.ints[0];
      for (size_t i = 0; i < node.type.dims.size(); ++i) {
        if (!flat.add(map[i], node.ints[1 + i])) return {Status::Fail};
      }
      result->push_back(flat);
      return {};
    }
    default:
      NEURON_ASSERT(false, "not a view: ", name_of(node.op));
  }
  return {Status::Fail};
}

bool reshape_strides(DimsRef from, DimsRef strides, DimsRef to, Dims* result) {
  if (std::find(to.begin(), to.end(), 0) != to.end()) {  // Nothing is read: any strides do.
    result->clear();
    result->resize(to.size());
    return true;
  }
  // Merge the dims of `from` into runs that one stride walks, then cut the runs into `to`.
  SmallVector<int64_t, 8> run_size, run_stride;
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] == 1) continue;
    if (!run_size.empty() && run_stride.back() == from[i] * strides[i]) {
      run_size.back() *= from[i];
      run_stride.back() = strides[i];
    } else {
      run_size.push_back(from[i]);
      run_stride.push_back(strides[i]);
    }
  }
  result->clear();
  result->resize(to.size());
  size_t run = run_size.size();
  int64_t left = 1, stride = 1;
  for (size_t i = to.size(); i-- > 0;) {
    if (to[i] == 1) {
      (*result)[i] = stride;
      continue;
    }
    if (left == 1) {
      if (run == 0) return false;
      left = run_size[--run];
      stride = run_stride[run];
    }
    if (left % to[i] != 0) return false;
    (*result)[i] = stride;
    stride *= to[i];
    left /= to[i];
  }
  return left == 1 && run == 0;
}

}  // namespace neuron::compiler::cpu
