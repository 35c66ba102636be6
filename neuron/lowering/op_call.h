#pragma once

#include <complex>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "neuron/hlo/builder.h"

namespace neuron::lowering {

using hlo::Builder;
using hlo::Value;
using hlo::Values;

/// A host number as torch's Scalar holds it: pred, i64, u64, f64 or c128.
struct Number {
  DType kind = DType::i64;
  int64_t integer = 0;             // pred, i64, u64 (bits)
  std::complex<double> real_imag;  // f64, c128
  double as_double() const;
  int64_t as_int() const;
  std::complex<double> as_complex() const;
};

/// One argument of a call, in the order of the functional schema.
struct Argument {
  enum class Kind : uint8_t {
    None,        // None, or an undefined tensor
    Tensor,      // `tensors[0]`
    TensorList,  // `tensors`; members may be undefined (Tensor?[])
    Scalar,      // Scalar or float: `numbers[0]`, `runtime[0]`
    ScalarList,  // Scalar[] or float[]
    Int,         // int or SymInt: `ints[0]`
    IntList,     // int[] or SymInt[]
    Bool,        // `ints[0]`
    BoolList,
    Type,       // ScalarType: `dtype`
    String,     // `text`
    Generator,  // a generator was given or defaulted
    Ignored,    // layout, device, pin_memory, memory_format
  };
  Kind kind = Kind::None;
  Values tensors;
  /// For each member of `tensors`: it is a wrapped number (a Python scalar turned into a tensor).
  SmallVector<uint8_t, 8> wrapped;
  std::vector<Number> numbers;
  /// Run-time values of `numbers`, rank 0, of their kind (pred as i64). Undefined where the
  /// argument is compile-time constant.
  Values runtime;
  Dims ints;
  DType dtype = DType::f32;
  std::string text;
};

/// What a result must look like: torch's own answer, found before the lowering runs.
struct ResultType {
  bool defined = true;
  DType dtype = DType::f32;
  Dims dims;
};

/// Philox state as run-time values: key and first counter (u64, rank 0).
struct PhiloxState {
  Value seed, offset;
};

/// One call of an ATen operator, seen by its lowering: arguments by position in the schema under
/// which the lowering was registered. Reading a run-time number as a constant (number()) makes that
/// argument part of the program's key; nothing else about its value is.
class OpCall {
 public:
  OpCall(Builder& builder, std::vector<Argument> arguments, std::vector<ResultType> results,
         DType default_dtype)
      : builder_(builder),
        arguments_(std::move(arguments)),
        results_(std::move(results)),
        default_dtype_(default_dtype) {}

  size_t size() const { return arguments_.size(); }
  const Argument& argument(size_t i) const { return arguments_[i]; }

  /// The argument is given (not None, not an undefined tensor).
  bool has(size_t i) const { return arguments_[i].kind != Argument::Kind::None; }
  /// A tensor; asserts that it is given.
  Value tensor(size_t i) const;
  /// A tensor, or an undefined Value.
  Value optional_tensor(size_t i) const;
  const Values& tensors(size_t i) const { return arguments_[i].tensors; }
  /// The tensor is a wrapped Python number.
  bool is_wrapped(size_t i) const;

  /// A Scalar/float argument as a rank-0 value of `dtype`, usually a run-time input. Numbers are
  /// converted from i64, f64 or c128 by the program.
  Value scalar(size_t i, DType dtype) const;
  /// Member k of a Scalar[]/float[] argument.
  Value scalar(size_t i, size_t k, DType dtype) const;
  size_t scalar_count(size_t i) const { return arguments_[i].numbers.size(); }
  /// pred, i64, u64, f64 or c128.
  DType scalar_kind(size_t i) const { return arguments_[i].numbers[0].kind; }
  /// The value itself, at compile time: puts it into the key.
  double number(size_t i) const;
  Number exact_number(size_t i) const;

  int64_t integer(size_t i) const;
  /// int? with a default.
  int64_t integer(size_t i, int64_t if_none) const { return has(i) ? integer(i) : if_none; }
  bool flag(size_t i) const { return has(i) && arguments_[i].ints[0] != 0; }
  Dims ints(size_t i) const { return arguments_[i].ints; }
  std::string_view text(size_t i) const { return arguments_[i].text; }
  /// A dtype argument, or the default.
  DType dtype(size_t i, DType if_none) const { return has(i) ? arguments_[i].dtype : if_none; }
  /// A dim argument, wrapped into [0, rank) (rank 0 counts as 1).
  int64_t dim(size_t i, int64_t rank) const;
  /// A dim list, wrapped; all dims if the argument is None or (as reductions mean it) empty.
  Dims dims(size_t i, int64_t rank) const;

  /// What result k must be. Results of a Tensor[] return are counted one by one.
  const ResultType& result(size_t k = 0) const { return results_[k]; }
  size_t result_count() const { return results_.size(); }
  /// torch.get_default_dtype().
  DType default_dtype() const { return default_dtype_; }

  /// Reserves `counters` Philox counters for this call (each gives four 32-bit words).
  PhiloxState philox(int64_t counters) const;

  /// Filled in by the driver and by the calls above; see lower.h.
  struct Trace {
    uint64_t static_arguments = 0;  // Bit i: number(i) was called.
    int64_t philox_counters = 0;
    Value philox_seed, philox_offset;
    /// Schema of the lowering that runs, for library_lowering() and messages; set by the driver.
    const char* schema = nullptr;
  };
  Trace& trace() const { return trace_; }
  Builder& builder() const { return builder_; }

 private:
  Builder& builder_;
  std::vector<Argument> arguments_;
  std::vector<ResultType> results_;
  DType default_dtype_;
  mutable Trace trace_;
};

}  // namespace neuron::lowering
