// Scaled dot-product attention, kept whole: a library works on tiles and never writes the matrix of
// scores.
//
// "neuron.sdpa": operands query, key, value, then attn_bias, then seed and offset (u64[]) if
// something is dropped. Arguments: Tensor, Tensor, Tensor, attn_bias (Tensor or None), dropout_p
// (Double), is_causal (Bool), scale (Double, or None for 1 / sqrt(E)), Generator or None. Results:
// output; logsumexp (f32 [B, H, L]).
//
// "neuron.sdpa_backward": operands grad_out, query, key, value, attn_bias, out, logsumexp, and seed
// and offset as above. Arguments: the same with grad_out in front, out and logsumexp behind
// attn_bias, and a bool[4] at the end: which gradients are results, of query, key, value,
// attn_bias.
//
// Keys and values may have fewer heads than queries: each then serves that many queries' heads in a
// row. With dropout, score i (row-major over [B, H, L, S]) has word i % 4 of counter i / 4.

#include "neuron/base/error.h"
#include "neuron/lowering/library_call.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

using neff::LibraryArgument;
using Kind = LibraryArgument::Kind;

LibraryArgument double_argument(double value) { return {Kind::Double, {}, {value}, {}}; }
LibraryArgument bool_argument(bool value) { return {Kind::Bool, {value}, {}, {}}; }

void add_options(LibraryCall& library, const OpCall& call, double dropout, size_t is_causal,
                 size_t scale) {
  library.add(double_argument(dropout));
  library.add(bool_argument(call.flag(is_causal)));
  library.add(call.has(scale) ? double_argument(call.number(scale))
                              : LibraryArgument{Kind::None, {}, {}, {}});
}

void add_random_state(LibraryCall& library, Value seed, Value offset) {
  library.add(LibraryArgument{Kind::Generator, {}, {}, {}});
  library.add_operand(seed);
  library.add_operand(offset);
}

// Tensor results: output, logsumexp, cum_seq_q, cum_seq_k, philox_seed, philox_offset,
// debug_attn_mask; a caller that counts the two sizes as results has nine.
Values attention(Builder& b, const OpCall& call) {
  const double dropout = call.number(4);
  LibraryCall library("neuron.sdpa");
  for (size_t i = 0; i < 4; ++i) library.add(call, i);
  add_options(library, call, dropout, 5, 7);
  Value seed = b.zeros(DType::i64), offset = seed;
  if (dropout > 0) {
    const Value query = call.tensor(0), key = call.tensor(1);
    const int64_t rows = query.dim(-1) == 0 ? 0 : query.count() / query.dim(-1);
    const PhiloxState state = call.philox((rows * key.dim(-2) + 3) / 4);
    add_random_state(library, state.seed, state.offset);
    // The backward call gets the same bits back.
    seed = b.bitcast(state.seed, DType::i64);
    offset = b.bitcast(state.offset, DType::i64);
  } else {
    library.add(LibraryArgument{Kind::None, {}, {}, {}});
  }
  const ResultType wanted[] = {call.result(0), call.result(1)};
  const Values made = library.emit(b, wanted);
  Values results(call.result_count());
  results[0] = made[0];
  results[1] = made[1];
  const size_t seed_at = results.size() == 9 ? 6 : 4;
  NEURON_ASSERT(seed_at + 1 < results.size(), "attention with ", results.size(), " results");
  results[seed_at] = seed;
  results[seed_at + 1] = offset;
  for (size_t k = 2; k < results.size(); ++k) {
    if (!results[k].defined() && call.result(k).defined) {
      results[k] = b.zeros(call.result(k).dtype, call.result(k).dims);
    }
  }
  return results;
}
NEURON_LOWERING(
    "aten::_scaled_dot_product_fused_attention_overrideable(Tensor query, Tensor key, Tensor "
    "value, Tensor? attn_bias=None, float dropout_p=0., bool is_causal=False, bool "
    "return_debug_mask=False, *, float? scale=None) -> (Tensor output, Tensor logsumexp, Tensor "
    "cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, Tensor philox_seed, Tensor "
    "philox_offset, Tensor debug_attn_mask)",
    attention);

Values attention_backward(Builder& b, const OpCall& call) {
  const double dropout = call.number(12);
  LibraryCall library("neuron.sdpa_backward");
  for (size_t i = 0; i < 5; ++i) library.add(call, i);
  library.add(call, 6);
  library.add(call, 7);
  add_options(library, call, dropout, 13, 16);
  if (dropout > 0) {
    add_random_state(library, b.bitcast(b.reshape(call.tensor(14), Dims{}), DType::u64),
                     b.bitcast(b.reshape(call.tensor(15), Dims{}), DType::u64));
  } else {
    library.add(LibraryArgument{Kind::None, {}, {}, {}});
  }
  LibraryArgument wanted{Kind::BoolList, {}, {}, {}};
  for (size_t k = 0; k < 4; ++k) wanted.ints.push_back(call.result(k).defined ? 1 : 0);
  library.add(std::move(wanted));
  return library.emit(b, results_of(call));
}
NEURON_LOWERING(
    "aten::_scaled_dot_product_fused_attention_overrideable_backward(Tensor grad_out, Tensor "
    "query, Tensor key, Tensor value, Tensor attn_bias, bool[4] grad_input_mask, Tensor out, "
    "Tensor logsumexp, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, float "
    "dropout_p, bool is_causal, Tensor philox_seed, Tensor philox_offset, *, float? scale=None) -> "
    "(Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_attn_bias)",
    attention_backward);

// Inference paths of torch.nn's transformer layers.
NEURON_LIBRARY_OP(
    "aten::_native_multi_head_attention(Tensor query, Tensor key, Tensor value, int embed_dim, int "
    "num_head, Tensor qkv_weight, Tensor qkv_bias, Tensor proj_weight, Tensor proj_bias, Tensor? "
    "mask=None, bool need_weights=True, bool average_attn_weights=True, int? mask_type=None) -> "
    "(Tensor, Tensor)");
NEURON_LIBRARY_OP(
    "aten::_transformer_encoder_layer_fwd(Tensor src, int embed_dim, int num_heads, Tensor "
    "qkv_weight, Tensor qkv_bias, Tensor proj_weight, Tensor proj_bias, bool use_gelu, bool "
    "norm_first, float eps, Tensor norm_weight_1, Tensor norm_bias_1, Tensor norm_weight_2, Tensor "
    "norm_bias_2, Tensor ffn_weight_1, Tensor ffn_bias_1, Tensor ffn_weight_2, Tensor ffn_bias_2, "
    "Tensor? mask=None, int? mask_type=None) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::_transform_bias_rescale_qkv(Tensor qkv, Tensor qkv_bias, int num_heads) -> (Tensor, "
    "Tensor, Tensor)");

}  // namespace
}  // namespace neuron::lowering
