#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "neuron/aten/allocator.h"
#include "neuron/aten/devices.h"
#include "neuron/aten/op_tracking.h"
#include "neuron/aten/storage.h"
#include "neuron/aten/tensor.h"

// Making tensors, viewing them, and giving them other storage: everything that computes nothing.
namespace neuron::aten {
namespace {

// torch.use_deterministic_algorithms: what nobody has written yet is NaN or the largest integer.
void fill_if_deterministic(at::Tensor& out) {
  at::Context& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory())
      [[unlikely]] {
    at::native::fill_empty_deterministic_(out);
  }
}

c10::DeviceIndex checked_index(std::optional<c10::Device> device) {
  const c10::DeviceIndex index =
      device.has_value() && device->has_index() ? device->index() : current_device();
  check_device_index(index);
  return index;
}

void check_options(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(!layout.has_value() || *layout == c10::Layout::Strided,
                              "neuron: only strided tensors are supported, not layout ",
                              layout.value_or(c10::Layout::Strided));
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

c10::ScalarType checked_type(std::optional<c10::ScalarType> type) {
  const c10::ScalarType found = type.value_or(c10::get_default_dtype_as_scalartype());
  // Pairs of halves are stored and moved; what is computed with them runs on the CPU.
  if (found != c10::ScalarType::ComplexHalf) checked_dtype(found);
  return found;
}

at::Tensor empty_memory_format(at::IntArrayRef sizes, std::optional<c10::ScalarType> type,
                               std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                               std::optional<bool> pin_memory,
                               std::optional<c10::MemoryFormat> format) {
  static OpCounter& counter = counter_of("aten::empty.memory_format");
  check_options(layout, pin_memory);
  const c10::ScalarType dtype = checked_type(type);
  const c10::DeviceIndex index = checked_index(device);
  translating_errors([&] { runtime::ensure_device(index); });
  counter.native.fetch_add(1, std::memory_order_relaxed);
  const c10::DeviceIndex previous = current_device();
  if (previous != index) set_current_device(index);
  constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
  at::Tensor out;
  try {
    out = at::detail::empty_generic(sizes, device_allocator(), kKeys, dtype, format);
  } catch (...) {
    if (previous != index) set_current_device(previous);
    throw;
  }
  if (previous != index) set_current_device(previous);
  fill_if_deterministic(out);
  return out;
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<c10::ScalarType> type, std::optional<c10::Layout> layout,
                         std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  static OpCounter& counter = counter_of("aten::empty_strided");
  check_options(layout, pin_memory);
  const c10::ScalarType dtype = checked_type(type);
  const c10::DeviceIndex index = checked_index(device);
  at::detail::check_size_nonnegative(sizes);
  TORCH_CHECK(sizes.size() == strides.size(), "dimensionality of sizes (", sizes.size(),
              ") must match dimensionality of strides (", strides.size(), ")");
  for (const int64_t stride : strides) {
    TORCH_CHECK(stride >= 0, "negative strides are not supported, got ", stride);
  }
  // Checks for overflow.
  at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  translating_errors([&] { runtime::ensure_device(index); });
  counter.native.fetch_add(1, std::memory_order_relaxed);
  at::Tensor out = empty_strided_unchecked(sizes, strides, dtype, index);
  fill_if_deterministic(out);
  return out;
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef sizes,
                      c10::SymIntArrayRef strides, std::optional<c10::SymInt> offset) {
  std::optional<int64_t> start;
  if (offset.has_value()) start = offset->guard_int(__FILE__, __LINE__);
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(sizes),
                                           C10_AS_INTARRAYREF_SLOW(strides), start);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef sizes) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(sizes));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef sizes,
                         c10::SymIntArrayRef strides) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(sizes),
                                    C10_AS_INTARRAYREF_SLOW(strides));
}

void grow_storage(at::TensorImpl* impl, int64_t extent) {
  if (impl->numel() == 0) return;
  const size_t bytes =
      static_cast<size_t>(extent + impl->storage_offset()) * impl->dtype().itemsize();
  c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (bytes > storage->nbytes()) resize_storage(storage, bytes);
}

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef sym_sizes,
                          std::optional<c10::MemoryFormat> format) {
  static OpCounter& counter = counter_of("aten::resize_");
  counter.native.fetch_add(1, std::memory_order_relaxed);
  const at::IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(sym_sizes);
  at::TensorImpl* impl = self.unsafeGetTensorImpl();
  if (impl->sizes() != sizes) {
    at::detail::check_size_nonnegative(sizes);
    impl->set_sizes_contiguous(sizes);
    const auto before = static_cast<int64_t>(impl->unsafe_storage().nbytes());
    grow_storage(impl, impl->numel());
    const at::Context& context = at::globalContext();
    if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory())
        [[unlikely]] {
      at::native::fill_resize_deterministic_(self, before);
    }
  }
  if (format.has_value()) {
    TORCH_CHECK(*format != c10::MemoryFormat::Preserve, "Unsupported memory format ", *format);
    impl->empty_tensor_restride(*format);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, c10::SymInt offset,
                        c10::SymIntArrayRef sym_sizes, c10::SymIntArrayRef sym_strides) {
  const at::IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(sym_sizes);
  const at::IntArrayRef strides = C10_AS_INTARRAYREF_SLOW(sym_strides);
  const int64_t start = offset.guard_int(__FILE__, __LINE__);
  static OpCounter& counter = counter_of("aten::set_.source_Storage_storage_offset");
  TORCH_CHECK(source.device_type() == c10::DeviceType::PrivateUse1,
              "Attempted to set the storage of a tensor on device \"", self.device(),
              "\" to a storage on different device \"", source.device(), "\": the storage is on ",
              source.device(), ", expected neuron");
  TORCH_CHECK(start >= 0, "Tensor: invalid storage offset ", start);
  counter.native.fetch_add(1, std::memory_order_relaxed);
  at::native::checkSetStorage(self, source, start, sizes, strides);
  at::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(start);
  if (strides.empty() && !sizes.empty()) {
    impl->set_sizes_contiguous(sizes);
  } else {
    impl->set_sizes_and_strides(sizes, strides);
  }
  int64_t extent = 1;
  for (int64_t i = 0; i < impl->dim(); ++i) extent += (impl->size(i) - 1) * impl->stride(i);
  grow_storage(impl, extent);
  return self;
}

at::Tensor& set_storage_whole(at::Tensor& self, at::Storage source) {
  const int64_t count =
      static_cast<int64_t>(source.nbytes()) / static_cast<int64_t>(self.dtype().itemsize());
  const c10::SymInt size(count);
  return set_storage(self, std::move(source), 0, c10::SymIntArrayRef(&size, 1), {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  TORCH_CHECK(on_device(source), "Attempted to set the storage of a tensor on device \"",
              self.device(), "\" to a storage on different device \"", source.device(),
              "\": the source is on ", source.device(), ", expected neuron");
  return at::native::set_tensor_(self, source);
}

at::Tensor& set_empty(at::Tensor& self) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, device_allocator(), true);
  const c10::SymInt size(0);
  return set_storage(self, std::move(storage), 0, c10::SymIntArrayRef(&size, 1), {});
}

void record_stream(at::Tensor& self, at::Stream stream) {
  TORCH_CHECK(stream.device_type() == c10::DeviceType::PrivateUse1,
              "record_stream: expected a neuron stream, got one of ", stream.device());
  const c10::DataPtr& data = self.storage().data_ptr();
  translating_errors([&] { runtime::record_stream(block_of(data), stream.id()); });
}

/// Lets Module.to("neuron") keep Parameter objects: both kinds are plain TensorImpls.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  static OpCounter& counter = counter_of("aten::_has_compatible_shallow_copy_type");
  counter.native.fetch_add(1, std::memory_order_relaxed);
  const auto plain = [](const at::Tensor& t) {
    return t.layout() == c10::Layout::Strided && !t.is_quantized() && !t.is_nested();
  };
  return plain(self) && plain(from);
}

}  // namespace

void resize_storage(c10::StorageImpl* storage, size_t bytes) {
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  const c10::DeviceIndex device = storage->device().index();
  c10::DataPtr data = allocate_data(device, bytes);
  const size_t kept = std::min(bytes, storage->nbytes());
  if (kept > 0 && storage->data_ptr().get() != nullptr) {
    const c10::DataPtr& old = storage->data_ptr();
    translating_errors([&] {
      runtime::copy(device, current_stream(device), {data.get(), block_of(data)},
                    {old.get(), block_of(old)}, kept);
    });
  }
  storage->set_data_ptr_noswap(std::move(data));
  storage->set_nbytes(bytes);
}

}  // namespace neuron::aten

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using namespace neuron::aten;  // NOLINT: registration lines only
  m.impl("empty.memory_format", TORCH_FN(empty_memory_format));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("as_strided", TORCH_FN(as_strided));
  m.impl("view", TORCH_FN(view));
  m.impl("_reshape_alias", TORCH_FN(reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("set_.source_Storage", TORCH_FN(set_storage_whole));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  m.impl("set_", TORCH_FN(set_empty));
  m.impl("is_set_to", TORCH_FN(at::native::is_set_to));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
}
