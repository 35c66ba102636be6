#include "neuron/runtime/device.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "neuron/base/env.h"
#include "neuron/base/error.h"
#include "neuron/nrt/handles.h"
#include "neuron/nrt/loader.h"
#include "neuron/nrt/status.h"
#include "neuron/nrtsim/library.h"
#include "neuron/runtime/communicator.h"
#include "neuron/runtime/executor.h"
#include "neuron/runtime/placement.h"
#include "neuron/runtime/runtime.h"
#include "neuron/target/target.h"

namespace neuron::runtime {
namespace {

std::atomic<bool> g_opened{false};
std::atomic<bool> g_bad_fork{false};
std::atomic<int> g_local_ranks{0};

void note_fork() { g_bad_fork.store(g_opened.load()); }

// The device memory of one logical core.
class NrtRegionSource : public RegionSource {
 public:
  explicit NrtRegionSource(int core) : core_(core) {}

  Region allocate(size_t bytes) override {
    const nrt::Api& api = nrt::api();
    nrt_tensor_t* tensor = nullptr;
    const NRT_STATUS status = api.nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, core_, bytes,
                                                      "neuron.segment", &tensor);
    if (status == NRT_RESOURCE || status == NRT_FAIL_HOST_MEM_ALLOC) return {};
    NRT_CHECK(status, "neuron:", core_, ": allocating ", Bytes(bytes), " of HBM");
    void* const address = api.nrt_tensor_get_va(tensor);
    if (address == nullptr) {
      api.nrt_tensor_free(&tensor);
      raise(ErrorKind::kDevice, "neuron:", core_, ": device memory of ", Bytes(bytes),
            " has no address");
    }
    return {address, bytes, tensor};
  }

  void free(const Region& region) noexcept override {
    auto* tensor = static_cast<nrt_tensor_t*>(region.handle);
    nrt::api().nrt_tensor_free(&tensor);
  }

  std::pair<size_t, size_t> usage() override {
    const nrt::MemoryStats stats = nrt::memory_stats(core_);
    return {stats.bytes_used, stats.bytes_limit};
  }

 private:
  const int core_;
};

// Opens the runtime once and hands over what was registered before.
class Instance {
 public:
  void open(int device) {
    std::lock_guard lock(mutex_);
    if (find_allocator(device) != nullptr) return;
    NEURON_CHECK(device >= 0 && device < kMaxDevices && device < device_count(), kInvalid,
                 "Device index ", device, " is out of range: ", device_count(),
                 " NeuronCores are visible, valid range is [0, ", device_count() - 1, "]");
    if (!g_opened.load()) {
      static std::once_flag once;
      std::call_once(once, [] { pthread_atfork(nullptr, nullptr, note_fork); });
      const nrt::Api& api = nrt::api();
      NRT_CHECK(api.nrt_init(NRT_FRAMEWORK_TYPE_PYTORCH, "2.0", "1.0"),
                "opening the Neuron runtime ", api.path);
      g_opened.store(true);
      for (const auto& [name, kernel] : kernels_) hand_over(name, kernel);
    }
    const int visible = nrt::visible_core_count();
    const int core = core_of(device);
    NEURON_CHECK(core < visible, kInvalid, "no device neuron:", device,
                 "; the Neuron runtime shows ", visible, " logical cores");
    open_allocator(device, new NrtRegionSource(core));  // Leaked with the allocator.
  }

  void add_kernel(const char* name, const void* kernel) {
    std::lock_guard lock(mutex_);
    // Copied: callers register before the runtime is open, often from a temporary.
    kernels_.emplace_back(name, *static_cast<const nrtsim_lib_kernel*>(kernel));
    if (g_opened.load()) hand_over(name, kernels_.back().second);
  }

 private:
  static void hand_over(const std::string& name, const nrtsim_lib_kernel& kernel) {
    const nrt::Api& api = nrt::api();
    if (api.nrtsim_register_kernel == nullptr) return;
    api.nrtsim_register_kernel(name.c_str(), &kernel);
  }

  std::mutex mutex_;
  std::vector<std::pair<std::string, nrtsim_lib_kernel>> kernels_;
};

Instance& instance() {
  static Instance* const instance = new Instance;
  return *instance;
}

// Chips that the driver shows, without opening anything. Looked for once: every creation of a
// tensor asks for the number of devices.
int chip_count() {
  static const int found = [] {
    int count = 0;
    while (count < kMaxDevices &&
           access(("/dev/neuron" + std::to_string(count)).c_str(), F_OK) == 0) {
      ++count;
    }
    return count;
  }();
  return found;
}

bool may_be_hardware() {
  return env::nrt() == env::Nrt::Hardware ||
         (env::nrt() == env::Nrt::Auto && env::nrt_library().empty() && chip_count() > 0);
}

int count_devices() {
  if (const auto& cores = env::visible_cores()) return static_cast<int>(cores->size());
  if (env::num_cores() > 0) return env::num_cores();
  if (may_be_hardware()) {
    const int chips = chip_count();
    if (chips > 0) {
      return chips * find_target(env::target()).cores_per_chip / env::logical_nc_config();
    }
  }
  return env::sim_cores();
}

}  // namespace

bool in_bad_fork() noexcept { return g_bad_fork.load(std::memory_order_relaxed); }
bool is_initialized() noexcept { return g_opened.load() && !in_bad_fork(); }

void raise_bad_fork() {
  raise(ErrorKind::kDevice,
        "cannot use neuron in a process that was forked after its parent had initialised neuron; "
        "use the 'spawn' start method of multiprocessing, or first touch the device in the child");
}

void set_local_ranks(int ranks) {
  const Target& target = find_target(env::target());
  const int total = target.cores_per_instance() / env::logical_nc_config();
  NEURON_CHECK(ranks <= total, kInvalid, ranks, " ranks on this host need a NeuronCore each, but ",
               target.instance_name, " has ", total, " at LNC ", env::logical_nc_config());
  NEURON_CHECK(!may_be_hardware() || env::visible_cores().has_value() || ranks <= count_devices(),
               kInvalid, ranks, " ranks on this host need a NeuronCore each, but it shows ",
               count_devices());
  g_local_ranks.store(ranks);
}

int visible_cores() { return count_devices(); }

int core_of(int device) { return device < count_devices() ? device : 0; }

int device_count() noexcept {
  try {
    return std::min(std::max(count_devices(), g_local_ranks.load()), kMaxDevices);
  } catch (...) {
    return 0;  // A malformed variable; ensure_device() says so.
  }
}

void ensure_device(int index) {
  if (in_bad_fork()) raise_bad_fork();
  if (find_allocator(index) != nullptr) return;
  check_accepting();
  count_devices();  // Throws what device_count() hides.
  instance().open(index);
}

DeviceProperties device_properties(int index) {
  const int count = device_count();
  NEURON_CHECK(index >= 0 && index < count, kInvalid, "no device neuron:", index, "; ", count,
               " are visible");
  DeviceProperties properties;
  properties.name = env::target();
  properties.lnc = env::logical_nc_config();
  if (may_be_hardware()) {
    const nrt::InstanceInfo info = nrt::instance_info();
    for (const Target* target : all_targets()) {
      if (target->instance_family == info.family) properties.name = target->name;
    }
  }
  const Target& target = find_target(properties.name);
  properties.total_memory = static_cast<int64_t>(target.hbm_bytes_per_chip /
                                                 static_cast<uint64_t>(target.cores_per_chip) *
                                                 static_cast<uint64_t>(properties.lnc));
  if (env::hbm_limit() > 0) properties.total_memory = static_cast<int64_t>(env::hbm_limit());
  return properties;
}

void register_library_kernel(const char* name, const void* nrtsim_lib_kernel) {
  if (in_bad_fork()) return;
  instance().add_kernel(name, nrtsim_lib_kernel);
}

void shutdown() noexcept {
  if (in_bad_fork() || is_shut_down()) return;
  leave_communicators();  // Queued work may wait for operations.
  stop_executor();
  // Real devices are given back; the simulator's memory goes with the process, and tensors in
  // static storage may still be touched.
  try {
    if (g_opened.load() && !nrt::api().is_simulator) nrt::api().nrt_close();
  } catch (...) {
  }
}

}  // namespace neuron::runtime
