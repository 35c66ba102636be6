#include "neuron/aten/tensor.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include "neuron/aten/allocator.h"

namespace neuron::aten {

std::optional<DType> dtype_of(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Bool:
      return DType::pred;
    case c10::ScalarType::Char:
      return DType::i8;
    case c10::ScalarType::Short:
      return DType::i16;
    case c10::ScalarType::Int:
      return DType::i32;
    case c10::ScalarType::Long:
      return DType::i64;
    case c10::ScalarType::Byte:
      return DType::u8;
    case c10::ScalarType::UInt16:
      return DType::u16;
    case c10::ScalarType::UInt32:
      return DType::u32;
    case c10::ScalarType::UInt64:
      return DType::u64;
    case c10::ScalarType::Half:
      return DType::f16;
    case c10::ScalarType::BFloat16:
      return DType::bf16;
    case c10::ScalarType::Float:
      return DType::f32;
    case c10::ScalarType::Double:
      return DType::f64;
    case c10::ScalarType::Float8_e4m3fn:
      return DType::f8e4m3fn;
    case c10::ScalarType::Float8_e5m2:
      return DType::f8e5m2;
    case c10::ScalarType::ComplexFloat:
      return DType::c64;
    case c10::ScalarType::ComplexDouble:
      return DType::c128;
    default:
      return std::nullopt;
  }
}

DType checked_dtype(c10::ScalarType type) {
  const std::optional<DType> found = dtype_of(type);
  TORCH_CHECK_NOT_IMPLEMENTED(found.has_value(), "neuron: tensors of dtype ", type,
                              " are not supported on this device");
  return *found;
}

c10::ScalarType scalar_type_of(DType type) {
  switch (type) {
    case DType::pred:
      return c10::ScalarType::Bool;
    case DType::i8:
      return c10::ScalarType::Char;
    case DType::i16:
      return c10::ScalarType::Short;
    case DType::i32:
      return c10::ScalarType::Int;
    case DType::i64:
      return c10::ScalarType::Long;
    case DType::u8:
      return c10::ScalarType::Byte;
    case DType::u16:
      return c10::ScalarType::UInt16;
    case DType::u32:
      return c10::ScalarType::UInt32;
    case DType::u64:
      return c10::ScalarType::UInt64;
    case DType::f16:
      return c10::ScalarType::Half;
    case DType::bf16:
      return c10::ScalarType::BFloat16;
    case DType::f32:
      return c10::ScalarType::Float;
    case DType::f64:
      return c10::ScalarType::Double;
    case DType::f8e4m3fn:
      return c10::ScalarType::Float8_e4m3fn;
    case DType::f8e5m2:
      return c10::ScalarType::Float8_e5m2;
    case DType::c64:
      return c10::ScalarType::ComplexFloat;
    case DType::c128:
      return c10::ScalarType::ComplexDouble;
    case DType::f8e4m3:
      break;  // torch has no such type
  }
  TORCH_CHECK_NOT_IMPLEMENTED(false, "neuron: torch has no dtype for ", name_of(type));
}

runtime::Buffer buffer_of(const at::Tensor& tensor) {
  const at::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const c10::DataPtr& data = impl->unsafe_storage().data_ptr();
  char* base = static_cast<char*>(data.get());
  return {base + impl->storage_offset() * static_cast<int64_t>(impl->itemsize()), block_of(data)};
}

at::Tensor empty_strided_unchecked(at::IntArrayRef sizes, at::IntArrayRef strides,
                                   c10::ScalarType type, c10::DeviceIndex device) {
  const caffe2::TypeMeta meta = c10::scalarTypeToTypeMeta(type);
  int64_t extent = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) {
      extent = 0;
      break;
    }
    extent += (sizes[i] - 1) * strides[i];
  }
  const size_t bytes = static_cast<size_t>(extent) * meta.itemsize();
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       allocate_data(device, bytes),
                                                       device_allocator(), /*resizable=*/true);
  constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
  at::Tensor tensor =
      at::detail::make_tensor_base<c10::TensorImpl>(std::move(storage), kKeys, meta);
  at::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (sizes.size() != 1 || sizes[0] != 0) impl->set_sizes_and_strides(sizes, strides);
  return tensor;
}

void rethrow_as_torch(const Error& error) {
  const std::string text = error.what();
  switch (error.kind()) {
    case ErrorKind::kInvalid:
      TORCH_CHECK(false, text);
    case ErrorKind::kIndex:
      TORCH_CHECK_INDEX(false, text);
    case ErrorKind::kType:
      TORCH_CHECK_TYPE(false, text);
    case ErrorKind::kUnsupported:
      TORCH_CHECK_NOT_IMPLEMENTED(false, text);
    case ErrorKind::kOutOfMemory:
      TORCH_CHECK_WITH(OutOfMemoryError, false, text);
    case ErrorKind::kDevice:
      throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, 1, text);
    case ErrorKind::kCollective:
      C10_THROW_ERROR(DistBackendError, text);
    case ErrorKind::kIo:
    case ErrorKind::kInternal:
      break;
  }
  TORCH_CHECK(false, text);
}

}  // namespace neuron::aten
