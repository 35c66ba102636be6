#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

// The one boxed kernel behind every lowering, seen from the other files of aten/.
namespace neuron::aten {

/// Registers a boxed kernel on PrivateUse1 for every form of every lowering that has no
/// hand-written kernel yet, and the autograd routes. Called once, when the module is imported:
/// static initialisers of other files have run by then.
void install_kernels();

/// What install_kernels() did, for tests and tools: overload -> name of its lowering.
const std::map<std::string, std::string>& installed_variants();
/// Lowerings that were not installed, with the reason (schema drift, composite ops, views).
const std::map<std::string, std::string>& refused_lowerings();
/// Ops whose results were described by their registered Meta kernel, the slow source: name ->
/// calls.
std::map<std::string, int64_t> registered_meta_calls();
/// Describes how `candidate` is served by a lowering of `functional` (schemas as text), or "".
std::string explain_variant(const std::string& functional, const std::string& candidate);

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

/// Forgets the programs of all calls seen so far.
void clear_entry_caches();

/// Whether an op without a lowering may run on the CPU (default), by environment or setting.
void set_fallback_allowed(bool allowed);
/// The same with -1 for "as the environment says"; returns what was set before.
int exchange_fallback_setting(int setting);

}  // namespace neuron::aten
