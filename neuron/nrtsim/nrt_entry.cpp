#include "neuron/nrtsim/nrt_entry.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <unordered_set>

#include "neuron/base/env.h"
#include "neuron/base/error.h"
#include "neuron/nrtsim/queue.h"

// Life cycle and models.

namespace neuron::nrtsim {

NRT_STATUS null_argument(const char* name) {
  return fail(NRT_INVALID, "argument ", name, " is null");
}

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

int check_core(Core& core, faults::Point point) {
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

NRT_STATUS load_model(const void* neff, size_t bytes, int32_t vnc, int32_t vnc_count,
                      Model::Place place, nrt_model_t** model) {
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
        Model::load(core, topology, static_cast<const std::byte*>(neff), bytes, place, status);
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

}  // namespace
}  // namespace neuron::nrtsim

using namespace neuron;          // NOLINT: this file is the C face of these two.
using namespace neuron::nrtsim;  // NOLINT

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
  return load_model(neff, bytes, vnc, vnc_count, {}, model);
}

NRT_EXPORT NRT_STATUS nrt_load_collectives(const void* neff, size_t bytes, int32_t vnc,
                                           int32_t vnc_count, uint32_t device_id,
                                           uint32_t device_count, nrt_model_t** model) {
  if (device_count == 0 || device_id >= device_count) {
    return fail(NRT_INVALID, "device ", device_id, " of ", device_count);
  }
  return load_model(neff, bytes, vnc, vnc_count, {device_id, device_count}, model);
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
}  // extern "C"
