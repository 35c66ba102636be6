// What each node is to fusion, and what computing it costs.
#include <algorithm>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/fuse.h"
#include "neuron/compiler/cpu/loop_nest.h"

namespace neuron::compiler::cpu {

using hlo::Node;
using hlo::Op;

namespace {

bool is_view(Op op) { return hlo::class_of(op) == hlo::OpClass::View; }

}  // namespace

void Fusion::classify() {
  ValueId before = kNone;
  for (ValueId v = 0; v < module_.size(); ++v) {
    if (hlo::is_collective(module_.node(v).op)) {
      collective_before_.resize(module_.size(), kNone);
      collective_before_[v] = before;
      before = v;
    }
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
    case Op::Iota:
      info.made = Made::Free;
      return;
    case Op::TupleElement:
      info.made = node.ints[0] == 0 ? Made::View : Made::Element;
      break;
    case Op::Reduce:
    case Op::ArgReduce:
      info.made = Made::Reduce;
      break;
    case Op::PhiloxWord:
    case Op::Gather:
      info.made = Made::Compute;
      break;
    case Op::AsStridedScatter:
    case Op::DynamicUpdateSlice:
    case Op::Scatter:
    case Op::Scan:
    case Op::ReduceWindow:
    case Op::DotGeneral:
    case Op::Convolution:
    case Op::Sort:
    case Op::LibraryCall:
      info.made = Made::Library;
      break;
    default:
      if (hlo::is_collective(node.op)) {
        info.made = Made::Library;
        info.must_store =
            true;  // The other devices wait, whether this one needs the result or not.
      } else if (is_view(node.op)) {
        info.made = Made::View;
      } else {
        const ValueId typed = node.operands[node.op == Op::Select ? 1 : 0];
        info.made =
            supports(node.op, module_.node(typed).type.dtype) ? Made::Compute : Made::Library;
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
  // One number, whatever the position.
  info.scalar_only = node.op != Op::PhiloxWord && node.op != Op::Gather && node.op != Op::Pad &&
                     node.op != Op::Concatenate;
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
    case Op::TupleElement:
      view.strides = from.strides;
      break;
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
    default:
      return false;
  }
  view.offset += from.offset;
  view.base = from.base;
  return true;
}

float op_cost(const hlo::Node& node) {
  switch (node.op) {
    case Op::Divide:
      return is_floating(node.type.dtype) ? 3 : 12;
    case Op::Remainder:
      return is_floating(node.type.dtype) ? 8 : 14;
    case Op::Sqrt:
    case Op::Rsqrt:
      return 4;
    case Op::Exp:
    case Op::Exp2:
      return 8;
    case Op::Log:
    case Op::Log2:
    case Op::Log10:
    case Op::Expm1:
    case Op::Logistic:
    case Op::Tanh:
    case Op::Gather:
      return 10;
    case Op::Log1p:
    case Op::Sine:
    case Op::Cosine:
    case Op::Erf:
    case Op::Atan:
    case Op::Sinh:
    case Op::Cosh:
      return 14;
    case Op::Tan:
    case Op::Asin:
    case Op::Acos:
    case Op::Asinh:
    case Op::Acosh:
    case Op::Atanh:
    case Op::Erfc:
    case Op::ErfInv:
    case Op::Atan2:
    case Op::PhiloxWord:
      return 24;
    case Op::Power:
      return 30;
    default:
      return hlo::class_of(node.op) == hlo::OpClass::View ? 0 : 1;
  }
}

}  // namespace neuron::compiler::cpu
