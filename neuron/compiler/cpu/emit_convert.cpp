#include <llvm/IR/Constants.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Intrinsics.h>

#include <cmath>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/emit_vector.h"

// Types, constants and conversions. Narrow floats are converted by integer operations (f16 by
// F16C): fptrunc to bfloat becomes library calls on most targets, and the bits must be the same on
// all of them.
namespace neuron::compiler::cpu {
namespace {

struct SmallFloat {
  int exponent_bits = 0;
  int mantissa_bits = 0;
  bool has_infinity = true;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};

SmallFloat format_of(DType type) {
  switch (type) {
    case DType::f8e4m3fn:
      return {4, 3, false};
    case DType::f8e4m3:
      return {4, 3, true};
    case DType::f8e5m2:
      return {5, 2, true};
    default:
      break;
  }
  raise(ErrorKind::kInternal, "not an 8-bit float: ", name_of(type));
}

llvm::Value* splat_int(llvm::IRBuilderBase& b, llvm::Type* vector, uint64_t value) {
  return llvm::ConstantInt::get(vector, value);
}

}  // namespace

llvm::Type* VectorEmitter::lane_type(DType type) {
  switch (type) {
    case DType::pred:
      return b.getInt1Ty();
    case DType::i8:
    case DType::u8:
    case DType::f8e4m3fn:
    case DType::f8e4m3:
    case DType::f8e5m2:
      return b.getInt8Ty();
    case DType::i16:
    case DType::u16:
    case DType::f16:
    case DType::bf16:
      return b.getInt16Ty();
    case DType::i32:
    case DType::u32:
      return b.getInt32Ty();
    case DType::i64:
    case DType::u64:
      return b.getInt64Ty();
    case DType::f32:
    case DType::c64:
      return b.getFloatTy();
    case DType::f64:
    case DType::c128:
      return b.getDoubleTy();
  }
  raise(ErrorKind::kInternal, "no such dtype");
}

llvm::Type* VectorEmitter::memory_type(DType type) {
  return type == DType::pred ? b.getInt8Ty() : lane_type(type);
}

llvm::Type* VectorEmitter::vector_of(llvm::Type* element) {
  return llvm::FixedVectorType::get(element, kLanes);
}

llvm::Value* VectorEmitter::i64(int64_t value) { return b.getInt64(static_cast<uint64_t>(value)); }

llvm::Value* VectorEmitter::iota64() {
  llvm::Constant* lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = b.getInt64(i);
  return llvm::ConstantVector::get(lanes);
}

llvm::Value* VectorEmitter::splat(llvm::Value* scalar) {
  return b.CreateVectorSplat(kLanes, scalar);
}

Lanes VectorEmitter::splat(const Lanes& scalar) {
  return {splat(scalar.re), scalar.im != nullptr ? splat(scalar.im) : nullptr};
}

Lanes VectorEmitter::zero(DType type) {
  llvm::Value* z = llvm::Constant::getNullValue(vector_type(type));
  return {z, is_complex(type) ? z : nullptr};
}

Lanes VectorEmitter::constant(DType type, const uint64_t bits[2]) {
  const auto number = [&](llvm::Type* element, uint64_t raw) -> llvm::Value* {
    llvm::APInt value(element->getPrimitiveSizeInBits(), raw, false);
    if (element->isIntegerTy()) return splat(llvm::ConstantInt::get(b.getContext(), value));
    const auto& semantics =
        element->isFloatTy() ? llvm::APFloat::IEEEsingle() : llvm::APFloat::IEEEdouble();
    return splat(llvm::ConstantFP::get(b.getContext(), llvm::APFloat(semantics, value)));
  };
  switch (type) {
    case DType::pred:
      return {splat(b.getInt1((bits[0] & 0xFF) != 0))};
    case DType::c64:
      return {number(b.getFloatTy(), bits[0] & 0xFFFFFFFFu), number(b.getFloatTy(), bits[0] >> 32)};
    case DType::c128:
      return {number(b.getDoubleTy(), bits[0]), number(b.getDoubleTy(), bits[1])};
    default:
      break;
  }
  const int width = static_cast<int>(size_of(type)) * 8;
  const uint64_t mask = width == 64 ? ~0ull : (1ull << width) - 1;
  return {number(lane_type(type), bits[0] & mask)};
}

// Bit patterns of a narrow float to f32.
llvm::Value* VectorEmitter::widen_small(llvm::Value* bits, DType type) {
  llvm::Type* f32 = vector_of(b.getFloatTy());
  llvm::Type* i32 = vector_of(b.getInt32Ty());
  if (type == DType::bf16) {
    return b.CreateBitCast(b.CreateShl(b.CreateZExt(bits, i32), splat_int(b, i32, 16)), f32);
  }
  if (type == DType::f16) {
    return b.CreateFPExt(b.CreateBitCast(bits, vector_of(b.getHalfTy())), f32);
  }
  const SmallFloat format = format_of(type);
  llvm::Value* wide = b.CreateZExt(bits, i32);
  llvm::Value* sign =
      b.CreateShl(b.CreateAnd(wide, splat_int(b, i32, 0x80)), splat_int(b, i32, 24));
  llvm::Value* magnitude = b.CreateAnd(wide, splat_int(b, i32, 0x7F));
  // Exponent and mantissa in place, then scaled by a power of two: exact, subnormals included.
  llvm::Value* shifted =
      b.CreateBitCast(b.CreateShl(magnitude, splat_int(b, i32, 23 - format.mantissa_bits)), f32);
  llvm::Value* scaled =
      b.CreateFMul(shifted, llvm::ConstantFP::get(f32, std::ldexp(1.0, 127 - format.bias())));
  llvm::Value* result = b.CreateBitCast(scaled, i32);
  const uint32_t top = ((1u << format.exponent_bits) - 1) << format.mantissa_bits;
  llvm::Value* nan = splat_int(b, i32, 0x7FC00000);
  if (format.has_infinity) {
    llvm::Value* special = b.CreateSelect(b.CreateICmpEQ(magnitude, splat_int(b, i32, top)),
                                          splat_int(b, i32, 0x7F800000), nan);
    result = b.CreateSelect(b.CreateICmpUGE(magnitude, splat_int(b, i32, top)), special, result);
  } else {
    result = b.CreateSelect(b.CreateICmpEQ(magnitude, splat_int(b, i32, 0x7F)), nan, result);
  }
  return b.CreateBitCast(b.CreateOr(result, sign), f32);
}

// f32 to bit patterns, to nearest even.
llvm::Value* VectorEmitter::narrow_small(llvm::Value* x, DType type) {
  llvm::Type* f32 = vector_of(b.getFloatTy());
  llvm::Type* i32 = vector_of(b.getInt32Ty());
  if (type == DType::f16) {
    return b.CreateBitCast(b.CreateFPTrunc(x, vector_of(b.getHalfTy())), vector_of(b.getInt16Ty()));
  }
  llvm::Value* bits = b.CreateBitCast(x, i32);
  if (type == DType::bf16) {
    llvm::Value* lsb = b.CreateAnd(b.CreateLShr(bits, splat_int(b, i32, 16)), splat_int(b, i32, 1));
    llvm::Value* rounded = b.CreateLShr(
        b.CreateAdd(bits, b.CreateAdd(lsb, splat_int(b, i32, 0x7FFF))), splat_int(b, i32, 16));
    rounded = b.CreateSelect(b.CreateFCmpUNO(x, x), splat_int(b, i32, 0x7FC0), rounded);
    return b.CreateTrunc(rounded, vector_of(b.getInt16Ty()));
  }
  const SmallFloat format = format_of(type);
  const int shift = 23 - format.mantissa_bits;
  llvm::Value* sign =
      b.CreateAnd(b.CreateLShr(bits, splat_int(b, i32, 24)), splat_int(b, i32, 0x80));
  llvm::Value* magnitude = b.CreateAnd(bits, splat_int(b, i32, 0x7FFFFFFF));
  llvm::Value* lsb =
      b.CreateAnd(b.CreateLShr(magnitude, splat_int(b, i32, shift)), splat_int(b, i32, 1));
  llvm::Value* rounded =
      b.CreateAdd(magnitude, b.CreateAdd(lsb, splat_int(b, i32, (1u << (shift - 1)) - 1)));
  llvm::Value* normal = b.CreateSub(
      b.CreateLShr(rounded, splat_int(b, i32, shift)),
      splat_int(b, i32, static_cast<uint32_t>(127 - format.bias()) << format.mantissa_bits));
  // Below the smallest normal number: adding a number whose last bit is the format's smallest step
  // rounds to a multiple of it.
  const int magic_exponent = 1 - format.bias() - format.mantissa_bits + 23;
  const uint32_t magic_bits = static_cast<uint32_t>(magic_exponent + 127) << 23;
  llvm::Value* magic = b.CreateBitCast(splat_int(b, i32, magic_bits), f32);
  llvm::Value* small =
      b.CreateSub(b.CreateBitCast(b.CreateFAdd(b.CreateBitCast(magnitude, f32), magic), i32),
                  splat_int(b, i32, magic_bits));
  const uint32_t smallest_normal = static_cast<uint32_t>(127 + 1 - format.bias()) << 23;
  llvm::Value* result =
      b.CreateSelect(b.CreateICmpULT(magnitude, splat_int(b, i32, smallest_normal)), small, normal);
  const uint32_t top = ((1u << format.exponent_bits) - 1) << format.mantissa_bits;
  // e4m3fn saturates at its largest number, 0x7E, as torch does; the others overflow to infinity.
  const uint32_t largest = format.has_infinity ? top - 1 : 0x7E;
  const uint32_t beyond = format.has_infinity ? top : 0x7E;
  const uint32_t nan = format.has_infinity ? top | (1u << (format.mantissa_bits - 1)) : 0x7Fu;
  llvm::Value* too_big =
      b.CreateAnd(b.CreateICmpUGT(result, splat_int(b, i32, largest)),
                  b.CreateICmpUGE(magnitude, splat_int(b, i32, smallest_normal)));
  result = b.CreateSelect(too_big, splat_int(b, i32, beyond), result);
  result = b.CreateSelect(b.CreateICmpUGT(magnitude, splat_int(b, i32, 0x7F800000)),
                          splat_int(b, i32, nan), result);
  return b.CreateTrunc(b.CreateOr(result, sign), vector_of(b.getInt8Ty()));
}

// Truncation as x86 does it: out of range and NaN give the smallest integer. fptosi alone would be
// undefined there.
llvm::Value* VectorEmitter::float_to_int(llvm::Value* x, llvm::Type* element, bool is_signed) {
  llvm::Type* from = x->getType();
  const int bits = static_cast<int>(element->getIntegerBitWidth());
  const auto to_signed = [&](llvm::Value* v, int width) -> llvm::Value* {
    llvm::Type* to = vector_of(b.getIntNTy(width));
    const double limit = std::ldexp(1.0, width - 1);
    // A double just above -2^31 - 1 still truncates to -2^31.
    const bool exact_edge = width == 64 || from->getScalarType()->isFloatTy();
    llvm::Value* low = exact_edge ? b.CreateFCmpOGE(v, llvm::ConstantFP::get(from, -limit))
                                  : b.CreateFCmpOGT(v, llvm::ConstantFP::get(from, -limit - 1));
    llvm::Value* ok = b.CreateAnd(low, b.CreateFCmpOLT(v, llvm::ConstantFP::get(from, limit)));
    llvm::Value* safe = b.CreateSelect(ok, v, llvm::Constant::getNullValue(from));
    return b.CreateSelect(ok, b.CreateFPToSI(safe, to), splat_int(b, to, 1ull << (width - 1)));
  };
  if (is_signed || bits <= 16) {
    if (bits == 64) return to_signed(x, 64);
    return b.CreateTrunc(to_signed(x, 32), vector_of(element));
  }
  if (bits == 32) return b.CreateTrunc(to_signed(x, 64), vector_of(element));
  // u64: numbers from 2^63 on are converted less 2^63.
  llvm::Constant* half = llvm::ConstantFP::get(from, 9223372036854775808.0);
  llvm::Value* big = b.CreateFCmpUGE(x, half);  // NaN as well: it gives 0.
  llvm::Value* lowered = b.CreateSelect(big, b.CreateFSub(x, half), x);
  llvm::Value* number = to_signed(lowered, 64);
  llvm::Type* to = vector_of(element);
  return b.CreateXor(number,
                     b.CreateSelect(big, splat_int(b, to, 1ull << 63), splat_int(b, to, 0)));
}

llvm::Value* VectorEmitter::is_true(const Lanes& x, DType type) {
  if (type == DType::pred) return x.re;
  if (is_complex(type)) {
    llvm::Constant* zero = llvm::Constant::getNullValue(x.re->getType());
    return b.CreateOr(b.CreateFCmpUNE(x.re, zero), b.CreateFCmpUNE(x.im, zero));
  }
  if (is_integer(type)) return b.CreateICmpNE(x.re, llvm::Constant::getNullValue(x.re->getType()));
  llvm::Value* wide = convert(x, type, type == DType::f64 ? DType::f64 : DType::f32).re;
  return b.CreateFCmpUNE(wide, llvm::Constant::getNullValue(wide->getType()));
}

Lanes VectorEmitter::convert(const Lanes& x, DType from, DType to) {
  if (from == to) return x;
  if (to == DType::pred) return {is_true(x, from)};
  if (is_complex(to)) {
    const DType part = real_of(to);
    Lanes re = convert({x.re}, real_of(from), part);
    Lanes im = is_complex(from) ? convert({x.im}, real_of(from), part) : zero(part);
    return {re.re, im.re};
  }
  if (is_complex(from)) return convert({x.re}, real_of(from), to);
  const bool from_wide_float = from == DType::f32 || from == DType::f64;
  if (is_floating(from) && !from_wide_float) {
    llvm::Value* wide = widen_small(x.re, from);
    return convert({wide}, DType::f32, to);
  }
  if (from_wide_float) {
    if (to == DType::f64) return {b.CreateFPExt(x.re, vector_type(to))};
    if (to == DType::f32) return {b.CreateFPTrunc(x.re, vector_type(to))};
    if (is_floating(to)) {
      // A double is rounded through float, as torch does.
      llvm::Value* single = convert(x, from, DType::f32).re;
      return {narrow_small(single, to)};
    }
    return {float_to_int(x.re, lane_type(to), is_signed_integer(to))};
  }
  // From an integer or pred.
  const bool is_signed = is_signed_integer(from);
  if (is_floating(to)) {
    const DType wide = to == DType::f64 ? DType::f64 : DType::f32;
    llvm::Type* type = vector_type(wide);
    llvm::Value* number = is_signed ? b.CreateSIToFP(x.re, type) : b.CreateUIToFP(x.re, type);
    if (to == wide) return {number};
    return {narrow_small(number, to)};
  }
  llvm::Type* type = vector_type(to);
  return {is_signed ? b.CreateSExtOrTrunc(x.re, type) : b.CreateZExtOrTrunc(x.re, type)};
}

}  // namespace neuron::compiler::cpu
