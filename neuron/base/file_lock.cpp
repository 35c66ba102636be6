#include "neuron/base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "neuron/base/error.h"

namespace neuron {

std::optional<FileLock> FileLock::acquire(const std::string& path,
                                          std::chrono::milliseconds patience) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  NEURON_CHECK(descriptor >= 0, kIo, "cannot open lock file ", path, ": ", std::strerror(errno));
  FileLock lock(descriptor);
  // flock has no timeout; short sleeps that grow keep both a quick hand-over and an idle wait
  // cheap.
  const auto end = std::chrono::steady_clock::now() + patience;
  std::chrono::microseconds pause(100);
  for (;;) {
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return lock;
    NEURON_CHECK(errno == EWOULDBLOCK || errno == EINTR, kIo, "cannot lock ", path, ": ",
                 std::strerror(errno));
    if (std::chrono::steady_clock::now() >= end) return std::nullopt;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(20000));
  }
}

FileLock::FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace neuron
