#include "neuron/c10d/host_reduction.h"

#include <ATen/ATen.h>

#include <limits>

#include "neuron/aten/tensor.h"
#include "neuron/base/error.h"

namespace neuron::distributed {
namespace {

using runtime::Reduction;

/// torch has no arithmetic for unsigned types beyond bytes; the signed ones have the same bits.
at::ScalarType signed_twin(DType dtype) {
  switch (dtype) {
    case DType::u16:
      return at::kShort;
    case DType::u32:
      return at::kInt;
    case DType::u64:
      return at::kLong;
    default:
      return aten::scalar_type_of(dtype);
  }
}

/// The type that sums are held in.
at::ScalarType wide_type(DType dtype) {
  if (dtype == DType::f64) return at::kDouble;
  if (is_floating(dtype)) return at::kFloat;
  return at::kLong;
}

at::Tensor widen(const at::Tensor& block, DType dtype) {
  const at::Tensor wide = block.to(wide_type(dtype));
  if (dtype == DType::u16) return wide.bitwise_and(0xffff);
  if (dtype == DType::u32) return wide.bitwise_and(0xffffffffLL);
  return wide;
}

bool compares(Reduction reduction) {
  return reduction == Reduction::kMin || reduction == Reduction::kMax;
}

}  // namespace

at::Tensor reduce_on_host(const at::Tensor& bytes, int ranks, DType dtype, Reduction reduction,
                          double factor) {
  const at::ScalarType type = signed_twin(dtype);
  const at::Tensor blocks = bytes.view(type).view({ranks, -1});
  // Order of u64 as order of i64.
  const bool flipped = dtype == DType::u64 && compares(reduction);
  constexpr int64_t kTop = std::numeric_limits<int64_t>::min();
  at::Tensor sum;
  for (int rank = 0; rank < ranks; ++rank) {
    at::Tensor next = widen(blocks[rank], dtype);
    if (flipped) next = next.bitwise_xor(kTop);
    // In the elements' own precision, as the device multiplies.
    if (factor != 1) next = (next * factor).to(type).to(wide_type(dtype));
    if (rank == 0) {
      sum = next;
      continue;
    }
    switch (reduction) {
      case Reduction::kSum:
      case Reduction::kAverage:
        sum = sum + next;
        break;
      case Reduction::kProduct:
        sum = sum * next;
        break;
      case Reduction::kMin:
        sum = at::minimum(sum, next);
        break;
      case Reduction::kMax:
        sum = at::maximum(sum, next);
        break;
      case Reduction::kBitAnd:
        sum = sum.bitwise_and(next);
        break;
      case Reduction::kBitOr:
        sum = sum.bitwise_or(next);
        break;
      case Reduction::kBitXor:
        sum = sum.bitwise_xor(next);
        break;
    }
  }
  if (reduction == Reduction::kAverage) {
    sum = is_floating(dtype) ? sum / ranks
                             : at::div(sum, at::scalar_tensor(ranks, at::kLong), "trunc");
  }
  if (flipped) sum = sum.bitwise_xor(kTop);
  return sum.to(type).contiguous().view({-1}).view(at::kByte);
}

}  // namespace neuron::distributed
