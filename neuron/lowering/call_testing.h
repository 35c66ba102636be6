#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "neuron/base/error.h"
#include "neuron/hlo/evaluate.h"
#include "neuron/lowering/lower.h"

namespace neuron::lowering::testing {

/// A dense array of numbers, narrowed to `dtype` by a program's own Convert.
inline hlo::Array array(DType dtype, Dims dims, const std::vector<double>& numbers) {
  hlo::Builder b;
  const std::span<const double> given(numbers);
  b.result(b.convert(b.literal(DType::f64, dims, std::as_bytes(given)), dtype));
  return hlo::evaluate(b.finish(), {})[0];
}
inline hlo::Array f32(Dims dims, const std::vector<double>& numbers) {
  return array(DType::f32, std::move(dims), numbers);
}
inline hlo::Array i64(Dims dims, const std::vector<double>& numbers) {
  return array(DType::i64, std::move(dims), numbers);
}
/// 0, 1, 2, ...
inline hlo::Array count_up(Dims dims, DType dtype = DType::f32) {
  std::vector<double> numbers(static_cast<size_t>(count_elements(dims)));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<double>(i);
  return array(dtype, std::move(dims), numbers);
}

/// The elements as doubles.
inline std::vector<double> numbers(const hlo::Array& x) {
  hlo::Builder b;
  b.result(b.convert(b.parameter(x.type.dtype, x.type.dims), DType::f64));
  const hlo::Array wide = hlo::evaluate(b.finish(), std::span(&x, 1))[0];
  std::vector<double> list(wide.bytes.size() / sizeof(double));
  if (!list.empty()) std::memcpy(list.data(), wide.bytes.data(), wide.bytes.size());
  return list;
}

/// One call of a lowering on given numbers: arguments in schema order, then the result types.
class TestCall {
 public:
  explicit TestCall(const char* name) {
    call_.lowering = find_lowering(name);
    if (call_.lowering == nullptr) throw Error(ErrorKind::kInvalid, std::string("no ") + name);
  }
  TestCall& none() { return add(Argument::Kind::None); }
  TestCall& tensor(hlo::Array x) {
    add(Argument::Kind::Tensor);
    add_member(std::move(x));
    return *this;
  }
  /// Members without elements and dims of {-1} are undefined.
  TestCall& tensors(std::vector<hlo::Array> list) {
    add(Argument::Kind::TensorList);
    for (hlo::Array& x : list) add_member(std::move(x));
    return *this;
  }
  static hlo::Array undefined() { return {{DType::pred, Dims{-1}}, {}}; }
  TestCall& number(double value) {
    add(Argument::Kind::Scalar);
    Number n;
    n.kind = DType::f64;
    n.real_imag = value;
    call_.arguments.back().numbers.push_back(n);
    return *this;
  }
  /// A Scalar of kind i64.
  TestCall& whole(int64_t value) {
    add(Argument::Kind::Scalar);
    Number n;
    n.integer = value;
    call_.arguments.back().numbers.push_back(n);
    return *this;
  }
  /// A Python float in the place of a tensor.
  TestCall& wrapped(double value) {
    tensor(array(DType::f64, {}, {value}));
    call_.arguments.back().tensors[0].wrapped_number = true;
    call_.arguments.back().tensors[0].host_scalar = true;
    return *this;
  }
  TestCall& type(DType dtype) {
    add(Argument::Kind::Type);
    call_.arguments.back().dtype = dtype;
    return *this;
  }
  /// Layout, device, pin_memory, memory_format.
  TestCall& ignored(size_t count = 1) {
    for (size_t k = 0; k < count; ++k) add(Argument::Kind::Ignored);
    return *this;
  }
  /// The last result overwrites this argument.
  TestCall& overwrites(int32_t argument) {
    call_.results.back().alias_argument = argument;
    return *this;
  }
  TestCall& integer(int64_t value) { return add(Argument::Kind::Int, Dims{value}); }
  TestCall& ints(Dims values) { return add(Argument::Kind::IntList, std::move(values)); }
  TestCall& flag(bool value) { return add(Argument::Kind::Bool, Dims{value}); }
  TestCall& flags(Dims values) { return add(Argument::Kind::BoolList, std::move(values)); }
  TestCall& text(std::string value) {
    add(Argument::Kind::String);
    call_.arguments.back().text = std::move(value);
    return *this;
  }
  TestCall& returns(DType dtype, Dims dims) {
    CallResult result;
    result.type = {true, dtype, dims};
    result.strides = contiguous_strides(dims);
    call_.results.push_back(result);
    return *this;
  }
  TestCall& returns_undefined() {
    CallResult result;
    result.type.defined = false;
    call_.results.push_back(result);
    return *this;
  }

  LoweredCall lowered() const { return lower(call_); }

  std::vector<hlo::Array> run(hlo::LibraryFunction library = nullptr) const {
    const LoweredCall made = lowered();
    std::vector<hlo::Array> parameters;
    for (const InputSource& source : made.parameters) {
      parameters.push_back(
          data_[static_cast<size_t>(source.argument)][static_cast<size_t>(source.member)]);
    }
    std::vector<std::complex<double>> scalars;
    for (const InputSource& source : made.scalars) {
      if (source.kind == InputSource::Kind::HostScalar) {
        scalars.push_back(numbers(data_[static_cast<size_t>(source.argument)][0])[0]);
        continue;
      }
      const bool number = source.kind == InputSource::Kind::Number;
      scalars.push_back(number ? call_.arguments[static_cast<size_t>(source.argument)]
                                     .numbers[static_cast<size_t>(source.member)]
                                     .as_complex()
                               : 0.0);
    }
    return hlo::evaluate(made.module, parameters, scalars, library);
  }
  /// The elements of result k.
  std::vector<double> result(size_t k = 0) const { return numbers(run()[k]); }

 private:
  TestCall& add(Argument::Kind kind, Dims ints = {}) {
    CallArgument argument;
    argument.kind = kind;
    argument.ints = std::move(ints);
    call_.arguments.push_back(std::move(argument));
    data_.emplace_back();
    return *this;
  }
  void add_member(hlo::Array x) {
    TensorInput input;
    input.defined = x.type.dims != Dims{-1};
    input.dtype = x.type.dtype;
    input.dims = x.type.dims;
    if (input.defined) input.strides = contiguous_strides(x.type.dims);
    call_.arguments.back().tensors.push_back(input);
    data_.back().push_back(std::move(x));
  }

  Call call_;
  std::vector<std::vector<hlo::Array>> data_;
};

using Numbers = std::vector<double>;

inline void expect_near(const Numbers& got, const Numbers& wanted, double tolerance = 1e-6) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], tolerance) << i;
}

}  // namespace neuron::lowering::testing
