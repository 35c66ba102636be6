#include "neuron/nrtsim/gemm.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "neuron/base/dtype.h"
#include "neuron/base/float_formats.h"

namespace neuron::nrtsim {
namespace {

struct Matrix {
  DType dtype;
  std::array<int64_t, 3> sizes, strides;
  std::vector<unsigned char> bytes;

  Matrix(DType dtype, std::array<int64_t, 3> sizes, std::array<int, 3> order, int64_t gap = 1)
      : dtype(dtype), sizes(sizes) {
    int64_t step = gap;
    for (int d = 2; d >= 0; --d) {
      strides[order[d]] = step;
      step *= std::max<int64_t>(sizes[order[d]], 1);
      if (d == 2 && gap == 1) step += 3;  // Rows are not dense.
    }
    bytes.resize(static_cast<size_t>(step + 64) * size_of(dtype), 0xFF);  // NaN where unused.
  }
  unsigned char* at(int64_t b, int64_t i, int64_t j) {
    return bytes.data() + (b * strides[0] + i * strides[1] + j * strides[2]) *
                              static_cast<int64_t>(size_of(dtype));
  }
  void set(int64_t b, int64_t i, int64_t j, float value) {
    if (dtype == DType::f32) {
      std::memcpy(at(b, i, j), &value, 4);
    } else {
      const uint16_t bits = dtype == DType::bf16 ? float_to_bf16(value) : float_to_f16(value);
      std::memcpy(at(b, i, j), &bits, 2);
    }
  }
  float get(int64_t b, int64_t i, int64_t j) {
    float value;
    uint16_t bits;
    if (dtype == DType::f32) {
      std::memcpy(&value, at(b, i, j), 4);
      return value;
    }
    std::memcpy(&bits, at(b, i, j), 2);
    return dtype == DType::bf16 ? bf16_to_float(bits) : f16_to_float(bits);
  }
  nrtsim_lib_tensor_t describe() const {
    return {static_cast<uint32_t>(dtype), 3, sizes.data(), strides.data()};
  }
};

// Pieces one by one from the end, or all at once.
const nrtsim_lib_context_t kPieces = {
    sizeof(nrtsim_lib_context_t),
    [](void (*body)(void*, int64_t, int64_t), void* user, int64_t count, int64_t grain) {
      for (int64_t at = (count - 1) / grain * grain; at >= 0; at -= grain) {
        body(user, at, std::min(at + grain, count));
      }
    },
    4};
const nrtsim_lib_context_t kWhole = {sizeof(nrtsim_lib_context_t),
                                     [](void (*body)(void*, int64_t, int64_t), void* user,
                                        int64_t count, int64_t) { body(user, 0, count); },
                                     1};

void check(const GemmKernels* kernels, DType in, DType out, std::array<int64_t, 4> size,
           int layout) {
  const auto [batch, m, k, n] = size;
  constexpr std::array<std::array<int, 3>, 3> kOrders = {{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}}};
  Matrix a(in, {batch, m, k}, kOrders[layout & 1], layout & 8 ? 2 : 1);
  Matrix b(in, {batch, k, n}, kOrders[layout >> 1 & 1], layout & 16 ? 2 : 1);
  Matrix y(out, {batch, m, n}, kOrders[layout >> 2 & 1], layout & 8 ? 2 : 1);
  std::mt19937 random(7);
  std::uniform_real_distribution<float> value(-1, 1);
  for (int64_t i = 0; i < batch; ++i) {
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t c = 0; c < k; ++c) a.set(i, r, c, value(random));
    }
    for (int64_t r = 0; r < k; ++r) {
      for (int64_t c = 0; c < n; ++c) b.set(i, r, c, value(random));
    }
  }
  const nrtsim_lib_tensor_t inputs[] = {a.describe(), b.describe()}, outputs[] = {y.describe()};
  nrtsim_lib_call_t call{};
  call.inputs = inputs;
  call.outputs = outputs;
  call.input_count = 2;
  call.output_count = 1;
  const std::optional<Gemm> gemm = Gemm::plan(call, kernels);
  ASSERT_TRUE(gemm.has_value());
  const std::vector<unsigned char> before = y.bytes;
  gemm->run(a.bytes.data(), b.bytes.data(), y.bytes.data(), kPieces);
  const std::vector<unsigned char> pieces = y.bytes;
  y.bytes = before;
  gemm->run(a.bytes.data(), b.bytes.data(), y.bytes.data(), kWhole);
  ASSERT_TRUE(pieces == y.bytes) << "depends on the cut";
  std::vector<bool> written(y.bytes.size());
  for (int64_t i = 0; i < batch; ++i) {
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t c = 0; c < n; ++c) {
        double sum = 0, size_sum = 0;
        for (int64_t l = 0; l < k; ++l) {
          const double product = static_cast<double>(a.get(i, r, l)) * b.get(i, l, c);
          sum += product;
          size_sum += std::fabs(product);
        }
        const double step = out == DType::f32 ? 0 : out == DType::bf16 ? 1.0 / 256 : 1.0 / 2048;
        ASSERT_NEAR(y.get(i, r, c), sum, 2e-6 * size_sum + step * std::fabs(sum) + 1e-7)
            << name_of(in) << " " << batch << "x" << m << "x" << k << "x" << n << " layout "
            << layout << " at " << i << " " << r << " " << c;
        const auto at = static_cast<size_t>(y.at(i, r, c) - y.bytes.data());
        for (size_t s = 0; s < size_of(out); ++s) written[at + s] = true;
      }
    }
  }
  for (size_t s = 0; s < written.size(); ++s) {
    ASSERT_TRUE(written[s] || y.bytes[s] == before[s]) << "wrote outside of the result";
  }
}

class GemmTest : public ::testing::TestWithParam<int> {
 protected:
  const GemmKernels* kernels() const {
    return GetParam() == 0   ? gemm_kernels_avx512_bf16()
           : GetParam() == 1 ? gemm_kernels_avx512()
                             : gemm_kernels_avx2();
  }
};

TEST_P(GemmTest, EdgesOfEverySize) {
  if (kernels() == nullptr) GTEST_SKIP() << "this CPU lacks the instructions";
  const std::array<int64_t, 4> sizes[] = {
      {1, 1, 1, 1},    {2, 1, 37, 65},  {1, 1, 300, 70},  {1, 2, 33, 31},   {1, 3, 129, 17},
      {2, 5, 64, 100}, {1, 7, 5, 3},    {1, 8, 200, 130}, {1, 70, 65, 1},   {1, 600, 9, 2},
      {2, 9, 16, 9},   {3, 12, 32, 32}, {1, 13, 31, 33},  {1, 25, 400, 65}, {1, 100, 3, 250},
      {1, 9, 0, 9},    {1, 2, 0, 5},    {2, 17, 385, 18}, {1, 11, 1, 40},   {0, 4, 4, 4},
      {1, 4, 8, 0}};
  for (const auto& size : sizes) {
    for (const DType in : {DType::f32, DType::bf16, DType::f16}) {
      for (int layout = 0; layout < 8; ++layout) check(kernels(), in, in, size, layout);
      for (const int layout : {0, 3, 8, 16, 24}) {
        if (in != DType::f32) check(kernels(), in, DType::f32, size, layout);
      }
    }
    if (HasFatalFailure()) return;
  }
}

TEST_P(GemmTest, SeveralTilesAndBlocks) {
  if (kernels() == nullptr) GTEST_SKIP() << "this CPU lacks the instructions";
  for (const DType in : {DType::f32, DType::bf16}) {
    for (int layout = 0; layout < 4; ++layout) {
      check(kernels(), in, in, {1, 250, 450, 140}, layout);
      check(kernels(), in, DType::f32, {1, 60, 130, 530}, layout);
    }
    if (HasFatalFailure()) return;
  }
}

TEST_P(GemmTest, SpecialNumbersPass) {
  if (kernels() == nullptr) GTEST_SKIP() << "this CPU lacks the instructions";
  const float inf = std::numeric_limits<float>::infinity();
  for (const int64_t m : {1, 4, 20}) {
    for (const int layout : {0, 2}) {
      const int64_t k = 37, n = 21;
      Matrix a(DType::bf16, {1, m, k}, {0, 1, 2}), y(DType::f32, {1, m, n}, {0, 1, 2});
      Matrix b(DType::bf16, {1, k, n}, layout ? std::array{0, 2, 1} : std::array{0, 1, 2});
      for (int64_t l = 0; l < k; ++l) {
        for (int64_t i = 0; i < m; ++i) a.set(0, i, l, 1);
        for (int64_t j = 0; j < n; ++j) {
          b.set(0, l, j, j == 3 && l == 36 ? inf : j == 5 && l == 0 ? NAN : 1);
        }
      }
      const nrtsim_lib_tensor_t inputs[] = {a.describe(), b.describe()}, outputs[] = {y.describe()};
      nrtsim_lib_call_t call{};
      call.inputs = inputs;
      call.outputs = outputs;
      const auto gemm = Gemm::plan(call, kernels());
      gemm->run(a.bytes.data(), b.bytes.data(), y.bytes.data(), kWhole);
      EXPECT_EQ(y.get(0, m - 1, 3), inf);
      EXPECT_TRUE(std::isnan(y.get(0, m - 1, 5)));
      EXPECT_EQ(y.get(0, m - 1, 4), 37);
      EXPECT_EQ(y.get(0, m - 1, 20), 37);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, GemmTest, ::testing::Values(0, 1, 2));

}  // namespace
}  // namespace neuron::nrtsim
