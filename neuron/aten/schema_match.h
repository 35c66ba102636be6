#pragma once

#include <ATen/core/function_schema.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// Which overloads of torch are forms of one lowering, and how their arguments and returns map to
// the functional schema. Pure: schemas in, a description out.
namespace neuron::aten {

/// How the dispatcher reads an argument.
enum class ArgumentType : uint8_t {
  Tensor,      // Tensor, Tensor?
  TensorList,  // Tensor[], Tensor?[]
  Number,      // Scalar, float and their optionals
  NumberList,
  Int,
  IntList,
  Bool,
  BoolList,
  Type,
  String,
  Generator,
  Device,
  MemoryFormat,
  Ignored,  // layout, pin_memory
  Other,    // Nothing a lowering can take.
};

ArgumentType argument_type(const c10::Argument& argument);

enum class Form : uint8_t { Functional, InPlace, Out };

/// Where one value of the lowering goes.
struct Target {
  /// The variant's argument that it overwrites; -1: a fresh tensor (or list of tensors).
  int32_t argument = -1;
  bool list = false;
};

/// What the variant returns.
struct Return {
  enum class Kind : uint8_t { Value, Argument, Integer } kind = Kind::Value;
  /// Value: index of the target. Argument: of the variant. Integer: of the functional return.
  int32_t index = 0;
};

struct VariantArgument {
  ArgumentType type = ArgumentType::Other;
  /// Position in the functional schema; -1 for an out= buffer.
  int32_t functional = -1;
  bool written = false;
  bool out = false;
};

/// One overload served by a lowering.
struct Variant {
  Form form = Form::Functional;
  std::vector<VariantArgument> arguments;
  /// Functional argument -> argument of the variant, or -1 where the variant drops it.
  std::vector<int32_t> sources;
  /// One per value of the lowering: the tensor returns of the functional schema, then `writes`.
  std::vector<Target> targets;
  std::vector<Return> returns;
  /// Number of functional returns that `targets` begins with (the rest are written arguments).
  size_t functional_values = 0;
};

/// Describes `candidate` as a form of `functional`, or nothing if it is none. `writes` names
/// arguments that are written without a mark.
std::optional<Variant> match_variant(const c10::FunctionSchema& functional,
                                     const std::vector<std::string>& writes,
                                     const c10::FunctionSchema& candidate);

/// Base names ("aten::add_") under which forms of a functional op may be found, its own included.
std::vector<std::string> related_names(const std::string& functional);

/// The schema returns an alias of an argument without writing it.
bool is_view(const c10::FunctionSchema& schema);

/// Both have the same arguments and returns: names, types, alias marks, kwarg-only. Defaults and
/// overload names are not compared. If not, `difference` says where.
bool same_signature(const c10::FunctionSchema& ours, const c10::FunctionSchema& torchs,
                    std::string* difference);

}  // namespace neuron::aten
