#include "neuron/compiler/cpu/hardware_numerics.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <utility>

#include "neuron/base/log.h"
#include "neuron/compiler/cpu/legalize.h"

// Facts are those of the Neuron SDK 2.32 documentation (data types, NKI architecture guides, error
// codes EVRF013, 035, 060): no 64-bit floats; 64-bit integers become 32-bit ones; integer products
// and accumulating scatters run in fp32; float8_e4m3 of Trn2 ends at 240 and has infinities, where
// Trn3 has the OCP format that torch has.
namespace neuron::compiler::cpu {

using hlo::kNoValue;
using hlo::Module;
using hlo::Node;
using hlo::Op;
using hlo::ScatterKind;
using hlo::ValueId;

namespace {

bool is_wide_integer(DType type) { return type == DType::i64 || type == DType::u64; }

/// The result of the op has this dtype whatever its operands are.
bool has_fixed_dtype(Op op) { return op == Op::ArgReduce; }

class Imitation {
 public:
  Imitation(const Module& module, std::string_view target, const NarrowingSink& sink)
      : module_(module), is_trn2_(target == "trn2"), sink_(sink), w_(module) {}

  bool changes_anything() const {
    for (const Node& node : module_.nodes()) {
      if (is_narrowed(node.type.dtype) || is_rounded_integer_op(node)) return true;
      for (const hlo::Type& type : node.results) {
        if (is_narrowed(type.dtype)) return true;
      }
    }
    return false;
  }

  Module run() {
    find_bit_patterns();
    values_.resize(module_.size());
    for (ValueId v = 0; v < module_.size(); ++v) emit(v);
    // Arguments always keep their dtype.
    for (const hlo::Parameter& p : module_.parameters()) w_.map(p.value, stored(p.value));
    for (const hlo::Scalar& s : module_.scalars()) w_.map(s.value, stored(s.value));
    for (const hlo::Result& result : module_.results()) {
      w_.map(result.value, stored(result.value));
    }
    return w_.finish();
  }

 private:
  /// A value in the new module: with the dtype that it has in the old one, and narrowed. One of
  /// them comes first, the other is its conversion, made when it is asked for.
  struct Versions {
    ValueId stored = kNoValue;
    ValueId narrow = kNoValue;
    /// Of an op with several results: what TupleElement takes them from.
    ValueId tuple = kNoValue;
  };

  DType narrow_of(DType type) const {
    switch (type) {
      case DType::f64:
        return DType::f32;
      case DType::c128:
        return DType::c64;
      case DType::i64:
        return DType::i32;
      case DType::u64:
        return DType::u32;
      case DType::f8e4m3fn:
        return is_trn2_ ? DType::f8e4m3 : type;
      default:
        return type;
    }
  }
  bool is_narrowed(DType type) const { return narrow_of(type) != type; }
  static Narrowing kind_of(DType type) {
    switch (type) {
      case DType::f64:
        return Narrowing::F64;
      case DType::c128:
        return Narrowing::C128;
      case DType::i64:
        return Narrowing::I64;
      case DType::u64:
        return Narrowing::U64;
      default:
        return Narrowing::F8E4M3FN;
    }
  }

  /// Integers that the tensor engine or an accumulating unit takes through fp32.
  static bool is_rounded_integer_op(const Node& node) {
    if (!is_integer(node.type.dtype)) return false;
    switch (node.op) {
      case Op::DotGeneral:
        return true;
      case Op::Scatter:
        return static_cast<ScatterKind>(node.ints[1]) == ScatterKind::Add;
      default:
        return false;
    }
  }

  const DType& dtype(ValueId v) const { return module_.node(v).type.dtype; }

  ValueId stored(ValueId v) {
    Versions& value = values_[v];
    if (value.stored == kNoValue) value.stored = w_.convert(value.narrow, dtype(v));
    return value.stored;
  }
  ValueId narrow(ValueId v) {
    Versions& value = values_[v];
    if (value.narrow == kNoValue) {
      const Node& node = module_.node(v);
      value.narrow = node.op == Op::Constant && is_wide_integer(node.type.dtype)
                         ? limits_kept(node)
                         : w_.convert(value.stored, narrow_of(node.type.dtype));
    }
    return value.narrow;
  }

  /// An integer constant in 32 bits. The ends of the range are how lowerings say "no bound", and
  /// stay the ends; other numbers lose their high bits.
  ValueId limits_kept(const Node& node) {
    Node narrow = node;
    narrow.type.dtype = narrow_of(node.type.dtype);
    narrow.bytes.resize(node.bytes.size() / 2);
    for (size_t k = 0; k < node.bytes.size() / 8; ++k) {
      uint64_t bits;
      std::memcpy(&bits, node.bytes.data() + 8 * k, 8);
      auto word = static_cast<uint32_t>(bits);
      if (node.type.dtype == DType::i64) {
        const auto number = static_cast<int64_t>(bits);
        using Limits = std::numeric_limits<int64_t>;
        if (number == Limits::max()) word = 0x7FFFFFFFu;
        if (number == Limits::min()) word = 0x80000000u;
      }
      std::memcpy(narrow.bytes.data() + 4 * k, &word, 4);
    }
    return w_.push(std::move(narrow));
  }

  /// Marks 64-bit integers that are bit patterns, not numbers: seeds and counters of random
  /// numbers, what is made of random words, and floats taken apart.
  void find_bit_patterns() {
    bits_.assign(module_.size(), false);
    for (ValueId v = static_cast<ValueId>(module_.size()); v-- > 0;) {
      const Node& node = module_.node(v);
      if (!bits_[v] && node.op != Op::PhiloxWord) continue;
      for (const ValueId operand : node.operands) {
        if (is_wide_integer(dtype(operand))) bits_[operand] = true;
      }
    }
    std::vector<bool> from_bits = bits_;
    for (ValueId v = 0; v < module_.size(); ++v) {
      const Node& node = module_.node(v);
      const auto& in = node.operands;
      const bool random = node.op == Op::PhiloxWord;
      const bool whole = node.op != Op::Gather && node.op != Op::Scatter;
      from_bits[v] = from_bits[v] || random ||
                     (is_integer(node.type.dtype) && whole &&
                      std::any_of(in.begin(), in.end(), [&](ValueId o) { return from_bits[o]; })) ||
                     (node.op == Op::BitcastConvert && is_wide_integer(node.type.dtype));
      if (from_bits[v] && is_wide_integer(node.type.dtype)) bits_[v] = true;
    }
  }

  /// The node's result holds the same bits as its operands, somewhere else.
  bool only_moves(const Node& node) const {
    if (!is_narrowed(node.type.dtype)) return false;
    const auto is_stored = [&](size_t k) {
      return values_[node.operands[k]].stored != kNoValue && !is_rounded(node.operands[k]);
    };
    switch (node.op) {
      case Op::Parameter:
      case Op::ScalarParameter:
      case Op::Constant:
        return true;
      case Op::Gather:
        return is_stored(0);
      case Op::Scatter:
        return static_cast<ScatterKind>(node.ints[1]) == ScatterKind::Set && is_stored(0) &&
               is_stored(1);
      case Op::AsStridedScatter:
      case Op::DynamicUpdateSlice:
        return is_stored(0) && is_stored(1);
      default: {
        if (hlo::class_of(node.op) != hlo::OpClass::View) return false;
        bool all = true;
        for (size_t k = 0; k < node.operands.size(); ++k) all = all && is_stored(k);
        return all;
      }
    }
  }
  /// Its stored version is the widened narrow one.
  bool is_rounded(ValueId v) const { return rounded_.size() > v && rounded_[v]; }

  ValueId push(Node node) { return w_.push(std::move(node)); }

  void note(Narrowing narrowing, Op op) { sink_(narrowing, op); }
  /// Numbers of the host and indices are no tensors that anybody sees shrink.
  void note_dtype(const Node& node) {
    if (node.op == Op::Convert && node.type.dims.empty()) return;
    if (hlo::class_of(node.op) == hlo::OpClass::View) return;
    note(kind_of(node.type.dtype), node.op);
  }

  void emit(ValueId v) {
    const Node& node = module_.node(v);
    rounded_.push_back(false);
    Versions& value = values_[v];
    if (is_rounded_integer_op(node)) return emit_rounded(v);
    if (node.op == Op::LibraryCall) return emit_library_call(v);
    if (node.op == Op::TupleElement) return emit_tuple_element(v);
    Node copy = node;
    if (only_moves(node) || bits_[v] || has_fixed_dtype(node.op)) {
      for (ValueId& operand : copy.operands) {
        const bool keeps = dtype(operand) == node.type.dtype || bits_[operand];
        const bool bits = bits_[v] && node.op == Op::BitcastConvert;
        operand = keeps || bits || node.op == Op::PhiloxWord ? stored(operand) : narrow(operand);
      }
      if (has_fixed_dtype(node.op)) {
        copy.operands[0] = narrow(node.operands[0]);
      }
      value.stored = push(std::move(copy));
      if (!is_narrowed(node.type.dtype)) value.narrow = value.stored;
      return;
    }
    // Random words, and what reads bit patterns as they are.
    bool exact = node.op == Op::PhiloxWord;
    for (const ValueId operand : node.operands) exact = exact || bits_[operand];
    for (ValueId& operand : copy.operands) {
      const bool keep = exact && (bits_[operand] || is_wide_integer(dtype(operand)));
      operand = keep ? stored(operand) : narrow(operand);
    }
    const DType type = narrow_of(node.type.dtype);
    if (node.op == Op::BitcastConvert && exact) {  // A float from its bits.
      value.stored = push(std::move(copy));
      value.narrow = w_.convert(value.stored, type);
      value.stored = type == node.type.dtype ? value.narrow : kNoValue;
      rounded_[v] = true;
      return;
    }
    copy.type.dtype = type;
    if (!copy.results.empty()) copy.results[0].dtype = type;
    if (type != node.type.dtype) {
      note_dtype(node);
    } else {
      // A test or a conversion of wide numbers reads the narrow ones.
      for (const ValueId operand : node.operands) {
        const Node& from = module_.node(operand);
        if (is_narrowed(from.type.dtype) && !bits_[operand] && !from.type.dims.empty() &&
            !is_index(node, operand)) {
          note(kind_of(from.type.dtype), node.op);
        }
      }
    }
    value.narrow = push(std::move(copy));
    value.tuple = value.narrow;
    rounded_[v] = type != node.type.dtype;
    if (type == node.type.dtype) value.stored = value.narrow;
  }

  static bool is_index(const Node& node, ValueId operand) {
    return (node.op == Op::Gather || node.op == Op::Scatter || node.op == Op::DynamicUpdateSlice) &&
           operand != node.operands[0];
  }

  /// Library kernels keep their dtypes: what goes in and what comes out is narrowed.
  void emit_library_call(ValueId v) {
    Node copy = module_.node(v);
    for (ValueId& operand : copy.operands) {
      const DType type = dtype(operand);
      operand = bits_[operand] || !is_narrowed(type) ? stored(operand)
                                                     : w_.convert(narrow(operand), type);
    }
    const ValueId call = push(std::move(copy));
    values_[v].tuple = call;
    take_result(v, call);
  }

  void take_result(ValueId v, ValueId result) {
    const Node& node = module_.node(v);
    if (!is_narrowed(node.type.dtype) || bits_[v]) {
      values_[v].stored = result;
      if (!is_narrowed(node.type.dtype)) values_[v].narrow = result;
      return;
    }
    note_dtype(node);
    values_[v].narrow = w_.convert(result, narrow_of(node.type.dtype));
    rounded_[v] = true;
  }

  void emit_tuple_element(ValueId v) {
    Node copy = module_.node(v);
    const Op source = module_.node(copy.operands[0]).op;
    copy.operands[0] = values_[copy.operands[0]].tuple;
    const hlo::Type& type = w_.node(copy.operands[0]).results[static_cast<size_t>(copy.ints[0])];
    copy.type = type;
    const ValueId result = push(std::move(copy));
    if (source == Op::LibraryCall) return take_result(v, result);
    if (type.dtype == dtype(v)) {
      values_[v].stored = result;
      if (!is_narrowed(type.dtype)) values_[v].narrow = result;
    } else {
      values_[v].narrow = result;
      rounded_[v] = true;
    }
  }

  void emit_rounded(ValueId v) {
    const Node& node = module_.node(v);
    const DType type = narrow_of(node.type.dtype);
    if (type != node.type.dtype) note_dtype(node);
    note(node.op == Op::DotGeneral ? Narrowing::IntegerProduct : Narrowing::IntegerSum, node.op);
    Node copy = node;
    copy.type.dtype = DType::f32;
    for (size_t k = 0; k < copy.operands.size(); ++k) {
      const ValueId operand = narrow(node.operands[k]);
      const bool data = node.op != Op::Scatter || k < 2;
      copy.operands[k] = data ? w_.convert(operand, DType::f32) : operand;
    }
    ValueId result = w_.convert(push(std::move(copy)), type);
    if (node.op == Op::Scatter) {  // Elements that nothing is added to keep their bits.
      constexpr std::array no{std::byte{0}}, yes{std::byte{1}};
      Node touched = node;
      touched.type.dtype = DType::pred;
      touched.ints[1] = static_cast<int64_t>(ScatterKind::Set);
      touched.operands[0] = w_.splat(DType::pred, node.type.dims, no);
      touched.operands[1] = w_.splat(DType::pred, module_.node(node.operands[1]).type.dims, yes);
      for (size_t k = 2; k < touched.operands.size(); ++k) {
        touched.operands[k] = narrow(node.operands[k]);
      }
      const ValueId where = push(std::move(touched));
      result = push({Op::Select,
                     {type, node.type.dims},
                     {where, result, narrow(node.operands[0])},
                     {},
                     {},
                     {},
                     {}});
    }
    values_[v].narrow = result;
    if (type == node.type.dtype) values_[v].stored = result;
    rounded_[v] = type != node.type.dtype;
  }

  const Module& module_;
  const bool is_trn2_;
  const NarrowingSink& sink_;
  Rewriter w_;
  std::vector<Versions> values_;
  std::vector<bool> bits_;
  std::vector<bool> rounded_;
};

}  // namespace

std::string_view describe(Narrowing narrowing) {
  switch (narrowing) {
    case Narrowing::F64:
      return "float64 is computed as float32";
    case Narrowing::C128:
      return "complex128 is computed as complex64";
    case Narrowing::I64:
      return "int64 is computed as int32";
    case Narrowing::U64:
      return "uint64 is computed as uint32";
    case Narrowing::F8E4M3FN:
      return "float8_e4m3fn is computed as float8_e4m3, which ends at 240";
    case Narrowing::IntegerProduct:
      return "products of integer matrices are computed in float32, exact up to 2**24";
    case Narrowing::IntegerSum:
      return "integers are accumulated in float32, exact up to 2**24";
  }
  return "";
}

std::optional<Module> imitate_hardware(const Module& module, std::string_view target,
                                       const NarrowingSink& sink) {
  Imitation imitation(module, target, sink);
  if (!imitation.changes_anything()) return std::nullopt;
  return imitation.run();
}

void warn_once(Narrowing narrowing, Op op, std::string_view target) {
  static std::array<std::atomic<bool>, kNarrowingCount> done{};
  if (done[static_cast<size_t>(narrowing)].exchange(true)) return;
  log::warning("NEURON_SIM_NUMERICS=hardware: on ", target, " ", describe(narrowing),
               " (first met in ", hlo::stablehlo_name(op), "; said once)");
}

}  // namespace neuron::compiler::cpu
