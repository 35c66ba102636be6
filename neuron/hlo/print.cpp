#include <map>

#include "neuron/base/error.h"
#include "neuron/hlo/builder.h"
#include "neuron/hlo/print_emitter.h"

namespace neuron::hlo {

namespace {

using namespace internal;

std::string bools_text(size_t count, bool value) {
  std::string text = "array<i1";
  for (size_t i = 0; i < count; ++i) {
    text += (i == 0 ? ": " : ", ") + std::string(value ? "true" : "false");
  }
  return text + ">";
}

/// "dense<[[l, h], ..]> : tensor<nx2xi64>".
std::string padding_text(DimsRef low, DimsRef high) {
  std::string text;
  for (size_t i = 0; i < low.size(); ++i) {
    text += (i > 0 ? ", [" : "[") + std::to_string(low[i]) + ", " + std::to_string(high[i]) + "]";
  }
  if (!low.empty()) text = "[" + text + "]";
  return "dense<" + text + "> : tensor<" + std::to_string(low.size()) + "x2xi64>";
}

std::string hex_text(std::span<const std::byte> bytes) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (std::byte b : bytes) {
    text += digits[std::to_integer<unsigned>(b) >> 4];
    text += digits[std::to_integer<unsigned>(b) & 15];
  }
  return text;
}

class Printer {
 public:
  explicit Printer(const Module& module) : module_(module) {}
  std::string print(std::string_view name);

 private:
  void find_live();
  std::string arguments_text();
  void print_node(ValueId id);
  Ref print_plain(const Node& node, std::span<const Ref> operands);
  Ref print_elementwise(const Node& node, std::span<const Ref> operands);
  Ref print_convert(const Node& node, const Ref& x);
  Ref print_reduce(const Node& node, const Ref& x);
  Ref print_reduce_window(const Node& node, const Ref& x);
  Ref print_dot(const Node& node, std::span<const Ref> operands);
  Ref print_convolution(const Node& node, std::span<const Ref> operands);
  Refs print_library_call(const Node& node, std::span<const Ref> operands);
  Refs print_composite(const std::string& name, const Node& node, std::span<const Ref> operands);
  Ref print_result(const Result& result);
  Type argument_type(const Parameter& parameter) const;
  /// Rounds a value to the dtype of a node, as a Convert node would.
  Ref round(const Ref& x, DType dtype) {
    return print_convert({Op::Convert, {dtype, x.type.dims}}, x);
  }

  const Module& module_;
  std::vector<char> live_;
  std::vector<Refs> values_;
  Emitter main_;
  /// Symbols of decompositions by what they compute.
  std::map<std::string, std::string> symbols_;
  std::string functions_;
};

void Printer::find_live() {
  live_.assign(module_.size(), 0);
  for (const Result& result : module_.results()) live_[result.value] = 1;
  for (size_t i = module_.size(); i-- > 0;) {
    if (is_collective(module_.node(static_cast<ValueId>(i)).op)) live_[i] = 1;
    if (live_[i] == 0) continue;
    for (ValueId operand : module_.node(static_cast<ValueId>(i)).operands) live_[operand] = 1;
  }
}

Type Printer::argument_type(const Parameter& parameter) const {
  if (is_contiguous(parameter.type.dims, parameter.strides)) return parameter.type;
  return {parameter.type.dtype, {storage_extent(parameter.type.dims, parameter.strides)}};
}

std::string Printer::arguments_text() {
  std::string text;
  for (size_t i = 0; i < module_.parameters().size(); ++i) {
    const Parameter& parameter = module_.parameters()[i];
    const std::string name = "%arg" + std::to_string(i);
    const Type type = argument_type(parameter);
    text += (text.empty() ? "" : ", ") + name + ": " + type_text(type);
    for (size_t k = 0; k < module_.results().size(); ++k) {
      if (module_.results()[k].alias == static_cast<int32_t>(i)) {
        text += " {tf.aliasing_output = " + std::to_string(k) + " : i32}";
        break;
      }
    }
    Ref value{name, type};
    if (type != parameter.type && live_[parameter.value] != 0) {
      Node view{Op::AsStrided, parameter.type, {}, {0}};
      view.ints.append(parameter.strides.begin(), parameter.strides.end());
      value = print_composite("neuron.as_strided", view, {{value}})[0];
    }
    values_[parameter.value] = {value};
  }
  for (size_t i = 0; i < module_.scalars().size(); ++i) {
    const Scalar& scalar = module_.scalars()[i];
    const Ref value{"%scalar" + std::to_string(i), {scalar.kind, {}}};
    text += (text.empty() ? "" : ", ") + value.name + ": " + type_text(value.type);
    values_[scalar.value] = {value};
  }
  return text;
}

Refs Printer::print_composite(const std::string& name, const Node& node,
                              std::span<const Ref> operands) {
  const std::vector<Type> types = node.results.empty() ? std::vector{node.type} : node.results;
  std::string key = name + array_text(node.ints), parameters, result_types;
  Refs arguments;
  for (size_t i = 0; i < operands.size(); ++i) {
    arguments.push_back({"%a" + std::to_string(i), operands[i].type});
    parameters += (i > 0 ? ", " : "") + arguments[i].name + ": " + type_text(operands[i].type);
  }
  for (size_t i = 0; i < types.size(); ++i) {
    result_types += (i > 0 ? ", " : "") + type_text(types[i]);
  }
  key += parameters + result_types;
  auto [entry, is_new] = symbols_.try_emplace(key);
  if (is_new) {
    entry->second = "@" + name.substr(name.find('.') + 1) + "_" + std::to_string(symbols_.size());
    Emitter body;
    body.finish("return", expand(body, node, arguments));
    functions_ += "  func.func private " + entry->second + "(" + parameters + ") -> (" +
                  result_types + ") {\n" + body.text() + "  }\n";
  }
  return main_.generic_multi("composite", operands, types,
                             "composite_attributes = {ints = " + array_text(node.ints) +
                                 "}, decomposition = " + entry->second + ", name = \"" + name +
                                 "\", version = 0 : i32");
}

void Printer::print_node(ValueId id) {
  const Node& node = module_.node(id);
  if (node.op == Op::Parameter || node.op == Op::ScalarParameter) return;
  if (node.op == Op::TupleElement) {
    values_[id] = {values_[node.operands[0]][static_cast<size_t>(node.ints[0])]};
    return;
  }
  Refs operands;
  for (ValueId operand : node.operands) operands.push_back(values_[operand][0]);
  if (node.op == Op::LibraryCall) {
    values_[id] = print_library_call(node, operands);
    return;
  }
  std::string composite = composite_name(module_, node);
  if (node.op == Op::Convert) composite.clear();  // print_convert decides.
  values_[id] = composite.empty() ? Refs{print_plain(node, operands)}
                                  : print_composite(composite, node, operands);
}

Ref Printer::print_convert(const Node& node, const Ref& x) {
  const DType from = x.type.dtype, to = node.type.dtype;
  if (from == to) return x;
  if (is_complex(from) && !is_complex(to)) {
    if (to == DType::pred) return main_.compare(Direction::NE, x, main_.zeros(x.type));
    const Ref real = main_.generic("real", {x}, {real_of(from), x.type.dims});
    return print_convert(node, real);
  }
  const std::string composite = composite_name(module_, node);
  if (!composite.empty()) return print_composite(composite, node, {{x}})[0];
  return main_.convert(x, to);
}

Ref Printer::print_elementwise(const Node& node, std::span<const Ref> operands) {
  const Ref& x = operands[0];
  const std::string_view name = stablehlo_name(node.op);
  switch (node.op) {
    case Op::Convert:
      return print_convert(node, x);
    case Op::BitcastConvert:
      // pred is a byte of 0 or 1 here, but a bit there.
      if (x.type.dtype == DType::pred || node.type.dtype == DType::pred) {
        return print_convert(node, x);
      }
      return main_.generic(name, operands, node.type);
    case Op::Abs:
      if (is_unsigned_integer(x.type.dtype)) return x;
      break;
    case Op::Sign:
      if (is_unsigned_integer(x.type.dtype)) {
        return main_.convert(main_.compare(Direction::NE, x, main_.zeros(x.type)), x.type.dtype);
      }
      break;
    case Op::Compare:
      return main_.compare(static_cast<Direction>(node.ints[0]), x, operands[1]);
    case Op::Select:
      return main_.select(x, operands[1], operands[2]);
    default:
      break;
  }
  if (x.type != node.type) return main_.generic(name, operands, node.type);
  return operands.size() == 1 ? main_.same(name, {x}) : main_.same(name, {x, operands[1]});
}

Ref Printer::print_plain(const Node& node, std::span<const Ref> operands) {
  const size_t rank = node.type.dims.size();
  const DimsRef ints = node.ints;
  const std::string_view name = stablehlo_name(node.op);
  if (is_collective(node.op)) return print_collective(main_, node, operands[0]);
  switch (node.op) {
    case Op::Constant:
      return main_.constant(node.type, node.bytes);
    case Op::Iota:
      return main_.iota(node.type, ints[0]);
    case Op::BroadcastInDim:
      return main_.broadcast(operands[0], node.type.dims, ints);
    case Op::Reshape:
      return main_.generic(name, operands, node.type);
    case Op::Transpose:
      return main_.generic(name, operands, node.type, "permutation = " + array_text(ints));
    case Op::Slice:
      return main_.slice(operands[0], ints.first(rank), ints.subspan(rank, rank),
                         ints.subspan(2 * rank));
    case Op::Pad:
      return main_.generic(name, operands, node.type,
                           "edge_padding_high = " + array_text(ints.subspan(rank, rank)) +
                               ", edge_padding_low = " + array_text(ints.first(rank)) +
                               ", interior_padding = " + array_text(ints.subspan(2 * rank)));
    case Op::Concatenate:
      return main_.concatenate(operands, ints[0]);
    case Op::Reverse:
      return main_.generic(name, operands, node.type, "dimensions = " + array_text(ints));
    case Op::DynamicUpdateSlice: {
      // StableHLO wants one dtype for all starts.
      Refs same(operands.begin(), operands.end());
      bool mixed = false;
      for (size_t i = 2; i < same.size(); ++i) {
        mixed = mixed || same[i].type.dtype != same[2].type.dtype;
      }
      for (size_t i = 2; mixed && i < same.size(); ++i)
        same[i] = main_.convert(same[i], DType::i64);
      return main_.generic(name, same, node.type);
    }
    case Op::Reduce:
      return print_reduce(node, operands[0]);
    case Op::ReduceWindow:
      return print_reduce_window(node, operands[0]);
    case Op::DotGeneral:
      return print_dot(node, operands);
    case Op::Convolution:
      return print_convolution(node, operands);
    default:
      return print_elementwise(node, operands);
  }
}

Ref Printer::print_reduce(const Node& node, const Ref& x) {
  const auto kind = static_cast<ReduceKind>(node.ints[0]);
  const Ref wide = accumulates_in_f32(kind, x.type.dtype) ? main_.convert(x, DType::f32) : x;
  const DType dtype = wide.type.dtype;
  const Ref identity = identity_constant(main_, kind, dtype);
  const std::string region = reducer_text(main_, kind, dtype);
  const Ref total =
      main_.generic("reduce", {wide, identity}, {dtype, node.type.dims},
                    "dimensions = " + array_text(DimsRef(node.ints).subspan(1)), region);
  return round(total, node.type.dtype);
}

Ref Printer::print_reduce_window(const Node& node, const Ref& x) {
  const auto kind = static_cast<ReduceKind>(node.ints[0]);
  const size_t rank = x.type.dims.size();
  const DimsRef ints = DimsRef(node.ints).subspan(2);
  auto part = [&](size_t k) { return ints.subspan(k * rank, rank); };
  const Ref wide = accumulates_in_f32(kind, x.type.dtype) ? main_.convert(x, DType::f32) : x;
  const DType dtype = wide.type.dtype;
  const Ref identity = identity_constant(main_, kind, dtype);
  const std::string region = reducer_text(main_, kind, dtype);
  const Ref total = main_.generic("reduce_window", {wide, identity}, {dtype, node.type.dims},
                                  "padding = " + padding_text(part(3), part(4)) +
                                      ", window_dilations = " + array_text(part(2)) +
                                      ", window_dimensions = " + array_text(part(0)) +
                                      ", window_strides = " + array_text(part(1)),
                                  region);
  return round(total, node.type.dtype);
}

Ref Printer::print_dot(const Node& node, std::span<const Ref> operands) {
  const DotDims dims = DotDims::decode(node.ints);
  // f8 products are summed in f32 and rounded once; wider floats accumulate in f32 anyway.
  const DType dtype = is_float8(node.type.dtype) ? DType::f32 : node.type.dtype;
  const Ref product = main_.generic(
      "dot_general", operands, {dtype, node.type.dims},
      "dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = " +
          list_text(dims.lhs_batch) + ", rhs_batching_dimensions = " + list_text(dims.rhs_batch) +
          ", lhs_contracting_dimensions = " + list_text(dims.lhs_contract) +
          ", rhs_contracting_dimensions = " + list_text(dims.rhs_contract) + ">");
  return round(product, node.type.dtype);
}

Ref Printer::print_convolution(const Node& node, std::span<const Ref> operands) {
  const ConvolutionDims dims = ConvolutionDims::decode(node.ints);
  const size_t n = dims.stride.size();
  std::string spatial;
  for (size_t i = 0; i < n; ++i) spatial += ", " + std::to_string(i);
  const DType dtype = is_float8(node.type.dtype) ? DType::f32 : node.type.dtype;
  const Ref product = main_.generic(
      "convolution", operands, {dtype, node.type.dims},
      "batch_group_count = " + std::to_string(dims.batch_groups) +
          " : i64, dimension_numbers = #stablehlo.conv<[b, f" + spatial + "]x[o, i" + spatial +
          "]->[b, f" + spatial + "]>, feature_group_count = " + std::to_string(dims.groups) +
          " : i64, lhs_dilation = " + array_text(dims.lhs_dilation) +
          ", padding = " + padding_text(dims.pad_low, dims.pad_high) +
          ", rhs_dilation = " + array_text(dims.rhs_dilation) + ", window_reversal = " +
          bools_text(n, dims.reverse_kernel) + ", window_strides = " + array_text(dims.stride));
  return round(product, node.type.dtype);
}

Refs Printer::print_library_call(const Node& node, std::span<const Ref> operands) {
  const std::vector<Type> types = node.results.empty() ? std::vector{node.type} : node.results;
  return main_.generic_multi(
      "custom_call", operands, types,
      "api_version = 2 : i32, backend_config = \"ints=" + list_text(node.ints) +
          ";arguments=" + hex_text(node.bytes) + "\", call_target_name = \"" + node.name +
          "\", has_side_effect = false");
}

// A contiguous result is returned in its shape, any other as the flat buffer that is written.
// What overwrites a parameter returns that parameter's whole buffer.
Ref Printer::print_result(const Result& result) {
  const Ref value = values_[result.value][0];
  const Dims& dims = value.type.dims;
  const bool contiguous = is_contiguous(dims, result.strides);
  const int64_t extent = storage_extent(dims, result.strides);
  Ref buffer;
  Dims returned;
  if (result.alias >= 0) {
    const Parameter& parameter = module_.parameters()[static_cast<size_t>(result.alias)];
    const Type type = argument_type(parameter);
    if (contiguous && type == value.type) return value;
    buffer = {"%arg" + std::to_string(result.alias), type};
    returned = type.dims;
    NEURON_CHECK(extent <= count_elements(type.dims), kUnsupported, "StableHLO text: a result of ",
                 extent, " elements overwrites parameter ", result.alias, ", which has ",
                 count_elements(type.dims));
    if (contiguous && extent == count_elements(type.dims)) return main_.reshape(value, type.dims);
  } else {
    if (contiguous) return value;
    buffer = main_.zeros({value.type.dtype, {extent}});
    returned = {extent};
  }
  Node store{Op::AsStridedScatter, {value.type.dtype, returned}, {}, {0}};
  store.ints.append(result.strides.begin(), result.strides.end());
  return print_composite("neuron.as_strided_scatter", store, {{buffer, value}})[0];
}

std::string Printer::print(std::string_view name) {
  find_live();
  values_.resize(module_.size());
  const std::string arguments = arguments_text();
  for (ValueId id = 0; id < module_.size(); ++id) {
    if (live_[id] != 0) print_node(id);
  }
  Refs results;
  std::string result_types;
  for (const Result& result : module_.results()) {
    results.push_back(print_result(result));
    result_types += (results.size() > 1 ? ", " : "") + type_text(results.back().type);
  }
  main_.finish("return", results);
  return "module @" + std::string(name) + " {\n  func.func public @main(" + arguments + ") -> (" +
         result_types + ") {\n" + main_.text() + "  }\n" + functions_ + "}\n";
}

}  // namespace

std::string to_stablehlo(const Module& module, std::string_view name) {
  return Printer(module).print(name);
}

}  // namespace neuron::hlo
