// The fused cells of recurrent layers: everything after the two matrix products.

#include "neuron/lowering/numerics.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

Value wide(Builder& b, Value x) { return b.convert(x, opmath(x.dtype())); }

// Gate k of `count` equal parts of the last dim.
Value gate(Builder& b, Value x, int64_t k, int64_t count) {
  const int64_t width = x.dim(-1) / count;
  return b.slice_dim(x, x.rank() - 1, k * width, (k + 1) * width);
}

Value biased(Builder& b, Value x, Value bias) {
  return bias.defined() ? b.add(x, wide(b, bias)) : x;
}

Value join(Builder& b, std::initializer_list<Value> parts) {
  const Values list(parts);
  return b.concatenate(list, list[0].rank() - 1);
}

Value one_minus(Builder& b, Value x) { return b.sub(b.like(x, 1), x); }
// Derivatives of the logistic function and tanh by their results.
Value logistic_slope(Builder& b, Value y) { return b.mul(y, one_minus(b, y)); }
Value tanh_slope(Builder& b, Value y) { return one_minus(b, b.mul(y, y)); }

// Gates in order: input, forget, cell, output. The workspace keeps them activated.
Values lstm_cell(Builder& b, const OpCall& call) {
  const DType dtype = call.tensor(0).dtype();
  Value gates = biased(b, wide(b, call.tensor(0)), call.optional_tensor(3));
  gates = b.add(gates, biased(b, wide(b, call.tensor(1)), call.optional_tensor(4)));
  const Value in = b.logistic(gate(b, gates, 0, 4));
  const Value forget = b.logistic(gate(b, gates, 1, 4));
  const Value cell = b.tanh(gate(b, gates, 2, 4));
  const Value out = b.logistic(gate(b, gates, 3, 4));
  const Value cy = b.add(b.mul(forget, wide(b, call.tensor(2))), b.mul(in, cell));
  const Value hy = b.mul(out, b.tanh(cy));
  return {b.convert(hy, dtype), b.convert(cy, dtype),
          b.convert(join(b, {in, forget, cell, out}), dtype)};
}
NEURON_LOWERING(
    "aten::_thnn_fused_lstm_cell(Tensor input_gates, Tensor hidden_gates, Tensor cx, Tensor? "
    "input_bias=None, Tensor? hidden_bias=None) -> (Tensor, Tensor, Tensor)",
    lstm_cell);

Values lstm_cell_backward(Builder& b, const OpCall& call) {
  if (!call.has(0) && !call.has(1)) return Values(3);
  const DType dtype = call.tensor(4).dtype();
  const Value cx = wide(b, call.tensor(2)), cy = wide(b, call.tensor(3));
  const Value workspace = wide(b, call.tensor(4));
  const Value in = gate(b, workspace, 0, 4), forget = gate(b, workspace, 1, 4);
  const Value cell = gate(b, workspace, 2, 4), out = gate(b, workspace, 3, 4);
  const Value zero = b.zeros(cx.dtype(), cx.dims());
  const Value grad_hy = call.has(0) ? wide(b, call.tensor(0)) : zero;
  const Value tanh_cy = b.tanh(cy);
  Value grad_cell = b.mul(b.mul(grad_hy, out), tanh_slope(b, tanh_cy));
  if (call.has(1)) grad_cell = b.add(grad_cell, wide(b, call.tensor(1)));
  const Value grad_in = b.mul(b.mul(grad_cell, cell), logistic_slope(b, in));
  const Value grad_forget = b.mul(b.mul(grad_cell, cx), logistic_slope(b, forget));
  const Value grad_candidate = b.mul(b.mul(grad_cell, in), tanh_slope(b, cell));
  const Value grad_out = b.mul(b.mul(grad_hy, tanh_cy), logistic_slope(b, out));
  const Value grad_gates = join(b, {grad_in, grad_forget, grad_candidate, grad_out});
  return {b.convert(grad_gates, dtype), b.convert(b.mul(grad_cell, forget), dtype),
          call.flag(5) ? b.convert(b.sum(grad_gates, Dims{0}), dtype) : Value()};
}
NEURON_LOWERING(
    "aten::_thnn_fused_lstm_cell_backward_impl(Tensor? grad_hy, Tensor? grad_cy, Tensor cx, Tensor "
    "cy, Tensor workspace, bool has_bias) -> (Tensor, Tensor, Tensor)",
    lstm_cell_backward);

// Gates in order: reset, update, new. The workspace keeps them activated, then the old state and
// the hidden part of the new gate before the reset.
Values gru_cell(Builder& b, const OpCall& call) {
  const DType dtype = call.tensor(0).dtype();
  const Value input = biased(b, wide(b, call.tensor(0)), call.optional_tensor(3));
  const Value hidden = biased(b, wide(b, call.tensor(1)), call.optional_tensor(4));
  const Value hx = wide(b, call.tensor(2));
  const Value reset = b.logistic(b.add(gate(b, input, 0, 3), gate(b, hidden, 0, 3)));
  const Value update = b.logistic(b.add(gate(b, input, 1, 3), gate(b, hidden, 1, 3)));
  const Value hidden_new = gate(b, hidden, 2, 3);
  const Value fresh = b.tanh(b.add(gate(b, input, 2, 3), b.mul(reset, hidden_new)));
  const Value hy = b.add(fresh, b.mul(update, b.sub(hx, fresh)));
  return {b.convert(hy, dtype), b.convert(join(b, {reset, update, fresh, hx, hidden_new}), dtype)};
}
NEURON_LOWERING(
    "aten::_thnn_fused_gru_cell(Tensor input_gates, Tensor hidden_gates, Tensor hx, Tensor? "
    "input_bias=None, Tensor? hidden_bias=None) -> (Tensor, Tensor)",
    gru_cell);

Values gru_cell_backward(Builder& b, const OpCall& call) {
  const Value workspace = wide(b, call.tensor(1));
  const DType dtype = call.tensor(1).dtype();
  const Value grad = wide(b, call.tensor(0));
  const Value reset = gate(b, workspace, 0, 5), update = gate(b, workspace, 1, 5);
  const Value fresh = gate(b, workspace, 2, 5), hx = gate(b, workspace, 3, 5);
  const Value hidden_new = gate(b, workspace, 4, 5);
  const Value grad_update = b.mul(b.mul(grad, b.sub(hx, fresh)), logistic_slope(b, update));
  const Value grad_new = b.mul(b.mul(grad, one_minus(b, update)), tanh_slope(b, fresh));
  const Value grad_reset = b.mul(b.mul(grad_new, hidden_new), logistic_slope(b, reset));
  const Value grad_input = join(b, {grad_reset, grad_update, grad_new});
  const Value grad_hidden = join(b, {grad_reset, grad_update, b.mul(grad_new, reset)});
  Value input_bias, hidden_bias;
  if (call.flag(2)) {
    input_bias = b.convert(b.sum(grad_input, Dims{0}), dtype);
    hidden_bias = b.convert(b.sum(grad_hidden, Dims{0}), dtype);
  }
  return {b.convert(grad_input, dtype), b.convert(grad_hidden, dtype),
          b.convert(b.mul(grad, update), dtype), input_bias, hidden_bias};
}
NEURON_LOWERING(
    "aten::_thnn_fused_gru_cell_backward(Tensor grad_hy, Tensor workspace, bool has_bias) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
    gru_cell_backward);

}  // namespace
}  // namespace neuron::lowering
