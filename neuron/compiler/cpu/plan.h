#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "neuron/compiler/cpu/loop_nest.h"
#include "neuron/hlo/module.h"
#include "neuron/neff/program.h"

// The plan of a program: steps in order, with places instead of arena offsets until plan_memory().
namespace neuron::compiler::cpu {

struct PlannedStep {
  bool library = false;
  /// A library step that other devices take part in: these run in the order of `rank`.
  bool collective = false;
  LoopNest nest;
  /// Of the nest's pointers. Kind Arena: index is a place, offset counts from its start.
  std::vector<neff::BufferRef> pointers;
  neff::LibraryStep call;
  neff::Work work;
  int64_t grain = 0;
  /// Places read and written: values, or nodes + r for results; parameters are their values.
  SmallVector<uint32_t, 8> reads, writes;
  /// Results whose parameter is read in this step in a way that writing in place would disturb.
  SmallVector<uint32_t, 2> unsafe;
  /// Position in the original program, the tie-break of scheduling.
  int64_t rank = 0;
  /// Another step that must come first, beyond what reads and writes say; or -1.
  int32_t after = -1;
  /// Writes a result at the very end, after everything was read.
  bool last = false;
  int32_t parallel_group = -1;
};

struct Plan {
  std::vector<PlannedStep> steps;
  std::vector<std::byte> constants;
  int64_t arena_bytes = 0;
};

/// One line a step: what it runs over, reads and writes. @p, @r, @a, @c: parameter, result, arena,
/// constant, with the offset in bytes; brackets hold strides.
std::string to_string(const Plan& plan);

/// Fuses, orders and places a module; needs no code generation. Throws Error(kUnsupported).
Plan make_plan(const hlo::Module& module);

}  // namespace neuron::compiler::cpu
