#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "neuron/base/shape.h"
#include "neuron/nrt/nrt.h"
#include "neuron/nrtsim/element.h"
#include "neuron/nrtsim/library_table.h"

namespace neuron::nrtsim {
namespace {

enum class Op : uint8_t {
#define NEURON_OP(enumerator, name, operands, category) enumerator,
#include "neuron/hlo/ops.def"
#undef NEURON_OP
};

/// A tensor with its own strides, filled through doubles.
struct Tensor {
  DType dtype;
  Dims sizes, strides;
  std::vector<std::byte> bytes;

  Tensor(DType dtype, Dims sizes, Dims strides = {}) : dtype(dtype), sizes(sizes) {
    this->strides = strides.empty() ? contiguous_strides(sizes) : strides;
    bytes.resize(static_cast<size_t>(storage_extent(sizes, this->strides)) * size_of(dtype) + 1);
  }
  int64_t count() const { return count_elements(sizes); }
  int64_t offset(int64_t linear) const {
    int64_t at = 0;
    for (size_t d = sizes.size(); d-- > 0;) {
      at += linear % sizes[d] * strides[d];
      linear /= sizes[d];
    }
    return at;
  }
  void set(int64_t linear, double value) {
    with_stored(dtype, [&](auto tag) {
      using S = decltype(tag);
      const S stored = narrow_to<S>(convert<Compute<S>>(value));
      std::memcpy(bytes.data() + offset(linear) * sizeof(S), &stored, sizeof(S));
    });
  }
  double get(int64_t linear) const {
    return with_stored(dtype, [&](auto tag) {
      using S = decltype(tag);
      S stored;
      std::memcpy(&stored, bytes.data() + offset(linear) * sizeof(S), sizeof(S));
      return convert<double>(load(stored));
    });
  }
  int64_t linear(std::initializer_list<int64_t> index) const {
    int64_t at = 0;
    size_t d = 0;
    for (const int64_t i : index) at = at * sizes[d++] + i;
    return at;
  }
  Tensor& fill(std::function<double(int64_t)> f) {
    for (int64_t i = 0; i < count(); ++i) set(i, f(i));
    return *this;
  }
  Tensor& random(unsigned seed, double low = -2, double high = 2) {
    std::mt19937 generator(seed);
    std::uniform_real_distribution<double> value(low, high);
    return fill([&](int64_t) { return value(generator); });
  }
  std::vector<double> values() const {
    std::vector<double> result;
    for (int64_t i = 0; i < count(); ++i) result.push_back(get(i));
    return result;
  }
};

std::string g_message;

int run(const std::string& name, std::vector<Tensor*> inputs, std::vector<Tensor*> outputs,
        std::vector<int64_t> ints) {
  const nrtsim_lib_kernel_t* kernel = find_library_kernel(name);
  if (kernel == nullptr) return -1;
  std::vector<nrtsim_lib_tensor_t> in, out;
  std::vector<void*> in_data, out_data;
  const auto add = [](const Tensor& t, auto& tensors, auto& data) {
    tensors.push_back({static_cast<uint32_t>(t.dtype), static_cast<uint32_t>(t.sizes.size()),
                       t.sizes.data(), t.strides.data()});
    data.push_back(const_cast<std::byte*>(t.bytes.data()));
  };
  for (const Tensor* t : inputs) add(*t, in, in_data);
  for (const Tensor* t : outputs) add(*t, out, out_data);
  const nrtsim_lib_call_t call = {sizeof(call), name.c_str(),
                                  in.data(),    static_cast<uint32_t>(in.size()),
                                  out.data(),   static_cast<uint32_t>(out.size()),
                                  ints.data(),  ints.size(),
                                  nullptr,      0};
  char message[512] = "";
  void* state = kernel->prepare != nullptr ? kernel->prepare(&call) : nullptr;
  const int status = kernel->run(state, &call, in_data.data(), out_data.data(), &library_context(),
                                 message, sizeof(message));
  if (state != nullptr && kernel->destroy != nullptr) kernel->destroy(state);
  g_message = message;
  return status;
}

constexpr DType kAll[] = {DType::pred,   DType::i8,  DType::i16, DType::i32,      DType::i64,
                          DType::u8,     DType::u16, DType::u32, DType::u64,      DType::f16,
                          DType::bf16,   DType::f32, DType::f64, DType::f8e4m3fn, DType::f8e4m3,
                          DType::f8e5m2, DType::c64, DType::c128};

TEST(Builtin, CopyConvertsBetweenAllDtypesAndStrides) {
  for (const DType from : kAll) {
    for (const DType to : kAll) {
      Tensor x(from, {3, 5, 4}, {40, 1, 10});
      Tensor y(to, {3, 5, 4}, {1, 12, 3});
      x.fill([](int64_t i) { return static_cast<double>(i % 7); });
      ASSERT_EQ(run("neuron.copy", {&x}, {&y}, {}), 0) << g_message;
      for (int64_t i = 0; i < x.count(); ++i) {
        const double expected = to == DType::pred ? x.get(i) != 0 : x.get(i);
        ASSERT_EQ(y.get(i), expected) << name_of(from) << " " << name_of(to) << " " << i;
      }
    }
  }
}

TEST(Builtin, BinaryBroadcastsThroughStrideZero) {
  Tensor a(DType::f32, {4, 300}), b(DType::f32, {4, 300}, {0, 1}), y(DType::f32, {4, 300});
  a.random(1);
  b.random(2);
  ASSERT_EQ(run("neuron.binary", {&a, &b}, {&y}, {static_cast<int64_t>(Op::Multiply)}), 0);
  for (int64_t i = 0; i < y.count(); ++i) {
    ASSERT_EQ(y.get(i), static_cast<float>(a.get(i)) * static_cast<float>(b.get(i)));
  }
  Tensor less(DType::pred, {4, 300});
  ASSERT_EQ(run("neuron.binary", {&a, &b}, {&less}, {static_cast<int64_t>(Op::Compare), 2}), 0);
  for (int64_t i = 0; i < y.count(); ++i) ASSERT_EQ(less.get(i), a.get(i) < b.get(i));
  ASSERT_EQ(run("neuron.ternary", {&less, &a, &b}, {&y}, {static_cast<int64_t>(Op::Select)}), 0);
  for (int64_t i = 0; i < y.count(); ++i) ASSERT_EQ(y.get(i), std::min(a.get(i), b.get(i)));
}

TEST(Builtin, IntegersWrapAndDivideByZero) {
  Tensor a(DType::i32, {4}), b(DType::i32, {4}), y(DType::i32, {4});
  const double min = std::numeric_limits<int32_t>::min();
  const double as[] = {7, min, -7, min}, bs[] = {0, -1, 2, 3};
  a.fill([&](int64_t i) { return as[i]; });
  b.fill([&](int64_t i) { return bs[i]; });
  ASSERT_EQ(run("neuron.binary", {&a, &b}, {&y}, {static_cast<int64_t>(Op::Divide)}), 0);
  EXPECT_EQ(y.values(), (std::vector<double>{-1, min, -3, -715827882}));
  ASSERT_EQ(run("neuron.binary", {&a, &b}, {&y}, {static_cast<int64_t>(Op::Remainder)}), 0);
  EXPECT_EQ(y.values(), (std::vector<double>{7, 0, -1, -2}));
  ASSERT_EQ(run("neuron.unary", {&a}, {&y}, {static_cast<int64_t>(Op::Abs)}), 0);
  EXPECT_EQ(y.get(1), min);
}

TEST(Builtin, UnaryRefusesWhatHasNoMeaning) {
  Tensor a(DType::i32, {4}), y(DType::i32, {4});
  EXPECT_EQ(run("neuron.unary", {&a}, {&y}, {static_cast<int64_t>(Op::Exp)}), NRT_INVALID);
  EXPECT_EQ(g_message, "Exp has no meaning for i32");
  EXPECT_EQ(run("neuron.unary", {&a}, {&y}, {999}), NRT_INVALID);
}

TEST(Builtin, SpecialFunctionsKeepTheirDigits) {
  struct Case {
    Op op;
    double x, y;
  };
  for (const Case& c : {Case{Op::Digamma, 1, -0.57721566490153286},
                        {Op::Digamma, -0.5, 0.03648997397857652},
                        {Op::ErfInv, 0.5, 0.47693627620446987},
                        {Op::ErfInv, -0.999999, -3.4589107372754988},
                        {Op::Lgamma, 0.5, 0.57236494292470008},
                        {Op::Log10, 1000, 3},
                        {Op::RoundNearestEven, 2.5, 2},
                        {Op::Sign, -0.0, 0}}) {
    Tensor x(DType::f64, {1}), y(DType::f64, {1});
    x.set(0, c.x);
    ASSERT_EQ(run("neuron.unary", {&x}, {&y}, {static_cast<int64_t>(c.op)}), 0) << g_message;
    EXPECT_NEAR(y.get(0), c.y, 1e-12 * std::max(1.0, std::fabs(c.y))) << c.x;
  }
}

TEST(Builtin, DotOfEveryDtypeAndLayout) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64,
                            DType::i8, DType::u8, DType::c64}) {
    for (const auto& [m, k, n] :
         {std::array<int64_t, 3>{1, 1, 1}, {3, 5, 7}, {65, 300, 130}, {4, 0, 3}, {1, 257, 33}}) {
      for (const bool transposed : {false, true}) {
        Tensor a(dtype, {2, m, k}, transposed ? Dims{m * k, 1, m} : Dims{});
        Tensor b(dtype, {2, k, n}, transposed ? Dims{k * n, 1, k} : Dims{});
        Tensor y(dtype, {2, m, n});
        const auto small = [](int64_t i) { return static_cast<double>(i * 7 % 5) - 2; };
        a.fill(small);
        b.fill([&](int64_t i) { return small(i * 3); });
        if (is_unsigned_integer(dtype)) {
          a.fill([&](int64_t i) { return small(i) + 2; });
          b.fill([&](int64_t i) { return small(i * 3) + 2; });
        }
        ASSERT_EQ(run("neuron.dot", {&a, &b}, {&y}, {}), 0) << g_message;
        for (int64_t batch = 0; batch < 2; ++batch) {
          for (int64_t i = 0; i < m; i += m > 10 ? 8 : 1) {  // Both ends of both tiles.
            for (int64_t j = 0; j < n; j += n > 100 ? 43 : 11) {
              double sum = 0;
              for (int64_t l = 0; l < k; ++l) {
                sum += a.get(a.linear({batch, i, l})) * b.get(b.linear({batch, l, j}));
              }
              Tensor rounded(dtype, {1});  // Integers wrap, narrow floats round once.
              if (is_integer(dtype)) {
                const auto wrapped = static_cast<int64_t>(sum);
                sum = dtype == DType::i8   ? static_cast<int8_t>(wrapped)
                      : dtype == DType::u8 ? static_cast<uint8_t>(wrapped)
                                           : sum;
              }
              rounded.set(0, sum);
              ASSERT_EQ(y.get(y.linear({batch, i, j})), rounded.get(0))
                  << name_of(dtype) << " " << m << " " << k << " " << n;
            }
          }
        }
      }
    }
  }
}

TEST(Builtin, DotMayWidenItsResult) {
  Tensor a(DType::bf16, {1, 2, 300}), b(DType::bf16, {1, 300, 2}), y(DType::f32, {1, 2, 2});
  a.fill([](int64_t) { return 1.0; });
  b.fill([](int64_t) { return 1.0; });
  ASSERT_EQ(run("neuron.dot", {&a, &b}, {&y}, {}), 0) << g_message;
  EXPECT_EQ(y.get(3), 300);  // A running sum in bf16 would stop at 256.
}

// Straight from the definition.
void check_convolution(Dims input, Dims kernel, Dims stride, Dims low, Dims high, Dims lhs,
                       Dims rhs, int64_t groups, int64_t batch_groups, bool reverse) {
  const size_t n = stride.size();
  Dims out = {input[0] / batch_groups, kernel[0]};
  std::vector<int64_t> ints = {static_cast<int64_t>(n)};
  for (const Dims* part : {&stride, &low, &high, &lhs, &rhs}) {
    ints.insert(ints.end(), part->begin(), part->end());
  }
  ints.insert(ints.end(), {groups, batch_groups, reverse});
  for (size_t d = 0; d < n; ++d) {
    const int64_t padded = (input[d + 2] - 1) * lhs[d] + 1 + low[d] + high[d];
    out.push_back((padded - ((kernel[d + 2] - 1) * rhs[d] + 1)) / stride[d] + 1);
  }
  Tensor x(DType::f64, input), w(DType::f64, kernel), y(DType::f64, out);
  x.random(3);
  w.random(4);
  ASSERT_EQ(run("neuron.convolution", {&x, &w}, {&y}, ints), 0) << g_message;
  int64_t taps = 1;
  for (size_t d = 0; d < n; ++d) taps *= kernel[d + 2];
  for (int64_t i = 0; i < y.count(); ++i) {
    Dims index(out.size(), 0);
    int64_t rest = i;
    for (size_t d = out.size(); d-- > 0;) {
      index[d] = rest % out[d];
      rest /= out[d];
    }
    double sum = 0;
    for (int64_t c = 0; c < kernel[1]; ++c) {
      for (int64_t t = 0; t < taps; ++t) {
        int64_t tap_rest = t, w_at = index[1] * kernel[1] + c;
        Dims tap(n, 0);
        for (size_t d = n; d-- > 0;) {
          tap[d] = tap_rest % kernel[d + 2];
          tap_rest /= kernel[d + 2];
        }
        const int64_t group = index[1] / (kernel[0] / groups);
        int64_t x_at = (index[1] / (kernel[0] / batch_groups) * out[0] + index[0]) * input[1] +
                       group * kernel[1] + c;
        bool inside = true;
        for (size_t d = 0; d < n; ++d) {
          const int64_t position = index[d + 2] * stride[d] + tap[d] * rhs[d] - low[d];
          inside =
              inside && position >= 0 && position % lhs[d] == 0 && position / lhs[d] < input[d + 2];
          x_at = x_at * input[d + 2] + position / lhs[d];
          w_at = w_at * kernel[d + 2] + (reverse ? kernel[d + 2] - 1 - tap[d] : tap[d]);
        }
        if (inside) sum += x.get(x_at) * w.get(w_at);
      }
    }
    ASSERT_NEAR(y.get(i), sum, 1e-12) << i;
  }
}

TEST(Builtin, ConvolutionFollowsTheDefinition) {
  check_convolution({2, 3, 9, 8}, {4, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1, 1,
                    false);
  check_convolution({1, 4, 9, 11}, {6, 2, 3, 2}, {2, 3}, {0, 2}, {1, 0}, {1, 1}, {2, 1}, 2, 1,
                    false);
  check_convolution({2, 2, 5, 4}, {3, 2, 3, 3}, {1, 1}, {2, 2}, {2, 2}, {2, 3}, {1, 1}, 1, 1, true);
  check_convolution({4, 3, 6}, {4, 3, 4}, {1}, {-1}, {1}, {1}, {1}, 1, 2, false);
  check_convolution({1, 2, 4, 5, 3}, {2, 2, 2, 2, 2}, {1, 2, 1}, {1, 0, 1}, {0, 1, 1}, {1, 1, 1},
                    {1, 1, 1}, 1, 1, false);
}

TEST(Builtin, SortIsStableAndPutsNanLast) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Tensor x(DType::f32, {7}), values(DType::f32, {7}), indices(DType::i64, {7});
  const double items[] = {3, nan, -0.0, 0.0, -1, nan, 3};
  x.fill([&](int64_t i) { return items[i]; });
  ASSERT_EQ(run("neuron.sort", {&x}, {&values, &indices}, {0, 0}), 0) << g_message;
  EXPECT_EQ(indices.values(), (std::vector<double>{4, 2, 3, 0, 6, 1, 5}));
  EXPECT_TRUE(std::signbit(values.get(1)));
  ASSERT_EQ(run("neuron.sort", {&x}, {&values, &indices}, {0, 1}), 0);
  EXPECT_EQ(indices.values(), (std::vector<double>{1, 5, 0, 6, 2, 3, 4}));
}

TEST(Builtin, SortOfEveryDtypeAlongEveryDim) {
  for (const DType dtype : kAll) {
    if (is_complex(dtype)) continue;
    for (const int64_t length : {1, 10, 1500}) {
      Tensor x(dtype, {3, length}, {1, 3}), values(dtype, {3, length}),
          indices(DType::i64, {3, length});
      x.random(5, -100, 100);
      if (is_unsigned_integer(dtype)) x.random(5, 0, 200);
      ASSERT_EQ(run("neuron.sort", {&x}, {&values, &indices}, {1, length % 2}), 0) << g_message;
      for (int64_t row = 0; row < 3; ++row) {
        for (int64_t i = 0; i < length; ++i) {
          const auto from = static_cast<int64_t>(indices.get(row * length + i));
          ASSERT_EQ(values.get(row * length + i), x.get(row * length + from));
          if (i == 0) continue;
          const double before = values.get(row * length + i - 1),
                       now = values.get(row * length + i);
          ASSERT_TRUE(length % 2 != 0 ? before >= now : before <= now) << name_of(dtype);
          if (before == now) {
            ASSERT_LT(indices.get(row * length + i - 1), indices.get(row * length + i));
          }
        }
      }
    }
  }
}

TEST(Builtin, GatherPlacesTheIndexShape) {
  Tensor x(DType::f32, {3, 4, 5}), index(DType::i32, {2, 2}), y(DType::f32, {3, 2, 2, 5});
  x.fill([](int64_t i) { return static_cast<double>(i); });
  const double items[] = {3, 0, 2, 2};
  index.fill([&](int64_t i) { return items[i]; });
  ASSERT_EQ(run("neuron.gather", {&x, &index}, {&y}, {1, 0, 1}), 0) << g_message;
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t s = 0; s < 4; ++s) {
      for (int64_t j = 0; j < 5; ++j) {
        ASSERT_EQ(y.get((i * 4 + s) * 5 + j), static_cast<double>((i * 4 + items[s]) * 5 + j));
      }
    }
  }
  index.set(2, 4);
  EXPECT_EQ(run("neuron.gather", {&x, &index}, {&y}, {1, 0, 1}), NRT_EXEC_OOB);
  EXPECT_EQ(g_message, "index 4 is out of range for dim 1 of size 4");
  ASSERT_EQ(run("neuron.gather", {&x, &index}, {&y}, {1, 1, 1}), 0);
  EXPECT_EQ(y.get(2 * 5), 0);
  // Two index tensors over dims 0 and 2, index shape in front.
  Tensor a(DType::i64, {2}), b(DType::i64, {2}), z(DType::f32, {2, 4});
  a.fill([](int64_t i) { return static_cast<double>(2 - i); });
  b.fill([](int64_t i) { return static_cast<double>(i + 3); });
  ASSERT_EQ(run("neuron.gather", {&x, &a, &b}, {&z}, {0, 0, 0, 2}), 0) << g_message;
  for (int64_t s = 0; s < 2; ++s) {
    for (int64_t j = 0; j < 4; ++j) {
      ASSERT_EQ(z.get(s * 4 + j), static_cast<double>(((2 - s) * 4 + j) * 5 + s + 3));
    }
  }
}

TEST(Builtin, ScatterCombinesDuplicatesInOrder) {
  for (const int64_t kind : {0, 1, 2, 3, 4}) {
    Tensor x(DType::f32, {4, 3}), updates(DType::f32, {3, 3}), index(DType::i64, {3});
    Tensor y(DType::f32, {4, 3});
    x.fill([](int64_t i) { return static_cast<double>(i + 1); });
    updates.fill([](int64_t i) { return static_cast<double>(10 - i); });
    const double rows[] = {1, 3, 1};
    index.fill([&](int64_t i) { return rows[i]; });
    ASSERT_EQ(run("neuron.scatter", {&x, &updates, &index}, {&y}, {0, kind, 0}), 0) << g_message;
    std::vector<double> expected = x.values();
    for (int64_t i = 0; i < 9; ++i) {
      double& old = expected[static_cast<size_t>(rows[i / 3] * 3 + static_cast<double>(i % 3))];
      const double update = updates.get(i);
      old = kind == 0   ? update
            : kind == 1 ? old + update
            : kind == 2 ? old * update
            : kind == 3 ? std::min(old, update)
                        : std::max(old, update);
    }
    EXPECT_EQ(y.values(), expected) << kind;
    index.set(1, -1);
    const std::vector<double> before = y.values();
    EXPECT_EQ(run("neuron.scatter", {&x, &updates, &index}, {&y}, {0, kind, 0}), NRT_EXEC_OOB);
    EXPECT_EQ(y.values(), before);  // Nothing was written.
  }
}

TEST(Builtin, SlicesAreClampedAndStridedWritesLand) {
  Tensor x(DType::i16, {4, 4}), update(DType::i16, {2, 2}), y(DType::i16, {4, 4});
  Tensor s0(DType::i64, {}), s1(DType::i32, {});
  x.fill([](int64_t) { return 0.0; });
  update.fill([](int64_t i) { return static_cast<double>(i + 1); });
  s0.set(0, 9);
  s1.set(0, -1);
  ASSERT_EQ(run("neuron.dynamic_update_slice", {&x, &update, &s0, &s1}, {&y}, {}), 0) << g_message;
  EXPECT_EQ(y.values(), (std::vector<double>{0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 3, 4, 0, 0}));
  ASSERT_EQ(run("neuron.as_strided_scatter", {&x, &update}, {&y}, {1, 8, 2}), 0) << g_message;
  EXPECT_EQ(y.values(), (std::vector<double>{0, 1, 0, 2, 0, 0, 0, 0, 0, 3, 0, 4, 0, 0, 0, 0}));
  EXPECT_EQ(run("neuron.as_strided_scatter", {&x, &update}, {&y}, {8, 8, 2}), NRT_INVALID);
}

TEST(Builtin, ReduceOverAnyDims) {
  for (const DType dtype : {DType::f32, DType::f64, DType::i64, DType::bf16}) {
    for (const std::vector<int64_t>& dims :
         {std::vector<int64_t>{0}, {1}, {2}, {0, 2}, {1, 2}, {0, 1, 2}, {}}) {
      for (const int64_t kind : {0, 2, 3}) {
        Tensor x(dtype, {5, 300, 7});
        x.fill([](int64_t i) { return static_cast<double>(i * 37 % 11) - 5; });
        Dims out;
        for (int64_t d = 0; d < 3; ++d) {
          if (std::find(dims.begin(), dims.end(), d) == dims.end()) {
            out.push_back(x.sizes[static_cast<size_t>(d)]);
          }
        }
        Tensor y(dtype, out);
        std::vector<int64_t> ints = {kind};
        ints.insert(ints.end(), dims.begin(), dims.end());
        ASSERT_EQ(run("neuron.reduce", {&x}, {&y}, ints), 0) << g_message;
        std::map<int64_t, double> expected;
        for (int64_t i = 0; i < x.count(); ++i) {
          const int64_t index[] = {i / 2100, i / 7 % 300, i % 7};
          int64_t at = 0;
          for (int64_t d = 0; d < 3; ++d) {
            if (std::find(dims.begin(), dims.end(), d) == dims.end()) {
              at = at * x.sizes[static_cast<size_t>(d)] + index[d];
            }
          }
          const double v = x.get(i);
          const auto [it, fresh] = expected.try_emplace(at, v);
          if (!fresh) {
            it->second = kind == 0   ? it->second + v
                         : kind == 2 ? std::max(it->second, v)
                                     : std::min(it->second, v);
          }
        }
        for (const auto& [at, value] : expected) {
          Tensor rounded(dtype, {1});
          rounded.set(0, value);
          ASSERT_EQ(y.get(at), rounded.get(0)) << name_of(dtype) << " " << kind;
        }
      }
    }
  }
}

TEST(Builtin, ReductionsOfNothingAndOfNan) {
  Tensor none(DType::f32, {3, 0}), y(DType::f32, {3});
  ASSERT_EQ(run("neuron.reduce", {&none}, {&y}, {0, 1}), 0);
  EXPECT_EQ(y.get(1), 0);
  ASSERT_EQ(run("neuron.reduce", {&none}, {&y}, {2, 1}), 0);
  EXPECT_EQ(y.get(1), -std::numeric_limits<double>::infinity());
  Tensor x(DType::f32, {3, 40});
  x.random(9);
  x.set(50, std::numeric_limits<double>::quiet_NaN());
  ASSERT_EQ(run("neuron.reduce", {&x}, {&y}, {2, 1}), 0);
  EXPECT_FALSE(std::isnan(y.get(0)));
  EXPECT_TRUE(std::isnan(y.get(1)));
  Tensor index(DType::i64, {3});
  ASSERT_EQ(run("neuron.arg_reduce", {&x}, {&index}, {1, 1}), 0) << g_message;
  EXPECT_EQ(index.get(1), 10);
  Tensor c(DType::c64, {2, 3}), z(DType::c64, {2});
  EXPECT_EQ(run("neuron.reduce", {&c}, {&z}, {2, 1}), NRT_INVALID);
}

TEST(Builtin, ArgReduceTakesTheFirstExtreme) {
  Tensor x(DType::i32, {4, 3}), y(DType::i64, {3});
  const double items[] = {1, 5, 2, 7, 5, 2, 7, 0, 2, 1, 0, 3};
  x.fill([&](int64_t i) { return items[i]; });
  ASSERT_EQ(run("neuron.arg_reduce", {&x}, {&y}, {0, 1}), 0) << g_message;
  EXPECT_EQ(y.values(), (std::vector<double>{1, 0, 3}));
  ASSERT_EQ(run("neuron.arg_reduce", {&x}, {&y}, {0, 0}), 0);
  EXPECT_EQ(y.values(), (std::vector<double>{0, 2, 0}));
}

TEST(Builtin, ScanRunsAlongItsDim) {
  Tensor x(DType::f32, {2, 600, 3}), y(DType::f32, {2, 600, 3});
  x.random(11);
  ASSERT_EQ(run("neuron.scan", {&x}, {&y}, {0, 1}), 0) << g_message;
  for (int64_t j = 0; j < 3; ++j) {
    double sum = 0;
    for (int64_t i = 0; i < 600; ++i) {
      sum += x.get(x.linear({1, i, j}));
      ASSERT_EQ(y.get(y.linear({1, i, j})), static_cast<float>(sum));
    }
  }
  ASSERT_EQ(run("neuron.scan", {&x}, {&x}, {2, 1}), 0);  // In place.
  for (int64_t i = 1; i < 600; ++i)
    ASSERT_GE(x.get(x.linear({0, i, 0})), x.get(x.linear({0, i - 1, 0})));
}

TEST(Builtin, ReduceWindowPadsAndDilates) {
  Tensor x(DType::f32, {1, 6, 7}), y(DType::f32, {1, 3, 4});
  x.fill([](int64_t i) { return static_cast<double>(i * 31 % 17); });
  // Size 1,2,3; stride 1,2,2; dilation 1,2,1; padding low 0,1,1.
  for (const int64_t kind : {0, 2}) {
    ASSERT_EQ(run("neuron.reduce_window", {&x}, {&y},
                  {kind, 3, 1, 2, 3, 1, 2, 2, 1, 2, 1, 0, 1, 1, 0, 0, 1}),
              0)
        << g_message;
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t j = 0; j < 4; ++j) {
        double expected = kind == 0 ? 0 : -std::numeric_limits<double>::infinity();
        for (int64_t a = 0; a < 2; ++a) {
          for (int64_t b = 0; b < 3; ++b) {
            const int64_t r = i * 2 + a * 2 - 1, c = j * 2 + b - 1;
            if (r < 0 || r >= 6 || c < 0 || c >= 7) continue;
            const double v = x.get(r * 7 + c);
            expected = kind == 0 ? expected + v : std::max(expected, v);
          }
        }
        ASSERT_EQ(y.get(i * 4 + j), expected) << i << " " << j;
      }
    }
  }
}

// Rows of results run tap by tap; few results in a row one after the other: both give the same.
TEST(Builtin, ReduceWindowOverRowsOfAnyWidth) {
  for (const int64_t width : {1, 3, 4, 256, 600}) {
    Tensor x(DType::f32, {2, 2 * width}), y(DType::f32, {2, width});
    x.fill([](int64_t i) { return static_cast<double>(i * 37 % 101) - 50; });
    for (const int64_t kind : {0, 2}) {  // Size 3, stride 2, padding 1.
      ASSERT_EQ(run("neuron.reduce_window", {&x}, {&y}, {kind, 2, 1, 3, 1, 2, 1, 1, 0, 1, 0, 1}), 0)
          << g_message;
      for (int64_t i = 0; i < 2 * width; ++i) {
        double expected = kind == 0 ? 0 : -std::numeric_limits<double>::infinity();
        for (int64_t k = 0; k < 3; ++k) {
          const int64_t at = i % width * 2 + k - 1;
          if (at < 0 || at >= 2 * width) continue;
          const double v = x.get(i / width * 2 * width + at);
          expected = kind == 0 ? expected + v : std::max(expected, v);
        }
        ASSERT_EQ(y.get(i), expected) << width << " " << i;
      }
    }
  }
}

TEST(Builtin, ScatterOfElementsByTwoIndicesOfAnyDtype) {
  for (const DType dtype : {DType::i64, DType::i32}) {
    Tensor x(DType::f32, {5, 7}), y(DType::f32, {5, 7}), updates(DType::f32, {40});
    Tensor row(dtype, {40}), column(dtype, {40});
    x.fill([](int64_t i) { return static_cast<double>(i); });
    updates.fill([](int64_t i) { return static_cast<double>(i * i); });
    row.fill([](int64_t i) { return static_cast<double>(i * 3 % 5); });
    column.fill([](int64_t i) { return static_cast<double>(i * 5 % 7); });
    ASSERT_EQ(run("neuron.scatter", {&x, &updates, &row, &column}, {&y}, {0, 1, 0, 1}), 0)
        << g_message;
    std::vector<double> expected = x.values();
    for (int64_t i = 0; i < 40; ++i) {
      expected[static_cast<size_t>(i * 3 % 5 * 7 + i * 5 % 7)] += static_cast<double>(i * i);
    }
    EXPECT_EQ(y.values(), expected);
    column.set(39, 7);
    EXPECT_EQ(run("neuron.scatter", {&x, &updates, &row, &column}, {&y}, {0, 1, 0, 1}),
              NRT_EXEC_OOB);
    EXPECT_EQ(y.values(), expected);
  }
}

TEST(Builtin, DotOfLongVectors) {
  for (const int64_t k : {1500, 4096, 20000}) {
    Tensor a(DType::f32, {1, 1, k}), b(DType::f32, {1, k, 1}), y(DType::f32, {1, 1, 1});
    a.fill([](int64_t i) { return static_cast<double>(i % 7); });
    b.fill([](int64_t i) { return static_cast<double>(i % 5); });
    double expected = 0;  // Integers below 2**24: exact in any order.
    for (int64_t i = 0; i < k; ++i) expected += static_cast<double>(i % 7 * (i % 5));
    ASSERT_EQ(run("neuron.dot", {&a, &b}, {&y}, {}), 0) << g_message;
    EXPECT_EQ(y.get(0), expected) << k;
  }
}

}  // namespace
}  // namespace neuron::nrtsim
