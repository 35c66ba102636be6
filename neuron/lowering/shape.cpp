// Ops that give the same elements another shape, and the views among them. Eager mode never lowers
// the views (the device makes them without a program); graphs do.

#include "neuron/base/error.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

Values identity(Builder& b, const OpCall& call) { return {call.tensor(0)}; }
NEURON_LOWERING("aten::alias(Tensor(a) self) -> Tensor(a)", identity);
NEURON_LOWERING("aten::alias_copy(Tensor self) -> Tensor", identity);
NEURON_LOWERING("aten::detach(Tensor(a) self) -> Tensor(a)", identity);
NEURON_LOWERING("aten::detach_copy(Tensor self) -> Tensor", identity);
NEURON_LOWERING("aten::lift(Tensor self) -> Tensor", identity);
NEURON_LOWERING("aten::lift_fresh(Tensor(a) self) -> Tensor(a)", identity);

// Sizes with -1 are resolved by torch: the result type has them.
Values reshape(Builder& b, const OpCall& call) {
  return {b.reshape(call.tensor(0), call.result().dims)};
}
NEURON_LOWERING("aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)", reshape);
NEURON_LOWERING("aten::view_copy(Tensor self, SymInt[] size) -> Tensor", reshape);
NEURON_LOWERING("aten::_unsafe_view(Tensor self, SymInt[] size) -> Tensor", reshape);
NEURON_LOWERING("aten::_reshape_alias(Tensor(a) self, SymInt[] size, SymInt[] stride) -> Tensor(a)",
                reshape);
NEURON_LOWERING("aten::_reshape_alias_copy(Tensor self, SymInt[] size, SymInt[] stride) -> Tensor",
                reshape);
NEURON_LOWERING("aten::_reshape_copy(Tensor self, SymInt[] size) -> Tensor", reshape);
NEURON_LOWERING("aten::squeeze(Tensor(a) self) -> Tensor(a)", reshape);
NEURON_LOWERING("aten::squeeze.dim(Tensor(a) self, int dim) -> Tensor(a)", reshape);
NEURON_LOWERING("aten::squeeze.dims(Tensor(a) self, int[] dim) -> Tensor(a)", reshape);
NEURON_LOWERING("aten::squeeze_copy(Tensor self) -> Tensor", reshape);
NEURON_LOWERING("aten::squeeze_copy.dim(Tensor self, int dim) -> Tensor", reshape);
NEURON_LOWERING("aten::squeeze_copy.dims(Tensor self, int[] dim) -> Tensor", reshape);
NEURON_LOWERING("aten::unsqueeze(Tensor(a) self, int dim) -> Tensor(a)", reshape);
NEURON_LOWERING("aten::unsqueeze_copy(Tensor self, int dim) -> Tensor", reshape);

Values expand(Builder& b, const OpCall& call) {
  return {b.broadcast_to(call.tensor(0), call.result().dims)};
}
NEURON_LOWERING("aten::expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)",
                expand);
NEURON_LOWERING("aten::expand_copy(Tensor self, SymInt[] size, *, bool implicit=False) -> Tensor",
                expand);

Values permute(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  Dims permutation = call.ints(1);
  for (int64_t& dim : permutation) {
    if (dim < 0) dim += x.rank();
  }
  return {b.transpose(x, permutation)};
}
NEURON_LOWERING("aten::permute(Tensor(a) self, int[] dims) -> Tensor(a)", permute);
NEURON_LOWERING("aten::permute_copy(Tensor self, int[] dims) -> Tensor", permute);

Value swap_dims(Builder& b, Value x, int64_t first, int64_t second) {
  if (x.rank() == 0 || first == second) return x;
  Dims permutation;
  for (int64_t i = 0; i < x.rank(); ++i) permutation.push_back(i);
  std::swap(permutation[static_cast<size_t>(first)], permutation[static_cast<size_t>(second)]);
  return b.transpose(x, permutation);
}

Values transpose(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  return {swap_dims(b, x, call.dim(1, x.rank()), call.dim(2, x.rank()))};
}
NEURON_LOWERING("aten::transpose.int(Tensor(a) self, int dim0, int dim1) -> Tensor(a)", transpose);
NEURON_LOWERING("aten::transpose_copy.int(Tensor self, int dim0, int dim1) -> Tensor", transpose);

Values matrix_transpose(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  return {x.rank() < 2 ? x : swap_dims(b, x, 0, 1)};
}
NEURON_LOWERING("aten::t(Tensor(a) self) -> Tensor(a)", matrix_transpose);
NEURON_LOWERING("aten::t_copy(Tensor self) -> Tensor", matrix_transpose);

// The operand of a graph's as_strided is taken as contiguous: torch's own functional form of it
// materialises anything else first.
Values as_strided(Builder& b, const OpCall& call) {
  return {b.as_strided(call.tensor(0), call.ints(1), call.ints(2), call.integer(3, 0))};
}
NEURON_LOWERING(
    "aten::as_strided(Tensor(a) self, SymInt[] size, SymInt[] stride, SymInt? "
    "storage_offset=None) -> Tensor(a)",
    as_strided);
NEURON_LOWERING(
    "aten::as_strided_copy(Tensor self, SymInt[] size, SymInt[] stride, SymInt? "
    "storage_offset=None) -> Tensor",
    as_strided);

Values as_strided_scatter(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const Value update = b.broadcast_to(b.convert(call.tensor(1), x.dtype()), call.ints(2));
  return {b.as_strided_scatter(x, update, call.ints(3), call.integer(4, 0))};
}
NEURON_LOWERING(
    "aten::as_strided_scatter(Tensor self, Tensor src, SymInt[] size, SymInt[] stride, SymInt? "
    "storage_offset=None) -> Tensor",
    as_strided_scatter);

// Views that change how bits are read.

Values view_dtype(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const DType to = call.result().dtype;
  NEURON_CHECK(size_of(x.dtype()) == size_of(to), kUnsupported, "a view of ", name_of(x.dtype()),
               " as ", name_of(to), " changes the element size, which a program cannot do");
  return {b.bitcast(x, to)};
}
NEURON_LOWERING("aten::view.dtype(Tensor(a) self, ScalarType dtype) -> Tensor(a)", view_dtype);
NEURON_LOWERING("aten::view_copy.dtype(Tensor self, ScalarType dtype) -> Tensor", view_dtype);

Values view_as_real(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const Value parts[] = {b.unsqueeze(b.real(x), x.rank()), b.unsqueeze(b.imag(x), x.rank())};
  return {b.concatenate(parts, x.rank())};
}
NEURON_LOWERING("aten::view_as_real(Tensor(a) self) -> Tensor(a)", view_as_real);
NEURON_LOWERING("aten::view_as_real_copy(Tensor self) -> Tensor", view_as_real);

Values view_as_complex(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const int64_t last = x.rank() - 1;
  return {b.complex(b.squeeze(b.slice_dim(x, last, 0, 1), last),
                    b.squeeze(b.slice_dim(x, last, 1, 2), last))};
}
NEURON_LOWERING("aten::view_as_complex(Tensor(a) self) -> Tensor(a)", view_as_complex);
NEURON_LOWERING("aten::view_as_complex_copy(Tensor self) -> Tensor", view_as_complex);

// Values have no lazy conjugate or negative bit: these compute.
Values conjugate(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  return {is_complex(x.dtype()) ? b.complex(b.real(x), b.neg(b.imag(x))) : x};
}
NEURON_LOWERING("aten::_conj(Tensor(a) self) -> Tensor(a)", conjugate);
NEURON_LOWERING("aten::_conj_copy(Tensor self) -> Tensor", conjugate);

Values negate(Builder& b, const OpCall& call) { return {b.neg(call.tensor(0))}; }
NEURON_LOWERING("aten::_neg_view(Tensor(a) self) -> Tensor(a)", negate);
NEURON_LOWERING("aten::_neg_view_copy(Tensor self) -> Tensor", negate);

// Windows of `size` every `step` along a dim; the window becomes the last dim.
Values unfold(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const int64_t step = call.integer(3);
  Dims strides = contiguous_strides(x.dims());
  if (x.rank() == 0) {
    strides.push_back(1);
  } else {
    const auto dim = static_cast<size_t>(call.dim(1, x.rank()));
    const int64_t inner = strides[dim];
    strides[dim] *= step;
    strides.push_back(inner);
  }
  return {b.as_strided(x, call.result().dims, strides, 0)};
}
NEURON_LOWERING("aten::unfold(Tensor(a) self, int dimension, int size, int step) -> Tensor(a)",
                unfold);
NEURON_LOWERING("aten::unfold_copy(Tensor self, int dimension, int size, int step) -> Tensor",
                unfold);

// Rearrangements of channels and pixels.

// [.., C*r*r, H, W] -> [.., C, H*r, W*r].
Values pixel_shuffle(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const int64_t r = call.integer(1);
  const int64_t channels = x.dim(-3) / (r * r), height = x.dim(-2), width = x.dim(-1);
  const int64_t batch = x.count() == 0 ? 0 : x.count() / (x.dim(-3) * height * width);
  if (call.result().dims.empty() || count_elements(call.result().dims) == 0) {
    return {b.reshape(x, call.result().dims)};
  }
  const Value split = b.reshape(x, Dims{batch, channels, r, r, height, width});
  const Value mixed = b.transpose(split, Dims{0, 1, 4, 2, 5, 3});
  return {b.reshape(mixed, call.result().dims)};
}
NEURON_LOWERING("aten::pixel_shuffle(Tensor self, int upscale_factor) -> Tensor", pixel_shuffle);

Values pixel_unshuffle(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const int64_t r = call.integer(1);
  if (x.count() == 0) return {b.reshape(x, call.result().dims)};
  const int64_t height = x.dim(-2) / r, width = x.dim(-1) / r;
  const int64_t channels = x.dim(-3);
  const int64_t batch = x.count() / (channels * x.dim(-2) * x.dim(-1));
  const Value split = b.reshape(x, Dims{batch, channels, height, r, width, r});
  const Value mixed = b.transpose(split, Dims{0, 1, 3, 5, 2, 4});
  return {b.reshape(mixed, call.result().dims)};
}
NEURON_LOWERING("aten::pixel_unshuffle(Tensor self, int downscale_factor) -> Tensor",
                pixel_unshuffle);

Values channel_shuffle(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const int64_t groups = call.integer(1);
  if (x.count() == 0) return {x};
  const int64_t batch = x.dim(0), channels = x.dim(1);
  const int64_t rest = x.count() / (batch * channels);
  const Value split = b.reshape(x, Dims{batch, groups, channels / groups, rest});
  return {b.reshape(b.transpose(split, Dims{0, 2, 1, 3}), x.dims())};
}
NEURON_LOWERING("aten::channel_shuffle(Tensor self, SymInt groups) -> Tensor", channel_shuffle);

}  // namespace
}  // namespace neuron::lowering
