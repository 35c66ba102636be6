#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "neuron/hlo/module.h"
#include "neuron/nrt/handles.h"
#include "neuron/runtime/program_dump.h"
#include "neuron/runtime/runtime.h"
#include "neuron/runtime/spin_lock.h"

namespace neuron::runtime {

/// A NEFF loaded on one device, and what it takes to run it: sets of NRT tensors ("frames") that
/// are kept between runs, one for each thread that runs it at the same time.
///
/// Immutable from outside; thread-safe. In a forked child nothing is destroyed.
class Program {
 public:
  /// `module` tells how many buffers there are and how large. Throws what nrt_load answers.
  Program(int device, const hlo::Module& module, std::span<const std::byte> neff);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  int device() const { return device_; }
  /// "(f32[2, 3], i64[4]) on neuron:0".
  std::string signature() const;
  size_t neff_bytes() const { return neff_bytes_; }
  /// Of its collectives, each once.
  std::span<const hlo::ReplicaGroups> replica_groups() const { return replica_groups_; }

  /// Runs once on this thread and returns the NRT's answer. Throws Error for operands that do not
  /// fit and when the NRT refuses to bind them.
  NRT_STATUS run(std::span<const Buffer> parameters, std::span<const ScalarSlot> scalars,
                 std::span<const Buffer> results, const char* op) const;
  /// Throws the Error for a status of run(), naming `op`.
  [[noreturn]] void raise_failure(NRT_STATUS status, const char* op) const;

  /// Forgets the addresses that idle frames are bound to.
  void drop_cached_bindings() const noexcept;

 private:
  struct Port {
    std::string name;
    size_t bytes;
  };
  struct Frame;

  NRT_STATUS run_and_dump(const Frame& frame, std::span<const Buffer> parameters,
                          std::span<const ScalarSlot> scalars, std::span<const Buffer> results,
                          const char* op) const;
  Frame* acquire_frame() const;
  void return_frame(Frame* frame) const noexcept;
  Frame* make_frame() const;
  void add_to_set(Frame& frame, size_t port, nrt_tensor_t* tensor) const;
  void bind(Frame& frame, size_t port, const Buffer& buffer) const;

  const int device_;
  const bool is_simulator_;
  size_t neff_bytes_;
  std::vector<Port> ports_;  // Parameters, then results.
  size_t parameter_count_;
  size_t scalar_count_;
  std::vector<hlo::Type> types_;  // Of the parameters.
  std::vector<hlo::ReplicaGroups> replica_groups_;
  std::unique_ptr<ProgramDump> dump_;  // Usually null.
  nrt::LoadedModel* model_ = nullptr;  // Owned.

  // An idle frame for the common case of one thread; the others wait in the list.
  mutable std::atomic<Frame*> spare_{nullptr};
  mutable SpinLock idle_lock_;
  mutable Frame* idle_ = nullptr;  // Guarded by idle_lock_.
};

/// Runs once, on this thread. Throws Error naming `op`, the operands and the NRT status. `stream`
/// is for profilers.
void run_program(const Program& program, std::span<const Buffer> parameters,
                 std::span<const ScalarSlot> scalars, std::span<const Buffer> results,
                 const char* op, int64_t stream);

/// Forgets the NRT tensors that idle programs keep for the addresses of their last run: on a device
/// they would keep its memory alive.
void drop_cached_bindings() noexcept;

/// Launches since the process started.
uint64_t launch_count() noexcept;

}  // namespace neuron::runtime
