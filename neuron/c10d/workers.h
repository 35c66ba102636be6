#pragma once

#include <functional>

namespace neuron::distributed {

/// Runs `task` soon on a thread of its own kind, never on the communicator's. A task may block,
/// also for another task: there is always a free thread, made when none is idle.
void run_soon(std::function<void()> task);

}  // namespace neuron::distributed
