#pragma once

#include <string_view>

#include "neuron/base/env.h"
#include "neuron/base/error.h"

// Log lines go to standard error, one write each, as "torch_neuronx: warning: text". Thread-safe;
// never throws: a malformed TORCH_NEURONX_LOG_LEVEL counts as its default here.
namespace neuron::log {

bool enabled(env::LogLevel level) noexcept;
void write(env::LogLevel level, std::string_view text) noexcept;

template <typename... Parts>
void emit(env::LogLevel level, const Parts&... parts) {
  if (enabled(level)) write(level, internal::join(parts...));
}
template <typename... Parts>
void error(const Parts&... parts) {
  emit(env::LogLevel::Error, parts...);
}
template <typename... Parts>
void warning(const Parts&... parts) {
  emit(env::LogLevel::Warning, parts...);
}
template <typename... Parts>
void info(const Parts&... parts) {
  emit(env::LogLevel::Info, parts...);
}
template <typename... Parts>
void debug(const Parts&... parts) {
  emit(env::LogLevel::Debug, parts...);
}

}  // namespace neuron::log
