#include "neuron/compiler/cpu/fuse.h"

#include <algorithm>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/loop_nest.h"

namespace neuron::compiler::cpu {

using hlo::Node;
using hlo::Op;

namespace {

// A group that grows beyond these is likely to spill registers, or to cost more compile time than
// the memory traffic it saves.
constexpr uint32_t kMaxGroupSize = 160;
constexpr uint32_t kMaxLoads = 24;
constexpr size_t kMaxOutputs = 12;
constexpr size_t kMaxReduces = 8;
/// Values at most this dear are computed again in each group that reads them.
constexpr float kCheap = 4;
/// A column reduction longer than this is not fused with what reads its whole operand again: one
/// piece of the columns would no longer stay in cache between the sweeps.
constexpr int64_t kMaxHostedColumn = 512;
// Elementwise work joins a column reduction only if that leaves enough to do in parallel.
constexpr int64_t kShortColumn = 64;
constexpr int64_t kManyKept = 4096;
constexpr int kSearchBudget = 64;

bool is_view(Op op) { return hlo::class_of(op) == hlo::OpClass::View; }

}  // namespace

Fusion::Fusion(const hlo::Module& module, bool cut_rows) : module_(module), cut_rows_(cut_rows) {
  const size_t n = module.size();
  info_.resize(n);
  homes_.resize(n + module.results().size());
  maps_.reserve(4 * n);
  affines_.reserve(8 * n);
  demands_.reserve(4 * n);
}

int64_t Fusion::place_bytes(uint32_t place) const {
  const auto n = static_cast<uint32_t>(module_.size());
  const auto results = static_cast<uint32_t>(module_.results().size());
  if (place >= n + results) return scratch_bytes_[place - n - results];
  const hlo::Type& type =
      module_.node(place < n ? place : module_.results()[place - n].value).type;
  const int64_t elements = place < n ? count_elements(type.dims)
                                     : storage_extent(type.dims, module_.results()[place - n].strides);
  return elements * static_cast<int64_t>(size_of(type.dtype));
}

uint32_t Fusion::element_place(ValueId v, size_t k) {
  for (ValueId element : elements_) {
    const Node& node = module_.node(element);
    if (node.operands[0] == v && node.ints[0] == static_cast<int64_t>(k)) return element;
  }
  const hlo::Type& type = module_.node(v).results[k];
  scratch_bytes_.push_back(count_elements(type.dims) * static_cast<int64_t>(size_of(type.dtype)));
  homes_.emplace_back();
  return static_cast<uint32_t>(homes_.size() - 1);
}

void Fusion::run() {
  assign_homes();
  choose_updates();
  place_pieces();
  choose_layouts();
  classify();
  const auto n = static_cast<ValueId>(module_.size());
  // Results that have no value of their own to hold (a view, a parameter, a value given twice) are
  // copied; the copy usually swallows the value's whole computation.
  for (size_t r = 0; r < module_.results().size(); ++r) {
    const auto place = static_cast<uint32_t>(n + r);
    const hlo::Result& result = module_.results()[r];
    if (homes_[place].valid) continue;  // Taken over by a value.
    Home& home = homes_[place];
    home.valid = true;
    home.kind = neff::BufferRef::Kind::Result;
    home.index = static_cast<uint32_t>(r);
    home.strides = result.strides;
    const Dims& dims = module_.node(result.value).type.dims;
    if (count_elements(dims) == 0) continue;
    const uint32_t g = new_group(dims, place);
    const MapId map = identity_map(g, dims);
    groups_[g].outputs.push_back({result.value, map, place, map});
    demand(result.value, g, map);
  }
  for (ValueId v = n; v-- > 0;) visit(v);
}

// --- Homes and classes ------------------------------------------------------------------------

void Fusion::assign_homes() {
  using Kind = neff::BufferRef::Kind;
  const auto parameters = module_.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    Home& home = homes_[parameters[i].value];
    home.valid = true;
    home.kind = Kind::Parameter;
    home.index = static_cast<uint32_t>(i);
    home.strides = parameters[i].strides;
  }
  // A result's buffer becomes the home of the value it shows, behind reshapes and transposes.
  const auto results = module_.results();
  const size_t n = module_.size();
  for (size_t r = 0; r < results.size(); ++r) {
    if (results[r].staged) continue;
    ValueId v = results[r].value;
    Dims strides = results[r].strides;
    while (true) {
      const Node& node = module_.node(v);
      if (node.op == Op::Reshape) {
        const Dims& from = module_.node(node.operands[0]).type.dims;
        Dims inner;
        if (count_elements(node.type.dims) == 0 ||
            !reshape_strides(node.type.dims, strides, from, &inner)) {
          break;
        }
        strides = inner;
      } else if (node.op == Op::Transpose) {
        Dims inner(strides.size());
        for (size_t i = 0; i < strides.size(); ++i) inner[node.ints[i]] = strides[i];
        strides = inner;
      } else {
        break;
      }
      v = node.operands[0];
    }
    if (homes_[v].valid || hlo::class_of(module_.node(v).op) == hlo::OpClass::Leaf) continue;
    if (is_view(module_.node(v).op) && v != results[r].value) continue;
    Home& home = homes_[v];
    home.valid = true;
    home.kind = Kind::Result;
    home.index = static_cast<uint32_t>(r);
    home.strides = strides;
    info_[v].must_store = true;
    homes_[n + r].valid = true;
  }
}

void Fusion::choose_updates() {
  // What an update changes is computed where the update's result is to be, if nothing else reads it.
  std::vector<uint8_t> uses(module_.size());
  auto use = [&](ValueId v) { uses[v] = static_cast<uint8_t>(std::min<int>(uses[v] + 1, 2)); };
  bool any = false;
  for (const Node& node : module_.nodes()) {
    for (ValueId operand : node.operands) use(operand);
    any = any || node.op == Op::Scatter || node.op == Op::DynamicUpdateSlice ||
          node.op == Op::AsStridedScatter;
  }
  if (!any) return;
  for (const hlo::Result& result : module_.results()) use(result.value);
  for (ValueId v = static_cast<ValueId>(module_.size()); v-- > 0;) {
    const Node& node = module_.node(v);
    if (node.op != Op::Scatter && node.op != Op::DynamicUpdateSlice &&
        node.op != Op::AsStridedScatter) {
      continue;
    }
    const ValueId x = node.operands[0];
    const Node& from = module_.node(x);
    const bool buffer = from.op == Op::Parameter || from.op == Op::TupleElement ||
                        (from.op == Op::Constant && from.bytes.size() > size_of(from.type.dtype));
    if (uses[x] != 1 || homes_[x].valid || buffer || is_view(from.op)) continue;
    // Not over a parameter: the value that is changed may be computed from it.
    Home& home = homes_[v];
    if (home.valid && home.kind == neff::BufferRef::Kind::Result &&
        module_.results()[home.index].alias >= 0) {
      continue;
    }
    if (!home.valid) {
      home.valid = true;
      home.kind = neff::BufferRef::Kind::Arena;
      home.index = v;
      home.strides = contiguous_strides(node.type.dims);
    }
    homes_[x] = home;
  }
}

void Fusion::place_pieces() {
  // Library steps write straight into a concatenation that is stored whole.
  bool any = false;
  for (const Node& node : module_.nodes()) any = any || node.op == Op::Concatenate;
  if (!any) return;
  std::vector<uint8_t> uses(module_.size()), stored(module_.size());
  for (ValueId v = 0; v < module_.size(); ++v) {
    const Node& node = module_.node(v);
    const bool library = node.op == Op::DotGeneral || node.op == Op::LibraryCall ||
                         node.op == Op::Convolution;
    for (ValueId operand : node.operands) {
      uses[operand] = static_cast<uint8_t>(std::min<int>(uses[operand] + 1, 2));
      if (!library) continue;
      while (module_.node(operand).op == Op::Reshape || module_.node(operand).op == Op::Transpose) {
        operand = module_.node(operand).operands[0];
      }
      stored[operand] = 1;
    }
  }
  for (const hlo::Result& result : module_.results()) {
    uses[result.value] = 2;
    if (!result.staged && result.alias < 0 && homes_[result.value].valid) stored[result.value] = 1;
  }
  for (ValueId v = 0; v < module_.size(); ++v) {
    const Node& node = module_.node(v);
    if (node.op != Op::Concatenate || stored[v] == 0 || count_elements(node.type.dims) == 0) continue;
    Home whole = homes_[v];
    if (whole.valid && whole.kind == neff::BufferRef::Kind::Result &&
        module_.results()[whole.index].alias >= 0) {
      continue;
    }
    if (!whole.valid) {
      whole.kind = neff::BufferRef::Kind::Arena;
      whole.index = v;
      whole.strides = contiguous_strides(node.type.dims);
    }
    const auto dim = static_cast<size_t>(node.ints[0]);
    int64_t at = 0;
    for (ValueId piece : node.operands) {
      const int64_t begin = at;
      at += module_.node(piece).type.dims[dim];
      Dims strides = whole.strides;
      ValueId base = piece;
      bool fits = uses[piece] == 1 && count_elements(module_.node(piece).type.dims) > 0;
      while (fits) {
        const Node& from = module_.node(base);
        if (from.op != Op::Reshape && from.op != Op::Transpose) break;
        const ValueId below = from.operands[0];
        Dims inner;
        if (from.op == Op::Reshape) {
          fits = reshape_strides(from.type.dims, strides, module_.node(below).type.dims, &inner);
        } else {
          inner.resize(strides.size());
          for (size_t i = 0; i < strides.size(); ++i) inner[from.ints[i]] = strides[i];
        }
        strides = inner;
        base = below;
        fits = fits && uses[base] == 1;
      }
      if (!fits || homes_[base].valid) continue;
      const Node& maker = module_.node(base);
      const Node& call = maker.op == Op::TupleElement ? module_.node(maker.operands[0]) : maker;
      const bool writes = maker.op == Op::DotGeneral ||
                          (call.op == Op::LibraryCall && call.name.starts_with("neuron.") &&
                           (maker.op == Op::LibraryCall || maker.ints[0] != 0));
      if (!writes) continue;
      homes_[v] = whole;
      homes_[v].valid = true;
      Home& home = homes_[base];
      home = whole;
      home.valid = true;
      home.offset += begin * whole.strides[dim] *
                     static_cast<int64_t>(size_of(node.type.dtype));
      home.strides = strides;
      info_[base].piece_of = v;
    }
  }
}

void Fusion::choose_layouts() {
  // A product that is only turned round and reshaped for the next product is written the way that
  // one reads it.
  for (ValueId v = 0; v < module_.size(); ++v) {
    const Node& reader = module_.node(v);
    if (reader.op != Op::DotGeneral) continue;
    for (ValueId operand : reader.operands) {
      const Node* node = &module_.node(operand);
      if (node->op != Op::Reshape) continue;
      Dims strides = contiguous_strides(node->type.dims);
      ValueId base = operand;
      bool turned = false;
      while (node->op == Op::Reshape || node->op == Op::Transpose) {
        base = node->operands[0];
        const Dims& from = module_.node(base).type.dims;
        Dims inner;
        if (node->op == Op::Reshape) {
          if (!reshape_strides(node->type.dims, strides, from, &inner)) break;
        } else {
          inner.resize(strides.size());
          for (size_t i = 0; i < strides.size(); ++i) inner[node->ints[i]] = strides[i];
          turned = true;
        }
        strides = inner;
        node = &module_.node(base);
      }
      if (!turned || node->op != Op::DotGeneral || homes_[base].valid ||
          count_elements(node->type.dims) == 0) {
        continue;
      }
      Home& home = homes_[base];
      home.valid = true;
      home.kind = neff::BufferRef::Kind::Arena;
      home.index = base;
      home.strides = strides;
    }
  }
}

void Fusion::classify() {
  for (ValueId v = 0; v < module_.size(); ++v) {
    classify_node(v);
    strided_view_of(v);
  }
}

void Fusion::classify_node(ValueId v) {
  const Node& node = module_.node(v);
  NodeInfo& info = info_[v];
  switch (node.op) {
    case Op::Parameter:
      info.made = Made::Buffer;
      info.loads = count_elements(node.type.dims) > 1 ? 1 : 0;
      return;
    case Op::ScalarParameter:
      info.made = Made::Free;
      info.scalar_only = true;
      return;
    case Op::Constant: {
      if (node.bytes.size() <= size_of(node.type.dtype)) {
        info.made = Made::Free;
        info.scalar_only = true;
        return;
      }
      info.made = Made::Buffer;
      info.loads = 1;
      while (constants_.size() % 64 != 0) constants_.push_back(std::byte{0});
      Home& home = homes_[v];
      home.valid = true;
      home.kind = neff::BufferRef::Kind::Constant;
      home.offset = static_cast<int64_t>(constants_.size());
      home.strides = contiguous_strides(node.type.dims);
      constants_.insert(constants_.end(), node.bytes.begin(), node.bytes.end());
      return;
    }
    case Op::Iota: info.made = Made::Free; return;
    case Op::TupleElement:
      info.made = node.ints[0] == 0 ? Made::View : Made::Element;
      break;
    case Op::Reduce:
    case Op::ArgReduce: info.made = Made::Reduce; break;
    case Op::PhiloxWord:
    case Op::Gather: info.made = Made::Compute; break;
    case Op::AsStridedScatter:
    case Op::DynamicUpdateSlice:
    case Op::Scatter:
    case Op::Scan:
    case Op::ReduceWindow:
    case Op::DotGeneral:
    case Op::Convolution:
    case Op::Sort:
    case Op::LibraryCall: info.made = Made::Library; break;
    default:
      if (is_view(node.op)) {
        info.made = Made::View;
      } else {
        const ValueId typed = node.operands[node.op == Op::Select ? 1 : 0];
        info.made = supports(node.op, module_.node(typed).type.dtype) ? Made::Compute
                                                                      : Made::Library;
      }
  }
  if (info.made == Made::Library || info.made == Made::Element) {
    info.loads = count_elements(node.type.dims) > 1 ? 1 : 0;
    return;
  }
  if (info.made == Made::Reduce) {
    info.cost = 1e6f;
    info.loads = 1;
    return;
  }
  info.cost = op_cost(node);
  info.scalar_only = true;
  const double elements = static_cast<double>(count_elements(node.type.dims));
  for (ValueId operand : node.operands) {
    const NodeInfo& from = info_[operand];
    info.scalar_only = info.scalar_only && from.scalar_only;
    // A reduction is never computed again, and what is computed once a row costs next to nothing.
    const double count = static_cast<double>(count_elements(module_.node(operand).type.dims));
    if (from.made != Made::Reduce && count * 8 > elements) info.cost += from.cost;
    if (count * 2 > elements) info.loads += from.loads;
  }
  info.cost = std::min(info.cost, 1e6f);
  info.loads = std::min(info.loads, 1e6f);
}

void Fusion::strided_view_of(ValueId v) {
  const Node& node = module_.node(v);
  NodeInfo& info = info_[v];
  StridedView& view = info.view;
  if (info.made == Made::View && node.operands.size() == 1 &&
      strided_view(node, info_[node.operands[0]].view, &view)) {
    return;
  }
  view = {};
  view.base = v;
  view.strides = homes_[v].valid ? homes_[v].strides : contiguous_strides(node.type.dims);
}

bool Fusion::strided_view(const Node& node, const StridedView& from, StridedView* result) const {
  StridedView& view = *result;
  const Dims& from_dims = module_.node(node.operands[0]).type.dims;
  const size_t rank = node.type.dims.size();
  switch (node.op) {
    case Op::Reshape:
      if (!reshape_strides(from_dims, from.strides, node.type.dims, &view.strides)) return false;
      break;
    case Op::TupleElement: view.strides = from.strides; break;
    case Op::Transpose:
      for (size_t i = 0; i < rank; ++i) view.strides.push_back(from.strides[node.ints[i]]);
      break;
    case Op::BroadcastInDim:
      view.strides.resize(rank, 0);
      for (size_t i = 0; i < from_dims.size(); ++i) {
        if (from_dims[i] != 1) view.strides[node.ints[i]] = from.strides[i];
      }
      break;
    case Op::Slice:
      for (size_t i = 0; i < rank; ++i) {
        view.offset += node.ints[i] * from.strides[i];
        view.strides.push_back(from.strides[i] * node.ints[2 * rank + i]);
      }
      break;
    case Op::AsStrided: {
      // The operand is flat: one stride turns positions into addresses.
      if (from_dims.size() != 1) return false;
      const int64_t unit = from_dims[0] > 1 ? from.strides[0] : 1;
      view.offset = node.ints[0] * unit;
      for (size_t i = 0; i < rank; ++i) view.strides.push_back(node.ints[1 + i] * unit);
      break;
    }
    default: return false;
  }
  view.offset += from.offset;
  view.base = from.base;
  return true;
}

// --- Groups and maps --------------------------------------------------------------------------

uint32_t Fusion::find(uint32_t g) {
  while (groups_[g].parent != kNone) {
    const uint32_t up = groups_[g].parent;
    if (groups_[up].parent != kNone) groups_[g].parent = groups_[up].parent;
    g = up;
  }
  return g;
}

uint32_t Fusion::new_group(DimsRef extents, int64_t min_output) {
  groups_.emplace_back();
  Group& group = groups_.back();
  group.extents.append(extents.begin(), extents.end());
  group.min_output = min_output;
  return static_cast<uint32_t>(groups_.size() - 1);
}

MapId Fusion::new_map(uint32_t g, std::span<const Affine> exprs) {
  maps_.push_back({static_cast<uint32_t>(affines_.size()), static_cast<uint32_t>(exprs.size())});
  affines_.insert(affines_.end(), exprs.begin(), exprs.end());
  const auto id = static_cast<MapId>(maps_.size() - 1);
  groups_[g].maps.push_back(id);
  return id;
}

MapId Fusion::identity_map(uint32_t g, DimsRef dims) {
  SmallVector<Affine, 4> exprs(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] != 1) exprs[i].add_term(static_cast<uint16_t>(i), 1);
  }
  return new_map(g, exprs);
}

bool Fusion::equal_maps(MapId a, MapId b) const {
  if (a == b) return true;
  if (maps_[a].rank != maps_[b].rank) return false;
  return std::equal(map(a), map(a) + maps_[a].rank, map(b));
}

bool Fusion::refine(uint32_t g, uint16_t axis, int64_t factor) {
  Group& group = groups_[g];
  if (frozen_ || group.extents.size() >= kMaxAxes) return false;
  if (group.kind == GroupKind::Row && !cut_rows_ && axis >= group.axis &&
      axis < group.axis + group.axis_count) {
    return false;
  }
  for (MapId id : group.maps) {
    for (uint32_t i = 0; i < maps_[id].rank; ++i) {
      const Affine& e = affines_[maps_[id].begin + i];
      if (e.count == kMaxTerms && e.of(axis) != 0) return false;
    }
  }
  for (MapId id : group.maps) {
    for (uint32_t i = 0; i < maps_[id].rank; ++i) {
      Affine& e = affines_[maps_[id].begin + i];
      const int64_t c = e.of(axis);
      for (int t = 0; t < e.count; ++t) {
        if (e.axis[t] > axis && e.axis[t] < kFirstVariable) ++e.axis[t];
      }
      if (c != 0) {
        e.add_term(axis, c * factor - c);
        e.add_term(static_cast<uint16_t>(axis + 1), c);
      }
    }
  }
  group.extents[axis] /= factor;
  group.extents.insert(axis + 1u, factor);
  if (group.kind != GroupKind::Pointwise) {
    if (group.axis > axis) {
      ++group.axis;
    } else if (axis < group.axis + group.axis_count) {
      ++group.axis_count;
    }
  }
  return true;
}

bool Fusion::expand(ValueId v, uint32_t g, MapId at, SmallVector<OperandRead, 4>* reads) {
  const Node& node = module_.node(v);
  reads->clear();
  switch (node.op) {
    case Op::PhiloxWord: {
      const MapId scalar = new_map(g, {});
      for (ValueId operand : node.operands) reads->push_back({operand, scalar});
      return true;
    }
    case Op::Gather: {
      const auto position = static_cast<size_t>(node.ints[0]);
      const bool checked =
          static_cast<hlo::OutOfBounds>(node.ints[1]) == hlo::OutOfBounds::Fail;
      const Dims& from = module_.node(node.operands[0]).type.dims;
      const size_t index_rank = module_.node(node.operands[1]).type.dims.size();
      SmallVector<Affine, 4> index_map(map(at) + position, map(at) + position + index_rank);
      const MapId index_at = new_map(g, index_map);
      SmallVector<Affine, 4> operand_map(from.size());
      SmallVector<uint8_t, 8> taken(from.size());
      for (size_t k = 1; k < node.operands.size(); ++k) {
        const auto dim = static_cast<size_t>(node.ints[1 + k]);
        taken[dim] = 1;
        uint16_t found = 0;
        for (; found < variables_.size(); ++found) {
          const Variable& other = variables_[found];
          if (other.index == node.operands[k] && other.extent == from[dim] &&
              other.checked == checked && find(other.group) == g &&
              equal_maps(other.map, index_at)) {
            break;
          }
        }
        if (found == variables_.size()) {
          variables_.push_back({node.operands[k], index_at, from[dim], checked, g});
        }
        operand_map[dim].add_term(static_cast<uint16_t>(kFirstVariable + found), 1);
      }
      size_t next = 0;
      for (size_t i = 0; i < from.size(); ++i) {
        if (taken[i] != 0) continue;
        if (next == position) next += index_rank;
        operand_map[i] = map(at)[next++];
      }
      reads->push_back({node.operands[0], new_map(g, operand_map)});
      for (size_t k = 1; k < node.operands.size(); ++k) {
        reads->push_back({node.operands[k], index_at});
      }
      return true;
    }
    default: break;
  }
  if (info_[v].made != Made::View || node.op == Op::TupleElement) {
    for (ValueId operand : node.operands) reads->push_back({operand, at});
    return true;
  }
  for (size_t k = 0; k < node.operands.size(); ++k) {
    const ValueId operand = node.operands[k];
    SmallVector<Affine, 4> exprs;
    while (true) {
      const MapStep step =
          map_view(module_, node, k, map(at), groups_[g].extents, &exprs);
      if (step.status == MapStep::Status::Ok) break;
      if (step.status == MapStep::Status::Fail || !refine(g, step.axis, step.factor)) return false;
    }
    reads->push_back({operand, new_map(g, exprs)});
  }
  return true;
}

void Fusion::demand(ValueId v, uint32_t g, MapId map) {
  for (uint32_t d = info_[v].demand; d != kNone; d = demands_[d].next) {
    if (demands_[d].group == g && demands_[d].map == map) return;
  }
  if (info_[v].loads > 0 && loaded(v)) ++groups_[g].loads;
  demands_.push_back({g, map, info_[v].demand});
  info_[v].demand = static_cast<uint32_t>(demands_.size() - 1);
}

bool Fusion::loaded(ValueId v) const {
  const Made made = info_[info_[v].view.base].made;
  return made == Made::Buffer || made == Made::Library || made == Made::Element;
}

void Fusion::collect(ValueId v, std::vector<Demand>* into) {
  into->clear();
  readers_.clear();
  for (uint32_t d = info_[v].demand; d != kNone; d = demands_[d].next) {
    const uint32_t g = find(demands_[d].group);
    if (demands_[d].map == kNone) {
      readers_.push_back(g);
      continue;
    }
    bool known = false;
    for (const Demand& other : *into) {
      known = known || (other.group == g && equal_maps(other.map, demands_[d].map));
    }
    if (!known) into->push_back({g, demands_[d].map});
  }
}

void Fusion::read(uint32_t g, uint32_t place) {
  g = find(g);
  Group& group = groups_[g];
  if (info_[place].made == Made::Buffer) return;
  group.reads.push_back(place);
  group.max_read = std::max<int64_t>(group.max_read, place);
}

void Fusion::store_for_library(ValueId v, int64_t reader) {
  const ValueId base = info_[v].view.base;
  if (info_[base].made == Made::Buffer) return;
  info_[base].must_store = true;
  info_[base].first_reader = std::min(info_[base].first_reader, reader);
}

void Fusion::set_stored(ValueId v) {
  NodeInfo& info = info_[v];
  info.stored = true;
  Home& home = homes_[v];
  if (home.valid) return;
  home.valid = true;
  home.kind = neff::BufferRef::Kind::Arena;
  home.index = v;
  home.strides = contiguous_strides(module_.node(v).type.dims);
}

// --- The pass ---------------------------------------------------------------------------------

void Fusion::visit(ValueId v) {
  NodeInfo& info = info_[v];
  if (info.demand == kNone && !info.must_store) return;
  if (count_elements(module_.node(v).type.dims) == 0) {
    if (info.made != Made::Buffer) set_stored(v);
    if (info.made == Made::Element) {
      elements_.push_back(v);
      info_[module_.node(v).operands[0]].must_store = true;
    }
    if (info.made == Made::Library) visit_library(v);
    return;
  }
  collect(v, &scratch_);
  switch (info.made) {
    case Made::Free:
      if (info.must_store) materialize(v, {});
      return;
    case Made::Buffer: merge_siblings(v, scratch_); return;  // Needs no read(): it is there.
    case Made::Element:
      set_stored(v);
      elements_.push_back(v);
      info_[module_.node(v).operands[0]].must_store = true;
      merge_siblings(v, scratch_);
      for (const Demand& d : scratch_) read(d.group, v);
      return;
    case Made::Library:
      set_stored(v);
      merge_siblings(v, scratch_);
      for (const Demand& d : scratch_) read(d.group, v);
      visit_library(v);
      return;
    case Made::View: {
      if (!info.must_store && loaded(v)) {
        merge_siblings(v, scratch_);
        read_direct(v, scratch_);
        return;
      }
      visit_computed(v, scratch_);
      return;
    }
    case Made::Compute: visit_computed(v, scratch_); return;
    case Made::Reduce: visit_reduce(v, scratch_); return;
  }
}

void Fusion::read_direct(ValueId v, std::span<const Demand> demands) {
  info_[v].read_direct = true;
  const ValueId base = info_[v].view.base;
  if (info_[base].made != Made::Buffer) info_[base].must_store = true;
  for (const Demand& d : demands) {
    read(d.group, base);
    // The base's own visit must know who reads it.
    if (info_[base].made != Made::Buffer) demand(base, d.group, kNone);
    const MapId flat = address_map(d.group, d.map, info_[v].view.strides, info_[v].view.offset);
    if (flat != kNone) {
      demands_.push_back({d.group, flat, info_[base].flat});
      info_[base].flat = static_cast<uint32_t>(demands_.size() - 1);
    }
  }
}

MapId Fusion::address_map(uint32_t g, MapId at, DimsRef strides, int64_t offset) {
  Affine address;
  address.offset = offset;
  for (size_t d = 0; d < maps_[at].rank; ++d) {
    if (!address.add(map(at)[d], strides[d])) return kNone;
  }
  return new_map(g, {&address, 1});
}

void Fusion::visit_library(ValueId v) {
  info_[v].live = true;
  const Node& node = module_.node(v);
  // A library step without elements does nothing, unless it stands for an op of its own.
  if (count_elements(node.type.dims) == 0 && node.op != Op::LibraryCall && node.results.empty()) {
    return;
  }
  for (ValueId operand : node.operands) store_for_library(operand, v);
}

void Fusion::merge_siblings(ValueId v, std::vector<Demand>& demands) {
  const Dims& dims = module_.node(v).type.dims;
  const int64_t count = count_elements(dims);
  // Reading a large buffer once instead of twice is worth a merge.
  if (count < 256) return;
  if (demands.size() > 1 && demands.size() <= 8) merge_readers(v, demands);
  if (info_[v].flat == kNone || !is_contiguous(dims, info_[v].view.strides)) return;
  // Readers of other views of it meet by address.
  std::vector<Demand> flat;
  for (uint32_t d = info_[v].flat; d != kNone; d = demands_[d].next) flat.push_back(demands_[d]);
  for (const Demand& d : demands) {
    const MapId address = address_map(d.group, d.map, info_[v].view.strides, 0);
    if (address != kNone) flat.push_back({d.group, address, kNone});
  }
  if (flat.size() < 2 || flat.size() > 8) return;
  bool columns = false;
  for (const Demand& d : flat) {
    columns = columns || groups_[find(d.group)].kind == GroupKind::Column;
  }
  for (size_t i = 0; i < flat.size(); ++i) {
    for (size_t k = i + 1; k < flat.size(); ++k) {
      const uint32_t a = find(flat[i].group), b = find(flat[k].group);
      if (a == b) continue;
      // Whether elementwise work may join columns was decided where it was computed.
      if (columns && (groups_[a].kind == GroupKind::Column) !=
                         (groups_[b].kind == GroupKind::Column)) {
        continue;
      }
      try_merge(a, flat[i].map, b, flat[k].map, Dims{count});
    }
  }
  for (Demand& d : demands) d.group = find(d.group);
}

bool Fusion::has_row_reduction(ValueId v) const {
  const int64_t count = count_elements(module_.node(v).type.dims);
  SmallVector<ValueId, 32> open{v};
  for (int budget = 32; !open.empty() && budget > 0; --budget) {
    const ValueId at = open.back();
    open.pop_back();
    const Node& node = module_.node(at);
    const Made made = info_[at].made;
    if (made == Made::Reduce) {
      const Dims& from = module_.node(node.operands[0]).type.dims;
      if (count_elements(from) == count && node.op == Op::Reduce &&
          node.ints[1] + 1 == static_cast<int64_t>(from.size())) {
        return true;
      }
    } else if (made == Made::Compute || made == Made::View) {
      for (ValueId operand : node.operands) open.push_back(operand);
    }
  }
  return false;
}

ValueId Fusion::row_reduction_in(ValueId v, int64_t length) const {
  const int64_t count = count_elements(module_.node(v).type.dims);
  SmallVector<ValueId, 16> open{v};
  for (int budget = 24; !open.empty() && budget > 0; --budget) {
    const ValueId at = open.back();
    open.pop_back();
    const Node& node = module_.node(at);
    if (count_elements(node.type.dims) != count) continue;
    const Made made = info_[at].made;
    if (made == Made::Reduce) {
      const Dims& from = module_.node(node.operands[0]).type.dims;
      const auto dim = static_cast<size_t>(node.op == Op::Reduce ? node.ints[1] : node.ints[0]);
      int64_t inner = 1;
      for (size_t i = dim + 1; i < from.size(); ++i) inner *= from[i];
      if (inner == 1 && from[dim] == length) return at;
    } else if (made == Made::Compute || made == Made::View) {
      for (ValueId operand : node.operands) open.push_back(operand);
    }
  }
  return kNone;
}

bool Fusion::make_row(ValueId v, uint32_t g, MapId at) {
  Group& group = groups_[g];
  SmallVector<uint8_t, 8> used;
  if (group.kind != GroupKind::Pointwise || !covers(g, at, module_.node(v).type.dims, &used)) {
    return false;
  }
  size_t begin = used.size(), end = 0;
  for (size_t a = 0; a < used.size(); ++a) {
    if (used[a] != 0 || group.extents[a] == 1) continue;
    begin = std::min(begin, a);
    end = a + 1;
  }
  if (begin >= end || (!cut_rows_ && end - begin > 1)) return false;
  int64_t length = 1;
  for (size_t a = begin; a < end; ++a) {
    if (used[a] != 0) return false;
    length *= group.extents[a];
  }
  if (row_reduction_in(v, length) == kNone) return false;
  group.kind = GroupKind::Row;
  group.axis = static_cast<uint16_t>(begin);
  group.axis_count = static_cast<uint16_t>(end - begin);
  return true;
}

void Fusion::merge_readers(ValueId v, std::vector<Demand>& demands) {
  if (demands.size() < 2) return;
  const Dims& dims = module_.node(v).type.dims;
  bool columns = false;
  for (const Demand& d : demands) {
    columns = columns || groups_[d.group].kind == GroupKind::Column;
  }
  // A group that may become rows must not become columns first.
  const bool rows = columns && has_row_reduction(v);
  for (size_t i = 0; i < demands.size() && i < 16; ++i) {
    for (size_t k = i + 1; k < demands.size() && k < 16;) {
      const uint32_t a = find(demands[i].group), b = find(demands[k].group);
      const bool mixed = (groups_[a].kind == GroupKind::Column) !=
                         (groups_[b].kind == GroupKind::Column);
      if (a == b || (rows && mixed) || !try_merge(a, demands[i].map, b, demands[k].map, dims)) {
        ++k;
        continue;
      }
      demands.erase(demands.begin() + static_cast<ptrdiff_t>(k));
    }
  }
  // Merging gave the groups of others new numbers, and maybe made maps equal.
  for (size_t i = 0; i < demands.size(); ++i) {
    demands[i].group = find(demands[i].group);
    for (size_t k = 0; k < i; ++k) {
      if (demands[k].group == demands[i].group && equal_maps(demands[k].map, demands[i].map)) {
        demands.erase(demands.begin() + static_cast<ptrdiff_t>(i--));
        break;
      }
    }
  }
}

void Fusion::visit_computed(ValueId v, std::vector<Demand>& demands) {
  NodeInfo& info = info_[v];
  const Node& node = module_.node(v);
  merge_readers(v, demands);
  if (node.op == Op::Concatenate || node.op == Op::Pad) {
    if (assembled(v, demands)) {
      assemble(v);
      for (const Demand& d : demands) read(d.group, v);
      return;
    }
  }
  bool one_group = true;
  for (const Demand& d : demands) one_group = one_group && d.group == demands[0].group;
  const bool cheap =
      info.scalar_only || (info.cost <= kCheap && info.loads <= 1) || info.made == Made::View;
  bool store = info.must_store || (!one_group && !cheap) || (demands.size() > 2 && info.made == Made::Compute && info.cost > 8);
  if (!store && !cheap) {
    const double count = static_cast<double>(count_elements(node.type.dims));
    for (const Demand& d : demands) {
      const Group& group = groups_[d.group];
      if (info.made == Made::Compute && (group.size >= kMaxGroupSize || group.loads >= kMaxLoads)) {
        store = true;
      }
      double space = 1;
      for (int64_t e : group.extents) space *= static_cast<double>(e);
      const bool rank0 = count == 1 && info.cost <= 20;
      if (space > 8 * count && !rank0 &&
          cover_of(d.group, d.map, node.type.dims) == Cover::None &&
          !make_row(v, d.group, d.map)) {
        store = true;
      }
    }
  }
  if (!store) {
    SmallVector<OperandRead, 64> all;
    SmallVector<uint32_t, 64> group_of;
    SmallVector<OperandRead, 4> reads;
    for (const Demand& d : demands) {
      if (!expand(v, d.group, d.map, &reads)) {
        store = true;
        break;
      }
      for (const OperandRead& r : reads) {
        all.push_back(r);
        group_of.push_back(d.group);
      }
    }
    if (!store) {
      for (const Demand& d : demands) {
        if (info.made == Made::Compute) ++groups_[d.group].size;
      }
      for (size_t i = 0; i < all.size(); ++i) demand_operand(v, i % reads.size(), all[i], group_of[i]);
      return;
    }
    if (info.view.base != v) {
      read_direct(v, demands);
      return;
    }
  }
  materialize(v, demands);
}

void Fusion::demand_operand(ValueId v, size_t index, const OperandRead& read, uint32_t g) {
  if (count_elements(module_.node(read.value).type.dims) == 0) return;
  demand(read.value, g, read.map);
}

void Fusion::materialize(ValueId v, std::span<const Demand> demands) {
  NodeInfo& info = info_[v];
  const Node& node = module_.node(v);
  set_stored(v);
  SmallVector<OperandRead, 4> reads;
  for (const Demand& d : demands) {
    const Group& candidate = groups_[d.group];
    if (candidate.kind == GroupKind::Column && candidate.reduces.size() > 0 &&
        cover_of(d.group, d.map, node.type.dims) == Cover::Full &&
        (!short_column(candidate) || has_row_reduction(v))) {
      continue;
    }
    if (groups_[d.group].outputs.size() >= kMaxOutputs ||
        groups_[d.group].size >= kMaxGroupSize || groups_[d.group].loads >= kMaxLoads ||
        (cover_of(d.group, d.map, node.type.dims) == Cover::None &&
         !make_row(v, d.group, d.map)) ||
        !may_store_in(d.group, v, demands) || !expand(v, d.group, d.map, &reads)) {
      continue;
    }
    bool once = true;
    for (const Demand& other : demands) {
      once = once && (&other == &d || other.group != d.group);
    }
    if (!once) continue;
    Group& host = groups_[d.group];
    host.outputs.push_back({v, d.map, v, d.map});
    host.min_output = std::min<int64_t>(host.min_output, v);
    ++host.size;
    info.owner = d.group;
    for (size_t i = 0; i < reads.size(); ++i) demand_operand(v, i, reads[i], d.group);
    for (const Demand& other : demands) {
      if (&other != &d) read(other.group, v);
    }
    return;
  }
  for (const Demand& d : demands) read(d.group, v);
  const uint32_t g = new_group(node.type.dims, v);
  const MapId map = identity_map(g, node.type.dims);
  info.owner = g;
  if (!expand(v, g, map, &reads)) {
    NEURON_CHECK(node.op == Op::Reshape, kUnsupported, "cpu compiler: ", name_of(node.op), " to ",
                 to_string(node.type), " addresses memory in too many ways");
    // Not affine in the result's axes: walk the operand's and write in its order.
    const Dims& from = module_.node(node.operands[0]).type.dims;
    groups_[g].extents.clear();
    groups_[g].extents.append(from.begin(), from.end());
    groups_[g].maps.clear();
    const MapId at = identity_map(g, from);
    groups_[g].outputs.push_back({node.operands[0], at, v, at, true});
    demand(node.operands[0], g, at);
    return;
  }
  groups_[g].outputs.push_back({v, map, v, map});
  ++groups_[g].size;
  for (size_t i = 0; i < reads.size(); ++i) demand_operand(v, i, reads[i], g);
}

bool Fusion::assembled(ValueId v, std::span<const Demand> demands) const {
  const Node& node = module_.node(v);
  if (node.op == Op::Pad) {
    const size_t rank = node.type.dims.size();
    const Dims& from = module_.node(node.operands[0]).type.dims;
    for (size_t i = 0; i < rank; ++i) {
      if (node.ints[2 * rank + i] != 0 && from[i] > 1) return true;
    }
    return false;
  }
  for (ValueId piece : node.operands) {
    if (info_[info_[piece].view.base].piece_of == v) return true;
  }
  if (info_[v].must_store || demands.size() != 1 || node.operands.size() > 4) return true;
  return info_[v].cost > 16;
}

void Fusion::assemble(ValueId v) {
  const Node& node = module_.node(v);
  const size_t rank = node.type.dims.size();
  set_stored(v);
  // Each piece is a group of its own that writes its part of the place.
  auto add_piece = [&](ValueId value, DimsRef extents, std::span<const Affine> value_map,
                       std::span<const Affine> place_map) {
    const uint32_t g = new_group(extents, v);
    const MapId from = new_map(g, value_map);
    const MapId to = new_map(g, place_map);
    groups_[g].outputs.push_back({value, from, v, to});
    groups_[g].next_writer = info_[v].owner;
    groups_[g].pinned = true;
    info_[v].owner = g;
    demand(value, g, from);
    return g;
  };
  SmallVector<Affine, 4> from(rank), to(rank);
  if (node.op == Op::Concatenate) {
    const auto dim = static_cast<size_t>(node.ints[0]);
    int64_t at = 0;
    for (ValueId piece : node.operands) {
      const Dims& dims = module_.node(piece).type.dims;
      if (dims[dim] == 0) continue;
      const ValueId base = info_[piece].view.base;
      if (info_[base].piece_of == v) {
        info_[base].must_store = true;
        at += dims[dim];
        continue;
      }
      for (size_t i = 0; i < rank; ++i) {
        from[i] = {};
        if (dims[i] != 1) from[i].add_term(static_cast<uint16_t>(i), 1);
        to[i] = from[i];
      }
      to[dim].offset += at;
      add_piece(piece, dims, from, to);
      at += dims[dim];
    }
    return;
  }
  // Pad with gaps: fill everything, then write the operand's elements that stay.
  for (size_t i = 0; i < rank; ++i) {
    to[i] = {};
    if (node.type.dims[i] != 1) to[i].add_term(static_cast<uint16_t>(i), 1);
  }
  const uint32_t fill = add_piece(node.operands[1], node.type.dims, {}, to);
  const Dims& dims = module_.node(node.operands[0]).type.dims;
  Dims extents;
  for (size_t i = 0; i < rank; ++i) {
    const int64_t low = node.ints[i], step = node.ints[2 * rank + i] + 1;
    const int64_t first = low < 0 ? (-low + step - 1) / step : 0;
    const int64_t room = node.type.dims[i] - 1 - low;
    const int64_t last = room < 0 ? -1 : std::min(dims[i] - 1, room / step);
    if (last < first) return;
    extents.push_back(last - first + 1);
    from[i] = {};
    from[i].offset = first;
    to[i] = {};
    to[i].offset = low + first * step;
    if (extents.back() != 1) {
      from[i].add_term(static_cast<uint16_t>(i), 1);
      to[i].add_term(static_cast<uint16_t>(i), step);
    }
  }
  const uint32_t piece = add_piece(node.operands[0], extents, from, to);
  groups_[piece].after = fill;
}

// --- Reductions -------------------------------------------------------------------------------

void Fusion::visit_reduce(ValueId v, std::vector<Demand>& demands) {
  NodeInfo& info = info_[v];
  const Node& node = module_.node(v);
  merge_readers(v, demands);
  const bool one = demands.size() == 1 && !info.must_store;
  if (one && try_host(v, demands[0].group, demands[0].map)) return;
  set_stored(v);
  for (const Demand& d : demands) {
    if (!may_store_in(d.group, v, demands) || groups_[d.group].outputs.size() >= kMaxOutputs) {
      continue;
    }
    bool once = true;
    for (const Demand& other : demands) once = once && (&other == &d || other.group != d.group);
    if (!once || !try_host(v, d.group, d.map)) continue;
    Group& host = groups_[d.group];
    host.outputs.push_back({v, d.map, v, d.map});
    host.min_output = std::min<int64_t>(host.min_output, v);
    info.owner = d.group;
    for (const Demand& other : demands) {
      if (&other != &d) read(other.group, v);
    }
    return;
  }
  for (const Demand& d : demands) read(d.group, v);
  const uint32_t g = new_group(node.type.dims, v);
  const MapId map = identity_map(g, node.type.dims);
  groups_[g].outputs.push_back({v, map, v, map});
  info.owner = g;
  const bool hosted = try_host(v, g, map);
  NEURON_ASSERT(hosted, "a reduction does not fit its own group");
}

int64_t Fusion::reduced_extent(const Group& group) {
  int64_t product = 1;
  for (uint16_t i = 0; i < group.axis_count; ++i) product *= group.extents[group.axis + i];
  return product;
}

bool Fusion::short_column(const Group& group) {
  const int64_t reduced = reduced_extent(group);
  int64_t kept = 1;
  for (int64_t extent : group.extents) kept *= extent;
  return reduced <= kShortColumn && kept / std::max<int64_t>(1, reduced) >= kManyKept;
}

bool Fusion::try_host(ValueId v, uint32_t g, MapId at) {
  const Node& node = module_.node(v);
  const ValueId operand = node.operands[0];
  const Dims& from = module_.node(operand).type.dims;
  const auto dim = static_cast<size_t>(node.op == Op::Reduce ? node.ints[1] : node.ints[0]);
  const int64_t length = from[dim];
  int64_t inner = 1;
  for (size_t i = dim + 1; i < from.size(); ++i) inner *= from[i];
  const GroupKind kind = inner == 1 ? GroupKind::Row : GroupKind::Column;
  Group& group = groups_[g];
  if (group.reduces.size() >= kMaxReduces || (group.size >= kMaxGroupSize)) return false;
  SmallVector<uint8_t, 8> used;
  if (!covers(g, at, node.type.dims, &used)) return false;
  // The axes that v does not vary along must be the reduced ones.
  size_t begin = used.size(), end = 0;
  for (size_t a = 0; a < used.size(); ++a) {
    if (used[a] != 0 || group.extents[a] == 1) continue;
    begin = std::min(begin, a);
    end = a + 1;
  }
  int64_t product = 1;
  for (size_t a = begin; a < end; ++a) {
    if (used[a] != 0) return false;
    product *= group.extents[a];
  }
  if (group.kind != GroupKind::Pointwise) {
    if (group.kind != kind || reduced_extent(group) != length) return false;
    if (begin < end && (begin < group.axis || end > group.axis + size_t{group.axis_count})) {
      return false;
    }
    if (product != length) return false;
  } else if (begin >= end) {
    group.extents.push_back(length);
    group.kind = kind;
    group.axis = static_cast<uint16_t>(group.extents.size() - 1);
    group.axis_count = 1;
  } else {
    if (product != length || (kind == GroupKind::Column && length > kMaxHostedColumn)) return false;
    if (kind == GroupKind::Row && !cut_rows_ && end - begin > 1) return false;
    group.kind = kind;
    group.axis = static_cast<uint16_t>(begin);
    group.axis_count = static_cast<uint16_t>(end - begin);
  }
  group.reduces.push_back(v);
  ++group.size;
  demand(operand, g, reduction_map(g, v, at));
  return true;
}

MapId Fusion::reduction_map(uint32_t g, ValueId v, MapId at) {
  const Node& node = module_.node(v);
  const Group& group = groups_[g];
  const size_t rank = module_.node(node.operands[0]).type.dims.size();
  const auto dim = static_cast<size_t>(node.op == Op::Reduce ? node.ints[1] : node.ints[0]);
  SmallVector<Affine, 4> exprs;
  size_t next = 0;
  for (size_t i = 0; i < rank; ++i) {
    Affine e;
    if (i != dim) {
      e = map(at)[next++];
    } else {
      int64_t radix = 1;
      for (size_t a = group.axis + size_t{group.axis_count}; a-- > group.axis;) {
        if (group.extents[a] == 1) continue;
        const bool fits = e.add_term(static_cast<uint16_t>(a), radix);
        NEURON_ASSERT(fits, "a reduced dim is cut into too many axes");
        radix *= group.extents[a];
      }
    }
    exprs.push_back(e);
  }
  return new_map(g, exprs);
}

bool Fusion::covers(uint32_t g, MapId at, DimsRef dims, SmallVector<uint8_t, 8>* used) const {
  const Group& group = groups_[g];
  used->clear();
  used->resize(group.extents.size(), 0);
  for (size_t i = 0; i < dims.size(); ++i) {
    const Affine& e = map(at)[i];
    if (e.offset != 0) return false;
    // Axes of ascending coefficient must form a mixed radix number of the dim's size.
    int64_t reach = 1;
    SmallVector<uint8_t, 8> done(kMaxTerms);
    for (int k = 0; k < e.count; ++k) {
      int next = -1;
      for (int t = 0; t < e.count; ++t) {
        if (done[t] == 0 && (next < 0 || e.coefficient[t] < e.coefficient[next])) next = t;
      }
      done[next] = 1;
      const uint16_t axis = e.axis[next];
      if (axis >= kFirstVariable || e.coefficient[next] != reach || (*used)[axis] != 0) {
        return false;
      }
      (*used)[axis] = 1;
      reach *= group.extents[axis];
    }
    if (reach != dims[i]) return false;
  }
  return true;
}

Fusion::Cover Fusion::cover_of(uint32_t g, MapId at, DimsRef dims) const {
  SmallVector<uint8_t, 8> used;
  if (!covers(g, at, dims, &used)) return Cover::None;
  const Group& group = groups_[g];
  Cover cover = Cover::Full;
  for (size_t a = 0; a < used.size(); ++a) {
    if (used[a] != 0 || group.extents[a] == 1) continue;
    if (group.kind == GroupKind::Pointwise || a < group.axis ||
        a >= group.axis + size_t{group.axis_count}) {
      return Cover::None;
    }
    cover = Cover::RowLevel;
  }
  return cover;
}

// --- Merging ----------------------------------------------------------------------------------

bool Fusion::try_merge(uint32_t g1, MapId m1, uint32_t g2, MapId m2, DimsRef dims) {
  {
    const Group &a = groups_[g1], &b = groups_[g2];
    if (a.pinned || b.pinned || a.size + b.size > kMaxGroupSize || a.loads + b.loads > kMaxLoads ||
        a.outputs.size() + b.outputs.size() > kMaxOutputs ||
        a.reduces.size() + b.reduces.size() > kMaxReduces) {
      return false;
    }
    if (a.kind != GroupKind::Pointwise && b.kind != GroupKind::Pointwise && a.kind != b.kind) {
      return false;
    }
  }
  if (cover_of(g1, m1, dims) != Cover::Full || cover_of(g2, m2, dims) != Cover::Full) return false;
  if (depends_on(g1, g2) || depends_on(g2, g1)) return false;
  // Axis of g1 for each axis of g2.
  SmallVector<uint16_t, 8> to;
  for (bool again = true; again;) {
    again = false;
    to.clear();
    to.resize(groups_[g2].extents.size(), 0xFFFF);
    for (size_t i = 0; i < dims.size() && !again; ++i) {
      // Both are mixed radix numbers; walk them from the fastest digit.
      const Affine &e1 = map(m1)[i], &e2 = map(m2)[i];
      if (e1.count == 0) continue;
      int64_t reach = 1;
      while (reach < dims[i]) {
        int t1 = 0, t2 = 0;
        while (e1.coefficient[t1] != reach) ++t1;
        while (e2.coefficient[t2] != reach) ++t2;
        const int64_t n1 = groups_[g1].extents[e1.axis[t1]];
        const int64_t n2 = groups_[g2].extents[e2.axis[t2]];
        if (n1 == n2) {
          to[e2.axis[t2]] = e1.axis[t1];
          reach *= n1;
          continue;
        }
        const bool first = n1 > n2;
        if ((first ? n1 % n2 : n2 % n1) != 0) return false;
        if (!refine(first ? g1 : g2, first ? e1.axis[t1] : e2.axis[t2], first ? n2 : n1)) {
          return false;
        }
        again = true;
        break;
      }
    }
  }
  Group &a = groups_[g1], &b = groups_[g2];
  if (b.kind != GroupKind::Pointwise) {
    const uint16_t axis = to[b.axis];
    for (uint16_t i = 0; i < b.axis_count; ++i) {
      if (to[b.axis + i] == 0xFFFF || to[b.axis + i] != axis + i) return false;
    }
    if (a.kind != GroupKind::Pointwise && (a.axis != axis || a.axis_count != b.axis_count)) {
      return false;
    }
    if (b.kind == GroupKind::Column && a.kind == GroupKind::Pointwise && !short_column(b)) {
      return false;
    }
    if (b.kind == GroupKind::Row && !cut_rows_ && b.axis_count > 1) return false;
    a.kind = b.kind;
    a.axis = axis;
    a.axis_count = b.axis_count;
  } else if (b.kind == GroupKind::Pointwise && a.kind == GroupKind::Column && !short_column(a)) {
    return false;
  }
  for (MapId id : b.maps) {
    for (uint32_t i = 0; i < maps_[id].rank; ++i) {
      Affine& e = affines_[maps_[id].begin + i];
      Affine renamed{};
      renamed.offset = e.offset;
      for (int t = 0; t < e.count; ++t) {
        const uint16_t axis = e.axis[t] >= kFirstVariable ? e.axis[t] : to[e.axis[t]];
        if (axis != 0xFFFF) renamed.add_term(axis, e.coefficient[t]);
      }
      e = renamed;
    }
  }
  a.maps.insert(a.maps.end(), b.maps.begin(), b.maps.end());
  a.outputs.insert(a.outputs.end(), b.outputs.begin(), b.outputs.end());
  a.reduces.append(b.reduces.begin(), b.reduces.end());
  a.reads.append(b.reads.begin(), b.reads.end());
  a.max_read = std::max(a.max_read, b.max_read);
  a.min_output = std::min(a.min_output, b.min_output);
  a.size += b.size;
  a.loads += b.loads;
  b.parent = g1;
  b.maps.clear();
  b.outputs.clear();
  b.reads.clear();
  return true;
}

bool Fusion::may_store_in(uint32_t g, ValueId v, std::span<const Demand> demands) {
  // Whoever reads the stored value will depend on g: g must not depend on them.
  if (groups_[g].pinned || groups_[g].max_read >= info_[v].first_reader) return false;
  for (const Demand& d : demands) {
    if (d.group != g && depends_on(g, d.group)) return false;
  }
  for (uint32_t reader : readers_) {
    if (reader == g || depends_on(g, reader)) return false;
  }
  return true;
}

bool Fusion::depends_on(uint32_t g, uint32_t target) {
  if (groups_[g].max_read < groups_[target].min_output) return false;
  ++stamp_;
  budget_ = kSearchBudget;
  return group_depends(g, target);
}

bool Fusion::group_depends(uint32_t g, uint32_t target) {
  if (groups_[g].stamp == stamp_) return false;
  groups_[g].stamp = stamp_;
  if (--budget_ < 0) return true;  // Unknown: as good as yes.
  for (uint32_t place : groups_[g].reads) {
    if (static_cast<int64_t>(place) < groups_[target].min_output) continue;
    if (value_depends(place, target)) return true;
  }
  return false;
}

bool Fusion::value_depends(ValueId v, uint32_t target) {
  if (static_cast<int64_t>(v) < groups_[target].min_output) return false;
  const NodeInfo& info = info_[v];
  if (info.made == Made::Buffer) return false;
  if (info.made == Made::Element) return value_depends(module_.node(v).operands[0], target);
  if (info.made == Made::Library) {
    if (library_stamp_.size() < info_.size()) library_stamp_.resize(info_.size(), 0);
    if (library_stamp_[v] == stamp_) return false;
    library_stamp_[v] = stamp_;
    if (--budget_ < 0) return true;
    for (ValueId operand : module_.node(v).operands) {
      if (value_depends(info_[operand].view.base, target)) return true;
    }
    return false;
  }
  for (uint32_t w = info.owner; w != kNone; w = groups_[w].next_writer) {
    const uint32_t g = find(w);
    if (g == target || group_depends(g, target)) return true;
  }
  if (module_.node(v).op == Op::Concatenate) {
    for (ValueId piece : module_.node(v).operands) {
      const ValueId base = info_[piece].view.base;
      if (info_[base].piece_of == v && value_depends(base, target)) return true;
    }
  }
  return false;
}

// --- Costs ------------------------------------------------------------------------------------

float op_cost(const hlo::Node& node) {
  switch (node.op) {
    case Op::Divide: return is_floating(node.type.dtype) ? 3 : 12;
    case Op::Remainder: return is_floating(node.type.dtype) ? 8 : 14;
    case Op::Sqrt:
    case Op::Rsqrt: return 4;
    case Op::Exp:
    case Op::Exp2: return 8;
    case Op::Log:
    case Op::Log2:
    case Op::Log10:
    case Op::Expm1:
    case Op::Logistic:
    case Op::Tanh:
    case Op::Gather: return 10;
    case Op::Log1p:
    case Op::Sine:
    case Op::Cosine:
    case Op::Erf:
    case Op::Atan:
    case Op::Sinh:
    case Op::Cosh: return 14;
    case Op::Tan:
    case Op::Asin:
    case Op::Acos:
    case Op::Asinh:
    case Op::Acosh:
    case Op::Atanh:
    case Op::Erfc:
    case Op::ErfInv:
    case Op::Atan2:
    case Op::PhiloxWord: return 24;
    case Op::Power: return 30;
    default: return hlo::class_of(node.op) == hlo::OpClass::View ? 0 : 1;
  }
}

}  // namespace neuron::compiler::cpu
