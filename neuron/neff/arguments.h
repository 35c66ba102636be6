#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "neuron/base/dtype.h"

namespace neuron::neff {

/// One argument of a library kernel that stands for an ATen op, in schema order.
struct LibraryArgument {
  enum class Kind : uint8_t {
    None,
    Tensor,      // the next input tensor
    TensorList,  // `ints[0]` input tensors; ints[1 + k] = 0 where member k is undefined
    Int,
    IntList,
    Bool,
    BoolList,
    Double,
    DoubleList,
    Complex,
    Type,  // ints[0]: neuron::DType
    String,
    Generator,     // seed and offset follow as two input tensors (u64, rank 0)
    Default,       // leave it to the op's default (layout, device, pin_memory)
    MemoryFormat,  // ints[0]: c10::MemoryFormat
  };
  Kind kind = Kind::None;
  std::vector<int64_t> ints;
  std::vector<double> doubles;  // Complex: {real, imag}
  std::string text;
};

/// Compact encoding, for LibraryStep::arguments.
std::vector<std::byte> encode_arguments(std::span<const LibraryArgument> arguments);
/// Throws Error(kInvalid) on malformed bytes.
std::vector<LibraryArgument> decode_arguments(std::span<const std::byte> bytes);

}  // namespace neuron::neff
