#include "neuron/nrt/handles.h"

#include "neuron/base/error.h"
#include "neuron/nrt/loader.h"
#include "neuron/nrt/status.h"

namespace neuron::nrt {

Instance::Instance() {
  NRT_CHECK(api().nrt_init(NRT_FRAMEWORK_TYPE_PYTORCH, "2.0", "1.0"), "opening the Neuron runtime ",
            api().path);
}

Instance::~Instance() { api().nrt_close(); }

int visible_core_count() {
  uint32_t count = 0;
  NRT_CHECK(api().nrt_get_visible_vnc_count(&count), "counting visible NeuronCores");
  return static_cast<int>(count);
}

int total_core_count() {
  uint32_t count = 0;
  NRT_CHECK(api().nrt_get_total_vnc_count(&count), "counting NeuronCores");
  return static_cast<int>(count);
}

InstanceInfo instance_info() {
  nrt_instance_info_t info{};
  NRT_CHECK(api().nrt_get_instance_info(&info, sizeof(info)), "reading the instance type");
  info.arch_name[sizeof(info.arch_name) - 1] = '\0';
  return {info.family, info.arch_name};
}

std::string version() {
  nrt_version_t version{};
  NRT_CHECK(api().nrt_get_version(&version, sizeof(version)), "reading the runtime's version");
  version.rt_detail[sizeof(version.rt_detail) - 1] = '\0';
  return internal::join(version.rt_major, ".", version.rt_minor, ".", version.rt_patch, ".",
                        version.rt_maintenance, " ", version.rt_detail);
}

MemoryStats memory_stats(int core) {
  const Api& library = api();
  if (library.nrt_get_vnc_memory_stats == nullptr) return {};
  nrt_vnc_memory_stats_t stats{};
  size_t written = 0;
  NRT_CHECK(library.nrt_get_vnc_memory_stats(static_cast<uint32_t>(core), &stats, sizeof(stats),
                                             &written),
            "reading memory statistics of core ", core);
  return {stats.bytes_used, stats.bytes_limit};
}

Tensor Tensor::allocate(int core, size_t bytes, const char* name) {
  nrt_tensor_t* handle = nullptr;
  NRT_CHECK(api().nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, core, bytes, name, &handle),
            "allocating ", Bytes(bytes), " of HBM on core ", core);
  return Tensor(handle);
}

Tensor Tensor::allocate_host(size_t bytes, const char* name) {
  nrt_tensor_t* handle = nullptr;
  NRT_CHECK(api().nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_HOST, 0, bytes, name, &handle),
            "allocating ", Bytes(bytes), " of host memory");
  return Tensor(handle);
}

Tensor Tensor::empty(const char* name) {
  nrt_tensor_t* handle = nullptr;
  NRT_CHECK(api().nrt_tensor_allocate_empty(name, &handle), "making a tensor handle");
  return Tensor(handle);
}

Tensor Tensor::slice(size_t offset, size_t bytes, const char* name) const {
  nrt_tensor_t* handle = nullptr;
  NRT_CHECK(api().nrt_tensor_allocate_slice(handle_, offset, bytes, name, &handle), "slicing ",
            bytes, " bytes at ", offset, " of a tensor of ", size(), " bytes");
  return Tensor(handle);
}

Tensor::~Tensor() {
  if (handle_ != nullptr) api().nrt_tensor_free(&handle_);
}

size_t Tensor::size() const { return handle_ == nullptr ? 0 : api().nrt_tensor_get_size(handle_); }
void* Tensor::address() const {
  return handle_ == nullptr ? nullptr : api().nrt_tensor_get_va(handle_);
}

void Tensor::attach(void* buffer, size_t bytes) {
  NRT_CHECK(api().nrt_tensor_attach_buffer(handle_, buffer, bytes), "attaching a buffer of ", bytes,
            " bytes to a tensor");
}

void Tensor::read(void* buffer, size_t offset, size_t bytes) const {
  NRT_CHECK(api().nrt_tensor_read(handle_, buffer, offset, bytes), "reading ", bytes, " bytes at ",
            offset, " of a tensor of ", size(), " bytes");
}

void Tensor::write(const void* buffer, size_t offset, size_t bytes) {
  NRT_CHECK(api().nrt_tensor_write(handle_, buffer, offset, bytes), "writing ", bytes, " bytes at ",
            offset, " of a tensor of ", size(), " bytes");
}

void Tensor::copy_from(const Tensor& source, size_t source_offset, size_t offset, size_t bytes) {
  NRT_CHECK(api().nrt_tensor_copy(source.handle_, source_offset, handle_, offset, bytes),
            "copying ", bytes, " bytes from ", source_offset, " of ", source.size(), " to ", offset,
            " of ", size(), " bytes");
}

void Tensor::fill(size_t offset, int value, size_t bytes) {
  const Api& library = api();
  NEURON_CHECK(library.nrt_tensor_memset != nullptr, kUnsupported, library.path,
               " has no nrt_tensor_memset");
  NRT_CHECK(library.nrt_tensor_memset(handle_, offset, value, bytes), "filling ", bytes,
            " bytes at ", offset, " of a tensor of ", size(), " bytes");
}

TensorSet::TensorSet() {
  NRT_CHECK(api().nrt_allocate_tensor_set(&handle_), "making a tensor set");
}

TensorSet::~TensorSet() {
  if (handle_ != nullptr) api().nrt_destroy_tensor_set(&handle_);
}

void TensorSet::add(const char* name, const Tensor& tensor) {
  NRT_CHECK(api().nrt_add_tensor_to_tensor_set(handle_, name, tensor.get()), "adding tensor ", name,
            " to a set");
}

LoadedModel LoadedModel::load(std::span<const std::byte> neff, int core) {
  nrt_model_t* handle = nullptr;
  NRT_CHECK(api().nrt_load(neff.data(), neff.size(), core, 1, &handle), "loading a NEFF of ",
            neff.size(), " bytes on core ", core);
  return LoadedModel(handle);
}

LoadedModel LoadedModel::load_collectives(std::span<const std::byte> neff, int core, int id,
                                          int count) {
  NEURON_CHECK(api().nrt_load_collectives != nullptr, kUnsupported, api().path,
               " has no nrt_load_collectives: it cannot run programs with collectives");
  nrt_model_t* handle = nullptr;
  NRT_CHECK(api().nrt_load_collectives(neff.data(), neff.size(), core, 1, static_cast<uint32_t>(id),
                                       static_cast<uint32_t>(count), &handle),
            "loading a NEFF of ", neff.size(), " bytes with collectives on core ", core,
            " as device ", id, " of ", count);
  return LoadedModel(handle);
}

LoadedModel::~LoadedModel() {
  if (handle_ != nullptr) api().nrt_unload(handle_);
}

NRT_STATUS LoadedModel::try_execute(const TensorSet& inputs,
                                    const TensorSet& outputs) const noexcept {
  return api().nrt_execute(handle_, inputs.get(), outputs.get());
}

void LoadedModel::execute(const TensorSet& inputs, const TensorSet& outputs) const {
  NRT_CHECK(try_execute(inputs, outputs), "executing a program");
}

std::vector<LoadedModel::Port> LoadedModel::ports() const {
  const Api& library = api();
  NEURON_CHECK(
      library.nrt_get_model_tensor_info != nullptr && library.nrt_free_model_tensor_info != nullptr,
      kUnsupported, library.path, " has no nrt_get_model_tensor_info");
  nrt_tensor_info_array_t* info = nullptr;
  NRT_CHECK(library.nrt_get_model_tensor_info(handle_, &info), "reading a model's tensors");
  std::vector<Port> ports;
  for (uint64_t i = 0; i < info->tensor_count; ++i) {
    const nrt_tensor_info_t& row = info->tensor_array[i];
    ports.push_back({row.name, row.usage == NRT_TENSOR_USAGE_OUTPUT, row.size, row.dtype,
                     std::vector<uint32_t>(row.shape, row.shape + row.ndim)});
  }
  library.nrt_free_model_tensor_info(info);
  return ports;
}

}  // namespace neuron::nrt
