#pragma once

#include <functional>

namespace neuron::distributed {

/// Runs `task` soon on a thread of its own kind, never on the communicator's. A task may block,
/// also for another task: there is always a free thread, made when none is idle.
void run_soon(std::function<void()> task);

/// Waits, for a second at most, until no task is left; later ones never run. For the end of the
/// process: a thread that asks for Python's lock once the interpreter ends is unwound by force,
/// which destructors do not survive.
void finish_tasks();

}  // namespace neuron::distributed
