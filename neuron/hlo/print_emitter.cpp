#include "neuron/hlo/print_emitter.h"

#include <charconv>
#include <cmath>

#include "neuron/base/error.h"
#include "neuron/hlo/element.h"
#include "neuron/hlo/evaluate_internal.h"

namespace neuron::hlo::internal {

namespace {

constexpr char kHexDigits[] = "0123456789ABCDEF";

void append_hex(std::string& text, std::byte b) {
  text += kHexDigits[std::to_integer<unsigned>(b) >> 4];
  text += kHexDigits[std::to_integer<unsigned>(b) & 15];
}

/// A float literal: shortest digits that read back, always with a point; bits if not finite.
template <typename T>
std::string float_text(DType dtype, T value) {
  std::string text;
  if (!std::isfinite(value)) {
    std::byte bytes[8] = {};
    store_element<T>(dtype, value, bytes);
    text = "0x";
    for (size_t i = size_of(dtype); i-- > 0;) append_hex(text, bytes[i]);
    return text;
  }
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  text.assign(buffer, end);
  if (text.find('.') == std::string::npos) {
    const size_t exponent = text.find('e');
    text.insert(exponent == std::string::npos ? text.size() : exponent, ".0");
  }
  return text;
}

std::string element_text(DType dtype, const std::byte* bytes) {
  return with_compute_type(dtype, [&](auto tag) -> std::string {
    using T = decltype(tag);
    const T value = load_element<T>(dtype, bytes);
    if constexpr (std::is_same_v<T, bool>) {
      return value ? "true" : "false";
    } else if constexpr (is_complex_v<T>) {
      const DType part = real_of(dtype);
      return "(" + float_text(part, value.real()) + ", " + float_text(part, value.imag()) + ")";
    } else if constexpr (std::is_floating_point_v<T>) {
      return float_text(dtype, value);
    } else {
      return std::to_string(value);
    }
  });
}

void append_nested(std::string& text, DType dtype, DimsRef dims, const std::byte*& at) {
  if (dims.empty()) {
    text += element_text(dtype, at);
    at += size_of(dtype);
    return;
  }
  text += '[';
  for (int64_t i = 0; i < dims[0]; ++i) {
    if (i > 0) text += ", ";
    append_nested(text, dtype, dims.subspan(1), at);
  }
  text += ']';
}

std::string direction_text(Direction direction) {
  constexpr std::string_view names[] = {"EQ", "NE", "LT", "LE", "GT", "GE"};
  return std::string(names[static_cast<size_t>(direction)]);
}

std::string joined(DimsRef ints) {
  std::string text;
  for (size_t i = 0; i < ints.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(ints[i]);
  }
  return text;
}

}  // namespace

std::string type_text(const Type& type) {
  std::string text = "tensor<";
  for (int64_t size : type.dims) text += std::to_string(size) + "x";
  return text + std::string(stablehlo_name(type.dtype)) + ">";
}

std::string array_text(DimsRef ints) {
  return ints.empty() ? "array<i64>" : "array<i64: " + joined(ints) + ">";
}

std::string list_text(DimsRef ints) {
  std::string text = "[";
  text += joined(ints);
  text += ']';
  return text;
}

std::string dense_text(const Type& type, std::span<const std::byte> bytes) {
  const int64_t count = count_elements(type.dims);
  if (count == 0) return "";
  if (bytes.size() == size_of(type.dtype)) return element_text(type.dtype, bytes.data());
  // A hex string of pred is bytes for one reader and bits for another.
  if (count <= 16 || type.dtype == DType::pred) {
    std::string text;
    const std::byte* at = bytes.data();
    append_nested(text, type.dtype, type.dims, at);
    return text;
  }
  std::string text = "\"0x";
  text.reserve(bytes.size() * 2 + 4);
  for (std::byte b : bytes) append_hex(text, b);
  return text + "\"";
}

Emitter Emitter::region() const {
  Emitter inner(indent_ + "  ");
  inner.next_ = next_;
  return inner;
}

std::string Emitter::next_names(size_t count) {
  std::string name = "%" + std::to_string(next_++);
  text_ += indent_ + name + (count > 1 ? ":" + std::to_string(count) : "") + " = ";
  return name;
}

Ref Emitter::same(std::string_view op, std::initializer_list<Ref> operands) {
  const Type type = operands.begin()->type;
  const std::string name = next_names(1);
  text_ += "stablehlo." + std::string(op) + " ";
  bool first = true;
  for (const Ref& operand : operands) {
    text_ += (first ? "" : ", ") + operand.name;
    first = false;
  }
  text_ += " : " + type_text(type) + "\n";
  return {name, type};
}

Ref Emitter::generic(std::string_view op, std::span<const Ref> operands, const Type& type,
                     const std::string& attributes, const std::string& region) {
  return generic_multi(op, operands, std::span(&type, 1), attributes, region)[0];
}

Refs Emitter::generic_multi(std::string_view op, std::span<const Ref> operands,
                            std::span<const Type> types, const std::string& attributes,
                            const std::string& region) {
  const std::string name = next_names(types.size());
  std::string arguments, operand_types, result_types;
  for (size_t i = 0; i < operands.size(); ++i) {
    arguments += (i > 0 ? ", " : "") + operands[i].name;
    operand_types += (i > 0 ? ", " : "") + type_text(operands[i].type);
  }
  for (size_t i = 0; i < types.size(); ++i) {
    result_types += (i > 0 ? ", " : "") + type_text(types[i]);
  }
  if (types.size() > 1) result_types = "(" + result_types + ")";
  text_ += "\"stablehlo." + std::string(op) + "\"(" + arguments + ")";
  if (!attributes.empty()) text_ += " <{" + attributes + "}>";
  if (!region.empty()) text_ += " " + region;
  text_ += " : (" + operand_types + ") -> " + result_types + "\n";
  Refs refs;
  for (size_t i = 0; i < types.size(); ++i) {
    refs.push_back({types.size() > 1 ? name + "#" + std::to_string(i) : name, types[i]});
  }
  return refs;
}

void Emitter::finish(std::string_view terminator, std::span<const Ref> values) {
  std::string names, types;
  for (size_t i = 0; i < values.size(); ++i) {
    names += (i > 0 ? ", " : "") + values[i].name;
    types += (i > 0 ? ", " : "") + type_text(values[i].type);
  }
  text_ += indent_ + std::string(terminator);
  if (!values.empty()) text_ += " " + names + " : " + types;
  text_ += "\n";
}

Ref Emitter::constant(const Type& type, std::span<const std::byte> bytes) {
  const std::string name = next_names(1);
  text_ += "stablehlo.constant dense<" + dense_text(type, bytes) + "> : " + type_text(type) + "\n";
  return {name, type};
}

Ref Emitter::constant(const Type& type, double value) {
  std::byte bytes[16] = {};
  with_compute_type(type.dtype, [&](auto tag) {
    store_element(type.dtype, convert_number<decltype(tag)>(value), bytes);
  });
  return constant(type, std::span(bytes, size_of(type.dtype)));
}

Ref Emitter::complex_constant(const Type& type, double real, double imag) {
  std::byte bytes[16] = {};
  with_compute_type(type.dtype, [&](auto tag) {
    store_element(type.dtype, convert_number<decltype(tag)>(std::complex<double>(real, imag)),
                  bytes);
  });
  return constant(type, std::span(bytes, size_of(type.dtype)));
}

Ref Emitter::iota(const Type& type, int64_t dim) {
  return generic("iota", {}, type, "iota_dimension = " + std::to_string(dim) + " : i64");
}

Ref Emitter::convert(const Ref& x, DType dtype) {
  if (x.type.dtype == dtype) return x;
  return generic("convert", {x}, {dtype, x.type.dims});
}

Ref Emitter::compare(Direction direction, const Ref& a, const Ref& b, bool total_order) {
  const DType dtype = a.type.dtype;
  const std::string kind = total_order                               ? "TOTALORDER"
                           : is_floating(dtype) || is_complex(dtype) ? "FLOAT"
                           : is_signed_integer(dtype)                ? "SIGNED"
                                                                     : "UNSIGNED";
  return generic("compare", {a, b}, {DType::pred, a.type.dims},
                 "comparison_direction = #stablehlo<comparison_direction " +
                     direction_text(direction) + ">, compare_type = #stablehlo<comparison_type " +
                     kind + ">");
}

Ref Emitter::select(const Ref& predicate, const Ref& a, const Ref& b) {
  return generic("select", {predicate, a, b}, a.type);
}

Ref Emitter::reshape(const Ref& x, DimsRef dims) {
  if (x.type.dims == Dims(dims)) return x;
  return generic("reshape", {x}, {x.type.dtype, Dims(dims)});
}

Ref Emitter::broadcast(const Ref& x, DimsRef dims, DimsRef mapping) {
  return generic("broadcast_in_dim", {x}, {x.type.dtype, Dims(dims)},
                 "broadcast_dimensions = " + array_text(mapping));
}

Ref Emitter::concatenate(std::span<const Ref> parts, int64_t dim) {
  Type type = parts[0].type;
  int64_t total = 0;
  for (const Ref& part : parts) total += part.type.dims[static_cast<size_t>(dim)];
  type.dims[static_cast<size_t>(dim)] = total;
  return generic("concatenate", parts, type, "dimension = " + std::to_string(dim) + " : i64");
}

Ref Emitter::slice(const Ref& x, DimsRef start, DimsRef limit, DimsRef stride) {
  Type type{x.type.dtype, {}};
  for (size_t i = 0; i < start.size(); ++i) {
    type.dims.push_back((limit[i] - start[i] + stride[i] - 1) / stride[i]);
  }
  return generic("slice", {x}, type,
                 "start_indices = " + array_text(start) + ", limit_indices = " + array_text(limit) +
                     ", strides = " + array_text(stride));
}

std::string reducer_text(Emitter& outer, ReduceKind kind, DType dtype) {
  // Of pred, the sum is "or" and the product "and"; so are the extremes.
  const bool pred = dtype == DType::pred;
  std::string op;
  switch (kind) {
    case ReduceKind::Sum:
      op = pred ? "or" : "add";
      break;
    case ReduceKind::Product:
      op = pred ? "and" : "multiply";
      break;
    case ReduceKind::Max:
      op = pred ? "or" : "maximum";
      break;
    case ReduceKind::Min:
      op = pred ? "and" : "minimum";
      break;
    case ReduceKind::And:
      op = "and";
      break;
    case ReduceKind::Or:
      op = "or";
      break;
  }
  const Type types[] = {{dtype, {}}, {dtype, {}}};
  return region_text(outer, types, [&](Emitter& inner, const Refs& x) {
    return Refs{inner.same(op, {x[0], x[1]})};
  });
}

Ref identity_constant(Emitter& out, ReduceKind kind, DType dtype) {
  std::byte bytes[16] = {};
  with_compute_type(
      dtype, [&](auto tag) { store_element(dtype, identity_of<decltype(tag)>(kind), bytes); });
  return out.constant({dtype, {}}, std::span(bytes, size_of(dtype)));
}

}  // namespace neuron::hlo::internal
