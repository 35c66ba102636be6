#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>

#include "neuron/aten/schema_match.h"
#include "neuron/base/small_vector.h"

namespace neuron::aten {

/// One call as the dispatcher sees it: its tensors and numbers laid flat, and its key. Points into
/// the stack; lives on the C++ stack, without heap memory for ordinary calls.
struct CallView {
  const c10::IValue* arguments = nullptr;
  SmallVector<const at::Tensor*, 24> tensors;   // Undefined ones included.
  SmallVector<const c10::IValue*, 16> numbers;  // Scalars, one by one.
  SmallVector<uint64_t, 96> key;
  uint64_t hash = 0;
  /// The device that runs the call; -1: no tensor or Device argument names one.
  int32_t device = -1;
  const c10::IValue* generator = nullptr;
  /// A tensor that is not on that device took part (a host scalar, or an error).
  bool mixed_devices = false;
  /// A tensor is lazily conjugated or negated: torch lets some ops (clone, mm) see such tensors.
  bool lazy_bits = false;
  /// Two written tensors, or a written and another one, share bytes.
  bool overlaps = false;
};

/// The flattened position at which each argument's tensors begin follows from the schema and the
/// list lengths; `first_tensor` recomputes it for the rare callers.
int32_t first_tensor(const Variant& variant, const CallView& view, size_t argument);
/// Members of argument `a` that take part in CallView::tensors.
int32_t tensor_count(const Variant& variant, const CallView& view, size_t argument);

/// Reads the arguments and builds the key. `static_numbers`: bit i set means that the value of the
/// numbers of functional argument i belongs to the key. False if the call is none that a program
/// can serve (a sparse or quantised tensor, a symbolic size, a dtype that the device lacks).
bool build_key(const Variant& variant, uint64_t static_numbers, const c10::IValue* arguments,
               CallView& view);

/// How two tensors share memory.
enum class Overlap : uint8_t { None, Same, Partial };
Overlap overlap_of(const at::Tensor& a, const at::Tensor& b);

}  // namespace neuron::aten
