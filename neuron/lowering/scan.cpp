// Running sums, products and extremes.

#include "neuron/lowering/numerics.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

using hlo::ScanKind;

// A 0-dim operand is its own running result.
Value scan(Builder& b, ScanKind kind, Value x, int64_t dim) {
  return x.rank() == 0 ? x : b.scan(kind, x, dim);
}

Values running(Builder& b, const OpCall& call, ScanKind kind) {
  const DType dtype = call.result().dtype;
  const Value x = call.tensor(0);
  const int64_t dim = call.dim(1, x.rank());
  // The operand takes the result's type before anything is added, narrow floats then run in f32.
  const Value wide = b.convert(b.convert(x, dtype), opmath(dtype));
  return {b.convert(scan(b, kind, wide, dim), dtype)};
}

Values cumsum(Builder& b, const OpCall& call) { return running(b, call, ScanKind::Sum); }
Values cumprod(Builder& b, const OpCall& call) { return running(b, call, ScanKind::Product); }
NEURON_LOWERING("aten::cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor", cumsum);
NEURON_LOWERING("aten::cumprod(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor",
                cumprod);

// The index moves whenever an element equals the running extreme: the last of equal ones counts,
// and once a NaN was seen only further NaNs move it.
Values running_extreme(Builder& b, const OpCall& call, ScanKind kind) {
  const Value x = call.tensor(0);
  const int64_t dim = call.dim(1, x.rank());
  if (x.rank() == 0) return {x, b.zeros(DType::i64)};
  const Value wide = x.dtype() == DType::pred ? b.convert(x, DType::u8) : x;
  const Value values = b.scan(kind, wide, dim);
  Value hit = b.eq(wide, values);
  if (is_floating(wide.dtype())) hit = b.bit_or(hit, b.is_nan(wide));
  const Value own = b.iota(DType::i64, x.dims(), dim);
  const Value at = b.select(hit, own, b.zeros(DType::i64));
  return {b.convert(values, x.dtype()), b.scan(ScanKind::Max, at, dim)};
}

Values cummax(Builder& b, const OpCall& call) { return running_extreme(b, call, ScanKind::Max); }
Values cummin(Builder& b, const OpCall& call) { return running_extreme(b, call, ScanKind::Min); }
NEURON_LOWERING("aten::cummax(Tensor self, int dim) -> (Tensor values, Tensor indices)", cummax);
NEURON_LOWERING("aten::cummin(Tensor self, int dim) -> (Tensor values, Tensor indices)", cummin);

// A running log of sums cannot be written as one sum: whatever the row's largest element is, terms
// far below it that come first would vanish.
NEURON_LIBRARY_OP("aten::_logcumsumexp(Tensor self, int dim) -> Tensor");
NEURON_LIBRARY_OP("aten::logcumsumexp(Tensor self, int dim) -> Tensor");

}  // namespace
}  // namespace neuron::lowering
