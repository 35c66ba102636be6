#include <torch/csrc/Generator.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "neuron/aten/devices.h"
#include "neuron/aten/dispatch.h"
#include "neuron/aten/generator.h"
#include "neuron/aten/tensor.h"
#include "neuron/bindings/bindings.h"
#include "neuron/c10d/workers.h"

namespace py = pybind11;

namespace neuron::bindings {
namespace {

std::string first_line(const std::filesystem::path& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

// False while a thread of autograd for a device has something to do, as Linux tells it.
bool autograd_sleeps() {
  std::error_code error;  // Threads come and go meanwhile.
  std::filesystem::directory_iterator task("/proc/self/task", error);
  for (; !error && task != std::filesystem::directory_iterator(); task.increment(error)) {
    if (!first_line(task->path() / "comm").starts_with("pt_autograd")) continue;
    const std::string stat = first_line(task->path() / "stat");
    const size_t state = stat.rfind(')') + 2;
    if (state < stat.size() && stat[state] != 'S') return false;
  }
  return true;
}

// After a backward pass has returned, autograd's thread still lets go of the gradients, which are
// objects of Python. If the interpreter ends meanwhile, the thread is unwound by force and the
// process aborts. Called without Python's lock; waits a second at most.
void wait_for_autograd() {
  using namespace std::chrono_literals;
  int asleep = 0;
  for (int round = 0; round < 1000 && asleep < 2; ++round) {
    if (round > 0) std::this_thread::sleep_for(1ms);
    asleep = autograd_sleeps() ? asleep + 1 : 0;
  }
}

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
    if (runtime::in_bad_fork()) return;  // The threads are the parent's.
    distributed::finish_tasks();
    wait_for_autograd();
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
