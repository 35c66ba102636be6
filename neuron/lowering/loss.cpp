// Loss functions and their derivatives. Reductions: 0 none, 1 mean, 2 sum.

#include "neuron/base/error.h"
#include "neuron/lowering/numerics.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

enum Reduction : int64_t { kNone = 0, kMean = 1, kSum = 2 };

Dims all_dims(Value x) {
  Dims dims;
  for (int64_t i = 0; i < x.rank(); ++i) dims.push_back(i);
  return dims;
}

Value reduced(Builder& b, Value loss, int64_t reduction) {
  if (reduction == kMean) return mean(b, loss, all_dims(loss), false);
  return reduction == kSum ? b.sum(loss, all_dims(loss)) : loss;
}

// The gradient per element, after the mean's division.
Value share(Builder& b, Value grad, Value like, int64_t reduction) {
  if (reduction != kMean) return grad;
  return b.mul(grad, b.like(grad, 1.0 / static_cast<double>(like.count())));
}

// (self, target) of a forward loss.
BinaryOperands pair(const OpCall& call) {
  BinaryOperands of = binary_operands(call, 0, 1);
  of.a = call.builder().broadcast_to(of.a, broadcast_shapes(of.a.dims(), of.b.dims()));
  return of;
}

// (grad_output, self, target) of a backward.
struct Backward {
  Value grad, x, target;
  DType common;
};

Backward backward_operands(const OpCall& call) {
  const DType common = result_type(call, {0, 1, 2});
  return {math_operand(call, 0, common), math_operand(call, 1, common),
          math_operand(call, 2, common), common};
}

Value square(Builder& b, Value x) { return b.mul(x, x); }

Values mse(Builder& b, const OpCall& call) {
  const auto [x, target, common] = pair(call);
  return {b.convert(reduced(b, square(b, b.sub(x, target)), call.integer(2)), common)};
}
NEURON_LOWERING("aten::mse_loss(Tensor self, Tensor target, int reduction=1) -> Tensor", mse);

Values mse_backward(Builder& b, const OpCall& call) {
  const Backward of = backward_operands(call);
  const Value gap = b.sub(of.x, of.target);
  const double factor = call.integer(3) == kMean ? 2.0 / static_cast<double>(of.x.count()) : 2.0;
  return {b.convert(b.mul(b.mul(gap, b.like(gap, factor)), of.grad), of.common)};
}
NEURON_LOWERING(
    "aten::mse_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction) -> "
    "Tensor",
    mse_backward);

// Quadratic below beta, linear above.
Values smooth_l1(Builder& b, const OpCall& call) {
  const auto [x, target, common] = pair(call);
  const Value size = b.abs(b.sub(x, target));
  const Value beta = call.scalar(3, x.dtype());
  const Value half = b.like(x, 0.5);
  const Value near = b.div(b.mul(half, square(b, size)), beta);
  const Value loss = b.select(b.lt(size, beta), near, b.sub(size, b.mul(half, beta)));
  return {b.convert(reduced(b, loss, call.integer(2)), common)};
}
NEURON_LOWERING(
    "aten::smooth_l1_loss(Tensor self, Tensor target, int reduction=1, float beta=1.) -> Tensor",
    smooth_l1);

Values smooth_l1_backward(Builder& b, const OpCall& call) {
  const Backward of = backward_operands(call);
  const Value gap = b.sub(of.x, of.target);
  const Value grad = share(b, of.grad, gap, call.integer(3));
  const Value beta = call.scalar(4, gap.dtype());
  const Value far = b.mul(b.sign(gap), grad);
  const Value near = b.div(b.mul(grad, gap), beta);
  return {b.convert(b.select(b.lt(b.abs(gap), beta), near, far), of.common)};
}
NEURON_LOWERING(
    "aten::smooth_l1_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction, "
    "float beta) -> Tensor",
    smooth_l1_backward);

Values huber(Builder& b, const OpCall& call) {
  const auto [x, target, common] = pair(call);
  const Value size = b.abs(b.sub(x, target));
  const Value delta = call.scalar(3, x.dtype());
  const Value half = b.like(x, 0.5);
  const Value near = b.mul(half, square(b, size));
  const Value far = b.mul(delta, b.sub(size, b.mul(half, delta)));
  return {b.convert(reduced(b, b.select(b.le(size, delta), near, far), call.integer(2)), common)};
}
NEURON_LOWERING(
    "aten::huber_loss(Tensor self, Tensor target, int reduction=1, float delta=1.) -> Tensor",
    huber);

Values huber_backward(Builder& b, const OpCall& call) {
  const Backward of = backward_operands(call);
  const Value gap = b.sub(of.x, of.target);
  const Value grad = share(b, of.grad, gap, call.integer(3));
  const Value delta = call.scalar(4, gap.dtype());
  const Value far = b.mul(b.mul(delta, b.sign(gap)), grad);
  return {b.convert(b.select(b.le(b.abs(gap), delta), b.mul(gap, grad), far), of.common)};
}
NEURON_LOWERING(
    "aten::huber_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction, "
    "float delta) -> Tensor",
    huber_backward);

Values soft_margin(Builder& b, const OpCall& call) {
  const auto [x, target, common] = pair(call);
  const Value loss = b.log1p(b.exp(b.neg(b.mul(target, x))));
  return {b.convert(reduced(b, loss, call.integer(2)), common)};
}
NEURON_LOWERING("aten::soft_margin_loss(Tensor self, Tensor target, int reduction=1) -> Tensor",
                soft_margin);

Values soft_margin_backward(Builder& b, const OpCall& call) {
  const Backward of = backward_operands(call);
  const Value grad = share(b, of.grad, of.x, call.integer(3));
  const Value z = b.exp(b.neg(b.mul(of.target, of.x)));
  const Value slope = b.div(b.mul(of.target, z), b.add(z, b.like(z, 1)));
  return {b.convert(b.neg(b.mul(slope, grad)), of.common)};
}
NEURON_LOWERING(
    "aten::soft_margin_loss_backward(Tensor grad_output, Tensor self, Tensor target, int "
    "reduction) -> Tensor",
    soft_margin_backward);

// --- Binary cross entropy ---------------------------------------------------------------------

// Logarithms are kept above -100, so that a sure and wrong prediction has a finite loss.
Values binary_cross_entropy(Builder& b, const OpCall& call) {
  const auto [x, target, common] = pair(call);
  const Value floor = b.like(x, -100);
  const Value one = b.like(x, 1);
  const Value wrong = b.mul(b.sub(target, one), b.max(b.log1p(b.neg(x)), floor));
  Value loss = b.sub(wrong, b.mul(target, b.max(b.log(x), floor)));
  if (call.has(2)) loss = b.mul(loss, math_operand(call, 2, common));
  return {b.convert(reduced(b, loss, call.integer(3)), common)};
}
NEURON_LOWERING(
    "aten::binary_cross_entropy(Tensor self, Tensor target, Tensor? weight=None, int reduction=1) "
    "-> Tensor",
    binary_cross_entropy);

Values binary_cross_entropy_backward(Builder& b, const OpCall& call) {
  const Backward of = backward_operands(call);
  const Value spread = b.mul(b.sub(b.like(of.x, 1), of.x), of.x);
  Value grad = b.div(b.mul(of.grad, b.sub(of.x, of.target)), b.max(spread, b.like(spread, 1e-12)));
  if (call.has(3)) grad = b.mul(grad, math_operand(call, 3, of.common));
  return {b.convert(share(b, grad, of.x, call.integer(4)), of.common)};
}
NEURON_LOWERING(
    "aten::binary_cross_entropy_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? "
    "weight=None, int reduction=1) -> Tensor",
    binary_cross_entropy_backward);

Values binary_cross_entropy_with_logits(Builder& b, const OpCall& call) {
  const auto [x, target, common] = pair(call);
  const Value one = b.like(x, 1), zero = b.like(x, 0);
  // -log(sigmoid(x))
  const Value cost = b.add(b.log1p(b.exp(b.neg(b.abs(x)))), b.max(b.neg(x), zero));
  const Value others = b.mul(b.sub(one, target), x);
  Value loss;
  if (call.has(3)) {
    const Value positive = math_operand(call, 3, common);
    const Value weight = b.add(b.mul(b.sub(positive, one), target), one);
    loss = b.add(others, b.mul(weight, cost));
  } else {
    loss = b.add(others, cost);
  }
  if (call.has(2)) loss = b.mul(loss, math_operand(call, 2, common));
  return {b.convert(reduced(b, loss, call.integer(4)), common)};
}
NEURON_LOWERING(
    "aten::binary_cross_entropy_with_logits(Tensor self, Tensor target, Tensor? weight=None, "
    "Tensor? pos_weight=None, int reduction=1) -> Tensor",
    binary_cross_entropy_with_logits);

// --- Negative log likelihood ------------------------------------------------------------------

// Scores [N, C, d...] (or [C]) against classes [N, d...] (or []), seen as [N, C, rest] and [N,
// rest].
struct Classes {
  Value scores;   // Widened.
  Value classes;  // i64, 0 where ignored.
  Value kept;     // pred: not ignored.
  Value weights;  // Of each kept target; 0 where ignored.
};

Classes classes_of(Builder& b, const OpCall& call, size_t self) {
  const Value x = call.tensor(self);
  const Value target = call.tensor(self + 1);
  const int64_t ignored = call.integer(self + 4);
  const int64_t batch = x.rank() == 1 ? 1 : x.dim(0);
  const int64_t count = x.rank() == 1 ? x.dim(0) : x.dim(1);
  const int64_t rest = batch == 0 ? 0 : target.count() / batch;
  Classes c;
  c.scores = b.reshape(b.convert(x, opmath(x.dtype())), Dims{batch, count, rest});
  const Value given = b.convert(b.reshape(target, Dims{batch, rest}), DType::i64);
  c.kept = b.ne(given, b.constant_int(DType::i64, ignored));
  c.classes = b.select(c.kept, given, b.constant_int(DType::i64, 0));
  const DType math = c.scores.dtype();
  c.weights = b.convert(c.kept, math);
  if (call.has(self + 2)) {
    const Value table = b.convert(call.tensor(self + 2), math);
    const Value picked = b.gather(table, std::span(&c.classes, 1), Dims{0}, 0);
    c.weights = b.select(c.kept, picked, b.constant(math, 0));
  }
  return c;
}

Values nll_forward(Builder& b, const OpCall& call) {
  const Classes c = classes_of(b, call, 0);
  const int64_t reduction = call.integer(3);
  const Dims shape = c.classes.dims();
  const Value indices[] = {b.iota(DType::i64, shape, 0), c.classes, b.iota(DType::i64, shape, 1)};
  const Value picked = b.gather(c.scores, indices, Dims{0, 1, 2}, 0);
  const Value zero = b.like(picked, 0);
  // Where ignored the score may be NaN; it does not count.
  const Value loss = b.select(c.kept, b.mul(b.neg(picked), c.weights), zero);
  // A single unbatched target is never "none" to torch: its weight is reported.
  if (reduction == kNone && call.tensor(0).rank() > 1) {
    return {b.reshape(loss, call.result(0).dims), zero};
  }
  const Value total = b.sum(c.weights, Dims{0, 1});
  Value output = b.sum(loss, Dims{0, 1});
  if (reduction == kMean) output = b.div(output, total);
  return {output, total};
}
NEURON_LOWERING(
    "aten::nll_loss_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt "
    "ignore_index) -> (Tensor output, Tensor total_weight)",
    nll_forward);
NEURON_LOWERING(
    "aten::nll_loss2d_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt "
    "ignore_index) -> (Tensor output, Tensor total_weight)",
    nll_forward);

// One-hot by comparison: no scatter, and the same bits every time.
Values nll_backward(Builder& b, const OpCall& call) {
  const Classes c = classes_of(b, call, 1);
  const int64_t reduction = call.integer(4);
  const DType math = c.scores.dtype();
  Value grad = b.convert(call.tensor(0), math);
  if (reduction == kNone) {
    grad = b.reshape(grad, c.classes.dims());
  } else if (grad.rank() > 0) {
    grad = b.reshape(grad, {});
  }
  if (reduction == kMean) {
    grad = b.div(grad, b.reshape(b.convert(call.tensor(6), math), {}));
  }
  const Value zero = b.constant(math, 0);
  const Value each = b.select(c.kept, b.neg(b.mul(grad, c.weights)), zero);
  const Value hot = b.eq(b.iota(DType::i64, c.scores.dims(), 1), b.unsqueeze(c.classes, 1));
  const Value hot_kept = both(b, hot, b.unsqueeze(c.kept, 1));
  const Value spread = b.select(hot_kept, b.unsqueeze(each, 1), zero);
  return {b.reshape(spread, call.tensor(1).dims())};
}
NEURON_LOWERING(
    "aten::nll_loss_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? weight, int "
    "reduction, SymInt ignore_index, Tensor total_weight) -> Tensor",
    nll_backward);
NEURON_LOWERING(
    "aten::nll_loss2d_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? weight, int "
    "reduction, SymInt ignore_index, Tensor total_weight) -> Tensor",
    nll_backward);

// --- Margins ----------------------------------------------------------------------------------

// x [N, C] or [C], one class each; the loss of a row is the mean over the wrong classes of
// weight[class] * max(0, margin - x[class] + x[j]) ^ p.
struct Margins {
  Value gap;  // [N, C]: margin - x[class] + x
  Value hot;  // [N, C]: the class itself
  Value weight;
  int64_t classes;
};

Margins margins(Builder& b, const OpCall& call, size_t self) {
  const Value given = call.tensor(self);
  const int64_t classes = given.rank() == 0 ? 1 : given.dim(-1);
  const int64_t rows = classes == 0 ? 0 : given.count() / classes;
  const Value x = b.reshape(b.convert(given, opmath(given.dtype())), Dims{rows, classes});
  const Value target = b.convert(b.reshape(call.tensor(self + 1), Dims{rows}), DType::i64);
  const Value indices[] = {b.iota(DType::i64, Dims{rows}, 0), target};
  const Value own = b.gather(x, indices, Dims{0, 1}, 0);
  Margins m;
  m.classes = classes;
  m.gap = b.add(b.sub(call.scalar(self + 3, x.dtype()), b.unsqueeze(own, 1)), x);
  m.hot = b.eq(b.iota(DType::i64, x.dims(), 1), b.unsqueeze(target, 1));
  if (call.has(self + 4)) {
    const Value table = b.convert(call.tensor(self + 4), x.dtype());
    m.weight = b.unsqueeze(b.gather(table, std::span(&target, 1), Dims{0}, 0), 1);
  } else {
    m.weight = b.like(x, 1);
  }
  return m;
}

Values multi_margin(Builder& b, const OpCall& call) {
  const Margins m = margins(b, call, 0);
  const bool squared = call.number(2) == 2.0;
  const Value zero = b.like(m.gap, 0);
  const Value cost = b.mul(squared ? square(b, m.gap) : m.gap, m.weight);
  const Value counted = b.select(both(b, b.gt(m.gap, zero), b.logical_not(m.hot)), cost, zero);
  const Value loss = b.div(b.sum(counted, Dims{1}), b.like(zero, static_cast<double>(m.classes)));
  const Value result = reduced(b, loss, call.integer(5));
  return {b.reshape(result, call.result().dims)};
}
NEURON_LOWERING(
    "aten::multi_margin_loss(Tensor self, Tensor target, Scalar p=1, Scalar margin=1, Tensor? "
    "weight=None, int reduction=1) -> Tensor",
    multi_margin);

Values multi_margin_backward(Builder& b, const OpCall& call) {
  const Margins m = margins(b, call, 1);
  const int64_t reduction = call.integer(6);
  const bool squared = call.number(3) == 2.0;
  const DType math = m.gap.dtype();
  const Value zero = b.like(m.gap, 0);
  const int64_t rows = m.gap.dim(0);
  Value grad = b.convert(call.tensor(0), math);
  grad = reduction == kNone ? b.reshape(grad, Dims{rows, 1}) : b.reshape(grad, {});
  const double divisor =
      static_cast<double>(m.classes) * (reduction == kMean ? static_cast<double>(rows) : 1.0);
  Value slope = squared ? b.mul(m.gap, b.like(zero, 2)) : b.ones(math, m.gap.dims());
  slope = b.mul(b.div(b.mul(slope, m.weight), b.like(zero, divisor)), grad);
  const Value active = both(b, b.gt(m.gap, zero), b.logical_not(m.hot));
  const Value wrong = b.select(active, slope, zero);
  const Value own = b.neg(b.sum(wrong, Dims{1}, true));
  return {b.reshape(b.select(m.hot, own, wrong), call.result().dims)};
}
NEURON_LOWERING(
    "aten::multi_margin_loss_backward(Tensor grad_output, Tensor self, Tensor target, Scalar p, "
    "Scalar margin, Tensor? weight=None, int reduction=1) -> Tensor",
    multi_margin_backward);

}  // namespace
}  // namespace neuron::lowering
