#include <memory>
#include <optional>

#include "neuron/nrtsim/builtin_support.h"
#include "neuron/nrtsim/gemm.h"
#include "neuron/nrtsim/library_table.h"

// neuron.dot: [b, m, k] x [b, k, n] -> [b, m, n], any strides. 16-bit and f32 products accumulate
// in f32, f64 in f64, integers wrap. The result may have another dtype than the operands.
//
// Products of f32, bf16 and f16 run in gemm.cpp. The host program may register "neuron.dot.blas",
// which takes what its BLAS does better: see prefers_blas(). The loops here serve all the rest.
namespace neuron::nrtsim {
namespace {

// A tile of the result is kept while blocks of k pass by.
constexpr int64_t kTileM = 64;
constexpr int64_t kTileN = 128;
constexpr int64_t kTileK = 256;
constexpr int64_t kMicroM = 4;
constexpr int64_t kMicroN = 16;

// c[4][16] += a[k][4] * b[k][16], all packed.
template <typename T>
void micro(const T* a, const T* b, int64_t k, T* c, int64_t c_step) {
  T sum[kMicroM][kMicroN];
  for (int64_t i = 0; i < kMicroM; ++i) {
    for (int64_t j = 0; j < kMicroN; ++j) sum[i][j] = T(0);
  }
  for (int64_t l = 0; l < k; ++l) {
    for (int64_t i = 0; i < kMicroM; ++i) {
      const T left = a[l * kMicroM + i];
      for (int64_t j = 0; j < kMicroN; ++j) {
        sum[i][j] = plus(sum[i][j], times(left, b[l * kMicroN + j]));
      }
    }
  }
  for (int64_t i = 0; i < kMicroM; ++i) {
    for (int64_t j = 0; j < kMicroN; ++j) c[i * c_step + j] = plus(c[i * c_step + j], sum[i][j]);
  }
}

// Packs a [rows, k] block into panels of `width` rows, k-major, padded with zeros.
template <typename T>
void pack(const View& x, int64_t offset, int64_t rows, int64_t row_stride, int64_t k,
          int64_t k_stride, int64_t width, T* to) {
  Chunk<T> line;
  for (int64_t first = 0; first < rows; first += width) {
    const int64_t used = std::min(width, rows - first);
    T* panel = to + first * k;
    if (used < width) std::fill(panel, panel + k * width, T(0));
    if (row_stride == 1) {
      for (int64_t l = 0; l < k; ++l) {
        load_chunk<T>(x.dtype, x.at(offset + first + l * k_stride), 1, used, panel + l * width);
      }
      continue;
    }
    for (int64_t r = 0; r < used; ++r) {
      load_chunk<T>(x.dtype, x.at(offset + (first + r) * row_stride), k_stride, k, line.items);
      for (int64_t l = 0; l < k; ++l) panel[l * width + r] = line.items[l];
    }
  }
}

template <typename T>
struct Tiles {
  alignas(64) T a[kTileM * kTileK];
  alignas(64) T b[kTileN * kTileK];
  alignas(64) T c[kTileM * kTileN];
};
static_assert(kTileK <= kChunk);

template <typename T>
void dot(const Call& call, const View& a, const View& b, const View& y) {
  const int64_t batches = y.sizes[0], m = y.sizes[1], n = y.sizes[2], k = a.sizes[2];
  const int64_t tiles_m = (m + kTileM - 1) / kTileM, tiles_n = (n + kTileN - 1) / kTileN;
  // About 10 us of multiplying.
  const int64_t tile_work = std::min(m, kTileM) * std::min(n, kTileN) * std::max<int64_t>(k, 1);
  const int64_t grain = std::max<int64_t>(1, 200000 / tile_work);
  call.parallel(batches * tiles_m * tiles_n, grain, [&](int64_t begin, int64_t end) {
    const auto tiles = std::make_unique<Tiles<T>>();
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t batch = tile / (tiles_m * tiles_n);
      const int64_t row = tile / tiles_n % tiles_m * kTileM, column = tile % tiles_n * kTileN;
      const int64_t rows = std::min(kTileM, m - row), columns = std::min(kTileN, n - column);
      std::fill(std::begin(tiles->c), std::end(tiles->c), T(0));
      for (int64_t inner = 0; inner < k; inner += kTileK) {
        const int64_t depth = std::min(kTileK, k - inner);
        pack<T>(a, batch * a.strides[0] + row * a.strides[1] + inner * a.strides[2], rows,
                a.strides[1], depth, a.strides[2], kMicroM, tiles->a);
        pack<T>(b, batch * b.strides[0] + column * b.strides[2] + inner * b.strides[1], columns,
                b.strides[2], depth, b.strides[1], kMicroN, tiles->b);
        for (int64_t j = 0; j < columns; j += kMicroN) {
          for (int64_t i = 0; i < rows; i += kMicroM) {
            micro<T>(tiles->a + i * depth, tiles->b + j * depth, depth, tiles->c + i * kTileN + j,
                     kTileN);
          }
        }
      }
      with_compute(y.dtype, [&](auto tag) {
        using U = decltype(tag);
        Chunk<U> line;
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < columns; ++j) {
            line.items[j] = convert<U>(tiles->c[i * kTileN + j]);
          }
          store_chunk<U>(
              y.dtype, line.items, columns,
              y.at(batch * y.strides[0] + (row + i) * y.strides[1] + column * y.strides[2]),
              y.strides[2]);
        }
      });
    }
  });
}

// Packing would cost more than a few products of f32: these are added up in f64 and rounded once.
constexpr int64_t kTinyProducts = 1024;

bool is_tiny(const nrtsim_lib_call_t& call) {
  const nrtsim_lib_tensor_t &a = call.inputs[0], &y = call.outputs[0];
  return static_cast<DType>(a.dtype) == DType::f32 && static_cast<DType>(y.dtype) == DType::f32 &&
         y.sizes[0] * y.sizes[1] * y.sizes[2] * a.sizes[2] <= kTinyProducts;
}

void tiny_dot(const nrtsim_lib_call_t& call, const float* a, const float* b, float* y) {
  const nrtsim_lib_tensor_t &x = call.inputs[0], &w = call.inputs[1], &out = call.outputs[0];
  for (int64_t batch = 0; batch < out.sizes[0]; ++batch) {
    for (int64_t i = 0; i < out.sizes[1]; ++i) {
      for (int64_t j = 0; j < out.sizes[2]; ++j) {
        const float* row = a + batch * x.strides[0] + i * x.strides[1];
        const float* column = b + batch * w.strides[0] + j * w.strides[2];
        double sum = 0;
        for (int64_t l = 0; l < x.sizes[2]; ++l) {
          sum += static_cast<double>(row[l * x.strides[2]]) *
                 static_cast<double>(column[l * w.strides[1]]);
        }
        y[batch * out.strides[0] + i * out.strides[1] + j * out.strides[2]] =
            static_cast<float>(sum);
      }
    }
  }
}

// How one step is computed, by its shapes alone.
struct DotState {
  bool tiny = false;
  std::optional<Gemm> gemm;
  const nrtsim_lib_kernel_t* blas = nullptr;
  void* blas_state = nullptr;
};

bool prefers_blas(const nrtsim_lib_call_t& call, const std::optional<Gemm>& gemm) {
  const auto dtype = static_cast<DType>(call.inputs[0].dtype);
  if (call.inputs[1].dtype != call.inputs[0].dtype ||
      call.outputs[0].dtype != call.inputs[0].dtype) {
    return false;
  }
  switch (dtype) {
    case DType::f64:
    case DType::c64:
    case DType::c128:
      return true;
    case DType::f32:
      // With AVX-512 the own kernels are as fast as MKL's (107 and 102 GF/s at 256 cubed, 92 and
      // 89 at 1024 cubed on one Zen 4 core).
      return !gemm || (gemm_kernels() == gemm_kernels_avx2() && !gemm->skinny() &&
                       gemm->flops() > 1e6 * static_cast<double>(call.outputs[0].sizes[0]));
    default:
      return false;
  }
}

bool fits(const nrtsim_lib_call_t& call) {
  if (call.input_count != 2 || call.output_count != 1) return false;
  const nrtsim_lib_tensor_t &a = call.inputs[0], &b = call.inputs[1], &y = call.outputs[0];
  return a.rank == 3 && b.rank == 3 && y.rank == 3 && a.dtype == b.dtype &&
         a.sizes[0] == y.sizes[0] && b.sizes[0] == y.sizes[0] && a.sizes[1] == y.sizes[1] &&
         b.sizes[2] == y.sizes[2] && a.sizes[2] == b.sizes[1];
}

void* prepare_dot(const nrtsim_lib_call_t* call) {
  auto state = std::make_unique<DotState>();
  if (!fits(*call)) return state.release();  // run_dot() says why.
  state->tiny = is_tiny(*call);
  if (state->tiny) return state.release();
  state->gemm = Gemm::plan(*call, gemm_kernels());
  if (prefers_blas(*call, state->gemm)) state->blas = find_library_kernel("neuron.dot.blas");
  if (state->blas != nullptr && state->blas->prepare != nullptr) {
    state->blas_state = state->blas->prepare(call);
    if (state->blas_state == nullptr) state->blas = nullptr;  // It declines these strides.
  }
  return state.release();
}

void destroy_dot(void* opaque) {
  auto* state = static_cast<DotState*>(opaque);
  if (state->blas_state != nullptr && state->blas->destroy != nullptr) {
    state->blas->destroy(state->blas_state);
  }
  delete state;
}

void run_dot(const Call& call) {
  const View a = call.input(0), b = call.input(1), y = call.output();
  NEURON_CHECK(a.rank() == 3 && b.rank() == 3 && y.rank() == 3 && a.dtype == b.dtype &&
                   a.sizes[0] == y.sizes[0] && b.sizes[0] == y.sizes[0] &&
                   a.sizes[1] == y.sizes[1] && b.sizes[2] == y.sizes[2] && a.sizes[2] == b.sizes[1],
               kInvalid, "operands ", to_string(a.dtype, a.sizes), " and ",
               to_string(b.dtype, b.sizes), " do not give ", to_string(y.dtype, y.sizes));
  if (y.count() == 0) return;
  with_compute(a.dtype, [&](auto tag) { dot<decltype(tag)>(call, a, b, y); });
}

int run_step(void* opaque, const nrtsim_lib_call_t* call, void* const* inputs, void* const* outputs,
             const nrtsim_lib_context_t* context, char* message, size_t message_bytes) {
  const auto* state = static_cast<const DotState*>(opaque);
  if (state != nullptr && state->tiny) {
    tiny_dot(*call, static_cast<const float*>(inputs[0]), static_cast<const float*>(inputs[1]),
             static_cast<float*>(outputs[0]));
    return NRT_SUCCESS;
  }
  if (state != nullptr && state->blas != nullptr) {
    return state->blas->run(state->blas_state, call, inputs, outputs, context, message,
                            message_bytes);
  }
  if (state != nullptr && state->gemm.has_value()) {
    try {
      state->gemm->run(inputs[0], inputs[1], outputs[0], *context);
      return NRT_SUCCESS;
    } catch (const std::exception& error) {
      std::snprintf(message, message_bytes, "%s", error.what());
      return NRT_RESOURCE;
    }
  }
  return builtin_kernel<run_dot>().run(nullptr, call, inputs, outputs, context, message,
                                       message_bytes);
}

}  // namespace

nrtsim_lib_kernel_t dot_kernel() {
  return {sizeof(nrtsim_lib_kernel_t), &prepare_dot, &run_step, &destroy_dot};
}

}  // namespace neuron::nrtsim
