#include "neuron/compiler/cpu/fuse.h"

#include <algorithm>

#include "neuron/base/error.h"

namespace neuron::compiler::cpu {

using hlo::Node;
using hlo::Op;

namespace {

/// Values at most this dear are computed again in each group that reads them.
constexpr float kCheap = 4;

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
  const hlo::Type& type = module_.node(place < n ? place : module_.results()[place - n].value).type;
  const int64_t elements = place < n
                               ? count_elements(type.dims)
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
    case Made::Buffer:
      merge_siblings(v, scratch_);
      return;  // Needs no read(): it is there.
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
    case Made::Compute:
      visit_computed(v, scratch_);
      return;
    case Made::Reduce:
      visit_reduce(v, scratch_);
      return;
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
      if (columns &&
          (groups_[a].kind == GroupKind::Column) != (groups_[b].kind == GroupKind::Column)) {
        continue;
      }
      try_merge(a, flat[i].map, b, flat[k].map, Dims{count});
    }
  }
  for (Demand& d : demands) d.group = find(d.group);
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
      const bool mixed =
          (groups_[a].kind == GroupKind::Column) != (groups_[b].kind == GroupKind::Column);
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
  bool store = info.must_store || (!one_group && !cheap) ||
               (demands.size() > 2 && info.made == Made::Compute && info.cost > 8);
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
      if (space > 8 * count && !rank0 && cover_of(d.group, d.map, node.type.dims) == Cover::None &&
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
      for (size_t i = 0; i < all.size(); ++i)
        demand_operand(v, i % reads.size(), all[i], group_of[i]);
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
    if (groups_[d.group].outputs.size() >= kMaxOutputs || groups_[d.group].size >= kMaxGroupSize ||
        groups_[d.group].loads >= kMaxLoads ||
        (cover_of(d.group, d.map, node.type.dims) == Cover::None && !make_row(v, d.group, d.map)) ||
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

}  // namespace neuron::compiler::cpu
