#include "neuron/aten/prepare.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/op_registration/adaption.h>
#include <ATen/native/Resize.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>

#include "neuron/aten/convert.h"
#include "neuron/aten/tensor.h"

namespace neuron::aten {
namespace {

using lowering::CallResult;
using lowering::InputSource;

at::IntArrayRef ref(const Dims& dims) { return {dims.data(), dims.size()}; }
Dims to_dims(at::IntArrayRef values) { return Dims(values.begin(), values.end()); }

// --- Checks
// ---------------------------------------------------------------------------------------

void check_devices(const Overload& overload, const CallView& view) {
  if (!view.mixed_devices) return;
  const c10::Device device(c10::DeviceType::PrivateUse1,
                           static_cast<c10::DeviceIndex>(view.device));
  const Variant& variant = overload.variant;
  size_t position = 0;
  for (size_t a = 0; a < variant.arguments.size(); ++a) {
    const int32_t count = tensor_count(variant, view, a);
    for (int32_t k = 0; k < count; ++k, ++position) {
      const at::Tensor& tensor = *view.tensors[position];
      if (!tensor.defined() || tensor.device() == device) continue;
      if (overload.mixed_devices && !variant.arguments[a].written && tensor.is_cpu() &&
          tensor.dim() == 0) {
        continue;
      }
      TORCH_CHECK(false, "Expected all tensors to be on the same device, but argument ",
                  overload.handle.schema().arguments()[a].name(), " is on ", tensor.device(),
                  " device, expected ", device, " (when checking argument for argument ",
                  overload.handle.schema().arguments()[a].name(), " in method ", overload.name,
                  ")");
    }
  }
}

// torch lets these write through overlapping views (with a warning at most): what coincides gets
// one value.
bool may_overlap_itself(const std::string& name) {
  return name == "aten::fill_.Scalar" || name.starts_with("aten::zero_") ||
         name.starts_with("aten::index_put") || name.starts_with("aten::_index_put_impl") ||
         name.starts_with("aten::_unsafe_index_put") || name.starts_with("aten::_foreach") ||
         name.starts_with("aten::_fused");
}

// Their CPU kernels read while they write: an out= tensor that is an argument too is refused, where
// others allow it.
bool refuses_overlap(const std::string& name) {
  return name == "aten::kthvalue.values" || name == "aten::take.out" ||
         name == "aten::index_select.out" || name == "aten::index_put_" ||
         name == "aten::_index_put_impl_";
}

// The same for elementwise kernels without a structured meta: the very same elements are allowed.
bool refuses_partial_overlap(const std::string& name) {
  return name.starts_with("aten::where.") || name.starts_with("aten::logical_") ||
         name.starts_with("aten::cumsum") || name.starts_with("aten::cumprod");
}

void check_written(const Overload& overload, const CallView& view) {
  const bool any = refuses_overlap(overload.name);
  if (view.overlaps && (any || refuses_partial_overlap(overload.name))) {
    for (const Target& target : overload.variant.targets) {
      const int32_t out =
          first_tensor(overload.variant, view, static_cast<size_t>(target.argument));
      for (size_t i = 0; i < view.tensors.size(); ++i) {
        if (static_cast<int32_t>(i) == out || !view.tensors[i]->defined()) continue;
        const at::Tensor &written = *view.tensors[static_cast<size_t>(out)],
                         &read = *view.tensors[i];
        any ? at::assert_no_overlap(written, read) : at::assert_no_partial_overlap(written, read);
      }
    }
  }
  if (may_overlap_itself(overload.name)) return;
  const Variant& variant = overload.variant;
  size_t position = 0;
  for (size_t a = 0; a < variant.arguments.size(); ++a) {
    const int32_t count = tensor_count(variant, view, a);
    for (int32_t k = 0; k < count; ++k, ++position) {
      const at::Tensor& tensor = *view.tensors[position];
      if (variant.arguments[a].written && tensor.defined()) at::assert_no_internal_overlap(tensor);
    }
  }
}

// --- Metadata
// -------------------------------------------------------------------------------------

std::vector<c10::IValue> functional_arguments(const Overload& overload, const CallView& view) {
  const Variant& variant = overload.variant;
  const auto& schema = overload.functional.schema().arguments();
  std::vector<c10::IValue> arguments(variant.sources.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (variant.sources[i] >= 0) {
      arguments[i] = view.arguments[variant.sources[i]];
    } else if (schema[i].name() == "dtype") {
      // An out= form takes the dtype from its buffer.
      for (const Target& target : variant.targets) {
        if (target.argument < 0 || target.list) continue;
        arguments[i] = view.arguments[target.argument].toTensor().scalar_type();
        break;
      }
    } else if (schema[i].name() == "device") {
      arguments[i] =
          c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(view.device));
    }
  }
  return arguments;
}

Metadata functional_metadata(const Overload& overload, const std::vector<c10::IValue>& arguments) {
  if (overload.functional_meta != nullptr) {
    torch::jit::Stack stack = overload.meta_arguments
                                  ? meta_arguments(overload.functional.schema(), arguments)
                                  : torch::jit::Stack(arguments.begin(), arguments.end());
    call_structured_meta(*overload.functional_meta, overload.functional, &stack);
    return describe_results(overload.functional.schema(), stack);
  }
  Metadata metadata;
  if (overload.shape != nullptr && overload.shape(arguments, metadata)) return metadata;
  return run_registered_meta(overload.functional, arguments);
}

// Positions in CallView::tensors of what each value overwrites; -1: fresh. `values` is laid out as
// the metadata is.
std::vector<int32_t> value_targets(const Overload& overload, const CallView& view,
                                   const std::vector<int32_t>& counts) {
  std::vector<int32_t> targets;
  for (size_t t = 0; t < overload.variant.targets.size(); ++t) {
    const Target& target = overload.variant.targets[t];
    if (target.argument < 0) {
      const int32_t count = t < counts.size() ? counts[t] : -1;
      for (int32_t k = 0; k < (count < 0 ? 1 : count); ++k) targets.push_back(-1);
      continue;
    }
    const auto argument = static_cast<size_t>(target.argument);
    const int32_t first = first_tensor(overload.variant, view, argument);
    const int32_t count = tensor_count(overload.variant, view, argument);
    for (int32_t k = 0; k < count; ++k) targets.push_back(first + k);
  }
  return targets;
}

void describe_written(const at::Tensor& tensor, Metadata& metadata) {
  ResultInfo info;
  info.defined = tensor.defined();
  if (tensor.defined()) {
    info.dtype = tensor.scalar_type();
    info.sizes = to_dims(tensor.sizes());
    info.strides = to_dims(tensor.strides());
  }
  metadata.values.push_back(std::move(info));
}

// Metadata of targets [from, end) from the tensors that they overwrite.
void add_written(const Overload& overload, const CallView& view, size_t from, Metadata& metadata) {
  for (size_t t = from; t < overload.variant.targets.size(); ++t) {
    const Target& target = overload.variant.targets[t];
    const auto argument = static_cast<size_t>(target.argument);
    const int32_t first = first_tensor(overload.variant, view, argument);
    const int32_t count = tensor_count(overload.variant, view, argument);
    for (int32_t k = 0; k < count; ++k) {
      describe_written(*view.tensors[static_cast<size_t>(first + k)], metadata);
    }
    metadata.counts.push_back(target.list ? count : -1);
  }
}

bool all_targets_written(const Overload& overload) {
  return std::all_of(overload.variant.targets.begin(), overload.variant.targets.end(),
                     [](const Target& target) { return target.argument >= 0; });
}

struct Found {
  Metadata metadata;
  bool resized = false;
};

Found find_metadata(const Overload& overload, const CallView& view,
                    const std::vector<c10::IValue>& arguments) {
  const Variant& variant = overload.variant;
  Found found;
  if (overload.trusted) {
    add_written(overload, view, 0, found.metadata);
    return found;
  }
  if (variant.form != Form::Functional) {
    if (overload.own_meta != nullptr) {
      std::vector<Dims> before;
      for (const at::Tensor* tensor : view.tensors) {
        before.push_back(tensor->defined() ? to_dims(tensor->sizes()) : Dims());
      }
      torch::jit::Stack stack(view.arguments, view.arguments + variant.arguments.size());
      try {
        call_structured_meta(*overload.own_meta, overload.handle, &stack);
      } catch (const c10::NotImplementedError& error) {
        // A few metas go through a proxy with the strides they want and copy it into the argument;
        // by then everything has been checked and resized.
        if (std::string_view(error.what()).find("meta tensor") == std::string_view::npos) throw;
      }
      for (size_t i = 0; i < before.size(); ++i) {
        if (view.tensors[i]->defined() && view.tensors[i]->sizes() != ref(before[i])) {
          found.resized = true;
          return found;
        }
      }
    }
    check_written(overload, view);
  }
  if (variant.form == Form::InPlace && all_targets_written(overload)) {
    if (overload.functional_meta != nullptr) {
      found.metadata = functional_metadata(overload, arguments);
      return found;
    }
    add_written(overload, view, 0, found.metadata);
    // Other ops that write in place do so without asking what the functional form would give, but
    // an elementwise one must fit.
    Metadata functional;
    if (overload.shape != nullptr && overload.shape(arguments, functional)) {
      for (size_t v = 0; v < functional.values.size() && v < found.metadata.values.size(); ++v) {
        const ResultInfo &computed = functional.values[v], &written = found.metadata.values[v];
        if (!computed.defined || !written.defined) continue;
        TORCH_CHECK(c10::canCast(computed.dtype, written.dtype), "result type ", computed.dtype,
                    " can't be cast to the desired output type ", written.dtype);
        TORCH_CHECK(computed.sizes == written.sizes, "output with shape ", ref(written.sizes),
                    " doesn't match the broadcast shape ", ref(computed.sizes));
        found.metadata.values[v].dtype = computed.dtype;
      }
    }
    return found;
  }
  found.metadata = functional_metadata(overload, arguments);
  add_written(overload, view, found.metadata.counts.size(), found.metadata);
  if (variant.form != Form::Out || overload.own_meta != nullptr) return found;

  const std::vector<int32_t> targets = value_targets(overload, view, found.metadata.counts);
  for (size_t v = 0; v < targets.size() && v < found.metadata.values.size(); ++v) {
    const ResultInfo& info = found.metadata.values[v];
    if (targets[v] < 0 || !info.defined) continue;
    const at::Tensor& out = *view.tensors[static_cast<size_t>(targets[v])];
    if (!out.defined()) continue;
    if (out.scalar_type() != info.dtype &&
        (overload.name == "aten::complex.out" || overload.name == "aten::polar.out")) {
      TORCH_CHECK(false, "Expected object of scalar type ", info.dtype, " but got scalar type ",
                  out.scalar_type(), " for argument 'out'");
    }
    TORCH_CHECK(out.scalar_type() == at::kLong || overload.name != "aten::multinomial.out",
                "multinomial expects Long tensor out, got: ", out.scalar_type());
    TORCH_CHECK(c10::canCast(info.dtype, out.scalar_type()), "result type ", info.dtype,
                " can't be cast to the desired output type ", out.scalar_type());
    if (at::native::resize_output(out, ref(info.sizes))) found.resized = true;
  }
  return found;
}

// --- The program
// ----------------------------------------------------------------------------------

// Maps what lower() says about inputs to positions in CallView.
class Positions {
 public:
  Positions(const Overload& overload, const CallView& view) : overload_(overload) {
    int32_t tensors = 0, numbers = 0;
    for (size_t a = 0; a < overload.variant.arguments.size(); ++a) {
      first_tensor_.push_back(tensors);
      first_number_.push_back(numbers);
      tensors += tensor_count(overload.variant, view, a);
      const ArgumentType type = overload.variant.arguments[a].type;
      const c10::IValue& value = view.arguments[a];
      if (value.isNone()) continue;
      if (type == ArgumentType::Number) ++numbers;
      if (type == ArgumentType::NumberList) {
        numbers += static_cast<int32_t>(value.toListRef().size());
      }
    }
  }
  int32_t tensor(int32_t functional, int32_t member) const {
    return first_tensor_[source(functional)] + member;
  }
  int32_t number(int32_t functional, int32_t member) const {
    return first_number_[source(functional)] + member;
  }

 private:
  size_t source(int32_t functional) const {
    return static_cast<size_t>(overload_.variant.sources[static_cast<size_t>(functional)]);
  }
  const Overload& overload_;
  std::vector<int32_t> first_tensor_, first_number_;
};

struct FunctionalTensor {
  int32_t argument = -1, member = 0;
};

// For each of CallView::tensors: which functional argument it is, if any.
std::vector<FunctionalTensor> functional_tensors(const Overload& overload, const CallView& view) {
  std::vector<FunctionalTensor> found;
  for (size_t a = 0; a < overload.variant.arguments.size(); ++a) {
    const int32_t count = tensor_count(overload.variant, view, a);
    for (int32_t k = 0; k < count; ++k) {
      found.push_back({overload.variant.arguments[a].functional, k});
    }
  }
  return found;
}

void plan_returns(const Overload& overload, const Metadata& metadata,
                  const std::vector<size_t>& first_result, Entry& entry) {
  for (const Return& returned : overload.variant.returns) {
    ReturnPlan plan;
    switch (returned.kind) {
      case Return::Kind::Argument:
        plan.kind = ReturnPlan::Kind::Argument;
        plan.index = returned.index;
        break;
      case Return::Kind::Integer:
        plan.kind = ReturnPlan::Kind::Integer;
        plan.integer = metadata.integers.at(static_cast<size_t>(returned.index));
        break;
      case Return::Kind::Value: {
        const auto target = static_cast<size_t>(returned.index);
        plan.index = static_cast<int32_t>(first_result[target]);
        if (overload.variant.targets[target].list) {
          plan.kind = ReturnPlan::Kind::List;
          plan.count = metadata.counts[target];
        }
        break;
      }
    }
    entry.returns.push_back(plan);
  }
}

bool is_refusal(const Error& error) { return error.kind() == ErrorKind::kUnsupported; }

}  // namespace

std::shared_ptr<Entry> prepare(Overload& overload, const CallView& view) {
  const Variant& variant = overload.variant;
  auto entry = std::make_shared<Entry>();
  entry->key = SmallVector<uint64_t, 48>(view.key.begin(), view.key.end());
  entry->hash = view.hash;

  if (overload.foreach && view.mixed_devices) {
    for (const at::Tensor* tensor : view.tensors) {
      if (tensor->defined() && on_device(*tensor) && tensor->device().index() != view.device) {
        entry->kind = Entry::Kind::Members;
        return entry;
      }
    }
  }
  check_devices(overload, view);

  const std::vector<c10::IValue> arguments = functional_arguments(overload, view);
  Found found;
  try {
    found = find_metadata(overload, view, arguments);
  } catch (const c10::NotImplementedError&) {
    // No Meta kernel for this case; the CPU decides.
    entry->kind = Entry::Kind::Fallback;
    return entry;
  }
  if (found.resized) return nullptr;
  Metadata& metadata = found.metadata;
  const std::vector<int32_t> targets = value_targets(overload, view, metadata.counts);
  NEURON_ASSERT(targets.size() == metadata.values.size(), "in ", overload.name, ": ",
                metadata.values.size(), " values for ", targets.size(), " places");

  // Results.
  lowering::Call call;
  call.lowering = overload.lowering;
  call.default_dtype = checked_dtype(c10::get_default_dtype_as_scalartype());
  try {
    for (size_t i = 0; i < arguments.size(); ++i) {
      call.arguments.push_back(to_call_argument(overload.functional_types[i], arguments[i]));
    }
    for (const ResultInfo& info : metadata.values) {
      if (info.defined) checked_dtype(info.dtype);
    }
  } catch (const c10::NotImplementedError&) {
    // A dtype that programs do not know, but the CPU does.
    entry->kind = Entry::Kind::Fallback;
    return entry;
  }
  const std::vector<FunctionalTensor> as_functional = functional_tensors(overload, view);
  const auto input_count = static_cast<int32_t>(call.arguments.size());
  std::vector<int32_t> out_positions;
  std::vector<uint8_t> is_target(view.tensors.size(), 0);
  bool empty = true;
  for (size_t v = 0; v < targets.size(); ++v) {
    const ResultInfo& info = metadata.values[v];
    ResultPlan plan;
    CallResult result;
    plan.defined = result.type.defined = info.defined;
    plan.tensor = targets[v];
    if (!info.defined) {
      entry->results.push_back(std::move(plan));
      call.results.push_back(std::move(result));
      continue;
    }
    result.type.dtype = checked_dtype(info.dtype);
    result.type.dims = info.sizes;
    plan.dtype = info.dtype;
    plan.sizes = info.sizes;
    plan.strides = info.strides;
    if (count_elements(info.sizes) != 0) empty = false;
    if (plan.tensor >= 0) {
      const auto position = static_cast<size_t>(plan.tensor);
      const at::Tensor& written = *view.tensors[position];
      // The written view may be longer than what is computed (running statistics never are).
      result.type.dims = to_dims(written.sizes());
      result.strides = to_dims(written.strides());
      if (as_functional[position].argument >= 0) {
        result.alias_argument = as_functional[position].argument;
        result.alias_member = as_functional[position].member;
      }
      // An out= buffer that is also an argument is that argument.
      for (size_t i = 0; i < view.tensors.size() && result.alias_argument < 0 && view.overlaps;
           ++i) {
        if (as_functional[i].argument >= 0 && view.tensors[i]->defined() &&
            on_device(*view.tensors[i]) && overlap_of(*view.tensors[i], written) == Overlap::Same) {
          result.alias_argument = as_functional[i].argument;
          result.alias_member = as_functional[i].member;
        }
      }
      if (result.alias_argument < 0) {
        result.alias_argument = input_count + static_cast<int32_t>(call.out_buffers.size());
        call.out_buffers.push_back(to_input(written));
        out_positions.push_back(plan.tensor);
      }
      if (view.overlaps) {
        for (size_t i = 0; i < view.tensors.size(); ++i) {
          const at::Tensor& other = *view.tensors[i];
          if (i == position || !other.defined() || !on_device(other)) continue;
          if (as_functional[i].argument == result.alias_argument &&
              as_functional[i].member == result.alias_member) {
            continue;
          }
          if (overlap_of(other, written) == Overlap::None) continue;
          result.staged = true;
          if (is_target[i]) {
            // Two writes to the same bytes happen one after the other.
            entry->kind = overload.foreach ? Entry::Kind::Members : Entry::Kind::Fallback;
            return entry;
          }
        }
      }
      is_target[position] = 1;
    } else {
      result.strides = info.strides;
    }
    entry->results.push_back(std::move(plan));
    call.results.push_back(std::move(result));
  }
  std::vector<size_t> first_result;
  size_t position = 0;
  for (size_t t = 0; t < variant.targets.size(); ++t) {
    first_result.push_back(position);
    const int32_t count = t < metadata.counts.size() ? metadata.counts[t] : -1;
    position += count < 0 ? 1 : static_cast<size_t>(count);
  }
  plan_returns(overload, metadata, first_result, *entry);
  if (empty) {
    entry->kind = Entry::Kind::Nothing;
    return entry;
  }

  try {
    lowering::LoweredCall lowered = lowering::lower(call);
    const uint64_t known = overload.static_numbers.load(std::memory_order_relaxed);
    if ((lowered.static_arguments & ~known) != 0) {
      overload.static_numbers.fetch_or(lowered.static_arguments, std::memory_order_relaxed);
      return nullptr;
    }
    const Positions positions(overload, view);
    for (const InputSource& source : lowered.parameters) {
      entry->parameters.push_back(source.kind == InputSource::Kind::OutBuffer
                                      ? out_positions[static_cast<size_t>(source.argument)]
                                      : positions.tensor(source.argument, source.member));
    }
    for (const InputSource& source : lowered.scalars) {
      ScalarSource scalar{source.kind, 0};
      if (source.kind == InputSource::Kind::Number) {
        scalar.index = positions.number(source.argument, source.member);
      } else if (source.kind == InputSource::Kind::HostScalar) {
        scalar.index = positions.tensor(source.argument, source.member);
      }
      entry->scalars.push_back(scalar);
    }
    entry->outputs.assign(lowered.results.begin(), lowered.results.end());
    entry->philox_counters = lowered.philox_counters;
    if (entry->outputs.empty()) {
      entry->kind = Entry::Kind::Nothing;
      return entry;
    }
    entry->program = runtime::load_program(view.device, lowered.module);
  } catch (const Error& error) {
    if (!is_refusal(error)) throw;
    entry->kind = Entry::Kind::Fallback;
  }
  return entry;
}

}  // namespace neuron::aten
