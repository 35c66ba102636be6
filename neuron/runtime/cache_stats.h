#pragma once

#include <cstdint>
#include <string>
#include <vector>

// What the program cache holds and did. See also program_cache.h.
namespace neuron::runtime {

/// Counters since the process started or clear_compilation_cache(). A program is built from what
/// earlier runs left on disk (a persistent hit) or needs the code generator (a persistent miss).
struct CompilationCacheStats {
  uint64_t entries = 0;  // Programs; those that only draw random numbers are not counted.
  uint64_t hits = 0;     // Launches of a program that existed.
  uint64_t misses = 0;   // Programs built.
  uint64_t persistent_hits = 0;
  uint64_t persistent_misses = 0;
  uint64_t evictions = 0;
  uint64_t neff_bytes = 0;
  double compile_ms = 0;
};
struct CompilationCacheEntry {
  std::string key;  // 32 hexadecimal digits and the device, or what is left of a program's name.
  int device = 0;
  double compile_ms = 0;
  uint64_t neff_bytes = 0;
};

CompilationCacheStats compilation_cache_stats();
std::vector<CompilationCacheEntry> compilation_cache_entries();
/// Forgets all programs; those that somebody holds live on. `disk`: also what is kept between runs.
void clear_compilation_cache(bool disk);

/// While on, NEFFs of programs that are built are kept for take_built_neffs(): for profilers.
void keep_built_neffs(bool keep);
std::vector<std::pair<std::string, std::vector<std::byte>>> take_built_neffs();

}  // namespace neuron::runtime
