#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "neuron/neff/program.h"

namespace neuron::nrtsim {

namespace comm {
class Group;
}

/// A collective that is a step of a program. It goes through the transport of the group whose
/// global ranks are those of this device's replica group (comm_group.h); such groups carry nothing
/// but programs. Immutable; runs from several threads at once.
class ProgramCollective {
 public:
  /// `device_id` of `device_count` as nrt_load_collectives was told. Throws Error if the step is
  /// none that the simulator knows, or if this device is in none of its groups.
  ProgramCollective(const neff::LibraryStep& step, uint32_t device_id, uint32_t device_count);

  /// Blocks until the data is there. A status with a message otherwise.
  int run(void* const* inputs, void* const* outputs) const;

 private:
  /// Part of a tensor that goes to or comes from one rank.
  struct Part {
    int64_t offset = 0;  // Bytes
    Dims dims;
    bool is_used = false;
  };
  Part whole(const neff::LibraryTensor& tensor) const;
  Part chunk(const neff::LibraryTensor& tensor, int64_t dim, size_t position) const;
  void plan();

  const neff::LibraryStep& step_;
  std::vector<int64_t> ranks_;     // Of the group, ascending: the order of the transport.
  std::vector<size_t> positions_;  // Of each of them in the replica group.
  size_t self_ = 0;                // This device in ranks_.
  int32_t kind_ = 0;               // NRTSIM_COMM_*
  int32_t reduction_ = 0;          // NRTSIM_COMM_SUM...
  int32_t root_ = 0;
  int32_t wire_ = 0;         // neuron::DType that travels
  int64_t per_element_ = 1;  // Elements of it in one of the tensor's
  bool fills_ = false;       // The output is cleared first.
  std::vector<Part> inputs_, outputs_;
};

/// The group of these global ranks, ascending, that serves programs; null if there is none.
std::shared_ptr<comm::Group> find_program_group(const std::vector<int64_t>& global_ranks);
void add_program_group(const std::vector<int64_t>& global_ranks,
                       const std::shared_ptr<comm::Group>& group);

}  // namespace neuron::nrtsim
