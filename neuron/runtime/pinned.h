#pragma once

#include "neuron/runtime/runtime.h"

namespace neuron::runtime {

/// Counters of pinned host memory. `reserved`: also what was freed and is kept for reuse.
struct PinnedStats {
  Stat requests, active_bytes, blocks, reserved_bytes;
  int64_t carved = 0;  // Blocks that were not found among the free ones.
};
PinnedStats pinned_stats();
void reset_peak_pinned_stats();
void reset_accumulated_pinned_stats();

}  // namespace neuron::runtime
