#include "neuron/nrtsim/code_space.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "neuron/base/error.h"

namespace neuron::nrtsim {
namespace {
constexpr size_t kPage = 4096;
constexpr size_t kRegion = 16u << 20;
}  // namespace

void CodeSpace::map_region(size_t bytes) {
  size_ = (std::max(bytes, kRegion) + kPage - 1) / kPage * kPage;
  used_ = 0;
  owner_ = getpid();
  shared_ = false;
  const int file = memfd_create("neuron-kernels", MFD_CLOEXEC);
  if (file >= 0) {
    if (ftruncate(file, static_cast<off_t>(size_)) == 0) {
      void* write = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      void* execute = mmap(nullptr, size_, PROT_READ | PROT_EXEC, MAP_SHARED, file, 0);
      if (write != MAP_FAILED && execute != MAP_FAILED) {
        base_ = {static_cast<std::byte*>(write), static_cast<std::byte*>(execute)};
        shared_ = true;
      } else {
        if (write != MAP_FAILED) munmap(write, size_);
        if (execute != MAP_FAILED) munmap(execute, size_);
      }
    }
    close(file);
  }
  if (shared_) return;
  // Without memfd: every piece gets pages of its own and is sealed when it is published.
  void* memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  NEURON_CHECK(memory != MAP_FAILED, kIo, "cannot map ", Bytes(size_),
               " for kernels: ", std::strerror(errno));
  base_ = {static_cast<std::byte*>(memory), static_cast<std::byte*>(memory)};
}

CodeSpace::Piece CodeSpace::allocate(size_t bytes, size_t alignment) {
  const auto fits = [&] {
    const size_t unit = shared_ ? std::max<size_t>(alignment, 16) : kPage;
    used_ = (used_ + unit - 1) / unit * unit;
    return used_ + bytes <= size_;
  };
  if (owner_ != getpid() || !fits()) {
    map_region(bytes);
    fits();
  }
  const Piece piece = {base_.write + used_, base_.execute + used_};
  used_ += bytes;
  return piece;
}

void CodeSpace::publish(const Piece& piece, size_t bytes) {
  if (!shared_) {
    const size_t size = (bytes + kPage - 1) / kPage * kPage;
    NEURON_CHECK(mprotect(piece.execute, size, PROT_READ | PROT_EXEC) == 0, kIo,
                 "the system does not allow executable memory: ", std::strerror(errno));
    used_ = static_cast<size_t>(piece.execute - base_.execute) + size;
  }
  auto* begin = reinterpret_cast<char*>(piece.execute);
  __builtin___clear_cache(begin, begin + bytes);
}

}  // namespace neuron::nrtsim
