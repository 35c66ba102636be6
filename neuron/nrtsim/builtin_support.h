#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <vector>

#include "neuron/base/error.h"
#include "neuron/base/shape.h"
#include "neuron/base/thread_pool.h"
#include "neuron/nrt/nrt.h"
#include "neuron/nrtsim/builtins.h"
#include "neuron/nrtsim/element.h"
#include "neuron/nrtsim/library.h"

// What the built-in library kernels share: tensors as they see them, loops over rows of strided
// tensors, and chunks of elements in their compute type.
namespace neuron::nrtsim {

/// A tensor of a running call; strides in elements.
struct View {
  DType dtype = DType::f32;
  Dims sizes;
  Dims strides;
  std::byte* data = nullptr;

  size_t rank() const { return sizes.size(); }
  int64_t count() const { return count_elements(sizes); }
  size_t element_bytes() const { return size_of(dtype); }
  std::byte* at(int64_t offset) const {
    return data + offset * static_cast<int64_t>(size_of(dtype));
  }
};

/// One run of a kernel.
class Call {
 public:
  Call(const nrtsim_lib_call_t& call, void* const* inputs, void* const* outputs,
       const nrtsim_lib_context_t& context)
      : call_(call), inputs_(inputs), outputs_(outputs), context_(context) {}

  size_t input_count() const { return call_.input_count; }
  View input(size_t i) const {
    NEURON_CHECK(i < call_.input_count, kInvalid, "input ", i, " of ", call_.input_count);
    return view(call_.inputs[i], inputs_[i]);
  }
  View output(size_t i = 0) const {
    NEURON_CHECK(i < call_.output_count, kInvalid, "output ", i, " of ", call_.output_count);
    return view(call_.outputs[i], outputs_[i]);
  }
  DimsRef ints() const { return {call_.ints, call_.int_count}; }
  int64_t integer(size_t i) const {
    NEURON_CHECK(i < call_.int_count, kInvalid, "integer ", i, " of ", call_.int_count);
    return call_.ints[i];
  }

  /// Runs body(begin, end) over [0, count) on the pool.
  void parallel(int64_t count, int64_t grain,
                FunctionRef<void(int64_t begin, int64_t end)> body) const {
    if (count <= 0) return;
    if (count <= grain) {
      body(0, count);
      return;
    }
    context_.parallel_for(
        [](void* user, int64_t begin, int64_t end) {
          (*static_cast<FunctionRef<void(int64_t, int64_t)>*>(user))(begin, end);
        },
        &body, count, grain);
  }

 private:
  static View view(const nrtsim_lib_tensor_t& tensor, void* data) {
    return {static_cast<DType>(tensor.dtype), Dims(DimsRef(tensor.sizes, tensor.rank)),
            Dims(DimsRef(tensor.strides, tensor.rank)), static_cast<std::byte*>(data)};
  }
  const nrtsim_lib_call_t& call_;
  void* const* inputs_;
  void* const* outputs_;
  const nrtsim_lib_context_t& context_;
};

/// A table entry for `Body`; its Errors become a status and a message.
template <void (*Body)(const Call&)>
constexpr nrtsim_lib_kernel_t builtin_kernel() {
  return {sizeof(nrtsim_lib_kernel_t), nullptr,
          [](void*, const nrtsim_lib_call_t* call, void* const* inputs, void* const* outputs,
             const nrtsim_lib_context_t* context, char* message, size_t message_bytes) -> int {
            try {
              Body(Call(*call, inputs, outputs, *context));
              return NRT_SUCCESS;
            } catch (const Error& error) {
              std::snprintf(message, message_bytes, "%s", error.what());
              return error.kind() == ErrorKind::kIndex ? NRT_EXEC_OOB : NRT_INVALID;
            } catch (const std::exception& error) {
              std::snprintf(message, message_bytes, "%s", error.what());
              return NRT_RESOURCE;
            }
          },
          nullptr};
}

void run_copy(const Call& call);
void run_unary(const Call& call);
void run_binary(const Call& call);
void run_ternary(const Call& call);
nrtsim_lib_kernel_t dot_kernel();
void run_convolution(const Call& call);
void run_sort(const Call& call);
void run_gather(const Call& call);
void run_scatter(const Call& call);
void run_dynamic_update_slice(const Call& call);
void run_as_strided_scatter(const Call& call);
void run_scan(const Call& call);
void run_arg_reduce(const Call& call);
void run_reduce(const Call& call);
void run_reduce_window(const Call& call);

/// Copies x into y (equal sizes; strides may differ), converting if the dtypes differ.
void copy_view(const Call& call, const View& x, const View& y);

inline void check_same_sizes(const View& a, const View& b, const char* what) {
  NEURON_CHECK(a.sizes == b.sizes, kInvalid, what, ": ", to_string(a.dtype, a.sizes), " and ",
               to_string(b.dtype, b.sizes), " differ in shape");
}

/// Walks N strided tensors of equal sizes row by row. Adjacent dims that lie as one in all of them
/// are merged; the last one is the row.
template <size_t N>
class Rows {
 public:
  using Offsets = std::array<int64_t, N>;

  Rows(DimsRef sizes, const std::array<DimsRef, N>& strides) {
    for (auto& row : row_strides_) row = 0;
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] == 0) empty_ = true;
      if (sizes[d] == 1) continue;
      bool merges = !sizes_.empty();
      for (size_t k = 0; merges && k < N; ++k) {
        merges = strides_[k].back() == strides[k][d] * sizes[d];
      }
      if (merges) {
        sizes_.back() *= sizes[d];
        for (size_t k = 0; k < N; ++k) strides_[k].back() = strides[k][d];
      } else {
        sizes_.push_back(sizes[d]);
        for (size_t k = 0; k < N; ++k) strides_[k].push_back(strides[k][d]);
      }
    }
    length_ = 1;
    if (!sizes_.empty()) {
      length_ = sizes_.back();
      sizes_.pop_back();
      for (size_t k = 0; k < N; ++k) {
        row_strides_[k] = strides_[k].back();
        strides_[k].pop_back();
      }
    }
    count_ = empty_ ? 0 : count_elements(sizes_);
  }

  int64_t count() const { return count_; }
  int64_t length() const { return empty_ ? 0 : length_; }
  const Offsets& row_strides() const { return row_strides_; }

  /// Calls body(offsets) for rows [begin, end).
  void walk(int64_t begin, int64_t end, FunctionRef<void(const Offsets& offsets)> body) const {
    if (begin >= end) return;
    const size_t rank = sizes_.size();
    Dims index(rank, 0);
    Offsets offsets{};
    int64_t rest = begin;
    for (size_t d = rank; d-- > 0;) {
      index[d] = rest % sizes_[d];
      rest /= sizes_[d];
      for (size_t k = 0; k < N; ++k) offsets[k] += index[d] * strides_[k][d];
    }
    for (int64_t row = begin;;) {
      body(offsets);
      if (++row == end) return;
      for (size_t d = rank; d-- > 0;) {
        for (size_t k = 0; k < N; ++k) offsets[k] += strides_[k][d];
        if (++index[d] < sizes_[d]) break;
        for (size_t k = 0; k < N; ++k) offsets[k] -= sizes_[d] * strides_[k][d];
        index[d] = 0;
      }
    }
  }

  /// Calls body(offsets, first, n) for pieces of rows, in parallel; `first` is the position in the
  /// row (offsets include it), n its length.
  void parallel(const Call& call, int64_t grain_elements,
                FunctionRef<void(const Offsets& offsets, int64_t first, int64_t n)> body) const {
    if (count_ == 0) return;
    if (count_ == 1) {
      call.parallel(length_, grain_elements, [&](int64_t begin, int64_t end) {
        Offsets offsets;
        for (size_t k = 0; k < N; ++k) offsets[k] = begin * row_strides_[k];
        body(offsets, begin, end - begin);
      });
      return;
    }
    call.parallel(count_, std::max<int64_t>(1, grain_elements / std::max<int64_t>(1, length_)),
                  [&](int64_t begin, int64_t end) {
                    walk(begin, end, [&](const Offsets& offsets) { body(offsets, 0, length_); });
                  });
  }

 private:
  Dims sizes_;
  std::array<Dims, N> strides_;
  Offsets row_strides_{};
  int64_t length_ = 1;
  int64_t count_ = 1;
  bool empty_ = false;
};

/// Elements handled at a time between load and store: the buffers stay in the first-level cache.
inline constexpr int64_t kChunk = 256;
/// Elements of cheap work worth a thread.
inline constexpr int64_t kCheapGrain = 32768;

/// Reads n elements `stride` apart into their compute type.
template <typename T>
void load_chunk(DType dtype, const std::byte* from, int64_t stride, int64_t n, T* to) {
  with_stored(dtype, [&](auto tag) {
    using S = decltype(tag);
    if constexpr (std::is_same_v<Compute<S>, T>) {
      const auto* source = reinterpret_cast<const S*>(from);
      if (stride == 1) {
        for (int64_t i = 0; i < n; ++i) to[i] = load(source[i]);
      } else {
        for (int64_t i = 0; i < n; ++i) to[i] = load(source[i * stride]);
      }
    }
  });
}
/// Rounds to the dtype and stores.
template <typename T>
void store_chunk(DType dtype, const T* from, int64_t n, std::byte* to, int64_t stride) {
  with_stored(dtype, [&](auto tag) {
    using S = decltype(tag);
    if constexpr (std::is_same_v<Compute<S>, T>) {
      auto* target = reinterpret_cast<S*>(to);
      if (stride == 1) {
        for (int64_t i = 0; i < n; ++i) target[i] = narrow_to<S>(from[i]);
      } else {
        for (int64_t i = 0; i < n; ++i) target[i * stride] = narrow_to<S>(from[i]);
      }
    }
  });
}

template <typename T>
T load_one(DType dtype, const std::byte* from) {
  T value{};
  load_chunk<T>(dtype, from, 1, 1, &value);
  return value;
}
template <typename T>
void store_one(DType dtype, T value, std::byte* to) {
  store_chunk<T>(dtype, &value, 1, to, 1);
}
/// An element of any integer dtype.
inline int64_t load_integer(DType dtype, const std::byte* from) {
  return with_compute(
      dtype, [&](auto tag) { return convert<int64_t>(load_one<decltype(tag)>(dtype, from)); });
}

/// A buffer of kChunk elements (std::vector<bool> is none).
template <typename T>
struct Chunk {
  alignas(64) T items[kChunk];
};

}  // namespace neuron::nrtsim
