#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>
#include <unordered_set>

#include "neuron/base/env.h"
#include "neuron/base/error.h"
#include "neuron/base/thread_pool.h"
#include "neuron/nrt/nrt.h"
#include "neuron/nrtsim/error.h"
#include "neuron/nrtsim/faults.h"
#include "neuron/nrtsim/instance.h"
#include "neuron/nrtsim/library.h"
#include "neuron/nrtsim/library_table.h"
#include "neuron/nrtsim/model.h"
#include "neuron/nrtsim/queue.h"
#include "neuron/nrtsim/tensor.h"

// The C functions: argument checks, then one call inward. No exception leaves this file.

namespace neuron::nrtsim {
namespace {

using faults::Point;

// Models that exist, so that a stale handle is recognised instead of freed twice.
struct LiveModels {
  std::mutex mutex;
  std::unordered_set<nrt_model*> set;
};
LiveModels& live_models() {
  static auto* models = new LiveModels;
  return *models;
}

template <typename Body>
NRT_STATUS guarded(Body body) {
  try {
    return static_cast<NRT_STATUS>(body());
  } catch (...) {
    return fail_with_current_exception();
  }
}

NRT_STATUS null_argument(const char* name) {
  return fail(NRT_INVALID, "argument ", name, " is null");
}

// The visible core, or null with a status.
std::shared_ptr<Core> find_core(int64_t index, int& status) {
  const std::shared_ptr<Instance> opened = instance();
  if (opened == nullptr) {
    status = check_open();
    return nullptr;
  }
  std::shared_ptr<Core> core = opened->core(index);
  if (core == nullptr) {
    status = fail(NRT_INVALID, "core ", index, ", but this process owns cores 0 to ",
                  opened->topology().visible - 1);
  }
  return core;
}

Topology current_topology() {
  const std::shared_ptr<Instance> opened = instance();
  return opened == nullptr ? Topology::from_environment() : opened->topology();
}

Model* checked_model(const nrt_model_t* handle) {
  return handle != nullptr && handle->magic == kModelMagic ? handle->model.get() : nullptr;
}

NRT_STATUS bad_model() { return fail(NRT_INVALID_HANDLE, "not a loaded model"); }
NRT_STATUS bad_tensor() { return fail(NRT_INVALID_HANDLE, "not a tensor"); }
NRT_STATUS bad_set() { return fail(NRT_INVALID_HANDLE, "not a tensor set"); }

// A fault or an earlier one that ended the core.
int check_core(Core& core, Point point) {
  if (const int dead = core.dead.load(std::memory_order_relaxed); dead != 0) [[unlikely]] {
    return fail(NRT_EXEC_UNIT_UNRECOVERABLE, "core ", core.index, " is lost since status ", dead,
                "; the runtime must be restarted");
  }
  if (const int status = faults::check(point); status != 0) [[unlikely]] {
    if (is_fatal(status)) core.dead.store(status);
    return status;
  }
  return NRT_SUCCESS;
}

NRT_STATUS load_model(const void* neff, size_t bytes, int32_t vnc, int32_t vnc_count,
                      nrt_model_t** model) {
  if (neff == nullptr) return null_argument("neff");
  if (model == nullptr) return null_argument("model");
  *model = nullptr;
  if (const int status = check_open(); status != 0) return static_cast<NRT_STATUS>(status);
  if (vnc < -1 || vnc_count == 0 || vnc_count < -1) {
    return fail(NRT_INVALID, "core ", vnc, " and a count of ", vnc_count, " cores");
  }
  if (vnc_count > 1) {
    return fail(NRT_LOAD_NOT_ENOUGH_NC, "the program runs on one logical core, not on ", vnc_count);
  }
  return guarded([&]() -> int {
    int status = NRT_FAILURE;
    const std::shared_ptr<Core> core = find_core(vnc < 0 ? 0 : vnc, status);
    if (core == nullptr) return status;
    if (const int injected = check_core(*core, Point::Load); injected != 0) return injected;
    const Topology topology = instance()->topology();
    std::unique_ptr<Model> loaded =
        Model::load(core, topology, static_cast<const std::byte*>(neff), bytes, status);
    if (loaded == nullptr) return status;
    auto handle = std::make_unique<nrt_model>();
    handle->model = std::move(loaded);
    LiveModels& live = live_models();
    const std::lock_guard<std::mutex> lock(live.mutex);
    live.set.insert(handle.get());
    *model = handle.release();
    return NRT_SUCCESS;
  });
}

int execute(nrt_model_t* handle, const nrt_tensor_set_t* inputs, nrt_tensor_set_t* outputs,
            int count) {
  if (state() != State::Open) [[unlikely]]
    return check_open();
  const Model* model = checked_model(handle);
  if (model == nullptr) [[unlikely]]
    return bad_model();
  TensorSet* in = checked_set(inputs);
  TensorSet* out = checked_set(outputs);
  if (in == nullptr || out == nullptr) [[unlikely]]
    return bad_set();
  for (int i = 0; i < count; ++i) {
    if (const int status = check_core(model->core(), Point::Execute); status != 0) return status;
    Bases bases;
    if (const int status = model->resolve(*in, *out, bases); status != 0) return status;
    if (const int status = model->run(bases); status != 0) return status;
    model->mark_completed(*out);
  }
  return NRT_SUCCESS;
}

nrt_dtype_t nrt_dtype_of(DType type) {
  switch (type) {
    case DType::pred:
    case DType::u8:
      return NRT_DTYPE_UINT8;
    case DType::i8:
      return NRT_DTYPE_INT8;
    case DType::i16:
      return NRT_DTYPE_INT16;
    case DType::u16:
      return NRT_DTYPE_UINT16;
    case DType::i32:
      return NRT_DTYPE_INT32;
    case DType::u32:
      return NRT_DTYPE_UINT32;
    case DType::i64:
      return NRT_DTYPE_INT64;
    case DType::u64:
      return NRT_DTYPE_UINT64;
    case DType::f16:
      return NRT_DTYPE_FLOAT16;
    case DType::bf16:
      return NRT_DTYPE_BFLOAT16;
    case DType::f32:
      return NRT_DTYPE_FLOAT32;
    case DType::f8e4m3fn:
    case DType::f8e4m3:
      return NRT_DTYPE_FP8_E4;
    case DType::f8e5m2:
      return NRT_DTYPE_FP8_E5;
    case DType::f64:
    case DType::c64:
    case DType::c128:
      return NRT_DTYPE_UNKNOWN;  // The interface has no number for these.
  }
  return NRT_DTYPE_UNKNOWN;
}

void fill_info(nrt_tensor_info_t& row, const std::string& name, nrt_tensor_usage_t usage,
               const neff::TensorInfo& info) {
  std::memset(&row, 0, sizeof(row));
  std::strncpy(row.name, name.c_str(), sizeof(row.name) - 1);
  row.usage = usage;
  row.size = static_cast<size_t>(info.bytes);
  row.dtype = nrt_dtype_of(info.dtype);
  row.ndim = static_cast<uint32_t>(info.dims.size());
  row.shape = static_cast<uint32_t*>(std::calloc(std::max<size_t>(info.dims.size(), 1), 4));
  if (row.shape == nullptr) throw std::bad_alloc();
  for (size_t i = 0; i < info.dims.size(); ++i) row.shape[i] = static_cast<uint32_t>(info.dims[i]);
}

// Both tensors must be on one core, if they are on a core at all.
int check_same_core(const nrt_tensor* a, const nrt_tensor* b) {
  const Core* first = a->storage == nullptr ? nullptr : a->storage->core.get();
  const Core* second = b->storage == nullptr ? nullptr : b->storage->core.get();
  if (first != nullptr && second != nullptr && first != second &&
      first->bank.get() != second->bank.get()) {
    return fail(NRT_INVALID, "copy from core ", first->index, " to core ", second->index,
                ", which do not share HBM");
  }
  return NRT_SUCCESS;
}

int do_read(const nrt_tensor* tensor, void* buffer, uint64_t offset, uint64_t bytes) {
  if (const int status = faults::check(Point::Read); status != 0) return status;
  if (const int status = check_range(tensor, offset, bytes, "read"); status != 0) return status;
  if (bytes > 0 && buffer == nullptr) return null_argument("buffer");
  copy_bytes(buffer, tensor->data + offset, bytes);
  return NRT_SUCCESS;
}

int do_write(nrt_tensor* tensor, const void* buffer, uint64_t offset, uint64_t bytes) {
  if (const int status = faults::check(Point::Write); status != 0) return status;
  if (const int status = check_range(tensor, offset, bytes, "write"); status != 0) return status;
  if (bytes > 0 && buffer == nullptr) return null_argument("buffer");
  copy_bytes(tensor->data + offset, buffer, bytes);
  return NRT_SUCCESS;
}

int do_copy(const nrt_tensor* source, uint64_t source_offset, nrt_tensor* destination,
            uint64_t destination_offset, uint64_t bytes) {
  if (const int status = faults::check(Point::Copy); status != 0) return status;
  if (const int status = check_range(source, source_offset, bytes, "copy from"); status != 0) {
    return status;
  }
  if (const int status = check_range(destination, destination_offset, bytes, "copy to");
      status != 0) {
    return status;
  }
  if (const int status = check_same_core(source, destination); status != 0) return status;
  copy_bytes(destination->data + destination_offset, source->data + source_offset, bytes);
  return NRT_SUCCESS;
}

template <typename Operation>
NRT_STATUS each_batch(const nrt_tensor_batch_t* batches, uint64_t count, Operation operation) {
  if (const int status = check_open(); status != 0) return static_cast<NRT_STATUS>(status);
  if (batches == nullptr && count > 0) return null_argument("batches");
  for (uint64_t i = 0; i < count; ++i) {
    const nrt_tensor* tensor = checked(batches[i].tensor);
    if (tensor == nullptr) return bad_tensor();
    for (uint32_t k = 0; k < batches[i].num_ops; ++k) {
      const int status = operation(const_cast<nrt_tensor*>(tensor), batches[i].ops[k]);
      if (status != 0) return static_cast<NRT_STATUS>(status);
    }
  }
  return NRT_SUCCESS;
}

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

#define NRT_EXPORT __attribute__((visibility("default")))
#define NRT_RETURN_IF_NOT_OPEN() \
  if (const int open = check_open(); open != 0) return static_cast<NRT_STATUS>(open)

extern "C" {

// --- Life cycle ----------------------------------------------------------------------------------

NRT_EXPORT NRT_STATUS nrt_init(nrt_framework_type_t framework, const char*, const char*) {
  if (framework <= NRT_FRAMEWORK_TYPE_INVALID || framework > NRT_FRAMEWORK_TYPE_PRECHECK) {
    return fail(NRT_INVALID, "framework ", static_cast<int>(framework), " is not 1 to 5");
  }
  return guarded([&]() -> int {
    env::reload();
    faults::configure(env::sim_faults());
    if (const int status = faults::check(Point::Init); status != 0) return status;
    if (!open_instance()) return fail(NRT_INVALID, "nrt_init has been called already");
    return NRT_SUCCESS;
  });
}

NRT_EXPORT void nrt_close(void) {
  if (state() != State::Open) return;
  queue::drain_and_stop();
  close_instance();
}

NRT_EXPORT NRT_STATUS nrt_get_version(nrt_version_t* version, size_t size) {
  if (version == nullptr) return null_argument("version");
  nrt_version_t own{};
  // The interface generation that the simulator follows.
  own.rt_major = 2;
  own.rt_minor = 34;
  own.rt_patch = 10;
  std::strncpy(own.rt_detail, "NeuronCore simulator of torch-neuronx", sizeof(own.rt_detail) - 1);
  std::memcpy(version, &own, std::min(size, sizeof(own)));
  return NRT_SUCCESS;
}

NRT_EXPORT NRT_STATUS nrt_get_instance_info(nrt_instance_info_t* info, size_t size) {
  if (info == nullptr) return null_argument("info");
  return guarded([&]() -> int {
    const Topology topology = current_topology();
    nrt_instance_info_t own{};
    own.family = topology.target->instance_family;
    own.size = topology.target->instance_size;
    topology.target->arch_name.copy(own.arch_name, sizeof(own.arch_name) - 1);
    std::strncpy(own.device_revision, "sim", sizeof(own.device_revision) - 1);
    std::memcpy(info, &own, std::min(size, sizeof(own)));
    return NRT_SUCCESS;
  });
}

NRT_EXPORT NRT_STATUS nrt_get_total_vnc_count(uint32_t* count) {
  if (count == nullptr) return null_argument("count");
  return guarded([&]() -> int {
    *count = static_cast<uint32_t>(current_topology().total);
    return NRT_SUCCESS;
  });
}

NRT_EXPORT NRT_STATUS nrt_get_visible_vnc_count(uint32_t* count) {
  if (count == nullptr) return null_argument("count");
  return guarded([&]() -> int {
    *count = static_cast<uint32_t>(current_topology().visible);
    return NRT_SUCCESS;
  });
}

NRT_EXPORT NRT_STATUS nrt_get_total_nc_count(uint32_t* count) {
  return nrt_get_total_vnc_count(count);
}
NRT_EXPORT NRT_STATUS nrt_get_visible_nc_count(uint32_t* count) {
  return nrt_get_visible_vnc_count(count);
}

// --- Models --------------------------------------------------------------------------------------

NRT_EXPORT NRT_STATUS nrt_load(const void* neff, size_t bytes, int32_t vnc, int32_t vnc_count,
                               nrt_model_t** model) {
  return load_model(neff, bytes, vnc, vnc_count, model);
}

NRT_EXPORT NRT_STATUS nrt_load_collectives(const void* neff, size_t bytes, int32_t vnc,
                                           int32_t vnc_count, uint32_t device_id,
                                           uint32_t device_count, nrt_model_t** model) {
  if (device_count == 0 || device_id >= device_count) {
    return fail(NRT_INVALID, "device ", device_id, " of ", device_count);
  }
  return load_model(neff, bytes, vnc, vnc_count, model);
}

NRT_EXPORT NRT_STATUS nrt_unload(nrt_model_t* model) {
  return guarded([&]() -> int {
    LiveModels& live = live_models();
    {
      const std::lock_guard<std::mutex> lock(live.mutex);
      if (live.set.erase(model) == 0) return bad_model();
    }
    model->magic = 0;
    delete model;
    return check_open();
  });
}

NRT_EXPORT NRT_STATUS nrt_execute(nrt_model_t* model, const nrt_tensor_set_t* inputs,
                                  nrt_tensor_set_t* outputs) {
  return guarded([&] { return execute(model, inputs, outputs, 1); });
}

NRT_EXPORT NRT_STATUS nrt_execute_repeat(nrt_model_t* model, const nrt_tensor_set_t* inputs,
                                         nrt_tensor_set_t* outputs, int count) {
  if (count < 1) return fail(NRT_INVALID, "a repeat count of ", count);
  return guarded([&] { return execute(model, inputs, outputs, count); });
}

NRT_EXPORT NRT_STATUS nrt_get_model_tensor_info(nrt_model_t* handle,
                                                nrt_tensor_info_array_t** info) {
  if (info == nullptr) return null_argument("info");
  *info = nullptr;
  NRT_RETURN_IF_NOT_OPEN();
  return guarded([&]() -> int {
    const Model* model = checked_model(handle);
    if (model == nullptr) return bad_model();
    const neff::Program& program = model->program();
    const size_t count =
        program.parameters.size() + (model->has_scalars() ? 1 : 0) + program.results.size();
    auto* array = static_cast<nrt_tensor_info_array_t*>(
        std::calloc(1, sizeof(nrt_tensor_info_array_t) + count * sizeof(nrt_tensor_info_t)));
    if (array == nullptr) throw std::bad_alloc();
    for (size_t i = 0; i < program.parameters.size(); ++i) {
      fill_info(array->tensor_array[array->tensor_count++], "input" + std::to_string(i),
                NRT_TENSOR_USAGE_INPUT, program.parameters[i]);
    }
    if (model->has_scalars()) {
      neff::TensorInfo scalars;
      scalars.dtype = DType::u8;
      scalars.dims = {program.scalar_count, 16};
      scalars.bytes = static_cast<int64_t>(program.scalar_count) * 16;
      fill_info(array->tensor_array[array->tensor_count++], "scalars", NRT_TENSOR_USAGE_INPUT,
                scalars);
    }
    for (size_t i = 0; i < program.results.size(); ++i) {
      fill_info(array->tensor_array[array->tensor_count++], "output" + std::to_string(i),
                NRT_TENSOR_USAGE_OUTPUT, program.results[i]);
    }
    *info = array;
    return NRT_SUCCESS;
  });
}

NRT_EXPORT NRT_STATUS nrt_free_model_tensor_info(nrt_tensor_info_array_t* info) {
  if (info == nullptr) return null_argument("info");
  for (uint64_t i = 0; i < info->tensor_count; ++i) std::free(info->tensor_array[i].shape);
  std::free(info);
  return NRT_SUCCESS;
}

NRT_EXPORT NRT_STATUS nrt_get_model_info(const nrt_model_t* handle, nrt_model_info_t* info,
                                         size_t size, size_t* written) {
  if (info == nullptr) return null_argument("info");
  NRT_RETURN_IF_NOT_OPEN();
  const Model* model = checked_model(handle);
  if (model == nullptr) return bad_model();
  nrt_model_info_t own{static_cast<uint32_t>(model->core().index)};
  const size_t bytes = std::min(size, sizeof(own));
  std::memcpy(info, &own, bytes);
  if (written != nullptr) *written = bytes;
  return NRT_SUCCESS;
}

// --- Tensors -------------------------------------------------------------------------------------

NRT_EXPORT NRT_STATUS nrt_tensor_allocate(nrt_tensor_placement_t placement, int vnc, size_t bytes,
                                          const char* name, nrt_tensor_t** tensor) {
  if (tensor == nullptr) return null_argument("tensor");
  *tensor = nullptr;
  NRT_RETURN_IF_NOT_OPEN();
  if (bytes == 0) return fail(NRT_INVALID, "a tensor of 0 bytes");
  if (placement != NRT_TENSOR_PLACEMENT_DEVICE && placement != NRT_TENSOR_PLACEMENT_HOST) {
    return fail(NRT_INVALID, "tensor placement ", static_cast<int>(placement),
                ", allowed: 0 (device), 1 (host)");
  }
  return guarded([&]() -> int {
    int status = NRT_FAILURE;
    std::shared_ptr<Core> core;
    if (placement == NRT_TENSOR_PLACEMENT_DEVICE) {
      core = find_core(vnc, status);
      if (core == nullptr) return status;
    }
    if (const int injected = faults::check(Point::Allocate); injected != 0) return injected;
    std::shared_ptr<Storage> storage = allocate_storage(core, bytes, status);
    if (storage == nullptr) return status;
    auto result = std::make_unique<nrt_tensor>();
    result->data = storage->data;
    result->size = bytes;
    result->storage = std::move(storage);
    if (name != nullptr) result->name = name;
    *tensor = result.release();
    return NRT_SUCCESS;
  });
}

NRT_EXPORT NRT_STATUS nrt_tensor_allocate_empty(const char* name, nrt_tensor_t** tensor) {
  if (tensor == nullptr) return null_argument("tensor");
  *tensor = nullptr;
  NRT_RETURN_IF_NOT_OPEN();
  return guarded([&]() -> int {
    auto result = std::make_unique<nrt_tensor>();
    if (name != nullptr) result->name = name;
    *tensor = result.release();
    return NRT_SUCCESS;
  });
}

NRT_EXPORT NRT_STATUS nrt_tensor_attach_buffer(nrt_tensor_t* tensor, void* buffer, size_t bytes) {
  if (checked(tensor) == nullptr) return bad_tensor();
  if (buffer == nullptr && bytes > 0) return null_argument("buffer");
  if (tensor->storage != nullptr) tensor->storage.reset();
  tensor->data = static_cast<std::byte*>(buffer);
  tensor->size = bytes;
  return NRT_SUCCESS;
}

NRT_EXPORT NRT_STATUS nrt_tensor_allocate_slice(const nrt_tensor_t* source, size_t offset,
                                                size_t bytes, const char* name,
                                                nrt_tensor_t** tensor) {
  if (tensor == nullptr) return null_argument("tensor");
  *tensor = nullptr;
  NRT_RETURN_IF_NOT_OPEN();
  if (checked(source) == nullptr) return bad_tensor();
  if (const int status = check_range(source, offset, bytes, "slice"); status != 0) {
    return static_cast<NRT_STATUS>(status);
  }
  return guarded([&]() -> int {
    auto result = std::make_unique<nrt_tensor>();
    result->data = source->data + offset;
    result->size = bytes;
    result->storage = source->storage;
    if (name != nullptr) result->name = name;
    *tensor = result.release();
    return NRT_SUCCESS;
  });
}

NRT_EXPORT void nrt_tensor_free(nrt_tensor_t** tensor) {
  if (tensor == nullptr || *tensor == nullptr) return;
  if (checked(*tensor) != nullptr) {
    (*tensor)->magic = 0;
    delete *tensor;
  }
  *tensor = nullptr;
}

NRT_EXPORT size_t nrt_tensor_get_size(const nrt_tensor_t* tensor) {
  return checked(tensor) == nullptr ? 0 : tensor->size;
}

NRT_EXPORT void* nrt_tensor_get_va(const nrt_tensor_t* tensor) {
  return checked(tensor) == nullptr ? nullptr : tensor->data;
}

NRT_EXPORT NRT_STATUS nrt_tensor_read(const nrt_tensor_t* tensor, void* buffer, size_t offset,
                                      size_t bytes) {
  NRT_RETURN_IF_NOT_OPEN();
  if (checked(tensor) == nullptr) return bad_tensor();
  return static_cast<NRT_STATUS>(do_read(tensor, buffer, offset, bytes));
}

NRT_EXPORT NRT_STATUS nrt_tensor_write(nrt_tensor_t* tensor, const void* buffer, size_t offset,
                                       size_t bytes) {
  NRT_RETURN_IF_NOT_OPEN();
  if (checked(tensor) == nullptr) return bad_tensor();
  return static_cast<NRT_STATUS>(do_write(tensor, buffer, offset, bytes));
}

NRT_EXPORT NRT_STATUS nrt_tensor_copy(const nrt_tensor_t* source, size_t source_offset,
                                      nrt_tensor_t* destination, size_t destination_offset,
                                      size_t bytes) {
  NRT_RETURN_IF_NOT_OPEN();
  if (checked(source) == nullptr || checked(destination) == nullptr) return bad_tensor();
  return static_cast<NRT_STATUS>(
      do_copy(source, source_offset, destination, destination_offset, bytes));
}

NRT_EXPORT NRT_STATUS nrt_tensor_memset(nrt_tensor_t* tensor, uint64_t offset, int value,
                                        size_t bytes) {
  NRT_RETURN_IF_NOT_OPEN();
  if (checked(tensor) == nullptr) return bad_tensor();
  if (const int status = check_range(tensor, offset, bytes, "memset"); status != 0) {
    return static_cast<NRT_STATUS>(status);
  }
  if (bytes > 0) std::memset(tensor->data + offset, value, bytes);
  return NRT_SUCCESS;
}

NRT_EXPORT NRT_STATUS nrt_tensor_read_batch(const nrt_tensor_batch_t* batches, uint64_t count,
                                            bool) {
  return each_batch(batches, count, [](nrt_tensor* tensor, const nrt_tensor_batch_op_t& op) {
    return do_read(tensor, op.buffer, op.offset, op.size);
  });
}

NRT_EXPORT NRT_STATUS nrt_tensor_write_batch(const nrt_tensor_batch_t* batches, uint64_t count,
                                             bool) {
  return each_batch(batches, count, [](nrt_tensor* tensor, const nrt_tensor_batch_op_t& op) {
    return do_write(tensor, op.buffer, op.offset, op.size);
  });
}

NRT_EXPORT NRT_STATUS nrt_tensor_get_device_allocation_info(
    const nrt_tensor_t* tensor, nrt_tensor_device_allocation_info_t* info) {
  if (info == nullptr) return null_argument("info");
  NRT_RETURN_IF_NOT_OPEN();
  if (checked(tensor) == nullptr) return bad_tensor();
  if (tensor->storage == nullptr || tensor->storage->core == nullptr) {
    return fail(NRT_INVALID, "the tensor is not in device memory");
  }
  const Topology topology = current_topology();
  info->physical_address = reinterpret_cast<uint64_t>(tensor->data);
  info->size = tensor->storage->bytes;
  info->hbm_index =
      tensor->storage->core->absolute * topology.lnc / topology.target->cores_per_stack();
  return NRT_SUCCESS;
}

NRT_EXPORT NRT_STATUS nrt_tensor_check_output_completion(const nrt_tensor_t* tensor,
                                                         int64_t timeout_us, uint64_t expected) {
  NRT_RETURN_IF_NOT_OPEN();
  if (checked(tensor) == nullptr) return bad_tensor();
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(timeout_us);
  while (tensor->completions.load(std::memory_order_acquire) < expected) {
    if (timeout_us >= 0 && std::chrono::steady_clock::now() >= end) {
      return fail(NRT_TIMEOUT, tensor->completions.load(), " of ", expected, " completions after ",
                  timeout_us, " us");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return NRT_SUCCESS;
}

NRT_EXPORT NRT_STATUS nrt_tensor_reset_output_completion(nrt_tensor_t* tensor) {
  NRT_RETURN_IF_NOT_OPEN();
  if (checked(tensor) == nullptr) return bad_tensor();
  tensor->completions.store(0, std::memory_order_release);
  return NRT_SUCCESS;
}

NRT_EXPORT NRT_STATUS nrt_get_vnc_memory_stats(uint32_t vnc, nrt_vnc_memory_stats_t* stats,
                                               size_t size, size_t* written) {
  if (stats == nullptr) return null_argument("stats");
  NRT_RETURN_IF_NOT_OPEN();
  return guarded([&]() -> int {
    int status = NRT_FAILURE;
    const std::shared_ptr<Core> core = find_core(vnc, status);
    if (core == nullptr) return status;
    const nrt_vnc_memory_stats_t own{core->bank->used(), core->bank->limit()};
    const size_t bytes = std::min(size, sizeof(own));
    std::memcpy(stats, &own, bytes);
    if (written != nullptr) *written = bytes;
    return NRT_SUCCESS;
  });
}

// --- Tensor sets ---------------------------------------------------------------------------------

NRT_EXPORT NRT_STATUS nrt_allocate_tensor_set(nrt_tensor_set_t** set) {
  if (set == nullptr) return null_argument("set");
  *set = nullptr;
  NRT_RETURN_IF_NOT_OPEN();
  return guarded([&]() -> int {
    *set = new TensorSet;
    return NRT_SUCCESS;
  });
}

NRT_EXPORT void nrt_destroy_tensor_set(nrt_tensor_set_t** set) {
  if (set == nullptr || *set == nullptr) return;
  if (TensorSet* own = checked_set(*set); own != nullptr) {
    own->magic = 0;
    delete own;
  }
  *set = nullptr;
}

NRT_EXPORT NRT_STATUS nrt_add_tensor_to_tensor_set(nrt_tensor_set_t* set, const char* name,
                                                   nrt_tensor_t* tensor) {
  if (name == nullptr) return null_argument("name");
  TensorSet* own = checked_set(set);
  if (own == nullptr) return bad_set();
  if (checked(tensor) == nullptr) return bad_tensor();
  return guarded([&]() -> int {
    own->resolved_for = 0;
    for (TensorSet::Entry& entry : own->entries) {
      if (entry.name == name) {
        entry.tensor = tensor;
        return NRT_SUCCESS;
      }
    }
    own->entries.push_back({name, tensor});
    return NRT_SUCCESS;
  });
}

NRT_EXPORT NRT_STATUS nrt_get_tensor_from_tensor_set(nrt_tensor_set_t* set, const char* name,
                                                     nrt_tensor_t** tensor) {
  if (name == nullptr) return null_argument("name");
  if (tensor == nullptr) return null_argument("tensor");
  TensorSet* own = checked_set(set);
  if (own == nullptr) return bad_set();
  *tensor = own->find(name);
  if (*tensor == nullptr) return fail(NRT_FAILURE, "the set has no tensor ", name);
  return NRT_SUCCESS;
}

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
