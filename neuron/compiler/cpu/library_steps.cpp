#include "neuron/compiler/cpu/library_steps.h"

#include <algorithm>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/work_model.h"
#include "neuron/hlo/builder.h"

namespace neuron::compiler::cpu {

using hlo::Node;
using hlo::Op;
using neff::BufferRef;
using neff::LibraryTensor;

std::string_view library_name(Op op) {
  if (hlo::is_collective(op)) return hlo::stablehlo_name(op);
  switch (op) {
    case Op::AsStridedScatter:
      return "neuron.as_strided_scatter";
    case Op::DynamicUpdateSlice:
      return "neuron.dynamic_update_slice";
    case Op::Scatter:
      return "neuron.scatter";
    case Op::Scan:
      return "neuron.scan";
    case Op::ReduceWindow:
      return "neuron.reduce_window";
    case Op::DotGeneral:
      return "neuron.dot";
    case Op::Convolution:
      return "neuron.convolution";
    case Op::Sort:
      return "neuron.sort";
    case Op::Reduce:
      return "neuron.reduce";
    case Op::ArgReduce:
      return "neuron.arg_reduce";
    default: {
      const int operands = hlo::operand_count(op);
      return operands == 1 ? "neuron.unary" : operands == 2 ? "neuron.binary" : "neuron.ternary";
    }
  }
}

namespace {

struct Operand {
  LibraryTensor tensor;
  uint32_t place = kNone;
};

Operand operand_of(const Fusion& f, ValueId v) {
  const Node& node = f.module().node(v);
  const NodeInfo& info = f.info(v);
  Operand operand;
  operand.place = info.view.base;
  const Home& home = f.home(operand.place);
  NEURON_ASSERT(home.valid, "an operand of a library step was not stored: ", name_of(node.op));
  LibraryTensor& t = operand.tensor;
  t.buffer = {home.kind, home.index,
              home.offset + info.view.offset * static_cast<int64_t>(size_of(node.type.dtype))};
  t.dtype = node.type.dtype;
  t.dims = node.type.dims;
  t.strides = info.view.strides;
  return operand;
}

Operand result_of(const Fusion& f, uint32_t place, const hlo::Type& type) {
  Operand operand;
  operand.place = place;
  const Home& home = f.home(place);
  LibraryTensor& t = operand.tensor;
  t.buffer = home.valid ? BufferRef{home.kind, home.index, home.offset}
                        : BufferRef{BufferRef::Kind::Arena, place, 0};
  t.dtype = type.dtype;
  t.dims = type.dims;
  t.strides = home.valid ? home.strides : contiguous_strides(type.dims);
  return operand;
}

PlannedStep make_step(const Fusion& f, ValueId v, std::span<const Operand> inputs,
                      std::span<const Operand> outputs) {
  const Node& node = f.module().node(v);
  PlannedStep step;
  step.library = true;
  step.collective = hlo::is_collective(node.op);
  step.rank = v;
  step.call.name = node.op == Op::LibraryCall ? node.name : std::string(library_name(node.op));
  for (const Operand& input : inputs) {
    step.call.inputs.push_back(input.tensor);
    step.reads.push_back(input.place);
  }
  for (const Operand& output : outputs) {
    step.call.outputs.push_back(output.tensor);
    step.writes.push_back(output.place);
    if (output.place < f.module().size() && f.info(output.place).piece_of != kNone) {
      step.writes.push_back(f.info(output.place).piece_of);
    }
  }
  return step;
}

/// Results written over a parameter that the step also reads. `partner` is the input that the
/// kernel itself allows to share the output's memory, or -1.
void find_unsafe(const Fusion& f, PlannedStep& step, int partner) {
  for (const LibraryTensor& out : step.call.outputs) {
    if (out.buffer.kind != BufferRef::Kind::Result) continue;
    const int32_t alias = f.module().results()[out.buffer.index].alias;
    if (alias < 0) continue;
    for (size_t i = 0; i < step.call.inputs.size(); ++i) {
      const LibraryTensor& in = step.call.inputs[i];
      if (in.buffer.kind != BufferRef::Kind::Parameter ||
          in.buffer.index != static_cast<uint32_t>(alias)) {
        continue;
      }
      if (static_cast<int>(i) == partner && in.buffer.offset == out.buffer.offset &&
          in.strides == out.strides) {
        continue;
      }
      step.unsafe.push_back(out.buffer.index);
      break;
    }
  }
}

/// Dims of a product that walk together, each with a stride in up to two operands and the result.
struct DotAxes {
  Dims size, lhs, rhs, out;
  void add(int64_t n, int64_t l, int64_t r, int64_t o) {
    if (n == 1) return;
    if (!size.empty() && lhs.back() == n * l && rhs.back() == n * r && out.back() == n * o) {
      size.back() *= n;
      lhs.back() = l;
      rhs.back() = r;
      out.back() = o;
      return;
    }
    size.push_back(n);
    lhs.push_back(l);
    rhs.push_back(r);
    out.push_back(o);
  }
  /// The last dim is the kernel's; those before it are looped over. One of size 1 if there is none.
  void finish() {
    if (!size.empty()) return;
    size.push_back(1);
    lhs.push_back(1);
    rhs.push_back(1);
    out.push_back(1);
  }
};

bool contains(const Dims& dims, size_t d) {
  return std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) != dims.end();
}

void add_dot(Fusion& f, ValueId v, std::vector<PlannedStep>* steps) {
  const Node& node = f.module().node(v);
  const hlo::DotDims dims = hlo::DotDims::decode(node.ints);
  const Operand lhs = operand_of(f, node.operands[0]);
  const Operand rhs = operand_of(f, node.operands[1]);
  const Operand out = result_of(f, v, node.type);
  DotAxes batch, rows, columns, contracted;
  size_t at = 0;
  for (size_t i = 0; i < dims.lhs_batch.size(); ++i, ++at) {
    const auto l = static_cast<size_t>(dims.lhs_batch[i]);
    const auto r = static_cast<size_t>(dims.rhs_batch[i]);
    batch.add(lhs.tensor.dims[l], lhs.tensor.strides[l], rhs.tensor.strides[r],
              out.tensor.strides[at]);
  }
  for (size_t d = 0; d < lhs.tensor.dims.size(); ++d) {
    if (contains(dims.lhs_batch, d) || contains(dims.lhs_contract, d)) continue;
    rows.add(lhs.tensor.dims[d], lhs.tensor.strides[d], 0, out.tensor.strides[at++]);
  }
  for (size_t d = 0; d < rhs.tensor.dims.size(); ++d) {
    if (contains(dims.rhs_batch, d) || contains(dims.rhs_contract, d)) continue;
    columns.add(rhs.tensor.dims[d], 0, rhs.tensor.strides[d], out.tensor.strides[at++]);
  }
  for (size_t i = 0; i < dims.lhs_contract.size(); ++i) {
    const auto l = static_cast<size_t>(dims.lhs_contract[i]);
    const auto r = static_cast<size_t>(dims.rhs_contract[i]);
    contracted.add(lhs.tensor.dims[l], lhs.tensor.strides[l], rhs.tensor.strides[r], 0);
  }
  for (DotAxes* axes : {&batch, &rows, &columns, &contracted}) axes->finish();
  NEURON_CHECK(contracted.size.size() == 1, kUnsupported, "cpu compiler: ", to_string(node.type),
               ": the contracted dims of a product are not evenly spaced in memory");
  // Loop over what the kernel's [b, m, k] x [b, k, n] views cannot express.
  int64_t loops = 1;
  for (const DotAxes* axes : {&batch, &rows, &columns}) {
    for (size_t i = 0; i + 1 < axes->size.size(); ++i) loops *= axes->size[i];
  }
  NEURON_CHECK(loops <= 4096, kUnsupported, "cpu compiler: ", to_string(node.type),
               ": a product over too many separate matrices");
  const auto element = static_cast<int64_t>(size_of(lhs.tensor.dtype));
  for (int64_t loop = 0; loop < loops; ++loop) {
    int64_t rest = loop, l = 0, r = 0, o = 0;
    for (const DotAxes* axes : {&batch, &rows, &columns}) {
      for (size_t i = 0; i + 1 < axes->size.size(); ++i) {
        const int64_t index = rest % axes->size[i];
        rest /= axes->size[i];
        l += index * axes->lhs[i];
        r += index * axes->rhs[i];
        o += index * axes->out[i];
      }
    }
    Operand a = lhs, b = rhs, c = out;
    const int64_t nb = batch.size.back(), m = rows.size.back(), n = columns.size.back(),
                  k = contracted.size.back();
    a.tensor.dims = {nb, m, k};
    a.tensor.strides = {batch.lhs.back(), rows.lhs.back(), contracted.lhs.back()};
    a.tensor.buffer.offset += l * element;
    b.tensor.dims = {nb, k, n};
    b.tensor.strides = {batch.rhs.back(), contracted.rhs.back(), columns.rhs.back()};
    b.tensor.buffer.offset += r * element;
    c.tensor.dims = {nb, m, n};
    c.tensor.strides = {batch.out.back(), rows.out.back(), columns.out.back()};
    c.tensor.buffer.offset += o * static_cast<int64_t>(size_of(c.tensor.dtype));
    const Operand inputs[] = {a, b};
    const Operand outputs[] = {c};
    PlannedStep step = make_step(f, v, inputs, outputs);
    find_unsafe(f, step, -1);
    step.work = work_of(step.call);
    steps->push_back(std::move(step));
  }
}

}  // namespace

void add_library_steps(Fusion& f, ValueId v, std::vector<PlannedStep>* steps) {
  const Node& node = f.module().node(v);
  if (count_elements(node.type.dims) == 0 && node.op != Op::LibraryCall && node.results.empty()) {
    return;
  }
  if (node.op == Op::DotGeneral) return add_dot(f, v, steps);
  std::vector<Operand> inputs, outputs;
  for (ValueId operand : node.operands) inputs.push_back(operand_of(f, operand));
  outputs.push_back(result_of(f, v, node.type));
  for (size_t k = 1; k < node.results.size(); ++k) {
    outputs.push_back(result_of(f, f.element_place(v, k), node.results[k]));
  }
  PlannedStep step = make_step(f, v, inputs, outputs);
  int partner = -1;
  switch (node.op) {
    case Op::Scatter:
    case Op::DynamicUpdateSlice:
    case Op::AsStridedScatter:
    case Op::AllReduce:
    case Op::CollectiveBroadcast:
      partner = 0;
      break;
    default:
      break;
  }
  switch (node.op) {
    case Op::LibraryCall:
      step.call.arguments.assign(node.bytes.begin(), node.bytes.end());
      break;
    case Op::AsStridedScatter:
    case Op::DynamicUpdateSlice:
    case Op::Scatter:
    case Op::Scan:
    case Op::ReduceWindow:
    case Op::Convolution:
    case Op::Sort:
    case Op::Reduce:
    case Op::ArgReduce:
      break;
    default:  // One kernel serves many ops.
      if (!step.collective) step.call.ints.push_back(static_cast<int64_t>(node.op));
  }
  step.call.ints.append(node.ints.begin(), node.ints.end());
  find_unsafe(f, step, partner);
  step.work = work_of(step.call);
  steps->push_back(std::move(step));
}

}  // namespace neuron::compiler::cpu
