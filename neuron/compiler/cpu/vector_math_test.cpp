#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "neuron/compiler/cpu/kernel_loader_test.h"
#include "neuron/compiler/cpu/llvm_session.h"
#include "neuron/compiler/cpu/loop_nest.h"

// Accuracy and special values of the generated elementary functions, against the C library in
// higher precision.
namespace neuron::compiler::cpu {
namespace {

using hlo::Op;

LoopNest function_nest(Op op, DType type, int operands) {
  LoopNest nest;
  nest.pointer_count = static_cast<uint16_t>(operands + 1);
  Sweep sweep;
  Stmt compute;
  compute.op = op;
  compute.type = type;
  for (int k = 0; k < operands; ++k) {
    Stmt load;
    load.kind = StmtKind::Load;
    load.type = type;
    load.access.pointer = static_cast<uint16_t>(k);
    load.access.stored = type;
    load.access.kind = {Stride::Unit};
    load.access.stride = {1};
    sweep.body.push_back(load);
    compute.in.push_back(static_cast<StmtId>(k));
  }
  sweep.body.push_back(compute);
  Store store;
  store.value = static_cast<StmtId>(operands);
  store.access = sweep.body[0].access;
  store.access.pointer = static_cast<uint16_t>(operands);
  sweep.stores.push_back(store);
  nest.sweeps.push_back(sweep);
  return nest;
}

template <typename T>
std::vector<T> run(Op op, const std::vector<T>& x, const std::vector<T>& y = {}) {
  static LlvmSession session;
  static LlvmSession old_session(LlvmSession::Level::kAvx2);
  LoopNest nest = function_nest(op, sizeof(T) == 4 ? DType::f32 : DType::f64, y.empty() ? 1 : 2);
  nest.row = static_cast<int64_t>(x.size());
  const testing::LoadedKernel kernel(session.compile(nest, "kernel"));
  std::vector<T> out(x.size(), T(-77));
  std::vector<void*> pointers = {const_cast<T*>(x.data())};
  if (!y.empty()) pointers.push_back(const_cast<T*>(y.data()));
  pointers.push_back(out.data());
  const std::vector<int64_t> args = arguments_of(nest);
  kernel.function()(pointers.data(), args.data(), 0, iterations_of(nest));
  // Results are the same bits on processors without AVX-512.
  std::vector<T> again(x.size(), T(-78));
  pointers.back() = again.data();
  const testing::LoadedKernel old_kernel(old_session.compile(nest, "kernel"));
  old_kernel.function()(pointers.data(), args.data(), 0, iterations_of(nest));
  for (size_t k = 0; k < x.size(); ++k) {
    if (std::isnan(out[k]) && std::isnan(again[k])) continue;
    EXPECT_EQ(std::memcmp(&out[k], &again[k], sizeof(T)), 0)
        << hlo::name_of(op) << "(" << x[k] << "): " << out[k] << " or " << again[k];
  }
  return out;
}

// The distance in units of the last place of the exact result.
template <typename T>
double ulp_error(T got, long double exact) {
  const T rounded = static_cast<T>(exact);
  if (std::isnan(rounded)) return std::isnan(got) ? 0 : 1e9;
  if (std::isinf(rounded) || std::isinf(got)) {
    if (got == rounded) return 0;
    // One side overflowed: fine if the exact value is within a few ulp of the limit.
    const long double limit = std::numeric_limits<T>::max();
    const long double a = std::fabs(exact);
    return a > limit * (1 - 4 * std::numeric_limits<T>::epsilon()) &&
                   a < limit * (1 + 4 * std::numeric_limits<T>::epsilon())
               ? 1
               : 1e9;
  }
  int exponent;
  std::frexp(rounded, &exponent);
  const int digits = std::numeric_limits<T>::digits;
  long double ulp = std::ldexp(1.0L, exponent - digits);
  const long double smallest = std::numeric_limits<T>::denorm_min();
  if (rounded == 0 || ulp < smallest) ulp = smallest;
  return static_cast<double>(std::fabs(static_cast<long double>(got) - exact) / ulp);
}

template <typename T>
std::vector<T> specials() {
  using Limits = std::numeric_limits<T>;
  const T inf = Limits::infinity();
  return {T(0),
          -T(0),
          inf,
          -inf,
          Limits::quiet_NaN(),
          T(1),
          T(-1),
          Limits::min(),
          -Limits::min(),
          Limits::denorm_min(),
          -Limits::denorm_min(),
          Limits::max(),
          Limits::lowest(),
          T(0.5),
          T(-0.5),
          T(2),
          T(-2),
          Limits::epsilon(),
          T(3),
          T(-3)};
}

template <typename T>
void add_range(std::vector<T>& x, double low, double high, int count, bool logarithmic = false) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> unit(0, 1);
  for (int k = 0; k < count; ++k) {
    const double u = unit(random);
    const double value = logarithmic
                             ? std::exp(std::log(low) + u * (std::log(high) - std::log(low)))
                             : low + u * (high - low);
    x.push_back(static_cast<T>(value));
    if (logarithmic) x.push_back(static_cast<T>(-value));
  }
}

template <typename T>
void check(Op op, std::function<long double(long double)> exact, std::vector<T> x, double limit) {
  const std::vector<T> extra = specials<T>();
  x.insert(x.end(), extra.begin(), extra.end());
  const std::vector<T> got = run<T>(op, x);
  double worst = 0;
  for (size_t k = 0; k < x.size(); ++k) {
    const long double want = exact(x[k]);
    const double error = ulp_error(got[k], want);
    if (error > worst) worst = error;
    if (error > limit) {
      ADD_FAILURE() << hlo::name_of(op) << "(" << x[k] << ") = " << got[k] << ", not "
                    << static_cast<double>(want) << ": " << error << " ulp";
      if (worst > 100 * limit) return;
    }
    if (want == 0 && x[k] == 0) {
      EXPECT_EQ(std::signbit(got[k]), std::signbit(static_cast<T>(want)))
          << hlo::name_of(op) << "(" << x[k] << ") lost the sign of zero";
    }
  }
  ::testing::Test::RecordProperty(std::string(hlo::name_of(op)), std::to_string(worst));
  printf("%-10s %s worst %.2f ulp\n", std::string(hlo::name_of(op)).c_str(),
         sizeof(T) == 4 ? "f32" : "f64", worst);
}

template <typename T>
void check_range(Op op, std::function<long double(long double)> exact, double low, double high,
                 double limit, bool tiny = true) {
  std::vector<T> x;
  add_range<T>(x, low, high, 40000);
  if (tiny) add_range<T>(x, sizeof(T) == 4 ? 1e-44 : 1e-320, 1, 8000, true);
  check<T>(op, exact, x, limit);
}

long double logistic(long double x) { return 1 / (1 + std::exp(-x)); }

template <typename T>
class VectorMathTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(VectorMathTest, Types);

TYPED_TEST(VectorMathTest, ExponentialsAreAccurate) {
  using T = TypeParam;
  const double limit = sizeof(T) == 4 ? 2 : 2;
  const double top = sizeof(T) == 4 ? 110 : 760;
  check_range<T>(Op::Exp, [](long double x) { return std::exp(x); }, -top, top, limit);
  check_range<T>(
      Op::Exp2, [](long double x) { return std::exp2(x); }, -1.6 * top, 1.6 * top, limit);
  check_range<T>(Op::Expm1, [](long double x) { return std::expm1(x); }, -50, top, limit);
  check_range<T>(Op::Expm1, [](long double x) { return std::expm1(x); }, -2, 2, limit);
  check_range<T>(Op::Tanh, [](long double x) { return std::tanh(x); }, -12, 12, 2.5);
  check_range<T>(Op::Sinh, [](long double x) { return std::sinh(x); }, -top, top, 3);
  check_range<T>(Op::Sinh, [](long double x) { return std::sinh(x); }, -2, 2, 3);
  check_range<T>(Op::Cosh, [](long double x) { return std::cosh(x); }, -top, top, 3);
}

TYPED_TEST(VectorMathTest, LogisticIsAccurateWhereTheExponentialIsFinite) {
  using T = TypeParam;
  std::vector<T> x;
  add_range<T>(x, sizeof(T) == 4 ? -87 : -708, 40, 40000);
  const std::vector<T> got = run<T>(Op::Logistic, x);
  for (size_t k = 0; k < x.size(); ++k) {
    ASSERT_LE(ulp_error(got[k], logistic(x[k])), 2.5) << x[k];
  }
  EXPECT_EQ(run<T>(Op::Logistic, {std::numeric_limits<T>::infinity()})[0], T(1));
  EXPECT_EQ(run<T>(Op::Logistic, {-std::numeric_limits<T>::infinity()})[0], T(0));
}

TYPED_TEST(VectorMathTest, LogarithmsAreAccurate) {
  using T = TypeParam;
  const auto positive = [](double low, double high) {
    std::vector<T> x;
    add_range<T>(x, low, high, 20000);
    add_range<T>(x, sizeof(T) == 4 ? 1e-44 : 1e-320, sizeof(T) == 4 ? 3e38 : 1e308, 20000, true);
    return x;
  };
  check<T>(Op::Log, [](long double x) { return std::log(x); }, positive(0.5, 2), 2);
  check<T>(Op::Log2, [](long double x) { return std::log2(x); }, positive(0.5, 2), 3);
  check<T>(Op::Log10, [](long double x) { return std::log10(x); }, positive(0.5, 2), 3);
  check<T>(Op::Log1p, [](long double x) { return std::log1p(x); }, positive(-0.99, 2), 2);
  check<T>(Op::Rsqrt, [](long double x) { return 1 / std::sqrt(x); }, positive(0.5, 2), 1.5);
}

TYPED_TEST(VectorMathTest, InverseHyperbolicsAreAccurate) {
  using T = TypeParam;
  const double top = sizeof(T) == 4 ? 1e38 : 1e300;
  std::vector<T> x;
  add_range<T>(x, sizeof(T) == 4 ? 1e-44 : 1e-320, top, 20000, true);
  add_range<T>(x, -4, 4, 20000);
  check<T>(Op::Asinh, [](long double v) { return std::asinh(v); }, x, 3);
  check<T>(Op::Acosh, [](long double v) { return std::acosh(v); }, x, 3);
  check_range<T>(Op::Atanh, [](long double v) { return std::atanh(v); }, -1, 1, 3);
}

TYPED_TEST(VectorMathTest, ErrorFunctionsAreAccurate) {
  using T = TypeParam;
  check_range<T>(Op::Erf, [](long double x) { return std::erf(x); }, -7, 7, 2.5);
  check_range<T>(Op::Erfc, [](long double x) { return std::erfc(x); }, -8, 28, 4);
}

// The inverse is judged by what erf makes of it.
TYPED_TEST(VectorMathTest, InverseErrorFunctionIsAccurate) {
  using T = TypeParam;
  std::vector<T> x;
  add_range<T>(x, -1, 1, 20000);
  add_range<T>(x, 1e-30, 1, 5000, true);
  for (int k = 2; k < std::numeric_limits<T>::digits; ++k) x.push_back(T(1) - std::ldexp(T(1), -k));
  const std::vector<T> got = run<T>(Op::ErfInv, x);
  for (size_t k = 0; k < x.size(); ++k) {
    // One step of Newton's method in long double from the result gives the exact value.
    const long double y = got[k];
    const long double a = std::fabs(static_cast<long double>(x[k]));
    const long double error =
        a < 0.5L ? std::erf(std::fabs(y)) - a : (1 - a) - std::erfc(std::fabs(y));
    const long double slope = 1.128379167095512573896L * std::exp(-y * y);
    const long double exact = std::copysign(std::fabs(y) - error / slope, y);
    ASSERT_LE(ulp_error(got[k], exact), 4) << x[k];
  }
  EXPECT_EQ(run<T>(Op::ErfInv, {T(1)})[0], std::numeric_limits<T>::infinity());
  EXPECT_TRUE(std::isnan(run<T>(Op::ErfInv, {T(1.5)})[0]));
}

TYPED_TEST(VectorMathTest, TrigonometryIsAccurate) {
  using T = TypeParam;
  std::vector<T> x;
  add_range<T>(x, -10, 10, 20000);
  add_range<T>(x, 1e-30, 1e5, 20000, true);
  for (int k = 1; k < 2000; ++k) x.push_back(static_cast<T>(k * 1.5707963267948966192));
  check<T>(Op::Sine, [](long double v) { return std::sin(v); }, x, 2);
  check<T>(Op::Cosine, [](long double v) { return std::cos(v); }, x, 2);
  check<T>(Op::Tan, [](long double v) { return std::tan(v); }, x, 3);
  check_range<T>(Op::Asin, [](long double v) { return std::asin(v); }, -1, 1, 3);
  check_range<T>(Op::Acos, [](long double v) { return std::acos(v); }, -1, 1, 3);
  check_range<T>(Op::Atan, [](long double v) { return std::atan(v); }, -20, 20, 3);
}

TYPED_TEST(VectorMathTest, HugeArgumentsOfSineAreReducedExactly) {
  using T = TypeParam;
  std::vector<T> x;
  add_range<T>(x, 1e5, sizeof(T) == 4 ? 3e38 : 1e308, 20000, true);
  check<T>(Op::Sine, [](long double v) { return std::sin(v); }, x, 2);
  check<T>(Op::Cosine, [](long double v) { return std::cos(v); }, x, 2);
}

template <typename T>
void check_binary(Op op, std::function<long double(long double, long double)> exact,
                  std::vector<T> x, std::vector<T> y, double limit) {
  for (T a : specials<T>()) {
    for (T b : specials<T>()) {
      x.push_back(a);
      y.push_back(b);
    }
  }
  const std::vector<T> got = run<T>(op, x, y);
  double worst = 0;
  for (size_t k = 0; k < x.size(); ++k) {
    const long double want = exact(x[k], y[k]);
    const double error = ulp_error(got[k], want);
    worst = std::max(worst, error);
    ASSERT_LE(error, limit) << hlo::name_of(op) << "(" << x[k] << ", " << y[k] << ") = " << got[k]
                            << ", not " << static_cast<double>(want);
    if (want == 0) {
      EXPECT_EQ(std::signbit(got[k]), std::signbit(static_cast<T>(want))) << x[k] << " " << y[k];
    }
  }
  printf("%-10s %s worst %.2f ulp\n", std::string(hlo::name_of(op)).c_str(),
         sizeof(T) == 4 ? "f32" : "f64", worst);
}

TYPED_TEST(VectorMathTest, TwoOperandFunctionsAreAccurate) {
  using T = TypeParam;
  const double top = sizeof(T) == 4 ? 1e30 : 1e250;
  std::vector<T> x, y;
  add_range<T>(x, 0.01, 100, 20000);
  add_range<T>(y, -40, 40, 20000);
  add_range<T>(x, 1e-20, 1e20, 10000, true);
  for (int k = 0; k < 20000; ++k) y.push_back(static_cast<T>(k % 41 - 20));
  check_binary<T>(Op::Power, [](long double a, long double c) { return std::pow(a, c); }, x, y, 2);
  x.clear();
  y.clear();
  add_range<T>(x, 1 / top, top, 10000, true);
  add_range<T>(y, -10, 10, 10000);
  add_range<T>(y, 1 / top, top, 5000, true);
  check_binary<T>(
      Op::Atan2, [](long double a, long double c) { return std::atan2(a, c); }, x, y, 2);
  check_binary<T>(
      Op::Remainder, [](long double a, long double c) { return std::fmod(a, c); }, x, y, 0);
  check_binary<T>(
      Op::NextAfter,
      [](long double a, long double c) {
        return std::nextafter(static_cast<T>(a), static_cast<T>(c));
      },
      x, y, 0);
}

}  // namespace
}  // namespace neuron::compiler::cpu
