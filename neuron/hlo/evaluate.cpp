#include "neuron/hlo/evaluate.h"

#include "neuron/hlo/evaluate_internal.h"

namespace neuron::hlo {

namespace {

using namespace internal;

Array evaluate_constant(const Node& node) {
  Array result = make_array(node.type);
  if (node.bytes.size() == result.bytes.size()) {
    result.bytes = node.bytes;
    return result;
  }
  const size_t element = node.bytes.size();
  for (size_t at = 0; at < result.bytes.size(); at += element) {
    std::memcpy(result.bytes.data() + at, node.bytes.data(), element);
  }
  return result;
}

Array evaluate_iota(const Node& node) {
  Array result = make_array(node.type);
  const auto dim = static_cast<size_t>(node.ints[0]);
  with_compute_type(node.type.dtype, [&](auto tag) {
    using T = decltype(tag);
    for_each_index(node.type.dims, [&](const Dims& index, int64_t linear) {
      store_at<T>(result, linear, convert_number<T>(index[dim]));
    });
  });
  return result;
}

Array evaluate_scalar(const Node& node, std::complex<double> value) {
  Array result = make_array(node.type);
  with_compute_type(node.type.dtype,
                    [&](auto tag) { store_at(result, 0, convert_number<decltype(tag)>(value)); });
  return result;
}

}  // namespace

std::vector<Array> evaluate(const Module& module, std::span<const Array> parameters,
                            std::span<const std::complex<double>> scalars,
                            LibraryFunction library) {
  NEURON_CHECK(
      parameters.size() == module.parameters().size() && scalars.size() == module.scalars().size(),
      kInvalid, "evaluate: ", parameters.size(), " arrays and ", scalars.size(),
      " scalars were given; the module takes ", module.parameters().size(), " and ",
      module.scalars().size());
  // All results of each node; most have one.
  std::vector<std::vector<Array>> values(module.size());
  for (ValueId id = 0; id < module.size(); ++id) {
    const Node& node = module.node(id);
    std::vector<const Array*> operands;
    for (ValueId operand : node.operands) operands.push_back(&values[operand][0]);
    std::vector<Array>& out = values[id];
    switch (node.op) {
      case Op::Parameter: {
        const Array& given = parameters[static_cast<size_t>(node.ints[0])];
        NEURON_CHECK(
            given.type == node.type && given.bytes.size() == make_array(node.type).bytes.size(),
            kInvalid, "evaluate: parameter ", node.ints[0], " is ", to_string(given.type),
            "; the module takes ", to_string(node.type));
        out = {given};
        break;
      }
      case Op::ScalarParameter:
        out = {evaluate_scalar(node, scalars[static_cast<size_t>(node.ints[0])])};
        break;
      case Op::Constant:
        out = {evaluate_constant(node)};
        break;
      case Op::Iota:
        out = {evaluate_iota(node)};
        break;
      case Op::PhiloxWord:
        out = {evaluate_philox(node, operands)};
        break;
      case Op::AsStridedScatter:
      case Op::DynamicUpdateSlice:
      case Op::Gather:
      case Op::Scatter:
        out = {evaluate_indexed(node, operands)};
        break;
      case Op::Reduce:
      case Op::ArgReduce:
      case Op::Scan:
      case Op::ReduceWindow:
        out = {evaluate_reduction(node, operands)};
        break;
      case Op::DotGeneral:
      case Op::Convolution:
        out = {evaluate_product(node, operands)};
        break;
      case Op::Sort:
        out = evaluate_sort(node, operands);
        break;
      case Op::LibraryCall: {
        NEURON_CHECK(library != nullptr, kUnsupported, "evaluate: library kernel ", node.name,
                     " has no reference");
        std::vector<Array> inputs;
        for (const Array* operand : operands) inputs.push_back(*operand);
        out = library(node, inputs);
        NEURON_CHECK(out.size() == std::max<size_t>(node.results.size(), 1), kInternal,
                     "evaluate: library kernel ", node.name, " gave ", out.size(), " results");
        break;
      }
      case Op::TupleElement:
        out = {values[node.operands[0]][static_cast<size_t>(node.ints[0])]};
        break;
      default:
        if (is_collective(node.op)) {  // Of one device alone everything is an identity.
          NEURON_CHECK(node.op != Op::CollectivePermute && node.ints[3] == 1, kUnsupported,
                       "evaluate: ", name_of(node.op), " needs other devices");
          out = {*operands[0]};
          break;
        }
        out = {class_of(node.op) == OpClass::View ? evaluate_view(node, operands)
                                                  : evaluate_elementwise(node, operands)};
        break;
    }
  }
  std::vector<Array> results;
  for (const Result& result : module.results()) results.push_back(values[result.value][0]);
  return results;
}

}  // namespace neuron::hlo
