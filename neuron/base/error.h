#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace neuron {

/// What went wrong, for whoever maps an Error to another exception type.
enum class ErrorKind {
  kInvalid,      // A bad argument: ValueError / RuntimeError in torch.
  kIndex,        // An index out of range: IndexError.
  kType,         // A wrong type: TypeError.
  kUnsupported,  // Nothing here can do that: NotImplementedError.
  kOutOfMemory,  // torch.OutOfMemoryError.
  kDevice,       // The device or its runtime failed: torch.AcceleratorError.
  kCollective,   // The ranks of a group could not work together: DistBackendError.
  kIo,           // Files, processes, libraries.
  kInternal,     // A broken invariant of ours.
};

/// The one exception type of everything below the torch layers.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

namespace internal {
template <typename... Parts>
std::string join(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}
[[noreturn]] void fail_assert(const char* condition, const char* file, int line,
                              const std::string& message);
}  // namespace internal

template <typename... Parts>
[[noreturn]] void raise(ErrorKind kind, const Parts&... parts) {
  throw Error(kind, internal::join(parts...));
}

/// Bytes, printed as "1.50 GiB".
struct Bytes {
  explicit Bytes(uint64_t count) : count(count) {}
  uint64_t count;
};
std::ostream& operator<<(std::ostream& out, Bytes bytes);

}  // namespace neuron

/// For what a user or the machine can cause. The message says what was done, given, expected.
#define NEURON_CHECK(condition, kind, ...)                     \
  do {                                                         \
    if (!(condition)) [[unlikely]]                             \
      ::neuron::raise(::neuron::ErrorKind::kind, __VA_ARGS__); \
  } while (false)

/// For our own invariants.
#define NEURON_ASSERT(condition, ...)                                            \
  do {                                                                           \
    if (!(condition)) [[unlikely]]                                               \
      ::neuron::internal::fail_assert(#condition, __FILE__, __LINE__,            \
                                      ::neuron::internal::join("" __VA_ARGS__)); \
  } while (false)

/// Marks what the shared library exports.
#define NEURON_API __attribute__((visibility("default")))
