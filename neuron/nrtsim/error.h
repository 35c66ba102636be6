#pragma once

#include <string>
#include <string_view>

#include "neuron/base/error.h"
#include "neuron/nrt/nrt.h"

namespace neuron::nrtsim {

/// Text behind nrtsim_last_error(), per thread.
std::string& last_error();

/// Remembers the text and returns the status.
template <typename... Parts>
NRT_STATUS fail(int status, const Parts&... parts) {
  last_error() = internal::join(parts...);
  return static_cast<NRT_STATUS>(status);
}

/// Number of a status name with or without "NRT_", or -1.
int status_from_name(std::string_view name);
/// The core that returned it cannot be used any more.
bool is_fatal(int status);

/// Status of the exception being handled; remembers its text.
NRT_STATUS fail_with_current_exception();

}  // namespace neuron::nrtsim
