#include "neuron/aten/library_kernels.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/sort.h>
#include <dlfcn.h>

#include <new>

#include "neuron/aten/tensor.h"
#include "neuron/runtime/runtime.h"

namespace neuron::aten {
namespace library {
namespace {

// OpenMP and MKL are inside libtorch_cpu or beside it; neither is a link-time dependency.
struct ThreadSettings {
  int (*omp_get_max_threads)() = nullptr;
  void (*omp_set_num_threads)(int) = nullptr;
  int (*mkl_set_num_threads_local)(int) = nullptr;

  ThreadSettings() {
    const auto find = [](const char* name) { return dlsym(RTLD_DEFAULT, name); };
    omp_get_max_threads = reinterpret_cast<int (*)()>(find("omp_get_max_threads"));
    omp_set_num_threads = reinterpret_cast<void (*)(int)>(find("omp_set_num_threads"));
    mkl_set_num_threads_local = reinterpret_cast<int (*)(int)>(find("MKL_Set_Num_Threads_Local"));
  }
};

const ThreadSettings& settings() {
  static const ThreadSettings found;
  return found;
}

}  // namespace

struct OneThread::Guards {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
};

OneThread::OneThread() {
  // The first such call of a thread sets its OpenMP thread count; let that happen before ours.
  thread_local const int initialised = at::get_num_threads();
  (void)initialised;
  const ThreadSettings& found = settings();
  if (found.omp_get_max_threads != nullptr && found.omp_set_num_threads != nullptr) {
    openmp_ = found.omp_get_max_threads();
    if (openmp_ != 1) found.omp_set_num_threads(1);
  }
  if (found.mkl_set_num_threads_local != nullptr) mkl_ = found.mkl_set_num_threads_local(1);
  static_assert(sizeof(Guards) <= sizeof(guards_));
  new (guards_) Guards();
}

OneThread::~OneThread() {
  std::launder(reinterpret_cast<Guards*>(guards_))->~Guards();
  const ThreadSettings& found = settings();
  if (openmp_ > 1) found.omp_set_num_threads(openmp_);
  if (found.mkl_set_num_threads_local != nullptr) found.mkl_set_num_threads_local(mkl_);
}

at::Tensor tensor_of(const nrtsim_lib_tensor_t& description, void* data, at::IntArrayRef sizes) {
  return at::from_blob(
      data, sizes, {description.strides, description.rank},
      at::TensorOptions().dtype(scalar_type_of(static_cast<DType>(description.dtype))));
}

at::Tensor tensor_of(const nrtsim_lib_tensor_t& description, void* data) {
  return tensor_of(description, data, {description.sizes, description.rank});
}

void register_kernel(const char* name, const nrtsim_lib_kernel_t& kernel) {
  // The runtime keeps the pointer until it opens the NRT library.
  runtime::register_library_kernel(name, new nrtsim_lib_kernel_t(kernel));
}

namespace {

// Ints: dim, descending + 2 * any order. Results: values, indices.
void sort(void*, const Run& run) {
  const at::Tensor x = run.input(0);
  const int64_t dim = run.call->ints[0];
  const bool descending = (run.call->ints[1] & 1) != 0;
  // Equal values in the CPU's own order, where no order is asked for.
  const bool stable = (run.call->ints[1] & 2) == 0;
  if (x.numel() == 0) return;
  // Rows are independent: pieces of the outermost other dim.
  int64_t along = 0;
  while (along < x.dim() && (along == dim || x.size(along) == 1)) ++along;
  const bool both = run.call->output_count > 1;
  const auto piece = [&](const at::Tensor& from, at::Tensor values, at::Tensor indices) {
    auto [sorted, order] = at::sort(from, std::optional<bool>(stable), dim, descending);
    values.copy_(sorted);
    if (both) indices.copy_(order);
  };
  if (along >= x.dim()) {
    piece(x, run.output(0), both ? run.output(1) : at::Tensor());
    return;
  }
  const int64_t per_slice = x.numel() / x.size(along);
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(per_slice, 1));
  run.parallel_for(x.size(along), grain, [&](int64_t begin, int64_t end) {
    piece(run.input(0).narrow(along, begin, end - begin),
          run.output(0).narrow(along, begin, end - begin),
          both ? run.output(1).narrow(along, begin, end - begin) : at::Tensor());
  });
}

}  // namespace
}  // namespace library

void install_library_kernels() {
  library::register_aten();
  library::register_dot();
  library::register_convolution();
  library::register_attention();
  library::register_kernel("neuron.sort", {sizeof(nrtsim_lib_kernel_t), nullptr,
                                           &library::run_kernel<library::sort>, nullptr});
}

}  // namespace neuron::aten
