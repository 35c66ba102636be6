#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "neuron/compiler/cpu/nest_builder_test.h"

// Generated reductions along rows and over outer axes, against plain loops.
namespace neuron::compiler::cpu {
namespace {

using hlo::Op;
using hlo::ReduceKind;
using testing::access;
using testing::compute;
using testing::fill;
using testing::GuardedBuffer;
using testing::load;
using testing::reduced;
using testing::run_nest;
using testing::store;

class ReductionCode : public testing::LevelTest {};
INSTANTIATE_TEST_SUITE_P(Levels, ReductionCode, testing::all_levels(), testing::level_name);

// Pins the combining order as a function of the length alone, NaN and empty rows.
TEST_P(ReductionCode, RowReductions) {
  for (int64_t row : testing::row_lengths()) {
    const int64_t rows = 3;
    LoopNest nest;
    nest.outer = {rows};
    nest.row = row;
    nest.pointer_count = 5;
    Sweep sweep;
    sweep.body = {load(0, DType::f32, {row, 1})};
    RowReduce sum, max, arg;
    sum.value = max.value = arg.value = 0;
    max.kind = arg.kind = ReduceKind::Max;
    arg.arg = true;
    sweep.reduces = {sum, max, arg};
    nest.sweeps = {sweep};
    for (int k = 0; k < 3; ++k) {
      RowStore out;
      out.reduce = static_cast<uint16_t>(k);
      out.access = access(k + 1, k == 2 ? DType::i64 : DType::f32, {1, 0});
      nest.row_stores.push_back(out);
    }
    RowStore mean;
    mean.epilogue = {reduced(0, DType::f32), testing::constant(0.5f),
                     compute(Op::Multiply, DType::f32, {1, 2})};
    mean.value = 3;
    mean.access = access(4, DType::f32, {1, 0});
    nest.row_stores.push_back(mean);
    const auto count = static_cast<size_t>(rows * row);
    GuardedBuffer in(count * 4), sums(rows * 4), maxima(rows * 4), places(rows * 8),
        halves(rows * 4);
    auto* x = fill<float>(in, count, 9);
    if (row > 20) x[2 * row + 13] = std::nanf("");
    run_nest(nest, {in.data(), sums.data(), maxima.data(), places.data(), halves.data()});
    for (int64_t r = 0; r < rows; ++r) {
      double exact = 0;
      float best = -std::numeric_limits<float>::infinity();
      int64_t place = -1;
      for (int64_t c = 0; c < row; ++c) {
        const float value = x[r * row + c];
        exact += value;
        if (place == -1 || value > best || (std::isnan(value) && !std::isnan(best))) {
          best = value;
          place = c;
        }
      }
      const float got = static_cast<float*>(sums.data())[r];
      if (std::isnan(exact)) {
        EXPECT_TRUE(std::isnan(got));
        EXPECT_TRUE(std::isnan(static_cast<float*>(maxima.data())[r]));
      } else {
        ASSERT_NEAR(got, exact, 1e-5 * static_cast<double>(row) + 1e-6) << row;
        ASSERT_EQ(static_cast<float*>(maxima.data())[r], best) << row;
        ASSERT_EQ(static_cast<float*>(halves.data())[r], got * 0.5f);
      }
      ASSERT_EQ(static_cast<int64_t*>(places.data())[r], place) << row;
    }
  }
}

// A cheap body is walked four vectors at a time, a costly one singly: the sums must not differ.
TEST_P(ReductionCode, SumsDoNotDependOnTheLoopTheyAreIn) {
  for (int64_t row : testing::row_lengths()) {
    std::vector<float> x(static_cast<size_t>(row));
    std::mt19937 random(3);
    for (float& value : x) value = static_cast<float>(random() % 100000) * 0.001f + 0.0371f;
    float sums[2] = {-1, -2};
    for (int costly = 0; costly < 2; ++costly) {
      LoopNest nest;
      nest.row = row;
      nest.pointer_count = 3;
      Sweep sweep;
      sweep.body = {load(0, DType::f32, {1})};
      RowReduce sum;
      sum.value = 0;
      sweep.reduces = {sum};
      std::vector<float> side(static_cast<size_t>(row));
      if (costly == 1) {
        sweep.body.push_back(compute(Op::Exp, DType::f32, {0}));
        sweep.body.push_back(compute(Op::Tanh, DType::f32, {1}));
        sweep.stores = {store(2, 2, DType::f32, {1})};
      }
      nest.sweeps = {sweep};
      RowStore out;
      out.access = access(1, DType::f32, {0});
      nest.row_stores = {out};
      run_nest(nest, {x.data(), &sums[costly], side.data()});
    }
    EXPECT_EQ(sums[0], sums[1]) << row;
  }
}

// Three sweeps: maximum, sum of exponentials, quotient; the exponential is computed again in the
// last one, or read back from the output row.
TEST_P(ReductionCode, SoftmaxInThreeSweeps) {
  for (bool buffered : {false, true}) {
    for (int64_t row : testing::row_lengths()) {
      if (row == 0) continue;
      const int64_t rows = 2;
      LoopNest nest;
      nest.outer = {rows};
      nest.row = row;
      nest.pointer_count = 2;
      Sweep first, second, third;
      first.body = {load(0, DType::f32, {row, 1})};
      RowReduce max;
      max.kind = ReduceKind::Max;
      max.value = 0;
      first.reduces = {max};
      second.body = {reduced(0, DType::f32), compute(Op::Subtract, DType::f32, {0, 1}),
                     compute(Op::Exp, DType::f32, {2})};
      RowReduce sum;
      sum.value = 3;
      second.reduces = {sum};
      if (buffered) second.stores = {store(3, 1, DType::f32, {row, 1})};
      Stmt kept = reduced(0, DType::f32);
      kept.kind = StmtKind::Buffered;
      kept.number = 3;
      if (buffered) kept.access = access(1, DType::f32, {row, 1});
      third.body = {kept, reduced(1, DType::f32), compute(Op::Divide, DType::f32, {4, 5})};
      third.stores = {store(6, 1, DType::f32, {row, 1})};
      nest.sweeps = {first, second, third};
      const auto count = static_cast<size_t>(rows * row);
      GuardedBuffer in(count * 4), out(count * 4);
      const float* x = fill<float>(in, count, 4);
      run_nest(nest, {in.data(), out.data()});
      const auto* y = static_cast<float*>(out.data());
      for (int64_t r = 0; r < rows; ++r) {
        double best = -1e30, total = 0;
        for (int64_t c = 0; c < row; ++c) best = std::max<double>(best, x[r * row + c]);
        for (int64_t c = 0; c < row; ++c) total += std::exp(x[r * row + c] - best);
        for (int64_t c = 0; c < row; ++c) {
          const double want = std::exp(x[r * row + c] - best) / total;
          ASSERT_NEAR(y[r * row + c], want, 1e-6 * want + 1e-12) << row;
        }
      }
    }
  }
}

TEST_P(ReductionCode, ColumnReductions) {
  for (int64_t columns : testing::row_lengths()) {
    if (columns == 0) continue;
    for (int64_t steps : {0, 1, 7, 300}) {
      if (columns * steps > 1000000) continue;
      const int64_t kept = 2, inner = 2;
      LoopNest nest;
      nest.outer = {kept, steps, inner};
      nest.row = columns;
      nest.column_reduce = true;
      nest.reduced_axes = 2;
      nest.pointer_count = 4;
      Sweep sweep;
      sweep.body = {load(0, DType::f32, {steps * inner * columns, inner * columns, columns, 1})};
      RowReduce sum, arg;
      sum.value = arg.value = 0;
      arg.kind = ReduceKind::Min;
      arg.arg = true;
      sweep.reduces = {sum, arg};
      // A second pass: sum of |x - sum|.
      Sweep again;
      again.body = {reduced(0, DType::f32), compute(Op::Subtract, DType::f32, {0, 1}),
                    compute(Op::Abs, DType::f32, {2})};
      RowReduce distance;
      distance.value = 3;
      again.reduces = {distance};
      nest.sweeps = {sweep, again};
      for (int k = 0; k < 3; ++k) {
        RowStore out;
        out.reduce = static_cast<uint16_t>(k);
        out.access = access(k + 1, k == 1 ? DType::i64 : DType::f32, {columns, 0, 0, 1});
        nest.row_stores.push_back(out);
      }
      const auto count = static_cast<size_t>(kept * steps * inner * columns);
      const auto out_count = static_cast<size_t>(kept * columns);
      GuardedBuffer in(count * 4), sums(out_count * 4), places(out_count * 8), far(out_count * 4);
      const float* x = fill<float>(in, count, 21);
      run_nest(nest, {in.data(), sums.data(), places.data(), far.data()});
      for (int64_t g = 0; g < kept; ++g) {
        for (int64_t c = 0; c < columns; ++c) {
          double total = 0, away = 0;
          float best = 1e30f;
          int64_t place = -1;
          for (int64_t s = 0; s < steps * inner; ++s) {
            const float value = x[(g * steps * inner + s) * columns + c];
            total += value;
            if (place < 0 || value < best) {
              best = value;
              place = s;
            }
          }
          const float got = static_cast<float*>(sums.data())[g * columns + c];
          for (int64_t s = 0; s < steps * inner; ++s) {
            away += std::fabs(x[(g * steps * inner + s) * columns + c] - got);
          }
          ASSERT_NEAR(got, total, 1e-4 * static_cast<double>(steps) + 1e-5);
          ASSERT_EQ(static_cast<int64_t*>(places.data())[g * columns + c], place);
          ASSERT_NEAR(static_cast<float*>(far.data())[g * columns + c], away, 1e-4 * away + 1e-4);
        }
      }
    }
  }
}

}  // namespace
}  // namespace neuron::compiler::cpu
