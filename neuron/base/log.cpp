#include "neuron/base/log.h"

#include <unistd.h>

#include <string>

namespace neuron::log {

bool enabled(env::LogLevel level) noexcept {
  try {
    return level <= env::log_level();
  } catch (const Error&) {
    return level <= env::LogLevel::Warning;
  }
}

void write(env::LogLevel level, std::string_view text) noexcept {
  constexpr const char* kNames[] = {"error", "warning", "info", "debug"};
  try {
    const std::string line =
        internal::join("torch_neuronx: ", kNames[static_cast<int>(level)], ": ", text, "\n");
    // One system call, so that lines of several processes do not mix.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  } catch (...) {
    // Out of memory while reporting: there is nobody left to tell.
  }
}

}  // namespace neuron::log
