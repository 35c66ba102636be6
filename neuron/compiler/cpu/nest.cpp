#include "neuron/compiler/cpu/nest.h"

#include <algorithm>
#include <cstring>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/work_model.h"

namespace neuron::compiler::cpu {

using hlo::Node;
using hlo::Op;
using neff::BufferRef;

namespace {

bool is_small_float(DType type) {
  return type == DType::bf16 || type == DType::f16 || is_float8(type);
}

bool is_zero(const Node& node) {
  if (node.op != Op::Constant) return false;
  return std::all_of(node.bytes.begin(), node.bytes.end(),
                     [](std::byte b) { return b == std::byte{0}; });
}


constexpr int64_t kLT = static_cast<int64_t>(hlo::Direction::LT);
constexpr int64_t kGE = static_cast<int64_t>(hlo::Direction::GE);

}  // namespace

NestBuilder::NestBuilder(Fusion& fusion) : f_(fusion) {
  memo_head_.assign(fusion.module().size(), -1);
}

PlannedStep NestBuilder::build(uint32_t g) {
  g_ = g;
  step_ = {};
  stmts_.clear();
  level_.clear();
  widened_.clear();
  reductions_.clear();
  stores_.clear();
  for (ValueId v : touched_) memo_head_[v] = -1;
  touched_.clear();
  memo_.clear();
  status_ = 0xFFFF;

  const Group& group = f_.groups()[g];
  for (ValueId v : group.reduces) reductions_.push_back({v});
  step_.rank = group.min_output;
  // Index: expanding maps inside may not move the group, but must not be trusted to keep spans.
  for (size_t i = 0; i < group.outputs.size(); ++i) add_store(f_.groups()[g].outputs[i]);
  order_axes();
  place_statements();
  estimate();
  find_unsafe();
  step_.nest.pointer_count = static_cast<uint16_t>(step_.pointers.size());
  step_.nest.status_pointer = status_;
  return std::move(step_);
}

// --- Statements -------------------------------------------------------------------------------

StmtId NestBuilder::push(Stmt stmt) {
  NEURON_ASSERT(stmts_.size() < kNoStmt, "a nest has too many statements");
  uint16_t level = 0;
  for (StmtId in : stmt.in) level = std::max(level, level_[in]);
  stmts_.push_back(std::move(stmt));
  level_.push_back(level);
  widened_.push_back(kNoStmt);
  return static_cast<StmtId>(stmts_.size() - 1);
}

StmtId NestBuilder::compute(Op op, DType type, std::initializer_list<StmtId> in, int64_t number) {
  Stmt s;
  s.kind = StmtKind::Compute;
  s.op = op;
  s.type = type;
  s.in = in;
  s.number = number;
  return push(std::move(s));
}

StmtId NestBuilder::constant_int(DType type, int64_t value) {
  Stmt s;
  s.kind = StmtKind::Constant;
  s.type = type;
  s.bits[0] = static_cast<uint64_t>(value);
  return push(std::move(s));
}

StmtId NestBuilder::linear(const Affine& e) {
  Stmt s;
  s.kind = StmtKind::Linear;
  s.type = DType::i64;
  s.access.stored = DType::i64;
  s.access.offset = e.offset;
  s.access.stride.resize(f_.groups()[g_].extents.size(), 0);
  for (int t = 0; t < e.count; ++t) {
    if (e.axis[t] < kFirstVariable) s.access.stride[e.axis[t]] = e.coefficient[t];
  }
  return push(std::move(s));
}

StmtId NestBuilder::affine_value(const Affine& e) {
  StmtId sum = linear(e);
  for (int t = 0; t < e.count; ++t) {
    if (e.axis[t] < kFirstVariable) continue;
    const Variable variable = f_.variable(e.axis[t]);
    StmtId index = convert(emit(variable.index, variable.map, kNoStmt), DType::i64);
    if (e.coefficient[t] != 1) {
      index = compute(Op::Multiply, DType::i64,
                      {index, constant_int(DType::i64, e.coefficient[t])});
    }
    sum = compute(Op::Add, DType::i64, {sum, index});
  }
  return sum;
}

StmtId NestBuilder::widen(StmtId s) {
  if (!is_small_float(stmts_[s].type)) return s;
  if (widened_[s] == kNoStmt) {
    const StmtId wide = compute(Op::Convert, DType::f32, {s});
    widened_[s] = wide;
  }
  return widened_[s];
}

StmtId NestBuilder::convert(StmtId s, DType to) {
  const DType from = stmts_[s].type;
  if (from == to) return s;
  if (is_small_float(from)) {
    s = widen(s);
    if (to == DType::f32) return s;
  } else if (is_small_float(to) && from != DType::f32) {
    s = compute(Op::Convert, DType::f32, {s});
  }
  return compute(Op::Convert, to, {s});
}

StmtId NestBuilder::both(StmtId a, StmtId b) {
  if (a == kNoStmt) return b;
  if (b == kNoStmt) return a;
  return compute(Op::And, DType::pred, {a, b});
}

StmtId NestBuilder::in_range(const Affine& e, int64_t size) {
  int64_t low = 0, high = 0;
  const bool known = range_of(e, f_.groups()[g_].extents, &low, &high);
  StmtId mask = kNoStmt;
  StmtId at = kNoStmt;
  if (!known || low < 0) {
    at = affine_value(e);
    mask = compute(Op::Compare, DType::pred, {at, constant_int(DType::i64, 0)}, kGE);
  }
  if (!known || high >= size) {
    if (at == kNoStmt) at = affine_value(e);
    mask = both(mask, compute(Op::Compare, DType::pred, {at, constant_int(DType::i64, size)}, kLT));
  }
  return mask;
}

uint16_t NestBuilder::pointer(BufferRef ref) {
  step_.pointers.push_back(ref);
  return static_cast<uint16_t>(step_.pointers.size() - 1);
}

// --- Values -----------------------------------------------------------------------------------

StmtId NestBuilder::emit(ValueId v, MapId map, StmtId mask) {
  const NodeInfo& info = f_.info(v);
  const bool anywhere = info.made == Made::Free && info.scalar_only;
  if (anywhere) mask = kNoStmt;
  for (int32_t m = memo_head_[v]; m >= 0; m = memo_[m].next) {
    if (memo_[m].mask == mask && (anywhere || f_.equal_maps(memo_[m].map, map))) {
      return memo_[m].stmt;
    }
  }
  const StmtId stmt = emit_new(v, map, mask);
  if (memo_head_[v] < 0) touched_.push_back(v);
  memo_.push_back({map, mask, stmt, memo_head_[v]});
  memo_head_[v] = static_cast<int32_t>(memo_.size() - 1);
  return stmt;
}

StmtId NestBuilder::emit_new(ValueId v, MapId map, StmtId mask) {
  const Node& node = f_.module().node(v);
  const NodeInfo& info = f_.info(v);
  if (info.made == Made::Reduce) {
    for (size_t i = 0; i < reductions_.size(); ++i) {
      if (reductions_[i].node == v) return emit_reduction(i, map);
    }
  }
  if (info.made == Made::Buffer) {
    return load(f_.home(v), v, node.type.dtype, f_.home(v).strides, 0, map, mask);
  }
  if (info.read_direct && !info.stored) {
    const StridedView& view = info.view;
    return load(f_.home(view.base), view.base, node.type.dtype, view.strides, view.offset, map,
                mask);
  }
  // A splat or iota costs less than a load, even where it was stored for a library step.
  if (info.stored && info.made != Made::Free) {
    bool here = false;
    for (const Output& output : f_.groups()[g_].outputs) {
      here = here || (output.value == v && output.place == v && !output.flat);
    }
    if (!here) return load(f_.home(v), v, node.type.dtype, f_.home(v).strides, 0, map, mask);
  }
  switch (node.op) {
    case Op::Constant: {
      Stmt s;
      s.kind = StmtKind::Constant;
      s.type = node.type.dtype;
      std::memcpy(s.bits, node.bytes.data(), std::min(node.bytes.size(), sizeof(s.bits)));
      return push(std::move(s));
    }
    case Op::ScalarParameter: {
      const auto scalars = f_.module().scalars();
      Stmt s;
      s.kind = StmtKind::Scalar;
      s.type = node.type.dtype;
      s.access.stored = node.type.dtype;
      for (size_t slot = 0; slot < scalars.size(); ++slot) {
        if (scalars[slot].value != v) continue;
        s.access.pointer =
            pointer({BufferRef::Kind::Scalars, 0, static_cast<int64_t>(16 * slot)});
      }
      return push(std::move(s));
    }
    case Op::Iota: return emit_iota(node, map);
    case Op::PhiloxWord: return emit_philox(node, map);
    case Op::Gather: return emit_gather(v, map, mask);
    case Op::Pad: return emit_pad(v, map, mask);
    case Op::Concatenate: return emit_concatenate(v, map, mask);
    default: break;
  }
  if (info.made == Made::View) {
    SmallVector<OperandRead, 4> reads;
    const bool ok = f_.expand(v, g_, map, &reads);
    NEURON_ASSERT(ok, "a view cannot be mapped: ", name_of(node.op));
    return emit(reads[0].value, reads[0].map, mask);
  }
  NEURON_ASSERT(info.made == Made::Compute, "cannot compute in a nest: ", name_of(node.op));
  return emit_elementwise(node, map, mask);
}

StmtId NestBuilder::load(const Home& home, uint32_t place, DType stored, DimsRef strides,
                         int64_t offset, MapId map, StmtId mask) {
  NEURON_ASSERT(home.valid, "a value is read that was not stored");
  Stmt s;
  s.kind = StmtKind::Load;
  s.type = stored;
  s.access.stored = stored;
  s.access.stride.resize(f_.groups()[g_].extents.size(), 0);
  SmallVector<uint16_t, 4> variables;
  for (size_t d = 0; d < f_.rank(map); ++d) {
    const Affine& e = f_.map(map)[d];
    offset += strides[d] * e.offset;
    for (int t = 0; t < e.count; ++t) {
      const int64_t stride = strides[d] * e.coefficient[t];
      if (e.axis[t] < kFirstVariable) {
        s.access.stride[e.axis[t]] += stride;
        continue;
      }
      size_t k = 0;
      while (k < variables.size() && variables[k] != e.axis[t]) ++k;
      if (k == variables.size()) {
        variables.push_back(e.axis[t]);
        s.index_stride.push_back(0);
        s.index_extent.push_back(f_.variable(e.axis[t]).extent);
      }
      s.index_stride[k] += stride;
    }
  }
  if (!variables.empty()) {
    s.kind = StmtKind::Gather;
    for (uint16_t axis : variables) {
      const Variable variable = f_.variable(axis);
      s.checked = s.checked || variable.checked;
      s.in.push_back(convert(emit(variable.index, variable.map, mask), DType::i64));
    }
    if (s.checked && status_ == 0xFFFF) status_ = pointer({BufferRef::Kind::Status, 0, 0});
  }
  if (mask != kNoStmt) {
    s.in.push_back(mask);
    s.masked = true;
  }
  s.access.pointer = pointer(
      {home.kind, home.index, home.offset + offset * static_cast<int64_t>(size_of(stored))});
  if (std::find(step_.reads.begin(), step_.reads.end(), place) == step_.reads.end()) {
    step_.reads.push_back(place);
  }
  return push(std::move(s));
}

StmtId NestBuilder::emit_elementwise(const Node& node, MapId map, StmtId mask) {
  SmallVector<StmtId, 4> in;
  for (ValueId operand : node.operands) in.push_back(emit(operand, map, mask));
  const DType type = node.type.dtype;
  Stmt s;
  s.kind = StmtKind::Compute;
  s.op = node.op;
  s.type = type;
  switch (node.op) {
    case Op::Convert: return convert(in[0], type);
    case Op::BitcastConvert:
    case Op::Select: break;
    default:
      for (StmtId& i : in) i = widen(i);
      if (is_small_float(type)) s.type = DType::f32;
      if (node.op == Op::Compare) s.number = node.ints[0];
  }
  s.in = in;
  return convert(push(std::move(s)), type);
}

StmtId NestBuilder::emit_iota(const Node& node, MapId map) {
  return convert(affine_value(f_.map(map)[node.ints[0]]), node.type.dtype);
}

StmtId NestBuilder::emit_philox(const Node& node, MapId map) {
  SmallVector<OperandRead, 4> reads;
  const ValueId self = static_cast<ValueId>(&node - f_.module().nodes().data());
  f_.expand(self, g_, map, &reads);
  // The element's linear index; more terms than an Affine holds, so it is built dense.
  Stmt position;
  position.kind = StmtKind::Linear;
  position.type = DType::i64;
  position.access.stored = DType::i64;
  position.access.stride.resize(f_.groups()[g_].extents.size(), 0);
  const Dims strides = contiguous_strides(node.type.dims);
  StmtId extra = kNoStmt;
  for (size_t d = 0; d < strides.size(); ++d) {
    const Affine e = f_.map(map)[d];
    if (e.has_variable()) {
      const StmtId term = compute(Op::Multiply, DType::i64,
                                  {affine_value(e), constant_int(DType::i64, strides[d])});
      extra = extra == kNoStmt ? term : compute(Op::Add, DType::i64, {extra, term});
      continue;
    }
    position.access.offset += strides[d] * e.offset;
    for (int t = 0; t < e.count; ++t) {
      position.access.stride[e.axis[t]] += strides[d] * e.coefficient[t];
    }
  }
  StmtId index = push(std::move(position));
  if (extra != kNoStmt) index = compute(Op::Add, DType::i64, {index, extra});
  const StmtId key = emit(reads[0].value, reads[0].map, kNoStmt);
  const StmtId offset = emit(reads[1].value, reads[1].map, kNoStmt);
  const StmtId counter =
      compute(Op::Add, DType::u64, {offset, convert(index, DType::u64)});
  Stmt s;
  s.kind = StmtKind::Philox;
  s.type = DType::u32;
  s.number = node.ints[0];
  s.in = {key, counter};
  return push(std::move(s));
}

StmtId NestBuilder::emit_gather(ValueId v, MapId map, StmtId mask) {
  const Node& node = f_.module().node(v);
  SmallVector<OperandRead, 4> reads;
  f_.expand(v, g_, map, &reads);
  StmtId value = emit(reads[0].value, reads[0].map, mask);
  const bool fill = static_cast<hlo::OutOfBounds>(node.ints[1]) == hlo::OutOfBounds::Fill;
  const Stmt& s = stmts_[value];
  if (!fill || s.kind == StmtKind::Gather) return value;
  const Dims& from = f_.module().node(node.operands[0]).type.dims;
  StmtId inside = kNoStmt;
  for (size_t k = 1; k < reads.size(); ++k) {
    const StmtId index = convert(emit(reads[k].value, reads[k].map, mask), DType::i64);
    const int64_t extent = from[static_cast<size_t>(node.ints[1 + k])];
    inside = both(inside, compute(Op::Compare, DType::pred,
                                  {index, constant_int(DType::i64, 0)}, kGE));
    inside = both(inside, compute(Op::Compare, DType::pred,
                                  {index, constant_int(DType::i64, extent)}, kLT));
  }
  const DType type = node.type.dtype;
  return compute(Op::Select, type, {inside, value, constant_int(type, 0)});
}

StmtId NestBuilder::emit_pad(ValueId v, MapId map, StmtId mask) {
  const Node& node = f_.module().node(v);
  const Node& fill = f_.module().node(node.operands[1]);
  SmallVector<OperandRead, 4> reads;
  const bool ok = f_.expand(v, g_, map, &reads);
  NEURON_ASSERT(ok, "a pad cannot be mapped");
  const Dims& from = f_.module().node(node.operands[0]).type.dims;
  if (count_elements(from) == 0) return emit(reads[1].value, reads[1].map, kNoStmt);
  StmtId inside = kNoStmt;
  for (size_t d = 0; d < from.size(); ++d) {
    const Affine e = f_.map(reads[0].map)[d];
    // A dim of size 1 with gaps was given a constant map; the gaps count as padding.
    Affine seen = e;
    if (from[d] == 1) {
      seen = f_.map(map)[d];
      seen.offset -= node.ints[d];
    }
    inside = both(inside, in_range(seen, from[d]));
  }
  if (inside == kNoStmt) return emit(reads[0].value, reads[0].map, mask);
  const StmtId both_masks = both(mask, inside);
  const StmtId value = emit(reads[0].value, reads[0].map, both_masks);
  const StmtKind kind = stmts_[value].kind;
  if (is_zero(fill) && (kind == StmtKind::Load || kind == StmtKind::Gather) &&
      stmts_[value].masked) {
    return value;
  }
  const StmtId outside = emit(reads[1].value, reads[1].map, kNoStmt);
  return compute(Op::Select, node.type.dtype, {inside, value, outside});
}

StmtId NestBuilder::emit_concatenate(ValueId v, MapId map, StmtId mask) {
  const Node& node = f_.module().node(v);
  SmallVector<OperandRead, 4> reads;
  const bool ok = f_.expand(v, g_, map, &reads);
  NEURON_ASSERT(ok, "a concatenation cannot be mapped");
  const auto dim = static_cast<size_t>(node.ints[0]);
  const Affine at = f_.map(map)[dim];
  int64_t low = 0, high = node.type.dims[dim] - 1;
  const bool known = range_of(at, f_.groups()[g_].extents, &low, &high);
  StmtId value = kNoStmt;
  int64_t begin = 0;
  // Later pieces are chosen over earlier ones where at >= their begin.
  for (const OperandRead& r : reads) {
    const int64_t size = f_.module().node(r.value).type.dims[dim];
    const int64_t end = begin + size;
    if (size == 0 || (known && (end <= low || begin > high))) {
      begin = end;
      continue;
    }
    Affine own = at;
    own.offset -= begin;
    const StmtId inside = in_range(own, size);
    const StmtId piece = emit(r.value, r.map, both(mask, inside));
    if (value == kNoStmt) {
      value = piece;
    } else {
      const StmtId from_here =
          compute(Op::Compare, DType::pred,
                  {affine_value(own), constant_int(DType::i64, 0)}, kGE);
      value = compute(Op::Select, node.type.dtype, {from_here, piece, value});
    }
    begin = end;
  }
  // Under a mask that is never on.
  return value != kNoStmt ? value : constant_int(node.type.dtype, 0);
}

StmtId NestBuilder::emit_reduction(size_t index, MapId at) {
  const ValueId v = reductions_[index].node;
  const Node& node = f_.module().node(v);
  if (reductions_[index].done) {
    // Under a mask, say.
    NEURON_ASSERT(f_.equal_maps(reductions_[index].map, at), "a reduction is read at two maps");
    return reductions_[index].result;
  }
  const StmtId value = widen(emit(node.operands[0], f_.reduction_map(g_, v, at), kNoStmt));
  Reduction& reduction = reductions_[index];
  reduction.done = true;
  reduction.map = at;
  reduction.value = value;
  reduction.sweep = level_[value];
  Stmt s;
  s.kind = StmtKind::Reduced;
  s.type = node.op == Op::ArgReduce ? DType::i64 : stmts_[value].type;
  s.number = static_cast<int64_t>(index);
  const StmtId result = push(std::move(s));
  level_[result] = static_cast<uint16_t>(reduction.sweep + 1);
  const StmtId narrow = convert(result, node.type.dtype);
  reductions_[index].result = narrow;
  return narrow;
}

void NestBuilder::add_store(const Output& output) {
  const StmtId value = emit(output.value, output.map, kNoStmt);
  const Group& group = f_.groups()[g_];
  const Home& home = f_.home(output.place);
  NEURON_ASSERT(home.valid, "an output has no place");
  const DType type = f_.module().node(output.value).type.dtype;
  PendingStore store;
  store.value = value;
  store.access.stored = type;
  store.access.stride.resize(group.extents.size(), 0);
  const Dims flat =
      output.flat ? contiguous_strides(f_.module().node(output.value).type.dims) : Dims{};
  const Dims& strides = output.flat ? flat : home.strides;
  int64_t offset = 0;
  for (size_t d = 0; d < f_.rank(output.place_map); ++d) {
    const Affine& e = f_.map(output.place_map)[d];
    offset += strides[d] * e.offset;
    for (int t = 0; t < e.count; ++t) {
      store.access.stride[e.axis[t]] += strides[d] * e.coefficient[t];
    }
  }
  store.row_level = group.kind != GroupKind::Pointwise;
  for (size_t d = 0; d < f_.rank(output.place_map); ++d) {
    for (uint16_t i = 0; i < group.axis_count; ++i) {
      if (f_.map(output.place_map)[d].of(static_cast<uint16_t>(group.axis + i)) != 0) {
        store.row_level = false;
      }
    }
  }
  store.access.pointer = pointer(
      {home.kind, home.index, home.offset + offset * static_cast<int64_t>(size_of(type))});
  store.aliased = home.kind == BufferRef::Kind::Result &&
                  f_.module().results()[home.index].alias >= 0;
  if (std::find(step_.writes.begin(), step_.writes.end(), output.place) == step_.writes.end()) {
    step_.writes.push_back(output.place);
  }
  stores_.push_back(std::move(store));
}

// --- The nest ---------------------------------------------------------------------------------

namespace {

/// Whether the statement has an address or index that moves with the axes.
bool has_access(const Stmt& s) {
  return s.kind == StmtKind::Load || s.kind == StmtKind::Gather || s.kind == StmtKind::Linear;
}

}  // namespace

void NestBuilder::order_axes() {
  const Group& group = f_.groups()[g_];
  order_axes(group.extents, group.kind, group.axis, group.axis_count);
}

void NestBuilder::order_axes(SmallVector<int64_t, 8> extents, GroupKind kind, uint16_t first,
                             uint16_t count) {
  SmallVector<Access*, 32> accesses;  // Stores first: they decide the order.
  for (PendingStore& s : stores_) {
    if (!s.row_level) accesses.push_back(&s.access);
  }
  for (PendingStore& s : stores_) {
    if (s.row_level) accesses.push_back(&s.access);
  }
  for (Stmt& s : stmts_) {
    if (has_access(s)) accesses.push_back(&s.access);
  }
  SmallVector<uint16_t, 8> kept, reduced;
  for (size_t a = 0; a < extents.size(); ++a) {
    if (extents[a] == 1) continue;
    const bool inside = kind != GroupKind::Pointwise && a >= first && a < size_t{first} + count;
    (inside ? reduced : kept).push_back(static_cast<uint16_t>(a));
  }
  if (kind != GroupKind::Pointwise && reduced.empty()) reduced.push_back(first);
  auto slower = [&](uint16_t a, uint16_t b) {
    for (const Access* access : accesses) {
      const int64_t x = std::abs(access->stride[a]), y = std::abs(access->stride[b]);
      if (x != y) return x > y;
    }
    return a < b;
  };
  for (size_t i = 1; i < kept.size(); ++i) {
    for (size_t k = i; k > 0 && slower(kept[k], kept[k - 1]); --k) {
      std::swap(kept[k], kept[k - 1]);
    }
  }
  auto collapse = [&](SmallVector<uint16_t, 8>& axes) {
    for (size_t i = axes.size(); i-- > 1;) {
      const uint16_t outer = axes[i - 1], inner = axes[i];
      bool joins = true;
      for (const Access* access : accesses) {
        joins = joins && access->stride[outer] == access->stride[inner] * extents[inner];
      }
      if (!joins) continue;
      extents[inner] *= extents[outer];
      axes.erase(i - 1);
    }
  };
  collapse(kept);
  collapse(reduced);
  // Axis numbers in nest order; 0xFFFF: an axis of extent 1 that stands for the row.
  constexpr uint16_t kUnitRow = 0xFFFF;
  SmallVector<uint16_t, 8> order;
  LoopNest& nest = step_.nest;
  if (kind == GroupKind::Row) {
    order = kept;
    order.append(reduced.begin(), reduced.end());
    nest.reduced_axes = static_cast<uint8_t>(reduced.size() - 1);
  } else {
    const uint16_t last = kept.empty() ? kUnitRow : kept.back();
    for (size_t i = 0; i + 1 < kept.size(); ++i) order.push_back(kept[i]);
    if (kind == GroupKind::Column) {
      order.append(reduced.begin(), reduced.end());
      nest.column_reduce = true;
      nest.reduced_axes = static_cast<uint8_t>(reduced.size());
    }
    order.push_back(last);
  }
  for (size_t i = 0; i + 1 < order.size(); ++i) nest.outer.push_back(extents[order[i]]);
  nest.row = order.back() == kUnitRow ? 1 : extents[order.back()];
  for (Access* access : accesses) {
    SmallVector<int64_t, 6> strides;
    for (uint16_t a : order) {
      const int64_t stride = a == kUnitRow ? 1 : access->stride[a];
      strides.push_back(stride);
      access->kind.push_back(stride == 0   ? Stride::Zero
                             : stride == 1 ? Stride::Unit
                                           : Stride::Other);
    }
    access->stride = strides;
  }
  if (order.back() == kUnitRow) {
    // A value of the axis, not an address: it must stay put.
    for (Stmt& s : stmts_) {
      if (s.kind != StmtKind::Linear) continue;
      s.access.stride.back() = 0;
      s.access.kind.back() = Stride::Zero;
    }
  }
}

PlannedStep NestBuilder::build_copy(DType type, DimsRef dims, DimsRef from_strides,
                                    neff::BufferRef from, DimsRef to_strides, neff::BufferRef to) {
  step_ = {};
  stmts_.clear();
  level_.clear();
  widened_.clear();
  reductions_.clear();
  stores_.clear();
  status_ = 0xFFFF;
  Stmt s;
  s.kind = StmtKind::Load;
  s.type = type;
  s.access.stored = type;
  s.access.stride.append(from_strides.begin(), from_strides.end());
  s.access.pointer = pointer(from);
  PendingStore store{};
  store.value = push(std::move(s));
  store.access.stored = type;
  store.access.stride.append(to_strides.begin(), to_strides.end());
  store.access.pointer = pointer(to);
  stores_.push_back(std::move(store));
  order_axes(SmallVector<int64_t, 8>(dims.begin(), dims.end()), GroupKind::Pointwise, 0, 0);
  place_statements();
  estimate();
  step_.nest.pointer_count = 2;
  return std::move(step_);
}

void NestBuilder::place_statements() {
  LoopNest& nest = step_.nest;
  constexpr uint16_t kUnplaced = 0xFFFF;
  uint16_t sweeps = 1;
  for (const Reduction& r : reductions_) {
    sweeps = std::max<uint16_t>(sweeps, static_cast<uint16_t>(r.sweep + 1));
  }
  for (PendingStore& s : stores_) {
    s.sweep = level_[s.value];
    if (!s.row_level) sweeps = std::max<uint16_t>(sweeps, static_cast<uint16_t>(s.sweep + 1));
  }
  SmallVector<uint16_t, 64> at(stmts_.size(), kUnplaced);
  for (const Reduction& r : reductions_) {
    if (r.done) at[r.value] = std::min(at[r.value], r.sweep);
  }
  for (PendingStore& s : stores_) {
    if (s.row_level) continue;
    // In place: later sweeps must not find the row overwritten.
    if (s.aliased) s.sweep = static_cast<uint16_t>(sweeps - 1);
    at[s.value] = std::min(at[s.value], s.sweep);
  }
  for (size_t i = stmts_.size(); i-- > 0;) {
    if (at[i] == kUnplaced) continue;
    for (StmtId in : stmts_[i].in) at[in] = std::min(at[in], at[i]);
  }
  keep_rows(sweeps, at);
  // Numbers of reductions follow the sweeps.
  SmallVector<uint16_t, 16> reduce_number(reductions_.size());
  nest.sweeps.resize(sweeps);
  uint16_t next_reduce = 0;
  for (uint16_t k = 0; k < sweeps; ++k) {
    for (size_t r = 0; r < reductions_.size(); ++r) {
      if (reductions_[r].done && reductions_[r].sweep == k) reduce_number[r] = next_reduce++;
    }
  }
  for (Stmt& s : stmts_) {
    if (s.kind == StmtKind::Reduced) s.number = reduce_number[static_cast<size_t>(s.number)];
  }
  SmallVector<StmtId, 64> renamed(stmts_.size(), kNoStmt);
  StmtId next = 0;
  for (uint16_t k = 0; k < sweeps; ++k) {
    Sweep& sweep = nest.sweeps[k];
    for (const KeptRow& kept : kept_rows_) {
      // Reading the row back stands for the statement from here on.
      if (kept.from >= k || kept.last < k) continue;
      Stmt s;
      s.kind = StmtKind::Buffered;
      s.type = stmts_[kept.value].type;
      s.number = kept.renamed;
      s.access = stores_[kept.store].access;
      renamed[kept.value] = next++;
      sweep.body.push_back(std::move(s));
    }
    for (size_t i = 0; i < stmts_.size(); ++i) {
      if (at[i] != k) continue;
      renamed[i] = next++;
      sweep.body.push_back(stmts_[i]);
      for (StmtId& in : sweep.body.back().in) in = renamed[in];
    }
    for (KeptRow& kept : kept_rows_) {
      if (kept.from != k) continue;
      kept.renamed = renamed[kept.value];
      if (stores_[kept.store].value != kept.value) {
        sweep.stores.push_back({renamed[kept.value], stores_[kept.store].access, kNoStmt});
      }
    }
    for (size_t r = 0; r < reductions_.size(); ++r) {
      const Reduction& from = reductions_[r];
      if (!from.done || from.sweep != k) continue;
      const Node& node = f_.module().node(from.node);
      RowReduce reduce;
      reduce.value = renamed[from.value];
      reduce.accumulate = stmts_[from.value].type;
      if (node.op == Op::ArgReduce) {
        reduce.arg = true;
        reduce.kind = node.ints[1] != 0 ? hlo::ReduceKind::Max : hlo::ReduceKind::Min;
      } else {
        reduce.kind = static_cast<hlo::ReduceKind>(node.ints[0]);
      }
      sweep.reduces.push_back(reduce);
    }
    for (const PendingStore& s : stores_) {
      if (!s.row_level && s.sweep == k) {
        sweep.stores.push_back({renamed[s.value], s.access, kNoStmt});
      }
    }
  }
  for (const PendingStore& s : stores_) {
    if (!s.row_level) continue;
    RowStore store;
    store.access = s.access;
    const Stmt& top = stmts_[s.value];
    if (top.kind == StmtKind::Reduced) {
      store.reduce = static_cast<uint16_t>(top.number);
      nest.row_stores.push_back(std::move(store));
      continue;
    }
    SmallVector<uint8_t, 64> needed(stmts_.size());
    needed[s.value] = 1;
    for (size_t i = s.value + 1u; i-- > 0;) {
      if (needed[i] == 0) continue;
      for (StmtId in : stmts_[i].in) needed[in] = 1;
    }
    SmallVector<StmtId, 64> own(stmts_.size(), kNoStmt);
    for (size_t i = 0; i <= s.value; ++i) {
      if (needed[i] == 0) continue;
      own[i] = next++;
      store.epilogue.push_back(stmts_[i]);
      if (stmts_[i].kind == StmtKind::Reduced) {
        store.reduce = static_cast<uint16_t>(stmts_[i].number);
      }
      for (StmtId& in : store.epilogue.back().in) in = own[in];
    }
    store.value = own[s.value];
    nest.row_stores.push_back(std::move(store));
  }
}

// A dear value that a later sweep needs again waits in the row of an output, which is still in the
// cache then; everything else is computed again.
void NestBuilder::keep_rows(uint16_t sweeps, std::span<const uint16_t> at) {
  kept_rows_.clear();
  if (sweeps < 2) return;
  const size_t n = stmts_.size();
  constexpr uint16_t kUnplaced = 0xFFFF;
  // Last sweep that names each statement, and what computing it again would cost.
  SmallVector<uint16_t, 64> last(n, 0);
  SmallVector<uint8_t, 64> varies(n, 0);
  SmallVector<int32_t, 64> cost(n, 0);
  hlo::Node node;
  for (size_t i = 0; i < n; ++i) {
    const Stmt& s = stmts_[i];
    bool vary = has_access(s) && s.access.stride.back() != 0;
    if (step_.nest.column_reduce) vary = true;
    int32_t sum = 1;
    if (s.kind == StmtKind::Compute) {
      node.op = s.op;
      node.type.dtype = s.type;
      sum = static_cast<int32_t>(op_cost(node));
    } else if (s.kind == StmtKind::Philox) {
      sum = 24;
    } else if (s.kind == StmtKind::Gather) {
      sum = 10;
    }
    for (StmtId in : s.in) {
      vary = vary || varies[in] != 0;
      if (varies[in] != 0) sum += cost[in];
      if (at[i] != kUnplaced) last[in] = std::max(last[in], at[i]);
    }
    varies[i] = vary ? 1 : 0;
    cost[i] = std::min(sum, 10000);
  }
  for (const Reduction& r : reductions_) {
    if (r.done) last[r.value] = std::max(last[r.value], r.sweep);
  }
  for (const PendingStore& s : stores_) {
    if (!s.row_level) last[s.value] = std::max(last[s.value], s.sweep);
  }
  // Last sweep that may compute it again for the sake of what is computed from it.
  SmallVector<uint16_t, 64> reach = last;
  for (size_t i = n; i-- > 0;) {
    if (at[i] == kUnplaced || varies[i] == 0) continue;
    for (StmtId in : stmts_[i].in) reach[in] = std::max(reach[in], reach[i]);
  }
  constexpr int32_t kDear = 8;
  auto keep = [&](StmtId id, size_t store) {
    kept_rows_.push_back({id, static_cast<uint16_t>(store), at[id], last[id], kNoStmt});
  };
  // A value stored early is read back from its own row.
  SmallVector<uint8_t, 16> used(stores_.size(), 0);
  for (size_t o = 0; o < stores_.size(); ++o) {
    const PendingStore& store = stores_[o];
    const StmtId id = store.value;
    if (store.row_level || store.aliased || at[id] != store.sweep || last[id] <= at[id] ||
        cost[id] < kDear / 2 || varies[id] == 0 ||
        stmts_[id].type != store.access.stored) {
      continue;
    }
    bool taken = false;
    for (const KeptRow& other : kept_rows_) taken = taken || other.value == id;
    used[o] = 1;
    if (!taken) keep(id, o);
  }
  // Others wait in the row of an output that is written later.
  for (size_t o = 0; o < stores_.size(); ++o) {
    const PendingStore& store = stores_[o];
    if (store.row_level || store.aliased || used[o] != 0) continue;
    StmtId best = kNoStmt;
    for (size_t i = 0; i < n; ++i) {
      const auto id = static_cast<StmtId>(i);
      if (at[i] == kUnplaced || at[i] >= store.sweep || last[i] <= at[i] ||
          reach[i] > store.sweep || cost[i] < kDear || varies[i] == 0 ||
          stmts_[i].type != store.access.stored) {
        continue;
      }
      bool taken = false;
      for (const KeptRow& other : kept_rows_) taken = taken || other.value == id;
      if (!taken && (best == kNoStmt || cost[i] >= cost[best])) best = id;
    }
    if (best != kNoStmt) keep(best, o);
  }
}

void NestBuilder::find_unsafe() {
  for (const PendingStore& store : stores_) {
    if (!store.aliased) continue;
    const BufferRef to = step_.pointers[store.access.pointer];
    const auto parameter =
        static_cast<uint32_t>(f_.module().results()[to.index].alias);
    for (const Stmt& s : stmts_) {
      if (s.kind != StmtKind::Load && s.kind != StmtKind::Gather) continue;
      const BufferRef& from = step_.pointers[s.access.pointer];
      if (from.kind != BufferRef::Kind::Parameter || from.index != parameter) continue;
      if (s.kind == StmtKind::Load && from.offset == to.offset &&
          s.access.stride == store.access.stride) {
        continue;
      }
      step_.unsafe.push_back(to.index);
      break;
    }
  }
}

void NestBuilder::estimate() {
  NestWork work = work_of(step_.nest);
  step_.work = work.work;
  step_.grain = grain_of(step_.nest, work);
}

}  // namespace neuron::compiler::cpu
