#pragma once

#include "neuron/lowering/op_call.h"

namespace neuron::lowering {

/// The p-norm of x over dims in x's math type (magnitudes of complex numbers); p is the number of
/// argument `order` (None: 2), read at compile time.
Value vector_norm(const OpCall& call, Value x, int order, DimsRef dims, bool keep);

/// The sum of |x|^p: such a norm before its root.
Value power_sum(const OpCall& call, Value x, int order, DimsRef dims, bool keep);

}  // namespace neuron::lowering
