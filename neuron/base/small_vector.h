#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>
#include <span>
#include <type_traits>

namespace neuron {

/// A vector of trivially copyable elements; the first N live inside the object.
/// Not thread-safe; owns its heap block, if any.
template <typename T, size_t N>
class SmallVector {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  using value_type = T;
  using iterator = T*;
  using const_iterator = const T*;

  SmallVector() = default;
  explicit SmallVector(size_t count, T value = T{}) { resize(count, value); }
  SmallVector(std::initializer_list<T> items) { append(items.begin(), items.end()); }
  template <typename It>
    requires(!std::is_integral_v<It>)
  SmallVector(It first, It last) {
    append(first, last);
  }
  SmallVector(std::span<const T> items) { append(items.begin(), items.end()); }  // NOLINT
  SmallVector(const SmallVector& other) { append(other.begin(), other.end()); }
  SmallVector(SmallVector&& other) noexcept { take(other); }
  SmallVector& operator=(const SmallVector& other) {
    if (this != &other) {
      size_ = 0;
      append(other.begin(), other.end());
    }
    return *this;
  }
  SmallVector& operator=(SmallVector&& other) noexcept {
    if (this != &other) {
      release();
      take(other);
    }
    return *this;
  }
  ~SmallVector() { release(); }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T& front() { return data_[0]; }
  const T& front() const { return data_[0]; }
  T& back() { return data_[size_ - 1]; }
  const T& back() const { return data_[size_ - 1]; }

  void clear() { size_ = 0; }
  void reserve(size_t count) {
    if (count <= capacity_) return;
    size_t wanted = std::max(count, static_cast<size_t>(capacity_) * 2);
    T* block = static_cast<T*>(std::malloc(wanted * sizeof(T)));
    if (block == nullptr) throw std::bad_alloc();
    if (size_ > 0) std::memcpy(static_cast<void*>(block), data_, size_ * sizeof(T));
    if (data_ != inline_data()) std::free(data_);
    data_ = block;
    capacity_ = static_cast<uint32_t>(wanted);
  }
  void push_back(T value) {
    if (size_ == capacity_) reserve(size_ + 1);
    data_[size_++] = value;
  }
  void pop_back() { --size_; }
  void resize(size_t count, T value = T{}) {
    reserve(count);
    for (size_t i = size_; i < count; ++i) data_[i] = value;
    size_ = static_cast<uint32_t>(count);
  }
  template <typename It>
  void append(It first, It last) {
    for (; first != last; ++first) push_back(static_cast<T>(*first));
  }
  void insert(size_t position, T value) {
    push_back(value);
    for (size_t i = size_ - 1; i > position; --i) data_[i] = data_[i - 1];
    data_[position] = value;
  }
  void erase(size_t position) {
    for (size_t i = position + 1; i < size_; ++i) data_[i - 1] = data_[i];
    --size_;
  }

  operator std::span<const T>() const { return {data_, size_}; }  // NOLINT: a view of itself

  friend bool operator==(const SmallVector& a, const SmallVector& b) {
    return a.size_ == b.size_ && std::equal(a.begin(), a.end(), b.begin());
  }

 private:
  T* inline_data() { return reinterpret_cast<T*>(inline_); }
  void release() {
    if (data_ != inline_data()) std::free(data_);
    data_ = inline_data();
    capacity_ = N;
    size_ = 0;
  }
  void take(SmallVector& other) noexcept {
    if (other.data_ == other.inline_data()) {
      std::memcpy(inline_, other.inline_, other.size_ * sizeof(T));
      data_ = inline_data();
      capacity_ = N;
    } else {
      data_ = other.data_;
      capacity_ = other.capacity_;
    }
    size_ = other.size_;
    other.data_ = other.inline_data();
    other.capacity_ = N;
    other.size_ = 0;
  }

  T* data_ = inline_data();
  uint32_t size_ = 0;
  uint32_t capacity_ = N;
  alignas(T) std::byte inline_[N * sizeof(T)];
};

}  // namespace neuron
