#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "neuron/compiler/cpu/nest_builder_test.h"
#include "neuron/hlo/element.h"

// Generated kernels against plain loops.
namespace neuron::compiler::cpu {
namespace {

using hlo::Op;
using testing::access;
using testing::compute;
using testing::fill;
using testing::GuardedBuffer;
using testing::load;
using testing::run_nest;
using testing::store;

class NestCode : public testing::LevelTest {};
INSTANTIATE_TEST_SUITE_P(Levels, NestCode, testing::all_levels(), testing::level_name);

// Pins tails, row pieces and stride classes: nothing outside the rows is read or written.
TEST_P(NestCode, PointwiseRowsOfEveryLengthAndStride) {
  for (int64_t row : testing::row_lengths()) {
    for (int64_t rows : {1, 3}) {
      for (int64_t stride : {0, 1, 2}) {
        LoopNest nest;
        nest.outer = {rows};
        nest.row = row;
        nest.pointer_count = 3;
        const int64_t pitch = stride == 0 ? 1 : row * stride + 1;
        Sweep sweep;
        sweep.body = {load(0, DType::f32, {row, 1}), load(1, DType::f32, {pitch, stride}),
                      compute(Op::Multiply, DType::f32, {0, 1}),
                      compute(Op::Add, DType::f32, {2, 0})};
        sweep.stores = {store(3, 2, DType::f32, {row + 2, 1})};
        nest.sweeps = {sweep};
        const auto count = static_cast<size_t>(rows * row);
        const size_t b_count =
            static_cast<size_t>((rows - 1) * pitch + std::max<int64_t>(row - 1, 0) * stride + 1);
        const size_t out_count = static_cast<size_t>((rows - 1) * (row + 2) + row);
        GuardedBuffer a(count * 4), b(b_count * 4), out(out_count * 4);
        const float* x = fill<float>(a, count, 1);
        const float* y = fill<float>(b, b_count, 2);
        auto* z = static_cast<float*>(out.data());
        std::fill(z, z + out_count, -1.0f);
        run_nest(nest, {a.data(), b.data(), out.data()});
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < row + 2 && r * (row + 2) + c < static_cast<int64_t>(out_count);
               ++c) {
            const float got = z[r * (row + 2) + c];
            if (c >= row) {
              ASSERT_EQ(got, -1.0f) << "padding written";
              continue;
            }
            const float p = x[r * row + c];
            ASSERT_EQ(got, p * y[r * pitch + c * stride] + p)
                << "row " << row << " stride " << stride << " at " << r << "," << c;
          }
        }
      }
    }
  }
}

TEST_P(NestCode, OneKernelServesEveryShape) {
  const auto make = [](int64_t rows, int64_t row) {
    LoopNest nest;
    nest.outer = {rows};
    nest.row = row;
    nest.pointer_count = 2;
    Sweep sweep;
    sweep.body = {load(0, DType::f32, {2 * row, 1}), compute(Op::Negate, DType::f32, {0})};
    sweep.stores = {store(1, 1, DType::f32, {row, 1})};
    nest.sweeps = {sweep};
    return nest;
  };
  EXPECT_EQ(key_of(make(3, 17)), key_of(make(100, 4097)));
  LoopNest other = make(3, 17);
  other.sweeps[0].body[1].op = Op::Abs;
  EXPECT_NE(key_of(make(3, 17)), key_of(other));
}

TEST_P(NestCode, PermutedStoresAndThreeAxes) {
  const int64_t A = 3, B = 5, C = 37;
  LoopNest nest;
  nest.outer = {A, B};
  nest.row = C;
  nest.pointer_count = 2;
  Sweep sweep;
  sweep.body = {load(0, DType::f32, {B * C, C, 1})};
  sweep.stores = {store(0, 1, DType::f32, {1, A, A * B})};
  nest.sweeps = {sweep};
  const size_t count = A * B * C;
  GuardedBuffer in(count * 4), out(count * 4);
  const float* x = fill<float>(in, count, 3);
  run_nest(nest, {in.data(), out.data()});
  const auto* y = static_cast<float*>(out.data());
  for (int64_t a = 0; a < A; ++a) {
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t c = 0; c < C; ++c) {
        ASSERT_EQ(y[a + b * A + c * A * B], x[(a * B + b) * C + c]);
      }
    }
  }
}

// Whole and partial tiles of 16 by 16, several element types, beside operands of other layouts.
TEST_P(NestCode, TransposedReads) {
  std::vector<DType> types = {DType::f32, DType::u8};
  if (GetParam() == LlvmSession::Level::kHost) {
    types.insert(types.end(), {DType::bf16, DType::i64, DType::pred});
  }
  for (DType type : types) {
    for (int64_t rows : {1, 15, 16, 37}) {
      for (int64_t row : {1, 16, 31, 70, 2100}) {
        const int64_t batch = 2, pad = 3;
        LoopNest nest;
        nest.outer = {batch, rows};
        nest.row = row;
        nest.pointer_count = 5;
        const int64_t pitch = rows + pad;
        Sweep sweep;
        sweep.body = {load(0, type, {row * pitch, 1, pitch}), load(1, DType::f32, {0, row, 1}),
                      load(2, DType::f32, {0, 1, 0}), compute(Op::Add, DType::f32, {1, 2})};
        sweep.stores = {store(0, 3, type, {rows * row, row, 1}),
                        store(3, 4, DType::f32, {rows * row, row, 1})};
        nest.sweeps = {sweep};
        const size_t size = size_of(type);
        const auto count = static_cast<size_t>(batch * rows * row);
        const size_t in_bytes = static_cast<size_t>(batch * row * pitch - pad) * size;
        GuardedBuffer in(in_bytes), other(static_cast<size_t>(rows * row) * 4),
            bias(static_cast<size_t>(rows) * 4), out(count * size), sum(count * 4);
        auto* x = static_cast<unsigned char*>(in.data());
        for (size_t k = 0; k < in_bytes; ++k) {
          x[k] = static_cast<unsigned char>(type == DType::pred ? k * 5 % 3 % 2 : k * 7 + k / 256);
        }
        const float* y = fill<float>(other, static_cast<size_t>(rows * row), 5);
        const float* z = fill<float>(bias, static_cast<size_t>(rows), 6);
        run_nest(nest, {in.data(), other.data(), bias.data(), out.data(), sum.data()});
        const auto* got = static_cast<unsigned char*>(out.data());
        for (int64_t g = 0; g < batch; ++g) {
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t c = 0; c < row; ++c) {
              const int64_t to = (g * rows + r) * row + c;
              const int64_t from = (g * row + c) * pitch + r;
              ASSERT_EQ(std::memcmp(got + static_cast<size_t>(to) * size,
                                    x + static_cast<size_t>(from) * size, size),
                        0)
                  << name_of(type) << " " << rows << "x" << row << " at " << r << "," << c;
              ASSERT_EQ(static_cast<float*>(sum.data())[to], y[r * row + c] + z[r]);
            }
          }
        }
      }
    }
  }
}

// Outputs larger than the cache are written around it, from the first aligned element of each row
// on; an element type and a row pitch that keep rows unaligned must not matter.
TEST_P(NestCode, StreamingStoresWriteTheSameBytes) {
  for (int64_t row : {1000, 4099, 2100000}) {
    for (int64_t shift : {0, 1}) {
      const int64_t rows = (2200000 * 2 + row - 1) / row;
      LoopNest nest;
      nest.outer = {rows};
      nest.row = row;
      nest.pointer_count = 3;
      Sweep sweep;
      sweep.body = {load(0, DType::f32, {row, 1}), compute(Op::Add, DType::f32, {0, 0}),
                    compute(Op::Convert, DType::bf16, {1})};
      sweep.stores = {store(1, 1, DType::f32, {row, 1}), store(2, 2, DType::bf16, {row, 1})};
      nest.sweeps = {sweep};
      LoopNest small = nest;
      small.outer = {1};
      EXPECT_NE(key_of(nest), key_of(small));
      const auto count = static_cast<size_t>(rows * row);
      GuardedBuffer in(count * 4), sum(count * 4 + 4 * static_cast<size_t>(shift)), half(count * 2);
      auto* x = static_cast<float*>(in.data());
      for (size_t k = 0; k < count; ++k) x[k] = static_cast<float>(k % 255);
      run_nest(nest, {in.data(), sum.data(), half.data()});
      const auto* y = static_cast<float*>(sum.data());
      const auto* z = static_cast<uint16_t*>(half.data());
      size_t wrong = 0;
      for (size_t k = 0; k < count; ++k) {
        const float want = 2 * static_cast<float>(k % 255);
        wrong += y[k] != want || z[k] != float_to_bf16(want) ? 1 : 0;
      }
      EXPECT_EQ(wrong, 0u) << row;
    }
  }
}

std::vector<double> interesting_numbers() {
  const double inf = std::numeric_limits<double>::infinity();
  std::vector<double> numbers = {
      0.0,          -0.0,         1,           -1,           0.5,
      1.5,          2.5,          -2.5,        126.99,       127.5,
      255,          256,          -129,        448,          464.5,
      240,          57344,        65504,       65520,        70000,
      1e10,         -1e10,        3e9,         2147483648.0, -2147483648.7,
      4294967296.0, 1e19,         -1e19,       1e-5,         1e-8,
      -6e-8,        3e38,         1e300,       inf,          -inf,
      std::nan(""), 0.0009765625, 0.001953125, 0.0146484375, 1.0 / 3,
      1e-40,        9.3e18,       1.8e19,      256.5,        1.00390625};
  std::mt19937 random(5);
  for (int k = 0; k < 500; ++k) {
    numbers.push_back(std::ldexp(static_cast<double>(random()) / 4294967296.0 - 0.5,
                                 static_cast<int>(random() % 60) - 25));
  }
  return numbers;
}

bool both_nan(DType type, const std::byte* a, const std::byte* b) {
  return hlo::with_compute_type(type, [&](auto zero) {
    using T = decltype(zero);
    const T x = hlo::load_element<T>(type, a);
    const T y = hlo::load_element<T>(type, b);
    if constexpr (std::is_floating_point_v<T>) return std::isnan(x) && std::isnan(y);
    if constexpr (hlo::is_complex_v<T>) return std::isnan(x.real()) && std::isnan(y.real());
    return false;
  });
}

// Every pair of element types, against the reference conversion. One kernel per source type.
TEST_P(NestCode, ConvertsEveryPairOfTypes) {
  const std::vector<double> numbers = interesting_numbers();
  const size_t count = numbers.size();
  for (int f = 0; f < kDTypeCount; ++f) {
    const auto from = static_cast<DType>(f);
    LoopNest nest;
    nest.row = static_cast<int64_t>(count);
    nest.pointer_count = kDTypeCount + 1;
    Sweep sweep;
    sweep.body = {load(kDTypeCount, from, {1})};
    std::vector<std::unique_ptr<GuardedBuffer>> outs;
    std::vector<void*> pointers;
    for (int t = 0; t < kDTypeCount; ++t) {
      const auto to = static_cast<DType>(t);
      sweep.body.push_back(compute(Op::Convert, to, {0}));
      sweep.stores.push_back(store(t + 1, t, to, {1}));
      outs.push_back(std::make_unique<GuardedBuffer>(count * size_of(to)));
      pointers.push_back(outs.back()->data());
    }
    nest.sweeps = {sweep};
    GuardedBuffer in(count * size_of(from));
    auto* source = static_cast<std::byte*>(in.data());
    for (size_t k = 0; k < count; ++k) {
      hlo::with_compute_type(from, [&](auto zero) {
        using From = decltype(zero);
        hlo::store_element<From>(from, hlo::convert_number<From>(numbers[k]),
                                 source + k * size_of(from));
      });
    }
    pointers.push_back(in.data());
    run_nest(nest, pointers);
    for (int t = 0; t < kDTypeCount; ++t) {
      const auto to = static_cast<DType>(t);
      for (size_t k = 0; k < count; ++k) {
        std::byte want[16];
        hlo::with_compute_type(from, [&](auto zero) {
          using From = decltype(zero);
          const From stored = hlo::load_element<From>(from, source + k * size_of(from));
          hlo::with_compute_type(to, [&](auto target) {
            using To = decltype(target);
            hlo::store_element<To>(to, hlo::convert_number<To>(stored), want);
          });
        });
        const std::byte* got =
            static_cast<std::byte*>(pointers[static_cast<size_t>(t)]) + k * size_of(to);
        ASSERT_TRUE(std::memcmp(got, want, size_of(to)) == 0 || both_nan(to, got, want))
            << name_of(from) << " to " << name_of(to) << " of " << numbers[k] << " byte "
            << static_cast<int>(got[0]) << " not " << static_cast<int>(want[0]);
      }
    }
  }
}

template <typename T>
std::vector<T> run_binary(Op op, DType type, const std::vector<T>& x, const std::vector<T>& y) {
  LoopNest nest;
  nest.row = static_cast<int64_t>(x.size());
  nest.pointer_count = 3;
  Sweep sweep;
  sweep.body = {load(0, type, {1}), load(1, type, {1}), compute(op, type, {0, 1})};
  sweep.stores = {store(2, 2, type, {1})};
  nest.sweeps = {sweep};
  std::vector<T> out(x.size());
  run_nest(nest, {const_cast<T*>(x.data()), const_cast<T*>(y.data()), out.data()});
  return out;
}

template <typename T>
void check_integers(DType type) {
  using Limits = std::numeric_limits<T>;
  std::vector<T> base = {0,
                         1,
                         2,
                         3,
                         5,
                         7,
                         10,
                         100,
                         Limits::max(),
                         static_cast<T>(Limits::max() - 1),
                         Limits::min(),
                         static_cast<T>(Limits::min() + 1),
                         static_cast<T>(-1),
                         static_cast<T>(-2),
                         static_cast<T>(-7),
                         static_cast<T>(Limits::max() / 3)};
  std::mt19937_64 random(11);
  for (int k = 0; k < 30; ++k) base.push_back(static_cast<T>(random()));
  std::vector<T> x, y;
  for (T a : base) {
    for (T b : base) {
      x.push_back(a);
      y.push_back(b);
    }
  }
  const auto check = [&](Op op, auto exact) {
    const std::vector<T> got = run_binary<T>(op, type, x, y);
    for (size_t k = 0; k < x.size(); ++k) {
      ASSERT_EQ(got[k], static_cast<T>(exact(x[k], y[k])))
          << name_of(type) << " " << hlo::name_of(op) << " " << +x[k] << " " << +y[k];
    }
  };
  using U = std::make_unsigned_t<T>;
  const int bits = static_cast<int>(sizeof(T)) * 8;
  check(Op::Add, [](T a, T b) { return static_cast<U>(a) + static_cast<U>(b); });
  check(Op::Subtract, [](T a, T b) { return static_cast<U>(a) - static_cast<U>(b); });
  check(Op::Multiply, [](T a, T b) {
    return static_cast<uint64_t>(static_cast<U>(a)) * static_cast<uint64_t>(static_cast<U>(b));
  });
  check(Op::Divide, [](T a, T b) -> T {
    if (b == 0) return static_cast<T>(-1);
    if (std::is_signed_v<T> && b == static_cast<T>(-1))
      return static_cast<T>(U(0) - static_cast<U>(a));
    return static_cast<T>(a / b);
  });
  check(Op::Remainder, [](T a, T b) -> T {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
  });
  check(Op::Maximum, [](T a, T b) { return std::max(a, b); });
  check(Op::Minimum, [](T a, T b) { return std::min(a, b); });
  check(Op::And, [](T a, T b) { return a & b; });
  check(Op::Xor, [](T a, T b) { return a ^ b; });
  const auto inside = [bits](T b) {
    return b >= 0 && static_cast<uint64_t>(b) < static_cast<uint64_t>(bits);
  };
  check(Op::ShiftLeft, [&](T a, T b) -> T {
    return inside(b) ? static_cast<T>(static_cast<uint64_t>(a) << b) : T(0);
  });
  check(Op::ShiftRightLogical,
        [&](T a, T b) -> T { return inside(b) ? static_cast<T>(static_cast<U>(a) >> b) : T(0); });
  check(Op::ShiftRightArithmetic, [&](T a, T b) -> T {
    using S = std::make_signed_t<T>;
    return static_cast<T>(static_cast<S>(a) >> (inside(b) ? static_cast<int>(b) : bits - 1));
  });
  check(Op::Power, [](T a, T b) -> T {
    if (std::is_signed_v<T> && b < 0) {
      if (a == 1) return 1;
      if (a == static_cast<T>(-1)) return (b & 1) != 0 ? static_cast<T>(-1) : T(1);
      return 0;
    }
    U result = 1, base = static_cast<U>(a);
    for (U e = static_cast<U>(b); e != 0; e >>= 1) {
      if ((e & 1) != 0) result = static_cast<U>(static_cast<uint64_t>(result) * base);
      base = static_cast<U>(static_cast<uint64_t>(base) * base);
    }
    return static_cast<T>(result);
  });
}

TEST_P(NestCode, IntegerArithmeticIsTotal) {
  check_integers<int8_t>(DType::i8);
  check_integers<uint8_t>(DType::u8);
  check_integers<int16_t>(DType::i16);
  check_integers<uint16_t>(DType::u16);
  check_integers<int32_t>(DType::i32);
  check_integers<uint32_t>(DType::u32);
  check_integers<int64_t>(DType::i64);
  check_integers<uint64_t>(DType::u64);
}

TEST_P(NestCode, NarrowFloatsComputeInSingleAndRoundOnce) {
  for (DType type : {DType::bf16, DType::f16, DType::f8e5m2, DType::f8e4m3fn}) {
    const size_t count = 333;
    LoopNest nest;
    nest.row = static_cast<int64_t>(count);
    nest.pointer_count = 3;
    Sweep sweep;
    sweep.body = {load(0, type, {1}), load(1, type, {2}), compute(Op::Multiply, type, {0, 1})};
    sweep.stores = {store(2, 2, type, {3})};
    nest.sweeps = {sweep};
    const size_t size = size_of(type);
    GuardedBuffer a(count * size), b((2 * count - 1) * size), out((3 * count - 2) * size);
    auto* x = static_cast<std::byte*>(a.data());
    auto* y = static_cast<std::byte*>(b.data());
    for (size_t k = 0; k < count; ++k) {
      hlo::store_element<float>(type, 0.03f * static_cast<float>(k) - 4, x + k * size);
      hlo::store_element<float>(type, 2 - 0.01f * static_cast<float>(k), y + 2 * k * size);
    }
    run_nest(nest, {a.data(), b.data(), out.data()});
    const auto* z = static_cast<std::byte*>(out.data());
    for (size_t k = 0; k < count; ++k) {
      std::byte want[4];
      hlo::store_element<float>(type,
                                hlo::load_element<float>(type, x + k * size) *
                                    hlo::load_element<float>(type, y + 2 * k * size),
                                want);
      ASSERT_EQ(std::memcmp(want, z + 3 * k * size, size), 0) << name_of(type) << " " << k;
    }
  }
}

TEST_P(NestCode, ComplexArithmetic) {
  using C = std::complex<float>;
  const size_t count = 77;
  for (int64_t stride : {1, 2}) {
    LoopNest nest;
    nest.row = static_cast<int64_t>(count);
    nest.pointer_count = 4;
    Sweep sweep;
    sweep.body = {load(0, DType::c64, {stride}), load(1, DType::c64, {1}),
                  compute(Op::Multiply, DType::c64, {0, 1}),
                  compute(Op::Divide, DType::c64, {2, 1}), compute(Op::Abs, DType::f32, {0})};
    sweep.stores = {store(2, 2, DType::c64, {stride}), store(4, 3, DType::f32, {1})};
    nest.sweeps = {sweep};
    const size_t wide = (count - 1) * static_cast<size_t>(stride) + 1;
    GuardedBuffer a(wide * 8), b(count * 8), out(wide * 8), length(count * 4);
    const float* x = fill<float>(a, wide * 2, 1);
    const float* y = fill<float>(b, count * 2, 2);
    run_nest(nest, {a.data(), b.data(), out.data(), length.data()});
    for (size_t k = 0; k < count; ++k) {
      const size_t at = k * static_cast<size_t>(stride);
      const C p(x[2 * at], x[2 * at + 1]);
      const C q(y[2 * k], y[2 * k + 1]);
      const C got = static_cast<C*>(out.data())[at];
      ASSERT_EQ(got.real(), p.real() * q.real() - p.imag() * q.imag());
      ASSERT_NEAR(static_cast<float*>(length.data())[k], std::abs(p), 1e-5);
    }
  }
}

Stmt gather(int pointer, DType type, std::vector<int64_t> strides, std::initializer_list<int> in,
            std::initializer_list<int64_t> index_stride, std::initializer_list<int64_t> extent) {
  Stmt stmt;
  stmt.kind = StmtKind::Gather;
  stmt.type = type;
  stmt.access = access(pointer, type, std::move(strides));
  for (int id : in) stmt.in.push_back(static_cast<StmtId>(id));
  stmt.index_stride = index_stride;
  stmt.index_extent = extent;
  stmt.checked = true;
  return stmt;
}

// An embedding: one index per row. An index outside sets the status word and yields zeros.
TEST_P(NestCode, GathersRowsByIndex) {
  for (DType type : {DType::f32, DType::bf16, DType::u8, DType::c64}) {
    for (bool broken : {false, true}) {
      const int64_t rows = 9, row = 50, table_rows = 6;
      LoopNest nest;
      nest.outer = {rows};
      nest.row = row;
      nest.pointer_count = 4;
      nest.status_pointer = 3;
      nest.status_value = 42;
      Sweep sweep;
      sweep.body = {load(0, DType::i64, {1, 0}), gather(1, type, {0, 1}, {0}, {row}, {table_rows})};
      sweep.stores = {store(1, 2, type, {row, 1})};
      nest.sweeps = {sweep};
      const size_t size = size_of(type);
      GuardedBuffer indices(rows * 8), table(table_rows * row * size), out(rows * row * size);
      auto* index = static_cast<int64_t*>(indices.data());
      for (int64_t r = 0; r < rows; ++r) index[r] = (r * 5) % table_rows;
      if (broken) index[4] = table_rows;
      auto* bytes = static_cast<unsigned char*>(table.data());
      for (size_t k = 0; k < table_rows * row * size; ++k)
        bytes[k] = static_cast<unsigned char>(k * 7);
      int64_t status = 0;
      run_nest(nest, {indices.data(), table.data(), out.data(), &status});
      EXPECT_EQ(status, broken ? 42 : 0);
      const auto* got = static_cast<unsigned char*>(out.data());
      for (int64_t r = 0; r < rows; ++r) {
        for (size_t k = 0; k < row * size; ++k) {
          const bool outside = broken && r == 4;
          ASSERT_EQ(got[r * row * size + k], outside ? 0 : bytes[index[r] * row * size + k]);
        }
      }
    }
  }
}

TEST_P(NestCode, GathersElementsByIndexVectors) {
  for (DType type : {DType::f32, DType::i16, DType::i64, DType::pred}) {
    const int64_t row = 83, extent0 = 7, extent1 = 11;
    LoopNest nest;
    nest.row = row;
    nest.pointer_count = 5;
    nest.status_pointer = 4;
    Sweep sweep;
    sweep.body = {load(0, DType::i64, {1}), load(1, DType::i32, {1}),
                  gather(2, type, {0}, {0, 1}, {extent1, 1}, {extent0, extent1})};
    sweep.stores = {store(2, 3, type, {1})};
    nest.sweeps = {sweep};
    const size_t size = size_of(type);
    GuardedBuffer i0(row * 8), i1(row * 4), table(extent0 * extent1 * size), out(row * size);
    auto* a = static_cast<int64_t*>(i0.data());
    auto* b = static_cast<int32_t*>(i1.data());
    for (int64_t k = 0; k < row; ++k) {
      a[k] = (k * 3) % extent0;
      b[k] = static_cast<int32_t>((k * 5) % extent1);
    }
    auto* bytes = static_cast<unsigned char*>(table.data());
    for (size_t k = 0; k < static_cast<size_t>(extent0 * extent1) * size; ++k) {
      bytes[k] = static_cast<unsigned char>(type == DType::pred ? k % 2 : k * 3);
    }
    for (int bad = 0; bad < 2; ++bad) {
      if (bad == 1) b[70] = -1;
      int64_t status = 0;
      run_nest(nest, {i0.data(), i1.data(), table.data(), out.data(), &status});
      EXPECT_EQ(status, bad);
      const auto* got = static_cast<unsigned char*>(out.data());
      for (int64_t k = 0; k < row; ++k) {
        if (bad == 1 && k == 70) continue;
        ASSERT_EQ(std::memcmp(got + static_cast<size_t>(k) * size,
                              bytes + static_cast<size_t>(a[k] * extent1 + b[k]) * size, size),
                  0);
      }
    }
  }
}

// A masked load stands for padding: lanes that are off may point anywhere.
TEST_P(NestCode, MaskedLoadsTouchNothingOutside) {
  for (DType type : {DType::f32, DType::u8, DType::f64, DType::bf16}) {
    for (int64_t stride : {1, 3}) {
      const int64_t inner = 40, pad = 7, row = inner + 2 * pad;
      LoopNest nest;
      nest.row = row;
      nest.pointer_count = 2;
      Stmt padded = load(0, type, {stride});
      padded.in = {4};
      padded.masked = true;
      Sweep sweep;
      // As unsigned numbers, one comparison checks both ends.
      sweep.body = {
          testing::axis_index(0),
          testing::constant_i64(pad),
          compute(Op::Subtract, DType::i64, {0, 1}),
          testing::constant_i64(inner),
          compute(Op::BitcastConvert, DType::u64, {2}),
          compute(Op::BitcastConvert, DType::u64, {3}),
          compute(Op::Compare, DType::pred, {4, 5}, static_cast<int64_t>(hlo::Direction::LT)),
          padded};
      sweep.body[7].in = {6};
      sweep.stores = {store(7, 1, type, {1})};
      nest.sweeps = {sweep};
      const size_t size = size_of(type);
      const size_t bytes_in = static_cast<size_t>((inner - 1) * stride + 1) * size;
      GuardedBuffer in(bytes_in), out(static_cast<size_t>(row) * size);
      auto* x = static_cast<unsigned char*>(in.data());
      for (size_t k = 0; k < bytes_in; ++k) x[k] = static_cast<unsigned char>(k % 100);
      unsigned char* shifted = x - static_cast<size_t>(pad * stride) * size;
      run_nest(nest, {shifted, out.data()});
      const auto* y = static_cast<unsigned char*>(out.data());
      for (int64_t k = 0; k < row; ++k) {
        for (size_t byte = 0; byte < size; ++byte) {
          const bool inside = k >= pad && k < pad + inner;
          ASSERT_EQ(y[static_cast<size_t>(k) * size + byte],
                    inside ? x[static_cast<size_t>((k - pad) * stride) * size + byte] : 0);
        }
      }
    }
  }
}

struct Words {
  uint32_t word[4];
};
Words philox_reference(uint64_t key, uint64_t counter) {
  uint32_t c[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
  uint32_t k[2] = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = 0xD2511F53ull * c[0];
    const uint64_t p1 = 0xCD9E8D57ull * c[2];
    const uint32_t next[4] = {
        static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1),
        static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
    std::copy(next, next + 4, c);
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return {{c[0], c[1], c[2], c[3]}};
}

TEST_P(NestCode, PhiloxWordsAndScalars) {
  const int64_t rows = 3, row = 70;
  alignas(16) uint64_t scalars[6] = {0, 0, 0x123456789ABCDEFull, 0, 0xFFFFFFFFFFull, 0};
  LoopNest nest;
  nest.outer = {rows};
  nest.row = row;
  nest.pointer_count = 3;
  Stmt key, offset, linear, word0, word3;
  key.kind = offset.kind = StmtKind::Scalar;
  key.type = offset.type = DType::u64;
  key.access.stored = offset.access.stored = DType::u64;
  key.number = 1;
  offset.number = 2;
  linear.kind = StmtKind::Linear;
  linear.type = DType::u64;
  linear.access = access(0, DType::i64, {row, 1});
  linear.access.offset = 5;
  word0.kind = word3.kind = StmtKind::Philox;
  word0.type = word3.type = DType::u32;
  word0.in = word3.in = {0, 3};
  word3.number = 3;
  Sweep sweep;
  sweep.body = {key, offset, linear, compute(Op::Add, DType::u64, {1, 2}), word0, word3};
  sweep.stores = {store(4, 1, DType::u32, {row, 1}), store(5, 2, DType::u32, {row, 1})};
  nest.sweeps = {sweep};
  GuardedBuffer out0(rows * row * 4), out3(rows * row * 4);
  run_nest(nest, {scalars, out0.data(), out3.data()});
  for (int64_t k = 0; k < rows * row; ++k) {
    const Words want = philox_reference(scalars[2], scalars[4] + 5 + static_cast<uint64_t>(k));
    ASSERT_EQ(static_cast<uint32_t*>(out0.data())[k], want.word[0]);
    ASSERT_EQ(static_cast<uint32_t*>(out3.data())[k], want.word[3]);
  }
}

TEST_P(NestCode, MaximumPropagatesNanAndStoresUnderAMask) {
  const size_t count = 40;
  LoopNest nest;
  nest.row = static_cast<int64_t>(count);
  nest.pointer_count = 3;
  Sweep sweep;
  sweep.body = {
      load(0, DType::f32, {1}), load(1, DType::f32, {1}), compute(Op::Maximum, DType::f32, {0, 1}),
      compute(Op::Compare, DType::pred, {0, 0}, static_cast<int64_t>(hlo::Direction::EQ))};
  sweep.stores = {store(2, 2, DType::f32, {1})};
  nest.sweeps = {sweep};
  std::vector<float> x(count, 1), y(count, 2), z(count, 7);
  x[3] = std::nanf("");
  y[5] = std::nanf("");
  run_nest(nest, {x.data(), y.data(), z.data()});
  EXPECT_TRUE(std::isnan(z[3]) && std::isnan(z[5]) && z[4] == 2);
  nest.sweeps[0].stores[0].mask = 3;
  std::fill(z.begin(), z.end(), 7.0f);
  run_nest(nest, {x.data(), y.data(), z.data()});
  EXPECT_TRUE(z[3] == 7 && std::isnan(z[5]) && z[4] == 2);
}

}  // namespace
}  // namespace neuron::compiler::cpu
