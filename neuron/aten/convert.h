#pragma once

#include <ATen/core/ivalue.h>

#include "neuron/aten/schema_match.h"
#include "neuron/lowering/lower.h"
#include "neuron/runtime/runtime.h"

// IValue and at::Tensor -> what the lowerings take.
namespace neuron::aten {

lowering::Number to_number(const c10::IValue& value);
/// The slot of a run-time number: i64/u64/pred as integer, f64 and c128 as reals.
runtime::ScalarSlot to_slot(const c10::IValue& number);
/// Reads a 0-dim host tensor, now.
runtime::ScalarSlot read_host_scalar(const at::Tensor& tensor);

lowering::TensorInput to_input(const at::Tensor& tensor);
/// `value`: None if the form of the op drops the argument. 0-dim host tensors become host scalars.
lowering::CallArgument to_call_argument(ArgumentType type, const c10::IValue& value);

}  // namespace neuron::aten
