#pragma once

#include <optional>

#include "neuron/hlo/module.h"

namespace neuron::compiler::cpu {

/// Matrix products in f32 of two operands that were widened from bf16 or f16 read the narrow ones:
/// the library multiplies them exactly and sums in f32. A widening that nothing else reads is dead
/// afterwards. Nothing if there is no such product.
std::optional<hlo::Module> narrow_products(const hlo::Module& module);

}  // namespace neuron::compiler::cpu
