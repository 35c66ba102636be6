#include "neuron/aten/install.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <unordered_map>

#include "neuron/aten/dispatch.h"
#include "neuron/aten/index_arguments.h"
#include "neuron/aten/library_kernels.h"
#include "neuron/aten/lowered_op.h"
#include "neuron/aten/tensor.h"
#include "neuron/aten/zero_tensor.h"
#include "neuron/base/error.h"
#include "neuron/lowering/registry.h"

namespace neuron::aten {
namespace {

struct Installed {
  std::map<std::string, std::string> variants;
  std::map<std::string, std::string> refused;
};
Installed& installed() {
  static auto* all = new Installed();
  return *all;
}

// Copies cross devices and are hand-written; the lowering of aten::copy serves them from within.
bool is_hand_written(const std::string& name) {
  return name == "aten::copy" || name == "aten::copy_" || name == "aten::copy.out" ||
         name == "aten::_to_copy" || name == "aten::_to_copy.out" || name == "aten::empty_like" ||
         name == "aten::new_empty" || name == "aten::_copy_from" ||
         // Without an alias mark, but views in eager mode: a kernel would copy.
         name == "aten::_unsafe_view" || name == "aten::unsafe_split.Tensor" ||
         name == "aten::unsafe_split_with_sizes" || name == "aten::lift";
}

bool starts_with_any(const std::string& name, std::initializer_list<const char*> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const char* prefix) { return name.starts_with(prefix); });
}

}  // namespace

std::unique_ptr<Overload> make_overload(const c10::OperatorHandle& handle,
                                        const c10::OperatorHandle& functional,
                                        const lowering::Lowering& lowered, Variant variant) {
  auto overload = std::make_unique<Overload>(handle, functional);
  overload->name = c10::toString(handle.operator_name());
  const std::string functional_name = c10::toString(functional.operator_name());
  overload->lowering = &lowered;
  for (const c10::Argument& argument : functional.schema().arguments()) {
    overload->functional_types.push_back(argument_type(argument));
  }
  overload->variant = std::move(variant);
  overload->own_meta = find_structured_meta(overload->name);
  overload->functional_meta = find_structured_meta(functional_name);
  overload->shape = find_shape_function(functional_name);
  overload->check = find_value_check(overload->name);
  overload->foreach =
      starts_with_any(overload->name, {"aten::_foreach", "aten::_amp_foreach", "aten::_fused_"});
  overload->mixed_devices = accepts_mixed_devices(overload->name) ||
                            accepts_mixed_devices(functional_name) || overload->foreach;
  if (starts_with_any(overload->name,
                      {"aten::index.Tensor", "aten::index_put", "aten::_index_put_impl",
                       "aten::_unsafe_index.", "aten::_unsafe_index_put"})) {
    overload->rewrite = rewrite_indices;
  } else if (starts_with_any(overload->name, {"aten::masked_fill_.", "aten::index_fill_."})) {
    overload->rewrite = rewrite_overlapping_fill;
  } else if (overload->name == "aten::clone" || overload->name == "aten::dot" ||
             overload->name == "aten::vdot") {
    overload->rewrite = rewrite_zero_tensors;
  } else if (starts_with_any(overload->name, {"aten::repeat_interleave.Tensor"})) {
    overload->rewrite = rewrite_repeats;
  }
  overload->meta_arguments =
      starts_with_any(functional_name, {"aten::index_add", "aten::index_reduce"});
  overload->writes.assign(lowered.writes.begin(), lowered.writes.end());
  overload->counter = &counter_of(overload->name);
  // Their numbers decide the size of the result.
  if (starts_with_any(overload->name, {"aten::arange", "aten::range"})) {
    overload->static_numbers = ~uint64_t{0};
  }
  return overload;
}

namespace {

void install_overload(std::unique_ptr<Overload> overload) {
  installed().variants[overload->name] = overload->lowering->name();
  Overload* kept = overload.release();  // Lives as long as the process.
  auto handle = c10::Dispatcher::singleton().registerImpl(
      kept->handle.operator_name(), c10::DispatchKey::PrivateUse1,
      c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<LoweredOp>(*kept)), std::nullopt,
      nullptr, "torch_neuronx lowering");
  new c10::RegistrationHandleRAII(std::move(handle));
}

bool is_composite_implicit(const c10::OperatorHandle& handle) {
  // Composite, but with derivative formulas that a kernel on the device switches to.
  const std::string& name = handle.operator_name().name;
  if (name == "aten::silu_backward" || name == "aten::mish_backward" ||
      name == "aten::_fused_rms_norm") {
    return false;
  }
  return handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

using OverloadsByBase = std::unordered_map<std::string, std::vector<c10::OperatorHandle>>;

void install_lowering(const lowering::Lowering& lowered, const OverloadsByBase& overloads) {
  std::map<std::string, std::string>& refused = installed().refused;
  const std::string name = lowered.name();
  c10::FunctionSchema ours = torch::jit::parseSchema(lowered.schema);
  const auto handle = c10::Dispatcher::singleton().findSchema(ours.operator_name());
  if (!handle.has_value()) {
    refused[name] = "torch has no such operator";
    TORCH_WARN("torch_neuronx: ", name, " has a lowering, but torch has no such operator");
    return;
  }
  const c10::FunctionSchema& schema = handle->schema();
  std::string difference;
  if (!same_signature(ours, schema, &difference)) {
    refused[name] = "schema differs: " + difference;
    TORCH_WARN("torch_neuronx: the lowering of ", name,
               " was written for another schema: ", difference);
    return;
  }
  // conj_physical is composite, but its in-place and out= forms are not.
  if (is_composite_implicit(*handle) && name != "aten::conj_physical") {
    refused[name] = "composite: a kernel on the device would lose its autograd";
    return;
  }
  if (!name.starts_with("aten::")) {
    refused[name] = "a collective: run by its process group, lowered in graphs only";
    return;
  }
  if (is_view(schema)) {
    // Its in-place form changes the view, not the elements.
    refused[name] = "a view: lowered in graphs only";
    return;
  }
  if (name == "aten::as_strided_copy" || name == "aten::as_strided_scatter") {
    // torch makes them of views and copies, which may start anywhere in the storage.
    refused[name] = "reads beyond its operand's elements: lowered in graphs only";
    return;
  }
  const std::vector<std::string> writes(lowered.writes.begin(), lowered.writes.end());
  for (const std::string& base : related_names(ours.name())) {
    const auto found = overloads.find(base);
    if (found == overloads.end()) continue;
    for (const c10::OperatorHandle& candidate : found->second) {
      const std::string candidate_name = c10::toString(candidate.operator_name());
      if (is_hand_written(candidate_name) || is_view(candidate.schema()) ||
          is_composite_implicit(candidate) ||
          candidate.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
        continue;
      }
      // A lowering of its own comes before a derived form.
      if (candidate_name != name && lowering::find_lowering(candidate_name) != nullptr) continue;
      std::optional<Variant> variant = match_variant(schema, writes, candidate.schema());
      if (!variant.has_value()) continue;
      install_overload(make_overload(candidate, *handle, lowered, std::move(*variant)));
    }
  }
}

}  // namespace

void install_kernels() {
  static bool done = false;
  if (done) return;
  done = true;
  OverloadsByBase overloads;
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (const auto handle = dispatcher.findSchema(name)) overloads[name.name].push_back(*handle);
  }
  for (const lowering::Lowering& lowered : lowering::all_lowerings()) {
    install_lowering(lowered, overloads);
  }
  install_library_kernels();
  install_compressed_sparse();
}

const std::map<std::string, std::string>& installed_variants() { return installed().variants; }
const std::map<std::string, std::string>& refused_lowerings() { return installed().refused; }

std::string explain_variant(const std::string& functional, const std::string& candidate) {
  const c10::FunctionSchema a = torch::jit::parseSchema(functional);
  const c10::FunctionSchema b = torch::jit::parseSchema(candidate);
  const std::optional<Variant> variant = match_variant(a, {}, b);
  if (!variant.has_value()) return "";
  std::ostringstream text;
  text << (variant->form == Form::Functional ? "functional"
           : variant->form == Form::InPlace  ? "in-place"
                                             : "out");
  text << "; arguments";
  for (const int32_t source : variant->sources) text << " " << source;
  text << "; values";
  for (const Target& target : variant->targets) {
    text << " " << (target.argument < 0 ? "fresh" : "-> " + std::to_string(target.argument))
         << (target.list ? "[]" : "");
  }
  return text.str();
}

}  // namespace neuron::aten
