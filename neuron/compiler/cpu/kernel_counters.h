#pragma once

#include <cstdint>

namespace neuron::compiler::cpu {

/// What the kernel cache did since process start; part of CompilerStats.
struct KernelCounters {
  uint64_t generated = 0;     // by LLVM
  uint64_t hits = 0;          // found in memory
  uint64_t disk_hits = 0;     // found on disk
  uint64_t disk_rebuilt = 0;  // corrupt on disk
  double seconds = 0;         // CPU time of code generation
};

KernelCounters kernel_counters();
/// Empties the memory level.
void forget_kernels();

}  // namespace neuron::compiler::cpu
