#include "neuron/lowering/op_call.h"

#include <algorithm>

#include "neuron/base/error.h"

namespace neuron::lowering {

double Number::as_double() const {
  switch (kind) {
    case DType::f64:
    case DType::c128:
      return real_imag.real();
    case DType::u64:
      return static_cast<double>(static_cast<uint64_t>(integer));
    default:
      return static_cast<double>(integer);
  }
}

int64_t Number::as_int() const {
  if (kind == DType::f64 || kind == DType::c128) return static_cast<int64_t>(real_imag.real());
  return integer;
}

std::complex<double> Number::as_complex() const {
  if (kind == DType::f64 || kind == DType::c128) return real_imag;
  return {as_double(), 0.0};
}

namespace {

Value constant_of(Builder& builder, const Number& number, DType dtype) {
  if (number.kind == DType::c128 || is_complex(dtype)) {
    return builder.convert(builder.constant_complex(DType::c128, number.as_complex()), dtype);
  }
  if (number.kind == DType::f64) {
    // A float read as an integer truncates, as convert() does; constant() would do the same but
    // says so only for integers.
    return is_floating(dtype)
               ? builder.constant(dtype, number.as_double())
               : builder.convert(builder.constant(DType::f64, number.as_double()), dtype);
  }
  if (dtype == DType::pred) return builder.constant_int(dtype, number.integer != 0);
  if (number.kind == DType::u64 && is_floating(dtype)) {
    return builder.constant(dtype, number.as_double());
  }
  return builder.constant_int(dtype, number.integer);
}

}  // namespace

Value OpCall::tensor(size_t i) const {
  NEURON_ASSERT(i < arguments_.size() && arguments_[i].kind == Argument::Kind::Tensor, "argument ",
                i, " is not a tensor");
  return arguments_[i].tensors[0];
}

Value OpCall::optional_tensor(size_t i) const {
  NEURON_ASSERT(i < arguments_.size(), "there is no argument ", i);
  if (arguments_[i].kind != Argument::Kind::Tensor) return {};
  return arguments_[i].tensors[0];
}

bool OpCall::is_wrapped(size_t i) const {
  return !arguments_[i].wrapped.empty() && arguments_[i].wrapped[0] != 0;
}

Value OpCall::scalar(size_t i, DType dtype) const { return scalar(i, 0, dtype); }

Value OpCall::scalar(size_t i, size_t k, DType dtype) const {
  const Argument& argument = arguments_[i];
  NEURON_ASSERT(k < argument.numbers.size(), "argument ", i, " has no number ", k);
  if (k < argument.runtime.size() && argument.runtime[k].defined()) {
    return builder_.convert(argument.runtime[k], dtype);
  }
  return constant_of(builder_, argument.numbers[k], dtype);
}

double OpCall::number(size_t i) const { return exact_number(i).as_double(); }

Number OpCall::exact_number(size_t i) const {
  NEURON_ASSERT(!arguments_[i].numbers.empty(), "argument ", i, " is not a number");
  trace_.static_arguments |= uint64_t{1} << i;
  return arguments_[i].numbers[0];
}

int64_t OpCall::integer(size_t i) const {
  NEURON_ASSERT(!arguments_[i].ints.empty(), "argument ", i, " is not an integer");
  return arguments_[i].ints[0];
}

namespace {

int64_t wrap_dim(int64_t dim, int64_t rank) {
  const int64_t limit = rank == 0 ? 1 : rank;
  NEURON_CHECK(dim >= -limit && dim < limit, kIndex, "Dimension out of range (expected to be in ",
               "range of [", -limit, ", ", limit - 1, "], but got ", dim, ")");
  return dim < 0 ? dim + limit : dim;
}

}  // namespace

int64_t OpCall::dim(size_t i, int64_t rank) const { return wrap_dim(integer(i), rank); }

Dims OpCall::dims(size_t i, int64_t rank) const {
  Dims wrapped;
  if (!has(i) || arguments_[i].ints.empty()) {
    for (int64_t k = 0; k < rank; ++k) wrapped.push_back(k);
    return wrapped;
  }
  for (int64_t given : arguments_[i].ints) {
    const int64_t dim = wrap_dim(given, rank);
    if (rank > 0) wrapped.push_back(dim);
  }
  std::sort(wrapped.begin(), wrapped.end());
  return wrapped;
}

PhiloxState OpCall::philox(int64_t counters) const {
  if (!trace_.philox_seed.defined()) {
    trace_.philox_seed = builder_.scalar(DType::u64);
    trace_.philox_offset = builder_.scalar(DType::u64);
  }
  Value offset = trace_.philox_offset;
  if (trace_.philox_counters != 0) {
    offset = builder_.add(offset, builder_.constant_int(DType::u64, trace_.philox_counters));
  }
  trace_.philox_counters += counters;
  return {trace_.philox_seed, offset};
}

}  // namespace neuron::lowering
