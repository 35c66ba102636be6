#pragma once

#include <torch/csrc/utils/pybind.h>

// One function per Python area adds its names to torch_neuronx._C.
namespace neuron::bindings {

void bind_memory(pybind11::module_& m);
void bind_compile(pybind11::module_& m);
void bind_debug(pybind11::module_& m);
void bind_distributed(pybind11::module_& m);
void bind_services(pybind11::module_& m);
void bind_profiler(pybind11::module_& m);

}  // namespace neuron::bindings
