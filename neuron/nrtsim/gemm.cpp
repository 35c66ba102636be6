#include "neuron/nrtsim/gemm.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "neuron/base/dtype.h"
#include "neuron/base/float_formats.h"

namespace neuron::nrtsim {
namespace {

constexpr int64_t kBlockUnits = 256;   // Along k, of a packed block.
constexpr int64_t kLongestRows = 264;  // Of a tile.
constexpr int64_t kLongestColumns = 512;
constexpr int64_t kMostSharedUnits = 8 << 20;
constexpr double kPieceNs = 10000;
constexpr double kParallelNs = 15000;

int64_t bytes_of(Stored stored) { return stored == Stored::kF32 ? 4 : 2; }

std::optional<Stored> stored_of(uint32_t dtype) {
  switch (static_cast<DType>(dtype)) {
    case DType::f32:
      return Stored::kF32;
    case DType::bf16:
      return Stored::kBf16;
    case DType::f16:
      return Stored::kF16;
    default:
      return std::nullopt;
  }
}

int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// Memory of one thread, kept from call to call; 64-byte aligned.
class Scratch {
 public:
  float* take(int64_t floats) {
    if (floats > size_) {
      data_.reset(static_cast<float*>(
          ::operator new(static_cast<size_t>(floats) * 4, std::align_val_t{64})));
      size_ = floats;
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(float* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  std::unique_ptr<float, Free> data_;
  int64_t size_ = 0;
};

template <typename Body>
void parallel(const nrtsim_lib_context_t& context, int64_t count, int64_t grain, Body&& body) {
  if (count <= grain) {
    body(int64_t{0}, count);
    return;
  }
  context.parallel_for(
      [](void* user, int64_t begin, int64_t end) {
        (*static_cast<std::remove_reference_t<Body>*>(user))(begin, end);
      },
      &body, count, grain);
}

}  // namespace

const GemmKernels* gemm_kernels() {
  static const GemmKernels* const best = [] {
    for (const GemmKernels* kernels :
         {gemm_kernels_avx512_bf16(), gemm_kernels_avx512(), gemm_kernels_avx2()}) {
      if (kernels != nullptr) return kernels;
    }
    return static_cast<const GemmKernels*>(nullptr);
  }();
  return best;
}

std::optional<Gemm> Gemm::plan(const nrtsim_lib_call_t& call, const GemmKernels* kernels) {
  const nrtsim_lib_tensor_t &a = call.inputs[0], &b = call.inputs[1], &c = call.outputs[0];
  const std::optional<Stored> in = stored_of(a.dtype), out = stored_of(c.dtype);
  if (kernels == nullptr || !in || !out || a.dtype != b.dtype) return std::nullopt;
  Gemm gemm;
  gemm.kernels_ = kernels;
  gemm.batch_ = c.sizes[0];
  gemm.m_ = c.sizes[1];
  gemm.n_ = c.sizes[2];
  gemm.k_ = a.sizes[2];
  gemm.x_ = {*in, a.strides[0], a.strides[1], a.strides[2]};
  gemm.w_ = {*in, b.strides[0], b.strides[1], b.strides[2]};
  gemm.y_ = {*out, c.strides[0], c.strides[1], c.strides[2]};
  gemm.unit_ = kernels->unit_of(*in);
  gemm.choose();
  return gemm;
}

double Gemm::flops() const {
  return 2.0 * static_cast<double>(batch_) * static_cast<double>(m_) * static_cast<double>(n_) *
         static_cast<double>(k_);
}

void Gemm::choose() {
  if (batch_ == 0 || m_ == 0 || n_ == 0) return;
  // A dim of one element is contiguous in any stride.
  const bool skinny = std::min(m_, n_) <= kSkinny;
  swapped_ = skinny ? n_ < m_ : y_.column_stride != 1 && n_ != 1 && y_.row_stride == 1;
  if (swapped_) {
    std::swap(m_, n_);
    std::swap(x_, w_);
    for (GemmOperand* operand : {&x_, &w_, &y_}) {
      std::swap(operand->row_stride, operand->column_stride);
    }
  }
  if (k_ == 1) x_.column_stride = 1;
  if (n_ == 1) y_.column_stride = 1;
  y_in_place_ = y_.stored == Stored::kF32 && y_.column_stride == 1;
  const auto matrix = static_cast<double>(k_ * n_);
  // Packing a few long rows costs more than their products.
  const bool tiny = n_ <= 64 && m_ * k_ * n_ <= 32 * 32 * 32 && k_ < 512 && m_ * n_ > 1;
  if (skinny && !tiny && (w_.row_stride == 1 || w_.column_stride == 1)) {
    way_ = w_.row_stride == 1 && k_ > 1 ? Way::kRows : Way::kColumns;
    if (w_.column_stride == 1 && n_ > 1 && w_.row_stride == 1 && k_ < n_) way_ = Way::kColumns;
    x_in_place_ =
        x_.column_stride == 1 && x_.stored == (unit_ == Unit::kPair ? Stored::kBf16 : Stored::kF32);
    copy_step_ = k_;
    const int64_t row_bytes = x_.row_stride * bytes_of(x_.stored);
    if (way_ == Way::kRows && m_ > 3 && (!x_in_place_ || row_bytes % 1024 == 0)) {
      // Rows of 2^n bytes share the sets of the cache: one line more between them.
      x_in_place_ = false;
      copy_step_ = round_up(k_, 32) + 32;
    }
    if (way_ == Way::kRows) {
      chunk_ = 64;
    } else {
      const int64_t longest = m_ <= 2 ? 2048 : m_ <= 4 ? 1024 : 512;
      chunk_ = std::clamp<int64_t>(round_up((n_ + 3) / 4, 64), 256, longest);
    }
    // 20 bytes or 80 flops a nanosecond, and what a row costs.
    const double ns = std::max(matrix * static_cast<double>(bytes_of(w_.stored)) / 20,
                               matrix * static_cast<double>(2 * m_) / 80) +
                      3.0 * static_cast<double>(n_ * m_);
    const int64_t chunks = (n_ + chunk_ - 1) / chunk_;
    const double each = ns / static_cast<double>(chunks);
    grain_ = ns * static_cast<double>(batch_) < kParallelNs
                 ? chunks * batch_
                 : std::max<int64_t>(1, static_cast<int64_t>(kPieceNs / each));
    return;
  }
  way_ = Way::kTiles;
  const int64_t per_unit = unit_ == Unit::kPair ? 2 : 1;
  const int64_t units = (k_ + per_unit - 1) / per_unit;
  const int64_t blocks = (units + kBlockUnits - 1) / kBlockUnits;
  k_block_ = std::max<int64_t>(1, blocks) == 1
                 ? std::max<int64_t>(k_, 1)
                 : round_up((units + blocks - 1) / blocks, 16) * per_unit;
  const auto balanced = [](int64_t extent, int64_t longest, int64_t align) {
    const int64_t parts = (extent + longest - 1) / longest;
    return round_up((extent + parts - 1) / parts, align);
  };
  const int64_t panel = kernels_->panel;
  tile_m_ = balanced(m_, kLongestRows, 12);
  tile_n_ = balanced(n_, kLongestColumns, panel);
  const double rate = unit_ == Unit::kPair ? 150 : 80;
  const auto tiles = [&] {
    return batch_ * ((m_ + tile_m_ - 1) / tile_m_) * ((n_ + tile_n_ - 1) / tile_n_);
  };
  const auto tile_ns = [&] {
    return 2.0 * static_cast<double>(std::min(tile_m_, m_)) *
               static_cast<double>(std::min(tile_n_, n_)) * static_cast<double>(k_) / rate +
           100;
  };
  while (tiles() < 8 && tile_ns() > 6 * kPieceNs && (tile_m_ > 48 || tile_n_ > 2 * panel)) {
    if (tile_m_ * 2 > tile_n_ && tile_m_ > 48) {
      tile_m_ = balanced(m_, tile_m_ / 2, 12);
    } else if (tile_n_ > 2 * panel) {
      tile_n_ = balanced(n_, tile_n_ / 2, panel);
    } else {
      break;
    }
  }
  grain_ = tile_ns() * static_cast<double>(tiles()) < kParallelNs
               ? tiles()
               : std::max<int64_t>(1, static_cast<int64_t>(kPieceNs / tile_ns()));
  // An odd number of cache lines from row to row spreads them over the cache's sets.
  const int64_t block_units = (k_block_ + per_unit - 1) / per_unit;
  x_step_ = round_up(block_units, 16) + (round_up(block_units, 16) % 32 == 0 ? 16 : 0);
  shared_ = batch_ == 1 && tiles() > 2 && (m_ + n_) * units <= kMostSharedUnits;
  // Read where they lie: small matrices that fit the kernel's form.
  const bool small = m_ * n_ <= 64 * 64 && k_ <= 256;
  if (small && unit_ == Unit::kF32 && x_.stored == Stored::kF32) {
    x_in_place_ = x_.column_stride == 1;
    w_in_place_ = w_.column_stride == 1;
  }
  if (x_in_place_ && w_in_place_) k_block_ = std::max<int64_t>(k_, 1);
}

void Gemm::run(const void* a, const void* b, void* c, const nrtsim_lib_context_t& context) const {
  if (batch_ == 0 || m_ == 0 || n_ == 0) return;
  const auto* x = static_cast<const char*>(swapped_ ? b : a);
  const auto* w = static_cast<const char*>(swapped_ ? a : b);
  if (way_ == Way::kTiles) {
    run_tiles(x, w, static_cast<char*>(c), context);
  } else {
    run_skinny(x, w, static_cast<char*>(c), context);
  }
}

void Gemm::store(const float* from, int64_t step, int64_t rows, int64_t columns, char* y,
                 int64_t row, int64_t column) const {
  const int64_t size = bytes_of(y_.stored);
  for (int64_t i = 0; i < rows; ++i, from += step) {
    char* to = y + ((row + i) * y_.row_stride + column * y_.column_stride) * size;
    if (y_.column_stride == 1) {
      kernels_->store(y_.stored, from, columns, to);
      continue;
    }
    for (int64_t j = 0; j < columns; ++j, to += y_.column_stride * size) {
      if (y_.stored == Stored::kF32) {
        std::memcpy(to, from + j, 4);
        continue;
      }
      const uint16_t bits =
          y_.stored == Stored::kBf16 ? float_to_bf16(from[j]) : float_to_f16(from[j]);
      std::memcpy(to, &bits, 2);
    }
  }
}

// --- Skinny --------------------------------------------------------------------------------------

void Gemm::run_skinny(const char* x, const char* w, char* y,
                      const nrtsim_lib_context_t& context) const {
  const int64_t chunks = (n_ + chunk_ - 1) / chunk_;
  const int64_t size = bytes_of(x_.stored);
  // x as the kernels want it: the pieces share one copy.
  const char* left = x;
  int64_t left_batch = x_.batch_stride * size;
  if (!x_in_place_) {
    thread_local Scratch copies;
    char* copy = reinterpret_cast<char*>(copies.take(batch_ * m_ * copy_step_ + 16));
    left = copy;
    const int64_t row_bytes = copy_step_ * (unit_ == Unit::kPair ? 2 : 4);
    left_batch = m_ * row_bytes;
    for (int64_t i = 0; i < batch_; ++i) {
      for (int64_t r = 0; r < m_; ++r, copy += row_bytes) {
        const char* from = x + (i * x_.batch_stride + r * x_.row_stride) * size;
        if (unit_ == Unit::kPair) {
          if (x_.column_stride == 1) {
            std::memcpy(copy, from, static_cast<size_t>(k_) * 2);
            continue;
          }
          for (int64_t l = 0; l < k_; ++l) {
            std::memcpy(copy + 2 * l, from + l * x_.column_stride * 2, 2);
          }
        } else if (x_.column_stride == 1) {
          kernels_->widen(x_.stored, from, k_, reinterpret_cast<float*>(copy));
        } else {
          kernels_->pack({x_.stored, Unit::kF32, from, 0, x_.column_stride, 1, k_,
                          reinterpret_cast<uint32_t*>(copy), k_, false});
        }
      }
    }
  }
  parallel(context, batch_ * chunks, grain_, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t i = piece / chunks, first = piece % chunks * chunk_;
      skinny_chunk(left + i * left_batch, w + i * w_.batch_stride * bytes_of(w_.stored),
                   y + i * y_.batch_stride * bytes_of(y_.stored), first,
                   std::min(chunk_, n_ - first));
    }
  });
}

void Gemm::skinny_chunk(const char* x, const char* w, char* y, int64_t first, int64_t count) const {
  thread_local Scratch results;
  // Rows of 2^n bytes would evict each other while kColumns walks over all of them.
  const bool in_place = y_in_place_ && (way_ == Way::kRows || m_ == 1);
  const int64_t step = in_place ? y_.row_stride : chunk_ + 16;
  float* out = in_place ? reinterpret_cast<float*>(y) + first : results.take(m_ * step);
  const int64_t x_step = x_in_place_ ? x_.row_stride : copy_step_;
  const char* from = w + first * w_.column_stride * bytes_of(w_.stored);
  if (way_ == Way::kRows) {
    kernels_->rows(w_.stored,
                   {x, x_step, from, w_.column_stride, k_, count, static_cast<int>(m_), out, step});
  } else {
    for (int64_t i = 0; i < m_; ++i) {
      std::memset(out + i * step, 0, static_cast<size_t>(count) * sizeof(float));
    }
    kernels_->columns(w_.stored,
                      {x, x_step, from, w_.row_stride, k_, count, static_cast<int>(m_), out, step});
  }
  if (!in_place) store(out, step, m_, count, y, 0, first);
}

// --- Tiles ---------------------------------------------------------------------------------------

void Gemm::run_tiles(const char* x, const char* w, char* y,
                     const nrtsim_lib_context_t& context) const {
  const int64_t rows = (m_ + tile_m_ - 1) / tile_m_, columns = (n_ + tile_n_ - 1) / tile_n_;
  uint32_t* packed = nullptr;
  if (shared_ && k_ > 0) {
    const int64_t blocks = (k_ + k_block_ - 1) / k_block_;
    const int64_t wide = round_up(n_, kernels_->panel);
    thread_local Scratch copies;
    packed =
        reinterpret_cast<uint32_t*>(copies.take(blocks * (m_ * x_step_ + wide * units_at(0)) + 16));
    pack_operands(x, w, packed, context);
  }
  parallel(context, batch_ * rows * columns, grain_, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t i = piece / (rows * columns);
      const int64_t row = piece / columns % rows * tile_m_, column = piece % columns * tile_n_;
      tile(x + i * x_.batch_stride * bytes_of(x_.stored),
           w + i * w_.batch_stride * bytes_of(w_.stored),
           y + i * y_.batch_stride * bytes_of(y_.stored), row, std::min(tile_m_, m_ - row), column,
           std::min(tile_n_, n_ - column), packed);
    }
  });
}

// Units of the block along k that starts at element l.
int64_t Gemm::units_at(int64_t l) const {
  const int64_t per_unit = unit_ == Unit::kPair ? 2 : 1;
  return (std::min(k_block_, k_ - l) + per_unit - 1) / per_unit;
}

void Gemm::pack_x(const char* x, int64_t row, int64_t rows, int64_t l, uint32_t* to) const {
  const char* from = x + (row * x_.row_stride + l * x_.column_stride) * bytes_of(x_.stored);
  kernels_->pack({x_.stored, unit_, from, x_.row_stride, x_.column_stride, rows,
                  std::min(k_block_, k_ - l), to, x_step_, false});
}

void Gemm::pack_w(const char* w, int64_t column, int64_t columns, int64_t l, uint32_t* to) const {
  const char* from = w + (column * w_.column_stride + l * w_.row_stride) * bytes_of(w_.stored);
  kernels_->pack({w_.stored, unit_, from, w_.column_stride, w_.row_stride, columns,
                  std::min(k_block_, k_ - l), to, 0, true});
}

// All blocks of x one after the other, [m][x_step_] each, then those of w in panels.
void Gemm::pack_operands(const char* x, const char* w, uint32_t* packed,
                         const nrtsim_lib_context_t& context) const {
  constexpr int64_t kRows = 48;
  const int64_t columns = 2 * kernels_->panel;
  const int64_t x_pieces = (m_ + kRows - 1) / kRows, w_pieces = (n_ + columns - 1) / columns;
  const int64_t blocks = (k_ + k_block_ - 1) / k_block_;
  const int64_t wide = round_up(n_, kernels_->panel), block_units = units_at(0);
  // About a nanosecond for two units.
  const double each = static_cast<double>(kRows * k_) / 2;
  const auto grain = std::max<int64_t>(1, static_cast<int64_t>(kPieceNs / each));
  parallel(context, x_pieces + w_pieces, grain, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      for (int64_t l = 0, block = 0; l < k_; l += k_block_, ++block) {
        if (piece < x_pieces) {
          const int64_t row = piece * kRows;
          pack_x(x, row, std::min(kRows, m_ - row), l, packed + (block * m_ + row) * x_step_);
        } else {
          const int64_t column = (piece - x_pieces) * columns;
          pack_w(
              w, column, std::min(columns, n_ - column), l,
              packed + blocks * m_ * x_step_ + block * wide * block_units + column * units_at(l));
        }
      }
    }
  });
}

void Gemm::tile(const char* x, const char* w, char* y, int64_t row, int64_t rows, int64_t column,
                int64_t columns, const uint32_t* packed) const {
  const int64_t panel = kernels_->panel;
  const int64_t block_units = k_ > 0 ? units_at(0) : 0;
  const int64_t blocks = (k_ + k_block_ - 1) / k_block_;
  // A narrow result is computed in strips that stay in the nearest cache until they are rounded.
  const bool strips = !y_in_place_ && blocks == 1;
  const int64_t wide = round_up(columns, panel);
  const int64_t c_columns = strips ? std::min(wide, 2 * panel) : wide;
  thread_local Scratch memory;
  const int64_t a_size = x_in_place_ || packed != nullptr ? 0 : rows * x_step_;
  const int64_t b_size = w_in_place_ || packed != nullptr ? 0 : wide * block_units;
  const int64_t c_size = y_in_place_ ? 0 : rows * c_columns;
  float* scratch = memory.take(a_size + b_size + c_size + 48);
  auto* a = reinterpret_cast<uint32_t*>(scratch);
  uint32_t* b = a + round_up(a_size, 16);
  float* c = y_in_place_ ? reinterpret_cast<float*>(y) + row * y_.row_stride + column
                         : reinterpret_cast<float*>(b) + round_up(b_size, 16);
  const int64_t c_step = y_in_place_ ? y_.row_stride : c_columns;
  if (k_ == 0) {
    for (int64_t i = 0; i < rows; ++i) {
      std::memset(c + i * c_step, 0, static_cast<size_t>(columns) * sizeof(float));
    }
  }
  for (int64_t l = 0, at = 0; l < k_; l += k_block_, ++at) {
    const int64_t units = units_at(l);
    BlockArgs block{a, x_step_, b, panel, panel * units, c, c_step, rows, columns, units, l > 0};
    if (packed != nullptr) {
      block.a = packed + (at * m_ + row) * x_step_;
      block.b =
          packed + blocks * m_ * x_step_ + at * round_up(n_, panel) * block_units + column * units;
    } else {
      if (x_in_place_) {
        block.a = reinterpret_cast<const uint32_t*>(
            x + (row * x_.row_stride + l * x_.column_stride) * bytes_of(x_.stored));
        block.a_step = x_.row_stride;
      } else {
        pack_x(x, row, rows, l, a);
      }
      if (w_in_place_) {
        block.b = reinterpret_cast<const uint32_t*>(
            w + (column * w_.column_stride + l * w_.row_stride) * bytes_of(w_.stored));
        block.b_step = w_.row_stride;
        block.b_panel = panel;
      } else {
        pack_w(w, column, columns, l, b);
      }
    }
    if (!strips) {
      kernels_->block(unit_, block);
      continue;
    }
    for (int64_t j = 0; j < columns; j += c_columns) {
      block.n = std::min(c_columns, columns - j);
      kernels_->block(unit_, block);
      store(c, c_step, rows, block.n, y, row, column + j);
      block.b += c_columns / panel * block.b_panel;
    }
  }
  if (!y_in_place_ && !strips) store(c, c_step, rows, columns, y, row, column);
}

}  // namespace neuron::nrtsim
