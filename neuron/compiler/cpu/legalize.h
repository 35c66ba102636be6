#pragma once

#include <optional>

#include "neuron/hlo/module.h"

namespace neuron::compiler::cpu {

/// Rewrites what fusion does not take as it is: every Reduce afterwards has one dim of two or more
/// elements, short enough for one pass; AsStrided reads flat operands;
/// products contract one dim. Nothing if the module is
/// legal already. Where a sum is cut depends on shape and dtype alone. Throws Error(kUnsupported).
std::optional<hlo::Module> legalize(const hlo::Module& module);

/// Nodes that only use other nodes: a builder for rewrites.
class Rewriter {
 public:
  explicit Rewriter(const hlo::Module& from);
  hlo::ValueId mapped(hlo::ValueId v) const { return to_[v]; }
  void map(hlo::ValueId from, hlo::ValueId to) { to_[from] = to; }
  /// Copies node v with mapped operands.
  hlo::ValueId copy(hlo::ValueId v);
  hlo::ValueId push(hlo::Node node);
  const hlo::Type& type(hlo::ValueId v) const { return out_.nodes()[v].type; }
  const hlo::Node& node(hlo::ValueId v) const { return out_.nodes()[v]; }

  hlo::ValueId reshape(hlo::ValueId x, DimsRef dims);
  hlo::ValueId convert(hlo::ValueId x, DType type);
  hlo::ValueId reduce(hlo::ReduceKind kind, hlo::ValueId x, int64_t dim);
  hlo::ValueId splat(DType type, DimsRef dims, std::span<const std::byte> element);
  /// Adds the results of `from`; the Rewriter is dead afterwards.
  hlo::Module finish();

 private:
  const hlo::Module& from_;
  hlo::Module out_;
  std::vector<hlo::ValueId> to_;
};

/// The op is a function of complex numbers that expand_complex() spells out.
bool has_complex_formula(hlo::Op op, DType operand);
/// The value of such a node, in arithmetic of real and imaginary parts.
hlo::ValueId expand_complex(Rewriter& w, const hlo::Node& node);

}  // namespace neuron::compiler::cpu
