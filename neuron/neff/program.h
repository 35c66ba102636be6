#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "neuron/base/dtype.h"
#include "neuron/base/hash.h"
#include "neuron/base/shape.h"

namespace neuron::neff {

/// Where a step finds a buffer when the program runs.
struct BufferRef {
  enum class Kind : uint8_t {
    Parameter,  // input tensor `index`
    Result,     // output tensor `index`
    Scalars,    // the scalar block: slot i at byte 16 * i
    Arena,      // scratch of this run
    Constant,   // the constant section
    Status,     // one int64 error word: 0, or 1 + index of the step that saw an index out of range
  };
  Kind kind = Kind::Parameter;
  uint32_t index = 0;
  int64_t offset = 0;  // Bytes.
  friend bool operator==(const BufferRef&, const BufferRef&) = default;
};

/// Work of a step on the target's engines, for the time model and for the decision to go parallel.
struct Work {
  double bytes_read = 0;
  double bytes_written = 0;
  double vector_ops = 0;  // Elements processed times cheap-op equivalents.
  double matmul_flops = 0;
};

/// Generated code: void(void* const* pointers, const int64_t* args, int64_t begin, int64_t end).
/// Runs iterations [begin, end) of its outermost loop; iterations are independent.
using KernelFunction = void (*)(void* const* pointers, const int64_t* args, int64_t begin,
                                int64_t end);

/// One launch of a generated kernel over iterations [0, extent).
struct KernelStep {
  uint32_t kernel = 0;  // Index into Program::kernels.
  int64_t extent = 0;
  std::vector<BufferRef> pointers;
  std::vector<int64_t> args;
  /// Smallest piece, in iterations, worth giving to a thread; 0: never split.
  int64_t grain = 0;
};

/// A tensor as a library kernel sees it; strides in elements.
struct LibraryTensor {
  BufferRef buffer;
  DType dtype = DType::f32;
  Dims dims;
  Dims strides;
};

/// One call of a named library kernel.
struct LibraryStep {
  std::string name;
  std::vector<LibraryTensor> inputs;
  std::vector<LibraryTensor> outputs;
  Dims ints;
  std::vector<std::byte> arguments;  // arguments.h
};

struct Step {
  /// Collective: `library` says which ("all_reduce"), on what, and with which groups of devices
  /// (ints as hlo has them: first, second, channel, columns, ids...).
  enum class Kind : uint8_t { Kernel, Library, Collective } kind = Kind::Kernel;
  KernelStep kernel;
  LibraryStep library;
  Work work;
  /// Steps with equal non-negative group are independent of each other and may run side by side.
  int32_t parallel_group = -1;
};

/// A generated kernel: its structural hash, and where its code is.
struct KernelCode {
  Hash128 hash;
  /// Relocatable ELF object with one function named kernel_symbol(hash). Empty: the loader must
  /// have met the hash before.
  std::vector<std::byte> object;
};

/// "k" + 32 hex digits.
std::string kernel_symbol(const Hash128& hash);

struct TensorInfo {
  DType dtype = DType::f32;
  Dims dims;
  int64_t bytes = 0;   // Extent of the flat buffer.
  int32_t alias = -1;  // Results: the parameter whose buffer is overwritten, or -1.
};

/// What our NEFF holds. Input tensors are named input0.. (parameters) and "scalars" (the block of
/// 16-byte slots, present if scalar_count > 0); outputs output0.. . A result with alias >= 0 is
/// given the same buffer as its parameter.
struct Program {
  std::string target;        // "trn2", "trn3"
  std::string cpu_features;  // Of the host the code was generated for.
  std::vector<TensorInfo> parameters;
  std::vector<TensorInfo> results;
  uint32_t scalar_count = 0;
  int64_t arena_bytes = 0;
  std::vector<std::byte> constants;
  std::vector<KernelCode> kernels;
  std::vector<Step> steps;
};

/// The container: magic "NEURONX1" (ours alone, not neuronx-cc's), version, sections, hash.
std::vector<std::byte> write_neff(const Program& program);
/// Throws Error(kInvalid) naming what is broken; never reads past the end.
Program read_neff(const std::byte* data, size_t size);
/// Cheap check of the magic number.
bool is_our_neff(const std::byte* data, size_t size);

}  // namespace neuron::neff
