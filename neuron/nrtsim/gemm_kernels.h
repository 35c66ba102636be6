#pragma once

#include <cstdint>

// Inner kernels of matrix products, once per instruction set.
namespace neuron::nrtsim {

/// How an operand lies in memory.
enum class Stored : uint8_t { kF32, kBf16, kF16 };

/// What kernels multiply: 32-bit units, each one f32, or two bf16 that are neighbours along k.
enum class Unit : uint8_t { kF32, kPair };

/// c[m][n] = (or +=) a[m][k] * b[k][n], in units.
struct BlockArgs {
  const uint32_t* a;
  int64_t a_step;  // From row to row; along k the step is 1.
  const uint32_t* b;
  int64_t b_step;   // From k to k; along n the step is 1.
  int64_t b_panel;  // From one panel of GemmKernels::panel columns to the next.
  float* c;
  int64_t c_step;
  int64_t m, n, k;  // k in units.
  bool accumulate;
};

/// Copies an operand of `count` rows or columns by k elements into units. by_k: to[k][panel], in
/// panels of GemmKernels::panel columns of `count`, zero-padded; else to[count][step].
struct PackArgs {
  Stored stored;
  Unit unit;
  const void* from;
  int64_t stride, k_stride;
  int64_t count, k;
  uint32_t* to;
  int64_t step;
  bool by_k;
};

/// out[m][n] = x[m][:] * w[n][:], both contiguous along k; x is f32, or bf16 where unit is kPair.
struct RowsArgs {
  const void* x;
  int64_t x_step;
  const void* w;
  int64_t w_step;
  int64_t k, n;
  int m;
  float* out;
  int64_t out_step;
};

/// y[m][n] += x[m][:] * w[:][n], w contiguous along n; x is f32, or bf16 where unit is kPair.
struct ColumnsArgs {
  const void* x;
  int64_t x_step;
  const void* w;
  int64_t w_step;
  int64_t k, n;
  int m;
  float* y;
  int64_t y_step;
};

constexpr int kSkinny = 8;  // Most rows of x in RowsArgs and ColumnsArgs.

struct GemmKernels {
  int64_t panel;
  bool pairs;  // bf16 is multiplied as it is; else all operands are widened to f32 first.
  void (*block)(Unit, const BlockArgs&);
  void (*pack)(const PackArgs&);
  void (*rows)(Stored, const RowsArgs&);
  void (*columns)(Stored, const ColumnsArgs&);
  void (*store)(Stored, const float* from, int64_t count, void* to);
  void (*widen)(Stored, const void* from, int64_t count, float* to);

  Unit unit_of(Stored stored) const {
    return stored == Stored::kBf16 && pairs ? Unit::kPair : Unit::kF32;
  }
};

/// The best kernels for this CPU; nullptr where only the portable loops serve.
const GemmKernels* gemm_kernels();
/// By instruction set, for tests; nullptr where the CPU lacks it.
const GemmKernels* gemm_kernels_avx512_bf16();
const GemmKernels* gemm_kernels_avx512();
const GemmKernels* gemm_kernels_avx2();

}  // namespace neuron::nrtsim
