#include "neuron/nrt/conformance/suite.h"

#include <cstdlib>

#include "neuron/base/env.h"
#include "neuron/neff/program.h"

namespace neuron::nrt::conformance {
namespace {

// Numbers of the op table, for the simulator's built-in kernels.
enum class Op : int64_t {
#define NEURON_OP(enumerator, name, operands, category) enumerator,
#include "neuron/hlo/ops.def"
#undef NEURON_OP
};

using Kind = neff::BufferRef::Kind;

neff::TensorInfo info(DType dtype, int64_t count) {
  return {dtype, {count}, count * static_cast<int64_t>(size_of(dtype)), -1};
}
neff::LibraryTensor tensor(Kind kind, uint32_t index, DType dtype, int64_t count) {
  return {{kind, index, 0}, dtype, {count}, {1}};
}

}  // namespace

const Api& library() {
  static const Api& api = [&]() -> const Api& {
    const std::string& named = env::nrt_library();
    return *load_library(named.empty() ? NRT_CONFORMANCE_LIBRARY : named).release();
  }();
  return api;
}

std::vector<std::byte> add_program(int64_t count) {
  if (!library().is_simulator) return {};
  neff::Program program;
  program.parameters = {info(DType::f32, count), info(DType::f32, count)};
  program.results = {info(DType::f32, count)};
  neff::Step step;
  step.kind = neff::Step::Kind::Library;
  step.library = {"neuron.binary",
                  {tensor(Kind::Parameter, 0, DType::f32, count),
                   tensor(Kind::Parameter, 1, DType::f32, count)},
                  {tensor(Kind::Result, 0, DType::f32, count)},
                  {static_cast<int64_t>(Op::Add)},
                  {}};
  program.steps = {step};
  return neff::write_neff(program);
}

std::vector<std::byte> gather_program() {
  if (!library().is_simulator) return {};
  neff::Program program;
  program.parameters = {info(DType::f32, 4), info(DType::i64, 3)};
  program.results = {info(DType::f32, 3)};
  neff::Step step;
  step.kind = neff::Step::Kind::Library;
  step.library = {
      "neuron.gather",
      {tensor(Kind::Parameter, 0, DType::f32, 4), tensor(Kind::Parameter, 1, DType::i64, 3)},
      {tensor(Kind::Result, 0, DType::f32, 3)},
      {0, 0, 0},
      {}};
  program.steps = {step};
  return neff::write_neff(program);
}

std::string detail() {
  const Api& api = library();
  return api.nrtsim_last_error == nullptr ? "" : api.nrtsim_last_error();
}

void Opened::SetUp() { ASSERT_NRT(nrt.nrt_init(NRT_FRAMEWORK_TYPE_NO_FW, "1.0", "1.0")); }

void Opened::TearDown() {
  for (nrt_tensor_set_t*& set : sets_) nrt.nrt_destroy_tensor_set(&set);
  for (nrt_tensor_t*& tensor : tensors_) nrt.nrt_tensor_free(&tensor);
  for (nrt_model_t* model : models_) nrt.nrt_unload(model);
  nrt.nrt_close();
}

nrt_tensor_t* Opened::device_tensor(size_t bytes, int core) {
  nrt_tensor_t* tensor = nullptr;
  EXPECT_NRT(nrt.nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, core, bytes, "t", &tensor),
             NRT_SUCCESS);
  tensors_.push_back(tensor);
  return tensor;
}

nrt_tensor_set_t* Opened::make_set(std::vector<std::pair<const char*, nrt_tensor_t*>> tensors) {
  nrt_tensor_set_t* set = nullptr;
  EXPECT_NRT(nrt.nrt_allocate_tensor_set(&set), NRT_SUCCESS);
  for (auto& [name, tensor] : tensors) {
    EXPECT_NRT(nrt.nrt_add_tensor_to_tensor_set(set, name, tensor), NRT_SUCCESS);
  }
  sets_.push_back(set);
  return set;
}

nrt_model_t* Opened::load_add(int64_t count) {
  const std::vector<std::byte> neff = add_program(count);
  if (neff.empty()) return nullptr;
  nrt_model_t* model = nullptr;
  EXPECT_NRT(nrt.nrt_load(neff.data(), neff.size(), 0, 1, &model), NRT_SUCCESS);
  models_.push_back(model);
  return model;
}

}  // namespace neuron::nrt::conformance
