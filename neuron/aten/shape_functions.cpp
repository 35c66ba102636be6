// Shapes of hot ops that have no structured meta. Each function knows the ordinary case and
// answers false for any other: the registered Meta kernel then decides, or words the error.

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "neuron/aten/shape_support.h"

namespace neuron::aten {
namespace {

// Runs the structured meta of another op.
bool as_structured(const char* name, torch::jit::Stack stack, Metadata& result) {
  const c10::KernelFunction* kernel = find_structured_meta(name);
  const std::string_view whole(name);
  const size_t dot = whole.find('.');
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
      std::string(whole.substr(0, dot)).c_str(),
      dot == std::string_view::npos ? "" : std::string(whole.substr(dot + 1)).c_str());
  call_structured_meta(*kernel, op, &stack);
  result = describe_results(op.schema(), stack);
  return true;
}

at::Tensor meta_like(const at::Tensor& t, c10::ScalarType dtype) {
  return at::detail::empty_strided_meta(t.sizes(), t.strides(), dtype);
}

at::Tensor wrapped(const c10::IValue& number) {
  at::Tensor made = c10::scalar_to_tensor(number.toScalar());
  made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

// --- Elementwise ----------------------------------------------------------------------------------

bool like_self(const Arguments& a, Metadata& result) {
  add_like(tensor(a, 0), tensor(a, 0).scalar_type(), result);
  return true;
}
bool like_floating_self(const Arguments& a, Metadata& result) {
  return is_floating(tensor(a, 0)) && like_self(a, result);
}
bool bool_like_self(const Arguments& a, Metadata& result) {
  add_like(tensor(a, 0), at::kBool, result);
  return true;
}
bool abs_like_self(const Arguments& a, Metadata& result) {
  add_like(tensor(a, 0), c10::toRealValueType(tensor(a, 0).scalar_type()), result);
  return true;
}
bool contiguous_like_self(const Arguments& a, Metadata& result) {
  result.add(tensor(a, 0).scalar_type(), tensor(a, 0).sizes());
  return true;
}
// The second argument is the one whose gradient is asked for.
bool like_second(const Arguments& a, Metadata& result) {
  if (tensor(a, 0).sizes() != tensor(a, 1).sizes() ||
      tensor(a, 0).scalar_type() != tensor(a, 1).scalar_type()) {
    return false;
  }
  add_like(tensor(a, 1), tensor(a, 1).scalar_type(), result);
  return true;
}

bool clone(const Arguments& a, Metadata& result) {
  const at::Tensor& self = tensor(a, 0);
  const auto format = a[1].isNone() ? c10::MemoryFormat::Preserve : a[1].toMemoryFormat();
  if (format == c10::MemoryFormat::Preserve) return like_self(a, result);
  add_formatted(self.scalar_type(), self.sizes(), format, result);
  return true;
}

// The number at `kNumber` as a wrapped tensor of the op's Tensor overload.
template <size_t kNumber>
bool scalar_form(const char* name, const Arguments& a, Metadata& result) {
  torch::jit::Stack stack(a.begin(), a.end());
  stack[kNumber] = wrapped(a[kNumber]);
  return as_structured(name, std::move(stack), result);
}
bool add_scalar(const Arguments& a, Metadata& m) { return scalar_form<1>("aten::add.Tensor", a, m); }
bool sub_scalar(const Arguments& a, Metadata& m) { return scalar_form<1>("aten::sub.Tensor", a, m); }
bool mul_scalar(const Arguments& a, Metadata& m) { return scalar_form<1>("aten::mul.Tensor", a, m); }
bool div_scalar(const Arguments& a, Metadata& m) { return scalar_form<1>("aten::div.Tensor", a, m); }
bool div_scalar_mode(const Arguments& a, Metadata& m) {
  return scalar_form<1>("aten::div.Tensor_mode", a, m);
}
bool fmod_scalar(const Arguments& a, Metadata& m) {
  return scalar_form<1>("aten::fmod.Tensor", a, m);
}
bool remainder_scalar(const Arguments& a, Metadata& m) {
  return scalar_form<1>("aten::remainder.Tensor", a, m);
}
bool remainder_of_scalar(const Arguments& a, Metadata& m) {
  return scalar_form<0>("aten::remainder.Tensor", a, m);
}
bool copysign_scalar(const Arguments& a, Metadata& m) {
  return scalar_form<1>("aten::copysign.Tensor", a, m);
}
bool xlogy_scalar(const Arguments& a, Metadata& m) {
  return scalar_form<1>("aten::xlogy.Tensor", a, m);
}
bool xlogy_of_scalar(const Arguments& a, Metadata& m) {
  return scalar_form<0>("aten::xlogy.Tensor", a, m);
}
bool rsub_scalar(const Arguments& a, Metadata& m) {
  return as_structured("aten::sub.Tensor", {wrapped(a[1]), a[0], a[2]}, m);
}
bool rsub(const Arguments& a, Metadata& m) {
  return as_structured("aten::sub.Tensor", {a[1], a[0], a[2]}, m);
}
bool floor_divide(const Arguments& a, Metadata& m) {
  return as_structured("aten::div.Tensor_mode", {a[0], a[1], c10::IValue("floor")}, m);
}
bool floor_divide_scalar(const Arguments& a, Metadata& m) {
  return as_structured("aten::div.Tensor_mode", {a[0], wrapped(a[1]), c10::IValue("floor")}, m);
}
bool logical(const Arguments& a, Metadata& m) {
  return as_structured("aten::eq.Tensor", {a[0], a[1]}, m);
}

bool where(const Arguments& a, Metadata& result) {
  const at::Tensor &condition = tensor(a, 0), &self = tensor(a, 1), &other = tensor(a, 2);
  if (condition.scalar_type() != at::kBool && condition.scalar_type() != at::kByte) return false;
  Metadata types;
  if (self.scalar_type() != other.scalar_type()) {
    as_structured("aten::add.Tensor", {self, other, c10::IValue(int64_t{1})}, types);
  } else {
    types.add(self.scalar_type(), {});
  }
  const auto f = at::kFloat;
  as_structured("aten::addcmul",
                {meta_like(condition, f), meta_like(self, f), meta_like(other, f),
                 c10::IValue(int64_t{1})},
                result);
  result.values[0].dtype = types.values[0].dtype;
  return true;
}

bool masked_fill(const Arguments& a, Metadata& result) {
  const at::Tensor &self = tensor(a, 0), &mask = tensor(a, 1);
  if (mask.scalar_type() != at::kBool) return false;
  TORCH_CHECK(!a[2].isTensor() || a[2].toTensor().dim() == 0,
              "masked_fill only supports a 0-dimensional value tensor, but got tensor with ",
              a[2].toTensor().dim(), " dimension(s).");
  TORCH_CHECK(self.is_complex() || !a[2].isTensor() || !a[2].toTensor().is_complex(),
              "value cannot be converted to type ", self.scalar_type(), " without overflow");
  const auto sizes = at::infer_size(self.sizes(), mask.sizes());
  if (at::IntArrayRef(sizes) == self.sizes()) return like_self(a, result);
  result.add(self.scalar_type(), sizes);
  return true;
}

// --- Reductions -----------------------------------------------------------------------------------

c10::ScalarType sum_type(const at::Tensor& self, const c10::IValue& dtype) {
  if (!dtype.isNone()) return dtype.toScalarType();
  return at::isIntegralType(self.scalar_type(), true) ? at::kLong : self.scalar_type();
}
bool sum_all(const Arguments& a, Metadata& result) {
  result.add(sum_type(tensor(a, 0), a[1]), {});
  return true;
}
bool mean_all(const Arguments& a, Metadata& result) {
  const c10::ScalarType dtype =
      a[1].isNone() ? tensor(a, 0).scalar_type() : a[1].toScalarType();
  TORCH_CHECK(!at::isIntegralType(dtype, true), "mean(): could not infer output dtype. ",
              a[1].isNone() ? "Input" : "Optional",
              " dtype must be either a floating point or complex dtype. Got: ", dtype);
  result.add(dtype, {});
  return true;
}
bool median_all(const Arguments& a, Metadata& result) {
  if (tensor(a, 0).numel() == 0) return false;
  result.add(tensor(a, 0).scalar_type(), {});
  return true;
}

template <bool kMax>
bool extreme_all(const Arguments& a, Metadata& result) {
  TORCH_CHECK(tensor(a, 0).numel() > 0, kMax ? "max" : "min",
              "(): Expected reduction dim to be specified for input.numel() == 0. Specify the "
              "reduction dim with the 'dim' argument.");
  result.add(tensor(a, 0).scalar_type(), {});
  return true;
}

// Sizes after reducing the dims of `list` (all, if it is None or empty).
bool reduced(const at::Tensor& self, const c10::IValue& list, bool keep, Dims& sizes) {
  const int64_t rank = self.dim();
  uint64_t mask = 0;
  const Dims dims = to_dims(list);
  for (int64_t dim : dims) {
    if (dim < 0) dim += std::max<int64_t>(rank, 1);
    if (dim < 0 || dim >= std::max<int64_t>(rank, 1) || (mask >> dim & 1) != 0) return false;
    mask |= uint64_t{1} << dim;
  }
  if (dims.empty()) mask = ~uint64_t{0};
  for (int64_t dim = 0; dim < rank; ++dim) {
    if ((mask >> dim & 1) == 0) {
      sizes.push_back(self.size(dim));
    } else if (keep) {
      sizes.push_back(1);
    }
  }
  return true;
}
template <int kResults>
bool variance(const Arguments& a, Metadata& result) {
  const at::Tensor& self = tensor(a, 0);
  if (!is_floating(self)) return false;
  Dims sizes;
  if (!reduced(self, a[1], a[3].toBool(), sizes)) return false;
  for (int k = 0; k < kResults; ++k) result.add(self.scalar_type(), ref(sizes));
  return true;
}
bool logsumexp(const Arguments& a, Metadata& result) {
  Dims sizes;
  const at::Tensor& self = tensor(a, 0);
  if (!is_floating(self) || self.numel() == 0) return false;
  if (!reduced(self, a[1], a[2].toBool(), sizes)) return false;
  result.add(self.scalar_type(), ref(sizes));
  return true;
}
bool sort(const Arguments& a, Metadata& m) {
  return as_structured("aten::sort.stable", {a[0], c10::IValue(), a[1], a[2]}, m);
}

// --- Products -------------------------------------------------------------------------------------

bool dot(const Arguments& a, Metadata& result) {
  const at::Tensor &x = tensor(a, 0), &y = tensor(a, 1);
  if (x.dim() != 1 || x.sizes() != y.sizes() || x.scalar_type() != y.scalar_type()) return false;
  result.add(x.scalar_type(), {});
  return true;
}
bool mv(const Arguments& a, Metadata& result) {
  const at::Tensor &m = tensor(a, 0), &v = tensor(a, 1);
  if (m.dim() != 2 || v.dim() != 1 || m.size(1) != v.size(0) ||
      m.scalar_type() != v.scalar_type()) {
    return false;
  }
  result.add(m.scalar_type(), {m.size(0)});
  return true;
}

// --- Indexing and layout --------------------------------------------------------------------------

bool is_index(const at::Tensor& t) {
  return t.scalar_type() == at::kLong || t.scalar_type() == at::kInt;
}
bool wrap(int64_t& dim, int64_t rank) {
  if (dim < 0) dim += rank;
  return dim >= 0 && dim < rank;
}

bool embedding(const Arguments& a, Metadata& result) {
  const at::Tensor &weight = tensor(a, 0), &indices = tensor(a, 1);
  if (weight.dim() != 2 || !is_index(indices)) return false;
  Dims sizes = sizes_of(indices);
  sizes.push_back(weight.size(1));
  result.add(weight.scalar_type(), ref(sizes));
  return true;
}
bool embedding_dense_backward(const Arguments& a, Metadata& result) {
  const at::Tensor& grad = tensor(a, 0);
  if (grad.dim() == 0) return false;
  result.add(grad.scalar_type(), {a[2].toInt(), grad.size(-1)});
  return true;
}
bool index_select(const Arguments& a, Metadata& result) {
  const at::Tensor &self = tensor(a, 0), &index = tensor(a, 2);
  int64_t dim = a[1].toInt();
  if (self.dim() == 0 || index.dim() > 1 || !is_index(index) || !wrap(dim, self.dim())) {
    return false;
  }
  Dims sizes = sizes_of(self);
  sizes[static_cast<size_t>(dim)] = index.numel();
  result.add(self.scalar_type(), ref(sizes));
  return true;
}
bool unsafe_index(const Arguments& a, Metadata& m) {
  return as_structured("aten::index.Tensor", {a[0], a[1]}, m);
}
bool index_put(const Arguments& a, Metadata& result) {
  // Errors about indices and dtypes are the Meta kernel's to word.
  const at::Tensor &self = tensor(a, 0), &values = tensor(a, 2);
  if (self.scalar_type() != values.scalar_type()) return false;
  torch::jit::Stack stack = {a[0], a[1]};
  Metadata picked;
  as_structured("aten::index.Tensor", std::move(stack), picked);
  if (!at::is_expandable_to(values.sizes(), ref(picked.values[0].sizes))) return false;
  return like_self(a, result);
}
bool scatter_of_slice(const Arguments& a, Metadata& result) {
  if (tensor(a, 0).scalar_type() != tensor(a, 1).scalar_type()) return false;
  return like_self(a, result);
}
// Backward of views: zeros of the input's sizes with the gradient in place.
bool of_input_sizes(const Arguments& a, Metadata& result) {
  const Dims sizes = to_dims(a[1]);
  result.add(tensor(a, 0).scalar_type(), ref(sizes));
  return true;
}
bool stack(const Arguments& a, Metadata& result) {
  const auto members = a[0].toListRef();
  if (members.empty()) return false;
  const at::Tensor& first = members[0].toTensor();
  for (const c10::IValue& member : members) {
    if (member.toTensor().sizes() != first.sizes() ||
        member.toTensor().scalar_type() != first.scalar_type()) {
      return false;
    }
  }
  int64_t dim = a[1].toInt();
  if (!wrap(dim, first.dim() + 1)) return false;
  Dims sizes = sizes_of(first);
  sizes.insert(static_cast<size_t>(dim), static_cast<int64_t>(members.size()));
  result.add(first.scalar_type(), ref(sizes));
  return true;
}
bool repeat(const Arguments& a, Metadata& result) {
  const at::Tensor& self = tensor(a, 0);
  Dims sizes = to_dims(a[1]);
  if (static_cast<int64_t>(sizes.size()) < self.dim()) return false;
  const size_t extra = sizes.size() - static_cast<size_t>(self.dim());
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0) return false;
    if (i >= extra) sizes[i] *= self.size(static_cast<int64_t>(i - extra));
  }
  result.add(self.scalar_type(), ref(sizes));
  return true;
}
bool constant_pad(const Arguments& a, Metadata& result) {
  const at::Tensor& self = tensor(a, 0);
  const Dims pad = to_dims(a[1]);
  if (pad.size() % 2 != 0 || static_cast<int64_t>(pad.size()) > 2 * self.dim()) return false;
  Dims sizes = sizes_of(self);
  for (size_t k = 0; k < pad.size() / 2; ++k) {
    int64_t& size = sizes[sizes.size() - 1 - k];
    size += pad[2 * k] + pad[2 * k + 1];
    if (size < 0) return false;
  }
  add_formatted(self.scalar_type(), ref(sizes), self.suggest_memory_format(), result);
  return true;
}
bool repeat_interleave(const Arguments& a, Metadata& result) {
  TORCH_CHECK_NOT_IMPLEMENTED(!a[1].isNone(), "the size of the result depends on values");
  result.add(tensor(a, 0).scalar_type(), {a[1].toInt()});
  return true;
}

// --- Losses ---------------------------------------------------------------------------------------

template <size_t kReduction>
bool reduced_loss(const Arguments& a, Metadata& result) {
  const at::Tensor& self = tensor(a, 0);
  if (!is_floating(self) || self.sizes() != tensor(a, 1).sizes()) return false;
  if (a[kReduction].toInt() != 0) {
    result.add(self.scalar_type(), {});
  } else {
    add_like(self, self.scalar_type(), result);
  }
  return true;
}
// grad_output may be a scalar.
bool loss_backward(const Arguments& a, Metadata& result) {
  if (tensor(a, 1).sizes() != tensor(a, 2).sizes()) return false;
  add_like(tensor(a, 1), tensor(a, 1).scalar_type(), result);
  return true;
}
bool log_sigmoid_forward(const Arguments& a, Metadata& result) {
  const at::Tensor& self = tensor(a, 0);
  if (!is_floating(self)) return false;
  add_like(self, self.scalar_type(), result);
  add_like(self, self.scalar_type(), result);
  return true;
}
bool native_dropout(const Arguments& a, Metadata& result) {
  if (!is_floating(tensor(a, 0))) return false;
  like_self(a, result);
  return bool_like_self(a, result);
}

// --- Normalisation --------------------------------------------------------------------------------

// The type of statistics on the CPU: that of the parameters if they are wider than the input.
c10::ScalarType statistics_type(const at::Tensor& input, const at::Tensor& weight) {
  const bool narrow = input.scalar_type() == at::kBFloat16 || input.scalar_type() == at::kHalf;
  return narrow && weight.defined() && weight.scalar_type() == at::kFloat ? at::kFloat
                                                                          : input.scalar_type();
}

bool native_layer_norm(const Arguments& a, Metadata& result) {
  const at::Tensor &input = tensor(a, 0), &weight = tensor(a, 2), &bias = tensor(a, 3);
  const Dims shape = to_dims(a[1]);
  const auto rank = static_cast<int64_t>(shape.size());
  if (rank == 0 || input.dim() < rank || !is_floating(input)) return false;
  if (input.sizes().slice(static_cast<size_t>(input.dim() - rank)) != ref(shape)) return false;
  if (weight.defined() && weight.sizes() != ref(shape)) return false;
  if (bias.defined() && bias.sizes() != ref(shape)) return false;
  Dims statistics = sizes_of(input);
  for (int64_t d = input.dim() - rank; d < input.dim(); ++d) statistics[static_cast<size_t>(d)] = 1;
  result.add(input.scalar_type(), input.sizes());
  const c10::ScalarType dtype = statistics_type(input, weight);
  result.add(dtype, ref(statistics));
  result.add(dtype, ref(statistics));
  return true;
}
void add_masked(const c10::IValue& mask, size_t k, const at::Tensor& like, Metadata& result) {
  if (mask.toListRef()[k].toBool() && like.defined()) {
    result.add(like.scalar_type(), like.sizes());
  } else {
    result.add_undefined();
  }
}
bool native_layer_norm_backward(const Arguments& a, Metadata& result) {
  add_masked(a[7], 0, tensor(a, 1), result);
  add_masked(a[7], 1, tensor(a, 5), result);
  add_masked(a[7], 2, tensor(a, 6), result);
  return true;
}
bool native_group_norm(const Arguments& a, Metadata& result) {
  const at::Tensor &input = tensor(a, 0), &weight = tensor(a, 1);
  if (!is_floating(input)) return false;
  add_formatted(input.scalar_type(), input.sizes(), input.suggest_memory_format(), result);
  const c10::ScalarType dtype = statistics_type(input, weight);
  const Dims sizes = {a[3].toInt(), a[6].toInt()};
  result.add(dtype, ref(sizes));
  result.add(dtype, ref(sizes));
  return true;
}
bool native_group_norm_backward(const Arguments& a, Metadata& result) {
  const at::Tensor &input = tensor(a, 1), &weight = tensor(a, 4);
  const auto mask = a[9].toListRef();
  if (mask[0].toBool()) {
    add_formatted(input.scalar_type(), input.sizes(), input.suggest_memory_format(), result);
  } else {
    result.add_undefined();
  }
  const c10::ScalarType dtype = weight.defined() ? weight.scalar_type() : input.scalar_type();
  for (size_t k = 1; k < 3; ++k) {
    if (mask[k].toBool()) {
      result.add(dtype, {a[6].toInt()});
    } else {
      result.add_undefined();
    }
  }
  return true;
}
bool batch_norm_with(const at::Tensor& input, const at::Tensor& weight, bool training,
                     Metadata& result) {
  if (!is_floating(input) || input.dim() < 2) return false;
  add_formatted(input.scalar_type(), input.sizes(), input.suggest_memory_format(), result);
  const c10::ScalarType dtype = statistics_type(input, weight);
  const int64_t channels = training ? input.size(1) : 0;
  result.add(dtype, {channels});
  result.add(dtype, {channels});
  return true;
}
bool native_batch_norm(const Arguments& a, Metadata& result) {
  return batch_norm_with(tensor(a, 0), tensor(a, 1), a[5].toBool(), result);
}
bool batch_norm_legit_functional(const Arguments& a, Metadata& result) {
  if (!native_batch_norm(a, result)) return false;
  result.add(tensor(a, 3).scalar_type(), tensor(a, 3).sizes());
  result.add(tensor(a, 4).scalar_type(), tensor(a, 4).sizes());
  return true;
}
bool batch_norm_no_stats(const Arguments& a, Metadata& result) {
  return batch_norm_with(tensor(a, 0), tensor(a, 1), a[3].toBool(), result);
}
// The fourth result is a buffer that only other backends use.
bool batch_norm_no_update(const Arguments& a, Metadata& result) {
  if (!batch_norm_with(tensor(a, 0), tensor(a, 1), !tensor(a, 3).defined(), result)) return false;
  result.add(at::kByte, {0});
  return true;
}
bool batch_norm_with_update(const Arguments& a, Metadata& result) {
  if (!batch_norm_with(tensor(a, 0), tensor(a, 1), true, result)) return false;
  result.add(at::kByte, {0});
  result.add(tensor(a, 3).scalar_type(), tensor(a, 3).sizes());
  result.add(tensor(a, 4).scalar_type(), tensor(a, 4).sizes());
  return true;
}
bool native_batch_norm_backward(const Arguments& a, Metadata& result) {
  const at::Tensor &input = tensor(a, 1), &weight = tensor(a, 2);
  const auto mask = a[9].toListRef();
  if (mask[0].toBool()) {
    add_formatted(input.scalar_type(), input.sizes(), input.suggest_memory_format(), result);
  } else {
    result.add_undefined();
  }
  const c10::ScalarType dtype = weight.defined() ? weight.scalar_type() : input.scalar_type();
  for (size_t k = 1; k < 3; ++k) {
    if (mask[k].toBool()) {
      result.add(dtype, {input.size(1)});
    } else {
      result.add_undefined();
    }
  }
  return true;
}

// --- Convolution, pooling, attention --------------------------------------------------------------

int64_t at_or_last(const Dims& dims, size_t i) { return dims[i < dims.size() ? i : dims.size() - 1]; }

c10::MemoryFormat convolution_format(const at::Tensor& input, const at::Tensor& weight) {
  const c10::MemoryFormat of_input = input.suggest_memory_format();
  return of_input != c10::MemoryFormat::Contiguous ? of_input : weight.suggest_memory_format();
}

// In the CPU's words; by dtype and layout torch itself checks some of this before it calls a device.
void check_convolution(const Arguments& a) {
  const at::Tensor &input = tensor(a, 0), &weight = tensor(a, 1);
  const Dims stride = to_dims(a[3]), padding = to_dims(a[4]), dilation = to_dims(a[5]),
             extra = to_dims(a[7]);
  const int64_t groups = a[8].toInt();
  const auto all = [](const Dims& values, int64_t least) {
    return std::all_of(values.begin(), values.end(), [&](int64_t v) { return v >= least; });
  };
  TORCH_CHECK(all(padding, 0), "negative padding is not supported");
  TORCH_CHECK(all(extra, 0), "negative output_padding is not supported");
  TORCH_CHECK(all(stride, 1), "non-positive stride is not supported");
  TORCH_CHECK(all(dilation, 1), "dilation should be greater than zero");
  TORCH_CHECK(groups > 0, "non-positive groups is not supported");
  TORCH_CHECK(weight.size(0) >= groups, "Given groups=", groups, ", expected weight to be at least ",
              groups, " at dimension 0, but got weight of size ", weight.sizes(), " instead");
  TORCH_CHECK(weight.size(0) % groups == 0, "Given groups=", groups,
              ", expected weight to be divisible by ", groups,
              " at dimension 0, but got weight of size [", weight.sizes(), "] instead");
  if (!a[6].toBool()) {
    TORCH_CHECK(input.size(1) == weight.size(1) * groups, "Given groups=", groups,
                ", weight of size ", weight.sizes(), ", expected input", input.sizes(), " to have ",
                weight.size(1) * groups, " channels, but got ", input.size(1), " channels instead");
    return;
  }
  TORCH_CHECK(input.size(1) == weight.size(0), "Given transposed=1, weight of size ",
              weight.sizes(), ", expected input", input.sizes(), " to have ", weight.size(0),
              " channels, but got ", input.size(1), " channels instead");
  for (size_t k = 0; k + 2 < static_cast<size_t>(input.dim()); ++k) {
    TORCH_CHECK(at_or_last(extra, k) < at_or_last(stride, k) ||
                    at_or_last(extra, k) < at_or_last(dilation, k),
                "output padding must be smaller than either stride or dilation, but got "
                "output_padding: ",
                ref(extra), " stride: ", ref(stride), " dilation: ", ref(dilation));
  }
}

bool convolution(const Arguments& a, Metadata& result) {
  const at::Tensor &input = tensor(a, 0), &weight = tensor(a, 1);
  const Dims stride = to_dims(a[3]), padding = to_dims(a[4]), dilation = to_dims(a[5]),
             extra = to_dims(a[7]);
  const bool transposed = a[6].toBool();
  const int64_t groups = a[8].toInt();
  if (input.dim() < 3 || input.dim() != weight.dim()) return false;
  check_convolution(a);
  Dims sizes = {input.size(0), transposed ? weight.size(1) * groups : weight.size(0)};
  for (int64_t d = 2; d < input.dim(); ++d) {
    const auto k = static_cast<size_t>(d - 2);
    const int64_t kernel = at_or_last(dilation, k) * (weight.size(d) - 1) + 1;
    const int64_t size =
        transposed ? (input.size(d) - 1) * at_or_last(stride, k) - 2 * at_or_last(padding, k) +
                         kernel + at_or_last(extra, k)
                   : (input.size(d) + 2 * at_or_last(padding, k) - kernel) / at_or_last(stride, k) +
                         1;
    if (size < 0) return false;
    sizes.push_back(size);
  }
  add_formatted(input.scalar_type(), ref(sizes), convolution_format(input, weight), result);
  return true;
}
bool convolution_backward(const Arguments& a, Metadata& result) {
  const at::Tensor &input = tensor(a, 1), &weight = tensor(a, 2);
  // (grad_output, input, weight[, bias_sizes], stride, ..., output_mask)
  const auto mask = a.back().toListRef();
  const c10::MemoryFormat format = convolution_format(input, weight);
  if (mask[0].toBool()) {
    add_formatted(input.scalar_type(), input.sizes(), format, result);
  } else {
    result.add_undefined();
  }
  if (mask[1].toBool()) {
    add_formatted(weight.scalar_type(), weight.sizes(), format, result);
  } else {
    result.add_undefined();
  }
  if (mask[2].toBool()) {
    result.add(weight.scalar_type(), {tensor(a, 0).size(1)});
  } else {
    result.add_undefined();
  }
  return true;
}
bool adaptive_avg_pool2d(const Arguments& a, Metadata& result) {
  const at::Tensor& self = tensor(a, 0);
  const Dims wanted = to_dims(a[1]);
  if (self.dim() < 3 || self.dim() > 4 || wanted.size() != 2) return false;
  Dims sizes = sizes_of(self);
  sizes[sizes.size() - 2] = wanted[0];
  sizes[sizes.size() - 1] = wanted[1];
  add_formatted(self.scalar_type(), ref(sizes), self.suggest_memory_format(), result);
  return true;
}
bool adaptive_avg_pool2d_backward(const Arguments& a, Metadata& result) {
  const at::Tensor& self = tensor(a, 1);
  add_formatted(self.scalar_type(), self.sizes(), self.suggest_memory_format(), result);
  return true;
}

bool attention(const Arguments& a, Metadata& result) {
  const at::Tensor &query = tensor(a, 0), &key = tensor(a, 1), &value = tensor(a, 2);
  if (query.dim() != 4 || key.dim() != 4 || value.dim() != 4) return false;
  if (query.size(3) == value.size(3)) {
    // Mostly a transposed view: merging the heads again then costs nothing.
    add_like(query, query.scalar_type(), result);
  } else {
    result.add(query.scalar_type(),
               {query.size(0), query.size(1), query.size(2), value.size(3)});
  }
  result.add(at::kFloat, {query.size(0), query.size(1), query.size(2)});
  result.add_undefined();  // cum_seq_q
  result.add_undefined();  // cum_seq_k
  result.add(at::kLong, {});  // philox_seed
  result.add(at::kLong, {});  // philox_offset
  result.add_undefined();  // debug_attn_mask
  result.integers = {0, 0, 0, 0, query.size(2), key.size(2), 0, 0, 0};
  return true;
}
bool attention_backward(const Arguments& a, Metadata& result) {
  const auto mask = a[5].toListRef();
  for (size_t k = 0; k < 4; ++k) {
    const at::Tensor& of = tensor(a, k + 1);
    if (!mask[k].toBool() || !of.defined()) {
      result.add_undefined();
    } else {
      add_like(of, of.scalar_type(), result);
    }
  }
  return true;
}

// --- Lists ----------------------------------------------------------------------------------------

// Functional foreach ops whose members keep shape and dtype: floating-point lists of equal types.
bool foreach_like_self(const Arguments& a, Metadata& result) {
  const auto members = a[0].toListRef();
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].isTensorList()) {
      const auto list = a[i].toListRef();
      if (list.size() != members.size()) return false;
      for (size_t k = 0; k < list.size(); ++k) {
        const at::Tensor &one = list[k].toTensor(), &self = members[k].toTensor();
        if (one.scalar_type() != self.scalar_type() || one.sizes() != self.sizes()) return false;
      }
    } else if (a[i].isTensor() && a[i].toTensor().dim() != 0) {
      return false;
    } else if (a[i].isComplexDouble()) {
      return false;
    }
  }
  for (const c10::IValue& member : members) {
    if (!is_floating(member.toTensor())) return false;
    add_like(member.toTensor(), member.toTensor().scalar_type(), result);
  }
  result.counts.assign(1, static_cast<int32_t>(members.size()));
  return true;
}
// Powers of whole numbers depend on the kind of each exponent.
bool foreach_pow(const Arguments& a, Metadata& result) {
  if (foreach_like_self(a, result)) return true;
  const auto members = a[0].toListRef();
  result = {};
  for (size_t k = 0; k < members.size(); ++k) {
    Metadata one;
    as_structured("aten::pow.Tensor_Scalar",
                  {members[k], a[1].isList() ? a[1].toListRef()[k] : a[1]}, one);
    result.values.push_back(one.values[0]);
  }
  result.counts.assign(1, static_cast<int32_t>(members.size()));
  return true;
}
bool foreach_norm(const Arguments& a, Metadata& result) {
  const auto members = a[0].toListRef();
  if (a.size() > 2 && !a[2].isNone()) return false;
  for (const c10::IValue& member : members) {
    if (!is_floating(member.toTensor())) return false;
    result.add(member.toTensor().scalar_type(), {});
  }
  result.counts.assign(1, static_cast<int32_t>(members.size()));
  return true;
}

// --- Creation -------------------------------------------------------------------------------------

bool full(const Arguments& a, Metadata& result) {
  const Dims sizes = to_dims(a[0]);
  if (a[2].isNone()) return false;
  result.add(a[2].toScalarType(), ref(sizes));
  return true;
}

const std::unordered_map<std::string_view, ShapeFunction>& table() {
  static const auto* functions = new std::unordered_map<std::string_view, ShapeFunction>({
      {"aten::abs", abs_like_self},
      {"aten::relu", like_self},
      {"aten::hardswish", like_floating_self},
      {"aten::hardtanh", like_floating_self},
      {"aten::celu", like_floating_self},
      {"aten::deg2rad", like_floating_self},
      {"aten::rad2deg", like_floating_self},
      {"aten::nan_to_num", like_self},
      {"aten::logit", like_floating_self},
      {"aten::_conj_physical", like_self},
      {"aten::flip", like_self},
      {"aten::logical_not", bool_like_self},
      {"aten::isnan", bool_like_self},
      {"aten::isinf", bool_like_self},
      {"aten::fill.Scalar", like_self},
      {"aten::fill.Tensor", like_self},
      {"aten::zero", like_self},
      {"aten::copy", like_self},
      {"aten::lift_fresh_copy", like_self},
      {"aten::detach_copy", contiguous_like_self},
      {"aten::alias_copy", contiguous_like_self},
      {"aten::clone", clone},
      {"aten::bernoulli", like_self},
      {"aten::bernoulli.p", like_self},
      {"aten::normal_functional", like_self},
      {"aten::uniform", like_self},
      {"aten::exponential", like_self},
      {"aten::random", like_self},
      {"aten::random.to", like_self},
      {"aten::random.from", like_self},
      {"aten::native_dropout", native_dropout},
      {"aten::hardtanh_backward", like_second},
      {"aten::hardswish_backward", like_second},
      {"aten::mish_backward", like_second},
      {"aten::log_sigmoid_backward", like_second},
      {"aten::add.Scalar", add_scalar},
      {"aten::sub.Scalar", sub_scalar},
      {"aten::mul.Scalar", mul_scalar},
      {"aten::div.Scalar", div_scalar},
      {"aten::div.Scalar_mode", div_scalar_mode},
      {"aten::fmod.Scalar", fmod_scalar},
      {"aten::remainder.Scalar", remainder_scalar},
      {"aten::remainder.Scalar_Tensor", remainder_of_scalar},
      {"aten::copysign.Scalar", copysign_scalar},
      {"aten::xlogy.Scalar_Other", xlogy_scalar},
      {"aten::xlogy.Scalar_Self", xlogy_of_scalar},
      {"aten::rsub.Scalar", rsub_scalar},
      {"aten::rsub.Tensor", rsub},
      {"aten::floor_divide", floor_divide},
      {"aten::floor_divide.Scalar", floor_divide_scalar},
      {"aten::logical_and", logical},
      {"aten::logical_or", logical},
      {"aten::logical_xor", logical},
      {"aten::where.self", where},
      {"aten::masked_fill.Scalar", masked_fill},
      {"aten::masked_fill.Tensor", masked_fill},
      {"aten::sum", sum_all},
      {"aten::prod", sum_all},
      {"aten::mean", mean_all},
      {"aten::max", extreme_all<true>},
      {"aten::min", extreme_all<false>},
      {"aten::median", median_all},
      {"aten::var.correction", variance<1>},
      {"aten::std.correction", variance<1>},
      {"aten::var_mean.correction", variance<2>},
      {"aten::std_mean.correction", variance<2>},
      {"aten::logsumexp", logsumexp},
      {"aten::sort", sort},
      {"aten::dot", dot},
      {"aten::vdot", dot},
      {"aten::mv", mv},
      {"aten::embedding", embedding},
      {"aten::embedding_dense_backward", embedding_dense_backward},
      {"aten::index_select", index_select},
      {"aten::_unsafe_index.Tensor", unsafe_index},
      {"aten::index_put", index_put},
      {"aten::_index_put_impl", index_put},
      {"aten::_unsafe_index_put", index_put},
      {"aten::slice_scatter", scatter_of_slice},
      {"aten::select_scatter", scatter_of_slice},
      {"aten::diagonal_scatter", scatter_of_slice},
      {"aten::slice_backward", of_input_sizes},
      {"aten::select_backward", of_input_sizes},
      {"aten::diagonal_backward", of_input_sizes},
      {"aten::unfold_backward", of_input_sizes},
      {"aten::stack", stack},
      {"aten::_stack", stack},
      {"aten::repeat", repeat},
      {"aten::constant_pad_nd", constant_pad},
      {"aten::repeat_interleave.Tensor", repeat_interleave},
      {"aten::binary_cross_entropy", reduced_loss<3>},
      {"aten::huber_loss", reduced_loss<2>},
      {"aten::soft_margin_loss", reduced_loss<2>},
      {"aten::binary_cross_entropy_backward", loss_backward},
      {"aten::mse_loss_backward", loss_backward},
      {"aten::smooth_l1_loss_backward", loss_backward},
      {"aten::huber_loss_backward", loss_backward},
      {"aten::log_sigmoid_forward", log_sigmoid_forward},
      {"aten::native_layer_norm", native_layer_norm},
      {"aten::native_layer_norm_backward", native_layer_norm_backward},
      {"aten::native_group_norm", native_group_norm},
      {"aten::native_group_norm_backward", native_group_norm_backward},
      {"aten::native_batch_norm", native_batch_norm},
      {"aten::_native_batch_norm_legit_functional", batch_norm_legit_functional},
      {"aten::_native_batch_norm_legit.no_stats", batch_norm_no_stats},
      {"aten::_batch_norm_no_update", batch_norm_no_update},
      {"aten::_batch_norm_with_update_functional", batch_norm_with_update},
      {"aten::native_batch_norm_backward", native_batch_norm_backward},
      {"aten::convolution", convolution},
      {"aten::convolution_backward", convolution_backward},
      {"aten::convolution_overrideable", convolution},
      {"aten::convolution_backward_overrideable", convolution_backward},
      {"aten::_adaptive_avg_pool2d", adaptive_avg_pool2d},
      {"aten::_adaptive_avg_pool2d_backward", adaptive_avg_pool2d_backward},
      {"aten::_scaled_dot_product_fused_attention_overrideable", attention},
      {"aten::_scaled_dot_product_fused_attention_overrideable_backward", attention_backward},
      {"aten::_foreach_norm.Scalar", foreach_norm},
      {"aten::_foreach_pow.Scalar", foreach_pow},
      {"aten::_foreach_pow.ScalarList", foreach_pow},
      {"aten::full", full},
  });
  return *functions;
}

}  // namespace

ShapeFunction find_shape_function(const std::string& name) {
  const auto found = table().find(name);
  if (found != table().end()) return found->second;
  const auto checked = checked_shapes().find(name);
  if (checked != checked_shapes().end()) return checked->second;
  if (name.starts_with("aten::_foreach_") && name.find("_foreach_max") == std::string::npos &&
      name.find("_foreach_norm") == std::string::npos &&
      name.find("_foreach_powsum") == std::string::npos) {
    return foreach_like_self;
  }
  return nullptr;
}

}  // namespace neuron::aten
