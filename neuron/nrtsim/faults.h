#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

// Failures on demand, for tests of what the layers above do about them.
//
// NEURON_SIM_FAULTS (or nrtsim_set_faults) holds a comma-separated list of
//   call:status[@n]      the n-th call from now on fails (default 1); @* fails every call
//   call:delay=us[@n]    the call takes that much longer
// where call is the name of an NRT function and status a number or a name with or without NRT_.
// A status that ends a core (timeout, hardware errors) from an execution leaves the core dead.
namespace neuron::nrtsim::faults {

enum class Point : uint8_t { Init, Load, Execute, Allocate, Read, Write, Copy, Schedule };

/// Replaces the list. Throws Error(kInvalid) naming the broken entry and what is allowed.
void configure(std::string_view spec);

extern std::atomic<bool> g_armed;
int check_armed(Point point);

/// 0, or the status that this call shall return; its message is set. Applies delays.
inline int check(Point point) {
  return g_armed.load(std::memory_order_relaxed) ? check_armed(point) : 0;
}

}  // namespace neuron::nrtsim::faults
