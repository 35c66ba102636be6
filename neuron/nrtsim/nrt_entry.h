#pragma once

#include <cstdint>
#include <memory>

#include "neuron/nrt/nrt.h"
#include "neuron/nrtsim/error.h"
#include "neuron/nrtsim/faults.h"
#include "neuron/nrtsim/instance.h"
#include "neuron/nrtsim/model.h"
#include "neuron/nrtsim/tensor.h"

// What the files of C functions share. No exception leaves them; every status other than success
// comes with a message.

#define NRT_EXPORT __attribute__((visibility("default")))
#define NRT_RETURN_IF_NOT_OPEN() \
  if (const int open = check_open(); open != 0) return static_cast<NRT_STATUS>(open)

namespace neuron::nrtsim {

/// Runs body() -> status; exceptions become a status.
template <typename Body>
NRT_STATUS guarded(Body body) {
  try {
    return static_cast<NRT_STATUS>(body());
  } catch (...) {
    return fail_with_current_exception();
  }
}

NRT_STATUS null_argument(const char* name);
NRT_STATUS bad_model();
NRT_STATUS bad_tensor();
NRT_STATUS bad_set();

/// The visible core, or null with a status.
std::shared_ptr<Core> find_core(int64_t index, int& status);
/// Of the open instance, or what the environment says.
Topology current_topology();
/// Null for a handle that is none.
Model* checked_model(const nrt_model_t* handle);
/// A fault, or an earlier one that ended the core.
int check_core(Core& core, faults::Point point);

// Bytes of tensors, ranges checked.
int do_read(const nrt_tensor* tensor, void* buffer, uint64_t offset, uint64_t bytes);
int do_write(nrt_tensor* tensor, const void* buffer, uint64_t offset, uint64_t bytes);
int do_copy(const nrt_tensor* source, uint64_t source_offset, nrt_tensor* destination,
            uint64_t destination_offset, uint64_t bytes);

}  // namespace neuron::nrtsim
