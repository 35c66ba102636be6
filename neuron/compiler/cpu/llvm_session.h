#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "neuron/compiler/cpu/loop_nest.h"

namespace neuron::compiler::cpu {

/// One LLVM target machine for the host, kept for many compilations. Not thread-safe: one per
/// compiling thread.
class LlvmSession {
 public:
  /// kAvx2 is the oldest x86 processor that is supported; it and kArm64 are for tests.
  enum class Level : uint8_t { kHost, kAvx2, kArm64 };
  /// Throws Error(kUnsupported) on processors without AVX2, FMA and F16C (x86-64).
  explicit LlvmSession(Level level = Level::kHost);
  ~LlvmSession();
  LlvmSession(const LlvmSession&) = delete;
  LlvmSession& operator=(const LlvmSession&) = delete;

  /// The nest as a relocatable ELF object with the one function `symbol`.
  std::vector<std::byte> compile(const LoopNest& nest, const std::string& symbol);
  /// The same as LLVM IR text, or as assembly; for tests and tools.
  std::string ir(const LoopNest& nest, const std::string& symbol);
  std::string assembly(const LoopNest& nest, const std::string& symbol);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace neuron::compiler::cpu
