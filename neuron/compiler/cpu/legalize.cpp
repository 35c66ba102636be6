#include "neuron/compiler/cpu/legalize.h"

#include <algorithm>
#include <limits>

#include "neuron/base/error.h"
#include "neuron/base/float_formats.h"
#include "neuron/hlo/builder.h"

namespace neuron::compiler::cpu {

using hlo::Module;
using hlo::Node;
using hlo::Op;
using hlo::ReduceKind;
using hlo::ValueId;

Rewriter::Rewriter(const Module& from) : from_(from), to_(from.size(), hlo::kNoValue) {
  out_.mutable_nodes().reserve(from.size() + 16);
}

ValueId Rewriter::push(Node node) {
  out_.mutable_nodes().push_back(std::move(node));
  return static_cast<ValueId>(out_.size() - 1);
}

ValueId Rewriter::copy(ValueId v) {
  Node node = from_.node(v);
  for (ValueId& operand : node.operands) operand = to_[operand];
  to_[v] = push(std::move(node));
  return to_[v];
}

ValueId Rewriter::reshape(ValueId x, DimsRef dims) {
  if (std::equal(dims.begin(), dims.end(), type(x).dims.begin(), type(x).dims.end())) return x;
  Node node{Op::Reshape, {type(x).dtype, Dims(dims)}, {x}, {}, {}, {}, {}};
  return push(std::move(node));
}

ValueId Rewriter::convert(ValueId x, DType to) {
  if (type(x).dtype == to) return x;
  Node node{Op::Convert, {to, type(x).dims}, {x}, {}, {}, {}, {}};
  return push(std::move(node));
}

ValueId Rewriter::reduce(ReduceKind kind, ValueId x, int64_t dim) {
  Dims dims = type(x).dims;
  dims.erase(static_cast<size_t>(dim));
  Node node{Op::Reduce, {type(x).dtype, dims}, {x}, {static_cast<int64_t>(kind), dim}, {}, {}, {}};
  return push(std::move(node));
}

ValueId Rewriter::splat(DType type, DimsRef dims, std::span<const std::byte> element) {
  Node node{Op::Constant, {type, Dims(dims)}, {}, {}, {element.begin(), element.end()}, {}, {}};
  return push(std::move(node));
}

Module Rewriter::finish() {
  auto& parameters = out_.mutable_parameters();
  for (hlo::Parameter p : from_.parameters()) {
    p.value = to_[p.value];
    parameters.push_back(p);
  }
  for (hlo::Scalar s : from_.scalars()) {
    s.value = to_[s.value];
    out_.mutable_scalars().push_back(s);
  }
  for (hlo::Result r : from_.results()) {
    r.value = to_[r.value];
    out_.mutable_results().push_back(r);
  }
  return std::move(out_);
}

namespace {

/// Bytes of the identity of a reduction.
std::vector<std::byte> identity_of(ReduceKind kind, DType type) {
  uint64_t bits = 0;
  const size_t size = size_of(type);
  auto from_float = [&](double value) {
    switch (type) {
      case DType::f64:
        return std::bit_cast<uint64_t>(value);
      case DType::f32:
        return uint64_t{std::bit_cast<uint32_t>(static_cast<float>(value))};
      case DType::bf16:
        return uint64_t{float_to_bf16(static_cast<float>(value))};
      case DType::f16:
        return uint64_t{float_to_f16(static_cast<float>(value))};
      case DType::f8e4m3fn:
        return uint64_t{float_to_f8e4m3fn(static_cast<float>(value))};
      case DType::f8e4m3:
        return uint64_t{float_to_f8e4m3(static_cast<float>(value))};
      case DType::f8e5m2:
        return uint64_t{float_to_f8e5m2(static_cast<float>(value))};
      default:
        return uint64_t{0};
    }
  };
  if (is_complex(type)) {
    // The identity of the parts, then nothing.
    std::vector<std::byte> bytes = identity_of(kind, real_of(type));
    bytes.resize(size);
    return bytes;
  }
  const bool real = is_floating(type);
  const uint64_t sign = 1ull << (8 * size - 1);
  switch (kind) {
    case ReduceKind::Sum:
    case ReduceKind::Or:
      break;
    case ReduceKind::Product:
      bits = real ? from_float(1) : 1;
      break;
    case ReduceKind::And:
      bits = type == DType::pred ? 1 : ~0ull;
      break;
    case ReduceKind::Max:
      bits = real                      ? from_float(-std::numeric_limits<double>::infinity())
             : is_signed_integer(type) ? sign
                                       : 0;
      break;
    case ReduceKind::Min:
      bits = real                      ? from_float(std::numeric_limits<double>::infinity())
             : type == DType::pred     ? 1
             : is_signed_integer(type) ? sign - 1
                                       : ~0ull;
      break;
  }
  std::vector<std::byte> bytes(size);
  std::memcpy(bytes.data(), &bits, size);
  return bytes;
}

// Rows at least this long, where there are few of them, are cut into chunks that run in parallel.
constexpr int64_t kLongRow = 32768;
constexpr int64_t kFewRows = 16;
constexpr int64_t kRowChunk = 4096;
// Columns longer than this are cut, unless there is little work or there are very many of them.
constexpr int64_t kLongColumn = 128;
constexpr int64_t kMinColumnChunk = 32;
constexpr int64_t kMaxColumnChunk = 256;
constexpr int64_t kMinColumnWork = 32768;
constexpr int64_t kManyColumns = 32768;
constexpr int64_t kLongestManyColumn = 4096;

/// Length of the chunks to cut a reduced dim into; 0: leave it whole.
int64_t chunk_of(DimsRef dims, size_t dim) {
  int64_t kept = 1, inner = 1;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i == dim) continue;
    kept *= dims[i];
    if (i > dim) inner *= dims[i];
  }
  const int64_t length = dims[dim];
  int64_t wanted;
  if (inner == 1) {
    if (length < kLongRow || kept >= kFewRows) return 0;
    wanted = kRowChunk;
  } else {
    if (length <= kLongColumn || length * kept < kMinColumnWork) return 0;
    if (kept >= kManyColumns && length <= kLongestManyColumn) return 0;
    wanted = std::clamp(length / 16, kMinColumnChunk, kMaxColumnChunk);
  }
  // A divisor nearby saves the padding.
  for (int64_t step = 0; step <= wanted / 2; ++step) {
    if (length % (wanted + step) == 0) return wanted + step;
    if (length % (wanted - step) == 0) return wanted - step;
  }
  return wanted;
}

bool needs_work(const Module& module, const Node& node) {
  switch (node.op) {
    case Op::Reduce: {
      const Dims& dims = module.node(node.operands[0]).type.dims;
      if (node.ints.size() != 2) return true;
      return dims[node.ints[1]] < 2 || count_elements(dims) == 0 ||
             chunk_of(dims, static_cast<size_t>(node.ints[1])) != 0;
    }
    case Op::DotGeneral:
      return hlo::DotDims::decode(node.ints).lhs_contract.size() > 1;
    case Op::AsStrided:
      return module.node(node.operands[0]).type.dims.size() != 1;
    default:
      return !node.operands.empty() &&
             has_complex_formula(node.op, module.node(node.operands[0]).type.dtype);
  }
}

/// Reduces one dim, in chunks where it is long.
ValueId reduce_dim(Rewriter& w, ReduceKind kind, ValueId x, size_t dim) {
  while (true) {
    const Dims dims = w.type(x).dims;
    const int64_t chunk = chunk_of(dims, dim);
    if (chunk == 0) return w.reduce(kind, x, static_cast<int64_t>(dim));
    const int64_t pieces = (dims[dim] + chunk - 1) / chunk;
    const size_t rank = dims.size();
    if (pieces * chunk != dims[dim]) {
      const DType type = w.type(x).dtype;
      const ValueId fill = w.splat(type, {}, identity_of(kind, type));
      Node pad{Op::Pad, {type, dims}, {x, fill}, {}, {}, {}, {}};
      pad.type.dims[dim] = pieces * chunk;
      pad.ints.resize(3 * rank, 0);
      pad.ints[rank + dim] = pieces * chunk - dims[dim];
      x = w.push(std::move(pad));
    }
    Dims cut(dims.begin(), dims.begin() + static_cast<ptrdiff_t>(dim));
    cut.push_back(pieces);
    cut.push_back(chunk);
    cut.append(dims.begin() + static_cast<ptrdiff_t>(dim) + 1, dims.end());
    x = w.reduce(kind, w.reshape(x, cut), static_cast<int64_t>(dim) + 1);
  }
}

ValueId legalize_reduce(Rewriter& w, const Node& node) {
  const auto kind = static_cast<ReduceKind>(node.ints[0]);
  ValueId x = w.mapped(node.operands[0]);
  const DType type = node.type.dtype;
  const Dims from = w.type(x).dims;
  if (count_elements(from) == 0) return w.splat(type, node.type.dims, identity_of(kind, type));
  SmallVector<uint8_t, 8> reduced(from.size());
  for (size_t i = 1; i < node.ints.size(); ++i) reduced[node.ints[i]] = 1;
  // Drop dims of size 1 and join neighbours of one kind.
  Dims dims;
  SmallVector<uint8_t, 8> joined;
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] == 1) continue;
    if (reduced[i] != 0 && !joined.empty() && joined.back() != 0) {
      dims.back() *= from[i];
    } else {
      dims.push_back(from[i]);
      joined.push_back(reduced[i]);
    }
  }
  int runs = 0;
  for (uint8_t r : joined) runs += r;
  const bool small = type == DType::f16 || type == DType::bf16 || is_float8(type);
  x = w.reshape(x, dims);
  // Between passes a sum must not be rounded to the narrow type.
  if (small && (kind == ReduceKind::Sum || kind == ReduceKind::Product)) {
    x = w.convert(x, DType::f32);
  }
  for (size_t i = dims.size(); i-- > 0;) {
    if (joined[i] != 0) x = reduce_dim(w, kind, x, i);
  }
  return w.reshape(w.convert(x, type), node.type.dims);
}

/// x with `order` of dims and the dims [begin, end) of that order joined to one.
ValueId joined_view(Rewriter& w, ValueId x, const Dims& order, size_t begin, size_t end) {
  const Dims from = w.type(x).dims;
  Dims turned;
  bool turns = false;
  for (size_t i = 0; i < order.size(); ++i) {
    turned.push_back(from[static_cast<size_t>(order[i])]);
    turns = turns || order[i] != static_cast<int64_t>(i);
  }
  if (turns) {
    Node node{Op::Transpose, {w.type(x).dtype, turned}, {x}, {}, {}, {}, {}};
    node.ints.append(order.begin(), order.end());
    x = w.push(std::move(node));
  }
  Dims joined(turned.begin(), turned.begin() + static_cast<ptrdiff_t>(begin));
  int64_t product = 1;
  for (size_t i = begin; i < end; ++i) product *= turned[i];
  joined.push_back(product);
  joined.append(turned.begin() + static_cast<ptrdiff_t>(end), turned.end());
  return w.reshape(x, joined);
}

/// A product over one contracted dim: of several, the joined one.
ValueId legalize_dot(Rewriter& w, const Node& node) {
  const hlo::DotDims dims = hlo::DotDims::decode(node.ints);
  auto side = [&](ValueId x, const Dims& batch, const Dims& contract) {
    Dims order = batch;
    for (size_t d = 0; d < w.type(x).dims.size(); ++d) {
      const auto dim = static_cast<int64_t>(d);
      if (std::find(batch.begin(), batch.end(), dim) == batch.end() &&
          std::find(contract.begin(), contract.end(), dim) == contract.end()) {
        order.push_back(dim);
      }
    }
    const size_t begin = order.size();
    order.append(contract.begin(), contract.end());
    return joined_view(w, x, order, begin, order.size());
  };
  Node dot = node;
  dot.operands[0] = side(w.mapped(node.operands[0]), dims.lhs_batch, dims.lhs_contract);
  dot.operands[1] = side(w.mapped(node.operands[1]), dims.rhs_batch, dims.rhs_contract);
  hlo::DotDims plain;
  for (size_t i = 0; i < dims.lhs_batch.size(); ++i) {
    plain.lhs_batch.push_back(static_cast<int64_t>(i));
    plain.rhs_batch.push_back(static_cast<int64_t>(i));
  }
  plain.lhs_contract.push_back(static_cast<int64_t>(w.type(dot.operands[0]).dims.size()) - 1);
  plain.rhs_contract.push_back(static_cast<int64_t>(w.type(dot.operands[1]).dims.size()) - 1);
  dot.ints = plain.encode();
  return w.push(std::move(dot));
}

}  // namespace

std::optional<Module> legalize(const Module& module) {
  bool legal = true;
  for (const Node& node : module.nodes()) {
    legal = legal && !needs_work(module, node);
  }
  if (legal) return std::nullopt;
  Rewriter w(module);
  for (ValueId v = 0; v < module.size(); ++v) {
    const Node& node = module.node(v);
    if (!needs_work(module, node)) {
      w.copy(v);
    } else if (node.op == Op::Reduce) {
      w.map(v, legalize_reduce(w, node));
    } else if (node.op == Op::DotGeneral) {
      w.map(v, legalize_dot(w, node));
    } else if (node.op != Op::AsStrided) {
      w.map(v, expand_complex(w, node));
    } else {
      Node flat = node;
      flat.operands[0] = w.reshape(w.mapped(node.operands[0]),
                                   Dims{count_elements(w.type(w.mapped(node.operands[0])).dims)});
      w.map(v, w.push(std::move(flat)));
    }
  }
  return w.finish();
}

}  // namespace neuron::compiler::cpu
