// Comparisons: elementwise ones and membership.

#include "neuron/lowering/numerics.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

using hlo::Direction;

Value compare_values(Builder& b, Direction direction, Value x, Value y) {
  if (!is_complex(x.dtype())) return b.compare(direction, x, y);
  // Only equality is defined for complex numbers.
  const Value real = b.compare(direction, b.real(x), b.real(y));
  const Value imag = b.compare(direction, b.imag(x), b.imag(y));
  return direction == Direction::EQ ? both(b, real, imag) : either(b, real, imag);
}

template <Direction direction>
Values compare(Builder& b, const OpCall& call) {
  const auto [x, y, common] = binary_operands(call, 0, 1);
  return {compare_values(b, direction, x, y)};
}

#define NEURON_COMPARISON(name, direction)                                      \
  NEURON_LOWERING("aten::" name ".Tensor(Tensor self, Tensor other) -> Tensor", \
                  compare<Direction::direction>);                               \
  NEURON_LOWERING("aten::" name ".Scalar(Tensor self, Scalar other) -> Tensor", \
                  compare<Direction::direction>)
NEURON_COMPARISON("eq", EQ);
NEURON_COMPARISON("ne", NE);
NEURON_COMPARISON("lt", LT);
NEURON_COMPARISON("le", LE);
NEURON_COMPARISON("gt", GT);
NEURON_COMPARISON("ge", GE);
#undef NEURON_COMPARISON

// Every element against every test element: the sets that models ask for are short.
Values is_in(Builder& b, const OpCall& call) {
  const auto [x, tests, common] = binary_operands(call, 0, 1);
  const Value column = b.unsqueeze(x, x.rank());
  const Value row = b.reshape(tests, Dims{tests.count()});
  const Value equal = compare_values(b, Direction::EQ, column, row);
  const Value found = b.reduce(hlo::ReduceKind::Or, equal, Dims{x.rank()});
  return {call.flag(3) ? b.logical_not(found) : found};
}
NEURON_LOWERING(
    "aten::isin.Tensor_Tensor(Tensor elements, Tensor test_elements, *, bool assume_unique=False, "
    "bool invert=False) -> Tensor",
    is_in);
NEURON_LOWERING(
    "aten::isin.Tensor_Scalar(Tensor elements, Scalar test_element, *, bool assume_unique=False, "
    "bool invert=False) -> Tensor",
    is_in);
NEURON_LOWERING(
    "aten::isin.Scalar_Tensor(Scalar element, Tensor test_elements, *, bool assume_unique=False, "
    "bool invert=False) -> Tensor",
    is_in);

}  // namespace
}  // namespace neuron::lowering
