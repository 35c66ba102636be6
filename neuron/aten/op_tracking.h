#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace neuron::aten {

/// The two counters of one overload. Never destroyed: kernels hold pointers.
struct OpCounter {
  std::string name;
  std::atomic<int64_t> native{0}, fallback{0};
};

/// The counter of an overload, made at first use. Thread-safe.
OpCounter& counter_of(const std::string& name);

}  // namespace neuron::aten
