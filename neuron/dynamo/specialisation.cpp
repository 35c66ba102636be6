#include "neuron/dynamo/specialisation.h"

#include <ATen/ops/as_strided.h>

#include "neuron/aten/tensor.h"
#include "neuron/base/env.h"
#include "neuron/dynamo/graph.h"
#include "neuron/runtime/capture.h"

namespace neuron::dynamo {
namespace {

void store(const Number& number, runtime::ScalarSlot& slot) {
  slot.integer = slot.unused = 0;
  if (number.kind == DType::c128 || number.kind == DType::f64) {
    slot.real[0] = number.real_imag.real();
    slot.real[1] = number.real_imag.imag();
  } else {
    slot.integer = number.integer;
  }
}

Number number_of(const at::Tensor& host) {
  Number number;
  const c10::Scalar value = host.item();
  if (value.isComplex()) {
    number.kind = DType::c128;
    const auto parts = value.toComplexDouble();
    number.real_imag = {parts.real(), parts.imag()};
  } else if (value.isFloatingPoint()) {
    number.kind = DType::f64;
    number.real_imag = value.toDouble();
  } else if (host.scalar_type() == c10::ScalarType::UInt64) {
    number.kind = DType::u64;
    number.integer = static_cast<int64_t>(value.toUInt64());
  } else {
    number.integer = value.toLong();
  }
  return number;
}

}  // namespace

bool Specialisation::place(at::Tensor& tensor, const Parameter& expected) const {
  TORCH_CHECK(tensor.defined() && tensor.sizes() == at::IntArrayRef(expected.sizes) &&
                  tensor.scalar_type() == expected.dtype,
              op_, ": input ", expected.input, " is ",
              tensor.defined() ? c10::toString(tensor.scalar_type()) : "no tensor",
              tensor.defined() ? tensor.sizes() : at::IntArrayRef(),
              " but the graph was compiled for ", expected.dtype, at::IntArrayRef(expected.sizes));
  const bool here = aten::on_device(tensor) && tensor.device().index() == device_;
  if (here && !tensor.is_conj() && !tensor.is_neg() &&
      (tensor.strides() == at::IntArrayRef(expected.strides) || tensor.numel() <= 1)) {
    return false;
  }
  at::Tensor placed =
      aten::empty_strided_unchecked(expected.sizes, expected.strides, expected.dtype, device_);
  placed.copy_(tensor);
  tensor = std::move(placed);
  return true;
}

std::vector<CallOutput> Specialisation::run(std::vector<CallInput> inputs) const {
  const int64_t stream = aten::current_stream(device_);
  SmallVector<runtime::Buffer, 64> parameters;
  std::vector<std::pair<at::Tensor, size_t>> replaced;  // As given, and its input number.
  for (const Parameter& parameter : parameters_) {
    at::Tensor& tensor = inputs[parameter.input].tensor;
    const at::Tensor given = parameter.overwritten ? tensor : at::Tensor();
    if (place(tensor, parameter) && parameter.overwritten) {
      replaced.emplace_back(given, parameter.input);
    }
    parameters.push_back(aten::buffer_of(tensor));
  }

  std::vector<Number> fresh_values;
  if (values_change_) fresh_values = graph_->evaluate(inputs);
  const std::vector<Number>& values = values_change_ ? fresh_values : values_;
  SmallVector<runtime::ScalarSlot, 8> scalars;
  if (!scalars_.empty()) {
    aten::PhiloxDraw draw{};
    if (philox_counters_ > 0) draw = aten::draw_philox(std::nullopt, device_, philox_counters_);
    for (const Scalar& scalar : scalars_) {
      runtime::ScalarSlot slot{};
      switch (scalar.kind) {
        case Scalar::Kind::Seed:
          slot.integer = static_cast<int64_t>(draw.seed);
          break;
        case Scalar::Kind::Offset:
          slot.integer = static_cast<int64_t>(draw.offset);
          break;
        case Scalar::Kind::Expression:
          store(values[static_cast<size_t>(scalar.index)], slot);
          break;
        case Scalar::Kind::HostTensor:
          store(number_of(inputs[static_cast<size_t>(scalar.index)].tensor), slot);
          break;
      }
      scalars.push_back(slot);
    }
  }

  std::vector<CallOutput> returned;
  returned.reserve(outputs_.size());
  SmallVector<runtime::Buffer, 64> results;
  for (const Output& output : outputs_) {
    switch (output.described->kind) {
      case GraphOutput::Kind::Overwrite:
        results.push_back(
            aten::buffer_of(inputs[static_cast<size_t>(output.described->base)].tensor));
        continue;
      case GraphOutput::Kind::Fresh:
        returned.push_back({aten::empty_strided_unchecked(output.sizes, output.strides,
                                                          output.described->dtype, device_),
                            {}});
        results.push_back(aten::buffer_of(returned.back().tensor));
        continue;
      case GraphOutput::Kind::Number:
        returned.push_back({{},
                            values_change_ ? values[static_cast<size_t>(output.described->number)]
                                           : output.number});
        continue;
      case GraphOutput::Kind::Input:
      case GraphOutput::Kind::View:
      case GraphOutput::Kind::None:
        returned.emplace_back();
        continue;
    }
  }
  if (program_ != nullptr) {
    aten::translating_errors([&] {
      runtime::launch(device_, stream, program_, {parameters.data(), parameters.size()},
                      {scalars.data(), scalars.size()}, {results.data(), results.size()}, op_);
    });
    if (philox_counters_ > 0 && runtime::is_capturing(device_, stream)) {
      // Each replay takes new random numbers.
      std::vector<Scalar::Kind> kinds;
      for (const Scalar& scalar : scalars_) kinds.push_back(scalar.kind);
      runtime::refresh_before_replay(device_, stream,
                                     [kinds, device = device_, counters = philox_counters_](
                                         std::span<runtime::ScalarSlot> slots) {
                                       const aten::PhiloxDraw draw =
                                           aten::draw_philox(std::nullopt, device, counters);
                                       for (size_t i = 0; i < kinds.size(); ++i) {
                                         if (kinds[i] == Scalar::Kind::Seed)
                                           slots[i].integer = static_cast<int64_t>(draw.seed);
                                         if (kinds[i] == Scalar::Kind::Offset) {
                                           slots[i].integer = static_cast<int64_t>(draw.offset);
                                         }
                                       }
                                     });
    }
  }
  for (auto& [given, input] : replaced) given.copy_(inputs[input].tensor);

  // Views and what goes to the host, once everything that they look at is there.
  size_t at = 0;
  for (const Output& output : outputs_) {
    const GraphOutput& described = *output.described;
    if (described.kind == GraphOutput::Kind::Overwrite) continue;
    at::Tensor& result = returned[at++].tensor;
    if (described.kind == GraphOutput::Kind::View) {
      const auto base_number = static_cast<size_t>(described.base);
      const at::Tensor& base =
          described.of_input ? inputs[base_number].tensor : returned[base_number].tensor;
      result = at::as_strided(base, output.sizes, output.strides,
                              base.storage_offset() + output.number.integer);
    }
    if (described.to_host && result.defined()) result = result.cpu();
  }
  return returned;
}

}  // namespace neuron::dynamo
