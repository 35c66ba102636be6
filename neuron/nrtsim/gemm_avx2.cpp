#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "neuron/base/float_formats.h"
#include "neuron/nrtsim/gemm_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

// AVX2 kernels: everything is multiplied in f32.
namespace neuron::nrtsim {
namespace {

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

#pragma GCC diagnostic ignored "-Wpsabi"
// For all that follows: templates are instantiated at the end of the file.
#pragma GCC target("avx2,fma,f16c")

struct V {
  using Vec = __m256;
  using Mask = __m256i;
  static constexpr int64_t kLanes = 8;
  static constexpr int64_t kPanel = 16;
  static constexpr int kRows = 6;
  static constexpr int kRegisters = 16;
  static Vec zero() { return _mm256_setzero_ps(); }
  static Mask mask(int64_t count) {
    return _mm256_cmpgt_epi32(
        _mm256_set1_epi32(static_cast<int>(std::clamp<int64_t>(count, 0, kLanes))),
        _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Vec load(const float* p) { return _mm256_loadu_ps(p); }
  static Vec load(const float* p, Mask m) { return _mm256_maskload_ps(p, m); }
  static Vec load_units(const uint32_t* p) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  }
  static Vec load_units(const uint32_t* p, Mask m) {
    return _mm256_maskload_ps(reinterpret_cast<const float*>(p), m);
  }
  static void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
  static void store(float* p, Vec v, Mask m) { _mm256_maskstore_ps(p, m, v); }
  static Vec splat(float x) { return _mm256_set1_ps(x); }
  static Vec splat(const uint32_t* p) { return _mm256_set1_ps(std::bit_cast<float>(*p)); }
  static Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static float sum(Vec v) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
  static void prefetch(const char* p) { _mm_prefetch(p, _MM_HINT_T0); }
  static void prefetch_l2(const char* p) { _mm_prefetch(p, _MM_HINT_T1); }
  static Vec load_bf16(const void* p) {
    const __m128i narrow = _mm_loadu_si128(static_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
  }
  static Vec load_f16(const void* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static void store_bf16(uint16_t* p, Vec v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    up = _mm256_srli_epi32(up, 16);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    up = _mm256_blendv_epi8(up, _mm256_set1_epi32(0x7FC0), nan);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(up, up), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
  static void store_f16(uint16_t* p, Vec v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
};

#include "neuron/nrtsim/gemm_kernels_body.h"

void block_any(Unit, const BlockArgs& x) { block_of<MultiplyF32>(x); }

template <Stored kStored>
void pack_of(const PackArgs& x) {
  constexpr int64_t kSize = kBytes<kStored>;
  const auto* from = static_cast<const char*>(x.from);
  auto* to = reinterpret_cast<float*>(x.to);
  if (!x.by_k && x.k_stride == 1) {
    for (int64_t i = 0; i < x.count; ++i) {
      widen_any(kStored, from + i * x.stride * kSize, x.k, to + i * x.step);
    }
  } else if (x.by_k && x.stride == 1 && x.count % V::kPanel == 0) {
    for (int64_t first = 0; first < x.count; first += V::kPanel) {
      for (int64_t l = 0; l < x.k; ++l) {
        widen_any(kStored, from + (first + l * x.k_stride) * kSize, V::kPanel,
                  to + first * x.k + l * V::kPanel);
      }
    }
  } else {
    pack_scalar<kStored, Unit::kF32>(x, x.k);
  }
}

void pack_any(const PackArgs& x) {
  switch (x.stored) {
    case Stored::kF32:
      return pack_of<Stored::kF32>(x);
    case Stored::kF16:
      return pack_of<Stored::kF16>(x);
    case Stored::kBf16:
      return pack_of<Stored::kBf16>(x);
  }
}

constexpr GemmKernels kKernels = {V::kPanel, false,       block_any, pack_any,
                                  rows_any,  columns_any, store_any, widen_any};

}  // namespace

const GemmKernels* gemm_kernels_avx2() { return has_avx2() ? &kKernels : nullptr; }

}  // namespace neuron::nrtsim

#else
namespace neuron::nrtsim {
const GemmKernels* gemm_kernels_avx2() { return nullptr; }
}  // namespace neuron::nrtsim
#endif
