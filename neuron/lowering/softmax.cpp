// Softmax, its logarithm, and their derivatives, along one dim. Rows are summed in f32 or wider: a
// bf16 running sum of ones stops growing at 256.

#include <limits>

#include "neuron/lowering/numerics.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

using hlo::ReduceKind;

// The widened operand with at least one dim, and the dim to go along.
struct Rows {
  Value x;
  int64_t dim;
};

Rows rows(Builder& b, Value x, int64_t dim) {
  const Value wide = b.convert(x, opmath(x.dtype()));
  return {wide.rank() == 0 ? b.reshape(wide, Dims{1}) : wide, dim};
}

Value shaped(Builder& b, Value y, const OpCall& call) { return b.reshape(y, call.result().dims); }

Value softmax_of(Builder& b, Value x, int64_t dim) {
  const Value exps = b.exp(b.sub(x, b.max_keepdim(x, dim)));
  return b.div(exps, b.sum_keepdim(exps, dim));
}

Values softmax(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const auto [wide, dim] = rows(b, x, call.dim(1, x.rank()));
  if (wide.count() == 0) return {x};
  return {shaped(b, softmax_of(b, wide, dim), call)};
}
NEURON_LOWERING("aten::_softmax(Tensor self, int dim, bool half_to_float) -> Tensor", softmax);

Values log_softmax(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const auto [wide, dim] = rows(b, x, call.dim(1, x.rank()));
  if (wide.count() == 0) return {x};
  const Value centred = b.sub(wide, b.max_keepdim(wide, dim));
  const Value total = b.log(b.sum_keepdim(b.exp(centred), dim));
  return {shaped(b, b.sub(centred, total), call)};
}
NEURON_LOWERING("aten::_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor",
                log_softmax);

// A row of -inf gives zeros instead of NaN.
Values safe_softmax(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const DType out = call.dtype(2, x.dtype());
  const auto [wide, dim] = rows(b, b.convert(x, out), call.dim(1, x.rank()));
  if (wide.count() == 0) return {b.convert(x, out)};
  const Value peak = b.max_keepdim(wide, dim);
  const Value masked = b.eq(peak, lowest(b, peak.dtype()));
  const Value exps = b.exp(b.sub(wide, peak));
  const Value plain = b.div(exps, b.sum_keepdim(exps, dim));
  return {shaped(b, b.select(masked, b.like(plain, 0), plain), call)};
}
NEURON_LOWERING("aten::_safe_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor",
                safe_softmax);

Values softmax_backward(Builder& b, const OpCall& call) {
  const Value output = call.tensor(1);
  const auto [y, dim] = rows(b, output, call.dim(2, output.rank()));
  if (y.count() == 0) return {output};
  const Value grad = b.reshape(b.convert(call.tensor(0), y.dtype()), y.dims());
  const Value weighted = b.mul(grad, y);
  return {shaped(b, b.sub(weighted, b.mul(y, b.sum_keepdim(weighted, dim))), call)};
}
NEURON_LOWERING(
    "aten::_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType "
    "input_dtype) -> Tensor",
    softmax_backward);

Values log_softmax_backward(Builder& b, const OpCall& call) {
  const Value output = call.tensor(1);
  const auto [y, dim] = rows(b, output, call.dim(2, output.rank()));
  if (y.count() == 0) return {output};
  const Value grad = b.reshape(b.convert(call.tensor(0), y.dtype()), y.dims());
  return {shaped(b, b.sub(grad, b.mul(b.exp(y), b.sum_keepdim(grad, dim))), call)};
}
NEURON_LOWERING(
    "aten::_log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType "
    "input_dtype) -> Tensor",
    log_softmax_backward);

// True in the mask hides an element. Mask types: 0 is [L, L], 1 is [B, L] for x of [B, H, L, L],
// otherwise the mask has x's shape.
Values masked_softmax(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const int64_t dim = call.has(2) ? call.dim(2, x.rank()) : x.rank() - 1;
  const auto [wide, along_dim] = rows(b, x, dim);
  Value mask = b.convert(call.tensor(1), DType::pred);
  const int64_t type = call.integer(3, 2);
  if (type == 1) {
    mask = b.reshape(mask, Dims{mask.dim(0), 1, 1, mask.dim(1)});
  } else if (mask.rank() < wide.rank() && type == 2) {
    mask = b.reshape(mask, wide.dims());
  }
  const Value hidden = b.select(mask, lowest(b, wide.dtype()), wide);
  const Value peak = b.max_keepdim(hidden, along_dim);
  const Value exps = b.exp(b.sub(hidden, peak));
  const Value plain = b.div(exps, b.sum_keepdim(exps, along_dim));
  const Value none = b.eq(peak, lowest(b, peak.dtype()));
  return {shaped(b, b.select(none, b.like(plain, 0), plain), call)};
}
NEURON_LOWERING(
    "aten::_masked_softmax(Tensor self, Tensor mask, int? dim=None, int? mask_type=None) -> "
    "Tensor",
    masked_softmax);

// Hidden elements have an output of 0, and with it a gradient of 0.
Values masked_softmax_backward(Builder& b, const OpCall& call) {
  const Value output = call.tensor(1);
  const int64_t last = output.rank() == 0 ? 0 : output.rank() - 1;
  const auto [y, dim] = rows(b, output, call.has(3) ? call.dim(3, output.rank()) : last);
  const Value grad = b.reshape(b.convert(call.tensor(0), y.dtype()), y.dims());
  const Value weighted = b.mul(grad, y);
  return {shaped(b, b.sub(weighted, b.mul(y, b.sum_keepdim(weighted, dim))), call)};
}
NEURON_LOWERING(
    "aten::_masked_softmax_backward(Tensor grad_output, Tensor output, Tensor mask, int? dim=None) "
    "-> Tensor",
    masked_softmax_backward);

}  // namespace
}  // namespace neuron::lowering
