#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

#include "neuron/base/shape.h"

// Sizes, strides and dtypes of an op's results, found once per key: torch's own C++ structured
// metas where they exist (with the CPU's messages), shape functions for hot ops without one, and
// the registered Meta kernel (often Python) for the rest.
namespace neuron::aten {

struct ResultInfo {
  bool defined = true;
  c10::ScalarType dtype = c10::ScalarType::Float;
  Dims sizes, strides;
};

struct Metadata {
  /// Tensor returns of the functional schema, lists flattened.
  std::vector<ResultInfo> values;
  /// Per tensor return: -1 for a tensor, else the length of the list.
  std::vector<int32_t> counts;
  /// Per return of the schema; used for int returns only.
  std::vector<int64_t> integers;

  void add(c10::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides);
  /// Contiguous.
  void add(c10::ScalarType dtype, at::IntArrayRef sizes);
  void add_undefined();
};

/// The C++ meta function of exactly this overload ("aten::add_.Tensor"), or null.
const c10::KernelFunction* find_structured_meta(const std::string& name);
/// torch lets this overload mix devices: 0-dim CPU tensors are welcome.
bool accepts_mixed_devices(const std::string& name);

/// Calls a structured meta with real tensors; it checks arguments in the CPU's words, and resizes
/// out= tensors. The stack is replaced by the results.
void call_structured_meta(const c10::KernelFunction& kernel, const c10::OperatorHandle& op,
                          torch::jit::Stack* stack);
/// Describes what a meta function returned.
Metadata describe_results(const c10::FunctionSchema& schema, const torch::jit::Stack& results);

/// The same arguments with tensors on the meta device, and no generators.
torch::jit::Stack meta_arguments(const c10::FunctionSchema& schema,
                                 const std::vector<c10::IValue>& arguments);

/// Runs the op's registered Meta kernel on meta copies of `arguments` (functional order). Takes the
/// GIL if the kernel is Python: never call with a lock held.
Metadata run_registered_meta(const c10::OperatorHandle& op,
                             const std::vector<c10::IValue>& arguments);

/// A shape function: arguments in functional order (real tensors) -> metadata. False: does not
/// know this case.
using ShapeFunction = bool (*)(const std::vector<c10::IValue>& arguments, Metadata& result);
/// By functional name; null if there is none.
ShapeFunction find_shape_function(const std::string& name);

namespace internal {
struct StructuredMeta {
  const char* name;
  c10::KernelFunction kernel;
};
/// The generated parts of the table.
std::vector<StructuredMeta> structured_metas_0();
std::vector<StructuredMeta> structured_metas_1();
std::vector<StructuredMeta> structured_metas_2();
std::vector<StructuredMeta> structured_metas_3();
}  // namespace internal

}  // namespace neuron::aten
