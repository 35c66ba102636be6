#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "neuron/lowering/op_call.h"

namespace neuron::dynamo {

using lowering::Number;

/// Names an expression of a Sizes table.
using SizeId = int32_t;

/// Expressions over the symbols of a dynamic graph, kept once per graph and evaluated for each new
/// set of sizes. Operands come before the expressions that use them; equal expressions are stored
/// once. Not thread-safe while it grows.
class Sizes {
 public:
  using Function = std::function<Number(std::span<const Number>)>;

  SizeId constant(const Number& value);
  /// A new symbol. The value of a `real` one changes from call to call.
  SizeId symbol(bool real);
  /// `op` is a name of torch's sympy interpreter ("floordiv", "minimum"). Throws
  /// Error(kUnsupported) for names that are not known here.
  SizeId apply(std::string_view op, std::span<const SizeId> operands);
  /// An expression that the host language evaluates.
  SizeId apply(Function function, std::span<const SizeId> operands);

  bool is_constant(SizeId id) const { return rows_[static_cast<size_t>(id)].constant; }
  const Number& value_of_constant(SizeId id) const { return rows_[static_cast<size_t>(id)].value; }
  size_t symbol_count() const { return symbols_.size(); }
  bool is_real(size_t symbol) const { return symbols_[symbol].real; }
  SizeId id_of_symbol(size_t symbol) const { return symbols_[symbol].id; }
  size_t symbol_of(SizeId id) const { return rows_[static_cast<size_t>(id)].symbol; }
  /// Calls `visit` with the number of every symbol that the expression reads.
  void for_each_symbol(SizeId id, const std::function<void(size_t)>& visit) const;

  /// The values of all expressions.
  std::vector<Number> evaluate(std::span<const Number> symbols) const;

 private:
  enum class Op : uint8_t {
    Constant,
    Symbol,
    Function,
    Add,
    Mul,
    FloorDiv,
    Mod,
    ModularIndexing,
    Pow,
    TrueDiv,
    Min,
    Max,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    And,
    Or,
    Not,
    Where,
    ToFloat,
    Trunc,
    TruncToInt,
    FloorToInt,
    CeilToInt,
    RoundToInt,
    Abs,
    Sqrt,
    Identity,
    BitAnd,
    BitOr,
    BitXor,
  };
  struct Row {
    Op op = Op::Constant;
    bool constant = true;
    SizeId operands[3] = {-1, -1, -1};
    Number value;
    size_t symbol = 0;
    Function function;
    std::vector<SizeId> more;  // Operands of a Function.
  };
  struct Symbol {
    SizeId id;
    bool real;
  };
  static Number compute(const Row& row, std::span<const Number> values);
  SizeId add(Row row);

  std::vector<Row> rows_;
  std::vector<Symbol> symbols_;
};

}  // namespace neuron::dynamo
