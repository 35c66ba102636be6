#pragma once

#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "neuron/hlo/module.h"

namespace neuron::hlo::internal {

/// A value in StableHLO text.
struct Ref {
  std::string name;  // "%3", "%5#1"
  Type type;
};
using Refs = std::vector<Ref>;

/// "tensor<2x3xf32>".
std::string type_text(const Type& type);
/// "array<i64: 1, 2>".
std::string array_text(DimsRef ints);
/// "[1, 2]".
std::string list_text(DimsRef ints);
/// The part of a constant between "dense<" and ">".
std::string dense_text(const Type& type, std::span<const std::byte> bytes);

/// Writes the statements of one function or region. Value names count up from %0, so that equal
/// modules give equal text.
class Emitter {
 public:
  explicit Emitter(std::string indent = "    ") : indent_(std::move(indent)) {}

  const std::string& text() const { return text_; }
  const std::string& indent() const { return indent_; }
  /// A region inside this function: names go on, the text is indented deeper.
  Emitter region() const;
  /// Takes up the names that a region used.
  void end_region(const Emitter& region) { next_ = region.next_; }

  /// `%n = stablehlo.<op> a, b : T` for ops whose operands and result share one type.
  Ref same(std::string_view op, std::initializer_list<Ref> operands);
  /// `%n = "stablehlo.<op>"(a, b) <{attributes}> ({region}) : (..) -> ..`
  Ref generic(std::string_view op, std::span<const Ref> operands, const Type& type,
              const std::string& attributes = "", const std::string& region = "");
  Ref generic(std::string_view op, std::initializer_list<Ref> operands, const Type& type,
              const std::string& attributes = "", const std::string& region = "") {
    return generic(op, std::span(operands.begin(), operands.size()), type, attributes, region);
  }
  Refs generic_multi(std::string_view op, std::span<const Ref> operands,
                     std::span<const Type> types, const std::string& attributes,
                     const std::string& region = "");
  /// Ends a function or region.
  void finish(std::string_view terminator, std::span<const Ref> values);

  // Shorthands for expansions.
  Ref constant(const Type& type, std::span<const std::byte> bytes);
  Ref constant(const Type& type, double value);
  Ref complex_constant(const Type& type, double real, double imag);
  /// A splat of x's type.
  Ref like(const Ref& x, double value) { return constant(x.type, value); }
  Ref zeros(const Type& type) { return constant(type, 0); }
  Ref iota(const Type& type, int64_t dim);
  Ref convert(const Ref& x, DType dtype);
  Ref compare(Direction direction, const Ref& a, const Ref& b, bool total_order = false);
  Ref select(const Ref& predicate, const Ref& a, const Ref& b);
  Ref reshape(const Ref& x, DimsRef dims);
  Ref broadcast(const Ref& x, DimsRef dims, DimsRef mapping);
  Ref concatenate(std::span<const Ref> parts, int64_t dim);
  Ref slice(const Ref& x, DimsRef start, DimsRef limit, DimsRef stride);

  Ref add(const Ref& a, const Ref& b) { return same("add", {a, b}); }
  Ref sub(const Ref& a, const Ref& b) { return same("subtract", {a, b}); }
  Ref mul(const Ref& a, const Ref& b) { return same("multiply", {a, b}); }
  Ref div(const Ref& a, const Ref& b) { return same("divide", {a, b}); }
  Ref bit_and(const Ref& a, const Ref& b) { return same("and", {a, b}); }
  Ref bit_or(const Ref& a, const Ref& b) { return same("or", {a, b}); }
  Ref neg(const Ref& x) { return same("negate", {x}); }
  Ref abs(const Ref& x) { return same("abs", {x}); }
  Ref exp(const Ref& x) { return same("exponential", {x}); }
  Ref log(const Ref& x) { return same("log", {x}); }
  Ref sqrt(const Ref& x) { return same("sqrt", {x}); }

 private:
  std::string next_names(size_t count);

  std::string indent_;
  std::string text_;
  int next_ = 0;
};

/// The text of a region `(arguments) { body }` in generic form; the body gets the arguments and
/// returns the results.
template <typename Body>
std::string region_text(Emitter& outer, std::span<const Type> arguments, Body&& body) {
  Emitter inner = outer.region();
  Refs refs;
  std::string header = "({\n" + outer.indent() + "^bb0(";
  for (size_t i = 0; i < arguments.size(); ++i) {
    refs.push_back({"%x" + std::to_string(i), arguments[i]});
    header += (i > 0 ? ", " : "") + refs[i].name + ": " + type_text(arguments[i]);
  }
  inner.finish("stablehlo.return", body(inner, static_cast<const Refs&>(refs)));
  outer.end_region(inner);
  return header + "):\n" + inner.text() + outer.indent() + "})";
}

/// Region of a reduction: combines two rank-0 values of `dtype`.
std::string reducer_text(Emitter& outer, ReduceKind kind, DType dtype);
/// The rank-0 neutral element.
Ref identity_constant(Emitter& out, ReduceKind kind, DType dtype);
/// A reduction of this kind and dtype is computed in f32 and rounded once.
inline bool accumulates_in_f32(ReduceKind kind, DType dtype) {
  return (kind == ReduceKind::Sum || kind == ReduceKind::Product) && size_of(dtype) < 4 &&
         is_floating(dtype);
}

/// The composite's name of an op that StableHLO does not have (or has with another meaning), else
/// "". Such an op prints as stablehlo.composite with its Ints as attribute "ints".
std::string composite_name(const Module& module, const Node& node);
/// Writes the decomposition of a composite and returns the results.
Refs expand(Emitter& out, const Node& node, std::span<const Ref> operands);
/// A collective in plain StableHLO.
Ref print_collective(Emitter& out, const Node& node, const Ref& x);
Ref expand_elementwise(Emitter& out, const Node& node, std::span<const Ref> operands);

}  // namespace neuron::hlo::internal
