#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace neuron {

/// An advisory lock on a file that processes (and threads) exclude each other with.
///
/// Move-only; the destructor releases. The file is created with mode 0600 and stays behind. The
/// kernel drops the lock when its owner dies, so there are no stale locks.
class FileLock {
 public:
  /// Waits at most `patience`; nothing on a timeout. Throws Error(kIo) if the file cannot be
  /// opened.
  static std::optional<FileLock> acquire(const std::string& path,
                                         std::chrono::milliseconds patience);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

 private:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;  // -1 only after a move.
};

}  // namespace neuron
