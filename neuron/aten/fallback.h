#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "neuron/aten/op_tracking.h"

namespace neuron::aten {

/// Throws if fallbacks to the CPU are refused, warns once per op. `arguments`: of the op, at the
/// end of the stack.
void check_fallback_allowed(const std::string& name, const torch::jit::Stack& stack,
                            size_t arguments);

/// Runs the op on the CPU: tensors are copied there and results back. Counted; warned about once
/// per op; refused if fallbacks are. `writes` names arguments written without a mark.
void run_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack, OpCounter& counter,
                  const std::vector<std::string>& writes = {});

}  // namespace neuron::aten
