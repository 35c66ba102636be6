// Groups, their axes, and the maps over them.
#include <algorithm>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/fuse.h"

namespace neuron::compiler::cpu {

using hlo::Node;
using hlo::Op;

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
      const bool checked = static_cast<hlo::OutOfBounds>(node.ints[1]) == hlo::OutOfBounds::Fail;
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
    default:
      break;
  }
  if (info_[v].made != Made::View || node.op == Op::TupleElement) {
    for (ValueId operand : node.operands) reads->push_back({operand, at});
    return true;
  }
  for (size_t k = 0; k < node.operands.size(); ++k) {
    const ValueId operand = node.operands[k];
    SmallVector<Affine, 4> exprs;
    while (true) {
      const MapStep step = map_view(module_, node, k, map(at), groups_[g].extents, &exprs);
      if (step.status == MapStep::Status::Ok) break;
      if (step.status == MapStep::Status::Fail || !refine(g, step.axis, step.factor)) return false;
    }
    reads->push_back({operand, new_map(g, exprs)});
  }
  return true;
}

void Fusion::demand(ValueId v, uint32_t g, MapId map) {
  // Everybody computes such values for himself, and a learning rate has thousands of readers.
  if (info_[v].scalar_only) return;
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

}  // namespace neuron::compiler::cpu
