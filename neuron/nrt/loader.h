#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "neuron/nrt/nrt.h"

extern "C" {
struct nrtsim_lib_kernel;
struct nrtsim_comm_functions;
}

namespace neuron::nrt {

/// The functions of one loaded NRT library. Optional ones (functions.def) may be null.
/// Immutable; lives for ever, since the library is never unloaded.
struct Api {
#define NEURON_NRT_REQUIRED(name) decltype(&::name) name = nullptr;
#define NEURON_NRT_OPTIONAL(name) decltype(&::name) name = nullptr;
#include "neuron/nrt/functions.def"
#undef NEURON_NRT_REQUIRED
#undef NEURON_NRT_OPTIONAL

  /// Path as it was loaded.
  std::string path;
  /// The library is our simulator; only then are the functions below set.
  bool is_simulator = false;
  void (*nrtsim_register_kernel)(const char* name, const nrtsim_lib_kernel* kernel) = nullptr;
  const char* (*nrtsim_last_error)() = nullptr;
  uint64_t (*nrtsim_device_time_ns)(uint32_t vnc) = nullptr;
  NRT_STATUS (*nrtsim_set_faults)(const char* spec) = nullptr;
  void (*nrtsim_parallel_for)(void (*body)(void* user, int64_t begin, int64_t end), void* user,
                              int64_t count, int64_t grain) = nullptr;
  const nrtsim_comm_functions* (*nrtsim_comm)() = nullptr;  // nrtsim/comm.h
};

/// The library that TORCH_NEURONX_NRT and TORCH_NEURONX_NRT_LIBRARY select, loaded at first use.
/// Throws Error(kIo) that names every place looked at, or the required symbols that are missing;
/// a later call tries again. Thread-safe.
const Api& api();

/// Loads one library by path, for the conformance suite. Throws as api() does.
std::unique_ptr<const Api> load_library(const std::string& path);

}  // namespace neuron::nrt
