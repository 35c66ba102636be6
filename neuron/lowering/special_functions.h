#pragma once

#include "neuron/lowering/op_call.h"

namespace neuron::lowering {

/// Modified Bessel functions of the first kind, order 0 and 1; the e forms times exp(-|x|).
Value bessel_i0(Builder& b, Value x);
Value bessel_i0e(Builder& b, Value x);
Value bessel_i1(Builder& b, Value x);
Value bessel_i1e(Builder& b, Value x);

}  // namespace neuron::lowering
