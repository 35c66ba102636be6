#include "neuron/hlo/testing/samples.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "neuron/hlo/builder.h"
#include "neuron/hlo/element.h"

namespace neuron::hlo {

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();
using Numbers = std::vector<double>;

/// A small generator of our own, so that samples are the same everywhere.
class Random {
 public:
  double uniform(double low, double high) {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return low + (high - low) * static_cast<double>(state_ >> 11) * 0x1p-53;
  }

 private:
  uint64_t state_ = 88172645463325252ull;
};

Array make(DType dtype, DimsRef dims, const std::function<std::complex<double>(int64_t)>& at) {
  const int64_t count = count_elements(dims);
  Array array{{dtype, Dims(dims)},
              std::vector<std::byte>(static_cast<size_t>(count) * size_of(dtype))};
  with_compute_type(dtype, [&](auto tag) {
    for (int64_t i = 0; i < count; ++i) {
      store_element(dtype, convert_number<decltype(tag)>(at(i)),
                    array.bytes.data() + static_cast<size_t>(i) * size_of(dtype));
    }
  });
  return array;
}

Array listed(DType dtype, DimsRef dims, const Numbers& numbers) {
  return make(dtype, dims, [&](int64_t i) { return numbers[static_cast<size_t>(i)]; });
}

/// Tolerances that another correct implementation stays within.
double tolerance(DType dtype) {
  switch (real_of(dtype)) {
    case DType::f64:
      return 1e-12;
    case DType::f32:
      return 1e-5;
    case DType::f16:
      return 2e-3;
    case DType::bf16:
      return 1.6e-2;
    case DType::f8e4m3:
    case DType::f8e4m3fn:
      return 0.13;
    case DType::f8e5m2:
      return 0.26;
    default:
      return 0;
  }
}

class Samples {
 public:
  std::vector<Sample> take() && { return std::move(samples_); }

  using Body = std::function<Values(Builder&, const Values&)>;
  Sample& add(std::string name, std::vector<Array> arrays, const Body& body, double scale = 1) {
    Builder b;
    Values values;
    for (const Array& a : arrays) values.push_back(b.parameter(a.type.dtype, a.type.dims));
    for (Value value : body(b, values)) b.result(value);
    Sample sample{std::move(name), b.finish(), std::move(arrays), {}, 0, 0};
    // One tolerance for all results: that of the coarsest dtype.
    for (const Result& result : sample.module.results()) {
      const double own = tolerance(sample.module.node(result.value).type.dtype) * scale;
      sample.rtol = sample.atol = std::max(sample.rtol, own);
    }
    samples_.push_back(std::move(sample));
    return samples_.back();
  }

  Array random(DType dtype, DimsRef dims, double low, double high) {
    return make(dtype, dims, [&](int64_t) {
      const double re = random_.uniform(low, high);
      if (is_integer(dtype)) return std::complex<double>(std::floor(re));
      return std::complex<double>(re, is_complex(dtype) ? random_.uniform(low, high) : 0);
    });
  }
  /// As the op wants it: small integers, moderate floats.
  Array plain(DType dtype, DimsRef dims) {
    if (dtype == DType::pred) return random(dtype, dims, -1, 1);
    if (is_unsigned_integer(dtype)) return random(dtype, dims, 0, 10);
    return is_integer(dtype) ? random(dtype, dims, -9, 10) : random(dtype, dims, -3, 3);
  }

 private:
  std::vector<Sample> samples_;
  Random random_;
};

std::string named(std::string_view op, DType dtype) {
  std::string name(op);
  name += '_';
  name += name_of(dtype);
  return name;
}

constexpr DType kFloats[] = {DType::f32, DType::f64, DType::bf16, DType::f16};
constexpr DType kIntegers[] = {DType::i8, DType::i16, DType::i32, DType::i64,
                               DType::u8, DType::u16, DType::u32, DType::u64};

void add_unary(Samples& s) {
  struct Row {
    Op op;
    double low, high;
    bool complex;
    Numbers special;
  };
  const Numbers usual = {0.0, -0.0, kInf, -kInf, kNan, 1, -1, 0.5};
  const Numbers finite = {0.0, -0.0, kNan, 1, -1, 0.5, 2, -2};
  const Row rows[] = {
      {Op::Abs, -3, 3, true, usual},
      {Op::Negate, -3, 3, true, usual},
      {Op::Sign, -3, 3, true, usual},
      {Op::Exp, -5, 5, true, usual},
      {Op::Exp2, -9, 9, true, usual},
      {Op::Expm1, -3, 3, true, usual},
      {Op::Log, 0.01, 9, true, usual},
      {Op::Log2, 0.01, 9, true, usual},
      {Op::Log10, 0.01, 9, true, usual},
      {Op::Log1p, -0.9, 9, true, usual},
      {Op::Sqrt, 0, 9, true, usual},
      {Op::Rsqrt, 0.1, 9, true, usual},
      {Op::Ceil, -3, 3, false, usual},
      {Op::Floor, -3, 3, false, usual},
      {Op::Trunc, -3, 3, false, usual},
      {Op::RoundNearestEven, -3, 3, false, {0.5, 1.5, 2.5, -0.5, -1.5, kInf, kNan, 0.25}},
      {Op::Logistic, -9, 9, true, usual},
      {Op::Tanh, -3, 3, true, usual},
      {Op::Sine, -9, 9, true, finite},
      {Op::Cosine, -9, 9, true, finite},
      {Op::Tan, -1.5, 1.5, true, finite},
      {Op::Asin, -0.9, 0.9, true, usual},
      {Op::Acos, -0.9, 0.9, true, usual},
      {Op::Atan, -9, 9, true, usual},
      {Op::Sinh, -3, 3, true, usual},
      {Op::Cosh, -3, 3, true, usual},
      {Op::Asinh, -9, 9, true, usual},
      {Op::Acosh, 1.01, 9, true, usual},
      {Op::Atanh, -0.9, 0.9, true, usual},
      {Op::Erf, -4, 4, false, usual},
      {Op::Erfc, -3, 5, false, usual},
      {Op::ErfInv, -0.999, 0.999, false, {0.0, -0.0, 1, -1, kNan, 2, 0.5, 1e-3}},
      {Op::Lgamma, -4, 20, false, {0.0, -0.0, kInf, -kInf, kNan, 1, 2, -1}},
      {Op::Digamma, -4, 20, false, {0.0, -0.0, kInf, kNan, 1, 0.5, -1, -2}},
      {Op::IsFinite, -3, 3, false, usual},
      {Op::IsNan, -3, 3, false, usual},
  };
  for (const Row& row : rows) {
    for (DType dtype : kFloats) {
      Array x = s.random(dtype, {{3, 8}}, row.low, row.high);
      const Array special = listed(dtype, {{8}}, row.special);
      std::memcpy(x.bytes.data(), special.bytes.data(), special.bytes.size());
      // Cancellation near zeros of a function is measured against its size elsewhere.
      s.add(
          named(name_of(row.op), dtype), {x},
          [&](Builder& b, const Values& v) { return Values{b.unary(row.op, v[0])}; }, 4);
    }
    if (!row.complex) continue;
    for (DType dtype : {DType::c64, DType::c128}) {
      s.add(
          named(name_of(row.op), dtype), {s.random(dtype, {{2, 5}}, 0.1, 1.3)},
          [&](Builder& b, const Values& v) { return Values{b.unary(row.op, v[0])}; }, 10);
    }
  }
  for (DType dtype : kIntegers) {
    s.add(named("integer_unary", dtype), {s.plain(dtype, {{7}})}, [](Builder& b, const Values& v) {
      return Values{b.abs(v[0]), b.neg(v[0]), b.sign(v[0]), b.logical_not(v[0]),
                    b.unary(Op::Popcnt, v[0])};
    });
  }
  s.add("not_pred", {s.plain(DType::pred, {{7}})},
        [](Builder& b, const Values& v) { return Values{b.logical_not(v[0])}; });
  for (DType dtype : {DType::c64, DType::c128}) {
    s.add(named("parts", dtype), {s.plain(dtype, {{5}})}, [](Builder& b, const Values& v) {
      return Values{b.real(v[0]), b.imag(v[0]), b.complex(b.imag(v[0]), b.real(v[0]))};
    });
  }
}

void add_binary(Samples& s) {
  const Op arithmetic[] = {Op::Add,       Op::Subtract, Op::Multiply, Op::Divide,
                           Op::Remainder, Op::Maximum,  Op::Minimum,  Op::Atan2};
  for (DType dtype : kFloats) {
    s.add(named("binary", dtype), {s.plain(dtype, {{4, 5}}), s.plain(dtype, {{5}})},
          [&](Builder& b, const Values& v) {
            Values results;
            for (Op op : arithmetic) results.push_back(b.binary(op, v[0], v[1]));
            return results;
          });
    s.add(named("binary_special", dtype),
          {listed(dtype, {{6}}, {kNan, 1, kInf, -kInf, 0, -2}),
           listed(dtype, {{6}}, {1, kNan, kInf, 1, 0, kInf})},
          [&](Builder& b, const Values& v) {
            Values results;
            for (Op op : arithmetic) results.push_back(b.binary(op, v[0], v[1]));
            return results;
          });
    s.add(named("power", dtype), {s.random(dtype, {{9}}, 0.1, 4), s.random(dtype, {{9}}, -3, 3)},
          [](Builder& b, const Values& v) { return Values{b.pow(v[0], v[1])}; });
    s.add(named("next_after", dtype),
          {listed(dtype, {{8}}, {1, 1, 0, -0.0, 0, kNan, -2, 2}),
           listed(dtype, {{8}}, {2, 0, 1, -1, 0, 1, kInf, 2})},
          [](Builder& b, const Values& v) { return Values{b.binary(Op::NextAfter, v[0], v[1])}; });
    s.add(named("fma", dtype),
          {s.plain(dtype, {{7}}), s.plain(dtype, {{7}}), s.plain(dtype, {{7}})},
          [](Builder& b, const Values& v) { return Values{b.fma(v[0], v[1], v[2])}; });
  }
  for (DType dtype : kIntegers) {
    const bool is_signed = is_signed_integer(dtype);
    auto either = [&](double if_signed, double if_unsigned) {
      return is_signed ? if_signed : if_unsigned;
    };
    const double lowest = -std::ldexp(1, static_cast<int>(8 * size_of(dtype)) - 1);
    s.add(named("integer_binary", dtype),
          {listed(dtype, {{8}}, {7, either(-7, 6), 5, either(lowest, 9), 0, 3, 2, 100}),
           listed(dtype, {{8}}, {2, 2, 0, either(-1, 4), 3, 3, either(-2, 3), 7})},
          [](Builder& b, const Values& v) {
            Values results;
            for (Op op : {Op::Add, Op::Subtract, Op::Multiply, Op::Divide, Op::Remainder, Op::Power,
                          Op::Maximum, Op::Minimum, Op::And, Op::Or, Op::Xor}) {
              results.push_back(b.binary(op, v[0], v[1]));
            }
            return results;
          });
    const double width = static_cast<double>(8 * size_of(dtype));
    s.add(named("shifts", dtype),
          {listed(dtype, {{6}}, {1, either(-8, 8), 100, 5, either(-1, 1), 3}),
           listed(dtype, {{6}}, {0, 1, 2, width, width + 1, either(-1, width - 1)})},
          [](Builder& b, const Values& v) {
            return Values{b.binary(Op::ShiftLeft, v[0], v[1]),
                          b.binary(Op::ShiftRightArithmetic, v[0], v[1]),
                          b.binary(Op::ShiftRightLogical, v[0], v[1])};
          });
  }
  for (DType dtype : {DType::c64, DType::c128}) {
    s.add(
        named("binary", dtype), {s.plain(dtype, {{4, 2}}), s.plain(dtype, {{2}})},
        [](Builder& b, const Values& v) {
          return Values{b.add(v[0], v[1]), b.sub(v[0], v[1]), b.mul(v[0], v[1]), b.div(v[0], v[1]),
                        b.pow(v[0], v[1]), b.eq(v[0], v[1]),  b.ne(v[0], v[0])};
        },
        10);
  }
  s.add("binary_pred",
        {listed(DType::pred, {{4}}, {0, 0, 1, 1}), listed(DType::pred, {{4}}, {0, 1, 0, 1})},
        [](Builder& b, const Values& v) {
          return Values{b.add(v[0], v[1]),     b.mul(v[0], v[1]),     b.max(v[0], v[1]),
                        b.min(v[0], v[1]),     b.bit_and(v[0], v[1]), b.bit_or(v[0], v[1]),
                        b.bit_xor(v[0], v[1]), b.lt(v[0], v[1]),      b.eq(v[0], v[1])};
        });
  for (DType dtype : {DType::f32, DType::bf16, DType::i32, DType::u8, DType::i64, DType::f64}) {
    s.add(named("compare", dtype),
          {listed(dtype, {{5}}, {1, 2, 3, is_floating(dtype) ? kNan : 0, 0}),
           listed(dtype, {{5}}, {2, 2, 1, 1, is_floating(dtype) ? -0.0 : 200})},
          [](Builder& b, const Values& v) {
            return Values{b.eq(v[0], v[1]),
                          b.ne(v[0], v[1]),
                          b.lt(v[0], v[1]),
                          b.le(v[0], v[1]),
                          b.gt(v[0], v[1]),
                          b.ge(v[0], v[1]),
                          b.select(b.lt(v[0], v[1]), v[0], v[1])};
          });
  }
}

void add_conversions(Samples& s) {
  const DType all[] = {DType::pred, DType::i8,   DType::i32,      DType::i64,    DType::u8,
                       DType::u32,  DType::f16,  DType::bf16,     DType::f32,    DType::f64,
                       DType::c64,  DType::c128, DType::f8e4m3fn, DType::f8e4m3, DType::f8e5m2};
  for (DType from : all) {
    const Array x = is_unsigned_integer(from) || from == DType::pred
                        ? listed(from, {{6}}, {0, 1, 2, 3, 100, 7})
                        : listed(from, {{6}}, {0, 1, -2, 3.5, 100, -7.25});
    s.add(named("convert", from), {x}, [&](Builder& b, const Values& v) {
       Values results;
       for (DType to : all) {
         // What is out of range is not defined.
         if (is_unsigned_integer(to) && is_unsigned_integer(from) == false && from != DType::pred) {
           results.push_back(b.convert(b.abs(v[0]), to));
         } else {
           results.push_back(b.convert(v[0], to));
         }
       }
       return results;
     }).rtol = 0;
    s.add(named("convert_to_f8", from), {x}, [&](Builder& b, const Values& v) {
       Values results;
       for (DType to : {DType::f8e4m3fn, DType::f8e4m3, DType::f8e5m2}) {
         results.push_back(b.convert(b.convert(v[0], to), DType::f32));
       }
       return results;
     }).rtol = 0;
  }
  s.add("saturate_f8", {listed(DType::f32, {{8}}, {449, 464, 465, 1e9, kInf, -kInf, kNan, -500})},
        [](Builder& b, const Values& v) {
          Values results;
          for (DType to : {DType::f8e4m3fn, DType::f8e4m3, DType::f8e5m2}) {
            results.push_back(b.convert(b.convert(v[0], to), DType::f32));
          }
          return results;
        })
      .rtol = 0;
  s.add("bitcast",
        {s.plain(DType::f32, {{5}}), s.plain(DType::f16, {{5}}), s.plain(DType::pred, {{5}})},
        [](Builder& b, const Values& v) {
          return Values{
              b.bitcast(v[0], DType::i32), b.bitcast(v[0], DType::u32), b.bitcast(v[1], DType::i16),
              b.bitcast(b.bitcast(v[1], DType::i16), DType::bf16), b.bitcast(v[2], DType::u8)};
        });
  for (DType dtype : {DType::f8e4m3fn, DType::f8e4m3, DType::f8e5m2}) {
    s.add(named("arithmetic", dtype), {s.plain(dtype, {{6}}), s.plain(dtype, {{6}})},
          [](Builder& b, const Values& v) {
            return Values{b.add(v[0], v[1]), b.mul(v[0], v[1]),
                          b.max(v[0], v[1]), b.lt(v[0], v[1]),
                          b.neg(v[0]),       b.select(b.lt(v[0], v[1]), v[0], v[1])};
          });
  }
}

void add_leaves(Samples& s) {
  const DType all[] = {DType::pred, DType::i8,       DType::i64,   DType::u64,
                       DType::f16,  DType::bf16,     DType::f32,   DType::f64,
                       DType::c64,  DType::f8e4m3fn, DType::f8e5m2};
  for (DType dtype : all) {
    const Array small = s.plain(dtype, {{2, 3}}), large = s.plain(dtype, {{4, 5, 2}});
    s.add(named("constants", dtype), {}, [&](Builder& b, const Values&) {
      Values results{b.constant(dtype, 1, {{2, 2}}), b.literal(dtype, {{2, 3}}, small.bytes),
                     b.literal(dtype, {{4, 5, 2}}, large.bytes), b.zeros(dtype, {{0, 3}})};
      if (dtype != DType::pred) results.push_back(b.iota(dtype, {{3, 4}}, 1));
      return results;
    });
  }
  s.add("constants_special", {}, [](Builder& b, const Values&) {
    return Values{b.constant(DType::f32, kInf),    b.constant(DType::f32, kNan),
                  b.constant(DType::bf16, -kInf),  b.constant(DType::f16, kNan),
                  b.constant(DType::f64, 1e300),   b.constant(DType::f32, -0.0),
                  b.constant(DType::f32, 1e-40),   b.constant_int(DType::u64, -1),
                  b.constant(DType::i64, -0x1p63), b.constant_complex(DType::c64, {kInf, -1.5})};
  });
  s.add("philox", {listed(DType::u64, {}, {12345}), listed(DType::u64, {}, {67})},
        [](Builder& b, const Values& v) {
          return Values{b.philox_word(v[0], v[1], 0, {{5, 3}}),
                        b.philox_word(v[0], v[1], 3, {{7}})};
        });
}

void add_views(Samples& s) {
  for (DType dtype :
       {DType::f32, DType::pred, DType::bf16, DType::i64, DType::c64, DType::f8e4m3fn}) {
    s.add(named("views", dtype), {s.plain(dtype, {{2, 3, 4}}), s.plain(dtype, {{2, 1, 4}})},
          [](Builder& b, const Values& v) {
            const Value parts[] = {v[0], v[1], v[0]};
            return Values{b.broadcast_in_dim(v[1], {{2, 5, 3, 4}}, {{0, 2, 3}}),
                          b.reshape(v[0], {{6, 4}}),
                          b.transpose(v[0], {{2, 0, 1}}),
                          b.slice(v[0], {{0, 1, 0}}, {{2, 3, 4}}, {{1, 1, 3}}),
                          b.concatenate(parts, 1),
                          b.reverse(v[0], {{0, 2}}),
                          b.pad(v[0], b.like(v[0], 1), {{1, -1, 0}}, {{0, 2, -1}}, {{0, 1, 2}}),
                          b.as_strided(v[0], {{3, 2, 2}}, {{1, 7, 0}}, 2),
                          b.as_strided(v[0], {{2, 3}}, {{1, 8}}, 3),
                          b.as_strided(v[0], {{4, 2, 1, 3}}, {{6, 0, 5, 2}}, 1),
                          b.as_strided(v[0], {{2}}, {{0}}, 23),
                          b.as_strided(v[0], {{6, 4}}, {{1, 6}}, 0),
                          b.as_strided(v[0], {{3, 3}}, {{2, 3}}, 1),
                          b.as_strided_scatter(v[0], v[1], {{12, 1, 3}}, 1),
                          b.as_strided_scatter(v[0], v[1], {{1, 7, 2}}, 5),
                          b.as_strided_scatter(v[0], v[1], {{3, 0, 6}}, 2),
                          b.as_strided_scatter(v[0], v[1], {{0, 0, 6}}, 2),
                          b.as_strided_scatter(v[0], b.slice_dim(v[1], 2, 0, 1), {{0, 0, 6}}, 2),
                          b.as_strided_scatter(v[1], b.reshape(v[1], {{4, 2}}), {{1, 4}}, 0)};
          });
  }
  s.add("dynamic_update_slice",
        {s.plain(DType::f32, {{4, 5}}), s.plain(DType::f32, {{2, 3}}), listed(DType::i64, {}, {1}),
         listed(DType::i32, {}, {9})},
        [](Builder& b, const Values& v) {
          return Values{b.dynamic_update_slice(v[0], v[1], std::span(v).subspan(2)),
                        b.dynamic_update_slice(v[0], v[1], std::vector<Value>{v[2], v[2]})};
        });
  s.add("views_empty", {s.plain(DType::f32, {{0, 3}}), s.plain(DType::f32, {{2, 3}})},
        [](Builder& b, const Values& v) {
          const Value parts[] = {v[0], v[1]};
          return Values{b.transpose(v[0], {{1, 0}}),
                        b.concatenate(parts, 0),
                        b.sum(v[0], {{0}}),
                        b.reduce(ReduceKind::Max, v[0], {{0}}),
                        b.slice_dim(v[1], 0, 1, 1),
                        b.as_strided(v[1], {{0, 2}}, {{1, 1}}, 0),
                        b.scan(ScanKind::Sum, v[0], 1),
                        b.sort(v[0], 1, false)[0]};
        });
}

void add_indexed(Samples& s) {
  for (DType dtype : {DType::f32, DType::pred, DType::bf16, DType::c64, DType::i32}) {
    const Array i = listed(DType::i64, {{2, 3}}, {0, 3, 1, 2, 2, 0});
    const Array k = listed(DType::i32, {{2, 3}}, {4, 0, 1, 2, 1, 4});
    s.add(named("gather", dtype), {s.plain(dtype, {{4, 3, 5}}), i, k},
          [](Builder& b, const Values& v) {
            const Value first[] = {v[1]}, both[] = {v[1], v[2]}, last[] = {v[2]};
            return Values{b.gather(v[0], first, {{0}}, 0), b.gather(v[0], last, {{2}}, 2),
                          b.gather(v[0], both, {{0, 2}}, 0), b.gather(v[0], both, {{0, 2}}, 1)};
          });
    s.add(named("gather_fill", dtype),
          {s.plain(dtype, {{4, 3, 5}}), listed(DType::i64, {{3}}, {-1, 2, 4}),
           listed(DType::i64, {{3}}, {0, 4, 0})},
          [](Builder& b, const Values& v) {
            const Value both[] = {v[1], v[2]};
            return Values{b.gather(v[0], both, {{0, 2}}, 1, OutOfBounds::Fill)};
          });
    std::vector<ScatterKind> kinds = {ScatterKind::Set, ScatterKind::Add, ScatterKind::Multiply};
    if (!is_complex(dtype)) {
      kinds.push_back(ScatterKind::Min);
      kinds.push_back(ScatterKind::Max);
    }
    s.add(named("scatter", dtype), {s.plain(dtype, {{4, 3, 5}}), s.plain(dtype, {{3, 2, 3}}), i, k},
          [&](Builder& b, const Values& v) {
            const Value both[] = {v[2], v[3]};
            Values results;
            for (ScatterKind kind : kinds) {
              results.push_back(b.scatter(kind, v[0], v[1], both, {{0, 2}}, 1));
            }
            return results;
          });
  }
}

void add_reductions(Samples& s) {
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::u8,
                      DType::i64, DType::f8e4m3fn, DType::f8e5m2}) {
    s.add(
        named("reduce", dtype), {s.plain(dtype, {{3, 4, 5}})},
        [](Builder& b, const Values& v) {
          return Values{b.sum(v[0], {{1}}),
                        b.sum(v[0], {{0, 2}}, true),
                        b.reduce(ReduceKind::Product, v[0], {{1}}),
                        b.reduce(ReduceKind::Max, v[0], {{0}}),
                        b.reduce(ReduceKind::Min, v[0], {{0, 1, 2}}),
                        b.arg_reduce(true, v[0], 1),
                        b.arg_reduce(false, v[0], 2, true)};
        },
        2);
    if (!is_float8(dtype)) {
      s.add(named("scan", dtype), {s.plain(dtype, {{3, 4}})}, [](Builder& b, const Values& v) {
        return Values{b.scan(ScanKind::Sum, v[0], 1), b.scan(ScanKind::Product, v[0], 0),
                      b.scan(ScanKind::Max, v[0], 1), b.scan(ScanKind::Min, v[0], 0)};
      });
      s.add(named("window", dtype), {s.plain(dtype, {{2, 6, 7}})}, [](Builder& b, const Values& v) {
        WindowDims window;
        window.size = {1, 2, 3};
        window.stride = {1, 2, 1};
        window.dilation = {1, 1, 2};
        window.pad_low = {0, 1, 2};
        window.pad_high = {0, 0, 1};
        return Values{b.reduce_window(ReduceKind::Sum, v[0], window),
                      b.reduce_window(ReduceKind::Max, v[0], window),
                      b.reduce_window(ReduceKind::Min, v[0], window)};
      });
    }
    Array x = s.plain(dtype, {{3, 8}});
    if (is_floating(dtype)) {
      const Array special = listed(dtype, {{8}}, {2, kNan, -1, 2, 0, -0.0, 3, -1});
      std::memcpy(x.bytes.data(), special.bytes.data(), special.bytes.size());
    }
    s.add(named("sort", dtype), {x}, [](Builder& b, const Values& v) {
      const Values up = b.sort(v[0], 1, false), down = b.sort(v[0], 1, true);
      return Values{up[0], up[1], down[0], down[1]};
    });
  }
  s.add("reduce_pred", {s.plain(DType::pred, {{3, 4}})}, [](Builder& b, const Values& v) {
    Values results;
    for (ReduceKind kind : {ReduceKind::Sum, ReduceKind::Product, ReduceKind::Max, ReduceKind::Min,
                            ReduceKind::And, ReduceKind::Or}) {
      results.push_back(b.reduce(kind, v[0], {{1}}));
    }
    results.push_back(b.sort(v[0], 0, true)[1]);
    results.push_back(b.arg_reduce(true, v[0], 1));
    return results;
  });
  s.add("reduce_bits", {s.plain(DType::i32, {{3, 4}})}, [](Builder& b, const Values& v) {
    return Values{b.reduce(ReduceKind::And, v[0], {{1}}), b.reduce(ReduceKind::Or, v[0], {{0}})};
  });
  s.add("reduce_nan",
        {listed(DType::f32, {{3, 4}}, {1, kNan, 3, kNan, 5, 1, 5, 2, -kInf, -kInf, -kInf, -kInf})},
        [](Builder& b, const Values& v) {
          return Values{b.reduce(ReduceKind::Max, v[0], {{1}}), b.arg_reduce(true, v[0], 1),
                        b.arg_reduce(false, v[0], 1), b.scan(ScanKind::Max, v[0], 1),
                        b.sort(v[0], 1, true)[1]};
        });
  s.add("sum_bf16_long", {make(DType::bf16, {{512}}, [](int64_t) { return 1.0; })},
        [](Builder& b, const Values& v) {
          return Values{b.sum(v[0], {{0}}), b.scan(ScanKind::Sum, v[0], 0)};
        });
  for (DType dtype : {DType::c64, DType::c128}) {
    s.add(
        named("reduce", dtype), {s.plain(dtype, {{3, 4}})},
        [](Builder& b, const Values& v) {
          return Values{b.sum(v[0], {{1}}), b.reduce(ReduceKind::Product, v[0], {{0}}),
                        b.scan(ScanKind::Sum, v[0], 1)};
        },
        4);
  }
}

void add_products(Samples& s) {
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64,
                      DType::u8, DType::c64, DType::f8e4m3fn, DType::f8e5m2}) {
    s.add(
        named("dot", dtype), {s.plain(dtype, {{2, 4, 5}}), s.plain(dtype, {{2, 5, 3}})},
        [](Builder& b, const Values& v) {
          DotDims outer, two;
          two.lhs_contract = {0, 2};
          two.rhs_contract = {0, 1};
          return Values{
              b.matmul(v[0], v[1]), b.dot_general(v[0], v[1], two),
              b.dot_general(b.slice_dim(v[0], 0, 0, 1), b.slice_dim(v[1], 1, 0, 1), outer)};
        },
        4);
    if (is_complex(dtype) || is_float8(dtype)) continue;
    s.add(
        named("convolution", dtype),
        {s.plain(dtype, {{2, 4, 7, 6}}), s.plain(dtype, {{4, 2, 3, 2}})},
        [](Builder& b, const Values& v) {
          ConvolutionDims dims;
          dims.stride = {2, 1};
          dims.pad_low = {1, 0};
          dims.pad_high = {1, 2};
          dims.lhs_dilation = {1, 1};
          dims.rhs_dilation = {1, 2};
          dims.groups = 2;
          ConvolutionDims transposed = dims;
          transposed.stride = {1, 1};
          transposed.lhs_dilation = {2, 3};
          transposed.rhs_dilation = {1, 1};
          transposed.reverse_kernel = true;
          return Values{b.convolution(v[0], v[1], dims), b.convolution(v[0], v[1], transposed)};
        },
        4);
  }
  s.add(
      "convolution_batch_groups",
      {s.plain(DType::f32, {{4, 3, 6}}), s.plain(DType::f32, {{6, 3, 2}})},
      [](Builder& b, const Values& v) {
        ConvolutionDims dims;
        dims.stride = dims.lhs_dilation = dims.rhs_dilation = {1};
        dims.pad_low = dims.pad_high = {1};
        dims.batch_groups = 2;
        return Values{b.convolution(v[0], v[1], dims)};
      },
      4);
}

Sample strided_arguments(Samples& s) {
  Builder b;
  const Value x = b.parameter(DType::f32, {{3, 4}}, {{1, 5}});
  const Value y = b.parameter(DType::f32, {{3, 4}}, {{0, 1}});
  const Value out = b.parameter(DType::f32, {{3, 4}}, {{8, 2}});
  const Value alpha = b.scalar(DType::f64), n = b.scalar(DType::i64);
  const Value scale = b.add(b.convert(alpha, DType::f32), b.convert(n, DType::f32));
  const Value z = b.fma(x, scale, y);
  b.result(z, {{1, 3}});
  b.result(b.add(out, z), {{8, 2}}, 2, true);
  b.result(b.neg(z));
  // Every other column of a fresh buffer.
  b.result(b.abs(z), {{8, 2}});
  return {"strided_arguments",
          b.finish(),
          {s.plain(DType::f32, {{3, 4}}),
           // An expanded parameter holds equal rows.
           make(DType::f32, {{3, 4}}, [](int64_t i) { return 1.5 * static_cast<double>(i % 4); }),
           s.plain(DType::f32, {{3, 4}})},
          {1.25, 3},
          1e-5,
          1e-5};
}

}  // namespace

std::vector<Sample> all_samples() {
  Samples samples;
  add_leaves(samples);
  add_unary(samples);
  add_binary(samples);
  add_conversions(samples);
  add_views(samples);
  add_indexed(samples);
  add_reductions(samples);
  add_products(samples);
  Sample strided = strided_arguments(samples);
  std::vector<Sample> all = std::move(samples).take();
  all.push_back(std::move(strided));
  return all;
}

Module collective_sample() {
  Builder b;
  const Value x = b.parameter(DType::f32, {{4, 6}});
  const ReplicaGroups pairs{2, {0, 1, 2, 3}, 1}, all{4, {0, 1, 2, 3}, 1};
  b.result(b.all_reduce(ReduceKind::Sum, x, pairs));
  b.result(b.all_gather(x, 1, pairs));
  b.result(b.reduce_scatter(ReduceKind::Max, x, 0, all));
  b.result(b.all_to_all(x, 1, 0, pairs));
  b.result(b.collective_permute(x, {2, {0, 1, 1, 0, 2, 3}, 3}));
  b.result(b.collective_broadcast(x, {2, {1, 0, 3, 2}, 2}));
  return b.finish();
}

}  // namespace neuron::hlo
