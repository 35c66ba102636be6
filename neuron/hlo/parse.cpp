// Reads the text that print.cpp writes: @main only, since decompositions say nothing that the
// composites' names and attributes do not.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>

#include "neuron/base/error.h"
#include "neuron/hlo/builder.h"
#include "neuron/hlo/element.h"

namespace neuron::hlo {

namespace {

class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    const auto line =
        1 + std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(at_), '\n');
    raise(ErrorKind::kInvalid, "StableHLO text, line ", line, ": ", parts...);
  }

  bool at_end() {
    skip_space();
    return at_ >= text_.size();
  }
  char peek() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(std::string_view token) {
    skip_space();
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }
  void expect(std::string_view token) {
    if (!accept(token)) {
      fail("expected '", token, "' before '", text_.substr(at_, 20), "'");
    }
  }
  /// Moves past the next occurrence of `token`.
  void skip_past(std::string_view token) {
    const size_t found = text_.find(token, at_);
    if (found == std::string_view::npos) fail("'", token, "' is missing");
    at_ = found + token.size();
  }
  /// Letters, digits and any of "_.$%@#".
  std::string_view word() {
    skip_space();
    const size_t start = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 ||
            std::string_view("_.$%@#").find(text_[at_]) != std::string_view::npos)) {
      ++at_;
    }
    if (at_ == start) fail("expected a name before '", text_.substr(at_, 20), "'");
    return text_.substr(start, at_ - start);
  }
  int64_t integer() {
    skip_space();
    int64_t value = 0;
    const auto [end, error] =
        std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc()) fail("expected a number before '", text_.substr(at_, 20), "'");
    at_ = static_cast<size_t>(end - text_.data());
    return value;
  }
  /// Everything up to one of `stops` outside of brackets and strings; the stop stays.
  std::string_view until(std::string_view stops) {
    skip_space();
    const size_t start = at_;
    int depth = 0;
    for (bool quoted = false; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') quoted = !quoted;
      if (quoted) continue;
      if (depth == 0 && stops.find(c) != std::string_view::npos) {
        return text_.substr(start, at_ - start);
      }
      if (c == '<' || c == '[' || c == '{' || c == '(') ++depth;
      const bool arrow = c == '>' && at_ > 0 && text_[at_ - 1] == '-';
      if ((c == '>' && !arrow) || c == ']' || c == '}' || c == ')') --depth;
    }
    fail("the text ends inside brackets");
  }

 private:
  void skip_space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }
  std::string_view text_;
  size_t at_ = 0;
};

/// The integers in "array<i64: 1, 2>", "[1, 2]", "dense<[[1, 2]]> : ..", "3 : i64", "true".
Dims integers(std::string_view text) {
  if (text.starts_with("array<i64") || text.starts_with("array<i1")) {
    const size_t colon = text.find(':');
    if (colon == std::string_view::npos) return {};
    text.remove_prefix(colon + 1);
  } else if (const size_t colon = text.find(" : "); colon != std::string_view::npos) {
    text = text.substr(0, colon);
  }
  Dims values;
  for (size_t i = 0; i < text.size();) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data() + i, text.data() + text.size(), value);
    if (error == std::errc()) {
      values.push_back(value);
      i = static_cast<size_t>(end - text.data());
    } else {
      ++i;
    }
  }
  return values;
}

/// The list after `key = ` inside an attribute, e.g. of #stablehlo.dot<..>.
Dims list_of(std::string_view attribute, std::string_view key) {
  const size_t at = attribute.find(std::string(key) + " = [");
  if (at == std::string_view::npos) return {};
  const size_t open = attribute.find('[', at), close = attribute.find(']', open);
  return integers(attribute.substr(open, close - open + 1));
}

std::string_view unquoted(std::string_view text) {
  return text.size() >= 2 && text.front() == '"' ? text.substr(1, text.size() - 2) : text;
}

std::optional<Op> find_op(std::string_view name) {
  static const auto* table = [] {
    auto* ops = new std::map<std::string_view, Op>;
    for (int i = 0; i <= static_cast<int>(Op::TupleElement); ++i) {
      const Op op = static_cast<Op>(i);
      ops->emplace(stablehlo_name(op), op);
    }
    return ops;
  }();
  const auto found = table->find(name);
  if (found == table->end()) return std::nullopt;
  return found->second;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : in_(text) {}
  Module parse();

 private:
  using Attributes = std::map<std::string_view, std::string_view>;

  Type parse_type();
  Type parse_type(std::string_view text);
  std::vector<Type> parse_types();
  void parse_arguments();
  void parse_statement();
  void parse_constant(std::string_view name);
  void parse_generic(std::string_view name, size_t result_count);
  Attributes parse_attributes();
  std::string_view attribute(const Attributes& attributes, std::string_view name);
  void fill_attributes(Node& node, const Attributes& attributes, std::string_view region);
  Ints collective_ints(Op op, const Attributes& attributes, std::string_view region);
  ReduceKind reduce_kind(std::string_view region);
  ValueId operand(std::string_view name);
  void define(std::string_view name, ValueId id);
  ValueId push(Node node);
  void append_element(DType dtype, std::string_view token, std::vector<std::byte>& bytes);
  std::vector<std::byte> parse_dense(const Type& type, std::string_view body);

  Cursor in_;
  Module module_;
  std::map<std::string, ValueId, std::less<>> names_;
  /// Result k overwrites parameter aliases_[k].
  std::map<int64_t, int32_t> aliases_;
};

ValueId Parser::push(Node node) {
  module_.mutable_nodes().push_back(std::move(node));
  return static_cast<ValueId>(module_.size() - 1);
}

ValueId Parser::operand(std::string_view name) {
  const auto found = names_.find(name);
  if (found == names_.end()) in_.fail("value ", name, " is not defined");
  return found->second;
}

void Parser::define(std::string_view name, ValueId id) { names_[std::string(name)] = id; }

Type Parser::parse_type(std::string_view text) {
  if (!text.starts_with("tensor<") || !text.ends_with(">")) in_.fail("'", text, "' is no type");
  text = text.substr(7, text.size() - 8);
  Type type;
  while (!text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) != 0) {
    int64_t size = 0;
    const auto end = std::from_chars(text.data(), text.data() + text.size(), size).ptr;
    if (end == text.data() + text.size() || *end != 'x') in_.fail("'", text, "' is no shape");
    type.dims.push_back(size);
    text.remove_prefix(static_cast<size_t>(end - text.data()) + 1);
  }
  for (int i = 0; i < kDTypeCount; ++i) {
    if (stablehlo_name(static_cast<DType>(i)) == text) {
      type.dtype = static_cast<DType>(i);
      return type;
    }
  }
  in_.fail("'", text, "' is no element type");
}

Type Parser::parse_type() {
  in_.expect("tensor<");
  const std::string_view inside = in_.until(">");
  in_.expect(">");
  return parse_type("tensor<" + std::string(inside) + ">");
}

/// "T" or "(T, T)".
std::vector<Type> Parser::parse_types() {
  std::vector<Type> types;
  if (!in_.accept("(")) return {parse_type()};
  while (!in_.accept(")")) {
    types.push_back(parse_type());
    in_.accept(",");
  }
  return types;
}

void Parser::parse_arguments() {
  in_.expect("(");
  while (!in_.accept(")")) {
    const std::string_view name = in_.word();
    in_.expect(":");
    const Type type = parse_type();
    if (name.starts_with("%scalar")) {
      Node node{Op::ScalarParameter, type, {}, {static_cast<int64_t>(module_.scalars().size())}};
      const ValueId id = push(std::move(node));
      module_.mutable_scalars().push_back({type.dtype, id});
      define(name, id);
    } else {
      const auto index = static_cast<int64_t>(module_.parameters().size());
      const ValueId id = push({Op::Parameter, type, {}, {index}});
      module_.mutable_parameters().push_back({type, contiguous_strides(type.dims), id});
      define(name, id);
      if (in_.accept("{")) {
        in_.expect("tf.aliasing_output");
        in_.expect("=");
        aliases_[in_.integer()] = static_cast<int32_t>(index);
        in_.skip_past("}");
      }
    }
    in_.accept(",");
  }
}

Parser::Attributes Parser::parse_attributes() {
  Attributes attributes;
  if (!in_.accept("<{")) return attributes;
  while (!in_.accept("}>")) {
    const std::string_view key = in_.word();
    // Without a value: a flag.
    attributes[key] = in_.accept("=") ? in_.until(",}") : std::string_view("true");
    in_.accept(",");
  }
  return attributes;
}

std::string_view Parser::attribute(const Attributes& attributes, std::string_view name) {
  const auto found = attributes.find(name);
  if (found == attributes.end()) in_.fail("attribute ", name, " is missing");
  return found->second;
}

ReduceKind Parser::reduce_kind(std::string_view region) {
  constexpr std::pair<std::string_view, ReduceKind> kinds[] = {
      {"stablehlo.add ", ReduceKind::Sum},     {"stablehlo.multiply ", ReduceKind::Product},
      {"stablehlo.maximum ", ReduceKind::Max}, {"stablehlo.minimum ", ReduceKind::Min},
      {"stablehlo.and ", ReduceKind::And},     {"stablehlo.or ", ReduceKind::Or}};
  for (const auto& [text, kind] : kinds) {
    if (region.find(text) != std::string_view::npos) return kind;
  }
  in_.fail("unknown reduction");
}

void Parser::append_element(DType dtype, std::string_view token, std::vector<std::byte>& bytes) {
  const size_t size = size_of(dtype);
  std::byte element[16] = {};
  if (token == "true" || token == "false") {
    element[0] = std::byte{token == "true"};
  } else if (token.starts_with("0x")) {
    uint64_t bits = 0;
    std::from_chars(token.data() + 2, token.data() + token.size(), bits, 16);
    std::memcpy(element, &bits, std::min<size_t>(size, 8));
  } else {
    const char* end = token.data() + token.size();
    std::from_chars_result result{};
    with_compute_type(dtype, [&](auto tag) {
      using T = decltype(tag);
      if constexpr (std::is_floating_point_v<T>) {
        T value = 0;
        result = std::from_chars(token.data(), end, value);
        store_element(dtype, value, element);
      } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
        T value = 0;
        result = std::from_chars(token.data(), end, value);
        store_element(dtype, value, element);
      }
    });
    if (result.ptr != end) in_.fail("'", token, "' is no ", name_of(dtype));
  }
  bytes.insert(bytes.end(), element, element + size);
}

std::vector<std::byte> Parser::parse_dense(const Type& type, std::string_view body) {
  std::vector<std::byte> bytes;
  if (body.empty()) {
    bytes.resize(size_of(type.dtype));
    return bytes;
  }
  if (body.starts_with("\"0x")) {
    body = unquoted(body).substr(2);
    for (size_t i = 0; i + 1 < body.size(); i += 2) {
      unsigned value = 0;
      std::from_chars(body.data() + i, body.data() + i + 2, value, 16);
      bytes.push_back(static_cast<std::byte>(value));
    }
    return bytes;
  }
  // The nesting of lists says nothing that the type does not; a complex pair is two parts.
  for (size_t i = 0; i < body.size();) {
    const size_t end = std::min(body.find_first_of(" ,[]()", i), body.size());
    if (end > i) append_element(real_of(type.dtype), body.substr(i, end - i), bytes);
    i = end + 1;
  }
  return bytes;
}

void Parser::parse_constant(std::string_view name) {
  in_.expect("dense<");
  const std::string_view body = in_.until(">");
  in_.expect(">");
  in_.expect(":");
  Node node{Op::Constant, parse_type()};
  node.bytes = parse_dense(node.type, body);
  define(name, push(std::move(node)));
}

Ints Parser::collective_ints(Op op, const Attributes& attributes, std::string_view region) {
  CollectiveInts all;
  const auto number = [&](std::string_view name) {
    return integers(attribute(attributes, name))[0];
  };
  if (op == Op::AllReduce || op == Op::ReduceScatter) {
    all.first = static_cast<int64_t>(reduce_kind(region));
  }
  if (op == Op::AllGather) all.first = number("all_gather_dim");
  if (op == Op::ReduceScatter) all.second = number("scatter_dimension");
  if (op == Op::AllToAll) {
    all.first = number("split_dimension");
    all.second = number("concat_dimension");
  }
  const std::string_view groups =
      attribute(attributes, op == Op::CollectivePermute ? "source_target_pairs" : "replica_groups");
  all.groups.ids = integers(groups);
  const Dims shape = integers(groups.substr(std::min(groups.find("tensor<"), groups.size())));
  if (shape.size() < 2) in_.fail("'", groups, "' has no shape");
  all.groups.columns = shape[1];
  const Dims handle = integers(attribute(attributes, "channel_handle"));
  if (handle.empty()) in_.fail("channel_handle has no number");
  all.groups.channel = handle[0];
  return all.encode();
}

/// Ints of plain StableHLO ops, from their attributes.
void Parser::fill_attributes(Node& node, const Attributes& attributes, std::string_view region) {
  auto append = [&](std::string_view name) {
    const Dims values = integers(attribute(attributes, name));
    node.ints.append(values.begin(), values.end());
  };
  if (is_collective(node.op)) {
    node.ints = collective_ints(node.op, attributes, region);
    return;
  }
  switch (node.op) {
    case Op::Iota:
      append("iota_dimension");
      return;
    case Op::BroadcastInDim:
      append("broadcast_dimensions");
      return;
    case Op::Transpose:
      append("permutation");
      return;
    case Op::Concatenate:
      append("dimension");
      return;
    case Op::Reverse:
      append("dimensions");
      return;
    case Op::Slice:
      for (const char* part : {"start_indices", "limit_indices", "strides"}) append(part);
      return;
    case Op::Pad:
      for (const char* part : {"edge_padding_low", "edge_padding_high", "interior_padding"}) {
        append(part);
      }
      return;
    case Op::Compare: {
      constexpr std::string_view directions[] = {"EQ", "NE", "LT", "LE", "GT", "GE"};
      const std::string_view text = attribute(attributes, "comparison_direction");
      for (int64_t i = 0; i < 6; ++i) {
        if (text.find(std::string(" ") + std::string(directions[i]) + ">") !=
            std::string_view::npos) {
          node.ints.push_back(i);
        }
      }
      return;
    }
    case Op::Reduce:
      node.ints.push_back(static_cast<int64_t>(reduce_kind(region)));
      append("dimensions");
      node.operands.resize(1);  // The start value is the kind's neutral element.
      return;
    case Op::ReduceWindow: {
      node.ints.push_back(static_cast<int64_t>(reduce_kind(region)));
      node.ints.push_back(static_cast<int64_t>(node.type.dims.size()));
      append("window_dimensions");
      append("window_strides");
      append("window_dilations");
      const Dims padding = integers(attribute(attributes, "padding"));
      for (size_t side = 0; side < 2; ++side) {
        for (size_t i = side; i < padding.size(); i += 2) node.ints.push_back(padding[i]);
      }
      node.operands.resize(1);
      return;
    }
    case Op::DotGeneral: {
      const std::string_view numbers = attribute(attributes, "dot_dimension_numbers");
      DotDims dims;
      dims.lhs_batch = list_of(numbers, "lhs_batching_dimensions");
      dims.rhs_batch = list_of(numbers, "rhs_batching_dimensions");
      dims.lhs_contract = list_of(numbers, "lhs_contracting_dimensions");
      dims.rhs_contract = list_of(numbers, "rhs_contracting_dimensions");
      node.ints = dims.encode();
      return;
    }
    case Op::Convolution: {
      ConvolutionDims dims;
      dims.stride = integers(attribute(attributes, "window_strides"));
      dims.lhs_dilation = integers(attribute(attributes, "lhs_dilation"));
      dims.rhs_dilation = integers(attribute(attributes, "rhs_dilation"));
      const Dims padding = integers(attribute(attributes, "padding"));
      for (size_t i = 0; i + 1 < padding.size(); i += 2) {
        dims.pad_low.push_back(padding[i]);
        dims.pad_high.push_back(padding[i + 1]);
      }
      dims.groups = integers(attribute(attributes, "feature_group_count"))[0];
      dims.batch_groups = integers(attribute(attributes, "batch_group_count"))[0];
      dims.reverse_kernel =
          attribute(attributes, "window_reversal").find("true") != std::string_view::npos;
      node.ints = dims.encode();
      return;
    }
    case Op::LibraryCall: {
      node.name = unquoted(attribute(attributes, "call_target_name"));
      const std::string_view config = unquoted(attribute(attributes, "backend_config"));
      const size_t split = config.find(";arguments=");
      if (split == std::string_view::npos) in_.fail("custom_call of a foreign kernel");
      const Dims ints = integers(config.substr(0, split));
      node.ints.append(ints.begin(), ints.end());
      node.bytes = parse_dense(node.type, "\"0x" + std::string(config.substr(split + 11)) + "\"");
      return;
    }
    default:
      return;
  }
}

void Parser::parse_generic(std::string_view name, size_t result_count) {
  in_.expect("\"");
  const std::string_view op_name = in_.word();
  in_.expect("\"");
  in_.expect("(");
  Node node;
  while (!in_.accept(")")) {
    node.operands.push_back(operand(in_.word()));
    in_.accept(",");
  }
  const Attributes attributes = parse_attributes();
  std::string_view region;
  if (in_.accept("(")) {
    region = in_.until(")");
    in_.expect(")");
  }
  in_.expect(":");
  in_.expect("(");
  in_.until(")");
  in_.expect(")");
  in_.expect("->");
  const std::vector<Type> types = parse_types();
  if (types.size() != result_count) in_.fail(result_count, " names for ", types.size(), " results");
  node.type = types[0];
  if (types.size() > 1) node.results = types;

  std::string_view op = op_name;
  if (!op.starts_with("stablehlo.")) in_.fail("unknown op ", op_name);
  op.remove_prefix(10);
  std::optional<Op> found;
  if (op == "composite") {
    const std::string_view composite = unquoted(attribute(attributes, "name"));
    found = find_op(composite);
    if (!found && composite.starts_with("neuron.")) found = find_op(composite.substr(7));
    if (!found) in_.fail("unknown composite ", composite);
    node.op = *found;
    const std::string_view ints = attribute(attributes, "composite_attributes");
    const size_t array = ints.find("array<");
    if (array == std::string_view::npos) in_.fail("composite ", composite, " has no ints");
    const Dims values = integers(ints.substr(array));
    node.ints.append(values.begin(), values.end());
  } else {
    found = find_op(op);
    if (!found) in_.fail("unknown op ", op_name);
    node.op = *found;
    fill_attributes(node, attributes, region);
  }
  const ValueId id = push(std::move(node));
  if (types.size() == 1) return define(name, id);
  define(std::string(name) + "#0", id);
  for (size_t k = 1; k < types.size(); ++k) {
    define(std::string(name) + "#" + std::to_string(k),
           push({Op::TupleElement, types[k], {id}, {static_cast<int64_t>(k)}}));
  }
}

void Parser::parse_statement() {
  const std::string_view name = in_.word();
  size_t results = 1;
  if (in_.accept(":")) results = static_cast<size_t>(in_.integer());
  in_.expect("=");
  if (in_.peek() == '"') return parse_generic(name, results);
  std::string_view op = in_.word();
  if (op == "stablehlo.constant") return parse_constant(name);
  const std::optional<Op> found =
      op.starts_with("stablehlo.") ? find_op(op.substr(10)) : std::nullopt;
  if (!found) in_.fail("unknown op ", op);
  Node node{*found};
  do {
    node.operands.push_back(operand(in_.word()));
  } while (in_.accept(","));
  in_.expect(":");
  node.type = parse_type();
  define(name, push(std::move(node)));
}

Module Parser::parse() {
  in_.skip_past("func.func public @main");
  parse_arguments();
  in_.expect("->");
  parse_types();
  in_.expect("{");
  while (!in_.accept("return")) parse_statement();
  int64_t index = 0;
  if (in_.peek() == '%') {
    do {
      const ValueId id = operand(in_.word());
      const auto alias = aliases_.find(index++);
      module_.mutable_results().push_back({id, contiguous_strides(module_.node(id).type.dims),
                                           alias == aliases_.end() ? -1 : alias->second, false});
    } while (in_.accept(","));
  }
  try {
    verify(module_);
  } catch (const Error& e) {
    raise(ErrorKind::kInvalid, "StableHLO text: ", e.what());
  }
  return std::move(module_);
}

}  // namespace

Module parse_stablehlo(std::string_view text) { return Parser(text).parse(); }

}  // namespace neuron::hlo
