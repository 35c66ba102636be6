#include "neuron/compiler/cpu/narrow_products.h"

#include "neuron/compiler/cpu/legalize.h"

namespace neuron::compiler::cpu {

using hlo::Module;
using hlo::Node;
using hlo::Op;
using hlo::ValueId;

namespace {

bool is_view(const Node& node) {
  return hlo::class_of(node.op) == hlo::OpClass::View && node.operands.size() == 1 &&
         node.op != Op::TupleElement;
}

/// What `v` was before it was widened to f32, maybe behind views; nothing if it was not.
std::optional<DType> narrow_source(const Module& module, ValueId v) {
  while (is_view(module.node(v))) v = module.node(v).operands[0];
  const Node& node = module.node(v);
  if (node.op != Op::Convert || node.type.dtype != DType::f32) return std::nullopt;
  const DType from = module.node(node.operands[0]).type.dtype;
  if (from != DType::bf16 && from != DType::f16) return std::nullopt;
  return from;
}

/// The dtype that both operands of a product in f32 were widened from.
std::optional<DType> narrow_product(const Module& module, const Node& node) {
  if (node.op != Op::DotGeneral || node.type.dtype != DType::f32) return std::nullopt;
  const std::optional<DType> lhs = narrow_source(module, node.operands[0]);
  return lhs && lhs == narrow_source(module, node.operands[1]) ? lhs : std::nullopt;
}

/// x of the new module without its widening.
ValueId narrowed(Rewriter& w, ValueId x, DType dtype) {
  Node node = w.node(x);
  if (node.op == Op::Convert) return node.operands[0];
  node.operands[0] = narrowed(w, node.operands[0], dtype);
  node.type.dtype = dtype;
  return w.push(std::move(node));
}

}  // namespace

std::optional<Module> narrow_products(const Module& module) {
  bool any = false;
  for (const Node& node : module.nodes()) any = any || narrow_product(module, node).has_value();
  if (!any) return std::nullopt;
  Rewriter w(module);
  for (ValueId v = 0; v < module.size(); ++v) {
    const std::optional<DType> dtype = narrow_product(module, module.node(v));
    if (!dtype) {
      w.copy(v);
      continue;
    }
    Node dot = module.node(v);
    for (ValueId& operand : dot.operands) operand = narrowed(w, w.mapped(operand), *dtype);
    w.map(v, w.push(std::move(dot)));
  }
  return w.finish();
}

}  // namespace neuron::compiler::cpu
