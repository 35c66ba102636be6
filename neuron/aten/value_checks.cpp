#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/logical_or.h>
#include <c10/core/TensorImpl.h>

#include <limits>
#include <string_view>
#include <unordered_map>

#include "neuron/aten/prepare.h"

// Checks of values that change from call to call with one key: torch's conditions and texts.
namespace neuron::aten {
namespace {

bool is_integral(const c10::IValue& tensor) {
  return c10::isIntegralType(tensor.toTensor().scalar_type(), /*includeBool=*/true);
}

void pow_tensor_scalar(const c10::IValue* a) {
  if (!a[1].isInt() || a[1].toInt() >= 0 || !is_integral(a[0])) return;
  TORCH_CHECK(false, "Integers to negative integer powers are not allowed.");
}

template <int kArgument>
void normal_std(const c10::IValue* a) {
  const double std = a[kArgument].toDouble();
  TORCH_CHECK(std >= 0.0, "normal expects std >= 0.0, but found std ", std);
}

template <typename T>
void check_uniform_range(double from, double to) {
  const auto least = static_cast<double>(std::numeric_limits<T>::lowest());
  const auto most = static_cast<double>(std::numeric_limits<T>::max());
  TORCH_CHECK(from >= least && from <= most, "from is out of bounds for dtype");
  TORCH_CHECK(to >= least && to <= most, "to is out of bounds for dtype");
  TORCH_CHECK(from <= to, "uniform_ expects to return a [from, to) range, but found from=", from,
              " > to=", to);
  TORCH_CHECK(to - from <= most, "uniform_ expects to-from <= std::numeric_limits<",
              "scalar_t>::max(), but found to=", to, " and from=", from,
              " which result in to-from to exceed the limit");
}

void uniform(const c10::IValue* a) {
  const double from = a[1].toDouble(), to = a[2].toDouble();
  switch (a[0].toTensor().scalar_type()) {
    case c10::ScalarType::Half:
      return check_uniform_range<c10::Half>(from, to);
    case c10::ScalarType::BFloat16:
      return check_uniform_range<c10::BFloat16>(from, to);
    case c10::ScalarType::Double:
      return check_uniform_range<double>(from, to);
    default:
      return check_uniform_range<float>(from, to);
  }
}

void bernoulli(const c10::IValue* a) {
  const double p = a[1].toDouble();
  TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
}

void exponential(const c10::IValue* a) {
  const double lambda = a[1].toDouble();
  TORCH_CHECK(lambda > 0.0, "exponential_ expects lambda > 0.0, but found lambda=", lambda);
}

void geometric(const c10::IValue* a) {
  const double p = a[1].toDouble();
  TORCH_CHECK(0 < p && p < 1, "geometric_ expects p to be in (0, 1), but got p=", p);
}

void cauchy(const c10::IValue* a) {
  const double sigma = a[2].toDouble();
  TORCH_CHECK(sigma > 0.0, "cauchy_ expects sigma > 0.0, but found sigma=", sigma);
}

void log_normal(const c10::IValue* a) {
  const double std = a[2].toDouble();
  TORCH_CHECK(std > 0.0, "log_normal_ expects std > 0.0, but found std=", std);
}

void dropout(const c10::IValue* a) {
  const double p = a[1].toDouble();
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
}

// A number must be representable: 300 does not fit a uint8 tensor.
void check_fits(const c10::IValue& number, c10::ScalarType type) {
  if (number.isComplexDouble() && !c10::isComplexType(type)) {
    TORCH_CHECK(number.toComplexDouble().imag() == 0, "value cannot be converted to type ", type,
                " without overflow");
  }
  if (!number.isInt() && !number.isDouble()) return;
  const auto check = [&](double least, double most, const char* name) {
    const double value = number.isInt() ? static_cast<double>(number.toInt()) : number.toDouble();
    TORCH_CHECK(!(value < least || value > most), "value cannot be converted to type ", name,
                " without overflow");
  };
  switch (type) {
    // torch lets negative integers wrap into unsigned types.
    case c10::ScalarType::Byte:
      return check(number.isInt() ? -255 : 0, 255, "uint8_t");
    case c10::ScalarType::Char:
      return check(-128, 127, "int8_t");
    case c10::ScalarType::Short:
      return check(-32768, 32767, "int16_t");
    case c10::ScalarType::Int:
      return check(-2147483648.0, 2147483647.0, "int32_t");
    default:
      return;
  }
}

void fill(const c10::IValue* a) { check_fits(a[1], a[0].toTensor().scalar_type()); }
void masked_fill(const c10::IValue* a) { check_fits(a[2], a[0].toTensor().scalar_type()); }
void scatter(const c10::IValue* a) { check_fits(a[3], a[0].toTensor().scalar_type()); }
// A dtype that is not given follows the number, or the tensor that the result is to be like.
template <int kNumber, int kType>
void full(const c10::IValue* a) {
  if (!a[kType].isNone()) {
    check_fits(a[kNumber], a[kType].toScalarType());
  } else if (a[0].isTensor()) {
    check_fits(a[kNumber], a[0].toTensor().scalar_type());
  }
}

void huber_loss(const c10::IValue* a) {
  TORCH_CHECK(a[3].toDouble() > 0, "huber_loss does not support non-positive values for delta.");
}

// Looks at the device's values, as the CPU does; callers read the sample next anyway.
void multinomial(const c10::IValue* a) {
  const at::Tensor& p = a[0].toTensor();
  if (p.numel() == 0 || p.dim() > 2 || !at::isFloatingType(p.scalar_type())) return;
  const at::Tensor invalid = at::logical_or(p.max().ge(std::numeric_limits<double>::infinity()),
                                            p.min().ge(0).logical_not());
  const at::Tensor empty = p.sum(-1).eq(0).any();
  const int64_t found = at::add(invalid.to(at::kLong), empty.to(at::kLong), 2).item<int64_t>();
  TORCH_CHECK((found & 1) == 0, "probability tensor contains either `inf`, `nan` or element < 0");
  TORCH_CHECK(found == 0, "invalid multinomial distribution (sum of probabilities <= 0)");
}

}  // namespace

ValueCheck find_value_check(const std::string& name) {
  static const auto* checks = new std::unordered_map<std::string_view, ValueCheck>({
      {"aten::pow.Tensor_Scalar", pow_tensor_scalar},
      {"aten::pow.Tensor_Scalar_out", pow_tensor_scalar},
      {"aten::pow_.Scalar", pow_tensor_scalar},
      {"aten::normal_", normal_std<2>},
      {"aten::normal_functional", normal_std<2>},
      {"aten::normal.Tensor_float", normal_std<1>},
      {"aten::normal.Tensor_float_out", normal_std<1>},
      {"aten::uniform_", uniform},
      {"aten::uniform", uniform},
      {"aten::bernoulli_.float", bernoulli},
      {"aten::bernoulli.p", bernoulli},
      {"aten::exponential_", exponential},
      {"aten::exponential", exponential},
      {"aten::geometric_", geometric},
      {"aten::geometric", geometric},
      {"aten::cauchy_", cauchy},
      {"aten::cauchy", cauchy},
      {"aten::log_normal_", log_normal},
      {"aten::log_normal", log_normal},
      {"aten::native_dropout", dropout},
      {"aten::huber_loss", huber_loss},
      {"aten::huber_loss.out", huber_loss},
      {"aten::fill_.Scalar", fill},
      {"aten::fill.Scalar", fill},
      {"aten::multinomial", multinomial},
      {"aten::multinomial.out", multinomial},
      {"aten::scalar_tensor", full<0, 1>},
      {"aten::full", full<1, 2>},
      {"aten::full_like", full<1, 2>},
      {"aten::new_full", full<2, 3>},
      {"aten::scatter_.value", scatter},
      {"aten::scatter.value", scatter},
      {"aten::index_fill_.int_Scalar", scatter},
      {"aten::index_fill.int_Scalar", scatter},
      {"aten::masked_fill_.Scalar", masked_fill},
      {"aten::masked_fill.Scalar", masked_fill},
  });
  const auto found = checks->find(name);
  return found == checks->end() ? nullptr : found->second;
}

}  // namespace neuron::aten
