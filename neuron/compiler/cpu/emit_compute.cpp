#include <llvm/IR/Constants.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Intrinsics.h>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/emit_vector.h"
#include "neuron/compiler/cpu/vector_math.h"

// Compute statements: one hlo op on 16 lanes.
namespace neuron::compiler::cpu {
namespace {

using hlo::Direction;
using hlo::Op;
using llvm::Value;
namespace Intrinsic = llvm::Intrinsic;

bool is_small_float(DType type) {
  return is_floating(type) && type != DType::f32 && type != DType::f64;
}

llvm::CmpInst::Predicate float_predicate(int64_t direction) {
  switch (static_cast<Direction>(direction)) {
    case Direction::EQ:
      return llvm::CmpInst::FCMP_OEQ;
    case Direction::NE:
      return llvm::CmpInst::FCMP_UNE;
    case Direction::LT:
      return llvm::CmpInst::FCMP_OLT;
    case Direction::LE:
      return llvm::CmpInst::FCMP_OLE;
    case Direction::GT:
      return llvm::CmpInst::FCMP_OGT;
    case Direction::GE:
      return llvm::CmpInst::FCMP_OGE;
  }
  raise(ErrorKind::kInternal, "bad compare direction ", direction);
}

llvm::CmpInst::Predicate int_predicate(int64_t direction, bool is_signed) {
  switch (static_cast<Direction>(direction)) {
    case Direction::EQ:
      return llvm::CmpInst::ICMP_EQ;
    case Direction::NE:
      return llvm::CmpInst::ICMP_NE;
    case Direction::LT:
      return is_signed ? llvm::CmpInst::ICMP_SLT : llvm::CmpInst::ICMP_ULT;
    case Direction::LE:
      return is_signed ? llvm::CmpInst::ICMP_SLE : llvm::CmpInst::ICMP_ULE;
    case Direction::GT:
      return is_signed ? llvm::CmpInst::ICMP_SGT : llvm::CmpInst::ICMP_UGT;
    case Direction::GE:
      return is_signed ? llvm::CmpInst::ICMP_SGE : llvm::CmpInst::ICMP_UGE;
  }
  raise(ErrorKind::kInternal, "bad compare direction ", direction);
}

[[noreturn]] void no_code(Op op, DType type) {
  raise(ErrorKind::kUnsupported, "the CPU code generator has no ", hlo::name_of(op), " for ",
        name_of(type));
}

}  // namespace

bool supports(Op op, DType type) {
  if (op == Op::Power) return !is_complex(type) && type != DType::pred;
  if (is_complex(type)) {
    switch (op) {
      case Op::Convert:
      case Op::Abs:
      case Op::Negate:
      case Op::Real:
      case Op::Imag:
      case Op::Add:
      case Op::Subtract:
      case Op::Multiply:
      case Op::Divide:
      case Op::Compare:
      case Op::Select:
        return true;
      default:
        return false;
    }
  }
  switch (op) {
    case Op::Convert:
    case Op::BitcastConvert:
    case Op::Compare:
    case Op::Select:
      return true;
    case Op::Add:
    case Op::Multiply:
    case Op::Maximum:
    case Op::Minimum:
      return true;
    case Op::Not:
    case Op::And:
    case Op::Or:
    case Op::Xor:
      return is_integer(type) || type == DType::pred;
    case Op::ShiftLeft:
    case Op::ShiftRightArithmetic:
    case Op::ShiftRightLogical:
    case Op::Popcnt:
      return is_integer(type);
    case Op::Abs:
    case Op::Negate:
    case Op::Sign:
    case Op::Subtract:
    case Op::Divide:
    case Op::Remainder:
      return type != DType::pred;
    case Op::Real:
      return is_floating(type);
    case Op::Complex:
      return type == DType::f32 || type == DType::f64;
    case Op::NextAfter:
      return type == DType::f32 || type == DType::f64;
    case Op::Sqrt:
    case Op::Ceil:
    case Op::Floor:
    case Op::Trunc:
    case Op::RoundNearestEven:
    case Op::IsFinite:
    case Op::IsNan:
    case Op::Fma:
    case Op::Atan2:
      return is_floating(type);
    default:
      return is_floating(type) && VectorMath::has(op);
  }
}

Lanes VectorEmitter::select(Value* mask, const Lanes& on_true, const Lanes& on_false) {
  Lanes result = {b.CreateSelect(mask, on_true.re, on_false.re)};
  if (on_true.im != nullptr) result.im = b.CreateSelect(mask, on_true.im, on_false.im);
  return result;
}

Lanes VectorEmitter::compute(Op op, DType type, std::span<const Lanes> in, int64_t number,
                             DType result) {
  switch (op) {
    case Op::Convert:
      return convert(in[0], type, result);
    case Op::Select:
      return select(in[0].re, in[1], in[2]);
    case Op::Complex:
      return {in[0].re, in[1].re};
    case Op::BitcastConvert:
      if (type == result) return in[0];
      if (type == DType::pred) return {b.CreateZExt(in[0].re, vector_type(result))};
      if (result == DType::pred) {
        return {b.CreateICmpNE(in[0].re, llvm::Constant::getNullValue(in[0].re->getType()))};
      }
      if (is_complex(type) || is_complex(result)) no_code(op, type);
      return {b.CreateBitCast(in[0].re, vector_type(result))};
    default:
      break;
  }
  if (is_complex(type)) return compute_complex(op, type, in, number);
  Value* parts[3] = {};
  NEURON_ASSERT(in.size() <= 3);
  const bool small = is_small_float(type);
  for (size_t i = 0; i < in.size(); ++i) {
    parts[i] = small ? widen_small(in[i].re, type) : in[i].re;
  }
  if (!is_floating(type)) return {compute_int(op, type, {parts, in.size()}, number)};
  Value* value = compute_float(op, {parts, in.size()}, number);
  const bool predicate = op == Op::Compare || op == Op::IsFinite || op == Op::IsNan;
  return {small && !predicate ? narrow_small(value, type) : value};
}

Value* VectorEmitter::compute_float(Op op, std::span<Value* const> in, int64_t number) {
  llvm::Type* type = in[0]->getType();
  const auto intrinsic = [&](Intrinsic::ID id) -> Value* {
    return b.CreateUnaryIntrinsic(id, in[0]);
  };
  const auto real = [&](double value) { return llvm::ConstantFP::get(type, value); };
  switch (op) {
    case Op::Add:
      return b.CreateFAdd(in[0], in[1]);
    case Op::Subtract:
      return b.CreateFSub(in[0], in[1]);
    case Op::Multiply:
      return b.CreateFMul(in[0], in[1]);
    case Op::Divide:
      return b.CreateFDiv(in[0], in[1]);
    case Op::Fma:
      return b.CreateIntrinsic(Intrinsic::fma, {type}, {in[0], in[1], in[2]});
    // Compare and select, not maxnum: NaN wins.
    case Op::Maximum:
    case Op::Minimum: {
      Value* better =
          op == Op::Maximum ? b.CreateFCmpOGT(in[1], in[0]) : b.CreateFCmpOLT(in[1], in[0]);
      Value* best = b.CreateSelect(better, in[1], in[0]);
      return b.CreateSelect(b.CreateFCmpUNO(in[1], in[1]), in[1], best);
    }
    case Op::Compare:
      return b.CreateFCmp(float_predicate(number), in[0], in[1]);
    case Op::Abs:
      return intrinsic(Intrinsic::fabs);
    case Op::Negate:
      return b.CreateFNeg(in[0]);
    case Op::Real:
      return in[0];
    case Op::Sign: {
      Value* zero = llvm::Constant::getNullValue(type);
      Value* negative = b.CreateSelect(b.CreateFCmpOLT(in[0], zero), real(-1), zero);
      return b.CreateSelect(b.CreateFCmpOGT(in[0], zero), real(1), negative);
    }
    case Op::Sqrt:
      return intrinsic(Intrinsic::sqrt);
    case Op::Rsqrt:
      return b.CreateFDiv(real(1), intrinsic(Intrinsic::sqrt));
    case Op::Ceil:
      return intrinsic(Intrinsic::ceil);
    case Op::Floor:
      return intrinsic(Intrinsic::floor);
    case Op::Trunc:
      return intrinsic(Intrinsic::trunc);
    case Op::RoundNearestEven:
      return intrinsic(Intrinsic::roundeven);
    case Op::IsNan:
      return b.CreateFCmpUNO(in[0], in[0]);
    case Op::IsFinite:
      return b.CreateFCmpOLT(intrinsic(Intrinsic::fabs), llvm::ConstantFP::getInfinity(type));
    case Op::Power:
      return VectorMath(b, traits).power(in[0], in[1]);
    case Op::Atan2:
      return VectorMath(b, traits).atan2(in[0], in[1]);
    case Op::Remainder:
      return VectorMath(b, traits).fmod(in[0], in[1]);
    case Op::NextAfter:
      return VectorMath(b, traits).next_after(in[0], in[1]);
    default:
      break;
  }
  if (!VectorMath::has(op))
    no_code(op, type->getScalarType()->isFloatTy() ? DType::f32 : DType::f64);
  return VectorMath(b, traits).unary(op, in[0]);
}

// Division that neither traps nor is undefined: x / 0 = -1, x % 0 = x, MIN / -1 = MIN.
Value* VectorEmitter::divide_int(DType type, Value* x, Value* y, bool remainder) {
  llvm::Type* vector = x->getType();
  const bool is_signed = is_signed_integer(type);
  const unsigned bits = vector->getScalarSizeInBits();
  llvm::Constant* zero = llvm::Constant::getNullValue(vector);
  llvm::Constant* ones = llvm::Constant::getAllOnesValue(vector);
  llvm::Constant* one = llvm::ConstantInt::get(vector, 1);
  Value* by_zero = b.CreateICmpEQ(y, zero);
  Value* safe = b.CreateSelect(by_zero, one, y);
  Value* quotient;
  if (bits < 64) {
    // The float quotient is exact enough: it differs from an integer by more than its rounding.
    llvm::Type* real = vector_of(bits == 32 ? b.getDoubleTy() : b.getFloatTy());
    llvm::Type* wide = vector_of(bits == 32 ? b.getInt64Ty() : b.getInt32Ty());
    Value* a = is_signed ? b.CreateSIToFP(x, real) : b.CreateUIToFP(x, real);
    Value* d = is_signed ? b.CreateSIToFP(safe, real) : b.CreateUIToFP(safe, real);
    Value* ratio = b.CreateFDiv(a, d);
    quotient = b.CreateTrunc(b.CreateFPToSI(ratio, wide), vector);
  } else if (is_signed) {
    Value* minus_one = b.CreateICmpEQ(safe, ones);
    Value* divided = b.CreateSDiv(x, b.CreateSelect(minus_one, one, safe));
    quotient = b.CreateSelect(minus_one, b.CreateNeg(x), divided);
  } else {
    quotient = b.CreateUDiv(x, safe);
  }
  if (!remainder) return b.CreateSelect(by_zero, ones, quotient);
  return b.CreateSelect(by_zero, x, b.CreateSub(x, b.CreateMul(quotient, y)));
}

// Square and multiply; the loop ends when no lane has exponent bits left. Negative exponents: the
// integer part of the true result.
Value* VectorEmitter::power_int(DType type, Value* x, Value* y) {
  llvm::Type* vector = x->getType();
  llvm::Constant* zero = llvm::Constant::getNullValue(vector);
  llvm::Constant* one = llvm::ConstantInt::get(vector, 1);
  llvm::Function* function = b.GetInsertBlock()->getParent();
  llvm::BasicBlock* before = b.GetInsertBlock();
  auto* loop = llvm::BasicBlock::Create(b.getContext(), "power", function);
  auto* after = llvm::BasicBlock::Create(b.getContext(), "power.done", function);
  b.CreateBr(loop);
  b.SetInsertPoint(loop);
  llvm::PHINode* base = b.CreatePHI(vector, 2);
  llvm::PHINode* rest = b.CreatePHI(vector, 2);
  llvm::PHINode* product = b.CreatePHI(vector, 2);
  Value* odd = b.CreateICmpNE(b.CreateAnd(rest, one), zero);
  Value* next_product = b.CreateSelect(odd, b.CreateMul(product, base), product);
  Value* next_base = b.CreateMul(base, base);
  Value* next_rest = b.CreateLShr(rest, one);
  base->addIncoming(x, before);
  base->addIncoming(next_base, loop);
  rest->addIncoming(y, before);
  rest->addIncoming(next_rest, loop);
  product->addIncoming(one, before);
  product->addIncoming(next_product, loop);
  b.CreateCondBr(b.CreateOrReduce(b.CreateICmpNE(next_rest, zero)), loop, after);
  b.SetInsertPoint(after);
  if (!is_signed_integer(type)) return next_product;
  llvm::Constant* minus_one = llvm::Constant::getAllOnesValue(vector);
  Value* is_odd = b.CreateICmpNE(b.CreateAnd(y, one), zero);
  Value* inverse = b.CreateSelect(b.CreateICmpEQ(x, one), one, zero);
  inverse =
      b.CreateSelect(b.CreateICmpEQ(x, minus_one), b.CreateSelect(is_odd, minus_one, one), inverse);
  return b.CreateSelect(b.CreateICmpSLT(y, zero), inverse, next_product);
}

Value* VectorEmitter::compute_int(Op op, DType type, std::span<Value* const> in, int64_t number) {
  llvm::Type* vector = in[0]->getType();
  const bool is_signed = is_signed_integer(type);
  const bool is_pred = type == DType::pred;
  const unsigned bits = vector->getScalarSizeInBits();
  llvm::Constant* zero = llvm::Constant::getNullValue(vector);
  switch (op) {
    case Op::Add:
      return is_pred ? b.CreateOr(in[0], in[1]) : b.CreateAdd(in[0], in[1]);
    case Op::Subtract:
      return b.CreateSub(in[0], in[1]);
    case Op::Multiply:
      return is_pred ? b.CreateAnd(in[0], in[1]) : b.CreateMul(in[0], in[1]);
    case Op::Divide:
      return divide_int(type, in[0], in[1], false);
    case Op::Remainder:
      return divide_int(type, in[0], in[1], true);
    case Op::Power:
      return power_int(type, in[0], in[1]);
    case Op::Maximum:
      if (is_pred) return b.CreateOr(in[0], in[1]);
      return b.CreateBinaryIntrinsic(is_signed ? Intrinsic::smax : Intrinsic::umax, in[0], in[1]);
    case Op::Minimum:
      if (is_pred) return b.CreateAnd(in[0], in[1]);
      return b.CreateBinaryIntrinsic(is_signed ? Intrinsic::smin : Intrinsic::umin, in[0], in[1]);
    case Op::And:
      return b.CreateAnd(in[0], in[1]);
    case Op::Or:
      return b.CreateOr(in[0], in[1]);
    case Op::Xor:
      return b.CreateXor(in[0], in[1]);
    case Op::Not:
      return b.CreateNot(in[0]);
    case Op::Compare:
      return b.CreateICmp(int_predicate(number, is_signed), in[0], in[1]);
    case Op::Negate:
      return b.CreateNeg(in[0]);
    case Op::Abs:
      if (!is_signed) return in[0];
      return b.CreateSelect(b.CreateICmpSLT(in[0], zero), b.CreateNeg(in[0]), in[0]);
    case Op::Sign: {
      Value* positive = b.CreateZExt(b.CreateICmpNE(in[0], zero), vector);
      if (!is_signed) return positive;
      return b.CreateSelect(b.CreateICmpSLT(in[0], zero), llvm::Constant::getAllOnesValue(vector),
                            positive);
    }
    case Op::Popcnt:
      return b.CreateUnaryIntrinsic(Intrinsic::ctpop, in[0]);
    case Op::ShiftLeft:
    case Op::ShiftRightLogical:
    case Op::ShiftRightArithmetic: {
      // Unsigned comparison catches negative amounts as well.
      llvm::Constant* width = llvm::ConstantInt::get(vector, bits);
      Value* inside = b.CreateICmpULT(in[1], width);
      if (op == Op::ShiftRightArithmetic) {
        llvm::Constant* most = llvm::ConstantInt::get(vector, bits - 1);
        return b.CreateAShr(in[0], b.CreateSelect(inside, in[1], most));
      }
      Value* amount = b.CreateSelect(inside, in[1], zero);
      Value* shifted =
          op == Op::ShiftLeft ? b.CreateShl(in[0], amount) : b.CreateLShr(in[0], amount);
      return b.CreateSelect(inside, shifted, zero);
    }
    default:
      no_code(op, type);
  }
}

Lanes VectorEmitter::compute_complex(Op op, DType type, std::span<const Lanes> in, int64_t number) {
  llvm::Type* part = in[0].re->getType();
  const auto sub_product = [&](Value* a, Value* x, Value* c, Value* y) {
    return b.CreateFSub(b.CreateFMul(a, x), b.CreateFMul(c, y));
  };
  const auto add_product = [&](Value* a, Value* x, Value* c, Value* y) {
    return b.CreateFAdd(b.CreateFMul(a, x), b.CreateFMul(c, y));
  };
  switch (op) {
    case Op::Add:
      return {b.CreateFAdd(in[0].re, in[1].re), b.CreateFAdd(in[0].im, in[1].im)};
    case Op::Subtract:
      return {b.CreateFSub(in[0].re, in[1].re), b.CreateFSub(in[0].im, in[1].im)};
    case Op::Negate:
      return {b.CreateFNeg(in[0].re), b.CreateFNeg(in[0].im)};
    case Op::Real:
      return {in[0].re};
    case Op::Imag:
      return {in[0].im};
    case Op::Multiply:
      return {sub_product(in[0].re, in[1].re, in[0].im, in[1].im),
              add_product(in[0].re, in[1].im, in[0].im, in[1].re)};
    case Op::Divide: {
      // Scaled by the larger part of the divisor, so that its square cannot overflow.
      const auto absolute = [&](Value* x) { return b.CreateUnaryIntrinsic(Intrinsic::fabs, x); };
      Value* c = in[1].re;
      Value* d = in[1].im;
      Value* wide = b.CreateFCmpOGE(absolute(c), absolute(d));
      Value* big = b.CreateSelect(wide, c, d);
      Value* little = b.CreateSelect(wide, d, c);
      Value* ratio = b.CreateFDiv(little, big);
      Value* denominator = b.CreateFAdd(big, b.CreateFMul(little, ratio));
      Value* first = b.CreateSelect(wide, in[0].re, in[0].im);
      Value* second = b.CreateSelect(wide, in[0].im, in[0].re);
      Value* re = b.CreateFDiv(b.CreateFAdd(first, b.CreateFMul(second, ratio)), denominator);
      Value* im = b.CreateFDiv(b.CreateFSub(second, b.CreateFMul(first, ratio)), denominator);
      im = b.CreateSelect(wide, im, b.CreateFNeg(im));
      // A zero divisor: each part by zero, as torch.
      llvm::Constant* zero = llvm::Constant::getNullValue(part);
      Value* by_zero = b.CreateAnd(b.CreateFCmpOEQ(c, zero), b.CreateFCmpOEQ(d, zero));
      Value* plain = absolute(c);
      return {b.CreateSelect(by_zero, b.CreateFDiv(in[0].re, plain), re),
              b.CreateSelect(by_zero, b.CreateFDiv(in[0].im, plain), im)};
    }
    case Op::Abs: {
      if (type == DType::c64) {
        llvm::Type* wide = vector_of(b.getDoubleTy());
        Value* re = b.CreateFPExt(in[0].re, wide);
        Value* im = b.CreateFPExt(in[0].im, wide);
        Value* root = b.CreateUnaryIntrinsic(Intrinsic::sqrt, add_product(re, re, im, im));
        Value* length = b.CreateFPTrunc(root, part);
        return {infinite_if_either(length, in[0])};
      }
      Value* x = b.CreateUnaryIntrinsic(Intrinsic::fabs, in[0].re);
      Value* y = b.CreateUnaryIntrinsic(Intrinsic::fabs, in[0].im);
      Value* swap = b.CreateFCmpOGT(y, x);
      Value* big = b.CreateSelect(swap, y, x);
      Value* little = b.CreateSelect(swap, x, y);
      llvm::Constant* zero = llvm::Constant::getNullValue(part);
      llvm::Constant* one = llvm::ConstantFP::get(part, 1.0);
      Value* none = b.CreateFCmpOEQ(big, zero);
      Value* ratio = b.CreateFDiv(little, b.CreateSelect(none, one, big));
      Value* root =
          b.CreateUnaryIntrinsic(Intrinsic::sqrt, b.CreateFAdd(one, b.CreateFMul(ratio, ratio)));
      return {infinite_if_either(b.CreateFMul(big, root), in[0])};
    }
    case Op::Compare: {
      const bool equal = static_cast<Direction>(number) == Direction::EQ;
      if (!equal && static_cast<Direction>(number) != Direction::NE) no_code(op, type);
      Value* re = b.CreateFCmp(float_predicate(number), in[0].re, in[1].re);
      Value* im = b.CreateFCmp(float_predicate(number), in[0].im, in[1].im);
      return {equal ? b.CreateAnd(re, im) : b.CreateOr(re, im)};
    }
    default:
      no_code(op, type);
  }
}

// |inf + NaN i| is infinite.
Value* VectorEmitter::infinite_if_either(Value* length, const Lanes& z) {
  llvm::Constant* infinity = llvm::ConstantFP::getInfinity(length->getType());
  Value* re = b.CreateFCmpOEQ(b.CreateUnaryIntrinsic(Intrinsic::fabs, z.re), infinity);
  Value* im = b.CreateFCmpOEQ(b.CreateUnaryIntrinsic(Intrinsic::fabs, z.im), infinity);
  return b.CreateSelect(b.CreateOr(re, im), infinity, length);
}

// Words stay in the low halves of 64-bit lanes: the products want them there, and what gathers in
// the upper halves is never read.
void VectorEmitter::philox(Value* key, Value* counter, Value* words[4]) {
  llvm::Type* i64 = counter->getType();
  const auto number = [&](uint64_t value) { return llvm::ConstantInt::get(i64, value); };
  const auto high = [&](Value* x) { return b.CreateLShr(x, number(32)); };
  const auto product = [&](Value* x, uint32_t factor) {
    return b.CreateMul(b.CreateAnd(x, number(0xFFFFFFFFu)), number(factor));
  };
  Value* c0 = counter;
  Value* c1 = high(counter);
  Value* c2 = llvm::Constant::getNullValue(i64);
  Value* c3 = c2;
  Value* k0 = key;
  Value* k1 = high(key);
  for (int round = 0; round < 10; ++round) {
    if (round > 0) {
      k0 = b.CreateAdd(k0, number(0x9E3779B9u));
      k1 = b.CreateAdd(k1, number(0xBB67AE85u));
    }
    Value* p0 = product(c0, 0xD2511F53u);
    Value* p1 = product(c2, 0xCD9E8D57u);
    c0 = b.CreateXor(b.CreateXor(high(p1), c1), k0);
    c2 = b.CreateXor(b.CreateXor(high(p0), c3), k1);
    c1 = p1;
    c3 = p0;
  }
  Value* const results[4] = {c0, c1, c2, c3};
  for (int w = 0; w < 4; ++w) {
    words[w] = b.CreateTrunc(results[w], vector_of(b.getInt32Ty()));
  }
}

}  // namespace neuron::compiler::cpu
