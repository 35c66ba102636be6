#pragma once

#include <cstdint>
#include <optional>

#include "neuron/nrtsim/gemm_kernels.h"
#include "neuron/nrtsim/library.h"

namespace neuron::nrtsim {

/// A matrix of a batch; strides in elements. Its columns are the second dim.
struct GemmOperand {
  Stored stored = Stored::kF32;
  int64_t batch_stride = 0, row_stride = 0, column_stride = 0;
};

/// The product of a batch of f32, bf16 or f16 matrices, summed in f32 and rounded once. Made once
/// per step from shapes alone; run() may be called from several threads at once. How it is cut does
/// not change a bit of the result, so neither does the number of threads.
class Gemm {
 public:
  /// Nothing if the operands or the CPU are of another kind.
  static std::optional<Gemm> plan(const nrtsim_lib_call_t& call, const GemmKernels* kernels);

  void run(const void* a, const void* b, void* c, const nrtsim_lib_context_t& context) const;

  /// Floating-point operations of one run.
  double flops() const;
  /// One of the operands has at most kSkinny rows or columns.
  bool skinny() const { return way_ != Way::kTiles; }

 private:
  enum class Way : uint8_t { kRows, kColumns, kTiles };

  void choose();
  void run_skinny(const char* x, const char* w, char* y, const nrtsim_lib_context_t& context) const;
  void run_tiles(const char* x, const char* w, char* y, const nrtsim_lib_context_t& context) const;
  void skinny_chunk(const char* x, const char* w, char* y, int64_t first, int64_t count) const;
  void tile(const char* x, const char* w, char* y, int64_t row, int64_t rows, int64_t column,
            int64_t columns, const uint32_t* packed) const;
  void pack_operands(const char* x, const char* w, uint32_t* packed,
                     const nrtsim_lib_context_t& context) const;
  void pack_x(const char* x, int64_t row, int64_t rows, int64_t l, uint32_t* to) const;
  void pack_w(const char* w, int64_t column, int64_t columns, int64_t l, uint32_t* to) const;
  int64_t units_at(int64_t l) const;
  void store(const float* from, int64_t step, int64_t rows, int64_t columns, char* y, int64_t row,
             int64_t column) const;

  const GemmKernels* kernels_ = nullptr;
  int64_t batch_ = 0, m_ = 0, n_ = 0, k_ = 0;
  GemmOperand x_, w_, y_;  // x [m, k], w [k, n], y [m, n].
  bool swapped_ = false;   // x is the call's second operand: the result is computed transposed.
  Unit unit_ = Unit::kF32;
  Way way_ = Way::kTiles;
  bool x_in_place_ = false, w_in_place_ = false, y_in_place_ = false;
  int64_t chunk_ = 1;      // Columns of a piece of a skinny product.
  int64_t copy_step_ = 0;  // Elements from row to row of a copied x there.
  int64_t tile_m_ = 1, tile_n_ = 1, k_block_ = 1;
  int64_t x_step_ = 0;   // Units from row to row of a packed x.
  bool shared_ = false;  // Both operands are packed once, before the tiles.
  int64_t grain_ = 1;
};

}  // namespace neuron::nrtsim
