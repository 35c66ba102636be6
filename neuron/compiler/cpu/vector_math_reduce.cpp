#include <llvm/IR/Constants.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/IR/Module.h>

#include "neuron/compiler/cpu/vector_math_builder.h"

// Reduction of huge arguments of sine and cosine: the product with 2 / pi to as many bits as the
// argument's exponent asks for. One lane at a time, in a function of its own that is called only
// when some lane needs it.
namespace neuron::compiler::cpu {
namespace {

using llvm::Value;

constexpr char kReduceName[] = "reduce_large_angle";

// Bits of 2 / pi behind the point, in words of 64, most significant first.
constexpr uint64_t kTwoOverPi[] = {
    0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561,
    0xb7246e3a424dd2e0, 0x06492eea09d1921c, 0xfe1deb1cb129a73e, 0xe88235f52ebb4484,
    0xe99c7026b45f7e41, 0x3991d639835339f4, 0x9c845f8bbdf9283b, 0x1ff897ffde05980f,
    0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7, 0x4f463f669e5fea2d, 0x7527bac7ebe5f17b,
    0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab, 0xf0cfbc209af4361d,
};
// Zero words in front stand for the integer bits, so that small exponents need no special case.
constexpr int kLeadingWords = 1;

// void reduce(double* a, double* low, int64_t* quadrant), for 16 lanes: lanes above the limit are
// replaced by their remainder modulo pi / 2 (as a sum) and the number of quarters.
llvm::Function* reduce_function(llvm::Module& module, double limit) {
  const std::string name = std::string(kReduceName);
  if (llvm::Function* there = module.getFunction(name)) return there;
  llvm::LLVMContext& context = module.getContext();
  llvm::IRBuilder<> b(context);
  llvm::Type* pointer = b.getPtrTy();
  llvm::Type* i64 = b.getInt64Ty();
  llvm::Type* i128 = b.getInt128Ty();
  llvm::Type* f64 = b.getDoubleTy();
  auto* type = llvm::FunctionType::get(b.getVoidTy(), {pointer, pointer, pointer}, false);
  auto* function = llvm::Function::Create(type, llvm::GlobalValue::InternalLinkage, name, module);
  function->addFnAttr(llvm::Attribute::NoInline);
  function->addFnAttr(llvm::Attribute::Cold);
  function->addFnAttr(llvm::Attribute::NoUnwind);
  std::vector<uint64_t> words(kLeadingWords, 0);
  words.insert(words.end(), std::begin(kTwoOverPi), std::end(kTwoOverPi));
  llvm::Constant* data = llvm::ConstantDataArray::get(context, words);
  auto* table = new llvm::GlobalVariable(module, data->getType(), true,
                                         llvm::GlobalValue::PrivateLinkage, data, "two_over_pi");
  table->setAlignment(llvm::Align(8));

  Value* values = function->getArg(0);
  Value* lows = function->getArg(1);
  Value* quadrants = function->getArg(2);
  auto* entry = llvm::BasicBlock::Create(context, "entry", function);
  auto* head = llvm::BasicBlock::Create(context, "lane", function);
  auto* reduce = llvm::BasicBlock::Create(context, "reduce", function);
  auto* next = llvm::BasicBlock::Create(context, "next", function);
  auto* done = llvm::BasicBlock::Create(context, "done", function);
  b.SetInsertPoint(entry);
  b.CreateBr(head);
  b.SetInsertPoint(head);
  llvm::PHINode* lane = b.CreatePHI(i64, 2);
  lane->addIncoming(b.getInt64(0), entry);
  Value* value_pointer = b.CreateGEP(f64, values, lane);
  Value* x = b.CreateAlignedLoad(f64, value_pointer, llvm::Align(8));
  Value* large = b.CreateAnd(b.CreateFCmpOGT(x, llvm::ConstantFP::get(f64, limit)),
                             b.CreateFCmpOLT(x, llvm::ConstantFP::getInfinity(f64)));
  b.CreateCondBr(large, reduce, next);

  b.SetInsertPoint(reduce);
  Value* bits = b.CreateBitCast(x, i64);
  Value* mantissa =
      b.CreateOr(b.CreateAnd(bits, b.getInt64((1ull << 52) - 1)), b.getInt64(1ull << 52));
  // x = mantissa * 2^e. The bits of 2 / pi above position e - 2 give multiples of 4 quarters.
  Value* e = b.CreateSub(b.CreateLShr(bits, b.getInt64(52)), b.getInt64(1075));
  // Skip e - 2 bits; the table starts with one word of zeros, so add 64.
  Value* skip = b.CreateAdd(e, b.getInt64(62));
  Value* word = b.CreateLShr(skip, b.getInt64(6));
  Value* shift = b.CreateAnd(skip, b.getInt64(63));
  const auto wide = [&](Value* v) { return b.CreateZExt(v, i128); };
  const auto table_word = [&](int offset) -> Value* {
    Value* at = b.CreateGEP(i64, table, b.CreateAdd(word, b.getInt64(offset)));
    return b.CreateAlignedLoad(i64, at, llvm::Align(8));
  };
  // 64 bits of the table from the bit position on.
  const auto window = [&](int offset) {
    Value* both = b.CreateOr(b.CreateShl(wide(table_word(offset)), wide(b.getInt64(64))),
                             wide(table_word(offset + 1)));
    Value* moved = b.CreateShl(both, wide(shift));
    return b.CreateTrunc(b.CreateLShr(moved, wide(b.getInt64(64))), i64);
  };
  // mantissa * (w0 w1 w2), of which the low 192 bits count: the top two of them are the quadrant.
  Value* m = wide(mantissa);
  Value* p0 = b.CreateMul(m, wide(window(0)));
  Value* p1 = b.CreateMul(m, wide(window(1)));
  Value* p2 = b.CreateMul(m, wide(window(2)));
  // As a fraction of 128 bits: p0 * 2^64 + p1 + (p2 >> 64), modulo 2^128.
  Value* fraction = b.CreateAdd(b.CreateShl(p0, wide(b.getInt64(64))),
                                b.CreateAdd(p1, b.CreateLShr(p2, wide(b.getInt64(64)))));
  Value* top = b.CreateTrunc(b.CreateLShr(fraction, wide(b.getInt64(126))), i64);
  // To the nearest quarter: the remainder as a signed fraction of 126 bits.
  Value* rest = b.CreateShl(fraction, wide(b.getInt64(2)));
  Value* up = b.CreateICmpSLT(rest, llvm::ConstantInt::get(i128, 0));
  Value* quadrant = b.CreateAdd(top, b.CreateZExt(up, i64));
  Value* magnitude = b.CreateSelect(up, b.CreateNeg(rest), rest);
  // Normalise, so that small remainders keep all their digits.
  Value* high_word = b.CreateTrunc(b.CreateLShr(magnitude, wide(b.getInt64(64))), i64);
  Value* high_zero = b.CreateICmpEQ(high_word, b.getInt64(0));
  Value* low_word = b.CreateTrunc(magnitude, i64);
  Value* leading_of_high = b.CreateBinaryIntrinsic(llvm::Intrinsic::ctlz, high_word, b.getFalse());
  Value* leading_of_low = b.CreateBinaryIntrinsic(llvm::Intrinsic::ctlz, low_word, b.getFalse());
  Value* leading =
      b.CreateSelect(high_zero, b.CreateAdd(leading_of_low, b.getInt64(64)), leading_of_high);
  leading = b.CreateSelect(b.CreateICmpUGT(leading, b.getInt64(127)), b.getInt64(127), leading);
  Value* normal = b.CreateShl(magnitude, wide(leading));
  // Two doubles of 52 bits each from the top.
  Value* first = b.CreateTrunc(b.CreateLShr(normal, wide(b.getInt64(76))), i64);
  Value* second = b.CreateAnd(b.CreateTrunc(b.CreateLShr(normal, wide(b.getInt64(24))), i64),
                              b.getInt64((1ull << 52) - 1));
  Value* scale_bits = b.CreateShl(b.CreateSub(b.getInt64(1023 - 52), leading), b.getInt64(52));
  Value* scale = b.CreateBitCast(scale_bits, f64);
  Value* high = b.CreateFMul(b.CreateSIToFP(first, f64), scale);
  Value* low = b.CreateFMul(b.CreateFMul(b.CreateSIToFP(second, f64), scale),
                            llvm::ConstantFP::get(f64, 0x1p-52));
  // Times pi / 2.
  Value* half_pi = llvm::ConstantFP::get(f64, 0x1.921fb54442d18p+0);
  Value* half_pi_low = llvm::ConstantFP::get(f64, 0x1.1a62633145c07p-54);
  const auto fma = [&](Value* p, Value* q, Value* r) {
    return b.CreateIntrinsic(llvm::Intrinsic::fma, {f64}, {p, q, r});
  };
  Value* product = b.CreateFMul(high, half_pi);
  Value* lost = fma(high, half_pi, b.CreateFNeg(product));
  lost = fma(high, half_pi_low, lost);
  lost = fma(low, half_pi, lost);
  Value* sum = b.CreateFAdd(product, lost);
  Value* sum_low = b.CreateFAdd(b.CreateFSub(product, sum), lost);
  sum = b.CreateSelect(up, b.CreateFNeg(sum), sum);
  sum_low = b.CreateSelect(up, b.CreateFNeg(sum_low), sum_low);
  b.CreateAlignedStore(sum, value_pointer, llvm::Align(8));
  b.CreateAlignedStore(sum_low, b.CreateGEP(f64, lows, lane), llvm::Align(8));
  b.CreateAlignedStore(quadrant, b.CreateGEP(i64, quadrants, lane), llvm::Align(8));
  b.CreateBr(next);

  b.SetInsertPoint(next);
  Value* following = b.CreateAdd(lane, b.getInt64(1));
  lane->addIncoming(following, next);
  b.CreateCondBr(b.CreateICmpEQ(following, b.getInt64(kLanes)), done, head);
  b.SetInsertPoint(done);
  b.CreateRetVoid();
  return function;
}

}  // namespace

// The short reduction is exact enough while the number of quarters has at most 20 bits; results of
// floats need fewer digits of it.
void MathBuilder::reduce_large(V a, V* r, V* low, V* quadrant) {
  const double limit = single_ ? 0x1p28 : 0x1p19;
  llvm::Type* f64 = llvm::FixedVectorType::get(b.getDoubleTy(), kLanes);
  llvm::Type* i64 = llvm::FixedVectorType::get(b.getInt64Ty(), kLanes);
  llvm::Value* large = b.CreateAnd(b.CreateFCmpOGT(a, llvm::ConstantFP::get(f64, limit)),
                                   b.CreateFCmpOLT(a, llvm::ConstantFP::getInfinity(f64)));
  llvm::BasicBlock* before = b.GetInsertBlock();
  llvm::Function* function = before->getParent();
  auto* slow = llvm::BasicBlock::Create(b.getContext(), "large", function);
  auto* after = llvm::BasicBlock::Create(b.getContext(), "reduced", function);
  llvm::MDNode* unlikely = llvm::MDBuilder(b.getContext()).createBranchWeights(1, 100000);
  b.CreateCondBr(b.CreateOrReduce(large), slow, after, unlikely);
  b.SetInsertPoint(slow);
  const auto slot = [&](llvm::Type* type) -> llvm::AllocaInst* {
    llvm::IRBuilder<> top(&function->getEntryBlock(), function->getEntryBlock().begin());
    llvm::AllocaInst* memory = top.CreateAlloca(type);
    memory->setAlignment(llvm::Align(64));
    return memory;
  };
  llvm::AllocaInst* values = slot(f64);
  llvm::AllocaInst* lows = slot(f64);
  llvm::AllocaInst* quadrants = slot(i64);
  b.CreateStore(b.CreateSelect(large, a, *r), values);
  b.CreateStore(*low, lows);
  b.CreateStore(*quadrant, quadrants);
  b.CreateCall(reduce_function(*function->getParent(), 0x1p19), {values, lows, quadrants});
  llvm::Value* new_r = b.CreateLoad(f64, values);
  llvm::Value* new_low = b.CreateLoad(f64, lows);
  llvm::Value* new_quadrant = b.CreateLoad(i64, quadrants);
  b.CreateBr(after);
  b.SetInsertPoint(after);
  const auto merge = [&](llvm::Value* fast, llvm::Value* exact) {
    llvm::PHINode* phi = b.CreatePHI(fast->getType(), 2);
    phi->addIncoming(fast, before);
    phi->addIncoming(exact, slow);
    return phi;
  };
  *r = merge(*r, new_r);
  *low = merge(*low, new_low);
  *quadrant = merge(*quadrant, new_quadrant);
}

}  // namespace neuron::compiler::cpu
