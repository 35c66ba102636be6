#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "neuron/aten/library_kernels.h"
#include "neuron/base/philox.h"
#include "neuron/neff/arguments.h"

// "neuron.sdpa" and "neuron.sdpa_backward"; operands, arguments and results are described in
// lowering/attention.cpp. What torch's tiled CPU kernel takes goes to it head by head; the rest
// (dropout, values of another width, a gradient of the bias) is done here in blocks of rows, so
// that memory stays linear in the length.
namespace neuron::aten::library {
namespace {

using neff::LibraryArgument;
using Kind = LibraryArgument::Kind;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Options {
  bool has_bias = false;
  double dropout = 0;
  bool causal = false;
  std::optional<double> scale;
  bool wanted[4] = {true, true, true, true};  // Gradients of query, key, value and bias.
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
  if (rest + 4 < arguments.size()) {
    for (size_t k = 0; k < 4; ++k) options.wanted[k] = arguments[rest + 4].ints[k] != 0;
  }
  return options;
}

void* prepare_forward(const nrtsim_lib_call_t* call) {
  return new Options(options_of(arguments_of(*call), 3, 4));
}
void* prepare_backward(const nrtsim_lib_call_t* call) {
  return new Options(options_of(arguments_of(*call), 4, 7));
}
void destroy(void* state) { delete static_cast<Options*>(state); }

// Query heads that share one head of keys and values are a group; heads of keys are the unit of
// work.
struct Shape {
  int64_t batches, heads, group, rows, columns;
  int64_t units() const { return batches * heads; }
};

Shape shape_of(const at::Tensor& q, const at::Tensor& k) {
  return {k.size(0), k.size(1), q.size(1) / std::max<int64_t>(k.size(1), 1), q.size(2), k.size(2)};
}

// `group` heads of one batch.
at::Tensor heads_of(const at::Tensor& t, int64_t unit, int64_t heads, int64_t group) {
  return t.narrow(0, unit / heads, 1).narrow(1, unit % heads * group, group);
}
// The bias may be broadcast over batch and heads.
std::optional<at::Tensor> bias_of(const std::optional<at::Tensor>& bias, int64_t unit,
                                  const Shape& shape) {
  if (!bias.has_value()) return bias;
  at::Tensor part = *bias;
  while (part.dim() < 4) part = part.unsqueeze(0);
  if (part.size(0) > 1) part = part.narrow(0, unit / shape.heads, 1);
  if (part.size(1) > 1) part = part.narrow(1, unit % shape.heads * shape.group, shape.group);
  return part;
}

bool flash_serves(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const Options& options) {
  return options.dropout == 0 && q.size(3) == k.size(3) && q.size(3) == v.size(3) &&
         q.size(3) > 0 && q.stride(3) == 1 && k.stride(3) == 1 && v.stride(3) == 1 &&
         q.size(2) > 0 && k.size(2) > 0;
}

double scale_of(const Options& options, const at::Tensor& q) {
  return options.scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(3))));
}

template <typename Body>
void for_units(const Run& run, const Shape& shape, double flops, double piece, Body&& body) {
  const auto wanted = std::clamp<int64_t>(static_cast<int64_t>(flops / piece), 1, 16);
  run.parallel_for(shape.units(), std::max<int64_t>(1, (shape.units() + wanted - 1) / wanted),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t unit = begin; unit < end; ++unit) body(unit);
                   });
}

double flops_of(const Shape& shape, const at::Tensor& q) {
  return static_cast<double>(q.numel()) * static_cast<double>(shape.columns);
}

// --- Blocks of rows
// -------------------------------------------------------------------------------

// Some rows of one head's matrix of scores.
struct Block {
  int64_t head;  // Of all query heads of all batches: b * H + h.
  int64_t first, rows, all_rows;
  int64_t columns, all_columns;  // Those from `columns` on are hidden from all of the rows.
};

int64_t block_rows(const Shape& shape) {
  return std::clamp<int64_t>((int64_t{1} << 18) / std::max<int64_t>(shape.columns, 1), 8, 512);
}

// Probabilities of a block before dropout; a row that sees nothing is zero. `sums`: their
// logarithms' normalisers.
at::Tensor probabilities(const at::Tensor& q, const at::Tensor& k,
                         const std::optional<at::Tensor>& bias, const Block& block, double scale,
                         bool causal, at::Tensor& sums) {
  at::Tensor s = at::mm(q, k.t()).mul_(scale);
  if (causal) {
    s.masked_fill_(
        at::ones({block.rows, block.columns}, s.options().dtype(at::kBool)).triu_(block.first + 1),
        -kInfinity);
  }
  if (bias.has_value()) s.add_(*bias);
  at::Tensor largest = s.amax(1, /*keepdim=*/true);
  largest.masked_fill_(largest.eq(-kInfinity), 0);
  s.sub_(largest).exp_();
  const at::Tensor total = s.sum(1, /*keepdim=*/true);
  sums = total.log().add_(largest).squeeze(1);
  return s.div_(total.masked_fill(total.eq(0), 1));
}

// 1 / (1 - p) for what is kept, 0 for what is dropped. Element i of the whole matrix of scores
// comes from word i % 4 of counter i / 4, so that the backward pass and any cut see the same mask.
template <typename T>
void fill_mask(T* out, const Block& block, double dropout, uint64_t seed, uint64_t offset) {
  const float keep = 1.0f - static_cast<float>(dropout);
  const T scale = dropout < 1 ? static_cast<T>(1 / (1 - dropout)) : T(0);
  for (int64_t row = block.first; row < block.first + block.rows; ++row) {
    const int64_t start = (block.head * block.all_rows + row) * block.all_columns;
    auto at = static_cast<uint64_t>(start);
    const uint64_t end = at + static_cast<uint64_t>(block.columns);
    while (at < end) {
      const auto words = philox(seed, offset + at / 4);
      for (uint64_t k = at % 4; k < 4 && at < end; ++k, ++at) {
        const float uniform = static_cast<float>(words[k] >> 8) * 0x1p-24f;
        *out++ = uniform < keep ? scale : T(0);
      }
    }
  }
}

at::Tensor dropout_mask(const at::Tensor& like, const Block& block, const Options& options,
                        const Run& run) {
  const uint32_t last = run.call->input_count;
  const uint64_t seed = *static_cast<const uint64_t*>(run.inputs[last - 2]);
  const uint64_t offset = *static_cast<const uint64_t*>(run.inputs[last - 1]);
  at::Tensor mask = at::empty({block.rows, block.columns}, like.options());
  if (like.scalar_type() == at::kDouble) {
    fill_mask(mask.mutable_data_ptr<double>(), block, options.dropout, seed, offset);
  } else {
    fill_mask(mask.mutable_data_ptr<float>(), block, options.dropout, seed, offset);
  }
  return mask;
}

// In f32 at least.
at::ScalarType math_type(const at::Tensor& q) {
  return q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor matrix(const at::Tensor& t, int64_t head, at::ScalarType type) {
  return t.select(0, 0).select(0, head).to(type);
}

// Calls body(block, bias of the block) for the rows of query head `g` of a unit.
template <typename Body>
void for_blocks(const Shape& shape, int64_t unit, int64_t g, const std::optional<at::Tensor>& bias,
                at::ScalarType type, bool causal, Body&& body) {
  const int64_t each = block_rows(shape);
  for (int64_t first = 0; first < shape.rows; first += each) {
    const int64_t rows = std::min(each, shape.rows - first);
    const int64_t columns = causal ? std::min(shape.columns, first + rows) : shape.columns;
    std::optional<at::Tensor> part;
    if (bias.has_value()) {
      part = bias->select(0, 0)
                 .select(0, bias->size(1) > 1 ? g : 0)
                 .narrow(0, first, rows)
                 .narrow(1, 0, columns)
                 .to(type);
    }
    body(Block{unit * shape.group + g, first, rows, shape.rows, columns, shape.columns}, part);
  }
}

void forward_unit(const Options& options, const Run& run, const Shape& shape, int64_t unit) {
  const at::Tensor q = run.input(0), k = run.input(1), v = run.input(2);
  std::optional<at::Tensor> bias;
  if (options.has_bias) bias = bias_of(run.input(3), unit, shape);
  const auto type = math_type(q);
  const double scale = scale_of(options, q);
  const at::Tensor keys = matrix(heads_of(k, unit, shape.heads, 1), 0, type);
  const at::Tensor values = matrix(heads_of(v, unit, shape.heads, 1), 0, type);
  const at::Tensor out = heads_of(run.output(0), unit, shape.heads, shape.group);
  for (int64_t g = 0; g < shape.group; ++g) {
    const at::Tensor queries = matrix(heads_of(q, unit, shape.heads, shape.group), g, type);
    for_blocks(shape, unit, g, bias, type, options.causal,
               [&](const Block& block, const auto& block_bias) {
                 at::Tensor sums;
                 at::Tensor p = probabilities(queries.narrow(0, block.first, block.rows),
                                              keys.narrow(0, 0, block.columns), block_bias, block,
                                              scale, options.causal, sums);
                 if (options.dropout > 0) p.mul_(dropout_mask(p, block, options, run));
                 out.select(0, 0)
                     .select(0, g)
                     .narrow(0, block.first, block.rows)
                     .copy_(at::mm(p, values.narrow(0, 0, block.columns)));
                 if (run.call->output_count > 1) {
                   heads_of(run.output(1), unit, shape.heads, shape.group)
                       .select(0, 0)
                       .select(0, g)
                       .narrow(0, block.first, block.rows)
                       .copy_(sums);
                 }
               });
  }
}

void attention(void* state, const Run& run) {
  const Options& options = *static_cast<const Options*>(state);
  const at::Tensor q = run.input(0), k = run.input(1), v = run.input(2);
  const Shape shape = shape_of(q, k);
  const bool flash = flash_serves(q, k, v, options);
  for_units(run, shape, 4 * flops_of(shape, q), 2e6, [&](int64_t unit) {
    if (!flash) return forward_unit(options, run, shape, unit);
    std::optional<at::Tensor> bias;
    if (options.has_bias) bias = bias_of(run.input(3), unit, shape);
    const auto spread = [&](const at::Tensor& t) {
      return heads_of(t, unit, shape.heads, 1).expand({1, shape.group, -1, -1});
    };
    auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
        heads_of(q, unit, shape.heads, shape.group), spread(k), spread(v), 0.0, options.causal,
        bias, options.scale);
    heads_of(run.output(0), unit, shape.heads, shape.group).copy_(out);
    if (run.call->output_count > 1) {
      heads_of(run.output(1), unit, shape.heads, shape.group).copy_(sums);
    }
  });
}

// --- Backward
// -------------------------------------------------------------------------------------

struct Gradients {
  at::Tensor query, key, value, bias;  // Undefined where not asked for.
};

Gradients gradients_of(const Options& options, const Run& run) {
  Gradients gradients;
  at::Tensor* const all[] = {&gradients.query, &gradients.key, &gradients.value, &gradients.bias};
  uint32_t next = 0;
  for (size_t k = 0; k < 4; ++k) {
    if (!options.wanted[k] || (k == 3 && !options.has_bias)) continue;
    if (next < run.call->output_count) *all[k] = run.output(next++);
  }
  return gradients;
}

void backward_unit(const Options& options, const Run& run, const Shape& shape, int64_t unit,
                   const Gradients& gradients, const at::Tensor& bias_sum) {
  const at::Tensor grad = run.input(0), q = run.input(1), k = run.input(2), v = run.input(3);
  std::optional<at::Tensor> bias;
  if (options.has_bias) bias = bias_of(run.input(4), unit, shape);
  const auto type = math_type(q);
  const double scale = scale_of(options, q);
  const at::Tensor keys = matrix(heads_of(k, unit, shape.heads, 1), 0, type);
  const at::Tensor values = matrix(heads_of(v, unit, shape.heads, 1), 0, type);
  at::Tensor of_keys = at::zeros(keys.sizes(), keys.options());
  at::Tensor of_values = at::zeros(values.sizes(), values.options());
  for (int64_t g = 0; g < shape.group; ++g) {
    const at::Tensor queries = matrix(heads_of(q, unit, shape.heads, shape.group), g, type);
    const at::Tensor grads = matrix(heads_of(grad, unit, shape.heads, shape.group), g, type);
    for_blocks(shape, unit, g, bias, type, options.causal,
               [&](const Block& block, const auto& block_bias) {
                 const at::Tensor rows = queries.narrow(0, block.first, block.rows);
                 const at::Tensor grad_rows = grads.narrow(0, block.first, block.rows);
                 const at::Tensor seen = keys.narrow(0, 0, block.columns);
                 const at::Tensor seen_values = values.narrow(0, 0, block.columns);
                 at::Tensor sums;
                 const at::Tensor p =
                     probabilities(rows, seen, block_bias, block, scale, options.causal, sums);
                 at::Tensor mask;
                 if (options.dropout > 0) mask = dropout_mask(p, block, options, run);
                 if (gradients.value.defined()) {
                   of_values.narrow(0, 0, block.columns)
                       .addmm_((mask.defined() ? p * mask : p).t(), grad_rows);
                 }
                 at::Tensor of_p = at::mm(grad_rows, seen_values.t());
                 if (mask.defined()) of_p.mul_(mask);
                 const at::Tensor mean = (of_p * p).sum(1, /*keepdim=*/true);
                 const at::Tensor of_scores = of_p.sub_(mean).mul_(p);
                 if (bias_sum.defined()) {
                   at::Tensor into = *bias_of(bias_sum, unit, shape);
                   into.select(0, 0)
                       .select(0, into.size(1) > 1 ? g : 0)
                       .narrow(0, block.first, block.rows)
                       .narrow(1, 0, block.columns)
                       .add_(of_scores);
                 }
                 if (gradients.query.defined()) {
                   heads_of(gradients.query, unit, shape.heads, shape.group)
                       .select(0, 0)
                       .select(0, g)
                       .narrow(0, block.first, block.rows)
                       .copy_(at::mm(of_scores, seen).mul_(scale));
                 }
                 if (gradients.key.defined()) {
                   of_keys.narrow(0, 0, block.columns).addmm_(of_scores.t(), rows, 1, scale);
                 }
               });
  }
  const auto store = [&](const at::Tensor& into, const at::Tensor& sum) {
    if (into.defined()) heads_of(into, unit, shape.heads, 1).select(0, 0).select(0, 0).copy_(sum);
  };
  store(gradients.key, of_keys);
  store(gradients.value, of_values);
}

void attention_backward(void* state, const Run& run) {
  const Options& options = *static_cast<const Options*>(state);
  const at::Tensor grad = run.input(0), q = run.input(1), k = run.input(2), v = run.input(3);
  const Shape shape = shape_of(q, k);
  const Gradients gradients = gradients_of(options, run);
  if (gradients.bias.defined()) {
    // Heads and batches may add to one bias: one after the other.
    at::Tensor sum =
        at::zeros(gradients.bias.sizes(), gradients.bias.options().dtype(math_type(q)));
    for (int64_t unit = 0; unit < shape.units(); ++unit) {
      backward_unit(options, run, shape, unit, gradients, sum);
    }
    at::Tensor(gradients.bias).copy_(sum);
    return;
  }
  const bool whole =
      gradients.query.defined() && gradients.key.defined() && gradients.value.defined();
  // The tiled kernel takes a mean from the rounded result: fine in f32, but in halves the small
  // gradients of queries and keys are lost in its error.
  const bool flash = whole && flash_serves(q, k, v, options) && grad.stride(3) == 1 &&
                     q.scalar_type() == at::kFloat;
  const size_t at_out = options.has_bias ? 5 : 4;
  for_units(run, shape, 10 * flops_of(shape, q), 4e6, [&](int64_t unit) {
    if (!flash) return backward_unit(options, run, shape, unit, gradients, {});
    std::optional<at::Tensor> bias;
    if (options.has_bias) bias = bias_of(run.input(4), unit, shape);
    const auto own = [&](const at::Tensor& t) {
      return heads_of(t, unit, shape.heads, shape.group);
    };
    const auto spread = [&](const at::Tensor& t) {
      return heads_of(t, unit, shape.heads, 1).expand({1, shape.group, -1, -1});
    };
    auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        own(grad), own(q), spread(k), spread(v), own(run.input(at_out)), own(run.input(at_out + 1)),
        0.0, options.causal, bias, options.scale);
    own(gradients.query).copy_(dq);
    const auto store = [&](const at::Tensor& into, const at::Tensor& parts) {
      heads_of(into, unit, shape.heads, 1)
          .copy_(shape.group > 1 ? parts.sum(1, /*keepdim=*/true) : parts);
    };
    store(gradients.key, dk);
    store(gradients.value, dv);
  });
}

}  // namespace

void register_attention() {
  register_kernel("neuron.sdpa", {sizeof(nrtsim_lib_kernel_t), &prepare_forward,
                                  &run_kernel<attention>, &destroy});
  register_kernel("neuron.sdpa_backward", {sizeof(nrtsim_lib_kernel_t), &prepare_backward,
                                           &run_kernel<attention_backward>, &destroy});
}

}  // namespace neuron::aten::library
