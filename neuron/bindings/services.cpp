#include <torch/csrc/profiler/combined_traceback.h>

#include "neuron/aten/devices.h"
#include "neuron/aten/dispatch.h"
#include "neuron/aten/tensor.h"
#include "neuron/bindings/bindings.h"
#include "neuron/runtime/cache_stats.h"
#include "neuron/runtime/capture.h"
#include "neuron/runtime/memory_history.h"
#include "neuron/runtime/pinned.h"

// Their header needs a JSON library that the wheel lacks.
namespace torch {
TORCH_API std::vector<pybind11::object> py_symbolize(std::vector<CapturedTraceback*>& to_symbolize);
TORCH_PYTHON_API void freeDeadCapturedTracebackFrames();
TORCH_PYTHON_API void installCapturedTracebackPython();
}  // namespace torch

namespace py = pybind11;

namespace neuron::bindings {
namespace {

std::shared_ptr<void> record_stack() {
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, /*cpp=*/false);
}

const char* name_of(runtime::MemoryEvent::Kind kind) {
  using Kind = runtime::MemoryEvent::Kind;
  switch (kind) {
    case Kind::Alloc:
      return "alloc";
    case Kind::FreeRequested:
      return "free_requested";
    case Kind::FreeCompleted:
      return "free_completed";
    case Kind::SegmentAlloc:
      return "segment_alloc";
    case Kind::SegmentFree:
      return "segment_free";
    case Kind::OutOfMemory:
      return "oom";
  }
  return "";
}

/// The stacks as lists of frames; an empty list for null.
std::vector<py::object> symbolize(const std::vector<std::shared_ptr<void>>& contexts) {
  std::vector<torch::CapturedTraceback*> given;
  for (const auto& context : contexts) {
    if (context != nullptr) given.push_back(static_cast<torch::CapturedTraceback*>(context.get()));
  }
  std::vector<py::object> frames = torch::py_symbolize(given);
  std::vector<py::object> out;
  size_t next = 0;
  for (const auto& context : contexts) {
    out.push_back(context == nullptr ? py::object(py::list()) : frames[next++]);
  }
  return out;
}

py::list memory_history(int device) {
  const std::vector<runtime::MemoryEvent> events = runtime::memory_history(device);
  std::vector<std::shared_ptr<void>> contexts;
  for (const auto& event : events) contexts.push_back(event.context);
  const std::vector<py::object> frames = symbolize(contexts);
  py::list out;
  for (size_t i = 0; i < events.size(); ++i) {
    py::dict one;
    one["action"] = name_of(events[i].kind);
    one[events[i].kind == runtime::MemoryEvent::Kind::OutOfMemory ? "device_free" : "addr"] =
        events[i].address;
    one["size"] = events[i].size;
    one["stream"] = events[i].stream;
    one["time_us"] = events[i].microseconds;
    one["segment_pool_id"] = py::make_tuple(0, 0);
    one["compile_context"] = "N/A";
    one["user_metadata"] = "";
    one["frames"] = frames[i];
    out.append(one);
  }
  return out;
}

py::dict cache_stats() {
  const runtime::CompilationCacheStats stats = runtime::compilation_cache_stats();
  py::dict out;
  out["total_entries"] = stats.entries;
  out["cache_hits"] = stats.hits;
  out["cache_misses"] = stats.misses;
  out["persistent_hits"] = stats.persistent_hits;
  out["persistent_misses"] = stats.persistent_misses;
  out["total_compilations"] = stats.persistent_misses;
  out["evictions"] = stats.evictions;
  out["memory_usage"] = stats.neff_bytes;
  out["total_compilation_time_ms"] = stats.compile_ms;
  return out;
}

py::list cache_entries() {
  py::list out;
  for (const runtime::CompilationCacheEntry& entry : runtime::compilation_cache_entries()) {
    py::dict one;
    one["cache_key"] = entry.key;
    one["device"] = entry.device;
    one["compilation_time_ms"] = entry.compile_ms;
    one["neff_size"] = entry.neff_bytes;
    out.append(one);
  }
  return out;
}

void clear_cache(bool disk) {
  py::gil_scoped_release release;
  aten::clear_entry_caches();
  runtime::clear_compilation_cache(disk);
}

}  // namespace

void bind_services(py::module_& m) {
  m.def("_check_device_index", [](int64_t index) { aten::check_device_index(index); });
  m.def("_is_capturing", [] {
    return runtime::is_capturing(aten::current_device(),
                                 aten::current_stream(aten::current_device()));
  });

  m.def("_pinned_stats", [] {
    const runtime::PinnedStats stats = runtime::pinned_stats();
    const auto to_dict = [](const runtime::Stat& stat) {
      py::dict out;
      out["current"] = stat.current;
      out["peak"] = stat.peak;
      out["allocated"] = stat.allocated;
      out["freed"] = stat.freed;
      return out;
    };
    py::dict out;
    out["active_requests"] = to_dict(stats.requests);
    out["active_bytes"] = to_dict(stats.active_bytes);
    out["allocations"] = to_dict(stats.blocks);
    out["allocated_bytes"] = to_dict(stats.reserved_bytes);
    out["num_host_alloc"] = stats.carved;
    return out;
  });
  m.def("_reset_peak_pinned_stats", &runtime::reset_peak_pinned_stats);
  m.def("_reset_accumulated_pinned_stats", &runtime::reset_accumulated_pinned_stats);
  m.def("_record_memory_history", [](size_t max_entries, bool stacks) {
    if (stacks) torch::installCapturedTracebackPython();
    runtime::record_memory_history(max_entries, stacks ? &record_stack : nullptr);
    torch::freeDeadCapturedTracebackFrames();
  });
  m.def("_memory_history", &memory_history);
  m.def("_allocation_frames", [](int device, const std::vector<uint64_t>& addresses) {
    std::vector<std::shared_ptr<void>> contexts;
    for (const uint64_t address : addresses) {
      contexts.push_back(runtime::context_of(device, address));
    }
    return symbolize(contexts);
  });

  m.def("_get_compilation_cache_stats", &cache_stats);
  m.def("_get_compilation_cache_entries", &cache_entries);
  m.def("_clear_compilation_cache", [] { clear_cache(true); });
  m.def("_clear_compilation_memory_cache", [] { clear_cache(false); });
}

}  // namespace neuron::bindings
