#include "neuron/compiler/cpu/nest.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

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

// Numbers that sizes may have made (an extent, the count of a mean): a kernel that had them in its
// code would be compiled for every size. The smallest ones are code.
bool is_argument(int64_t value) { return value > 2 || value < -1; }

// A splat of such a number.
std::optional<int64_t> argument_of(const Node& node) {
  const auto exact = [](double value) -> std::optional<int64_t> {
    if (!(std::fabs(value) < 0x1p53) || value != std::trunc(value)) return std::nullopt;
    return static_cast<int64_t>(value);
  };
  const auto element = [&]<typename T>(T value) {
    std::memcpy(&value, node.bytes.data(), sizeof(value));
    return value;
  };
  std::optional<int64_t> value;
  switch (node.type.dtype) {
    case DType::f32:
      value = exact(element(float{}));
      break;
    case DType::f64:
      value = exact(element(double{}));
      break;
    case DType::i32:
      value = element(int32_t{});
      break;
    case DType::i64:
      value = element(int64_t{});
      break;
    default:
      break;
  }
  return value && is_argument(*value) ? value : std::nullopt;
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
  if (type == DType::i64 && is_argument(value)) {
    Affine number;
    number.offset = value;
    return linear(number);
  }
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
      index =
          compute(Op::Multiply, DType::i64, {index, constant_int(DType::i64, e.coefficient[t])});
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
  const bool anywhere = info.scalar_only;
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
  if (info.read_direct && !info.stored && !info.scalar_only) {
    const StridedView& view = info.view;
    return load(f_.home(view.base), view.base, node.type.dtype, view.strides, view.offset, map,
                mask);
  }
  // A splat or iota costs less than a load, even where it was stored for a library step.
  if (info.stored && info.made != Made::Free && !info.scalar_only) {
    bool here = false;
    for (const Output& output : f_.groups()[g_].outputs) {
      here = here || (output.value == v && output.place == v && !output.flat);
    }
    if (!here) return load(f_.home(v), v, node.type.dtype, f_.home(v).strides, 0, map, mask);
  }
  switch (node.op) {
    case Op::Constant: {
      if (const auto number = argument_of(node)) {
        return convert(constant_int(DType::i64, *number), node.type.dtype);
      }
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
        s.access.pointer = pointer({BufferRef::Kind::Scalars, 0, static_cast<int64_t>(16 * slot)});
      }
      return push(std::move(s));
    }
    case Op::Iota:
      return emit_iota(node, map);
    case Op::PhiloxWord:
      return emit_philox(node, map);
    case Op::Gather:
      return emit_gather(v, map, mask);
    case Op::Pad:
      return emit_pad(v, map, mask);
    case Op::Concatenate:
      return emit_concatenate(v, map, mask);
    default:
      break;
  }
  if (info.made == Made::View && info.scalar_only) return emit(node.operands[0], map, mask);
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
    case Op::Convert:
      return convert(in[0], type);
    case Op::BitcastConvert:
    case Op::Select:
      break;
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
  const StmtId counter = compute(Op::Add, DType::u64, {offset, convert(index, DType::u64)});
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
    inside =
        both(inside, compute(Op::Compare, DType::pred, {index, constant_int(DType::i64, 0)}, kGE));
    inside = both(
        inside, compute(Op::Compare, DType::pred, {index, constant_int(DType::i64, extent)}, kLT));
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
          compute(Op::Compare, DType::pred, {affine_value(own), constant_int(DType::i64, 0)}, kGE);
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
  store.access.pointer =
      pointer({home.kind, home.index, home.offset + offset * static_cast<int64_t>(size_of(type))});
  store.aliased =
      home.kind == BufferRef::Kind::Result && f_.module().results()[home.index].alias >= 0;
  if (std::find(step_.writes.begin(), step_.writes.end(), output.place) == step_.writes.end()) {
    step_.writes.push_back(output.place);
  }
  stores_.push_back(std::move(store));
}

}  // namespace neuron::compiler::cpu
