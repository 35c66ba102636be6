#include "neuron/lowering/numerics.h"

#include <limits>

#include "neuron/base/error.h"

namespace neuron::lowering {

DType opmath(DType type) {
  return type == DType::f16 || type == DType::bf16 || is_float8(type) ? DType::f32 : type;
}

DType accumulation_dtype(DType type) {
  return type == DType::pred || is_integer(type) ? DType::i64 : opmath(type);
}

DType complex_of(DType type) {
  return type == DType::f64 || type == DType::c128 ? DType::c128 : DType::c64;
}

DType promote_types(DType a, DType b) {
  if (a == b) return a;
  if (a == DType::pred) return b;
  if (b == DType::pred) return a;
  if (is_complex(a) || is_complex(b)) {
    const bool wide = a == DType::c128 || b == DType::c128 || a == DType::f64 || b == DType::f64;
    return wide ? DType::c128 : DType::c64;
  }
  if (is_floating(a) && is_floating(b)) {
    NEURON_CHECK(!is_float8(a) && !is_float8(b), kUnsupported, "Promotion for Float8 Types is not ",
                 "supported, attempted to promote ", name_of(a), " and ", name_of(b));
    // f16 and bf16 meet in f32.
    if (size_of(a) == size_of(b)) return DType::f32;
    return size_of(a) > size_of(b) ? a : b;
  }
  if (is_floating(a)) return a;
  if (is_floating(b)) return b;
  const auto is_wide_unsigned = [](DType t) { return is_unsigned_integer(t) && t != DType::u8; };
  NEURON_CHECK(!is_wide_unsigned(a) && !is_wide_unsigned(b), kUnsupported,
               "Promotion for uint16, uint32, uint64 types is not supported, attempted to promote ",
               name_of(a), " and ", name_of(b));
  if (size_of(a) == size_of(b)) return DType::i16;  // u8 and i8.
  return size_of(a) > size_of(b) ? a : b;
}

namespace {

enum class Category : uint8_t { None, Bool, Integer, Float, Complex };

Category category_of(DType type) {
  if (type == DType::pred) return Category::Bool;
  if (is_complex(type)) return Category::Complex;
  return is_floating(type) ? Category::Float : Category::Integer;
}

// The promoted type of one priority class; empty at first.
struct Promoted {
  bool any = false;
  DType type = DType::pred;
  void add(DType other) {
    type = any ? promote_types(type, other) : other;
    any = true;
  }
};

Promoted combine(Promoted higher, Promoted lower) {
  if (!higher.any) return lower;
  if (!lower.any) return higher;
  const Category high = category_of(higher.type);
  const Category low = category_of(lower.type);
  if (high == Category::Complex) return higher;
  if (high == Category::Float) {
    if (low == Category::Complex) higher.type = complex_of(higher.type);
    return higher;
  }
  if (high == Category::Bool || low == Category::Float || low == Category::Complex) {
    higher.type = promote_types(higher.type, lower.type);
  }
  return higher;
}

DType type_of_number(const OpCall& call, DType kind) {
  if (kind == DType::f64) return call.default_dtype();
  if (kind == DType::c128) return complex_of(call.default_dtype());
  return kind;
}

}  // namespace

DType result_type(const OpCall& call, std::initializer_list<size_t> arguments) {
  Promoted with_dims, zero_dim, numbers;
  for (size_t i : arguments) {
    const Argument& argument = call.argument(i);
    if (argument.kind == Argument::Kind::Tensor) {
      const Value x = call.tensor(i);
      if (call.is_wrapped(i)) {
        DType type = x.dtype();
        if (is_floating(type)) type = call.default_dtype();
        if (is_complex(type)) type = complex_of(call.default_dtype());
        (x.rank() > 0 ? with_dims : numbers).add(type);
      } else {
        (x.rank() > 0 ? with_dims : zero_dim).add(x.dtype());
      }
    } else if (!argument.numbers.empty()) {
      numbers.add(type_of_number(call, argument.numbers[0].kind));
    }
  }
  const Promoted result = combine(with_dims, combine(zero_dim, numbers));
  NEURON_ASSERT(result.any, "no operand to promote");
  return result.type;
}

DType float_type(const OpCall& call, DType type) {
  return is_floating(type) || is_complex(type) ? type : call.default_dtype();
}

Value operand(const OpCall& call, size_t i, DType dtype) {
  if (call.argument(i).kind == Argument::Kind::Tensor) {
    return call.builder().convert(call.tensor(i), dtype);
  }
  return call.scalar(i, dtype);
}

Value math_operand(const OpCall& call, size_t i, DType common, bool keep_scalar) {
  Builder& b = call.builder();
  const DType math = opmath(common);
  if (keep_scalar) {
    const bool number = call.argument(i).kind != Argument::Kind::Tensor;
    if (number || call.tensor(i).rank() == 0) return operand(call, i, math);
  }
  return b.convert(operand(call, i, common), math);
}

BinaryOperands binary_operands(const OpCall& call, size_t i, size_t j, bool keep_scalar) {
  const DType common = result_type(call, {i, j});
  return {math_operand(call, i, common, keep_scalar), math_operand(call, j, common, keep_scalar),
          common};
}

namespace {

int64_t largest_integer(DType type) {
  switch (type) {
    case DType::i8:
      return std::numeric_limits<int8_t>::max();
    case DType::u8:
      return std::numeric_limits<uint8_t>::max();
    case DType::i16:
      return std::numeric_limits<int16_t>::max();
    case DType::u16:
      return std::numeric_limits<uint16_t>::max();
    case DType::i32:
      return std::numeric_limits<int32_t>::max();
    case DType::u32:
      return std::numeric_limits<uint32_t>::max();
    case DType::u64:
      return -1;  // All ones.
    default:
      return std::numeric_limits<int64_t>::max();
  }
}

}  // namespace

double largest_finite(DType type) {
  switch (type) {
    case DType::f16:
      return 65504.0;
    case DType::bf16:
      return 0x1.FEp127;
    case DType::f8e4m3fn:
      return 448.0;
    case DType::f8e4m3:
      return 240.0;
    case DType::f8e5m2:
      return 57344.0;
    case DType::f32:
    case DType::c64:
      return std::numeric_limits<float>::max();
    default:
      return std::numeric_limits<double>::max();
  }
}

double epsilon_of(DType type) {
  switch (type) {
    case DType::f16:
      return 0x1p-10;
    case DType::bf16:
      return 0x1p-7;
    case DType::f8e4m3fn:
    case DType::f8e4m3:
      return 0x1p-3;
    case DType::f8e5m2:
      return 0x1p-2;
    case DType::f32:
    case DType::c64:
      return std::numeric_limits<float>::epsilon();
    default:
      return std::numeric_limits<double>::epsilon();
  }
}

Value highest(Builder& b, DType type) {
  if (is_floating(type)) return b.constant(type, std::numeric_limits<double>::infinity());
  if (type == DType::pred) return b.constant_int(type, 1);
  return b.constant_int(type, largest_integer(type));
}

Value lowest(Builder& b, DType type) {
  if (is_floating(type)) return b.constant(type, -std::numeric_limits<double>::infinity());
  if (type == DType::pred || is_unsigned_integer(type)) return b.constant_int(type, 0);
  return b.constant_int(type, -largest_integer(type) - 1);
}

Value maximum(Builder& b, Value x, Value y) {
  return x.dtype() == DType::pred ? b.bit_or(x, y) : b.max(x, y);
}
Value minimum(Builder& b, Value x, Value y) {
  return x.dtype() == DType::pred ? b.bit_and(x, y) : b.min(x, y);
}
Value both(Builder& b, Value x, Value y) { return b.bit_and(x, y); }
Value either(Builder& b, Value x, Value y) { return b.bit_or(x, y); }

Dims kept_dims(Value x, DimsRef dims) {
  Dims sizes = x.dims();
  for (int64_t dim : dims) sizes[static_cast<size_t>(dim)] = 1;
  return sizes;
}

int64_t count_of(Value x, DimsRef dims) {
  int64_t count = 1;
  for (int64_t dim : dims) count *= x.dims()[static_cast<size_t>(dim)];
  return count;
}

Value restore_dims(Builder& b, Value x, Value like, DimsRef dims) {
  return b.reshape(x, kept_dims(like, dims));
}

Value mean(Builder& b, Value x, DimsRef dims, bool keep) {
  const Value total = b.sum(x, dims, keep);
  return b.div(total, b.like(total, static_cast<double>(count_of(x, dims))));
}

Value along(Builder& b, Value x, int64_t rank, int64_t dim) {
  Dims sizes(static_cast<size_t>(rank), 1);
  sizes[static_cast<size_t>(dim)] = x.count();
  return b.reshape(x, sizes);
}

}  // namespace neuron::lowering
