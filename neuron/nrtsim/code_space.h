#pragma once

#include <cstddef>
#include <cstdint>

namespace neuron::nrtsim {

/// Memory for code, mapped twice: what is written through `write` is executed at `execute`.
/// Changing the protection of one mapping instead would fault kernels that run on the same page.
/// Not thread-safe; never freed.
class CodeSpace {
 public:
  struct Piece {
    std::byte* write = nullptr;
    std::byte* execute = nullptr;
  };
  /// Throws Error(kIo) if the system gives no executable memory.
  Piece allocate(size_t bytes, size_t alignment);
  /// Makes written bytes visible to instruction fetch.
  void publish(const Piece& piece, size_t bytes);

 private:
  void map_region(size_t bytes);

  Piece base_;
  size_t size_ = 0;
  size_t used_ = 0;
  bool shared_ = false;  // Two views of one file; else one private view, made executable by pages.
  int owner_ = 0;        // Process: a forked child must not write to its parent's file.
};

}  // namespace neuron::nrtsim
