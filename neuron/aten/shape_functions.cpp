// Shapes of hot ops that have no structured meta. Each function knows the ordinary case and
// answers false for any other: the registered Meta kernel then decides, or words the error.

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/MemoryFormat.h>

#include <algorithm>
#include <cmath>
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

// --- Elementwise
// ----------------------------------------------------------------------------------

bool like_self(const Arguments& a, Metadata& result) {
  add_like(tensor(a, 0), tensor(a, 0).scalar_type(), result);
  return true;
}
bool relu(const Arguments& a, Metadata& result) {
  TORCH_CHECK(tensor(a, 0).scalar_type() != at::kBool, "Boolean inputs not supported for relu");
  return like_self(a, result);
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
bool add_scalar(const Arguments& a, Metadata& m) {
  return scalar_form<1>("aten::add.Tensor", a, m);
}
bool sub_scalar(const Arguments& a, Metadata& m) {
  return scalar_form<1>("aten::sub.Tensor", a, m);
}
bool mul_scalar(const Arguments& a, Metadata& m) {
  return scalar_form<1>("aten::mul.Tensor", a, m);
}
bool div_scalar(const Arguments& a, Metadata& m) {
  return scalar_form<1>("aten::div.Tensor", a, m);
}
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
  as_structured(
      "aten::addcmul",
      {meta_like(condition, f), meta_like(self, f), meta_like(other, f), c10::IValue(int64_t{1})},
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

// --- Reductions
// -----------------------------------------------------------------------------------

c10::ScalarType sum_type(const at::Tensor& self, const c10::IValue& dtype) {
  if (!dtype.isNone()) return dtype.toScalarType();
  return at::isIntegralType(self.scalar_type(), true) ? at::kLong : self.scalar_type();
}
bool sum_all(const Arguments& a, Metadata& result) {
  result.add(sum_type(tensor(a, 0), a[1]), {});
  return true;
}
bool mean_all(const Arguments& a, Metadata& result) {
  const c10::ScalarType dtype = a[1].isNone() ? tensor(a, 0).scalar_type() : a[1].toScalarType();
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
  TORCH_CHECK(is_floating(self) || self.is_complex(),
              kResults == 1 ? "std and var" : "std_mean and var_mean",
              " only support floating point and complex dtypes");
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

// --- Products
// -------------------------------------------------------------------------------------

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

// --- Indexing and layout
// --------------------------------------------------------------------------

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
  TORCH_CHECK(self.size(dim) > 0 || index.numel() == 0,
              "index_select(): self indexing axis dim should be positive");
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

// --- Lists
// ----------------------------------------------------------------------------------------

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

// --- Creation
// -------------------------------------------------------------------------------------

bool full(const Arguments& a, Metadata& result) {
  const Dims sizes = to_dims(a[0]);
  if (a[2].isNone()) return false;
  result.add(a[2].toScalarType(), ref(sizes));
  return true;
}

// (self[, fill], dtype, layout, device, pin_memory, memory_format)
template <size_t kDtype>
bool filled_like(const Arguments& a, Metadata& result) {
  const at::Tensor& self = tensor(a, 0);
  const c10::ScalarType dtype = a[kDtype].isNone() ? self.scalar_type() : a[kDtype].toScalarType();
  const c10::IValue& format = a[kDtype + 4];
  if (format.isNone() || format.toMemoryFormat() == c10::MemoryFormat::Preserve) {
    add_like(self, dtype, result);
  } else {
    add_formatted(dtype, self.sizes(), format.toMemoryFormat(), result);
  }
  return true;
}

// (size, dtype, ...)
bool filled(const Arguments& a, Metadata& result) {
  const Dims sizes = to_dims(a[0]);
  for (const int64_t size : sizes) {
    if (size < 0) return false;
  }
  result.add(a[1].isNone() ? c10::get_default_dtype_as_scalartype() : a[1].toScalarType(),
             ref(sizes));
  return true;
}

// Numbers first, then dtype.
template <size_t kNumbers>
bool range_of(const Arguments& a, Metadata& result) {
  bool whole = true;
  for (size_t i = 0; i < kNumbers; ++i) whole = whole && a[i].isInt();
  c10::ScalarType dtype = whole ? at::kLong : c10::get_default_dtype_as_scalartype();
  if (!a[kNumbers].isNone()) dtype = a[kNumbers].toScalarType();
  const size_t end_at = kNumbers == 1 ? 0 : 1;
  int64_t size;
  if (dtype == at::kLong && whole) {
    const int64_t start = kNumbers == 1 ? 0 : a[0].toInt();
    const int64_t end = a[end_at].toInt(), step = kNumbers == 3 ? a[2].toInt() : 1;
    if (step == 0 || (step > 0 ? end < start : end > start)) return false;
    size = (end - start + step - (step > 0 ? 1 : -1)) / step;
  } else if (dtype != at::kLong && !at::isComplexType(dtype)) {
    // In f64 whatever the dtype.
    const auto number = [&](size_t i) {
      return a[i].isDouble() ? a[i].toDouble()
             : a[i].isInt()  ? static_cast<double>(a[i].toInt())
                             : std::nan("");
    };
    const double start = kNumbers == 1 ? 0 : number(0);
    const double end = number(end_at), step = kNumbers == 3 ? number(2) : 1;
    const double count = std::ceil((end - start) / step);
    if (!(count >= 0 && count < 1e15) || step == 0) return false;
    size = static_cast<int64_t>(count);
  } else {
    return false;
  }
  result.add(dtype, {size});
  return true;
}

const std::unordered_map<std::string_view, ShapeFunction>& table() {
  static const auto* functions = new std::unordered_map<std::string_view, ShapeFunction>({
      {"aten::abs", abs_like_self},
      {"aten::relu", relu},
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
      {"aten::_foreach_norm.Scalar", foreach_norm},
      {"aten::_foreach_pow.Scalar", foreach_pow},
      {"aten::_foreach_pow.ScalarList", foreach_pow},
      {"aten::full", full},
      {"aten::zeros_like", filled_like<1>},
      {"aten::ones_like", filled_like<1>},
      {"aten::rand_like", filled_like<1>},
      {"aten::randn_like", filled_like<1>},
      {"aten::full_like", filled_like<2>},
      {"aten::zeros", filled},
      {"aten::ones", filled},
      {"aten::rand", filled},
      {"aten::randn", filled},
      {"aten::arange", range_of<1>},
      {"aten::arange.start", range_of<2>},
      {"aten::arange.start_step", range_of<3>},
  });
  return *functions;
}

}  // namespace

ShapeFunction find_shape_function(const std::string& name) {
  for (const auto* functions : {&table(), &network_shapes()}) {
    const auto found = functions->find(name);
    if (found != functions->end()) return found->second;
  }
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
