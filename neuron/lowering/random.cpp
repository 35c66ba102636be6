// Random numbers. Element i of a result always comes from Philox counter offset + i, where i is its
// row-major index: results depend neither on strides nor on threads nor on fusion.

#include <cmath>
#include <limits>
#include <numbers>

#include "neuron/base/error.h"
#include "neuron/lowering/numerics.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

using hlo::Op;

// One call's counters: up to four 32-bit words per element.
class Draw {
 public:
  Draw(const OpCall& call, Dims dims)
      : b_(call.builder()), dims_(dims), state_(call.philox(count_elements(dims))) {}

  Value word(int64_t k) const { return b_.philox_word(state_.seed, state_.offset, k, dims_); }

  // [0, 1), a multiple of 2^-bits of the type's own precision, so that rounding never gives 1.
  // `pair` selects the words: 0 and 1, or 2 and 3.
  Value uniform(DType type, int64_t pair = 0) const {
    if (type == DType::f64) return wide_uniform(pair);
    const int digits = type == DType::bf16 ? 8 : type == DType::f16 ? 11 : 24;
    const Value top =
        b_.binary(Op::ShiftRightLogical, word(2 * pair), b_.constant_int(DType::u32, 32 - digits));
    const Value number = b_.convert(top, DType::f32);
    return b_.mul(number, b_.like(number, std::ldexp(1.0, -digits)));
  }

  // (0, 1], in f32 with all 32 bits, or f64: safe for a logarithm.
  Value positive_uniform(DType math, int64_t pair = 0) const {
    if (math == DType::f64) return b_.sub(b_.constant(math, 1), wide_uniform(pair));
    const Value number = b_.convert(word(2 * pair), DType::f32);
    return b_.mul(b_.add(number, b_.like(number, 0.5)), b_.like(number, 0x1p-32));
  }

  // Standard normal by Box-Muller.
  Value normal(DType math) const {
    const Value radius = b_.sqrt(b_.mul(b_.log(positive_uniform(math, 0)), b_.constant(math, -2)));
    const Value turn = math == DType::f64 ? wide_uniform(1) : uniform(DType::f32, 1);
    return b_.mul(radius, b_.cos(b_.mul(turn, b_.constant(math, 2 * std::numbers::pi))));
  }

  // Exponential of rate 1; never 0, as some divide by it.
  Value exponential(DType math) const {
    const Value value = b_.neg(b_.log(positive_uniform(math)));
    return b_.max(value, b_.like(value, math == DType::f64 ? 0x1p-54 : 0x1p-25));
  }

  // Uniform integer below `range` (0 means 2^64), as u64.
  Value below(uint64_t range) const {
    const bool wide = range == 0 || range > (uint64_t{1} << 32);
    Value bits = b_.convert(word(0), DType::u64);
    if (wide) {
      const Value high = b_.convert(word(1), DType::u64);
      bits = b_.bit_or(b_.binary(Op::ShiftLeft, high, b_.constant_int(DType::u64, 32)), bits);
    }
    if (range == 0 || range == (uint64_t{1} << 32)) return bits;
    return b_.rem(bits, b_.constant_int(DType::u64, static_cast<int64_t>(range)));
  }

 private:
  Value wide_uniform(int64_t pair) const {
    const auto part = [&](int64_t k, int drop) {
      const Value top =
          b_.binary(Op::ShiftRightLogical, word(2 * pair + k), b_.constant_int(DType::u32, drop));
      return b_.convert(top, DType::f64);
    };
    const Value sum = b_.add(b_.mul(part(0, 5), b_.constant(DType::f64, 0x1p26)), part(1, 6));
    return b_.mul(sum, b_.constant(DType::f64, 0x1p-53));
  }

  Builder& b_;
  Dims dims_;
  PhiloxState state_;
};

Draw draw(const OpCall& call) { return Draw(call, call.result().dims); }

#define NEURON_OPTIONS \
  "ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None"
#define NEURON_LIKE_OPTIONS NEURON_OPTIONS ", MemoryFormat? memory_format=None"
#define NEURON_LONG_OPTIONS \
  "ScalarType? dtype=4, Layout? layout=None, Device? device=None, bool? pin_memory=None"

// --- Uniform ----------------------------------------------------------------------------------

Value uniform_of(const OpCall& call) { return draw(call).uniform(call.result().dtype); }

// The parts are drawn independently; pair 0 and 1 are words of one counter.
Values complex_uniform(Builder& b, const OpCall& call, Value from, Value to) {
  const DType part = real_of(call.result().dtype);
  const Draw both = draw(call);
  const auto between = [&](Value u) { return b.add(b.mul(u, b.sub(to, from)), from); };
  return {b.complex(between(both.uniform(part, 0)), between(both.uniform(part, 1)))};
}

Values standard_uniform(Builder& b, const OpCall& call) {
  if (!is_complex(call.result().dtype)) return {uniform_of(call)};
  const DType part = real_of(call.result().dtype);
  return complex_uniform(b, call, b.zeros(part), b.ones(part));
}
NEURON_LOWERING("aten::rand(SymInt[] size, *, " NEURON_OPTIONS ") -> Tensor", standard_uniform);
NEURON_LOWERING("aten::rand.generator(SymInt[] size, *, Generator? generator, " NEURON_OPTIONS
                ") -> Tensor",
                standard_uniform);
NEURON_LOWERING("aten::rand_like(Tensor self, *, " NEURON_LIKE_OPTIONS ") -> Tensor",
                standard_uniform);
NEURON_LOWERING(
    "aten::rand_like.generator(Tensor self, *, Generator? generator, " NEURON_LIKE_OPTIONS
    ") -> Tensor",
    standard_uniform);

Values uniform(Builder& b, const OpCall& call) {
  if (is_complex(call.result().dtype)) {
    const DType part = real_of(call.result().dtype);
    return complex_uniform(b, call, call.scalar(1, part), call.scalar(2, part));
  }
  const Value u = uniform_of(call);
  const Value from = call.scalar(1, u.dtype()), to = call.scalar(2, u.dtype());
  return {b.add(b.mul(u, b.sub(to, from)), from)};
}
NEURON_LOWERING(
    "aten::uniform(Tensor self, float from=0., float to=1., *, Generator? generator=None) -> "
    "Tensor",
    uniform);

// --- Normal -----------------------------------------------------------------------------------

Value normal_of(const OpCall& call) {
  return draw(call).normal(opmath(real_of(call.result().dtype)));
}

// Parts of a complex number whose variance is 1 in total.
std::pair<Value, Value> normal_parts(const OpCall& call) {
  Builder& b = call.builder();
  const Value scale = b.constant(real_of(call.result().dtype), std::numbers::sqrt2 / 2);
  const Value real = normal_of(call), imag = normal_of(call);
  return {b.mul(real, scale), b.mul(imag, scale)};
}

Values standard_normal(Builder& b, const OpCall& call) {
  if (!is_complex(call.result().dtype)) return {normal_of(call)};
  const auto [real, imag] = normal_parts(call);
  return {b.complex(real, imag)};
}
NEURON_LOWERING("aten::randn(SymInt[] size, *, " NEURON_OPTIONS ") -> Tensor", standard_normal);
NEURON_LOWERING("aten::randn.generator(SymInt[] size, *, Generator? generator, " NEURON_OPTIONS
                ") -> Tensor",
                standard_normal);
NEURON_LOWERING("aten::randn_like(Tensor self, *, " NEURON_LIKE_OPTIONS ") -> Tensor",
                standard_normal);
NEURON_LOWERING(
    "aten::randn_like.generator(Tensor self, *, Generator? generator, " NEURON_LIKE_OPTIONS
    ") -> Tensor",
    standard_normal);

// mean + std * z; mean and std are numbers or tensors.
Values normal_at(const OpCall& call, size_t mean, size_t std) {
  Builder& b = call.builder();
  const DType out = call.result().dtype;
  if (is_complex(out)) {
    const auto [real, imag] = normal_parts(call);
    const auto is_number = [&](size_t i) {
      return call.argument(i).kind == Argument::Kind::Scalar;
    };
    const bool numbers = is_number(mean) && is_number(std);
    if (numbers) {
      // As torch: both parts have the mean.
      const Value centre = call.scalar(mean, real.dtype()), spread = call.scalar(std, real.dtype());
      return {b.complex(b.add(b.mul(real, spread), centre), b.add(b.mul(imag, spread), centre))};
    }
    const Value z = b.complex(real, imag);
    return {b.add(b.mul(z, operand(call, std, out)), operand(call, mean, out))};
  }
  const Value z = normal_of(call);
  const Value scaled = b.mul(z, operand(call, std, z.dtype()));
  return {b.add(scaled, operand(call, mean, z.dtype()))};
}
Values normal_first(Builder&, const OpCall& call) { return normal_at(call, 0, 1); }
Values normal_of_self(Builder&, const OpCall& call) { return normal_at(call, 1, 2); }
NEURON_LOWERING(
    "aten::normal_functional(Tensor self, float mean=0., float std=1., *, Generator? "
    "generator=None) -> Tensor",
    normal_of_self);
NEURON_LOWERING(
    "aten::normal.Tensor_float(Tensor mean, float std=1., *, Generator? generator=None) -> Tensor",
    normal_first);
NEURON_LOWERING(
    "aten::normal.float_Tensor(float mean, Tensor std, *, Generator? generator=None) -> Tensor",
    normal_first);
NEURON_LOWERING(
    "aten::normal.Tensor_Tensor(Tensor mean, Tensor std, *, Generator? generator=None) -> Tensor",
    normal_first);
NEURON_LOWERING(
    "aten::normal.float_float(float mean, float std, SymInt[] size, *, Generator? "
    "generator=None, " NEURON_OPTIONS ") -> Tensor",
    normal_first);

Values log_normal(Builder& b, const OpCall& call) { return {b.exp(normal_at(call, 1, 2)[0])}; }
NEURON_LOWERING(
    "aten::log_normal(Tensor self, float mean=1., float std=2., *, Generator? generator=None) -> "
    "Tensor",
    log_normal);

// --- Other distributions ----------------------------------------------------------------------

Values exponential(Builder& b, const OpCall& call) {
  const Value e = draw(call).exponential(opmath(call.result().dtype));
  return {b.div(e, call.scalar(1, e.dtype()))};
}
NEURON_LOWERING(
    "aten::exponential(Tensor self, float lambd=1., *, Generator? generator=None) -> Tensor",
    exponential);

// The math type of a distribution whose result may be of any type.
DType drawing_type(const OpCall& call) {
  const DType out = call.result().dtype;
  return out == DType::f64 || is_integer(out) ? DType::f64 : DType::f32;
}

Values geometric(Builder& b, const OpCall& call) {
  const Value u = draw(call).positive_uniform(drawing_type(call));
  const Value fail = b.log1p(b.neg(call.scalar(1, u.dtype())));
  const Value trials = b.ceil(b.div(b.log(u), fail));
  return {b.max(trials, b.like(trials, 1))};
}
NEURON_LOWERING("aten::geometric(Tensor self, float p, *, Generator? generator=None) -> Tensor",
                geometric);

Values cauchy(Builder& b, const OpCall& call) {
  const Value u = draw(call).positive_uniform(drawing_type(call));
  const Value angle = b.mul(b.sub(u, b.like(u, 0.5)), b.like(u, std::numbers::pi));
  const Value median = call.scalar(1, u.dtype()), sigma = call.scalar(2, u.dtype());
  return {b.add(median, b.mul(sigma, b.unary(Op::Tan, angle)))};
}
NEURON_LOWERING(
    "aten::cauchy(Tensor self, float median=0., float sigma=1., *, Generator? generator=None) -> "
    "Tensor",
    cauchy);

// --- Bernoulli and dropout --------------------------------------------------------------------

Value coin(const OpCall& call, Value probability) {
  const Value u = draw(call).uniform(probability.dtype());
  return call.builder().lt(u, probability);
}

DType coin_type(Value probability) {
  return probability.dtype() == DType::f64 ? DType::f64 : DType::f32;
}

Values bernoulli(Builder& b, const OpCall& call) {
  const Value p = call.tensor(0);
  return {coin(call, b.convert(p, coin_type(p)))};
}
NEURON_LOWERING("aten::bernoulli(Tensor self, *, Generator? generator=None) -> Tensor", bernoulli);

Values bernoulli_tensor(Builder& b, const OpCall& call) {
  const Value p = call.tensor(1);
  return {coin(call, b.convert(p, coin_type(p)))};
}
NEURON_LOWERING(
    "aten::bernoulli.Tensor(Tensor self, Tensor p, *, Generator? generator=None) -> Tensor",
    bernoulli_tensor);

Values bernoulli_number(Builder&, const OpCall& call) {
  return {coin(call, call.scalar(1, DType::f32))};
}
NEURON_LOWERING("aten::bernoulli.p(Tensor self, float p, *, Generator? generator=None) -> Tensor",
                bernoulli_number);

Values native_dropout(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  if (call.has(2) && !call.flag(2)) return {x, b.constant_int(DType::pred, 1, x.dims())};
  const DType math = opmath(x.dtype());
  const Value one = b.constant(math, 1);
  const Value keep = b.sub(one, call.scalar(1, math));
  const Value mask = coin(call, b.convert(keep, DType::f32));
  const Value zero = b.constant(math, 0);
  // p = 1 keeps nothing, and must not give 0 * inf.
  const Value scale = b.select(b.eq(keep, zero), zero, b.div(one, keep));
  const Value wide = b.convert(x, math);
  return {b.mul(b.mul(wide, b.convert(mask, math)), scale), mask};
}
NEURON_LOWERING("aten::native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)",
                native_dropout);

Values native_dropout_backward(Builder& b, const OpCall& call) {
  const Value grad = call.tensor(0);
  const DType math = opmath(float_type(call, grad.dtype()));
  const Value kept = b.mul(b.convert(grad, math), b.convert(call.tensor(1), math));
  return {b.mul(kept, call.scalar(2, math))};
}
NEURON_LOWERING(
    "aten::native_dropout_backward(Tensor grad_output, Tensor mask, float scale) -> Tensor",
    native_dropout_backward);

// Negative elements are scaled by a random slope, which the backward needs again.
Values rrelu_with_noise(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const DType math = opmath(x.dtype());
  const Value wide = b.convert(x, math);
  const Value low = call.scalar(2, math), high = call.scalar(3, math);
  const Value positive = b.gt(wide, b.like(wide, 0));
  if (!call.flag(4)) {
    const Value slope = b.mul(b.add(low, high), b.like(low, 0.5));
    return {b.select(positive, wide, b.mul(wide, slope)), call.tensor(1)};
  }
  const Value u = draw(call).uniform(math);
  const Value slope = b.add(b.mul(u, b.sub(high, low)), low);
  const Value noise = b.convert(b.select(positive, b.like(slope, 1), slope), x.dtype());
  return {b.mul(wide, b.convert(noise, math)), noise};
}
NEURON_LOWERING(
    "aten::rrelu_with_noise_functional(Tensor self, Tensor noise, Scalar lower=0.125, Scalar "
    "upper=0.33333333333333331, bool training=False, Generator? generator=None) -> (Tensor, Tensor "
    "noise_out)",
    rrelu_with_noise);

// --- Integers ---------------------------------------------------------------------------------

// Whole numbers below this are exact in the type.
uint64_t exact_integers(DType type) {
  switch (type) {
    case DType::pred:
      return 2;
    case DType::i8:
      return 1u << 7;
    case DType::u8:
      return 1u << 8;
    case DType::i16:
      return 1u << 15;
    case DType::u16:
      return 1u << 16;
    case DType::i32:
      return uint64_t{1} << 31;
    case DType::u32:
      return uint64_t{1} << 32;
    case DType::i64:
      return uint64_t{1} << 63;
    case DType::f16:
      return (1u << 11) + 1;
    case DType::bf16:
      return (1u << 8) + 1;
    case DType::f32:
      return (1u << 24) + 1;
    case DType::f64:
      return (uint64_t{1} << 53) + 1;
    default:
      return 0;
  }
}

Value integers(const OpCall& call, int64_t from, uint64_t range) {
  Builder& b = call.builder();
  const Value offset = b.convert(draw(call).below(range), DType::i64);
  return b.add(offset, b.constant_int(DType::i64, from));
}

Values random(Builder&, const OpCall& call) {
  return {integers(call, 0, exact_integers(call.result().dtype))};
}
NEURON_LOWERING("aten::random(Tensor self, *, Generator? generator=None) -> Tensor", random);

uint64_t distance(int64_t from, int64_t to) {
  return static_cast<uint64_t>(to) - static_cast<uint64_t>(from);
}

Values random_from(Builder&, const OpCall& call) {
  const int64_t from = call.integer(1);
  if (call.has(2)) return {integers(call, from, distance(from, call.integer(2)))};
  // No upper end: the whole of the type above `from`; from = INT64_MIN wraps to 2^64 = 0.
  const uint64_t end = exact_integers(call.result().dtype);
  return {integers(call, from, end - static_cast<uint64_t>(from))};
}
NEURON_LOWERING(
    "aten::random.from(Tensor self, int from, int? to, *, Generator? generator=None) -> Tensor",
    random_from);

template <size_t to>
Values integers_to(Builder&, const OpCall& call) {
  return {integers(call, 0, distance(0, call.integer(to)))};
}
template <size_t from>
Values integers_between(Builder&, const OpCall& call) {
  return {integers(call, call.integer(from), distance(call.integer(from), call.integer(from + 1)))};
}
NEURON_LOWERING("aten::random.to(Tensor self, int to, *, Generator? generator=None) -> Tensor",
                integers_to<1>);
NEURON_LOWERING("aten::randint(SymInt high, SymInt[] size, *, " NEURON_LONG_OPTIONS ") -> Tensor",
                integers_to<0>);
NEURON_LOWERING(
    "aten::randint.generator(SymInt high, SymInt[] size, *, Generator? "
    "generator, " NEURON_LONG_OPTIONS ") -> Tensor",
    integers_to<0>);
NEURON_LOWERING("aten::randint.low(SymInt low, SymInt high, SymInt[] size, *, " NEURON_LONG_OPTIONS
                ") -> Tensor",
                integers_between<0>);
NEURON_LOWERING(
    "aten::randint.low_generator(SymInt low, SymInt high, SymInt[] size, *, Generator? "
    "generator, " NEURON_LONG_OPTIONS ") -> Tensor",
    integers_between<0>);
NEURON_LOWERING("aten::randint_like(Tensor self, SymInt high, *, " NEURON_LIKE_OPTIONS
                ") -> Tensor",
                integers_to<1>);
NEURON_LOWERING(
    "aten::randint_like.generator(Tensor self, SymInt high, *, Generator? "
    "generator, " NEURON_LIKE_OPTIONS ") -> Tensor",
    integers_to<1>);
NEURON_LOWERING(
    "aten::randint_like.low_dtype(Tensor self, SymInt low, SymInt high, *, " NEURON_LIKE_OPTIONS
    ") -> Tensor",
    integers_between<1>);
NEURON_LOWERING(
    "aten::randint_like.low_generator_dtype(Tensor self, SymInt low, SymInt high, *, Generator? "
    "generator, " NEURON_LIKE_OPTIONS ") -> Tensor",
    integers_between<1>);

// --- Choices ----------------------------------------------------------------------------------

// The order of random 63-bit keys.
Values random_permutation(Builder& b, const OpCall& call) {
  const Value bits = draw(call).below(uint64_t{1} << 63);
  return {b.sort(b.convert(bits, DType::i64), 0, false)[1]};
}
NEURON_LOWERING("aten::randperm(SymInt n, *, " NEURON_LONG_OPTIONS ") -> Tensor",
                random_permutation);
NEURON_LOWERING("aten::randperm.generator(SymInt n, *, Generator? generator, " NEURON_LONG_OPTIONS
                ") -> Tensor",
                random_permutation);

// Without replacement: the largest p / e, e exponential, are a draw in order. With replacement:
// invert the distribution function.
Values multinomial(Builder& b, const OpCall& call) {
  const Value p = call.tensor(0);
  const DType math = p.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const int64_t samples = call.integer(1);
  const int64_t last = p.rank() - 1;
  const Value weights = b.convert(p, math);
  if (samples == 1 || !call.flag(2)) {
    const Draw random(call, p.dims());
    const Value scores = b.div(weights, random.exponential(math));
    if (samples == 1) return {b.arg_reduce(true, scores, last, true)};
    return {b.slice_dim(b.sort(scores, last, true)[1], last, 0, samples)};
  }
  const Value cumulative = b.scan(hlo::ScanKind::Sum, weights, last);
  const int64_t classes = p.dim(last);
  const Value total = b.slice_dim(cumulative, last, classes - 1, classes);
  const Value points = b.mul(draw(call).uniform(math), total);
  // The class is the number of boundaries at or below the point, among all but the last.
  const Value passed = b.le(b.unsqueeze(cumulative, last), b.unsqueeze(points, last + 1));
  const Value counts = b.sum(b.convert(passed, DType::i64), Dims{last + 1});
  return {b.min(counts, b.like(counts, static_cast<double>(classes - 1)))};
}
NEURON_LOWERING(
    "aten::multinomial(Tensor self, SymInt num_samples, bool replacement=False, *, Generator? "
    "generator=None) -> Tensor",
    multinomial);

}  // namespace
}  // namespace neuron::lowering
