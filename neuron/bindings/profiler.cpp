// What torch.profiler sees of the device: a plug-in of Kineto, and the raw records for
// torch_neuronx.profiling.

// Kineto's headers format text; the library is not part of torch's exports.
#define FMT_HEADER_ONLY 1

#include <kineto/Config.h>
#include <kineto/libkineto.h>
#include <kineto/output_base.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "neuron/aten/dispatch.h"
#include "neuron/aten/tensor.h"
#include "neuron/bindings/bindings.h"
#include "neuron/runtime/cache_stats.h"
#include "neuron/runtime/launch_trace.h"

namespace py = pybind11;

namespace neuron::bindings {
namespace {

using libkineto::ActivityType;
using runtime::LaunchRecord;

const char* name_of(LaunchRecord::Kind kind) {
  switch (kind) {
    case LaunchRecord::Kind::Program:
      return "program";
    case LaunchRecord::Kind::CopyToDevice:
      return "copy_to_device";
    case LaunchRecord::Kind::CopyToHost:
      return "copy_to_host";
    case LaunchRecord::Kind::CopyOnDevice:
      return "copy_on_device";
  }
  return "";
}

/// Called with (records, custom configuration) when a profile ends; a Python function or None.
/// Leaked: a profile may end late.
py::object& writer() {
  static auto* const function = new py::object(py::none());
  return *function;
}

py::list to_python(const std::vector<LaunchRecord>& records) {
  py::list out;
  for (const LaunchRecord& record : records) {
    out.append(py::make_tuple(record.op, name_of(record.kind), record.device, record.stream,
                              record.begin, record.end, record.bytes, record.correlation));
  }
  return out;
}

/// Waits for every opened device, so that what was launched has been recorded. Errors stay for the
/// next synchronising call.
void wait_for_devices() {
  if (!runtime::is_initialized()) return;
  for (int device = 0; device < runtime::device_count(); ++device) {
    for (int64_t stream = 0; stream < 64; ++stream) {
      while (!runtime::query_stream(device, stream)) ::usleep(50);
    }
  }
}

thread_local std::vector<uint64_t> correlations;

class Session final : public libkineto::IActivityProfilerSession {
 public:
  explicit Session(std::string config) : config_(std::move(config)) {}

  void start() override {
    if (!config_.empty()) {
      // Programs are built anew, so that each that runs has a NEFF to be written.
      std::optional<py::gil_scoped_release> release;
      if (PyGILState_Check() != 0) release.emplace();
      aten::clear_entry_caches();
      runtime::clear_compilation_cache(false);
      runtime::keep_built_neffs(true);
    }
    runtime::start_launch_trace();
    status_ = libkineto::TraceStatus::RECORDING;
  }
  void stop() override {
    {
      // Work may need the GIL to end.
      std::optional<py::gil_scoped_release> release;
      if (PyGILState_Check() != 0) release.emplace();
      wait_for_devices();
    }
    records_ = runtime::stop_launch_trace();
    status_ = libkineto::TraceStatus::PROCESSING;
    if (config_.empty()) return;
    const py::gil_scoped_acquire gil;
    if (writer().is_none()) return;
    try {
      writer()(to_python(records_), config_);
    } catch (const std::exception& error) {
      errors_.emplace_back(error.what());
      TORCH_WARN("torch_neuronx: the profile could not be written: ", error.what());
    }
    runtime::keep_built_neffs(false);
  }
  std::vector<std::string> errors() override { return errors_; }

  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, 0);
  }
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked,
                    int64_t, int64_t) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span.name = "neuron";
    buffer_->gpuOpCount = static_cast<int>(records_.size());
    for (const LaunchRecord& record : records_) {
      const bool is_program = record.kind == LaunchRecord::Kind::Program;
      buffer_->emplace_activity(
          buffer_->span, is_program ? ActivityType::CONCURRENT_KERNEL : ActivityType::GPU_MEMCPY,
          record.op);
      libkineto::GenericTraceActivity& activity = *buffer_->activities.back();
      activity.startTime = record.begin;
      activity.endTime = record.end;
      activity.id = static_cast<int32_t>(record.correlation);
      activity.device = record.device;
      activity.resource = static_cast<int32_t>(record.stream);
      activity.threadId = 0;
      if (record.correlation != 0) {
        activity.flow.id = static_cast<uint32_t>(record.correlation);
        activity.flow.type = libkineto::kLinkAsyncCpuGpu;
        activity.flow.start = 0;
        activity.linked = linked(activity.id);
      }
      activity.addMetadata("device", record.device);
      activity.addMetadata("stream", record.stream);
      if (!is_program) activity.addMetadata("bytes", record.bytes);
      activity.log(logger);
    }
  }
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return {}; }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return std::move(buffer_);
  }

  void pushCorrelationId(uint64_t id) override {
    correlations.push_back(id);
    runtime::set_launch_correlation(id);
  }
  void popCorrelationId() override {
    if (!correlations.empty()) correlations.pop_back();
    runtime::set_launch_correlation(correlations.empty() ? 0 : correlations.back());
  }

 private:
  const std::string config_;
  std::vector<LaunchRecord> records_;
  std::vector<std::string> errors_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class Plugin final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return activities_; }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& wanted, const libkineto::Config& config) override {
    const bool any = std::any_of(activities_.begin(), activities_.end(),
                                 [&](ActivityType type) { return wanted.contains(type); });
    if (!any) return nullptr;
    return std::make_unique<Session>(config.getCustomConfig());
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<ActivityType>& wanted,
      const libkineto::Config& config) override {
    return configure(wanted, config);
  }

 private:
  const std::string name_ = "neuron";
  const std::set<ActivityType> activities_ = {
      ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY, ActivityType::PRIVATEUSE1_RUNTIME,
      ActivityType::PRIVATEUSE1_DRIVER};
};

}  // namespace

void bind_profiler(py::module_& m) {
  libkineto::api().registerProfilerFactory([] { return std::make_unique<Plugin>(); });
  m.def("_set_profile_writer", [](py::object function) { writer() = std::move(function); });
  m.def("_start_launch_trace", [] { runtime::start_launch_trace(); });
  m.def("_stop_launch_trace", [] {
    std::vector<LaunchRecord> records;
    {
      py::gil_scoped_release release;
      wait_for_devices();
      records = runtime::stop_launch_trace();
    }
    return to_python(records);
  });
  m.def("_keep_built_neffs", &runtime::keep_built_neffs);
  m.def("_take_built_neffs", [] {
    py::dict out;
    for (const auto& [name, neff] : runtime::take_built_neffs()) {
      out[py::str(name)] = py::bytes(reinterpret_cast<const char*>(neff.data()), neff.size());
    }
    return out;
  });
}

}  // namespace neuron::bindings
