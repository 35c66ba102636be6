#include <unordered_map>

#include "neuron/base/error.h"
#include "neuron/hlo/builder.h"

namespace neuron::hlo {

namespace {

/// Verifies by rebuilding every node: the Builder's own inference is the one definition of what is
/// well formed, so the two cannot drift apart.
class Verifier {
 public:
  explicit Verifier(const Module& module) : module_(module) {}

  void run() {
    values_.reserve(module_.size());
    for (ValueId id = 0; id < module_.size(); ++id) check_node(id);
    check_interface();
  }

 private:
  template <typename... Parts>
  [[noreturn]] void fail(ValueId id, const Parts&... parts) {
    const Node& node = module_.node(id);
    raise(ErrorKind::kInternal, "broken module: node ", id, " (", name_of(node.op), " ",
          to_string(node.type), "): ", parts...);
  }

  void check_node(ValueId id) {
    const Node& node = module_.node(id);
    const int wanted = operand_count(node.op);
    if (wanted >= 0 && node.operands.size() != static_cast<size_t>(wanted)) {
      fail(id, "has ", node.operands.size(), " operands, not ", wanted);
    }
    for (ValueId operand : node.operands) {
      if (operand >= id) fail(id, "uses value ", operand, ", which comes later");
    }
    if (class_of(node.op) == OpClass::Elementwise) {
      for (ValueId operand : node.operands) {
        if (module_.node(operand).type.dims != node.type.dims) {
          fail(id, "operand ", operand, " is ", to_string(module_.node(operand).type));
        }
      }
    }
    Value value;
    try {
      value = rebuild(id);
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::kInternal) throw;
      fail(id, e.what());
    }
    const bool widened_product =
        node.op == Op::DotGeneral && node.type.dtype == DType::f32 && is_floating(value.dtype());
    if (value.dims() != node.type.dims || (value.dtype() != node.type.dtype && !widened_product)) {
      fail(id, "its type should be ", to_string(value.type()));
    }
    // Later nodes see the type as it is, not as inferred.
    if (value.dtype() != node.type.dtype) value = builder_.convert(value, node.type.dtype);
    values_.push_back(value);
  }

  Value operand(const Node& node, size_t k) const { return values_[node.operands[k]]; }
  Values operands_from(const Node& node, size_t first) const {
    Values values;
    for (size_t k = first; k < node.operands.size(); ++k) values.push_back(operand(node, k));
    return values;
  }

  DimsRef ints(ValueId id, size_t first, size_t count) {
    const Node& node = module_.node(id);
    if (node.ints.size() < first + count) {
      fail(id, "has ", node.ints.size(), " attributes, needs ", first + count);
    }
    return DimsRef(node.ints).subspan(first, count);
  }
  void expect_ints(ValueId id, size_t count) {
    const Node& node = module_.node(id);
    if (node.ints.size() != count) {
      fail(id, "has ", node.ints.size(), " attributes, not ", count);
    }
  }
  /// An attribute that is an enumerator below `count`.
  int64_t choice(ValueId id, size_t at, int64_t count) {
    const int64_t value = ints(id, at, 1)[0];
    if (value < 0 || value >= count) fail(id, "attribute ", at, " is ", value);
    return value;
  }

  Value rebuild(ValueId id);
  Value rebuild_structured(ValueId id);
  Value rebuild_collective(ValueId id);

  void check_interface() {
    for (size_t i = 0; i < module_.parameters().size(); ++i) {
      const Parameter& parameter = module_.parameters()[i];
      const bool good = parameter.value < module_.size() &&
                        module_.node(parameter.value).op == Op::Parameter &&
                        module_.node(parameter.value).type == parameter.type &&
                        module_.node(parameter.value).ints == Ints{static_cast<int64_t>(i)} &&
                        parameter.strides.size() == parameter.type.dims.size();
      if (!good) raise(ErrorKind::kInternal, "broken module: parameter ", i);
    }
    for (size_t i = 0; i < module_.scalars().size(); ++i) {
      const Scalar& scalar = module_.scalars()[i];
      const bool good = scalar.value < module_.size() &&
                        module_.node(scalar.value).op == Op::ScalarParameter &&
                        module_.node(scalar.value).type == Type{scalar.kind, {}} &&
                        module_.node(scalar.value).ints == Ints{static_cast<int64_t>(i)};
      if (!good) raise(ErrorKind::kInternal, "broken module: scalar ", i);
    }
    for (size_t i = 0; i < module_.results().size(); ++i) {
      const Result& result = module_.results()[i];
      bool good = result.value < module_.size() && result.alias >= -1 &&
                  result.alias < static_cast<int32_t>(module_.parameters().size()) &&
                  result.strides.size() == module_.node(result.value).type.dims.size();
      if (good && result.alias >= 0) {
        good = module_.parameters()[static_cast<size_t>(result.alias)].type.dtype ==
               module_.node(result.value).type.dtype;
      }
      if (!good) raise(ErrorKind::kInternal, "broken module: result ", i);
    }
  }

  const Module& module_;
  Builder builder_;
  std::vector<Value> values_;
  std::unordered_map<ValueId, Values> tuples_;
};

Value Verifier::rebuild(ValueId id) {
  const Node& node = module_.node(id);
  const Type& type = node.type;
  const size_t rank = type.dims.size();
  switch (node.op) {
    case Op::Parameter:
      choice(id, 0, static_cast<int64_t>(module_.parameters().size()));
      return builder_.constant(type.dtype, 0, type.dims);
    case Op::ScalarParameter:
      choice(id, 0, static_cast<int64_t>(module_.scalars().size()));
      return builder_.constant(type.dtype, 0, type.dims);
    case Op::Constant: {
      const size_t splat = size_of(type.dtype);
      const auto dense = splat * static_cast<size_t>(count_elements(type.dims));
      if (node.bytes.size() != splat && (dense == 0 || node.bytes.size() != dense)) {
        fail(id, "has ", node.bytes.size(), " bytes");
      }
      return builder_.constant(type.dtype, 0, type.dims);
    }
    case Op::Iota:
      expect_ints(id, 1);
      return builder_.iota(type.dtype, type.dims, node.ints[0]);
    case Op::Convert:
      return builder_.convert(operand(node, 0), type.dtype);
    case Op::BitcastConvert:
      return builder_.bitcast(operand(node, 0), type.dtype);
    case Op::Compare:
      expect_ints(id, 1);
      return builder_.compare(static_cast<Direction>(choice(id, 0, 6)), operand(node, 0),
                              operand(node, 1));
    case Op::Select:
      return builder_.select(operand(node, 0), operand(node, 1), operand(node, 2));
    case Op::Fma:
      return builder_.fma(operand(node, 0), operand(node, 1), operand(node, 2));
    case Op::PhiloxWord:
      expect_ints(id, 1);
      return builder_.philox_word(operand(node, 0), operand(node, 1), node.ints[0], type.dims);
    case Op::BroadcastInDim:
      expect_ints(id, operand(node, 0).dims().size());
      return builder_.broadcast_in_dim(operand(node, 0), type.dims, node.ints);
    case Op::Reshape:
      return builder_.reshape(operand(node, 0), type.dims);
    case Op::Transpose:
      return builder_.transpose(operand(node, 0), node.ints);
    case Op::Slice:
      expect_ints(id, 3 * rank);
      return builder_.slice(operand(node, 0), ints(id, 0, rank), ints(id, rank, rank),
                            ints(id, 2 * rank, rank));
    case Op::Pad:
      expect_ints(id, 3 * rank);
      return builder_.pad(operand(node, 0), operand(node, 1), ints(id, 0, rank),
                          ints(id, rank, rank), ints(id, 2 * rank, rank));
    case Op::Concatenate:
      expect_ints(id, 1);
      return builder_.concatenate(operands_from(node, 0), node.ints[0]);
    case Op::Reverse:
      return builder_.reverse(operand(node, 0), node.ints);
    case Op::AsStrided:
      expect_ints(id, 1 + rank);
      return builder_.as_strided(operand(node, 0), type.dims, ints(id, 1, rank), node.ints[0]);
    default:
      break;
  }
  if (class_of(node.op) == OpClass::Elementwise) {
    return operand_count(node.op) == 1
               ? builder_.unary(node.op, operand(node, 0))
               : builder_.binary(node.op, operand(node, 0), operand(node, 1));
  }
  return rebuild_structured(id);
}

Value Verifier::rebuild_collective(ValueId id) {
  const Node& node = module_.node(id);
  const CollectiveInts all = CollectiveInts::decode(node.ints);
  const Value x = operand(node, 0);
  switch (node.op) {
    case Op::AllReduce:
      return builder_.all_reduce(static_cast<ReduceKind>(choice(id, 0, 6)), x, all.groups);
    case Op::AllGather:
      return builder_.all_gather(x, all.first, all.groups);
    case Op::ReduceScatter:
      return builder_.reduce_scatter(static_cast<ReduceKind>(choice(id, 0, 6)), x, all.second,
                                     all.groups);
    case Op::AllToAll:
      return builder_.all_to_all(x, all.first, all.second, all.groups);
    case Op::CollectivePermute:
      return builder_.collective_permute(x, all.groups);
    default:
      return builder_.collective_broadcast(x, all.groups);
  }
}

Value Verifier::rebuild_structured(ValueId id) {
  const Node& node = module_.node(id);
  if (is_collective(node.op)) return rebuild_collective(id);
  switch (node.op) {
    case Op::AsStridedScatter: {
      const size_t rank = operand(node, 1).dims().size();
      expect_ints(id, 1 + rank);
      return builder_.as_strided_scatter(operand(node, 0), operand(node, 1), ints(id, 1, rank),
                                         node.ints[0]);
    }
    case Op::DynamicUpdateSlice:
      if (node.operands.size() < 2) fail(id, "has ", node.operands.size(), " operands");
      return builder_.dynamic_update_slice(operand(node, 0), operand(node, 1),
                                           operands_from(node, 2));
    case Op::Gather: {
      if (node.operands.size() < 2) fail(id, "has ", node.operands.size(), " operands");
      const size_t count = node.operands.size() - 1;
      expect_ints(id, 2 + count);
      return builder_.gather(operand(node, 0), operands_from(node, 1), ints(id, 2, count),
                             node.ints[0], static_cast<OutOfBounds>(choice(id, 1, 2)));
    }
    case Op::Scatter: {
      if (node.operands.size() < 3) fail(id, "has ", node.operands.size(), " operands");
      const size_t count = node.operands.size() - 2;
      expect_ints(id, 2 + count);
      return builder_.scatter(static_cast<ScatterKind>(choice(id, 1, 5)), operand(node, 0),
                              operand(node, 1), operands_from(node, 2), ints(id, 2, count),
                              node.ints[0]);
    }
    case Op::Reduce: {
      const auto kind = static_cast<ReduceKind>(choice(id, 0, 6));
      return builder_.reduce(kind, operand(node, 0), ints(id, 1, node.ints.size() - 1));
    }
    case Op::ArgReduce:
      expect_ints(id, 2);
      return builder_.arg_reduce(choice(id, 1, 2) != 0, operand(node, 0), node.ints[0]);
    case Op::Scan:
      expect_ints(id, 2);
      return builder_.scan(static_cast<ScanKind>(choice(id, 0, 4)), operand(node, 0), node.ints[1]);
    case Op::ReduceWindow: {
      const size_t rank = operand(node, 0).dims().size();
      expect_ints(id, 2 + 5 * rank);
      WindowDims window;
      size_t at = 2;
      for (Dims* part :
           {&window.size, &window.stride, &window.dilation, &window.pad_low, &window.pad_high}) {
        *part = Dims(ints(id, at, rank));
        at += rank;
      }
      return builder_.reduce_window(static_cast<ReduceKind>(choice(id, 0, 6)), operand(node, 0),
                                    window);
    }
    case Op::DotGeneral:
      return builder_.dot_general(operand(node, 0), operand(node, 1), DotDims::decode(node.ints));
    case Op::Convolution:
      return builder_.convolution(operand(node, 0), operand(node, 1),
                                  ConvolutionDims::decode(node.ints));
    case Op::Sort: {
      expect_ints(id, 2);
      if (node.results.size() != 2) fail(id, "has ", node.results.size(), " results");
      const Values values = builder_.sort(operand(node, 0), node.ints[0],
                                          (choice(id, 1, 4) & 1) != 0, (choice(id, 1, 4) & 2) != 0);
      for (size_t k = 0; k < 2; ++k) {
        if (values[k].type() != node.results[k]) fail(id, "result ", k, " has a wrong type");
      }
      return (tuples_[id] = values)[0];
    }
    case Op::LibraryCall: {
      const std::vector<Type> types =
          node.results.empty() ? std::vector<Type>{node.type} : node.results;
      const Values values =
          builder_.library_call(node.name, operands_from(node, 0), types, node.bytes, node.ints);
      return (tuples_[id] = values)[0];
    }
    case Op::TupleElement: {
      const auto found = tuples_.find(node.operands[0]);
      if (found == tuples_.end()) fail(id, "operand ", node.operands[0], " has one result only");
      expect_ints(id, 1);
      return found
          ->second[static_cast<size_t>(choice(id, 0, static_cast<int64_t>(found->second.size())))];
    }
    default:
      fail(id, "unknown op");
  }
}

}  // namespace

void verify(const Module& module) { Verifier(module).run(); }

}  // namespace neuron::hlo
