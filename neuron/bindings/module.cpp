#include <torch/csrc/Generator.h>

#include "neuron/aten/devices.h"
#include "neuron/aten/dispatch.h"
#include "neuron/aten/generator.h"
#include "neuron/aten/tensor.h"
#include "neuron/bindings/bindings.h"

namespace py = pybind11;

namespace neuron::bindings {
namespace {

void bind_device(py::module_& m) {
  m.def("_device_count", [] { return runtime::device_count(); });
  m.def("_current_device", [] { return static_cast<int>(aten::current_device()); });
  m.def("_set_device", [](int64_t index) {
    aten::check_device_index(index);
    aten::choose_device(static_cast<c10::DeviceIndex>(index));
  });
  m.def("_ensure_device", [](int index) {
    py::gil_scoped_release release;
    aten::translating_errors([&] { runtime::ensure_device(index); });
  });
  m.def("_is_initialized", [] { return runtime::is_initialized(); });
  m.def("_in_bad_fork", [] { return runtime::in_bad_fork(); });
  m.def("_device_properties", [](int index) {
    const runtime::DeviceProperties found =
        aten::translating_errors([&] { return runtime::device_properties(index); });
    return py::make_tuple(found.name, found.total_memory, found.lnc);
  });
  m.def("_synchronize", [](int index) {
    py::gil_scoped_release release;
    aten::translating_errors([&] { runtime::synchronize_device(index); });
  });
  m.def("_shutdown", [] {
    py::gil_scoped_release release;
    runtime::shutdown();
  });
  m.def("_default_generator", [](int index) {
    const at::Generator& generator = aten::default_generator(static_cast<c10::DeviceIndex>(index));
    return py::reinterpret_steal<py::object>(THPGenerator_initDefaultGenerator(generator));
  });
  m.def("_is_inline", [] { return runtime::is_inline(); });
}

}  // namespace
}  // namespace neuron::bindings

PYBIND11_MODULE(_C, m) {
  m.doc() = "Native part of torch_neuronx; private, use torch.neuron and torch_neuronx";
  neuron::bindings::bind_device(m);
  neuron::bindings::bind_memory(m);
  neuron::bindings::bind_compile(m);
  neuron::bindings::bind_debug(m);
  neuron::bindings::bind_distributed(m);
  neuron::bindings::bind_services(m);
  neuron::bindings::bind_profiler(m);
  neuron::aten::install_kernels();
}
