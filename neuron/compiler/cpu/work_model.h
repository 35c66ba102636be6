#pragma once

#include "neuron/compiler/cpu/loop_nest.h"
#include "neuron/neff/program.h"

namespace neuron::compiler::cpu {

/// What a nest costs.
struct NestWork {
  neff::Work work;
  /// Expected time on one thread of the host.
  double nanoseconds = 0;
};

NestWork work_of(const LoopNest& nest);

/// Iterations worth a piece of their own on a thread; 0 if the nest is too small to split.
int64_t grain_of(const LoopNest& nest, const NestWork& work);

/// Work of a library step, from the shapes of its operands.
neff::Work work_of(const neff::LibraryStep& step);

}  // namespace neuron::compiler::cpu
