#include "neuron/runtime/device.h"

#include <pthread.h>

#include <atomic>
#include <mutex>

#include "neuron/base/env.h"
#include "neuron/base/error.h"
#include "neuron/runtime/runtime.h"

namespace neuron::runtime {

namespace internal {
std::atomic<bool> bad_fork{false};
}

bool in_bad_fork() noexcept { return internal::bad_fork.load(std::memory_order_relaxed); }

void raise_bad_fork() {
  raise(ErrorKind::kDevice,
        "cannot use neuron in a process that was forked after its parent had initialised neuron; "
        "use the 'spawn' start method of multiprocessing, or first touch the device in the child");
}

int device_count() noexcept {
  try {
    if (const auto& cores = env::visible_cores()) return static_cast<int>(cores->size());
    if (env::num_cores() > 0) return env::num_cores();
    return env::sim_cores();
  } catch (...) {
    return 0;
  }
}

void ensure_device(int index) {
  raise(ErrorKind::kUnsupported, "neuron:", index, " cannot be opened yet");
}

}  // namespace neuron::runtime
