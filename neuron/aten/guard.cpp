#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "neuron/aten/allocator.h"
#include "neuron/aten/devices.h"
#include "neuron/aten/tensor.h"

namespace neuron::aten {
namespace {

constexpr int kMaxDevices = 128;  // A device index has eight bits.

constexpr c10::DeviceIndex kUnset = -1;

/// What threads that never chose a device use. Follows the main thread's choices.
std::atomic<c10::DeviceIndex> process_device{kUnset};
thread_local c10::DeviceIndex thread_device = kUnset;
thread_local std::array<int64_t, kMaxDevices> thread_stream{};

bool is_main_thread() { return static_cast<pid_t>(::syscall(SYS_gettid)) == ::getpid(); }

runtime::Event* as_event(void* event) { return static_cast<runtime::Event*>(event); }

}  // namespace

void check_device_index(int64_t index) {
  const int count = runtime::device_count();
  TORCH_CHECK(index >= 0 && index < count, "Device index ", index,
              " is out of range: this process sees ", count, " NeuronCores, valid range is [0, ",
              count - 1, "]");
}

c10::DeviceIndex current_device() noexcept {
  if (thread_device != kUnset) [[likely]] {
    return thread_device;
  }
  return std::max<c10::DeviceIndex>(process_device.load(std::memory_order_relaxed), 0);
}
int64_t current_stream(c10::DeviceIndex device) noexcept {
  return thread_stream[static_cast<size_t>(device)];
}
void set_current_device(c10::DeviceIndex device) {
  check_device_index(device);
  thread_device = device;
}
void choose_device(c10::DeviceIndex device) {
  set_current_device(device);
  if (is_main_thread()) process_device.store(device);
}
bool device_chosen() noexcept {
  return thread_device != kUnset || process_device.load(std::memory_order_relaxed) != kUnset;
}
int64_t exchange_stream(c10::DeviceIndex device, int64_t stream) noexcept {
  return std::exchange(thread_stream[static_cast<size_t>(device)], stream);
}

namespace {

/// Every function may be called from any thread, without the GIL, also from destructors.
struct NeuronGuard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::DeviceIndex previous = current_device();
    if (device.index() != previous) set_current_device(device.index());
    return {kType, previous};
  }
  c10::Device getDevice() const override { return {kType, current_device()}; }
  void setDevice(c10::Device device) const override { set_current_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    thread_device = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(runtime::device_count());
  }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits = 0;
    auto& types = capability.capability_data.supported_scalar_types;
    types.has_Bool = types.has_Byte = types.has_Char = types.has_Short = types.has_Int = 1;
    types.has_Long = types.has_UInt16 = types.has_UInt32 = types.has_UInt64 = 1;
    types.has_Half = types.has_BFloat16 = types.has_Float = types.has_Double = 1;
    types.has_Float8_e4m3fn = types.has_Float8_e5m2 = 1;
    types.has_ComplexFloat = types.has_ComplexDouble = 1;
    return capability;
  }

  c10::Stream getStream(c10::Device device) const override {
    const c10::DeviceIndex index = device.has_index() ? device.index() : current_device();
    check_device_index(index);
    return make_stream(index, current_stream(index));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return make_stream(device.has_index() ? device.index() : current_device(), 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    const c10::DeviceIndex index = device.has_index() ? device.index() : current_device();
    check_device_index(index);
    return make_stream(index,
                       translating_errors([&] { return runtime::new_stream(index, priority); }));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    const c10::DeviceIndex index = device.has_index() ? device.index() : current_device();
    check_device_index(index);
    return make_stream(
        index, translating_errors([&] { return runtime::pooled_stream(index, high_priority); }));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return make_stream(stream.device_index(), exchange_stream(stream.device_index(), stream.id()));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());  // NOLINT: an id is all a stream is.
  }
  bool queryStream(const c10::Stream& stream) const override {
    return translating_errors(
        [&] { return runtime::query_stream(stream.device_index(), stream.id()); });
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    translating_errors([&] { runtime::synchronize_stream(stream.device_index(), stream.id()); });
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    translating_errors([&] { runtime::synchronize_device(device); });
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(
        device == -1 || device == stream.device_index(),
        "an event of neuron:", static_cast<int>(device),
        " cannot be recorded on a stream of neuron:", static_cast<int>(stream.device_index()));
    translating_errors([&] {
      if (*event == nullptr) {
        *event = runtime::create_event(flag == c10::EventFlag::BACKEND_DEFAULT);
      }
      runtime::record_event(as_event(*event), stream.device_index(), stream.id());
    });
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    translating_errors(
        [&] { runtime::stream_wait_event(stream.device_index(), stream.id(), as_event(event)); });
  }
  bool queryEvent(void* event) const override {
    return event == nullptr ||
           translating_errors([&] { return runtime::query_event(as_event(event)); });
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    translating_errors([&] { runtime::synchronize_event(as_event(event)); });
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (event != nullptr) runtime::destroy_event(as_event(event));
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr,
                "both events must be recorded before elapsed_time is asked for");
    return translating_errors([&] { return runtime::elapsed_ms(as_event(start), as_event(end)); });
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    translating_errors([&] { runtime::record_stream(block_of(data), stream.id()); });
  }

 private:
  static c10::Stream make_stream(c10::DeviceIndex device, int64_t id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, device), id);
  }
};

}  // namespace
}  // namespace neuron::aten

namespace at::detail {
C10_REGISTER_GUARD_IMPL(PrivateUse1, ::neuron::aten::NeuronGuard)
}  // namespace at::detail
