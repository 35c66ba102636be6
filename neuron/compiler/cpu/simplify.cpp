#include "neuron/compiler/cpu/simplify.h"

#include <cmath>
#include <limits>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/legalize.h"
#include "neuron/hlo/evaluate_internal.h"

namespace neuron::compiler::cpu {

using hlo::Module;
using hlo::Node;
using hlo::Op;
using hlo::ValueId;

namespace {

uint64_t hash_node(const Node& node) {
  uint64_t h = static_cast<uint64_t>(node.op) * 0x9E3779B97F4A7C15ull;
  h = mix64(h ^ static_cast<uint64_t>(node.type.dtype), 0xD6E8FEB86659FD93ull);
  for (int64_t d : node.type.dims) h = mix64(h ^ static_cast<uint64_t>(d), 0xA0761D6478BD642Full);
  for (ValueId v : node.operands) h = mix64(h ^ v, 0x9E3779B97F4A7C15ull);
  for (int64_t i : node.ints) h = mix64(h ^ static_cast<uint64_t>(i), 0xD6E8FEB86659FD93ull);
  for (std::byte b : node.bytes) h = mix64(h ^ static_cast<uint64_t>(b), 0xA0761D6478BD642Full);
  return h;
}

bool same_node(const Node& a, const Node& b) {
  return a.op == b.op && a.type == b.type && a.operands == b.operands && a.ints == b.ints &&
         a.bytes == b.bytes && a.name == b.name;
}

/// Two of them may be one.
bool is_pure(Op op) {
  return op != Op::Parameter && op != Op::ScalarParameter && op != Op::LibraryCall &&
         op != Op::TupleElement && !hlo::is_collective(op);
}

class Simplifier {
 public:
  explicit Simplifier(const Module& module) : module_(module), w_(module) {
    size_t slots = 16;
    while (slots < 2 * module.size()) slots *= 2;
    table_.assign(slots, hlo::kNoValue);
  }

  std::optional<Module> run() {
    mark_live();
    bool changed = false;
    for (ValueId v = 0; v < module_.size(); ++v) {
      if (live_[v] == 0) {
        changed = true;
        continue;
      }
      Node node = module_.node(v);
      for (ValueId& operand : node.operands) operand = w_.mapped(operand);
      const size_t before = size_;
      const ValueId to = add(std::move(node));
      changed = changed || size_ != before + 1 || folded_;
      folded_ = false;
      w_.map(v, to);
    }
    if (!changed) return std::nullopt;
    return w_.finish();
  }

 private:
  void mark_live() {
    live_.assign(module_.size(), 0);
    for (const hlo::Parameter& p : module_.parameters()) live_[p.value] = 1;
    for (const hlo::Scalar& s : module_.scalars()) live_[s.value] = 1;
    for (const hlo::Result& r : module_.results()) live_[r.value] = 1;
    for (ValueId v = static_cast<ValueId>(module_.size()); v-- > 0;) {
      const Node& node = module_.node(v);
      if (node.op == Op::LibraryCall || hlo::is_collective(node.op)) live_[v] = 1;
      if (live_[v] == 0) continue;
      for (ValueId operand : node.operands) live_[operand] = 1;
    }
  }

  const Node& at(ValueId v) const { return w_.node(v); }
  bool is_splat(ValueId v) const {
    const Node& node = at(v);
    return node.op == Op::Constant && node.bytes.size() == size_of(node.type.dtype);
  }
  /// The splat's number; NaN if it is none.
  double number(ValueId v) const {
    if (!is_splat(v) || is_complex(at(v).type.dtype))
      return std::numeric_limits<double>::quiet_NaN();
    double value = 0;
    hlo::with_compute_type(at(v).type.dtype, [&](auto tag) {
      using T = decltype(tag);
      if constexpr (!hlo::is_complex_v<T>) {
        value = static_cast<double>(hlo::load_element<T>(at(v).type.dtype, at(v).bytes.data()));
      }
    });
    return value;
  }
  bool is_number(ValueId v, double value) const { return number(v) == value; }
  /// The node, or a simpler value that is equal bit for bit.
  ValueId add(Node node) {
    if (const ValueId simpler = fold(node); simpler != hlo::kNoValue) {
      folded_ = true;
      return simpler;
    }
    if (!is_pure(node.op) || node.bytes.size() > 4096) return push(std::move(node));
    size_t slot = hash_node(node) & (table_.size() - 1);
    while (table_[slot] != hlo::kNoValue && !same_node(at(table_[slot]), node)) {
      slot = (slot + 1) & (table_.size() - 1);
    }
    if (table_[slot] != hlo::kNoValue) return table_[slot];
    const ValueId v = push(std::move(node));
    if (2 * ++entries_ < table_.size()) table_[slot] = v;
    return v;
  }

  ValueId push(Node node) {
    ++size_;
    return w_.push(std::move(node));
  }

  ValueId splat(const hlo::Type& type, std::vector<std::byte> bytes) {
    return add({Op::Constant, type, {}, {}, std::move(bytes), {}, {}});
  }

  ValueId fold(const Node& node) {
    if (count_elements(node.type.dims) == 0) return hlo::kNoValue;
    switch (hlo::class_of(node.op)) {
      case hlo::OpClass::View:
        return fold_view(node);
      case hlo::OpClass::Elementwise:
        return fold_elementwise(node);
      case hlo::OpClass::Leaf:
      case hlo::OpClass::Structured:
        return hlo::kNoValue;
    }
    return hlo::kNoValue;
  }

  ValueId fold_view(const Node& node) {
    const ValueId x = node.operands[0];
    const Node& from = at(x);
    switch (node.op) {
      case Op::BroadcastInDim:
      case Op::Reshape:
      case Op::Transpose:
      case Op::Slice:
      case Op::Reverse:
      case Op::AsStrided:
        if (is_splat(x)) return splat(node.type, std::vector<std::byte>(from.bytes));
        break;
      default:
        return hlo::kNoValue;
    }
    switch (node.op) {
      case Op::Reshape:
        if (from.type.dims == node.type.dims) return x;
        if (from.op == Op::Reshape) {
          Node joined = node;
          joined.operands[0] = from.operands[0];
          return add(std::move(joined));
        }
        break;
      case Op::Transpose: {
        bool identity = true;
        for (size_t i = 0; i < node.ints.size(); ++i) {
          identity = identity && node.ints[i] == static_cast<int64_t>(i);
        }
        if (identity) return x;
        if (from.op == Op::Transpose) {
          Node joined = node;
          joined.operands[0] = from.operands[0];
          for (size_t i = 0; i < node.ints.size(); ++i) joined.ints[i] = from.ints[node.ints[i]];
          return add(std::move(joined));
        }
        break;
      }
      case Op::BroadcastInDim:
        if (from.type.dims == node.type.dims) {
          bool identity = true;
          for (size_t i = 0; i < node.ints.size(); ++i) {
            identity = identity && node.ints[i] == static_cast<int64_t>(i);
          }
          if (identity) return x;
        }
        break;
      default:
        break;
    }
    return hlo::kNoValue;
  }

  ValueId fold_elementwise(const Node& node) {
    bool constant = true;
    for (ValueId operand : node.operands) constant = constant && is_splat(operand);
    if (constant && !is_complex(node.type.dtype)) return evaluate(node);
    const ValueId x = node.operands[0];
    const DType type = node.type.dtype;
    switch (node.op) {
      case Op::Convert: {
        if (at(x).type.dtype == type) return x;
        // Widened and back again.
        if (at(x).op == Op::Convert) {
          const ValueId inner = at(x).operands[0];
          if (at(inner).type.dtype == type && holds(at(x).type.dtype, type)) return inner;
        }
        break;
      }
      case Op::Multiply:
        if (is_number(node.operands[1], 1)) return x;
        if (is_number(x, 1)) return node.operands[1];
        break;
      case Op::Divide:
        if (is_number(node.operands[1], 1)) return x;
        break;
      case Op::Subtract:
        // x - 0 is x, but x - (-0) makes a zero of -0.
        if (is_number(node.operands[1], 0) && !std::signbit(number(node.operands[1]))) return x;
        break;
      case Op::Add:
        for (int side = 0; side < 2; ++side) {
          const ValueId other = node.operands[static_cast<size_t>(side)];
          if (!is_number(other, 0)) continue;
          if (is_floating(type) && !std::signbit(number(other))) continue;  // -0 + 0 is 0.
          return node.operands[static_cast<size_t>(1 - side)];
        }
        break;
      case Op::Select:
        if (is_splat(x)) return node.operands[at(x).bytes[0] != std::byte{0} ? 1 : 2];
        if (node.operands[1] == node.operands[2]) return node.operands[1];
        break;
      case Op::And:
        if (type == DType::pred && is_splat(x)) return number(x) != 0 ? node.operands[1] : x;
        if (type == DType::pred && is_splat(node.operands[1])) {
          return number(node.operands[1]) != 0 ? x : node.operands[1];
        }
        break;
      case Op::Or:
        if (type == DType::pred && is_splat(x)) return number(x) != 0 ? x : node.operands[1];
        if (type == DType::pred && is_splat(node.operands[1])) {
          return number(node.operands[1]) != 0 ? node.operands[1] : x;
        }
        break;
      case Op::Power:
        return fold_power(node);
      default:
        break;
    }
    return hlo::kNoValue;
  }

  /// The powers that torch spells out too.
  ValueId fold_power(const Node& node) {
    const ValueId x = node.operands[0];
    const double exponent = number(node.operands[1]);
    const hlo::Type& type = node.type;
    if (!is_floating(type.dtype)) return hlo::kNoValue;
    auto binary = [&](Op op, ValueId a, ValueId b) {
      return add({op, type, {a, b}, {}, {}, {}, {}});
    };
    if (exponent == 1) return x;
    if (exponent == 2) return binary(Op::Multiply, x, x);
    if (exponent == 3) return binary(Op::Multiply, binary(Op::Multiply, x, x), x);
    if (exponent == 0.5) return add({Op::Sqrt, type, {x}, {}, {}, {}, {}});
    return hlo::kNoValue;
  }

  /// Every value of `narrow` is one of `wide`.
  static bool holds(DType wide, DType narrow) {
    if (is_floating(wide) && is_floating(narrow)) {
      return wide == DType::f64 || (wide == DType::f32 && narrow != DType::f64);
    }
    if (is_signed_integer(wide) && is_signed_integer(narrow))
      return size_of(wide) >= size_of(narrow);
    if (is_unsigned_integer(wide) && is_unsigned_integer(narrow)) {
      return size_of(wide) >= size_of(narrow);
    }
    return false;
  }

  ValueId evaluate(const Node& node) {
    std::vector<hlo::Array> values;
    for (ValueId operand : node.operands) {
      values.push_back({{at(operand).type.dtype, {}}, at(operand).bytes});
      if (is_complex(values.back().type.dtype)) return hlo::kNoValue;
    }
    std::vector<const hlo::Array*> operands;
    for (const hlo::Array& value : values) operands.push_back(&value);
    Node one{node.op, {node.type.dtype, {}}, {}, node.ints, {}, {}, {}};
    hlo::Array result = hlo::internal::evaluate_elementwise(one, operands);
    return splat(node.type, std::move(result.bytes));
  }

  const Module& module_;
  Rewriter w_;
  std::vector<uint8_t> live_;
  std::vector<ValueId> table_;
  size_t entries_ = 0;
  size_t size_ = 0;
  bool folded_ = false;
};

}  // namespace

std::optional<Module> simplify(const Module& module) { return Simplifier(module).run(); }

}  // namespace neuron::compiler::cpu
