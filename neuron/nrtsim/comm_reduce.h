#pragma once

#include <cstdint>

#include "neuron/base/dtype.h"

namespace neuron::nrtsim {

/// In the order of comm.h.
enum class CommReduction : uint8_t {
  kSum,
  kAverage,
  kProduct,
  kMin,
  kMax,
  kBitAnd,
  kBitOr,
  kBitXor,
};
inline constexpr int kCommReductions = 8;
const char* name_of(CommReduction reduction);

/// Whether the reduction means something for the type (and for the factor, if it is not 1).
bool can_reduce(DType dtype, CommReduction reduction, double factor);

/// to[i] = from[0][i] (op) from[1][i] (op) ..., in this order, so the bits do not depend on who
/// computes them. 8 and 16-bit floats are kept as f32 until the end. `to` may be one of `from`.
struct ReduceCall {
  DType dtype;
  CommReduction reduction;
  double factor;  // Multiplies every operand of a sum.
  int ranks;
  const void* const* from;
  void* to;
  int64_t count;
};
void reduce(const ReduceCall& call);

}  // namespace neuron::nrtsim
