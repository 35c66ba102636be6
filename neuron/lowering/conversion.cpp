// Copies between types and shapes.

#include "neuron/lowering/numerics.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

// The driver converts to the result's dtype; strides are the caller's.
Values identity(Builder&, const OpCall& call) { return {call.tensor(0)}; }

NEURON_LOWERING("aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor",
                identity);
NEURON_LOWERING("aten::lift_fresh_copy(Tensor self) -> Tensor", identity);
NEURON_LOWERING(
    "aten::_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? "
    "device=None, bool? pin_memory=None, bool non_blocking=False, MemoryFormat? "
    "memory_format=None) -> Tensor",
    identity);

Value convert_to(Builder& b, Value x, DType dtype) {
  // Complex to real drops the imaginary part.
  if (is_complex(x.dtype()) && !is_complex(dtype) && dtype != DType::pred) x = b.real(x);
  return b.convert(x, dtype);
}

Values copy(Builder& b, const OpCall& call) {
  const Value self = call.tensor(0);
  const Value value = convert_to(b, call.tensor(1), self.dtype());
  return {b.broadcast_to(value, self.dims())};
}
NEURON_LOWERING("aten::copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor", copy);

}  // namespace
}  // namespace neuron::lowering
