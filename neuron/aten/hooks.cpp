#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Storage.h>

#include <algorithm>

#include "neuron/aten/allocator.h"
#include "neuron/aten/devices.h"
#include "neuron/aten/generator.h"
#include "neuron/aten/storage.h"
#include "neuron/aten/tensor.h"

namespace neuron::aten {
namespace {

struct NeuronHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return runtime::device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return runtime::is_initialized(); }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(runtime::device_count());
  }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { choose_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex previous = current_device();
    set_current_device(device);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current_device() : exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return new_generator(device);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  bool isPinnedPtr(const void* data) const override { return runtime::is_pinned(data); }
  at::Device getDeviceFromPtr(void* data) const override {
    const auto address = reinterpret_cast<uint64_t>(data);
    for (const runtime::SegmentInfo& segment : runtime::memory_snapshot()) {
      if (address >= segment.address && address < segment.address + segment.total_size) {
        return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(segment.device)};
      }
    }
    TORCH_CHECK(false, "the pointer ", data, " is not memory of a neuron device");
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage.unsafeGetStorageImpl(), bytes);
  }
};

struct RegisterHooks {
  RegisterHooks() { at::RegisterPrivateUse1HooksInterface(new NeuronHooks); }
} const register_hooks;

}  // namespace
}  // namespace neuron::aten
