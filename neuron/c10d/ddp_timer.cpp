#include <array>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "neuron/aten/tensor.h"
#include "neuron/runtime/runtime.h"

// The times that DistributedDataParallel logs of forward, backward and communication.
namespace neuron::distributed {
namespace {

class DdpTimer final : public ::c10d::Timer {
 public:
  explicit DdpTimer(c10::Device device) : device_(device.index()) {
    for (runtime::Event*& event : events_) event = runtime::create_event(/*timing=*/true);
  }
  ~DdpTimer() override {
    for (runtime::Event* event : events_) runtime::destroy_event(event);
  }

  void record(Event event) override {
    Timer::record(event);
    runtime::record_event(at(event), device_, aten::current_stream(device_));
  }

  std::optional<int64_t> measureDifference(Event start, Event end) override {
    if (!getTimestamp(start).has_value() || !getTimestamp(end).has_value()) return std::nullopt;
    return aten::translating_errors([&] {
      runtime::synchronize_event(at(start));
      runtime::synchronize_event(at(end));
      const double nanoseconds = runtime::elapsed_ms(at(start), at(end)) * 1e6;
      // The end of an earlier step.
      return nanoseconds < 0 ? std::optional<int64_t>() : static_cast<int64_t>(nanoseconds);
    });
  }

 private:
  static constexpr size_t kEvents = 5;
  runtime::Event* at(Event event) const { return events_[static_cast<size_t>(event)]; }

  const c10::DeviceIndex device_;
  std::array<runtime::Event*, kEvents> events_{};
};

}  // namespace
}  // namespace neuron::distributed

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kPrivateUse1, ::neuron::distributed::DdpTimer)
}  // namespace c10d
