#include "neuron/nrt/loader.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "neuron/base/env.h"
#include "neuron/base/error.h"
#include "neuron/base/log.h"

namespace neuron::nrt {
namespace {

// Where the packages of the Neuron SDK put the runtime; a bare name asks the dynamic linker, which
// also knows LD_LIBRARY_PATH.
constexpr const char* kHardwarePlaces[] = {
    "libnrt.so.1", "libnrt.so", "/opt/aws/neuron/lib/libnrt.so.1", "/opt/aws/neuron/lib/libnrt.so"};
// First device node of the Neuron driver.
constexpr const char* kDeviceNode = "/dev/neuron0";

// Folder of the shared object (or program) that this code is part of.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr) {
    return ".";
  }
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string(".") : path.substr(0, slash);
}

std::vector<std::string> simulator_places() {
  const std::string folder = own_folder();
  // Beside us in an installed package; the others are a build tree's.
  return {folder + "/libnrt_sim.so", folder + "/../lib/libnrt_sim.so",
          folder + "/../nrtsim/libnrt_sim.so"};
}

template <typename Function>
void find(void* library, const char* name, Function& function, std::string* missing) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr && missing != nullptr) {
    *missing += missing->empty() ? name : std::string(", ") + name;
  }
}

std::unique_ptr<const Api> resolve(void* library, const std::string& path) {
  auto api = std::make_unique<Api>();
  api->path = path;
  std::string missing;
#define NEURON_NRT_REQUIRED(name) find(library, #name, api->name, &missing);
#define NEURON_NRT_OPTIONAL(name) find(library, #name, api->name, nullptr);
#include "neuron/nrt/functions.def"
#undef NEURON_NRT_REQUIRED
#undef NEURON_NRT_OPTIONAL
  NEURON_CHECK(missing.empty(), kIo, path, " is not a usable Neuron runtime: it lacks ", missing);
  find(library, "nrtsim_register_kernel", api->nrtsim_register_kernel, nullptr);
  find(library, "nrtsim_last_error", api->nrtsim_last_error, nullptr);
  find(library, "nrtsim_device_time_ns", api->nrtsim_device_time_ns, nullptr);
  find(library, "nrtsim_set_faults", api->nrtsim_set_faults, nullptr);
  find(library, "nrtsim_parallel_for", api->nrtsim_parallel_for, nullptr);
  find(library, "nrtsim_comm", api->nrtsim_comm, nullptr);
  api->is_simulator = api->nrtsim_register_kernel != nullptr;
  // Generation 2 of the asynchronous calls has other parameters under the same names.
  if (dlsym(library, "nrta_error_tracker_create") != nullptr) {
    api->nrta_tensor_write = nullptr;
    api->nrta_tensor_read = nullptr;
    api->nrta_tensor_copy = nullptr;
    api->nrta_execute_schedule = nullptr;
  }
  return api;
}

// Tries the places in turn; adds what went wrong to `tried`.
std::unique_ptr<const Api> try_places(const std::vector<std::string>& places, std::string& tried) {
  for (const std::string& place : places) {
    void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) return resolve(library, place);
    const char* reason = dlerror();
    tried += internal::join("\n  ", place, ": ", reason == nullptr ? "unknown error" : reason);
  }
  return nullptr;
}

std::unique_ptr<const Api> load_selected() {
  std::string tried;
  if (const std::string& path = env::nrt_library(); !path.empty()) {
    auto api = try_places({path}, tried);
    NEURON_CHECK(api != nullptr, kIo, "cannot load the Neuron runtime that ",
                 "TORCH_NEURONX_NRT_LIBRARY names:", tried);
    return api;
  }
  const env::Nrt choice = env::nrt();
  if (choice == env::Nrt::Hardware ||
      (choice == env::Nrt::Auto && access(kDeviceNode, F_OK) == 0)) {
    auto api = try_places({std::begin(kHardwarePlaces), std::end(kHardwarePlaces)}, tried);
    if (api != nullptr) return api;
    NEURON_CHECK(choice == env::Nrt::Auto, kIo, "TORCH_NEURONX_NRT=hardware, but no Neuron ",
                 "runtime library (libnrt.so, package aws-neuronx-runtime-lib) can be loaded; ",
                 "looked for:", tried, "\nuse TORCH_NEURONX_NRT=sim for the simulator, or name a ",
                 "library with TORCH_NEURONX_NRT_LIBRARY");
    log::warning(
        "a Neuron device is present but its runtime library cannot be loaded; the "
        "simulator is used instead. Looked for:",
        tried);
    tried.clear();
  }
  auto api = try_places(simulator_places(), tried);
  NEURON_CHECK(api != nullptr, kIo, "cannot load the Neuron simulator (libnrt_sim.so), which ",
               "ships beside this library; looked for:", tried,
               "\nreinstall the package, or name a library with TORCH_NEURONX_NRT_LIBRARY");
  return api;
}

}  // namespace

const Api& api() {
  static std::atomic<const Api*> loaded{nullptr};
  const Api* found = loaded.load(std::memory_order_acquire);
  if (found == nullptr) [[unlikely]] {
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    found = loaded.load(std::memory_order_acquire);
    if (found == nullptr) {
      found = load_selected().release();
      loaded.store(found, std::memory_order_release);
    }
  }
  return *found;
}

std::unique_ptr<const Api> load_library(const std::string& path) {
  std::string tried;
  auto api = try_places({path}, tried);
  NEURON_CHECK(api != nullptr, kIo, "cannot load a Neuron runtime:", tried);
  return api;
}

}  // namespace neuron::nrt
