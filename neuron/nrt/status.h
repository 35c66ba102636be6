#pragma once

#include <string>
#include <string_view>

#include "neuron/base/error.h"
#include "neuron/nrt/nrt.h"

namespace neuron::nrt {

/// "NRT_RESOURCE"; "unknown NRT status" for numbers that are none.
const char* status_name(int status);
/// Status of a name with or without its prefix "NRT_", or -1.
int status_from_name(std::string_view name);
/// What an Error with that status is for whoever maps errors to exceptions.
ErrorKind error_kind(int status);
/// The core that returned this cannot be used any more.
bool is_fatal(int status);
/// Throws "<doing>: NRT_RESOURCE (4): <what the library says>".
[[noreturn]] void raise_status(int status, const std::string& doing);

}  // namespace neuron::nrt

/// Calls the NRT; the remaining arguments say what was being attempted.
/// NRT_CHECK(api().nrt_load(...), "loading ", name, " on core ", core);
#define NRT_CHECK(call, ...)                                                                  \
  do {                                                                                        \
    if (const int nrt_check_status = static_cast<int>(call); nrt_check_status != NRT_SUCCESS) \
        [[unlikely]]                                                                          \
      ::neuron::nrt::raise_status(nrt_check_status, ::neuron::internal::join(__VA_ARGS__));   \
  } while (false)
