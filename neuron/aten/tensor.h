#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Stream.h>

#include <optional>

#include "neuron/base/error.h"
#include "neuron/runtime/runtime.h"

// Small pieces that every file of aten/ (and dynamo/, c10d/) uses.
namespace neuron::aten {

/// Null for types that the device does not have (quantised, fnuz, bits...).
std::optional<DType> dtype_of(c10::ScalarType type);
/// As dtype_of, but throws torch's NotImplementedError naming the type.
DType checked_dtype(c10::ScalarType type);
c10::ScalarType scalar_type_of(DType type);

inline bool on_device(const at::Tensor& tensor) {
  return tensor.device().type() == c10::DeviceType::PrivateUse1;
}

/// First element (storage offset included) and owning block.
runtime::Buffer buffer_of(const at::Tensor& tensor);

/// The thread's current device and stream id.
c10::DeviceIndex current_device() noexcept;
int64_t current_stream(c10::DeviceIndex device) noexcept;
void set_current_device(c10::DeviceIndex device);
/// Returns the stream that was current.
int64_t exchange_stream(c10::DeviceIndex device, int64_t stream) noexcept;

/// A new tensor on the device; memory is uninitialised. Fast path of the dispatcher: no checks.
at::Tensor empty_strided_unchecked(at::IntArrayRef sizes, at::IntArrayRef strides,
                                   c10::ScalarType type, c10::DeviceIndex device);

/// Throws the torch exception that matches the kind of a neuron::Error.
[[noreturn]] void rethrow_as_torch(const Error& error);

/// Runs `body`, turning neuron::Error into torch's exceptions.
template <typename Body>
decltype(auto) translating_errors(Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    rethrow_as_torch(error);
  }
}

/// Draws from the default (or given) Philox generator of the device: returns seed and first counter
/// and advances the generator by `counters` (rounded up to a multiple of 4).
struct PhiloxDraw {
  uint64_t seed, offset;
};
PhiloxDraw draw_philox(const std::optional<at::Generator>& generator, c10::DeviceIndex device,
                       int64_t counters);

}  // namespace neuron::aten
