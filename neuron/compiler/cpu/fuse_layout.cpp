// Where values live: the buffers of results, of updates in place, of pieces of a whole.
#include <algorithm>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/fuse.h"

namespace neuron::compiler::cpu {

using hlo::Node;
using hlo::Op;

namespace {

bool is_view(Op op) { return hlo::class_of(op) == hlo::OpClass::View; }

}  // namespace

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
  // What an update changes is computed where the update's result is to be, if nothing else reads
  // it.
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
    const bool library =
        node.op == Op::DotGeneral || node.op == Op::LibraryCall || node.op == Op::Convolution;
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
    if (node.op != Op::Concatenate || stored[v] == 0 || count_elements(node.type.dims) == 0)
      continue;
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
      home.offset += begin * whole.strides[dim] * static_cast<int64_t>(size_of(node.type.dtype));
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

}  // namespace neuron::compiler::cpu
