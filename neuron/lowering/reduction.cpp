// Reductions over dims: sums, extremes, moments, norms.

#include <limits>

#include "neuron/base/error.h"
#include "neuron/lowering/norm.h"
#include "neuron/lowering/numerics.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

using hlo::ReduceKind;

Dims all_dims(Value x) {
  Dims dims;
  for (int64_t i = 0; i < x.rank(); ++i) dims.push_back(i);
  return dims;
}

// Sums of integers and pred are i64, unless a dtype is given; sums run in the accumulation type.
DType sum_type(const OpCall& call, size_t dtype_argument, DType type) {
  const bool integral = type == DType::pred || is_integer(type);
  return call.dtype(dtype_argument, integral ? DType::i64 : type);
}

Value reduce_in(Builder& b, ReduceKind kind, Value x, DType out, DimsRef dims, bool keep) {
  const Value wide = b.convert(b.convert(x, out), opmath(out));
  if (out == DType::pred) {
    // sum and prod to bool.
    return b.reduce(kind == ReduceKind::Sum ? ReduceKind::Or : ReduceKind::And, wide, dims, keep);
  }
  return b.convert(b.reduce(kind, wide, dims, keep), out);
}

Values sum_all(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  return {reduce_in(b, ReduceKind::Sum, x, sum_type(call, 1, x.dtype()), all_dims(x), false)};
}
NEURON_LOWERING("aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor", sum_all);

Values sum(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  return {reduce_in(b, ReduceKind::Sum, x, sum_type(call, 3, x.dtype()), call.dims(1, x.rank()),
                    call.flag(2))};
}
NEURON_LOWERING(
    "aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? "
    "dtype=None) -> Tensor",
    sum);

Values nansum(Builder& b, const OpCall& call) {
  Value x = call.tensor(0);
  if (is_floating(x.dtype())) x = b.select(b.is_nan(x), b.like(x, 0), x);
  return {reduce_in(b, ReduceKind::Sum, x, sum_type(call, 3, x.dtype()), call.dims(1, x.rank()),
                    call.flag(2))};
}
NEURON_LOWERING(
    "aten::nansum(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) "
    "-> Tensor",
    nansum);

Values mean_over(Builder& b, Value x, DType out, DimsRef dims, bool keep) {
  const Value wide = b.convert(b.convert(x, out), opmath(out));
  return {b.convert(mean(b, wide, dims, keep), out)};
}

Values mean_all(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  return mean_over(b, x, call.dtype(1, x.dtype()), all_dims(x), false);
}
NEURON_LOWERING("aten::mean(Tensor self, *, ScalarType? dtype=None) -> Tensor", mean_all);

Values mean_dims(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  return mean_over(b, x, call.dtype(3, x.dtype()), call.dims(1, x.rank()), call.flag(2));
}
NEURON_LOWERING(
    "aten::mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> "
    "Tensor",
    mean_dims);

// A rank-0 tensor reduced along "dim 0" keeps its only element.
Dims one_dim(const OpCall& call, size_t i, Value x) {
  return x.rank() == 0 ? Dims{} : Dims{call.dim(i, x.rank())};
}

Values prod_all(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  return {reduce_in(b, ReduceKind::Product, x, sum_type(call, 1, x.dtype()), all_dims(x), false)};
}
NEURON_LOWERING("aten::prod(Tensor self, *, ScalarType? dtype=None) -> Tensor", prod_all);

Values prod(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  return {reduce_in(b, ReduceKind::Product, x, sum_type(call, 3, x.dtype()), one_dim(call, 1, x),
                    call.flag(2))};
}
NEURON_LOWERING(
    "aten::prod.dim_int(Tensor self, int dim, bool keepdim=False, *, ScalarType? dtype=None) -> "
    "Tensor",
    prod);

// --- Extremes ---------------------------------------------------------------------------------

Value extreme(Builder& b, bool is_max, Value x, DimsRef dims, bool keep) {
  if (x.dtype() == DType::pred) {
    return b.reduce(is_max ? ReduceKind::Or : ReduceKind::And, x, dims, keep);
  }
  return b.reduce(is_max ? ReduceKind::Max : ReduceKind::Min, x, dims, keep);
}

template <bool is_max>
Values extreme_dims(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  return {extreme(b, is_max, x, call.dims(1, x.rank()), call.flag(2))};
}
NEURON_LOWERING("aten::amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor",
                extreme_dims<true>);
NEURON_LOWERING("aten::amin(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor",
                extreme_dims<false>);

template <bool is_max>
Values extreme_all(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  return {extreme(b, is_max, x, all_dims(x), false)};
}
NEURON_LOWERING("aten::max(Tensor self) -> Tensor", extreme_all<true>);
NEURON_LOWERING("aten::min(Tensor self) -> Tensor", extreme_all<false>);

// Index of the first extreme; bool is compared as a number.
Value arg_extreme(Builder& b, bool is_max, Value x, int64_t dim, bool keep) {
  if (x.rank() == 0) return b.zeros(DType::i64);
  if (x.dtype() == DType::pred) x = b.convert(x, DType::u8);
  return b.arg_reduce(is_max, x, dim, keep);
}

template <bool is_max>
Values extreme_with_index(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const int64_t dim = call.dim(1, x.rank());
  return {extreme(b, is_max, x, one_dim(call, 1, x), call.flag(2)),
          arg_extreme(b, is_max, x, dim, call.flag(2))};
}
NEURON_LOWERING(
    "aten::max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
    extreme_with_index<true>);
NEURON_LOWERING(
    "aten::min.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
    extreme_with_index<false>);

template <bool is_max>
Values arg_extreme_of(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  if (call.has(1)) return {arg_extreme(b, is_max, x, call.dim(1, x.rank()), call.flag(2))};
  const Value flat = b.reshape(x, Dims{x.count()});
  return {b.reshape(arg_extreme(b, is_max, flat, 0, false), call.result().dims)};
}
NEURON_LOWERING("aten::argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor",
                arg_extreme_of<true>);
NEURON_LOWERING("aten::argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor",
                arg_extreme_of<false>);

Values both_extremes(Builder& b, const OpCall& call, const Dims& dims, bool keep) {
  const Value x = call.tensor(0);
  return {extreme(b, false, x, dims, keep), extreme(b, true, x, dims, keep)};
}

Values aminmax(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  return both_extremes(b, call, call.has(1) ? one_dim(call, 1, x) : all_dims(x), call.flag(2));
}
NEURON_LOWERING(
    "aten::aminmax(Tensor self, *, int? dim=None, bool keepdim=False) -> (Tensor min, Tensor max)",
    aminmax);

Values aminmax_all(Builder& b, const OpCall& call) {
  return both_extremes(b, call, all_dims(call.tensor(0)), false);
}
NEURON_LOWERING("aten::_aminmax(Tensor self) -> (Tensor, Tensor)", aminmax_all);

Values aminmax_dim(Builder& b, const OpCall& call) {
  return both_extremes(b, call, one_dim(call, 1, call.tensor(0)), call.flag(2));
}
NEURON_LOWERING("aten::_aminmax.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor, Tensor)",
                aminmax_dim);

// --- Truth ------------------------------------------------------------------------------------

Value truth(Builder& b, ReduceKind kind, Value x, DimsRef dims, bool keep) {
  return b.reduce(kind, b.convert(x, DType::pred), dims, keep);
}

template <ReduceKind kind>
Values truth_all(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  return {truth(b, kind, x, all_dims(x), false)};
}
NEURON_LOWERING("aten::any(Tensor self) -> Tensor", truth_all<ReduceKind::Or>);
NEURON_LOWERING("aten::all(Tensor self) -> Tensor", truth_all<ReduceKind::And>);
NEURON_LOWERING("aten::_is_any_true(Tensor self) -> Tensor", truth_all<ReduceKind::Or>);
NEURON_LOWERING("aten::_is_all_true(Tensor self) -> Tensor", truth_all<ReduceKind::And>);

template <ReduceKind kind>
Values truth_dim(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  return {truth(b, kind, x, one_dim(call, 1, x), call.flag(2))};
}
NEURON_LOWERING("aten::any.dim(Tensor self, int dim, bool keepdim=False) -> Tensor",
                truth_dim<ReduceKind::Or>);
NEURON_LOWERING("aten::all.dim(Tensor self, int dim, bool keepdim=False) -> Tensor",
                truth_dim<ReduceKind::And>);

// Here an empty list means no dim, None means all.
template <ReduceKind kind>
Values truth_dims(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const bool none = call.has(1) && call.ints(1).empty();
  return {truth(b, kind, x, none ? Dims{} : call.dims(1, x.rank()), call.flag(2))};
}
NEURON_LOWERING("aten::any.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor",
                truth_dims<ReduceKind::Or>);
NEURON_LOWERING("aten::all.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor",
                truth_dims<ReduceKind::And>);

Values count_nonzero(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const Value counted = b.convert(b.convert(x, DType::pred), DType::i64);
  return {b.sum(counted, call.dims(1, x.rank()))};
}
NEURON_LOWERING("aten::count_nonzero(Tensor self, int? dim=None) -> Tensor", count_nonzero);
NEURON_LOWERING("aten::count_nonzero.dim_IntList(Tensor self, int[] dim) -> Tensor", count_nonzero);

// --- Moments ----------------------------------------------------------------------------------

struct Moments {
  Value variance, mean;
};

Value square(Builder& b, Value x) { return b.mul(x, x); }

// Two passes over centred values; a correction beyond the count divides by 0, as torch does.
Moments moments(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const Dims dims = call.dims(1, x.rank());
  const bool keep = call.flag(3);
  const DType math = opmath(real_of(x.dtype()));
  const Value correction = call.has(2) ? call.scalar(2, math) : b.constant(math, 1);
  const Value count = b.constant(math, static_cast<double>(count_of(x, dims)));
  const Value divisor = b.max(b.sub(count, correction), b.constant(math, 0));
  const auto part = [&](Value y) {
    const Value centre = mean(b, y, dims, true);
    const Value squares = b.sum(square(b, b.sub(y, centre)), dims, keep);
    return Moments{b.div(squares, divisor), keep ? centre : b.reshape(centre, squares.dims())};
  };
  if (!is_complex(x.dtype())) return part(b.convert(x, math));
  const Moments real = part(b.real(x)), imag = part(b.imag(x));
  return {b.add(real.variance, imag.variance), b.complex(real.mean, imag.mean)};
}

Values variance(Builder& b, const OpCall& call) { return {moments(b, call).variance}; }
Values deviation(Builder& b, const OpCall& call) { return {b.sqrt(moments(b, call).variance)}; }
Values variance_and_mean(Builder& b, const OpCall& call) {
  const Moments m = moments(b, call);
  return {m.variance, m.mean};
}
Values deviation_and_mean(Builder& b, const OpCall& call) {
  const Moments m = moments(b, call);
  return {b.sqrt(m.variance), m.mean};
}
NEURON_LOWERING(
    "aten::var.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool "
    "keepdim=False) -> Tensor",
    variance);
NEURON_LOWERING(
    "aten::std.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool "
    "keepdim=False) -> Tensor",
    deviation);
NEURON_LOWERING(
    "aten::var_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool "
    "keepdim=False) -> (Tensor, Tensor)",
    variance_and_mean);
NEURON_LOWERING(
    "aten::std_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool "
    "keepdim=False) -> (Tensor, Tensor)",
    deviation_and_mean);

// --- Norms ------------------------------------------------------------------------------------

// dtype_argument < 0: the schema has none.
Values norm_over(Builder& b, const OpCall& call, int order, const Dims& dims, bool keep,
                 int dtype_argument) {
  Value x = call.tensor(0);
  DType out = real_of(x.dtype());
  if (dtype_argument >= 0 && call.has(static_cast<size_t>(dtype_argument))) {
    const DType given = call.argument(static_cast<size_t>(dtype_argument)).dtype;
    x = b.convert(x, is_complex(x.dtype()) ? complex_of(real_of(given)) : real_of(given));
    out = real_of(given);
  }
  return {b.convert(vector_norm(call, x, order, dims, keep), out)};
}

Values linalg_vector_norm(Builder& b, const OpCall& call) {
  return norm_over(b, call, 1, call.dims(2, call.tensor(0).rank()), call.flag(3), 4);
}
NEURON_LOWERING(
    "aten::linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, "
    "ScalarType? dtype=None) -> Tensor",
    linalg_vector_norm);

Values norm_all(Builder& b, const OpCall& call) {
  return norm_over(b, call, 1, all_dims(call.tensor(0)), false, call.size() > 2 ? 2 : -1);
}
NEURON_LOWERING("aten::norm.Scalar(Tensor self, Scalar p=2) -> Tensor", norm_all);
NEURON_LOWERING("aten::norm.ScalarOpt_dtype(Tensor self, Scalar? p, *, ScalarType dtype) -> Tensor",
                norm_all);

Values norm_dims(Builder& b, const OpCall& call) {
  return norm_over(b, call, 1, call.dims(2, call.tensor(0).rank()), call.flag(3),
                   call.size() > 4 ? 4 : -1);
}
NEURON_LOWERING(
    "aten::norm.ScalarOpt_dim(Tensor self, Scalar? p, int[1] dim, bool keepdim=False) -> Tensor",
    norm_dims);
NEURON_LOWERING(
    "aten::norm.ScalarOpt_dim_dtype(Tensor self, Scalar? p, int[1] dim, bool keepdim, *, "
    "ScalarType dtype) -> Tensor",
    norm_dims);

Values linalg_power_sum(Builder& b, const OpCall& call) {
  Value x = call.tensor(0);
  const DType out = real_of(call.dtype(4, x.dtype()));
  if (!is_complex(x.dtype())) x = b.convert(x, out);
  return {b.convert(power_sum(call, x, 1, call.dims(2, x.rank()), call.flag(3)), out)};
}
NEURON_LOWERING(
    "aten::linalg__powsum(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, "
    "ScalarType? dtype=None) -> Tensor",
    linalg_power_sum);

Values dist(Builder& b, const OpCall& call) {
  const auto [x, y, common] = binary_operands(call, 0, 1);
  const Value gap = b.sub(x, y);
  return {b.convert(vector_norm(call, gap, 2, all_dims(gap), false), real_of(common))};
}
NEURON_LOWERING("aten::dist(Tensor self, Tensor other, Scalar p=2) -> Tensor", dist);

// Scales each slice along `dim` down to the norm `maxnorm`.
Values renorm(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const int64_t dim = call.dim(2, x.rank());
  Dims others;
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (i != dim) others.push_back(i);
  }
  const Value wide = b.convert(x, opmath(x.dtype()));
  const Value size = vector_norm(call, wide, 1, others, true);
  const Value limit = call.scalar(3, size.dtype());
  const Value factor =
      b.select(b.gt(size, limit), b.div(limit, b.add(size, b.like(size, 1e-7))), b.like(size, 1));
  return {b.convert(b.mul(wide, b.convert(factor, wide.dtype())), x.dtype())};
}
NEURON_LOWERING("aten::renorm(Tensor self, Scalar p, int dim, Scalar maxnorm) -> Tensor", renorm);

Values logsumexp(Builder& b, const OpCall& call) {
  const DType common = float_type(call, call.tensor(0).dtype());
  const Value x = math_operand(call, 0, common);
  const Dims dims = call.dims(1, x.rank());
  Value peak = b.reduce(ReduceKind::Max, is_complex(common) ? b.real(x) : x, dims, true);
  // Infinite peaks would give inf - inf.
  peak = b.select(b.eq(b.abs(peak), highest(b, peak.dtype())), b.like(peak, 0), peak);
  peak = b.convert(peak, x.dtype());
  const Value sum = b.sum(b.exp(b.sub(x, peak)), dims, true);
  const Value result = b.add(b.log(sum), peak);
  if (call.flag(2)) return {b.convert(result, common)};
  return {b.convert(b.reshape(result, call.result().dims), common)};
}
NEURON_LOWERING("aten::logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor",
                logsumexp);

}  // namespace

Value vector_norm(const OpCall& call, Value x, int order, DimsRef dims, bool keep) {
  Builder& b = call.builder();
  const size_t i = static_cast<size_t>(order);
  const double p = call.has(i) ? call.number(i) : 2.0;
  if (is_complex(x.dtype())) x = b.abs(x);
  x = b.convert(x, opmath(x.dtype()));
  if (p == 2.0) return b.sqrt(b.sum(b.mul(x, x), dims, keep));
  const Value size = b.abs(x);
  if (p == 1.0) return b.sum(size, dims, keep);
  if (p == 0.0) return b.sum(b.convert(b.ne(x, b.like(x, 0)), x.dtype()), dims, keep);
  if (p == std::numeric_limits<double>::infinity()) {
    // The norm of nothing is 0, not -inf.
    if (count_of(x, dims) == 0) return b.sum(size, dims, keep);
    return b.reduce(ReduceKind::Max, size, dims, keep);
  }
  if (p == -std::numeric_limits<double>::infinity()) {
    return b.reduce(ReduceKind::Min, size, dims, keep);
  }
  const Value power = b.sum(b.pow(size, b.like(size, p)), dims, keep);
  return b.pow(power, b.like(power, 1.0 / p));
}

Value power_sum(const OpCall& call, Value x, int order, DimsRef dims, bool keep) {
  Builder& b = call.builder();
  const double p = call.number(static_cast<size_t>(order));
  if (is_complex(x.dtype())) x = b.abs(x);
  x = b.convert(x, opmath(x.dtype()));
  const Value size = b.abs(x);
  const Value power = p == 1.0 ? size : p == 2.0 ? b.mul(x, x) : b.pow(size, b.like(size, p));
  return b.sum(power, dims, keep);
}

}  // namespace neuron::lowering
