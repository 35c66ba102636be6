#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "neuron/lowering/op_call.h"

namespace neuron::lowering {

/// Turns a call into values: one per returned tensor (an undefined Value where torch returns an
/// undefined tensor; lists flattened), then one per argument in `writes`.
/// A result may have another float/integer dtype than call.result(k) only if converting it is what
/// torch would do; the driver converts and checks the shape.
using LoweringFunction = Values (*)(Builder& builder, const OpCall& call);

/// One registered lowering. `schema` is the functional ATen schema, as torch prints it.
struct Lowering {
  const char* schema;
  LoweringFunction function;
  /// Names of arguments that torch writes without marking them in the schema (running statistics).
  std::vector<const char*> writes;
  /// The lowering is a library kernel: it runs on the simulator only.
  bool library = false;

  /// "aten::add.Tensor".
  std::string name() const;
};

/// All lowerings, in order of registration.
std::span<const Lowering> all_lowerings();
/// By "aten::add.Tensor"; null if there is none.
const Lowering* find_lowering(std::string_view name);

namespace internal {
struct Registrar {
  Registrar(const char* schema, LoweringFunction function,
            std::initializer_list<const char*> writes = {}, bool library = false);
};
}  // namespace internal

#define NEURON_LOWERING_CONCAT2(a, b) a##b
#define NEURON_LOWERING_CONCAT(a, b) NEURON_LOWERING_CONCAT2(a, b)

/// NEURON_LOWERING("aten::neg(Tensor self) -> Tensor", neg);
/// In-place, out= and foreach forms are derived by the torch adapter from the schema.
#define NEURON_LOWERING(schema, function)                                      \
  static const ::neuron::lowering::internal::Registrar NEURON_LOWERING_CONCAT( \
      kLowering, __COUNTER__)(schema, function)

/// The same, naming arguments that are written without a mark in the schema:
/// NEURON_LOWERING_WRITES("aten::native_batch_norm(...)", fn, "running_mean", "running_var");
#define NEURON_LOWERING_WRITES(schema, function, ...)                          \
  static const ::neuron::lowering::internal::Registrar NEURON_LOWERING_CONCAT( \
      kLowering, __COUNTER__)(schema, function, {__VA_ARGS__})

/// An op that only a library implements (linalg, fft, sort...): becomes one LibraryCall named after
/// the op, with every non-tensor argument encoded (neff/arguments.h). Runs on the simulator only.
/// Ops with data-dependent output shapes cannot be lowered at all.
Values library_lowering(Builder& builder, const OpCall& call);
#define NEURON_LIBRARY_OP(schema)                                              \
  static const ::neuron::lowering::internal::Registrar NEURON_LOWERING_CONCAT( \
      kLowering, __COUNTER__)(schema, nullptr, {}, true)

}  // namespace neuron::lowering
