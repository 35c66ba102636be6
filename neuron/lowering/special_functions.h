#pragma once

#include "neuron/lowering/op_call.h"

namespace neuron::lowering {

/// Modified Bessel functions of the first kind, order 0 and 1; the e forms times exp(-|x|).
Value bessel_i0(Builder& b, Value x);
Value bessel_i0e(Builder& b, Value x);
Value bessel_i1(Builder& b, Value x);
Value bessel_i1e(Builder& b, Value x);
/// Hurwitz zeta: sum over k >= 0 of (q + k)^-s.
Value hurwitz_zeta(Builder& b, Value s, Value q);
/// Derivative of order n >= 1 of the digamma function.
Value polygamma(Builder& b, int64_t n, Value x);

}  // namespace neuron::lowering
