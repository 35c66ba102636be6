#include "neuron/aten/tensor.h"
#include "neuron/bindings/bindings.h"

namespace py = pybind11;

namespace neuron::bindings {
namespace {

py::dict to_dict(const runtime::Stat& stat) {
  py::dict out;
  out["current"] = stat.current;
  out["peak"] = stat.peak;
  out["allocated"] = stat.allocated;
  out["freed"] = stat.freed;
  return out;
}

py::dict to_dict(const runtime::Stat (&stats)[3]) {
  py::dict out;
  out["all"] = to_dict(stats[0]);
  out["small_pool"] = to_dict(stats[1]);
  out["large_pool"] = to_dict(stats[2]);
  return out;
}

py::dict memory_stats(int device) {
  const runtime::MemoryStats stats = runtime::memory_stats(device);
  py::dict out;
  out["allocation"] = to_dict(stats.allocation);
  out["segment"] = to_dict(stats.segment);
  out["active"] = to_dict(stats.active);
  out["inactive_split"] = to_dict(stats.inactive_split);
  out["allocated_bytes"] = to_dict(stats.allocated_bytes);
  out["reserved_bytes"] = to_dict(stats.reserved_bytes);
  out["active_bytes"] = to_dict(stats.active_bytes);
  out["inactive_split_bytes"] = to_dict(stats.inactive_split_bytes);
  out["requested_bytes"] = to_dict(stats.requested_bytes);
  out["num_alloc_retries"] = stats.num_alloc_retries;
  out["num_ooms"] = stats.num_ooms;
  out["num_sync_all_streams"] = stats.num_sync_all_streams;
  out["num_device_alloc"] = stats.num_device_alloc;
  out["num_device_free"] = stats.num_device_free;
  return out;
}

py::list memory_snapshot() {
  py::list segments;
  for (const runtime::SegmentInfo& segment : runtime::memory_snapshot()) {
    py::dict out;
    py::list blocks;
    size_t allocated = 0;
    size_t active = 0;
    size_t requested = 0;
    for (const runtime::BlockInfo& block : segment.blocks) {
      py::dict one;
      one["address"] = block.address;
      one["size"] = block.size;
      one["requested_size"] = block.requested;
      one["state"] = block.allocated ? "active_allocated"
                     : block.active  ? "active_pending_free"
                                     : "inactive";
      one["frames"] = py::list();
      blocks.append(one);
      if (block.allocated) allocated += block.size;
      if (block.active) active += block.size;
      requested += block.requested;
    }
    out["device"] = segment.device;
    out["address"] = segment.address;
    out["total_size"] = segment.total_size;
    out["allocated_size"] = allocated;
    out["active_size"] = active;
    out["requested_size"] = requested;
    out["stream"] = segment.stream;
    out["segment_type"] = segment.large ? "large" : "small";
    out["segment_pool_id"] = py::make_tuple(0, 0);
    out["is_expandable"] = false;
    out["frames"] = py::list();
    out["blocks"] = blocks;
    segments.append(out);
  }
  return segments;
}

}  // namespace

void bind_memory(py::module_& m) {
  m.def("_memory_stats", &memory_stats);
  m.def("_memory_snapshot", &memory_snapshot);
  m.def("_reset_peak_stats", [](int device) { runtime::reset_peak_stats(device); });
  m.def("_reset_accumulated_stats", [](int device) { runtime::reset_accumulated_stats(device); });
  m.def("_memory_info", [](int device) {
    return aten::translating_errors([&] { return runtime::memory_info(device); });
  });
  m.def("_set_memory_fraction", [](int device, double fraction) {
    aten::translating_errors([&] { runtime::set_memory_fraction(device, fraction); });
  });
  m.def("_empty_cache", [] {
    py::gil_scoped_release release;
    aten::translating_errors([] { runtime::empty_cache(); });
  });
  m.def("_empty_host_cache", [] { runtime::empty_pinned_cache(); });
}

}  // namespace neuron::bindings
