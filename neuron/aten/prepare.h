#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "neuron/aten/call_key.h"
#include "neuron/aten/meta.h"
#include "neuron/aten/op_tracking.h"
#include "neuron/aten/schema_match.h"
#include "neuron/lowering/lower.h"
#include "neuron/runtime/runtime.h"

// What the first call with a key does, so that the others need not: checks, metadata, lowering,
// loading.
namespace neuron::aten {

/// Checks that look at values, run on every call. `arguments`: of the variant.
using ValueCheck = void (*)(const c10::IValue* arguments);
/// By overload name; null if the op has none.
ValueCheck find_value_check(const std::string& name);

struct Overload;

/// Changes the arguments on the stack before they are looked at (masks become indices); true if the
/// call has been served altogether.
using Rewrite = bool (*)(const Overload& overload, torch::jit::Stack* stack);

/// Everything that stays equal over all calls of one overload. Never destroyed.
struct Overload {
  std::string name;  // "aten::add_.Tensor"
  const lowering::Lowering* lowering = nullptr;
  Variant variant;
  c10::OperatorHandle handle;      // Of this overload.
  c10::OperatorHandle functional;  // Of the lowering's schema.
  std::vector<ArgumentType> functional_types;
  const c10::KernelFunction* own_meta = nullptr;
  const c10::KernelFunction* functional_meta = nullptr;
  ShapeFunction shape = nullptr;
  ValueCheck check = nullptr;
  bool mixed_devices = false;  // 0-dim CPU tensors may meet device tensors.
  bool foreach = false;
  bool meta_arguments = false;  // Its meta compares the result's device with the arguments'.
  bool trusted = false;  // Arguments need no checks: the result is as large as its destination.
  Rewrite rewrite = nullptr;
  std::vector<std::string> writes;
  OpCounter* counter = nullptr;
  std::atomic<uint64_t> static_numbers{0};

  Overload(c10::OperatorHandle handle, c10::OperatorHandle functional)
      : handle(std::move(handle)), functional(std::move(functional)) {}
};

/// Where a scalar of the program comes from: positions in CallView.
struct ScalarSource {
  lowering::InputSource::Kind kind;
  int32_t index = 0;
};

/// One value of the lowering at run time.
struct ResultPlan {
  bool defined = true;
  /// Position in CallView::tensors of the tensor that is overwritten; -1: a new one.
  int32_t tensor = -1;
  c10::ScalarType dtype = c10::ScalarType::Float;
  Dims sizes, strides;
};

/// How one return of the overload is made.
struct ReturnPlan {
  enum class Kind : uint8_t { Result, List, Argument, Integer } kind = Kind::Result;
  int32_t index = 0;  // Result, List: first of the results. Argument: of the overload.
  int32_t count = 0;  // List.
  int64_t integer = 0;
};

/// What is known about calls with one key. Immutable.
struct Entry {
  enum class Kind : uint8_t {
    Program,   // run `program`
    Nothing,   // every result is empty: allocate only
    Fallback,  // the lowering or the compiler refuses: the CPU runs it
    Members,   // a foreach call to be done member by member
  } kind = Kind::Program;
  SmallVector<uint64_t, 48> key;
  uint64_t hash = 0;
  runtime::ProgramRef program;
  std::vector<int32_t> parameters;  // Positions in CallView::tensors.
  std::vector<ScalarSource> scalars;
  std::vector<ResultPlan> results;
  std::vector<int32_t> outputs;  // Which of `results` the program writes, in its order.
  std::vector<ReturnPlan> returns;
  int64_t philox_counters = 0;
  mutable uint64_t last_used = 0;  // Guarded by the cache's lock.
};

/// Builds the entry for `view`; throws what the CPU would throw for bad arguments. Null: an out=
/// tensor was resized or more numbers became part of the key, so the key must be built anew.
std::shared_ptr<Entry> prepare(Overload& overload, const CallView& view);

}  // namespace neuron::aten
