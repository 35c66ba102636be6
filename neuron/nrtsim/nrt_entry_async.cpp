#include "neuron/nrtsim/library.h"
#include "neuron/nrtsim/library_table.h"
#include "neuron/nrtsim/nrt_entry.h"
#include "neuron/nrtsim/queue.h"

// Asynchronous calls, and what the simulator offers beyond the NRT interface.

namespace neuron::nrtsim {
namespace {

using faults::Point;

// The core whose queue an asynchronous request takes.
int check_async(int lnc) {
  if (const int status = check_open(); status != 0) return status;
  int status = NRT_SUCCESS;
  const std::shared_ptr<Core> core = find_core(lnc, status);
  if (core == nullptr) return status;
  return check_core(*core, Point::Schedule);
}

}  // namespace
}  // namespace neuron::nrtsim

using namespace neuron;          // NOLINT: this file is the C face of these two.
using namespace neuron::nrtsim;  // NOLINT

extern "C" {

// --- Asynchronous calls --------------------------------------------------------------------------

NRT_EXPORT NRT_STATUS nrta_tensor_write(nrt_tensor_t* tensor, const void* buffer, uint64_t offset,
                                        uint64_t bytes, int lnc_idx, int queue_index,
                                        NRT_STATUS* ret, nrta_seq_t* seq) {
  return guarded([&]() -> int {
    if (const int status = check_async(lnc_idx); status != 0) return status;
    if (checked(tensor) == nullptr) return bad_tensor();
    if (const int status = check_range(tensor, offset, bytes, "write"); status != 0) return status;
    return queue::schedule(
        lnc_idx, NRTA_XU_TENSOR_OP, queue_index,
        [=] { return do_write(tensor, buffer, offset, bytes); }, ret, seq);
  });
}

NRT_EXPORT NRT_STATUS nrta_tensor_read(void* buffer, nrt_tensor_t* tensor, uint64_t offset,
                                       uint64_t bytes, int lnc_idx, int queue_index,
                                       NRT_STATUS* ret, nrta_seq_t* seq) {
  return guarded([&]() -> int {
    if (const int status = check_async(lnc_idx); status != 0) return status;
    if (checked(tensor) == nullptr) return bad_tensor();
    if (const int status = check_range(tensor, offset, bytes, "read"); status != 0) return status;
    return queue::schedule(
        lnc_idx, NRTA_XU_TENSOR_OP, queue_index,
        [=] { return do_read(tensor, buffer, offset, bytes); }, ret, seq);
  });
}

NRT_EXPORT NRT_STATUS nrta_tensor_copy(nrt_tensor_t* source, uint64_t source_offset,
                                       nrt_tensor_t* destination, uint64_t destination_offset,
                                       uint64_t bytes, int lnc_idx, int queue_index,
                                       NRT_STATUS* ret, nrta_seq_t* seq) {
  return guarded([&]() -> int {
    if (const int status = check_async(lnc_idx); status != 0) return status;
    if (checked(source) == nullptr || checked(destination) == nullptr) return bad_tensor();
    return queue::schedule(
        lnc_idx, NRTA_XU_TENSOR_OP, queue_index,
        [=] { return do_copy(source, source_offset, destination, destination_offset, bytes); }, ret,
        seq);
  });
}

NRT_EXPORT NRT_STATUS nrta_execute_schedule(nrt_model_t* handle, const nrt_tensor_set_t* inputs,
                                            nrt_tensor_set_t* outputs, int queue_index,
                                            NRT_STATUS* ret, nrta_seq_t* seq) {
  return guarded([&]() -> int {
    NRT_RETURN_IF_NOT_OPEN();
    const Model* model = checked_model(handle);
    if (model == nullptr) return bad_model();
    TensorSet* in = checked_set(inputs);
    TensorSet* out = checked_set(outputs);
    if (in == nullptr || out == nullptr) return bad_set();
    if (const int status = check_core(model->core(), Point::Schedule); status != 0) return status;
    // Addresses are taken now: callers destroy the sets as soon as this returns.
    Bases bases;
    if (const int status = model->resolve(*in, *out, bases); status != 0) return status;
    std::vector<nrt_tensor*> written;
    for (const TensorSet::Entry& entry : out->entries) written.push_back(entry.tensor);
    return queue::schedule(
        model->core().index, NRTA_XU_COMPUTE, queue_index,
        [model, bases, written]() mutable -> int {
          if (const int status = check_core(model->core(), Point::Execute); status != 0) {
            return status;
          }
          const int status = model->run(bases);
          if (status == 0) {
            for (nrt_tensor* tensor : written) tensor->completions.fetch_add(1);
          }
          return status;
        },
        ret, seq);
  });
}

NRT_EXPORT NRT_STATUS nrta_is_completed(nrta_seq_t seq, bool* completed) {
  if (completed == nullptr) return null_argument("completed");
  return guarded([&] { return queue::is_completed(seq, completed); });
}

NRT_EXPORT NRT_STATUS nrta_get_sequence(uint32_t lnc, nrta_xu_t xu, int queue_index,
                                        nrta_seq_t* last_completed) {
  if (last_completed == nullptr) return null_argument("last_completed");
  return guarded([&]() -> int {
    int status = NRT_SUCCESS;
    if (find_core(lnc, status) == nullptr) return status;
    return queue::last_completed(static_cast<int>(lnc), xu, queue_index, last_completed);
  });
}

NRT_EXPORT NRT_STATUS nrta_event_register_seq_id_completion(nrta_seq_t seq, int eventfd) {
  return guarded([&] { return queue::notify_sequence(seq, eventfd); });
}

NRT_EXPORT NRT_STATUS nrta_event_register_xu_completion(int lnc, nrta_xu_t xu, int queue_index,
                                                        int eventfd) {
  return guarded([&]() -> int {
    int status = NRT_SUCCESS;
    if (find_core(lnc, status) == nullptr) return status;
    return queue::notify_unit(lnc, xu, queue_index, eventfd);
  });
}

// --- Our own extras ------------------------------------------------------------------------------

NRT_EXPORT void nrtsim_register_kernel(const char* name, const nrtsim_lib_kernel_t* kernel) {
  if (name == nullptr || kernel == nullptr) return;
  try {
    register_kernel(name, *kernel);
  } catch (...) {
    fail_with_current_exception();
  }
}

NRT_EXPORT const char* nrtsim_last_error(void) { return last_error().c_str(); }

/// Clock of the time model since nrt_init; 0 for a core that is not visible.
NRT_EXPORT uint64_t nrtsim_device_time_ns(uint32_t vnc) {
  const std::shared_ptr<Instance> opened = instance();
  const std::shared_ptr<Core> core = opened == nullptr ? nullptr : opened->core(vnc);
  return core == nullptr ? 0 : core->time_ns.load();
}

/// Replaces the injected faults; see faults.h.
NRT_EXPORT NRT_STATUS nrtsim_set_faults(const char* spec) {
  return guarded([&]() -> int {
    faults::configure(spec == nullptr ? "" : spec);
    return NRT_SUCCESS;
  });
}

/// The compute pool, for host code that wants no second one.
NRT_EXPORT void nrtsim_parallel_for(void (*body)(void*, int64_t, int64_t), void* user,
                                    int64_t count, int64_t grain) {
  library_context().parallel_for(body, user, count, grain);
}
}  // extern "C"
