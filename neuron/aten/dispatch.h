#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

// The one boxed kernel behind every lowering, seen from the other files of aten/.
namespace neuron::aten {

/// Runs the lowering registered as `name` ("aten::copy") on `arguments` (functional schema order)
/// and writes result 0 into `destination` (any strides; may be one of the arguments).
void run_lowering_into(const char* name, std::vector<c10::IValue> arguments,
                       const at::Tensor& destination);

/// Op tracking: name ("aten::add.Tensor") -> calls since the last reset.
struct OpCounts {
  std::map<std::string, int64_t> native, fallback;
};
OpCounts op_counts();
void reset_op_counts();
/// Counts a call of a hand-written op (copies, views do not count).
void count_native(const char* name);

/// Whether an op without a lowering may run on the CPU (default), by environment or setting.
void set_fallback_allowed(bool allowed);

}  // namespace neuron::aten
