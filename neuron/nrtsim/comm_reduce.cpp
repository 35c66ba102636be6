#include "neuron/nrtsim/comm_reduce.h"

#include <algorithm>
#include <array>
#include <complex>
#include <cstddef>

#include "neuron/nrtsim/element.h"
#include "neuron/nrtsim/gemm_kernels.h"

namespace neuron::nrtsim {
namespace {

constexpr int64_t kBlock = 2048;  // Elements; a block of the accumulator stays in the first cache.

// --- Loading and storing blocks of narrow floats -------------------------------------------------

template <typename S>
constexpr bool kHasVectorForm = std::is_same_v<S, BF16> || std::is_same_v<S, F16>;
template <typename S>
constexpr Stored kStoredAs = std::is_same_v<S, BF16> ? Stored::kBf16 : Stored::kF16;

template <typename S>
const float* widening_table() {
  static const auto table = [] {
    std::array<float, 256> values;
    for (int i = 0; i < 256; ++i) values[static_cast<size_t>(i)] = S{static_cast<uint8_t>(i)};
    return values;
  }();
  return table.data();
}

template <typename S>
void load_block(const S* from, int64_t count, Compute<S>* to) {
  if constexpr (kHasVectorForm<S>) {
    if (const GemmKernels* kernels = gemm_kernels()) {
      kernels->widen(kStoredAs<S>, from, count, to);
      return;
    }
  }
  if constexpr (sizeof(S) == 1 && std::is_same_v<Compute<S>, float>) {
    const float* table = widening_table<S>();
    for (int64_t i = 0; i < count; ++i) to[i] = table[from[i].bits];
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = load(from[i]);
  }
}

template <typename S>
void store_block(const Compute<S>* from, int64_t count, S* to) {
  if constexpr (kHasVectorForm<S>) {
    if (const GemmKernels* kernels = gemm_kernels()) {
      kernels->store(kStoredAs<S>, from, count, to);
      return;
    }
  }
  for (int64_t i = 0; i < count; ++i) to[i] = narrow_to<S>(from[i]);
}

// --- Loops over one block ------------------------------------------------------------------------

template <CommReduction op, typename T>
T combine(T a, T b) {
  if constexpr (op == CommReduction::kSum || op == CommReduction::kAverage) {
    return plus(a, b);
  } else if constexpr (op == CommReduction::kProduct) {
    return times(a, b);
  } else if constexpr (kIsComplex<T>) {
    return a;  // can_reduce() has refused it.
  } else if constexpr (op == CommReduction::kMin) {
    // As smaller() in element.h, with two comparisons less.
    return a != a ? a : a <= b ? a : b;
  } else if constexpr (op == CommReduction::kMax) {
    return a != a ? a : a >= b ? a : b;
  } else if constexpr (std::is_integral_v<T>) {
    if constexpr (op == CommReduction::kBitAnd) return static_cast<T>(a & b);
    if constexpr (op == CommReduction::kBitOr) return static_cast<T>(a | b);
    if constexpr (op == CommReduction::kBitXor) return static_cast<T>(a ^ b);
  } else {
    return a;  // can_reduce() has refused it.
  }
}

template <typename T>
T scaled(T value, double factor) {
  if constexpr (kIsComplex<T>) {
    return value * static_cast<typename T::value_type>(factor);
  } else if constexpr (std::is_floating_point_v<T>) {
    return value * static_cast<T>(factor);
  } else {
    return value;
  }
}

template <typename T>
T divided(T value, int ranks) {
  if constexpr (kIsComplex<T>) {
    return value / static_cast<typename T::value_type>(ranks);
  } else if constexpr (std::is_floating_point_v<T>) {
    return value / static_cast<T>(ranks);
  } else {
    return static_cast<T>(value / ranks);  // By an int: narrow types cannot hold every divisor.
  }
}

template <typename T>
void scale_block(T* block, int64_t count, double factor) {
  for (int64_t i = 0; i < count; ++i) block[i] = scaled(block[i], factor);
}

template <CommReduction op, typename T>
[[gnu::noinline]] void combine_block(T* __restrict block, const T* __restrict other,
                                     int64_t count) {
  for (int64_t i = 0; i < count; ++i) block[i] = combine<op>(block[i], other[i]);
}

// Where two operands of a computed type meet there is no need of an accumulator. `to` may be `a` or
// `b`, element for element, which is no dependence between iterations.
template <CommReduction op, typename T>
void combine_two(const T* a, const T* b, T* to, int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) to[i] = combine<op>(a[i], b[i]);
}

template <CommReduction op, typename S>
void reduce_stored(const ReduceCall& call) {
  using T = Compute<S>;
  constexpr bool kPlain = std::is_same_v<S, T>;
  const auto source = [&](int rank) { return static_cast<const S*>(call.from[rank]); };
  S* const to = static_cast<S*>(call.to);
  constexpr bool kIsSum = op == CommReduction::kSum;
  const bool scale = kIsSum && call.factor != 1;
  if constexpr (kPlain && op != CommReduction::kAverage) {
    if (call.ranks == 2 && !scale) {
      combine_two<op>(source(0), source(1), to, call.count);
      return;
    }
  }
  alignas(64) T accumulator[kBlock];
  alignas(64) T operand[kBlock];
  for (int64_t begin = 0; begin < call.count; begin += kBlock) {
    const int64_t count = std::min(kBlock, call.count - begin);
    load_block(source(0) + begin, count, accumulator);
    if (scale) scale_block(accumulator, count, call.factor);
    for (int rank = 1; rank < call.ranks; ++rank) {
      const T* other = operand;
      if constexpr (kPlain) {
        if (!scale) other = source(rank) + begin;
      }
      if (other == operand) {
        load_block(source(rank) + begin, count, operand);
        if (scale) scale_block(operand, count, call.factor);
      }
      combine_block<op>(accumulator, other, count);
    }
    if constexpr (op == CommReduction::kAverage) {
      for (int64_t i = 0; i < count; ++i) accumulator[i] = divided(accumulator[i], call.ranks);
    }
    store_block(accumulator, count, to + begin);
  }
}

template <typename S>
void reduce_type(const ReduceCall& call) {
  switch (call.reduction) {
    case CommReduction::kSum:
      return reduce_stored<CommReduction::kSum, S>(call);
    case CommReduction::kAverage:
      return reduce_stored<CommReduction::kAverage, S>(call);
    case CommReduction::kProduct:
      return reduce_stored<CommReduction::kProduct, S>(call);
    case CommReduction::kMin:
      return reduce_stored<CommReduction::kMin, S>(call);
    case CommReduction::kMax:
      return reduce_stored<CommReduction::kMax, S>(call);
    case CommReduction::kBitAnd:
      return reduce_stored<CommReduction::kBitAnd, S>(call);
    case CommReduction::kBitOr:
      return reduce_stored<CommReduction::kBitOr, S>(call);
    case CommReduction::kBitXor:
      return reduce_stored<CommReduction::kBitXor, S>(call);
  }
}

}  // namespace

const char* name_of(CommReduction reduction) {
  constexpr const char* kNames[kCommReductions] = {"sum", "average", "product", "min",
                                                   "max", "band",    "bor",     "bxor"};
  return kNames[static_cast<size_t>(reduction)];
}

bool can_reduce(DType dtype, CommReduction reduction, double factor) {
  if (factor != 1 &&
      (reduction != CommReduction::kSum || !(is_floating(dtype) || is_complex(dtype)))) {
    return false;
  }
  switch (reduction) {
    case CommReduction::kSum:
    case CommReduction::kProduct:
      return true;
    case CommReduction::kAverage:
      return dtype != DType::pred;
    case CommReduction::kMin:
    case CommReduction::kMax:
      return !is_complex(dtype);
    case CommReduction::kBitAnd:
    case CommReduction::kBitOr:
    case CommReduction::kBitXor:
      return is_integer(dtype) || dtype == DType::pred;
  }
  return false;
}

void reduce(const ReduceCall& call) {
  with_stored(call.dtype, [&](auto stored) { reduce_type<decltype(stored)>(call); });
}

}  // namespace neuron::nrtsim
