#include "neuron/aten/dispatch.h"
#include "neuron/bindings/bindings.h"
#include "neuron/runtime/runtime.h"
#include "neuron/runtime/stream.h"

namespace py = pybind11;

namespace neuron::bindings {

void bind_debug(py::module_& m) {
  m.def("_executed_ops", [] { return aten::op_counts().native; });
  m.def("_fallback_ops", [] { return aten::op_counts().fallback; });
  m.def("_reset_op_counts", [] { aten::reset_op_counts(); });
  m.def("_set_fallback_allowed", [](bool allowed) { aten::set_fallback_allowed(allowed); });
  m.def("_exchange_fallback_allowed", &aten::exchange_fallback_setting);
  m.def("_set_blocking", [](bool blocking) {
    const bool before = runtime::is_blocking();
    runtime::set_blocking(blocking);
    return before;
  });
  m.def("_installed_variants", [] { return aten::installed_variants(); });
  m.def("_registered_meta_calls", [] { return aten::registered_meta_calls(); });
  m.def("_refused_lowerings", [] { return aten::refused_lowerings(); });
  m.def("_explain_variant", &aten::explain_variant, py::arg("functional"), py::arg("candidate"));
  m.def("_runtime_stats", [] {
    const runtime::RuntimeStats stats = runtime::runtime_stats();
    py::dict out;
    out["programs_built"] = stats.programs_built;
    out["kernels_compiled"] = stats.kernels_compiled;
    out["launches"] = stats.launches;
    out["disk_hits"] = stats.disk_hits;
    return out;
  });
}

}  // namespace neuron::bindings
