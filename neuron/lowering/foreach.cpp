// Ops on lists of tensors: each member is lowered by the lowering of the single op, so that the
// semantics are shared. One program then covers the whole list.

#include <algorithm>
#include <string_view>

#include "neuron/base/error.h"
#include "neuron/lowering/numerics.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

// Text as a template argument.
template <size_t N>
struct Text {
  constexpr Text(const char (&text)[N]) { std::copy_n(text, N, characters); }  // NOLINT
  constexpr std::string_view view() const { return {characters, N - 1}; }
  char characters[N];
};

Argument number_argument(Number number, Value runtime) {
  Argument argument;
  argument.kind = Argument::Kind::Scalar;
  argument.numbers = {number};
  argument.runtime = {runtime};
  return argument;
}

// Element k of a 1-dim tensor in the place of a Scalar.
Argument element_argument(Builder& b, Value list, size_t k) {
  const auto at = static_cast<int64_t>(k);
  const Value element = b.reshape(b.slice_dim(list, 0, at, at + 1), {});
  Number number;
  number.kind = is_complex(element.dtype())    ? DType::c128
                : is_floating(element.dtype()) ? DType::f64
                                               : DType::i64;
  return number_argument(number, b.convert(element, number.kind));
}

// Where an argument of the single op comes from; a plan has two characters for each:
//   Li: member k of the list i; Wi: argument i as it is; Ni: member k of the Scalar[] i;
//   Si: element k of the 1-dim tensor i, as a Scalar; 11: the number 1; --: None.
Argument single_argument(Builder& b, const OpCall& call, char source, size_t i, size_t k) {
  Argument argument;
  switch (source) {
    case 'L':
      argument.kind = Argument::Kind::Tensor;
      argument.tensors = {call.tensors(i)[k]};
      argument.wrapped.push_back(0);
      return argument;
    case 'W':
      return call.argument(i);
    case 'N': {
      const Argument& list = call.argument(i);
      return number_argument(list.numbers[k], k < list.runtime.size() ? list.runtime[k] : Value());
    }
    case 'S':
      return element_argument(b, call.tensor(i), k);
    case '1': {
      Number one;
      one.integer = 1;
      return number_argument(one, {});
    }
    default:
      return argument;
  }
}

template <Text single, Text plan>
Values foreach (Builder& b, const OpCall& call) {
  const Lowering* lowering = find_lowering(single.view());
  NEURON_CHECK(lowering != nullptr && lowering->function != nullptr, kUnsupported,
               "there is no lowering of ", single.view());
  constexpr std::string_view steps = plan.view();
  Values results;
  results.reserve(call.result_count());
  for (size_t k = 0; k < call.result_count(); ++k) {
    std::vector<Argument> arguments;
    for (size_t j = 0; j < steps.size(); j += 2) {
      arguments.push_back(
          single_argument(b, call, steps[j], static_cast<size_t>(steps[j + 1] - '0'), k));
    }
    const OpCall member(b, std::move(arguments), {call.result(k)}, call.default_dtype());
    results.push_back(lowering->function(b, member)[0]);
    for (size_t j = 0; j < steps.size(); j += 2) {
      const bool is_static = (member.trace().static_arguments >> (j / 2) & 1) != 0;
      if (is_static && (steps[j] == 'W' || steps[j] == 'N')) {
        call.trace().static_arguments |= uint64_t{1} << (steps[j + 1] - '0');
      }
      NEURON_CHECK(!is_static || steps[j] != 'S', kUnsupported,
                   "the number must be known when the program is made");
    }
  }
  return results;
}

#define NEURON_FOREACH(arguments, single, plan) \
  NEURON_LOWERING("aten::_foreach_" arguments " -> Tensor[]", (foreach<"aten::" single, plan>))

#define NEURON_FOREACH_UNARY(name) NEURON_FOREACH(name "(Tensor[] self)", name, "L0")
NEURON_FOREACH_UNARY("abs");
NEURON_FOREACH_UNARY("acos");
NEURON_FOREACH_UNARY("asin");
NEURON_FOREACH_UNARY("atan");
NEURON_FOREACH_UNARY("ceil");
NEURON_FOREACH_UNARY("cos");
NEURON_FOREACH_UNARY("cosh");
NEURON_FOREACH_UNARY("erf");
NEURON_FOREACH_UNARY("erfc");
NEURON_FOREACH_UNARY("exp");
NEURON_FOREACH_UNARY("expm1");
NEURON_FOREACH_UNARY("floor");
NEURON_FOREACH_UNARY("frac");
NEURON_FOREACH_UNARY("lgamma");
NEURON_FOREACH_UNARY("log");
NEURON_FOREACH_UNARY("log10");
NEURON_FOREACH_UNARY("log1p");
NEURON_FOREACH_UNARY("log2");
NEURON_FOREACH_UNARY("neg");
NEURON_FOREACH_UNARY("reciprocal");
NEURON_FOREACH_UNARY("round");
NEURON_FOREACH_UNARY("rsqrt");
NEURON_FOREACH_UNARY("sigmoid");
NEURON_FOREACH_UNARY("sign");
NEURON_FOREACH_UNARY("sin");
NEURON_FOREACH_UNARY("sinh");
NEURON_FOREACH_UNARY("sqrt");
NEURON_FOREACH_UNARY("tan");
NEURON_FOREACH_UNARY("tanh");
NEURON_FOREACH_UNARY("trunc");
NEURON_FOREACH_UNARY("max");
#undef NEURON_FOREACH_UNARY

// An overload per kind of operand.
#define NEURON_FOREACH_ADD(name)                                                                 \
  NEURON_FOREACH(name ".List(Tensor[] self, Tensor[] other, *, Scalar alpha=1)", name ".Tensor", \
                 "L0L1W2");                                                                      \
  NEURON_FOREACH(name ".Scalar(Tensor[] self, Scalar scalar)", name ".Scalar", "L0W111");        \
  NEURON_FOREACH(name ".ScalarList(Tensor[] self, Scalar[] scalars)", name ".Scalar", "L0N111")
NEURON_FOREACH_ADD("add");
NEURON_FOREACH_ADD("sub");
#undef NEURON_FOREACH_ADD
NEURON_FOREACH("add.Tensor(Tensor[] self, Tensor other, *, Scalar alpha=1)", "add.Tensor",
               "L0W1W2");

#define NEURON_FOREACH_BINARY(name, with_tensor, with_scalar)                        \
  NEURON_FOREACH(name ".List(Tensor[] self, Tensor[] other)", with_tensor, "L0L1");  \
  NEURON_FOREACH(name ".Scalar(Tensor[] self, Scalar scalar)", with_scalar, "L0W1"); \
  NEURON_FOREACH(name ".ScalarList(Tensor[] self, Scalar[] scalars)", with_scalar, "L0N1")
NEURON_FOREACH_BINARY("mul", "mul.Tensor", "mul.Scalar");
NEURON_FOREACH_BINARY("div", "div.Tensor", "div.Scalar");
NEURON_FOREACH_BINARY("clamp_min", "clamp_min.Tensor", "clamp_min");
NEURON_FOREACH_BINARY("clamp_max", "clamp_max.Tensor", "clamp_max");
NEURON_FOREACH_BINARY("maximum", "maximum", "clamp_min");
NEURON_FOREACH_BINARY("minimum", "minimum", "clamp_max");
#undef NEURON_FOREACH_BINARY
NEURON_FOREACH("mul.Tensor(Tensor[] self, Tensor other)", "mul.Tensor", "L0W1");
NEURON_FOREACH("div.Tensor(Tensor[] self, Tensor other)", "div.Tensor", "L0W1");

NEURON_FOREACH("pow.List(Tensor[] self, Tensor[] exponent)", "pow.Tensor_Tensor", "L0L1");
NEURON_FOREACH("pow.Scalar(Tensor[] self, Scalar exponent)", "pow.Tensor_Scalar", "L0W1");
NEURON_FOREACH("pow.ScalarList(Tensor[] self, Scalar[] exponent)", "pow.Tensor_Scalar", "L0N1");
NEURON_FOREACH("pow.ScalarAndTensor(Scalar self, Tensor[] exponent)", "pow.Scalar", "W0L1");

NEURON_FOREACH("lerp.List(Tensor[] self, Tensor[] tensors1, Tensor[] weights)", "lerp.Tensor",
               "L0L1L2");
NEURON_FOREACH("lerp.Scalar(Tensor[] self, Tensor[] tensors1, Scalar weight)", "lerp.Scalar",
               "L0L1W2");
NEURON_FOREACH("lerp.ScalarList(Tensor[] self, Tensor[] tensors1, Scalar[] weight)", "lerp.Scalar",
               "L0L1N2");

#define NEURON_FOREACH_COMBINED(name)                                              \
  NEURON_FOREACH(name                                                              \
                 ".Scalar(Tensor[] self, Tensor[] tensor1, Tensor[] tensor2, "     \
                 "Scalar value=1)",                                                \
                 name, "L0L1L2W3");                                                \
  NEURON_FOREACH(name                                                              \
                 ".ScalarList(Tensor[] self, Tensor[] tensor1, Tensor[] tensor2, " \
                 "Scalar[] scalars)",                                              \
                 name, "L0L1L2N3");                                                \
  NEURON_FOREACH(name                                                              \
                 ".Tensor(Tensor[] self, Tensor[] tensor1, Tensor[] tensor2, "     \
                 "Tensor scalars)",                                                \
                 name, "L0L1L2S3")
NEURON_FOREACH_COMBINED("addcdiv");
NEURON_FOREACH_COMBINED("addcmul");
#undef NEURON_FOREACH_COMBINED

NEURON_FOREACH("norm.Scalar(Tensor[] self, Scalar ord=2, ScalarType? dtype=None)",
               "linalg_vector_norm", "L0W1----W2");
NEURON_FOREACH("clone(Tensor[] self, *, MemoryFormat? memory_format=None)", "clone", "L0--");
NEURON_FOREACH("mm(Tensor[] self, Tensor[] mat2)", "mm", "L0L1");
NEURON_LOWERING(
    "aten::_foreach_copy(Tensor[] self, Tensor[] src, bool non_blocking=False) -> Tensor[] "
    "self_out",
    (foreach<"aten::copy", "L0L1W2">));
NEURON_LOWERING("aten::_foreach_zero(Tensor[] self) -> Tensor[] self_out",
                (foreach<"aten::zero", "L0">));

NEURON_FOREACH("powsum.Scalar(Tensor[] self, Scalar ord=2, ScalarType? dtype=None)",
               "linalg__powsum", "L0W1----W2");

}  // namespace
}  // namespace neuron::lowering
