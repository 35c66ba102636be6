#pragma once

#include "neuron/lowering/op_call.h"

namespace neuron::lowering {

/// Index values as gather and scatter want them: i32 stays, other integers become i64.
Value index_values(Builder& b, Value index);
/// The same with indices below zero counted from the end of a dim of this size.
Value wrapped_index(Builder& b, Value index, int64_t size);

/// Scatter that knows every dtype: sums of pred are disjunctions, products conjunctions.
Value scatter(Builder& b, hlo::ScatterKind kind, Value x, Value updates, const Values& indices,
              DimsRef dims, int64_t position);

/// Number of true elements before and at each position, in row-major order, minus one (i64, flat).
Value running_position(Builder& b, Value mask);

/// A literal of i64 / of a float type, rank 1.
Value index_literal(Builder& b, std::span<const int64_t> values);
Value float_literal(Builder& b, DType dtype, std::span<const double> values);

}  // namespace neuron::lowering
