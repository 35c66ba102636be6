#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "neuron/compiler/cpu/testing/run_plan.h"
#include "neuron/hlo/builder.h"
#include "neuron/hlo/evaluate_internal.h"

namespace neuron::compiler::cpu {
namespace {

using Complex = std::complex<double>;
using hlo::Op;
using testing::NestRunner;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

hlo::Array array_of(DType type, const std::vector<Complex>& numbers) {
  hlo::Array array = hlo::internal::make_array({type, {static_cast<int64_t>(numbers.size())}});
  hlo::with_compute_type(type, [&](auto tag) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      hlo::internal::store_at(array, static_cast<int64_t>(i),
                              hlo::convert_number<decltype(tag)>(numbers[i]));
    }
  });
  return array;
}

Complex number_at(const hlo::Array& array, int64_t i) {
  return hlo::with_compute_type(array.type.dtype, [&](auto tag) -> Complex {
    return hlo::convert_number<Complex>(hlo::internal::load_at<decltype(tag)>(array, i));
  });
}

bool close(double a, double e, double rtol, double atol, bool signed_zero) {
  if (std::isnan(e)) return std::isnan(a);
  if (signed_zero && e == 0 && a == 0) return std::signbit(a) == std::signbit(e);
  return a == e || std::abs(a - e) <= rtol * std::abs(e) + atol;
}

const std::vector<Complex>& ordinary() {
  static const std::vector<Complex> numbers = [] {
    std::vector<Complex> all;
    uint64_t state = 1;
    const auto next = [&] {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      return static_cast<double>(state >> 11) * 0x1p-53;
    };
    for (int i = 0; i < 200; ++i) {
      const double size = std::exp(12 * next() - 8);
      all.push_back(std::polar(size, 6.28 * next()));
    }
    for (double re : {0.0, -0.0, 1.0, -1.0, 0.5, -2.0}) {
      for (double im : {0.0, -0.0, 1.0, -1.0}) all.push_back({re, im});
    }
    all.push_back({1e-20, 1e-20});
    all.push_back({1, 1e-6});
    all.push_back({1e18, -3e17});
    return all;
  }();
  return numbers;
}

const std::vector<Complex>& special() {
  static const std::vector<Complex> numbers = {
      {kInfinity, 0},  {-kInfinity, 0}, {kInfinity, 2}, {-kInfinity, -2}, {0, kInfinity},
      {1, -kInfinity}, {kNan, 0},       {kNan, 1},      {kInfinity, kNan}};
  return numbers;
}

/// Runs one op on each number and compares with the evaluator's, which is the C++ library's.
void check(Op op, DType type, const std::vector<Complex>& numbers,
           const std::vector<Complex>& exponents, const NestRunner& runner, double rtol) {
  SCOPED_TRACE(std::string(hlo::name_of(op)) + " " + std::string(name_of(type)));
  const auto count = static_cast<int64_t>(numbers.size());
  hlo::Builder b;
  const hlo::Value x = b.parameter(type, Dims{count});
  std::vector<hlo::Array> parameters = {array_of(type, numbers)};
  if (op == Op::Power) {
    const hlo::Value y = b.parameter(type, Dims{count});
    parameters.push_back(array_of(type, exponents));
    b.result(b.pow(x, y));
  } else {
    b.result(b.unary(op, x));
  }
  const hlo::Module module = b.finish();
  const Plan plan = make_plan(module);
  const testing::RunOutcome outcome = testing::run_plan(module, plan, parameters, {}, runner);
  EXPECT_EQ(outcome.library_steps, 0);
  const hlo::Array expected = hlo::evaluate(module, parameters)[0];
  for (int64_t i = 0; i < count; ++i) {
    const Complex a = number_at(outcome.results[0], i), e = number_at(expected, i);
    // Relative to the number, not to the part: libraries do not promise more.
    const double floor = std::isfinite(std::abs(e)) ? rtol * std::abs(e) : 0;
    // A zero's sign decides between branches later; those of a quotient are an accident.
    const bool signs = op != Op::Rsqrt && op != Op::Logistic && op != Op::Power && op != Op::Sign;
    EXPECT_TRUE(close(a.real(), e.real(), rtol, floor + 1e-300, signs) &&
                close(a.imag(), e.imag(), rtol, floor + 1e-300, signs))
        << "f" << number_at(parameters[0], i) << " = " << a << ", not " << e;
  }
}

const Op kUnary[] = {Op::Exp,   Op::Exp2,   Op::Expm1, Op::Log,      Op::Log2, Op::Log10,
                     Op::Log1p, Op::Sqrt,   Op::Rsqrt, Op::Logistic, Op::Tanh, Op::Tan,
                     Op::Sine,  Op::Cosine, Op::Sinh,  Op::Cosh,     Op::Sign};

void check_ordinary(const NestRunner& runner) {
  for (Op op : kUnary) {
    check(op, DType::c64, ordinary(), {}, runner, 1e-6);
    check(op, DType::c128, ordinary(), {}, runner, op == Op::Log1p ? 1e-9 : 1e-13);
  }
}

TEST(ComplexFunctions, OrdinaryInterpreted) { check_ordinary(testing::interpreted()); }
TEST(ComplexFunctions, OrdinaryGenerated) { check_ordinary(testing::generated()); }

TEST(ComplexFunctions, SpecialValues) {
  for (Op op : {Op::Exp, Op::Log, Op::Sqrt, Op::Tanh}) {
    check(op, DType::c64, special(), {}, testing::generated(), 1e-6);
    check(op, DType::c128, special(), {}, testing::generated(), 1e-13);
  }
}

TEST(ComplexFunctions, EndsOfTheRange) {
  const std::vector<Complex> numbers = {
      {1e308, 1e308}, {-1.7e308, 1e300}, {1e-310, 2e-310}, {3e-308, -1e-320}, {1e160, 1e150}};
  for (Op op : {Op::Log, Op::Sqrt, Op::Rsqrt}) {
    check(op, DType::c128, numbers, {}, testing::generated(), 1e-11);
  }
  check(Op::Exp, DType::c128, {{709.9, 1.5}, {-740, 1}}, {}, testing::generated(), 1e-9);
}

TEST(ComplexFunctions, Power) {
  std::vector<Complex> bases, exponents;
  for (size_t i = 0; i + 7 < ordinary().size(); ++i) {
    const Complex base = ordinary()[i];
    if (base == Complex(0) || std::abs(base) > 30 || std::abs(base) < 0.01) continue;
    bases.push_back(base);
    exponents.push_back({std::fmod(ordinary()[i + 7].real(), 3), 0.5});
  }
  bases.insert(bases.end(), {{0, 0}, {0, 0}, {2, 1}});
  exponents.insert(exponents.end(), {{2, 0}, {1, 1}, {0, 0}});
  check(Op::Power, DType::c64, bases, exponents, testing::generated(), 1e-5);
  check(Op::Power, DType::c128, bases, exponents, testing::generated(), 1e-11);
}

/// Views, constants, reductions and results of complex numbers.
TEST(ComplexNumbers, MoveAndReduce) {
  for (DType type : {DType::c64, DType::c128}) {
    SCOPED_TRACE(name_of(type));
    hlo::Builder b;
    const hlo::Value x = b.parameter(type, Dims{20, 9}, Dims{1, 24});
    const hlo::Value s = b.scalar(DType::c128);
    const hlo::Value y = b.mul(b.transpose(x, Dims{1, 0}), b.convert(s, type));
    b.result(y, Dims{1, 9});
    b.result(b.pad(y, b.constant_complex(type, {2, -3}), Dims{1, 2}, Dims{0, 1}));
    b.result(b.concatenate(std::vector<hlo::Value>{y, b.neg(y)}, 1));
    b.result(b.reverse(y, Dims{0}));
    b.result(b.sum(y, Dims{0}));
    b.result(b.sum(y, Dims{1}));
    b.result(b.reduce(hlo::ReduceKind::Product, b.slice_dim(y, 1, 0, 3), Dims{1}));
    b.result(b.complex(b.imag(y), b.abs(y)));
    const hlo::Value x1 = b.transpose(x, Dims{1, 0});
    b.result(b.select(b.eq(y, b.complex(b.real(y), b.neg(b.imag(y)))), y, b.div(y, x1)));
    b.result(b.sum(b.broadcast_to(b.constant_complex(type, {1, 2}), Dims{70000}), Dims{0}));
    b.result(b.reduce(hlo::ReduceKind::Product, b.zeros(type, Dims{0, 3}), Dims{0}));
    const hlo::Module module = b.finish();
    const std::vector<hlo::Array> parameters = {[&] {
      std::vector<Complex> numbers(ordinary().begin(), ordinary().begin() + 180);
      hlo::Array array = array_of(type, numbers);
      array.type.dims = {20, 9};
      return array;
    }()};
    const std::vector<Complex> scalars = {{0.5, -1.5}};
    const std::vector<hlo::Array> expected = hlo::evaluate(module, parameters, scalars);
    for (const NestRunner& runner : {testing::interpreted(), testing::generated()}) {
      const testing::RunOutcome outcome =
          testing::run_plan(module, make_plan(module), parameters, scalars, runner);
      for (size_t r = 0; r < expected.size(); ++r) {
        EXPECT_EQ(testing::difference(outcome.results[r], expected[r], 1e-5, 1e-5), "")
            << "result " << r;
      }
    }
  }
}

}  // namespace
}  // namespace neuron::compiler::cpu
