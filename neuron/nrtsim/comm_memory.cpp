#include "neuron/nrtsim/comm_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>

#include "neuron/base/error.h"

namespace neuron::nrtsim {
namespace {

constexpr size_t kPage = 4096;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

std::byte* map_shared(int fd, size_t bytes) {
  void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return nullptr;
  madvise(address, bytes, MADV_DONTFORK);
  madvise(address, bytes, MADV_DONTDUMP);
  return static_cast<std::byte*>(address);
}

}  // namespace

Token random_token() {
  Token token;
  size_t done = 0;
  while (done < token.size()) {
    const ssize_t got = getrandom(token.data() + done, token.size() - done, 0);
    if (got < 0 && errno == EINTR) continue;
    NEURON_CHECK(got > 0, kIo, "no random numbers from the system: ", std::strerror(errno));
    done += static_cast<size_t>(got);
  }
  return token;
}

SharedMemory::~SharedMemory() {
  if (address_ != nullptr) munmap(address_, bytes_);
  close_fd();
}

void SharedMemory::close_fd() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

SharedMemory SharedMemory::create(size_t bytes) {
  SharedMemory memory;
  memory.fd_ = memfd_create("neuron-comm", MFD_CLOEXEC);
  NEURON_CHECK(memory.fd_ >= 0, kIo, "cannot create shared memory: ", std::strerror(errno));
  fchmod(memory.fd_, 0600);
  NEURON_CHECK(ftruncate(memory.fd_, static_cast<off_t>(bytes)) == 0, kIo,
               "cannot make shared memory of ", Bytes(bytes), ": ", std::strerror(errno));
  memory.address_ = map_shared(memory.fd_, bytes);
  NEURON_CHECK(memory.address_ != nullptr, kIo, "cannot map shared memory of ", Bytes(bytes), ": ",
               std::strerror(errno));
  memory.bytes_ = bytes;
  return memory;
}

SharedMemory SharedMemory::open(int pid, int fd, size_t bytes) {
  const std::string path = internal::join("/proc/", pid, "/fd/", fd);
  SharedMemory memory;
  memory.fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  NEURON_CHECK(memory.fd_ >= 0, kDevice, "cannot open the shared memory of process ", pid, ": ",
               std::strerror(errno), errno == ENOENT ? " (that process has ended)" : "");
  struct stat status{};
  NEURON_CHECK(fstat(memory.fd_, &status) == 0 && S_ISREG(status.st_mode) &&
                   status.st_size == static_cast<off_t>(bytes),
               kDevice, "the shared memory of process ", pid,
               " is not what was announced; the process has ended");
  memory.address_ = map_shared(memory.fd_, bytes);
  NEURON_CHECK(memory.address_ != nullptr, kIo, "cannot map shared memory of ", Bytes(bytes), ": ",
               std::strerror(errno));
  memory.bytes_ = bytes;
  memory.close_fd();
  return memory;
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, int64_t nanoseconds,
                uint32_t bits) {
  // FUTEX_WAIT_BITSET takes an absolute time of the monotonic clock.
  timespec until{};
  clock_gettime(CLOCK_MONOTONIC, &until);
  const int64_t sum = until.tv_nsec + nanoseconds;
  until.tv_sec += sum / 1000000000;
  until.tv_nsec = sum % 1000000000;
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_BITSET, expected, &until,
          nullptr, bits);
}

void futex_wake(std::atomic<uint32_t>& word, int count, uint32_t bits) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_BITSET, count, nullptr, nullptr,
          bits);
}

uint64_t start_time_of(int pid) {
  const std::string path = internal::join("/proc/", pid, "/stat");
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[1024];
  const ssize_t got = ::read(fd, text, sizeof(text) - 1);
  ::close(fd);
  if (got <= 0) return 0;
  text[got] = '\0';
  // The second field, the program's name in parentheses, may hold anything; the 22nd is the start.
  const char* field = std::strrchr(text, ')');
  // The third is the state: a zombie is no process any more.
  if (field == nullptr || field[1] == '\0' || field[2] == 'Z' || field[2] == 'X') return 0;
  for (int i = 2; field != nullptr && i < 22; ++i) field = std::strchr(field + 1, ' ');
  unsigned long long start = 0;
  return field != nullptr && std::sscanf(field, "%llu", &start) == 1 ? start : 0;
}

Layout::Layout(int size) : size_(size) {
  const size_t n = static_cast<size_t>(size);
  // Pages that nobody touches cost nothing, so this bounds what large transfers take. Few ranks
  // get more each: a round then outweighs its wake-ups.
  stage_ = std::clamp((size_t{8} << 20) / n, size_t{1} << 20, size_t{4} << 20) / kPage * kPage;
  // The same for the pipes to all peers together.
  pipe_ = std::clamp(round_up((size_t{4} << 20) / n, kPage), size_t{16} << 10, size_t{1} << 20);
  description_ = round_up(sizeof(Description) + 2 * n * sizeof(int64_t), kLine);
  controls_ = round_up(sizeof(Header), kPage);
  descriptions_ = round_up(controls_ + n * sizeof(RankControl), kPage);
  pipes_ = round_up(descriptions_ + n * 2 * description_, kPage);
  pipe_data_ = round_up(pipes_ + n * n * sizeof(Pipe), kPage);
  stages_ = round_up(pipe_data_ + n * n * pipe_, kPage);
  bytes_ = stages_ + n * 2 * stage_;
}

}  // namespace neuron::nrtsim
