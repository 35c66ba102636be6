// Random modules: the plan's result must be what the reference evaluator says, whatever was fused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/plan.h"
#include "neuron/compiler/cpu/testing/run_plan.h"
#include "neuron/hlo/builder.h"
#include "neuron/hlo/evaluate_internal.h"

namespace neuron::compiler::cpu {
namespace {

using hlo::Builder;
using hlo::Op;
using hlo::Value;

struct Case {
  hlo::Module module;
  std::vector<hlo::Array> parameters;
  std::vector<std::complex<double>> scalars;
};

class Generator {
 public:
  Generator(uint64_t seed, DType type) : random_(seed), type_(type), floats_(is_floating(type)) {}

  Case make(int ops) {
    const int inputs = pick(1, 4);
    for (int i = 0; i < inputs; ++i) add_parameter();
    if (pick(0, 2) == 0) add_scalar();
    for (int i = 0; i < ops; ++i) add_op();
    add_results();
    Case result;
    result.module = b_.finish();
    hlo::verify(result.module);
    for (const hlo::Parameter& p : result.module.parameters()) {
      hlo::Array array = random_array(p.type);
      // Elements that share an address are equal.
      hlo::internal::for_each_index(p.type.dims, [&](const Dims& index, int64_t linear) {
        Dims first = index;
        for (size_t d = 0; d < first.size(); ++d) {
          if (p.strides[d] == 0) first[d] = 0;
        }
        const int64_t from = hlo::internal::offset_of(first, contiguous_strides(p.type.dims));
        hlo::internal::copy_element(array, from, array, linear);
      });
      result.parameters.push_back(std::move(array));
    }
    for (size_t i = 0; i < result.module.scalars().size(); ++i)
      result.scalars.push_back(pick(1, 4));
    return result;
  }

 private:
  int64_t pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  DType dtype() const { return type_; }

  Dims random_dims() {
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 6, 8, 12, 17, 24};
    Dims dims(static_cast<size_t>(pick(0, 3)));
    for (int64_t& d : dims) d = sizes[pick(0, 9)];
    return dims;
  }

  hlo::Array random_array(const hlo::Type& type) {
    hlo::Array array = hlo::internal::make_array(type);
    hlo::with_compute_type(type.dtype, [&](auto tag) {
      using T = decltype(tag);
      for (int64_t i = 0; i < count_elements(type.dims); ++i) {
        if constexpr (std::is_floating_point_v<T>) {
          hlo::internal::store_at<T>(array, i, static_cast<T>(pick(-64, 64)) / 32);
        } else if constexpr (!hlo::is_complex_v<T>) {
          hlo::internal::store_at<T>(array, i, static_cast<T>(pick(-9, 9)));
        }
      }
    });
    return array;
  }

  void add_parameter() {
    const Dims dims = random_dims();
    Dims strides;
    const int64_t kind = pick(0, 4);
    if (kind == 0 && dims.size() > 1) {
      // Transposed in memory.
      Dims order = dims;
      std::reverse(order.begin(), order.end());
      const Dims reversed = contiguous_strides(order);
      for (size_t i = 0; i < dims.size(); ++i) strides.push_back(reversed[dims.size() - 1 - i]);
    } else if (kind == 1) {
      strides = contiguous_strides(dims);
      for (int64_t& s : strides) s *= 3;  // With gaps.
    } else if (kind == 2 && !dims.empty()) {
      strides = contiguous_strides(dims);
      strides[static_cast<size_t>(pick(0, static_cast<int64_t>(dims.size()) - 1))] = 0;
    }
    const DType type = pick(0, 5) == 0 && floats_ ? DType::bf16 : dtype();
    Value v = b_.parameter(type, dims, strides);
    parameters_.push_back({v, strides});
    pool_.push_back(b_.convert(v, dtype()));
  }

  void add_scalar() {
    pool_.push_back(b_.convert(b_.scalar(floats_ ? DType::f64 : DType::i64), dtype()));
  }

  Value any() {
    // Recent values more often: deep graphs rather than wide ones.
    const auto n = static_cast<int64_t>(pool_.size());
    const int64_t back = std::min(pick(0, n - 1), pick(0, n - 1));
    return pool_[static_cast<size_t>(n - 1 - back)];
  }

  Value like(const Dims& dims) {
    for (int attempt = 0; attempt < 8; ++attempt) {
      Value v = any();
      if (v.dims() == dims) return v;
      if (v.rank() <= static_cast<int64_t>(dims.size())) {
        bool fits = true;
        for (int64_t i = 1; i <= v.rank(); ++i) {
          const int64_t have = v.dim(-i), want = dims[dims.size() - static_cast<size_t>(i)];
          fits = fits && (have == want || have == 1);
        }
        if (fits) return b_.broadcast_to(v, dims);
      }
    }
    return b_.broadcast_to(b_.constant(dtype(), static_cast<double>(pick(-2, 3))), dims);
  }

  Value tame(Value v) {
    // Keeps numbers small, so that tolerances mean something.
    if (floats_) return pick(0, 1) == 0 ? b_.tanh(v) : b_.mul(v, b_.like(v, 0.25));
    return b_.bit_and(v, b_.like(v, size_of(type_) == 1 ? 31 : 1023));
  }

  Value index_like(const Dims& dims, int64_t size) {
    Value v = pick(0, 1) == 0 && !dims.empty()
                  ? b_.iota(DType::i64, dims, static_cast<int64_t>(dims.size()) - 1)
                  : b_.convert(like(dims), DType::i64);
    v = b_.rem(v, b_.like(v, static_cast<double>(size)));
    return b_.select(b_.lt(v, b_.like(v, 0)), b_.add(v, b_.like(v, static_cast<double>(size))), v);
  }

  void add_op() {
    Value x = any();
    const Dims dims = x.dims();
    const auto rank = static_cast<int64_t>(dims.size());
    const int64_t some_dim = rank > 0 ? pick(0, rank - 1) : 0;
    Value v;
    switch (pick(0, 23)) {
      case 0:
        v = b_.add(x, like(dims));
        break;
      case 1:
        v = tame(b_.mul(x, like(dims)));
        break;
      case 2:
        v = b_.sub(like(dims), x);
        break;
      case 3:
        v = b_.max(x, like(dims));
        break;
      case 4:
        v = b_.select(b_.lt(x, like(dims)), x, like(dims));
        break;
      case 5:
        v = floats_ ? b_.exp(b_.neg(b_.abs(x))) : b_.neg(x);
        break;
      case 6:
        v = floats_ ? b_.logistic(x) : b_.abs(x);
        break;
      case 7: {  // Any reshape of the same count.
        const int64_t n = x.count();
        Dims to;
        int64_t left = n;
        for (int64_t f : {2, 3, 4, 5, 6}) {
          if (pick(0, 1) == 0 && left % f == 0 && left > 0) {
            to.push_back(f);
            left /= f;
          }
        }
        to.insert(static_cast<size_t>(pick(0, static_cast<int64_t>(to.size()))), left);
        v = b_.reshape(x, to);
        break;
      }
      case 8: {
        Dims p(dims.size());
        for (size_t i = 0; i < p.size(); ++i) p[i] = static_cast<int64_t>(i);
        std::shuffle(p.begin(), p.end(), random_);
        v = b_.transpose(x, p);
        break;
      }
      case 9: {
        Dims start, limit, stride;
        for (int64_t d : dims) {
          start.push_back(pick(0, d - 1));
          limit.push_back(pick(start.back() + 1, d));
          stride.push_back(pick(1, 2));
        }
        v = b_.slice(x, start, limit, stride);
        break;
      }
      case 10: {
        Dims low, high, gap;
        for (size_t i = 0; i < dims.size(); ++i) {
          low.push_back(pick(-1, 2));
          high.push_back(pick(0, 2));
          gap.push_back(pick(0, 4) == 0 ? 1 : 0);
          if (dims[i] + low.back() + high.back() + gap.back() * (dims[i] - 1) < 1) low.back() = 0;
        }
        v = b_.pad(x, b_.constant(dtype(), static_cast<double>(pick(0, 1))), low, high, gap);
        break;
      }
      case 11: {
        if (rank == 0) return;
        std::vector<Value> parts{x};
        for (int64_t k = pick(1, 4); k-- > 0;) {
          Dims other = dims;
          other[static_cast<size_t>(some_dim)] = pick(1, 4);
          parts.push_back(like(other));
        }
        std::shuffle(parts.begin(), parts.end(), random_);
        v = b_.concatenate(parts, some_dim);
        break;
      }
      case 12:
        if (rank == 0) return;
        v = b_.reverse(x, Dims{some_dim});
        break;
      case 13:
      case 14: {
        Dims reduced;
        for (int64_t i = 0; i < rank; ++i) {
          if (pick(0, 1) == 0) reduced.push_back(i);
        }
        const bool keep = pick(0, 1) == 0;
        v = b_.reduce(pick(0, 1) == 0 ? hlo::ReduceKind::Sum : hlo::ReduceKind::Max, x, reduced,
                      keep);
        if (floats_) v = b_.mul(v, b_.like(v, 0.1));
        if (keep) pool_.push_back(b_.broadcast_to(v, dims));
        break;
      }
      case 15: {  // Softmax over a dim.
        if (rank == 0 || !floats_) return;
        Value e = b_.exp(b_.sub(x, b_.max_keepdim(x, some_dim)));
        v = b_.div(e, b_.sum_keepdim(e, some_dim));
        break;
      }
      case 16: {  // Layer norm.
        if (rank == 0 || !floats_) return;
        const double n = static_cast<double>(dims.back());
        Value mean = b_.mul(b_.sum_keepdim(x, -1), b_.like(x, 1 / n));
        Value centred = b_.sub(x, mean);
        Value var = b_.mul(b_.sum_keepdim(b_.mul(centred, centred), -1), b_.like(x, 1 / n));
        Value scale = b_.rsqrt(b_.add(var, b_.like(var, 1e-2)));
        if (pick(0, 1) == 0) pool_.push_back(mean);
        v = b_.mul(centred, scale);
        break;
      }
      case 17: {
        if (rank == 0) return;
        const Dims index_dims = pick(0, 1) == 0 ? Dims{pick(1, 5)} : Dims{pick(1, 3), pick(1, 4)};
        const Value index = index_like(index_dims, dims[static_cast<size_t>(some_dim)]);
        v = b_.gather(x, {{index}}, Dims{some_dim}, pick(0, rank - 1),
                      pick(0, 1) == 0 ? hlo::OutOfBounds::Fail : hlo::OutOfBounds::Fill);
        break;
      }
      case 18: {
        if (rank == 0) return;
        const Value index = index_like(Dims{pick(1, 4)}, dims[static_cast<size_t>(some_dim)]);
        Dims updates = dims;
        updates[static_cast<size_t>(some_dim)] = index.dim(0);
        v = b_.scatter(pick(0, 1) == 0 ? hlo::ScatterKind::Set : hlo::ScatterKind::Add, x,
                       like(updates), {{index}}, Dims{some_dim}, some_dim);
        break;
      }
      case 19: {
        if (rank < 1 || !floats_) return;
        const int64_t n = pick(1, 6), k = dims.back();
        Dims rhs_dims = dims;
        if (rank == 1) {
          x = b_.unsqueeze(x, 0);
          rhs_dims = {1, k};
        }
        rhs_dims[rhs_dims.size() - 2] = k;
        rhs_dims.back() = n;
        v = tame(b_.matmul(x, like(rhs_dims)));
        break;
      }
      case 20:
        v = b_.convert(b_.convert(x, floats_ ? DType::bf16 : DType::i64), dtype());
        break;
      case 21:
        v = b_.add(x, b_.convert(rank > 0 ? b_.iota(DType::i32, dims, some_dim)
                                          : b_.constant(DType::i32, 3),
                                 dtype()));
        v = tame(v);
        break;
      case 22: {
        if (rank == 0 || x.count() < 5) return;
        v = b_.as_strided(x, Dims{pick(1, 2), 2}, Dims{1, pick(1, 2)}, pick(0, 1));
        break;
      }
      default: {
        if (rank == 0) return;
        // Of computed floats the extreme would hang on rounding.
        if (floats_) x = pool_[0];
        if (x.rank() == 0) return;
        v = b_.convert(b_.arg_reduce(pick(0, 1) == 0, x, pick(0, x.rank() - 1), pick(0, 1) == 0),
                       dtype());
        break;
      }
    }
    if (v.count() > 20000 || v.rank() > 7) return;
    pool_.push_back(v);
  }

  void add_results() {
    // The last value, and some others; some written over a parameter.
    std::vector<Value> chosen{pool_.back()};
    for (int64_t k = pick(0, 3); k-- > 0;) chosen.push_back(any());
    std::vector<size_t> used;
    for (Value v : chosen) {
      Dims strides;
      int32_t alias = -1;
      for (size_t p = 0; p < parameters_.size(); ++p) {
        const auto& [parameter, own] = parameters_[p];
        const bool zero = std::find(own.begin(), own.end(), 0) != own.end();
        if (zero || !(parameter.type() == v.type()) || pick(0, 3) == 0 ||
            std::find(used.begin(), used.end(), p) != used.end()) {
          continue;
        }
        alias = static_cast<int32_t>(p);
        strides = own;
        used.push_back(p);
        break;
      }
      if (alias < 0 && pick(0, 3) == 0) {
        strides = contiguous_strides(v.dims());
        for (int64_t& s : strides) s *= 2;
      }
      b_.result(v, strides, alias, alias >= 0 && pick(0, 2) == 0);
    }
  }

  std::mt19937_64 random_;
  DType type_;
  bool floats_;
  Builder b_;
  std::vector<Value> pool_;
  std::vector<std::pair<Value, Dims>> parameters_;
};

void check(uint64_t seed, int ops, DType type, const testing::NestRunner& runner) {
  SCOPED_TRACE("seed " + std::to_string(seed) + " ops " + std::to_string(ops) + " " +
               std::string(name_of(type)));
  Case c = Generator(seed, type).make(ops);
  // Sums in another order, then whatever the graph makes of the difference.
  const double tolerance = type == DType::bf16 ? 0.1 : 2e-2;
  std::vector<hlo::Array> expected = hlo::evaluate(c.module, c.parameters, c.scalars);
  try {
    const Plan plan = make_plan(c.module);
    if (std::getenv("NEURON_SHOW_PLAN") != nullptr) printf("%s\n", to_string(plan).c_str());
    const testing::RunOutcome outcome =
        testing::run_plan(c.module, plan, c.parameters, c.scalars, runner);
    EXPECT_EQ(outcome.status, 0);
    for (size_t r = 0; r < expected.size(); ++r) {
      const std::string text =
          testing::difference(outcome.results[r], expected[r], tolerance, tolerance);
      if (!text.empty()) {
        ADD_FAILURE() << "result " << r << ": " << text;
        if (std::getenv("NEURON_SHOW_MODULE") != nullptr)
          printf("%s\n", hlo::to_stablehlo(c.module).c_str());
        return;
      }
    }
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
    if (std::getenv("NEURON_SHOW_MODULE") != nullptr)
      printf("%s\n", hlo::to_stablehlo(c.module).c_str());
  }
}

/// Every node as a program of its own.
std::vector<hlo::Array> run_op_by_op(const Case& c, const testing::NestRunner& runner) {
  const hlo::Module& module = c.module;
  std::vector<hlo::Array> values(module.size());
  for (size_t i = 0; i < module.parameters().size(); ++i) {
    values[module.parameters()[i].value] = c.parameters[i];
  }
  for (hlo::ValueId v = 0; v < module.size(); ++v) {
    const hlo::Node& node = module.node(v);
    if (node.op == Op::Parameter) continue;
    hlo::Module one;
    std::vector<hlo::Array> operands;
    std::vector<std::complex<double>> scalars;
    hlo::Node copy = node;
    for (hlo::ValueId& operand : copy.operands) {
      const auto id = static_cast<hlo::ValueId>(one.size());
      const hlo::Type& type = module.node(operand).type;
      one.mutable_nodes().push_back({Op::Parameter, type, {}, {}, {}, {}, {}});
      one.mutable_parameters().push_back({type, contiguous_strides(type.dims), id});
      operands.push_back(values[operand]);
      operand = id;
    }
    const auto id = static_cast<hlo::ValueId>(one.size());
    if (node.op == Op::ScalarParameter) {
      one.mutable_scalars().push_back({node.type.dtype, id});
      for (size_t k = 0; k < module.scalars().size(); ++k) {
        if (module.scalars()[k].value == v) scalars.push_back(c.scalars[k]);
      }
    }
    one.mutable_nodes().push_back(std::move(copy));
    one.mutable_results().push_back({id, contiguous_strides(node.type.dims), -1, false});
    values[v] = testing::run_plan(one, make_plan(one), operands, scalars, runner).results[0];
  }
  std::vector<hlo::Array> results;
  for (const hlo::Result& r : module.results()) results.push_back(values[r.value]);
  return results;
}

int ops_of(int i) {
  const char* ops = std::getenv("NEURON_TEST_OPS");
  return ops != nullptr ? std::atoi(ops) : 3 + i % 24;
}

uint64_t first_seed() {
  const char* seed = std::getenv("NEURON_TEST_SEED");
  return seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1;
}

int repeat() {
  const char* count = std::getenv("NEURON_TEST_COUNT");
  return count != nullptr ? std::atoi(count) : 200;
}

TEST(RandomGraph, IntegersInterpreted) {
  for (int i = 0; i < repeat() && !HasFailure(); ++i) {
    check(first_seed() + static_cast<uint64_t>(i), ops_of(i), DType::i32, testing::interpreted());
  }
}

TEST(RandomGraph, FloatsInterpreted) {
  for (int i = 0; i < repeat() && !HasFailure(); ++i) {
    check(first_seed() + static_cast<uint64_t>(i), ops_of(i), DType::f32, testing::interpreted());
  }
}

TEST(RandomGraph, FloatsAsGeneratedCode) {
  for (int i = 0; i < repeat() / 20 && !HasFailure(); ++i) {
    check(first_seed() + static_cast<uint64_t>(i), ops_of(i), DType::f32, testing::generated(3));
  }
}

TEST(RandomGraph, OtherTypesInterpreted) {
  static const DType types[] = {DType::f64, DType::bf16, DType::f16, DType::i64,
                                DType::u8,  DType::i8,   DType::i16};
  for (int i = 0; i < repeat() && !HasFailure(); ++i) {
    check(first_seed() + static_cast<uint64_t>(i), ops_of(i), types[i % 7], testing::interpreted());
  }
}

TEST(RandomGraph, OtherTypesAsGeneratedCode) {
  static const DType types[] = {DType::f64, DType::bf16, DType::f16, DType::i64,
                                DType::u8,  DType::i8,   DType::i16};
  for (int i = 0; i < repeat() / 10 && !HasFailure(); ++i) {
    check(first_seed() + static_cast<uint64_t>(i), ops_of(i), types[i % 7], testing::generated(2));
  }
}

// Fusion must not change a bit: the order of every sum follows from its shape alone.
TEST(RandomGraph, FusedEqualsOpByOp) {
  const testing::NestRunner runner = testing::generated();
  for (int i = 0; i < repeat() / 10 && !HasFailure(); ++i) {
    const uint64_t seed = first_seed() + static_cast<uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed) + " ops " + std::to_string(ops_of(i)));
    Case c = Generator(seed, DType::f32).make(ops_of(i));
    const testing::RunOutcome fused =
        testing::run_plan(c.module, make_plan(c.module), c.parameters, c.scalars, runner);
    const std::vector<hlo::Array> separate = run_op_by_op(c, runner);
    for (size_t r = 0; r < separate.size(); ++r) {
      EXPECT_EQ(testing::difference(fused.results[r], separate[r], 0, 0), "") << "result " << r;
    }
  }
}

TEST(RandomGraph, IntegersAsGeneratedCode) {
  for (int i = 0; i < repeat() / 20 && !HasFailure(); ++i) {
    check(first_seed() + static_cast<uint64_t>(i), ops_of(i), DType::i32, testing::generated(3));
  }
}

}  // namespace
}  // namespace neuron::compiler::cpu
