#include "neuron/dynamo/graph.h"

#include <mutex>
#include <set>

#include "neuron/aten/dispatch.h"
#include "neuron/aten/tensor.h"
#include "neuron/lowering/lower.h"
#include "neuron/lowering/registry.h"

namespace neuron::dynamo {
namespace {

/// The kind in which a host tensor's value travels (lowerings convert it to the tensor's dtype).
DType scalar_kind(DType dtype) {
  if (is_complex(dtype)) return DType::c128;
  if (is_floating(dtype)) return DType::f64;
  return dtype == DType::u64 ? DType::u64 : DType::i64;
}

runtime::ScalarSlot slot_of(const at::Tensor& host) {
  runtime::ScalarSlot slot{};
  const DType kind = scalar_kind(*aten::dtype_of(host.scalar_type()));
  const c10::Scalar value = host.item();
  if (kind == DType::c128) {
    const auto number = value.toComplexDouble();
    slot.real[0] = number.real();
    slot.real[1] = number.imag();
  } else if (kind == DType::f64) {
    slot.real[0] = value.toDouble();
  } else if (kind == DType::u64) {
    slot.integer = static_cast<int64_t>(value.toUInt64());
  } else {
    slot.integer = value.toLong();
  }
  return slot;
}

/// Queued work names its operator by a string that must outlive the graph.
const char* intern(const std::string& name) {
  static std::mutex mutex;
  static auto* const names = new std::set<std::string>;  // Leaked: work may end after main().
  const std::scoped_lock lock(mutex);
  return names->insert(name).first->c_str();
}

}  // namespace

Graph::Graph(std::string name, c10::DeviceIndex device, bool keep_text)
    : graph_(std::make_shared<CompiledGraph>()), keep_text_(keep_text) {
  graph_->name_ = std::move(name);
  graph_->op_ = intern(graph_->name_);
  graph_->device_ = device;
}

int64_t Graph::input(CompiledGraph::Input input) {
  const DType dtype = aten::checked_dtype(input.dtype);
  const auto position = static_cast<int64_t>(graph_->inputs_.size());
  hlo::Value value;
  if (input.host_scalar) {
    value = builder_.convert(builder_.scalar(scalar_kind(dtype)), dtype);
    graph_->scalars_.push_back(position);
  } else {
    value = builder_.parameter(dtype, input.sizes, input.strides);
    graph_->parameters_.push_back(position);
  }
  graph_->inputs_.push_back(std::move(input));
  values_.push_back(value);
  return static_cast<int64_t>(values_.size()) - 1;
}

std::vector<int64_t> Graph::call(const std::string& op, std::vector<lowering::Argument> arguments,
                                 std::vector<lowering::ResultType> results) {
  return aten::translating_errors([&] {
    const lowering::Lowering* lowering = lowering::find_lowering(op);
    NEURON_CHECK(lowering != nullptr, kUnsupported, op, ": no lowering for neuron");
    const lowering::OpCall call(builder_, std::move(arguments), std::move(results),
                                aten::checked_dtype(c10::get_default_dtype_as_scalartype()));
    // One key and one counter for the graph; each call starts where eager mode would have started.
    call.trace().philox_seed = seed_;
    call.trace().philox_offset = offset_;
    call.trace().philox_counters = graph_->philox_counters_;
    const hlo::Values values = lowering::lower_into(builder_, *lowering, call);
    if (!seed_.defined() && call.trace().philox_seed.defined()) {
      seed_ = call.trace().philox_seed;
      offset_ = call.trace().philox_offset;
      graph_->scalars_.push_back(kSeed);
      graph_->scalars_.push_back(kOffset);
    }
    graph_->philox_counters_ = (call.trace().philox_counters + 3) / 4 * 4;
    std::vector<int64_t> ids;
    for (const hlo::Value& value : values) {
      ids.push_back(static_cast<int64_t>(values_.size()));
      values_.push_back(value);
    }
    return ids;
  });
}

hlo::Value Graph::number(const lowering::Number& number) {
  switch (number.kind) {
    case DType::c128: return builder_.constant_complex(DType::c128, number.as_complex());
    case DType::f64: return builder_.constant(DType::f64, number.as_double());
    default: return builder_.constant_int(number.kind, number.integer);
  }
}

void Graph::output(int64_t value, CompiledGraph::Output output) {
  aten::translating_errors([&] {
    hlo::Value result = values_[static_cast<size_t>(value)];
    result = builder_.convert(result, aten::checked_dtype(output.dtype));
    result = builder_.broadcast_to(result, output.sizes);
    int32_t alias = -1;
    if (output.mutates >= 0) {
      for (size_t p = 0; p < graph_->parameters_.size(); ++p) {
        if (graph_->parameters_[p] == output.mutates) alias = static_cast<int32_t>(p);
      }
      NEURON_CHECK(alias >= 0, kUnsupported, graph_->name_, ": input ", output.mutates,
                   " is a host scalar and cannot be written by the graph");
    }
    builder_.result(result, output.strides, alias);
    graph_->outputs_.push_back(std::move(output));
  });
}

std::shared_ptr<const CompiledGraph> Graph::compile() {
  return aten::translating_errors([&] {
    runtime::ensure_device(graph_->device_);
    const hlo::Module module = builder_.finish();
    if (keep_text_) graph_->text_ = hlo::to_stablehlo(module, graph_->name_);
    graph_->program_ = runtime::load_program(graph_->device_, module);
    return std::shared_ptr<const CompiledGraph>(graph_);
  });
}

std::vector<at::Tensor> CompiledGraph::run(std::vector<at::Tensor> inputs) const {
  TORCH_CHECK(inputs.size() == inputs_.size(), name_, ": expected ", inputs_.size(),
              " inputs, got ", inputs.size());
  const int64_t stream = aten::current_stream(device_);
  SmallVector<runtime::Buffer, 64> parameters;
  SmallVector<runtime::ScalarSlot, 8> scalars;
  std::vector<std::pair<at::Tensor, at::Tensor>> replaced;  // Given, and used in its place.
  for (const int64_t position : parameters_) {
    at::Tensor& tensor = inputs[static_cast<size_t>(position)];
    const Input& expected = inputs_[static_cast<size_t>(position)];
    TORCH_CHECK(tensor.sizes() == at::IntArrayRef(expected.sizes) &&
                    tensor.scalar_type() == expected.dtype,
                name_, ": input ", position, " is ", tensor.scalar_type(), tensor.sizes(),
                " but the graph was compiled for ", expected.dtype, at::IntArrayRef(expected.sizes));
    const bool moved = !aten::on_device(tensor) || tensor.device().index() != device_;
    if (moved || tensor.is_conj() || tensor.is_neg() ||
        (tensor.strides() != at::IntArrayRef(expected.strides) && tensor.numel() > 1)) {
      at::Tensor placed = aten::empty_strided_unchecked(expected.sizes, expected.strides,
                                                        expected.dtype, device_);
      placed.copy_(tensor);
      for (const Output& output : outputs_) {
        if (output.mutates == position) replaced.emplace_back(tensor, placed);
      }
      tensor = placed;
    }
    parameters.push_back(aten::buffer_of(tensor));
  }
  if (!scalars_.empty()) {
    aten::PhiloxDraw draw{};
    if (philox_counters_ > 0) draw = aten::draw_philox(std::nullopt, device_, philox_counters_);
    for (size_t i = 0; i < scalars_.size(); ++i) {
      runtime::ScalarSlot slot{};
      if (scalars_[i] == Graph::kSeed) {
        slot.integer = static_cast<int64_t>(draw.seed);
      } else if (scalars_[i] == Graph::kOffset) {
        slot.integer = static_cast<int64_t>(draw.offset);
      } else {
        slot = slot_of(inputs[static_cast<size_t>(scalars_[i])]);
      }
      scalars.push_back(slot);
    }
  }
  std::vector<at::Tensor> returned;
  returned.reserve(outputs_.size());
  SmallVector<runtime::Buffer, 64> results;
  for (const Output& output : outputs_) {
    if (output.mutates >= 0) {
      results.push_back(aten::buffer_of(inputs[static_cast<size_t>(output.mutates)]));
      continue;
    }
    returned.push_back(
        aten::empty_strided_unchecked(output.sizes, output.strides, output.dtype, device_));
    results.push_back(aten::buffer_of(returned.back()));
  }
  aten::translating_errors([&] {
    runtime::launch(device_, stream, program_, {parameters.data(), parameters.size()},
                    {scalars.data(), scalars.size()}, {results.data(), results.size()},
                    op_);
  });
  for (auto& [given, placed] : replaced) given.copy_(placed);
  return returned;
}

}  // namespace neuron::dynamo
