// Reductions inside groups, and which groups may become one.
#include <algorithm>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/fuse.h"

namespace neuron::compiler::cpu {

using hlo::Node;
using hlo::Op;

namespace {

constexpr size_t kMaxReduces = 8;
/// A column reduction longer than this is not fused with what reads its whole operand again: one
/// piece of the columns would no longer stay in cache between the sweeps.
constexpr int64_t kMaxHostedColumn = 512;
// Elementwise work joins a column reduction only if that leaves enough to do in parallel.
constexpr int64_t kShortColumn = 64;
constexpr int64_t kManyKept = 4096;
constexpr int kSearchBudget = 64;

}  // namespace

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
    // Collectives keep their order, so one also waits for what the one before it waits for.
    const ValueId before = v < collective_before_.size() ? collective_before_[v] : kNone;
    return before != kNone && value_depends(before, target);
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

}  // namespace neuron::compiler::cpu
