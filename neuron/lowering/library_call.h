#pragma once

#include <string>
#include <vector>

#include "neuron/lowering/op_call.h"
#include "neuron/neff/arguments.h"

namespace neuron::lowering {

/// A call of a library kernel under construction: operands and encoded arguments.
class LibraryCall {
 public:
  explicit LibraryCall(std::string name) : name_(std::move(name)) {}
  /// With all arguments of an op, in schema order.
  LibraryCall(std::string name, const OpCall& call);

  /// Argument i of the op. Its numbers become part of the program's key.
  void add(const OpCall& call, size_t i);
  /// A tensor, or None if it is undefined.
  void add(Value tensor);
  void add(neff::LibraryArgument argument);
  /// An operand that the argument list has described already (seed and offset).
  void add_operand(Value tensor) { operands_.push_back(tensor); }

  /// One value per result; undefined where the result is.
  Values emit(Builder& b, std::span<const ResultType> results);

 private:
  std::string name_;
  Values operands_;
  std::vector<neff::LibraryArgument> arguments_;
};

/// What torch expects of the call, as a list.
std::vector<ResultType> results_of(const OpCall& call);

}  // namespace neuron::lowering
