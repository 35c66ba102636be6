#include "neuron/dynamo/sizes.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "neuron/base/error.h"

namespace neuron::dynamo {
namespace {

Number integer(int64_t value) {
  Number number;
  number.kind = DType::i64;
  number.integer = value;
  return number;
}

Number real(double value) {
  Number number;
  number.kind = DType::f64;
  number.real_imag = value;
  return number;
}

Number truth(bool value) {
  Number number;
  number.kind = DType::pred;
  number.integer = value ? 1 : 0;
  return number;
}

bool is_real_number(const Number& number) { return number.kind == DType::f64; }

bool equal(const Number& a, const Number& b) {
  return a.kind == b.kind && a.integer == b.integer && a.real_imag == b.real_imag;
}

// Python's: rounds towards minus infinity.
int64_t floor_divide(int64_t a, int64_t b) {
  NEURON_CHECK(b != 0, kInvalid, "a size is divided by zero");
  const int64_t quotient = a / b;
  return quotient - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

int64_t power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (; exponent > 0; --exponent) result *= base;
  return result;
}

}  // namespace

SizeId Sizes::add(Row row) {
  if (row.op != Op::Symbol && row.op != Op::Function) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      const Row& other = rows_[i];
      if (other.op == row.op && std::equal(row.operands, row.operands + 3, other.operands) &&
          (row.op != Op::Constant || equal(row.value, other.value))) {
        return static_cast<SizeId>(i);
      }
    }
  }
  rows_.push_back(std::move(row));
  return static_cast<SizeId>(rows_.size()) - 1;
}

SizeId Sizes::constant(const Number& value) {
  Row row;
  row.value = value;
  return add(std::move(row));
}

SizeId Sizes::symbol(bool real) {
  Row row;
  row.op = Op::Symbol;
  row.constant = false;
  row.symbol = symbols_.size();
  const SizeId id = add(std::move(row));
  symbols_.push_back({id, real});
  return id;
}

SizeId Sizes::apply(std::string_view op, std::span<const SizeId> operands) {
  static constexpr struct {
    std::string_view name;
    Op op;
    size_t operands;
  } kNames[] = {
      {"add", Op::Add, 2},
      {"mul", Op::Mul, 2},
      {"floordiv", Op::FloorDiv, 2},
      {"mod", Op::Mod, 2},
      {"python_mod", Op::Mod, 2},
      {"modular_indexing", Op::ModularIndexing, 3},
      {"pow_by_natural", Op::Pow, 2},
      {"pow", Op::Pow, 2},
      {"truediv", Op::TrueDiv, 2},
      {"int_truediv", Op::TrueDiv, 2},
      {"minimum", Op::Min, 2},
      {"maximum", Op::Max, 2},
      {"eq", Op::Eq, 2},
      {"ne", Op::Ne, 2},
      {"lt", Op::Lt, 2},
      {"le", Op::Le, 2},
      {"gt", Op::Gt, 2},
      {"ge", Op::Ge, 2},
      {"and_", Op::And, 2},
      {"or_", Op::Or, 2},
      {"not_", Op::Not, 1},
      {"where", Op::Where, 3},
      {"to_float", Op::ToFloat, 1},
      {"trunc", Op::Trunc, 1},
      {"trunc_to_int", Op::TruncToInt, 1},
      {"floor_to_int", Op::FloorToInt, 1},
      {"ceil_to_int", Op::CeilToInt, 1},
      {"round_to_int", Op::RoundToInt, 1},
      {"abs", Op::Abs, 1},
      {"sqrt", Op::Sqrt, 1},
      {"identity", Op::Identity, 1},
      {"bitwise_and", Op::BitAnd, 2},
      {"bitwise_or", Op::BitOr, 2},
      {"bitwise_xor", Op::BitXor, 2},
  };
  for (const auto& entry : kNames) {
    if (entry.name != op || entry.operands != operands.size()) continue;
    Row row;
    row.op = entry.op;
    for (size_t i = 0; i < operands.size(); ++i) {
      row.operands[i] = operands[i];
      row.constant = row.constant && is_constant(operands[i]);
    }
    if (row.constant) {
      std::vector<Number> values;
      values.reserve(rows_.size());
      for (const Row& known : rows_) values.push_back(known.value);
      return constant(compute(row, values));
    }
    return add(std::move(row));
  }
  raise(ErrorKind::kUnsupported, "sizes know no operation ", std::string(op), " of ",
        operands.size(), " operands");
}

SizeId Sizes::apply(Function function, std::span<const SizeId> operands) {
  Row row;
  row.op = Op::Function;
  row.constant = false;
  row.function = std::move(function);
  row.more.assign(operands.begin(), operands.end());
  return add(std::move(row));
}

void Sizes::for_each_symbol(SizeId id, const std::function<void(size_t)>& visit) const {
  const Row& row = rows_[static_cast<size_t>(id)];
  if (row.op == Op::Symbol) visit(row.symbol);
  for (const SizeId operand : row.operands) {
    if (operand >= 0) for_each_symbol(operand, visit);
  }
  for (const SizeId operand : row.more) for_each_symbol(operand, visit);
}

Number Sizes::compute(const Row& row, std::span<const Number> values) {
  const auto at = [&](int k) -> const Number& {
    return values[static_cast<size_t>(row.operands[k])];
  };
  const auto i = [&](int k) { return at(k).as_int(); };
  const auto d = [&](int k) { return at(k).as_double(); };
  const bool floats = (row.operands[0] >= 0 && is_real_number(at(0))) ||
                      (row.operands[1] >= 0 && is_real_number(at(1)));
  const auto compare = [&](auto relation) {
    return truth(floats ? relation(d(0), d(1)) : relation(i(0), i(1)));
  };
  switch (row.op) {
    case Op::Constant:
    case Op::Symbol:
    case Op::Function:
      break;
    case Op::Add:
      return floats ? real(d(0) + d(1)) : integer(i(0) + i(1));
    case Op::Mul:
      return floats ? real(d(0) * d(1)) : integer(i(0) * i(1));
    case Op::FloorDiv:
      return floats ? real(std::floor(d(0) / d(1))) : integer(floor_divide(i(0), i(1)));
    case Op::Mod:
      return floats ? real(d(0) - std::floor(d(0) / d(1)) * d(1))
                    : integer(i(0) - floor_divide(i(0), i(1)) * i(1));
    case Op::ModularIndexing: {
      const int64_t quotient = floor_divide(i(0), i(1));
      return integer(quotient - floor_divide(quotient, i(2)) * i(2));
    }
    case Op::Pow:
      return floats || i(1) < 0 ? real(std::pow(d(0), d(1))) : integer(power(i(0), i(1)));
    case Op::TrueDiv:
      return real(d(0) / d(1));
    case Op::Min:
      return floats ? real(std::min(d(0), d(1))) : integer(std::min(i(0), i(1)));
    case Op::Max:
      return floats ? real(std::max(d(0), d(1))) : integer(std::max(i(0), i(1)));
    case Op::Eq:
      return compare(std::equal_to<>());
    case Op::Ne:
      return compare(std::not_equal_to<>());
    case Op::Lt:
      return compare(std::less<>());
    case Op::Le:
      return compare(std::less_equal<>());
    case Op::Gt:
      return compare(std::greater<>());
    case Op::Ge:
      return compare(std::greater_equal<>());
    case Op::And:
      return truth(i(0) != 0 && i(1) != 0);
    case Op::Or:
      return truth(i(0) != 0 || i(1) != 0);
    case Op::Not:
      return truth(i(0) == 0);
    case Op::Where:
      return i(0) != 0 ? at(1) : at(2);
    case Op::ToFloat:
      return real(d(0));
    case Op::Trunc:
      return real(std::trunc(d(0)));
    case Op::TruncToInt:
      return integer(static_cast<int64_t>(std::trunc(d(0))));
    case Op::FloorToInt:
      return integer(static_cast<int64_t>(std::floor(d(0))));
    case Op::CeilToInt:
      return integer(static_cast<int64_t>(std::ceil(d(0))));
    case Op::RoundToInt:
      return integer(static_cast<int64_t>(std::nearbyint(d(0))));
    case Op::Abs:
      return floats ? real(std::fabs(d(0))) : integer(std::abs(i(0)));
    case Op::Sqrt:
      return real(std::sqrt(d(0)));
    case Op::Identity:
      return at(0);
    case Op::BitAnd:
      return integer(i(0) & i(1));
    case Op::BitOr:
      return integer(i(0) | i(1));
    case Op::BitXor:
      return integer(i(0) ^ i(1));
  }
  return row.value;
}

std::vector<Number> Sizes::evaluate(std::span<const Number> symbols) const {
  std::vector<Number> values(rows_.size());
  for (size_t k = 0; k < rows_.size(); ++k) {
    const Row& row = rows_[k];
    if (row.op == Op::Symbol) {
      values[k] = symbols[row.symbol];
    } else if (row.op == Op::Function) {
      std::vector<Number> operands;
      for (const SizeId operand : row.more) {
        operands.push_back(values[static_cast<size_t>(operand)]);
      }
      values[k] = row.function(operands);
    } else {
      values[k] = compute(row, values);
    }
  }
  return values;
}

}  // namespace neuron::dynamo
