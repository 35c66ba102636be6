#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "neuron/base/small_vector.h"
#include "neuron/neff/program.h"
#include "neuron/nrtsim/instance.h"
#include "neuron/nrtsim/library_table.h"
#include "neuron/nrtsim/program_collective.h"
#include "neuron/nrtsim/tensor.h"

namespace neuron::nrtsim {

/// Addresses of one run: parameters, results, scalars, arena, constants, status.
using Bases = SmallVector<void*, 24>;

/// A loaded program. Immutable after load(); runs from several threads at once.
class Model {
 public:
  /// What the process is among the devices of a job; count 0: not said.
  struct Place {
    uint32_t device = 0, count = 0;
  };
  /// Throws Error, or returns null with `status` and a message set.
  static std::unique_ptr<Model> load(const std::shared_ptr<Core>& core, const Topology& topology,
                                     const std::byte* neff, size_t bytes, Place place, int& status);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  /// Fills `bases` with the addresses of the sets' tensors; NRT_SUCCESS or a status with a message.
  int resolve(TensorSet& inputs, TensorSet& outputs, Bases& bases) const;
  /// Runs all steps. Counts the completion on no tensor.
  int run(Bases& bases) const;
  /// Counts a completion on every output tensor.
  void mark_completed(TensorSet& outputs) const;

  const neff::Program& program() const { return program_; }
  Core& core() const { return *core_; }
  bool has_scalars() const { return program_.scalar_count > 0; }

 private:
  struct Ref {
    uint32_t base;
    int64_t offset;
  };
  /// A step as run() needs it.
  struct Launch {
    bool library = false;
    uint32_t index = 0;  // Of the step in the program.
    neff::KernelFunction function = nullptr;
    const int64_t* args = nullptr;
    int64_t extent = 0;
    int64_t grain = 0;
    uint32_t first_ref = 0;
    uint32_t ref_count = 0;
    const LibraryCall* call = nullptr;
    const ProgramCollective* collective = nullptr;
  };
  /// A piece of a step, for groups of independent steps.
  struct Piece {
    uint32_t launch;
    int64_t begin, end;
  };
  /// Launches [first, last): one, or a group of independent ones cut into chunks of pieces.
  struct Stage {
    uint32_t first = 0, last = 0;
    std::vector<Piece> pieces;
    std::vector<uint32_t> chunks;  // First piece of each chunk, and the end; empty: run in order.
  };

  Model() = default;
  void prepare(std::vector<neff::KernelFunction> functions, Place place);
  void prepare_stages();
  Ref ref_of(const neff::BufferRef& ref) const;
  int resolve_side(TensorSet& set, bool outputs, Bases& bases) const;
  int find_tensors(TensorSet& set, bool outputs, std::vector<nrt_tensor*>& found) const;
  int run_launch(const Launch& launch, void* const* bases) const;
  int run_piece(const Launch& launch, void* const* bases, int64_t begin, int64_t end) const;
  int run_group(const Stage& stage, void* const* bases) const;
  int status_error(int64_t status) const;

  uint64_t uid_ = 0;
  std::shared_ptr<Core> core_;
  uint64_t charged_ = 0;
  uint64_t time_ns_ = 0;
  neff::Program program_;
  std::vector<Ref> refs_;
  std::vector<Launch> launches_;
  std::vector<Stage> stages_;
  std::vector<std::unique_ptr<LibraryCall>> calls_;
  std::vector<std::unique_ptr<ProgramCollective>> collectives_;
};

}  // namespace neuron::nrtsim

struct nrt_model {
  uint32_t magic = neuron::nrtsim::kModelMagic;
  std::unique_ptr<neuron::nrtsim::Model> model;
};
