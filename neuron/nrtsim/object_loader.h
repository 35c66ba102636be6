#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "neuron/base/hash.h"
#include "neuron/neff/program.h"

// Loads relocatable ELF objects (x86-64, AArch64) without a linker: lays out their sections in
// executable memory and applies relative relocations. Objects must be self-contained: an undefined
// symbol or a relocation that needs an absolute address or a GOT is refused by name.
//
// Kernels are shared by hash over the whole process and stay for ever: there are as many as there
// are structures of loops, not sizes.
namespace neuron::nrtsim {

/// Entry points of a program's kernels, in order. Loads what is not known yet. Throws
/// Error(kInvalid) naming the kernel and what is wrong with its object. Thread-safe.
std::vector<neff::KernelFunction> load_kernels(std::span<const neff::KernelCode> kernels);

/// Null unless the hash is loaded.
neff::KernelFunction find_kernel(const Hash128& hash);

struct LoaderStats {
  uint64_t objects = 0;     // Loaded
  uint64_t code_bytes = 0;  // Of code and constants
};
LoaderStats loader_stats();

/// True if the host has all the features that code was made for ("znver4+avx512f+..."); else false
/// and the missing one. Unknown words do not count.
bool host_can_run(const std::string& cpu_features, std::string& missing);

}  // namespace neuron::nrtsim
