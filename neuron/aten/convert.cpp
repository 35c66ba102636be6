#include "neuron/aten/convert.h"

#include <c10/core/TensorImpl.h>

#include "neuron/aten/tensor.h"

namespace neuron::aten {

using lowering::Argument;
using lowering::CallArgument;
using lowering::Number;
using lowering::TensorInput;

namespace {

Dims to_dims(at::IntArrayRef values) { return Dims(values.begin(), values.end()); }

}  // namespace

Number to_number(const c10::IValue& value) {
  Number number;
  if (value.isDouble()) {
    number.kind = DType::f64;
    number.real_imag = value.toDouble();
  } else if (value.isBool()) {
    number.kind = DType::pred;
    number.integer = value.toBool();
  } else if (value.isInt()) {
    number.kind = DType::i64;
    number.integer = value.toInt();
  } else if (value.isComplexDouble()) {
    number.kind = DType::c128;
    const c10::complex<double> complex = value.toComplexDouble();
    number.real_imag = {complex.real(), complex.imag()};
  } else {
    number.kind = DType::u64;
    number.integer = static_cast<int64_t>(value.toScalar().toUInt64());
  }
  return number;
}

runtime::ScalarSlot to_slot(const c10::IValue& value) {
  runtime::ScalarSlot slot;
  slot.integer = 0;
  slot.unused = 0;
  if (value.isDouble()) {
    slot.real[0] = value.toDouble();
  } else if (value.isInt()) {
    slot.integer = value.toInt();
  } else if (value.isBool()) {
    slot.integer = value.toBool();
  } else if (value.isComplexDouble()) {
    const c10::complex<double> complex = value.toComplexDouble();
    slot.real[0] = complex.real();
    slot.real[1] = complex.imag();
  } else {
    slot.integer = static_cast<int64_t>(value.toScalar().toUInt64());
  }
  return slot;
}

runtime::ScalarSlot read_host_scalar(const at::Tensor& tensor) {
  runtime::ScalarSlot slot;
  slot.integer = 0;
  slot.unused = 0;
  const void* data = tensor.const_data_ptr();
  const auto read = [&](auto type) { return *static_cast<const decltype(type)*>(data); };
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Bool:
      slot.integer = read(bool{});
      break;
    case c10::ScalarType::Char:
      slot.integer = read(int8_t{});
      break;
    case c10::ScalarType::Short:
      slot.integer = read(int16_t{});
      break;
    case c10::ScalarType::Int:
      slot.integer = read(int32_t{});
      break;
    case c10::ScalarType::Long:
      slot.integer = read(int64_t{});
      break;
    case c10::ScalarType::Byte:
      slot.integer = read(uint8_t{});
      break;
    case c10::ScalarType::UInt16:
      slot.integer = read(uint16_t{});
      break;
    case c10::ScalarType::UInt32:
      slot.integer = read(uint32_t{});
      break;
    case c10::ScalarType::UInt64:
      slot.integer = static_cast<int64_t>(read(uint64_t{}));
      break;
    case c10::ScalarType::Half:
      slot.real[0] = static_cast<float>(read(c10::Half{}));
      break;
    case c10::ScalarType::BFloat16:
      slot.real[0] = static_cast<float>(read(c10::BFloat16{}));
      break;
    case c10::ScalarType::Float:
      slot.real[0] = read(float{});
      break;
    case c10::ScalarType::Double:
      slot.real[0] = read(double{});
      break;
    case c10::ScalarType::Float8_e4m3fn:
      slot.real[0] = static_cast<float>(read(c10::Float8_e4m3fn{}));
      break;
    case c10::ScalarType::Float8_e5m2:
      slot.real[0] = static_cast<float>(read(c10::Float8_e5m2{}));
      break;
    case c10::ScalarType::ComplexFloat: {
      const auto complex = read(c10::complex<float>{});
      slot.real[0] = complex.real();
      slot.real[1] = tensor.is_conj() ? -complex.imag() : complex.imag();
      break;
    }
    case c10::ScalarType::ComplexDouble: {
      const auto complex = read(c10::complex<double>{});
      slot.real[0] = complex.real();
      slot.real[1] = tensor.is_conj() ? -complex.imag() : complex.imag();
      break;
    }
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "neuron: a CPU number of dtype ", tensor.scalar_type(),
                                  " cannot be an argument on this device");
  }
  return slot;
}

TensorInput to_input(const at::Tensor& tensor) {
  TensorInput input;
  if (!tensor.defined()) {
    input.defined = false;
    return input;
  }
  input.dtype = checked_dtype(tensor.scalar_type());
  input.dims = to_dims(tensor.sizes());
  input.strides = to_dims(tensor.strides());
  input.wrapped_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  input.host_scalar = !on_device(tensor);
  return input;
}

CallArgument to_call_argument(ArgumentType type, const c10::IValue& value) {
  CallArgument argument;
  if (value.isNone()) return argument;
  switch (type) {
    case ArgumentType::Tensor:
      if (!value.toTensor().defined()) return argument;
      argument.kind = Argument::Kind::Tensor;
      argument.tensors.push_back(to_input(value.toTensor()));
      break;
    case ArgumentType::TensorList:
      argument.kind = Argument::Kind::TensorList;
      for (const c10::IValue& member : value.toListRef()) {
        argument.tensors.push_back(to_input(member.isNone() ? at::Tensor() : member.toTensor()));
      }
      break;
    case ArgumentType::Number:
      argument.kind = Argument::Kind::Scalar;
      argument.numbers.push_back(to_number(value));
      break;
    case ArgumentType::NumberList:
      argument.kind = Argument::Kind::ScalarList;
      for (const c10::IValue& member : value.toListRef()) {
        argument.numbers.push_back(to_number(member));
      }
      break;
    case ArgumentType::Int:
      argument.kind = Argument::Kind::Int;
      argument.ints.push_back(value.toInt());
      break;
    case ArgumentType::IntList:
      argument.kind = Argument::Kind::IntList;
      if (value.isInt()) {
        argument.ints.push_back(value.toInt());
      } else {
        for (const c10::IValue& member : value.toListRef()) argument.ints.push_back(member.toInt());
      }
      break;
    case ArgumentType::Bool:
      argument.kind = Argument::Kind::Bool;
      argument.ints.push_back(value.toBool());
      break;
    case ArgumentType::BoolList:
      argument.kind = Argument::Kind::BoolList;
      for (const c10::IValue& member : value.toListRef()) argument.ints.push_back(member.toBool());
      break;
    case ArgumentType::Type:
      argument.kind = Argument::Kind::Type;
      argument.dtype = checked_dtype(value.toScalarType());
      break;
    case ArgumentType::String:
      argument.kind = Argument::Kind::String;
      argument.text = value.toStringRef();
      break;
    case ArgumentType::Generator:
      argument.kind = Argument::Kind::Generator;
      break;
    case ArgumentType::MemoryFormat:
      argument.kind = Argument::Kind::Ignored;
      argument.ints.push_back(value.toInt());
      break;
    case ArgumentType::Device:
    case ArgumentType::Ignored:
    case ArgumentType::Other:
      argument.kind = Argument::Kind::Ignored;
      break;
  }
  return argument;
}

}  // namespace neuron::aten
