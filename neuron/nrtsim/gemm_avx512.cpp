#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "neuron/base/float_formats.h"
#include "neuron/nrtsim/gemm_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

// AVX-512 kernels; bf16 by dpbf16ps where the CPU has it.
namespace neuron::nrtsim {
namespace {

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2");
}

// g++ warns inside its own header, and of the vectors that local functions return.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wpsabi"
// For all that follows: templates are instantiated at the end of the file.
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c,avx2")

struct V {
  using Vec = __m512;
  using Mask = __mmask16;
  static constexpr int64_t kLanes = 16;
  static constexpr int64_t kPanel = 32;
  static constexpr int kRows = 12;
  static constexpr int kRegisters = 32;
  static Vec zero() { return _mm512_setzero_ps(); }
  static Mask mask(int64_t count) { return static_cast<Mask>(count >= 16 ? -1 : (1 << count) - 1); }
  static Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static Vec load(const float* p, Mask m) { return _mm512_maskz_loadu_ps(m, p); }
  static Vec load_units(const uint32_t* p) { return _mm512_loadu_ps(p); }
  static Vec load_units(const uint32_t* p, Mask m) { return _mm512_maskz_loadu_ps(m, p); }
  static void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
  static void store(float* p, Vec v, Mask m) { _mm512_mask_storeu_ps(p, m, v); }
  static Vec splat(float x) { return _mm512_set1_ps(x); }
  static Vec splat(const uint32_t* p) { return _mm512_set1_ps(std::bit_cast<float>(*p)); }
  static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static float sum(Vec v) { return _mm512_reduce_add_ps(v); }
  static void prefetch(const char* p) { _mm_prefetch(p, _MM_HINT_T0); }
  static void prefetch_l2(const char* p) { _mm_prefetch(p, _MM_HINT_T1); }
  static Vec load_bf16(const void* p) {
    const __m256i narrow = _mm256_loadu_si256(static_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
  }
  static Vec load_f16(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  // By integers: the instruction would flush denormals.
  static void store_bf16(uint16_t* p, Vec v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    up = _mm512_srli_epi32(up, 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    up = _mm512_mask_mov_epi32(up, nan, _mm512_set1_epi32(0x7FC0));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(up));
  }
  static void store_f16(uint16_t* p, Vec v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
};

#include "neuron/nrtsim/gemm_kernels_body.h"

// --- Products of bf16 pairs ----------------------------------------------------------------------

__m512bh as_pairs(__m512 v) { return std::bit_cast<__m512bh>(v); }
__m512bh as_pairs(__m512i v) { return std::bit_cast<__m512bh>(v); }
__m512 dot_pairs(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, as_pairs(a), as_pairs(b));
}

struct MultiplyPairs {
  static __m512 multiply_add(const uint32_t* left, __m512 right, __m512 sum) {
    return _mm512_dpbf16_ps(sum, as_pairs(_mm512_set1_epi32(static_cast<int>(*left))),
                            as_pairs(right));
  }
};

void block_any(Unit unit, const BlockArgs& x) {
  unit == Unit::kPair ? block_of<MultiplyPairs>(x) : block_of<MultiplyF32>(x);
}

__mmask32 mask32(int64_t count) {
  return count >= 32 ? ~__mmask32{0} : (__mmask32{1} << count) - 1;
}

template <int kM, int kW>
void pair_rows(const RowsArgs& a, int64_t n) {
  constexpr int kSums = kM == 1 ? 4 : 1;
  __m512 sum[kW][kM][kSums];
  NEURON_UNROLL
  for (int j = 0; j < kW; ++j) {
    NEURON_UNROLL
    for (int i = 0; i < kM; ++i) {
      NEURON_UNROLL
      for (int u = 0; u < kSums; ++u) sum[j][i][u] = _mm512_setzero_ps();
    }
  }
  const auto* x = static_cast<const uint16_t*>(a.x);
  const auto* w = static_cast<const uint16_t*>(a.w) + n * a.w_step;
  int64_t l = 0;
  for (; l + 32 * kSums <= a.k; l += 32 * kSums) {
    if constexpr (kM == 1) {
      V::prefetch(reinterpret_cast<const char*>(w + l) + 8192);
      V::prefetch(reinterpret_cast<const char*>(w + l) + 8192 + 128);
    }
    NEURON_UNROLL
    for (int u = 0; u < kSums; ++u) {
      __m512i weight[kW];
      NEURON_UNROLL
      for (int j = 0; j < kW; ++j) {
        weight[j] = _mm512_loadu_si512(w + j * a.w_step + l + 32 * u);
      }
      NEURON_UNROLL
      for (int i = 0; i < kM; ++i) {
        const __m512i left = _mm512_loadu_si512(x + i * a.x_step + l + 32 * u);
        NEURON_UNROLL
        for (int j = 0; j < kW; ++j) sum[j][i][u] = dot_pairs(sum[j][i][u], left, weight[j]);
      }
    }
  }
  for (; l < a.k; l += 32) {
    const __mmask32 mask = mask32(a.k - l);
    NEURON_UNROLL
    for (int j = 0; j < kW; ++j) {
      const __m512i weight = _mm512_maskz_loadu_epi16(mask, w + j * a.w_step + l);
      NEURON_UNROLL
      for (int i = 0; i < kM; ++i) {
        sum[j][i][0] =
            dot_pairs(sum[j][i][0], _mm512_maskz_loadu_epi16(mask, x + i * a.x_step + l), weight);
      }
    }
  }
  NEURON_UNROLL
  for (int j = 0; j < kW; ++j) {
    NEURON_UNROLL
    for (int i = 0; i < kM; ++i) {
      __m512 total = sum[j][i][0];
      for (int u = 1; u < kSums; ++u) total = _mm512_add_ps(total, sum[j][i][u]);
      a.out[i * a.out_step + n + j] = _mm512_reduce_add_ps(total);
    }
  }
}

void rows_pairs(Stored stored, const RowsArgs& a) {
  if (stored != Stored::kBf16) return rows_any(stored, a);
  with_rows(a.m, [&](auto m) {
    constexpr int kM = decltype(m)::value;
    int64_t n = 0;
    if constexpr (kM > 1) {
      constexpr int kW = rows_at_once(kM);
      for (; n + kW <= a.n; n += kW) pair_rows<kM, kW>(a, n);
    }
    for (; n < a.n; ++n) pair_rows<kM, 1>(a, n);
  });
}

alignas(64) constexpr uint16_t kInterleaveLow[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                     37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                     11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
alignas(64) constexpr uint16_t kInterleaveHigh[32] = {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21,
                                                      53, 22, 54, 23, 55, 24, 56, 25, 57, 26, 58,
                                                      27, 59, 28, 60, 29, 61, 30, 62, 31, 63};

// Rows l to l + 2 * kK of w; `rows` of them exist (the last may be missing).
template <int kM, int kK>
void pair_columns(const ColumnsArgs& a, int64_t l, int64_t rows) {
  const __m512i low = _mm512_load_si512(kInterleaveLow);
  const __m512i high = _mm512_load_si512(kInterleaveHigh);
  const auto* x = static_cast<const uint16_t*>(a.x) + l;
  const auto* w = static_cast<const uint16_t*>(a.w) + l * a.w_step;
  uint32_t left[kM][kK];
  NEURON_UNROLL
  for (int i = 0; i < kM; ++i) {
    NEURON_UNROLL
    for (int u = 0; u < kK; ++u) {
      const uint16_t* at = x + i * a.x_step + 2 * u;
      left[i][u] = at[0] | (2 * u + 1 < rows ? uint32_t{at[1]} << 16 : 0u);
    }
  }
  for (int64_t n = 0; n < a.n; n += 32) {
    const __mmask32 mask = mask32(a.n - n);
    const auto mask_low = static_cast<__mmask16>(mask);
    const auto mask_high = static_cast<__mmask16>(mask >> 16);
    __m512i weight[kK][2];
    NEURON_UNROLL
    for (int u = 0; u < kK; ++u) {
      const uint16_t* at = w + 2 * u * a.w_step + n;
      const __m512i first = _mm512_maskz_loadu_epi16(mask, at);
      const __m512i second =
          2 * u + 1 < rows ? _mm512_maskz_loadu_epi16(mask, at + a.w_step) : _mm512_setzero_si512();
      V::prefetch_l2(reinterpret_cast<const char*>(at + 2 * kK * a.w_step));
      V::prefetch_l2(reinterpret_cast<const char*>(at + (2 * kK + 1) * a.w_step));
      weight[u][0] = _mm512_permutex2var_epi16(first, low, second);
      weight[u][1] = _mm512_permutex2var_epi16(first, high, second);
    }
    NEURON_UNROLL
    for (int i = 0; i < kM; ++i) {
      float* y = a.y + i * a.y_step + n;
      __m512 sum_low = _mm512_maskz_loadu_ps(mask_low, y);
      __m512 sum_high = _mm512_maskz_loadu_ps(mask_high, y + 16);
      NEURON_UNROLL
      for (int u = 0; u < kK; ++u) {
        const __m512i both = _mm512_set1_epi32(static_cast<int>(left[i][u]));
        sum_low = dot_pairs(sum_low, both, weight[u][0]);
        sum_high = dot_pairs(sum_high, both, weight[u][1]);
      }
      _mm512_mask_storeu_ps(y, mask_low, sum_low);
      _mm512_mask_storeu_ps(y + 16, mask_high, sum_high);
    }
  }
}

void columns_pairs(Stored stored, const ColumnsArgs& a) {
  if (stored != Stored::kBf16) return columns_any(stored, a);
  with_rows(a.m, [&](auto m) {
    constexpr int kM = decltype(m)::value;
    int64_t l = 0;
    for (; l + 8 <= a.k; l += 8) pair_columns<kM, 4>(a, l, 8);
    for (; l < a.k; l += 2) pair_columns<kM, 1>(a, l, a.k - l);
  });
}

// --- Packing -------------------------------------------------------------------------------------

// Sixteen vectors of sixteen units, transposed.
void transpose(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xDD);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xDD);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xDD);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xDD);
  }
}

// Up to sixteen units along k, from elements that are neighbours along k.
template <Stored kStored, Unit kUnit>
__m512i along_k(const char* from, int64_t elements) {
  if constexpr (kUnit == Unit::kPair) {
    return _mm512_maskz_loadu_epi16(mask32(elements), from);
  } else if constexpr (kStored == Stored::kF32) {
    return _mm512_maskz_loadu_epi32(V::mask(elements), from);
  } else {
    const __m256i narrow = _mm256_maskz_loadu_epi16(V::mask(elements), from);
    if constexpr (kStored == Stored::kF16) return _mm512_castps_si512(_mm512_cvtph_ps(narrow));
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16);
  }
}

// One unit of up to sixteen rows or columns that are neighbours; the k's of a pair lie k_stride
// bytes apart, and there is no second one at the odd end.
template <Stored kStored, Unit kUnit>
__m512i along_free(const char* from, int64_t k_stride, int64_t count, bool second) {
  if constexpr (kUnit == Unit::kPair) {
    const __mmask16 mask = V::mask(count);
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from));
    if (!second) return low;
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from + k_stride));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
  } else {
    return along_k<kStored, kUnit>(from, count);
  }
}

template <Stored kStored, Unit kUnit>
void pack_of(const PackArgs& x) {
  constexpr int64_t kPer = kUnit == Unit::kPair ? 2 : 1;  // Elements of a unit.
  constexpr int64_t kSize = kBytes<kStored>;
  const int64_t units = (x.k + kPer - 1) / kPer;
  const auto* from = static_cast<const char*>(x.from);
  const int64_t stride = x.stride * kSize, k_stride = x.k_stride * kSize;
  if (x.k_stride == 1 || x.k == 1) {
    if (!x.by_k) {
      for (int64_t i = 0; i < x.count; ++i) {
        for (int64_t l = 0; l < units; l += 16) {
          const __m512i v =
              along_k<kStored, kUnit>(from + i * stride + l * kPer * kSize, x.k - l * kPer);
          _mm512_mask_storeu_epi32(x.to + i * x.step + l, V::mask(units - l), v);
        }
      }
      return;
    }
    for (int64_t first = 0; first < x.count; first += V::kPanel) {
      uint32_t* panel = x.to + first * units;
      for (int64_t half = 0; half < V::kPanel; half += 16) {
        const int64_t used = std::clamp<int64_t>(x.count - first - half, 0, 16);
        for (int64_t l = 0; l < units; l += 16) {
          __m512i r[16];
          for (int64_t i = 0; i < 16; ++i) {
            r[i] = i < used
                       ? along_k<kStored, kUnit>(
                             from + (first + half + i) * stride + l * kPer * kSize, x.k - l * kPer)
                       : _mm512_setzero_si512();
          }
          transpose(r);
          const int64_t rows = std::min<int64_t>(16, units - l);
          for (int64_t i = 0; i < rows; ++i) {
            _mm512_storeu_si512(panel + (l + i) * V::kPanel + half, r[i]);
          }
        }
      }
    }
    return;
  }
  if (x.stride == 1 || x.count == 1) {
    if (x.by_k) {
      for (int64_t first = 0; first < x.count; first += V::kPanel) {
        uint32_t* panel = x.to + first * units;
        const int64_t used = std::min<int64_t>(x.count - first, V::kPanel);
        for (int64_t l = 0; l < units; ++l) {
          const char* at = from + first * kSize + l * kPer * k_stride;
          const bool second = (l + 1) * kPer <= x.k;
          _mm512_storeu_si512(panel + l * V::kPanel,
                              along_free<kStored, kUnit>(at, k_stride, used, second));
          const int64_t rest = std::max<int64_t>(used - 16, 0);
          _mm512_storeu_si512(panel + l * V::kPanel + 16,
                              along_free<kStored, kUnit>(at + 16 * kSize, k_stride, rest, second));
        }
      }
      return;
    }
    for (int64_t i = 0; i < x.count; i += 16) {
      const int64_t used = std::min<int64_t>(16, x.count - i);
      for (int64_t l = 0; l < units; l += 16) {
        const int64_t columns = std::min<int64_t>(16, units - l);
        __m512i r[16];
        for (int64_t j = 0; j < 16; ++j) {
          r[j] = j < columns
                     ? along_free<kStored, kUnit>(from + i * kSize + (l + j) * kPer * k_stride,
                                                  k_stride, used, (l + j + 1) * kPer <= x.k)
                     : _mm512_setzero_si512();
        }
        transpose(r);
        for (int64_t j = 0; j < used; ++j) {
          _mm512_mask_storeu_epi32(x.to + (i + j) * x.step + l, V::mask(columns), r[j]);
        }
      }
    }
    return;
  }
  pack_scalar<kStored, kUnit>(x, units);
}

void pack_any(const PackArgs& x) {
  switch (x.stored) {
    case Stored::kF32:
      return pack_of<Stored::kF32, Unit::kF32>(x);
    case Stored::kF16:
      return pack_of<Stored::kF16, Unit::kF32>(x);
    case Stored::kBf16:
      return x.unit == Unit::kPair ? pack_of<Stored::kBf16, Unit::kPair>(x)
                                   : pack_of<Stored::kBf16, Unit::kF32>(x);
  }
}

constexpr GemmKernels kPairs = {V::kPanel,  true,          block_any, pack_any,
                                rows_pairs, columns_pairs, store_any, widen_any};
constexpr GemmKernels kWide = {V::kPanel, false,       block_any, pack_any,
                               rows_any,  columns_any, store_any, widen_any};

}  // namespace

const GemmKernels* gemm_kernels_avx512_bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16") ? &kPairs : nullptr;
}
const GemmKernels* gemm_kernels_avx512() { return has_avx512() ? &kWide : nullptr; }

}  // namespace neuron::nrtsim

#else
namespace neuron::nrtsim {
const GemmKernels* gemm_kernels_avx512_bf16() { return nullptr; }
const GemmKernels* gemm_kernels_avx512() { return nullptr; }
}  // namespace neuron::nrtsim
#endif
