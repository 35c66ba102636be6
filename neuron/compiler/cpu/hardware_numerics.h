#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "neuron/hlo/module.h"

namespace neuron::compiler::cpu {

/// Something that the target computes with less than a module asks for.
enum class Narrowing : uint8_t { F64, C128, I64, U64, F8E4M3FN, IntegerProduct, IntegerSum };
inline constexpr int kNarrowingCount = 7;
/// One sentence without a full stop, e.g. "float64 is computed as float32".
std::string_view describe(Narrowing narrowing);

/// Called for each narrowing with the op that meets it.
using NarrowingSink = std::function<void(Narrowing, hlo::Op)>;

/// The module as a Trainium chip computes it; nothing if that is as it stands. Dtypes that the
/// engines lack are replaced inside (parameters and results keep theirs), integer products and sums
/// run in f32. What only moves keeps its bits, and so do bit patterns of random numbers.
/// `target` is "trn2" or "trn3".
std::optional<hlo::Module> imitate_hardware(const hlo::Module& module, std::string_view target,
                                            const NarrowingSink& sink);

/// Warns once in a process for each kind, naming dtypes, op and target.
void warn_once(Narrowing narrowing, hlo::Op op, std::string_view target);

}  // namespace neuron::compiler::cpu
