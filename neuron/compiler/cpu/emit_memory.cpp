#include <llvm/IR/Constants.h>
#include <llvm/IR/IRBuilder.h>

#include <algorithm>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/emit_vector.h"

// Loads and stores of 16 elements: unit stride as one vector (masked at the end of a row), stride
// zero as one element, anything else through per-lane addresses.
namespace neuron::compiler::cpu {
namespace {

constexpr int kEven[kLanes] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
constexpr int kOdd[kLanes] = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
constexpr int kZip[2 * kLanes] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                  8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
constexpr int kTwice[2 * kLanes] = {0, 0, 1, 1, 2,  2,  3,  3,  4,  4,  5,  5,  6,  6,  7,  7,
                                    8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15};

llvm::Align align_of(llvm::Type* element) {
  const unsigned bits = element->getScalarSizeInBits();
  return llvm::Align(bits < 8 ? 1 : bits / 8);
}

}  // namespace

llvm::Value* VectorEmitter::element_pointer(DType type, llvm::Value* base, llvm::Value* index) {
  if (is_complex(type)) {
    return b.CreateGEP(b.getInt8Ty(), base,
                       b.CreateMul(index, i64(static_cast<int64_t>(size_of(type)))));
  }
  return b.CreateGEP(memory_type(type), base, index);
}

llvm::Value* VectorEmitter::interleaved_mask(llvm::Value* mask) {
  return mask == nullptr ? nullptr : b.CreateShuffleVector(mask, mask, kTwice);
}

// Without the AVX-512 masks, and for small elements, lanes are read one by one; lanes that are off
// read the dummy, which needs no branch.
llvm::Value* VectorEmitter::gather_vector(llvm::Type* element, llvm::Value* pointers,
                                          llvm::Value* mask, llvm::Value* dummy) {
  llvm::Type* vector = vector_of(element);
  if (element->getScalarSizeInBits() >= 32 && traits.avx512) {
    llvm::Value* all = llvm::Constant::getAllOnesValue(vector_of(b.getInt1Ty()));
    return b.CreateMaskedGather(vector, pointers, align_of(element), mask != nullptr ? mask : all,
                                llvm::Constant::getNullValue(vector));
  }
  if (mask != nullptr) pointers = b.CreateSelect(mask, pointers, splat(dummy));
  llvm::Value* result = llvm::PoisonValue::get(vector);
  for (int lane = 0; lane < kLanes; ++lane) {
    llvm::Value* pointer = b.CreateExtractElement(pointers, static_cast<uint64_t>(lane));
    llvm::Value* one = b.CreateAlignedLoad(element, pointer, align_of(element));
    result = b.CreateInsertElement(result, one, static_cast<uint64_t>(lane));
  }
  return result;
}

void VectorEmitter::scatter_vector(llvm::Value* value, llvm::Value* pointers, llvm::Value* mask,
                                   llvm::Value* dummy) {
  llvm::Type* element = value->getType()->getScalarType();
  if (element->getScalarSizeInBits() >= 32 && traits.avx512) {
    b.CreateMaskedScatter(value, pointers, align_of(element), mask);
    return;
  }
  if (mask != nullptr) pointers = b.CreateSelect(mask, pointers, splat(dummy));
  for (int lane = 0; lane < kLanes; ++lane) {
    llvm::Value* pointer = b.CreateExtractElement(pointers, static_cast<uint64_t>(lane));
    b.CreateAlignedStore(b.CreateExtractElement(value, static_cast<uint64_t>(lane)), pointer,
                         align_of(element));
  }
}

Lanes VectorEmitter::gather(DType type, llvm::Value* base, llvm::Value* offsets, llvm::Value* mask,
                            llvm::Value* dummy) {
  llvm::Type* element = memory_type(type);
  if (is_complex(type)) {
    llvm::Value* pairs = b.CreateShl(offsets, llvm::ConstantInt::get(offsets->getType(), 1));
    llvm::Value* re = b.CreateGEP(element, base, pairs);
    llvm::Value* im = b.CreateGEP(
        element, base, b.CreateAdd(pairs, llvm::ConstantInt::get(offsets->getType(), 1)));
    return {gather_vector(element, re, mask, dummy), gather_vector(element, im, mask, dummy)};
  }
  llvm::Value* x = gather_vector(element, b.CreateGEP(element, base, offsets), mask, dummy);
  if (type == DType::pred) x = b.CreateICmpNE(x, llvm::Constant::getNullValue(x->getType()));
  return {x};
}

Lanes VectorEmitter::load(DType type, llvm::Value* base, llvm::Value* index, Stride kind,
                          llvm::Value* stride, llvm::Value* mask, llvm::Value* dummy) {
  llvm::Type* element = memory_type(type);
  if (kind == Stride::Zero) {
    if (mask != nullptr) base = b.CreateSelect(b.CreateOrReduce(mask), base, dummy);
    Lanes all = splat(load_scalar(type, base));
    return mask == nullptr ? all : select(mask, all, zero(type));
  }
  if (kind == Stride::Other) {
    llvm::Value* start = element_pointer(type, base, b.CreateMul(index, stride));
    return gather(type, start, b.CreateMul(iota64(), splat(stride)), mask, dummy);
  }
  llvm::Value* pointer = element_pointer(type, base, index);
  if (is_complex(type)) {
    llvm::Type* wide = llvm::FixedVectorType::get(element, 2 * kLanes);
    llvm::Value* both =
        mask == nullptr
            ? static_cast<llvm::Value*>(b.CreateAlignedLoad(wide, pointer, align_of(element)))
            : b.CreateMaskedLoad(wide, pointer, align_of(element), interleaved_mask(mask),
                                 llvm::Constant::getNullValue(wide));
    return {b.CreateShuffleVector(both, kEven), b.CreateShuffleVector(both, kOdd)};
  }
  llvm::Type* vector = vector_of(element);
  llvm::Value* x =
      mask == nullptr
          ? static_cast<llvm::Value*>(b.CreateAlignedLoad(vector, pointer, align_of(element)))
          : b.CreateMaskedLoad(vector, pointer, align_of(element), mask,
                               llvm::Constant::getNullValue(vector));
  if (type == DType::pred) x = b.CreateICmpNE(x, llvm::Constant::getNullValue(vector));
  return {x};
}

void VectorEmitter::store(DType type, const Lanes& value, llvm::Value* base, llvm::Value* index,
                          Stride kind, llvm::Value* stride, llvm::Value* mask, llvm::Value* dummy) {
  llvm::Type* element = memory_type(type);
  llvm::Value* x = value.re;
  if (type == DType::pred) x = b.CreateZExt(x, vector_of(element));
  if (kind == Stride::Unit) {
    llvm::Value* pointer = element_pointer(type, base, index);
    if (is_complex(type)) {
      x = b.CreateShuffleVector(value.re, value.im, kZip);
      mask = interleaved_mask(mask);
    }
    if (mask == nullptr) {
      b.CreateAlignedStore(x, pointer, align_of(element));
    } else {
      b.CreateMaskedStore(x, pointer, align_of(element), mask);
    }
    return;
  }
  if (kind == Stride::Zero) stride = i64(0);
  llvm::Value* start = element_pointer(type, base, b.CreateMul(index, stride));
  llvm::Value* offsets = b.CreateMul(iota64(), splat(stride));
  if (!is_complex(type)) {
    scatter_vector(x, b.CreateGEP(element, start, offsets), mask, dummy);
    return;
  }
  llvm::Value* pairs = b.CreateShl(offsets, llvm::ConstantInt::get(offsets->getType(), 1));
  scatter_vector(value.re, b.CreateGEP(element, start, pairs), mask, dummy);
  scatter_vector(value.im,
                 b.CreateGEP(element, start,
                             b.CreateAdd(pairs, llvm::ConstantInt::get(offsets->getType(), 1))),
                 mask, dummy);
}

void VectorEmitter::store_streaming(DType type, const Lanes& value, llvm::Value* base,
                                    llvm::Value* index) {
  llvm::Type* element = memory_type(type);
  llvm::Value* x = value.re;
  if (type == DType::pred) x = b.CreateZExt(x, vector_of(element));
  const size_t bytes = std::min<size_t>(kLanes * size_of(type), 64);
  llvm::StoreInst* store =
      b.CreateAlignedStore(x, element_pointer(type, base, index), llvm::Align(bytes));
  store->setMetadata(
      llvm::LLVMContext::MD_nontemporal,
      llvm::MDNode::get(b.getContext(), llvm::ConstantAsMetadata::get(b.getInt32(1))));
}

Lanes VectorEmitter::load_scalar(DType type, llvm::Value* pointer) {
  llvm::Type* element = memory_type(type);
  llvm::Value* re = b.CreateAlignedLoad(element, pointer, align_of(element));
  if (type == DType::pred) re = b.CreateICmpNE(re, b.getInt8(0));
  if (!is_complex(type)) return {re};
  return {re, b.CreateAlignedLoad(element, b.CreateConstGEP1_64(element, pointer, 1),
                                  align_of(element))};
}

void VectorEmitter::store_scalar(DType type, const Lanes& value, llvm::Value* pointer) {
  llvm::Type* element = memory_type(type);
  llvm::Value* re = b.CreateExtractElement(value.re, uint64_t{0});
  if (type == DType::pred) re = b.CreateZExt(re, element);
  b.CreateAlignedStore(re, pointer, align_of(element));
  if (is_complex(type)) {
    b.CreateAlignedStore(b.CreateExtractElement(value.im, uint64_t{0}),
                         b.CreateConstGEP1_64(element, pointer, 1), align_of(element));
  }
}

}  // namespace neuron::compiler::cpu
