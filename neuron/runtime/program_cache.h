#pragma once

#include <memory>

#include "neuron/compiler/compiler.h"
#include "neuron/runtime/runtime.h"

namespace neuron::runtime {

/// Bounds of the program cache; the least recently used programs go first. Programs that somebody
/// still holds live on outside the cache.
struct CacheLimits {
  size_t programs = 4096;
  size_t neff_bytes = size_t{1} << 30;
};

/// For tests: replaces the compiler (null: back to the chosen one) and empties the cache.
void set_compiler_for_testing(std::shared_ptr<compiler::Compiler> compiler);
void set_cache_limits_for_testing(CacheLimits limits);
size_t cached_programs_for_testing();

}  // namespace neuron::runtime
