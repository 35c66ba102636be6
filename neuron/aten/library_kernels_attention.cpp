#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "neuron/aten/library_kernels.h"
#include "neuron/neff/arguments.h"

// "neuron.sdpa" and "neuron.sdpa_backward"; operands, arguments and results are described in
// lowering/attention.cpp.
namespace neuron::aten::library {
namespace {

using neff::LibraryArgument;
using Kind = LibraryArgument::Kind;

struct Options {
  bool has_bias = false;
  double dropout = 0;
  bool causal = false;
  std::optional<double> scale;
};

std::vector<LibraryArgument> arguments_of(const nrtsim_lib_call_t& call) {
  return neff::decode_arguments(
      {static_cast<const std::byte*>(call.arguments), call.argument_bytes});
}

Options options_of(const std::vector<LibraryArgument>& arguments, size_t bias, size_t rest) {
  Options options;
  options.has_bias = arguments[bias].kind == Kind::Tensor;
  options.dropout = arguments[rest].doubles[0];
  options.causal = arguments[rest + 1].ints[0] != 0;
  if (arguments[rest + 2].kind == Kind::Double) options.scale = arguments[rest + 2].doubles[0];
  return options;
}

struct ForwardState {
  Options options;
};
void* prepare_forward(const nrtsim_lib_call_t* call) {
  return new ForwardState{options_of(arguments_of(*call), 3, 4)};
}
void destroy_forward(void* state) { delete static_cast<ForwardState*>(state); }

struct BackwardState {
  Options options;
};
void* prepare_backward(const nrtsim_lib_call_t* call) {
  return new BackwardState{options_of(arguments_of(*call), 4, 7)};
}
void destroy_backward(void* state) { delete static_cast<BackwardState*>(state); }

at::Tensor slice(const at::Tensor& t, int64_t batch, int64_t first, int64_t count) {
  return t.narrow(0, batch, 1).narrow(1, first, count);
}
// The bias may be broadcast over batch and heads.
std::optional<at::Tensor> slice_bias(const std::optional<at::Tensor>& bias, int64_t batch,
                                     int64_t first, int64_t count) {
  if (!bias.has_value()) return bias;
  at::Tensor part = *bias;
  while (part.dim() < 4) part = part.unsqueeze(0);
  if (part.size(0) > 1) part = part.narrow(0, batch, 1);
  if (part.size(1) > 1) part = part.narrow(1, first, count);
  return part;
}

// Walks heads [begin, end) of all batches in runs that stay in one batch.
template <typename Body>
void by_heads(int64_t heads, int64_t begin, int64_t end, Body&& body) {
  while (begin < end) {
    const int64_t batch = begin / heads, first = begin % heads;
    const int64_t count = std::min(end - begin, heads - first);
    body(batch, first, count);
    begin += count;
  }
}

bool flash_serves(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const Options& options) {
  return options.dropout == 0 && q.size(3) == k.size(3) && q.size(3) == v.size(3) &&
         q.size(1) == k.size(1) && q.size(3) > 0 && q.stride(3) == 1 && k.stride(3) == 1 &&
         v.stride(3) == 1 && q.size(2) > 0 && k.size(2) > 0;
}

double scale_of(const Options& options, const at::Tensor& q) {
  return options.scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(3))));
}

at::Tensor scores(const at::Tensor& q, const at::Tensor& k, const std::optional<at::Tensor>& bias,
                  const Options& options) {
  at::Tensor s = at::matmul(q, k.transpose(-2, -1)).mul_(scale_of(options, q));
  if (options.causal) {
    const at::Tensor hidden =
        at::ones({q.size(2), k.size(2)}, q.options().dtype(at::kBool)).triu_(1);
    s = s.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  }
  if (bias.has_value()) s = s + bias->to(s.scalar_type());
  return s;
}

at::Tensor dropout_mask(const at::Tensor& like, const Options& options, const Run& run) {
  const uint32_t last = run.call->input_count;
  const uint64_t seed = *static_cast<const uint64_t*>(run.inputs[last - 2]);
  const uint64_t offset = *static_cast<const uint64_t*>(run.inputs[last - 1]);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed ^ offset * 0x9E3779B97F4A7C15ull);
  at::Tensor kept = at::empty(like.sizes(), like.options().dtype(at::kFloat));
  kept.bernoulli_(1 - options.dropout, generator);
  return kept.to(like.scalar_type()).div_(1 - options.dropout);
}

// In f32 at least, whole: for what the tiled kernel does not take.
void attention_by_parts(const Options& options, const Run& run,
                        const std::optional<at::Tensor>& bias) {
  const auto type = run.input(0).scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor q = run.input(0).to(type), k = run.input(1).to(type), v = run.input(2).to(type);
  const at::Tensor s = scores(q, k, bias, options);
  const at::Tensor sums = at::logsumexp(s, -1);
  at::Tensor p = s.softmax(-1);
  // A row that sees nothing is zero, as in the tiled kernel.
  p = p.masked_fill(sums.isinf().unsqueeze(-1), 0);
  if (options.dropout > 0) p = p * dropout_mask(p, options, run);
  run.output(0).copy_(at::matmul(p, v));
  if (run.call->output_count > 1) run.output(1).copy_(sums);
}

void attention(void* state, const Run& run) {
  const Options& options = static_cast<const ForwardState*>(state)->options;
  const at::Tensor q = run.input(0), k = run.input(1), v = run.input(2);
  std::optional<at::Tensor> bias;
  if (options.has_bias) bias = run.input(3);
  if (!flash_serves(q, k, v, options)) return attention_by_parts(options, run, bias);
  const int64_t heads = q.size(1);
  const double flops = 4.0 * static_cast<double>(q.numel()) * static_cast<double>(k.size(2));
  const int64_t all = q.size(0) * heads;
  const auto wanted = std::clamp<int64_t>(static_cast<int64_t>(flops / 2e6), 1, 16);
  run.parallel_for(all, std::max<int64_t>(1, (all + wanted - 1) / wanted),
                   [&](int64_t begin, int64_t end) {
                     by_heads(heads, begin, end, [&](int64_t batch, int64_t first, int64_t count) {
                       auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
                           slice(q, batch, first, count), slice(k, batch, first, count),
                           slice(v, batch, first, count), 0.0, options.causal,
                           slice_bias(bias, batch, first, count), options.scale);
                       slice(run.output(0), batch, first, count).copy_(out);
                       if (run.call->output_count > 1)
                         slice(run.output(1), batch, first, count).copy_(sums);
                     });
                   });
}

void sum_to(at::Tensor out, const at::Tensor& gradient) {
  at::Tensor reduced = gradient;
  while (reduced.dim() > out.dim()) reduced = reduced.sum(0);
  for (int64_t d = 0; d < out.dim(); ++d) {
    if (out.size(d) == 1 && reduced.size(d) != 1) reduced = reduced.sum(d, /*keepdim=*/true);
  }
  out.copy_(reduced);
}

// Which of the four gradients are asked for is said by the shapes of the results: those defined
// come in order.
struct Wanted {
  at::Tensor query, key, value, bias;
};

void backward_by_parts(const Options& options, const Run& run,
                       const std::optional<at::Tensor>& bias, const Wanted& wanted, size_t at_out) {
  const auto type = run.input(1).scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor grad = run.input(0).to(type), q = run.input(1).to(type),
                   k = run.input(2).to(type), v = run.input(3).to(type);
  const at::Tensor s = scores(q, k, bias, options);
  const at::Tensor sums = at::logsumexp(s, -1, true);
  at::Tensor p = s.softmax(-1).masked_fill(sums.isinf(), 0);
  at::Tensor kept;
  at::Tensor dropped = p;
  if (options.dropout > 0) {
    kept = dropout_mask(p, options, run);
    dropped = p * kept;
  }
  if (wanted.value.defined()) {
    at::Tensor(wanted.value).copy_(at::matmul(dropped.transpose(-2, -1), grad));
  }
  at::Tensor dp = at::matmul(grad, v.transpose(-2, -1));
  if (kept.defined()) dp = dp * kept;
  const at::Tensor ds = p * (dp - (dp * p).sum(-1, /*keepdim=*/true));
  if (wanted.bias.defined()) sum_to(wanted.bias, ds);
  const double scale = scale_of(options, q);
  if (wanted.query.defined()) at::Tensor(wanted.query).copy_(at::matmul(ds, k).mul_(scale));
  if (wanted.key.defined()) {
    at::Tensor(wanted.key).copy_(at::matmul(ds.transpose(-2, -1), q).mul_(scale));
  }
  (void)at_out;
}

void attention_backward(void* state, const Run& run) {
  const Options& options = static_cast<const BackwardState*>(state)->options;
  const at::Tensor grad = run.input(0), q = run.input(1), k = run.input(2), v = run.input(3);
  std::optional<at::Tensor> bias;
  if (options.has_bias) bias = run.input(4);
  const size_t at_out = options.has_bias ? 5 : 4;
  Wanted wanted;
  if (run.call->output_count >= 3) {
    wanted.query = run.output(0);
    wanted.key = run.output(1);
    wanted.value = run.output(2);
    if (run.call->output_count > 3) wanted.bias = run.output(3);
  } else {
    // Some gradient is left out: tell by shape, in order.
    uint32_t next = 0;
    const auto take = [&](at::Tensor& target, const at::Tensor& like) {
      if (next < run.call->output_count && run.output(next).sizes() == like.sizes()) {
        target = run.output(next++);
      }
    };
    take(wanted.query, q);
    take(wanted.key, k);
    take(wanted.value, v);
    if (bias.has_value()) take(wanted.bias, *bias);
  }
  const bool whole = wanted.query.defined() && wanted.key.defined() && wanted.value.defined() &&
                     !wanted.bias.defined();
  if (!whole || !flash_serves(q, k, v, options) || grad.stride(3) != 1) {
    return backward_by_parts(options, run, bias, wanted, at_out);
  }
  const at::Tensor out = run.input(at_out), sums = run.input(at_out + 1);
  const int64_t heads = q.size(1);
  const double flops = 10.0 * static_cast<double>(q.numel()) * static_cast<double>(k.size(2));
  const int64_t all = q.size(0) * heads;
  const auto pieces = std::clamp<int64_t>(static_cast<int64_t>(flops / 4e6), 1, 16);
  run.parallel_for(all, std::max<int64_t>(1, (all + pieces - 1) / pieces),
                   [&](int64_t begin, int64_t end) {
                     by_heads(heads, begin, end, [&](int64_t batch, int64_t first, int64_t count) {
                       auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
                           slice(grad, batch, first, count), slice(q, batch, first, count),
                           slice(k, batch, first, count), slice(v, batch, first, count),
                           slice(out, batch, first, count), slice(sums, batch, first, count), 0.0,
                           options.causal, slice_bias(bias, batch, first, count), options.scale);
                       slice(wanted.query, batch, first, count).copy_(dq);
                       slice(wanted.key, batch, first, count).copy_(dk);
                       slice(wanted.value, batch, first, count).copy_(dv);
                     });
                   });
}

}  // namespace

void register_attention() {
  register_kernel("neuron.sdpa", {sizeof(nrtsim_lib_kernel_t), &prepare_forward,
                                  &run_kernel<attention>, &destroy_forward});
  register_kernel("neuron.sdpa_backward", {sizeof(nrtsim_lib_kernel_t), &prepare_backward,
                                           &run_kernel<attention_backward>, &destroy_backward});
}

}  // namespace neuron::aten::library
