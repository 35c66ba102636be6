#include "neuron/compiler/cpu/vector_math_builder.h"

#include <llvm/IR/Constants.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/IntrinsicsX86.h>

namespace neuron::compiler::cpu {

namespace Intrinsic = llvm::Intrinsic;

MathBuilder::MathBuilder(llvm::IRBuilderBase& builder, llvm::Type* vector, TargetTraits traits)
    : b(builder), type_(vector), traits_(traits), single_(vector->getScalarType()->isFloatTy()) {
  int_type_ = llvm::FixedVectorType::get(single_ ? b.getInt32Ty() : b.getInt64Ty(), kLanes);
}

MathBuilder::V MathBuilder::c(double value) { return llvm::ConstantFP::get(type_, value); }
MathBuilder::V MathBuilder::i(int64_t value) {
  return llvm::ConstantInt::get(int_type_, static_cast<uint64_t>(value));
}
MathBuilder::V MathBuilder::infinity() { return llvm::ConstantFP::getInfinity(type_); }
MathBuilder::V MathBuilder::nan() { return llvm::ConstantFP::getNaN(type_); }
MathBuilder::V MathBuilder::add(V x, V y) { return b.CreateFAdd(x, y); }
MathBuilder::V MathBuilder::sub(V x, V y) { return b.CreateFSub(x, y); }
MathBuilder::V MathBuilder::mul(V x, V y) { return b.CreateFMul(x, y); }
MathBuilder::V MathBuilder::div(V x, V y) { return b.CreateFDiv(x, y); }
MathBuilder::V MathBuilder::fma(V x, V y, V z) {
  return b.CreateIntrinsic(Intrinsic::fma, {type_}, {x, y, z});
}
MathBuilder::V MathBuilder::neg(V x) { return b.CreateFNeg(x); }
MathBuilder::V MathBuilder::abs(V x) { return b.CreateUnaryIntrinsic(Intrinsic::fabs, x); }
MathBuilder::V MathBuilder::sqrt(V x) { return b.CreateUnaryIntrinsic(Intrinsic::sqrt, x); }
MathBuilder::V MathBuilder::floor(V x) { return b.CreateUnaryIntrinsic(Intrinsic::floor, x); }
MathBuilder::V MathBuilder::trunc(V x) { return b.CreateUnaryIntrinsic(Intrinsic::trunc, x); }
MathBuilder::V MathBuilder::copysign(V magnitude, V sign) {
  return b.CreateBinaryIntrinsic(Intrinsic::copysign, magnitude, sign);
}
MathBuilder::V MathBuilder::select(V mask, V x, V y) { return b.CreateSelect(mask, x, y); }
MathBuilder::V MathBuilder::bits(V x) { return b.CreateBitCast(x, int_type_); }
MathBuilder::V MathBuilder::real(V x) { return b.CreateBitCast(x, type_); }
MathBuilder::V MathBuilder::lt(V x, V y) { return b.CreateFCmpOLT(x, y); }
MathBuilder::V MathBuilder::le(V x, V y) { return b.CreateFCmpOLE(x, y); }
MathBuilder::V MathBuilder::gt(V x, V y) { return b.CreateFCmpOGT(x, y); }
MathBuilder::V MathBuilder::ge(V x, V y) { return b.CreateFCmpOGE(x, y); }
MathBuilder::V MathBuilder::eq(V x, V y) { return b.CreateFCmpOEQ(x, y); }
MathBuilder::V MathBuilder::is_nan(V x) { return b.CreateFCmpUNO(x, x); }
MathBuilder::V MathBuilder::both(V x, V y) { return b.CreateAnd(x, y); }
MathBuilder::V MathBuilder::either(V x, V y) { return b.CreateOr(x, y); }
MathBuilder::V MathBuilder::at_most(V x, double limit) {
  return select(gt(x, c(limit)), c(limit), x);
}
MathBuilder::V MathBuilder::at_least(V x, double limit) {
  return select(lt(x, c(limit)), c(limit), x);
}

MathBuilder::V MathBuilder::poly(V x, std::initializer_list<double> coefficients) {
  const double* last = coefficients.end() - 1;
  V sum = c(*last);
  while (last != coefficients.begin()) sum = fma(sum, x, c(*--last));
  return sum;
}

// Adding 1.5 * 2^(mantissa bits) leaves the rounded integer in the low bits of the sum.
MathBuilder::V MathBuilder::round(V x, V* low) {
  V magic = c(single_ ? 0x1.8p23 : 0x1.8p52);
  V shifted = add(x, magic);
  *low = bits(shifted);
  return sub(shifted, magic);
}

MathBuilder::V MathBuilder::round_product(V x, V factor, V* low) {
  V magic = c(single_ ? 0x1.8p23 : 0x1.8p52);
  V shifted = fma(x, factor, magic);
  *low = bits(shifted);
  return sub(shifted, magic);
}

MathBuilder::V MathBuilder::power_of_two(V low) {
  const int mantissa = single_ ? 23 : 52;
  return real(b.CreateAdd(b.CreateShl(low, i(mantissa)), bits(c(1.0))));
}

MathBuilder::V MathBuilder::scale(V x, V n, V low) {
  if (traits_.avx512) {
    const auto scaled = [&](V part, V exponent, Intrinsic::ID id, int lanes) -> V {
      return b.CreateIntrinsic(id, {},
                               {part, exponent, part, b.getIntN(lanes, ~0u), b.getInt32(4)});
    };
    if (single_) return scaled(x, n, Intrinsic::x86_avx512_mask_scalef_ps_512, 16);
    const int low_half[] = {0, 1, 2, 3, 4, 5, 6, 7};
    const int high_half[] = {8, 9, 10, 11, 12, 13, 14, 15};
    const int all[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    V first = scaled(b.CreateShuffleVector(x, low_half), b.CreateShuffleVector(n, low_half),
                     Intrinsic::x86_avx512_mask_scalef_pd_512, 8);
    V second = scaled(b.CreateShuffleVector(x, high_half), b.CreateShuffleVector(n, high_half),
                      Intrinsic::x86_avx512_mask_scalef_pd_512, 8);
    return b.CreateShuffleVector(first, second, all);
  }
  // Two factors, so that neither overflows; the first product is exact.
  const int mantissa = single_ ? 23 : 52;
  V magic = bits(c(single_ ? 0x1.8p23 : 0x1.8p52));
  V whole = b.CreateSub(low, magic);
  V half = b.CreateAShr(whole, i(1));
  V rest = b.CreateSub(whole, half);
  V one = bits(c(1.0));
  V first = real(b.CreateAdd(b.CreateShl(half, i(mantissa)), one));
  V second = real(b.CreateAdd(b.CreateShl(rest, i(mantissa)), one));
  return mul(mul(x, first), second);
}

}  // namespace neuron::compiler::cpu
