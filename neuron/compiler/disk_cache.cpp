#include "neuron/compiler/disk_cache.h"

#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "neuron/base/env.h"
#include "neuron/base/file_lock.h"
#include "neuron/base/log.h"

namespace neuron::compiler {
namespace {

constexpr char kMagic[8] = {'N', 'R', 'N', 'C', 'A', 'C', 'H', '1'};

struct Header {
  char magic[8];
  uint64_t size;
  uint64_t key_low, key_high;
  uint64_t check_low, check_high;
};

Hash128 checksum(const Hash128& key, std::span<const std::byte> bytes) {
  Hasher hasher;
  hasher.add(key.low);
  hasher.add(key.high);
  hasher.add_bytes(bytes.data(), bytes.size());
  return hasher.finish();
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_;
};

bool read_all(int descriptor, void* data, size_t size) {
  auto* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t count = ::read(descriptor, at, size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += count;
    size -= static_cast<size_t>(count);
  }
  return true;
}

bool write_all(int descriptor, const void* data, size_t size) {
  const auto* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t count = ::write(descriptor, at, size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += count;
    size -= static_cast<size_t>(count);
  }
  return true;
}

bool make_directories(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    const std::string part = path.substr(0, slash);
    if (::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST && ::access(part.c_str(), F_OK) != 0) {
      return false;
    }
  }
  return ::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST;
}

constexpr uint64_t kTrimStep = uint64_t{64} << 20;
// Reading refreshes a file's time at most this often, in seconds.
constexpr int64_t kTouchInterval = 3600;

}  // namespace

DiskCache::DiskCache(std::string directory, uint64_t limit_bytes)
    : directory_(std::move(directory)), limit_bytes_(limit_bytes) {
  if (directory_.empty()) state_ = State::kRefused;
}

void DiskCache::warn_once(const std::string& text) {
  if (!warned_.exchange(true)) log::warning(text);
}

// A folder that does not exist yet is neither usable nor refused.
bool DiskCache::usable(bool create) {
  const State known = state_;
  if (known != State::kUnknown) return known == State::kUsable;
  struct stat info;
  if (::stat(directory_.c_str(), &info) != 0) {
    if (!create) return false;
    if (!make_directories(directory_) || ::stat(directory_.c_str(), &info) != 0) {
      warn_once("cannot create the cache folder " + directory_ + ": " + std::strerror(errno) +
                "; compiled programs are not kept");
      state_ = State::kRefused;
      return false;
    }
  }
  const char* problem = nullptr;
  if (!S_ISDIR(info.st_mode)) {
    problem = "it is not a folder";
  } else if (info.st_uid != ::geteuid()) {
    problem = "it belongs to another user";
  } else if ((info.st_mode & 022) != 0) {
    problem = "its group or others may write to it (chmod go-w)";
  }
  if (problem != nullptr) {
    warn_once("the cache folder " + directory_ + " is not used: " + problem);
    state_ = State::kRefused;
    return false;
  }
  state_ = State::kUsable;
  return true;
}

std::string DiskCache::path_of(std::string_view kind, const Hash128& key) const {
  char name[40];
  std::snprintf(name, sizeof name, "%016llx%016llx", static_cast<unsigned long long>(key.high),
                static_cast<unsigned long long>(key.low));
  return directory_ + "/" + std::string(kind) + "-" + name + (kind == "neff" ? ".neff" : "");
}

std::optional<std::vector<std::byte>> DiskCache::read(std::string_view kind, const Hash128& key) {
  if (!usable(false)) return std::nullopt;
  const std::string path = path_of(kind, key);
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file) return std::nullopt;
  struct stat info;
  if (::fstat(file.get(), &info) != 0) return std::nullopt;
  Header header;
  std::vector<std::byte> bytes;
  bool good = S_ISREG(info.st_mode) && info.st_uid == ::geteuid() && (info.st_mode & 022) == 0 &&
              static_cast<uint64_t>(info.st_size) >= sizeof header &&
              read_all(file.get(), &header, sizeof header) &&
              std::memcmp(header.magic, kMagic, sizeof kMagic) == 0 &&
              header.size == static_cast<uint64_t>(info.st_size) - sizeof header &&
              header.key_low == key.low && header.key_high == key.high;
  if (good) {
    bytes.resize(header.size);
    good = read_all(file.get(), bytes.data(), bytes.size()) &&
           checksum(key, bytes) == Hash128{header.check_low, header.check_high};
  }
  if (!good) {
    ++damaged_;
    warn_once("the cache entry " + path + " is damaged; it is built again");
    ::unlink(path.c_str());
    return std::nullopt;
  }
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  if (now.tv_sec - info.st_mtim.tv_sec > kTouchInterval) ::futimens(file.get(), nullptr);
  return bytes;
}

void DiskCache::write(std::string_view kind, const Hash128& key, std::span<const std::byte> bytes) {
  if (!usable(true)) return;
  static std::atomic<uint64_t> counter{0};
  const std::string path = path_of(kind, key);
  const std::string temporary =
      directory_ + "/.new-" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
  const Hash128 check = checksum(key, bytes);
  Header header;
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.size = bytes.size();
  header.key_low = key.low;
  header.key_high = key.high;
  header.check_low = check.low;
  header.check_high = check.high;
  bool good = false;
  {
    const Descriptor file(
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    good = static_cast<bool>(file) && write_all(file.get(), &header, sizeof header) &&
           write_all(file.get(), bytes.data(), bytes.size());
  }
  if (!good || ::rename(temporary.c_str(), path.c_str()) != 0) {
    warn_once("cannot write " + path + ": " + std::strerror(errno) +
              "; compiled programs are not kept");
    ::unlink(temporary.c_str());
    return;
  }
  const uint64_t size = sizeof header + bytes.size();
  if ((written_ += size) >= std::min(kTrimStep, limit_bytes_ / 4)) {
    written_ = 0;
    trim(limit_bytes_);
  }
}

void DiskCache::trim(uint64_t limit_bytes) {
  if (!usable(false)) return;
  struct Entry {
    timespec used;
    uint64_t size;
    std::string path;
  };
  try {
    // One process at a time; the others have nothing to wait for.
    const std::optional<FileLock> lock =
        FileLock::acquire(directory_ + "/.lock", std::chrono::milliseconds(0));
    if (!lock) return;
    DIR* folder = ::opendir(directory_.c_str());
    if (folder == nullptr) return;
    std::vector<Entry> entries;
    uint64_t total = 0;
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    while (const dirent* item = ::readdir(folder)) {
      const std::string path = directory_ + "/" + item->d_name;
      struct stat info;
      if (::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
      if (item->d_name[0] == '.') {
        // Left behind by a process that died while writing.
        const bool stale = now.tv_sec - info.st_mtim.tv_sec > kTouchInterval;
        if (stale && std::strncmp(item->d_name, ".new-", 5) == 0) ::unlink(path.c_str());
        continue;
      }
      total += static_cast<uint64_t>(info.st_size);
      entries.push_back({info.st_mtim, static_cast<uint64_t>(info.st_size), path});
    }
    ::closedir(folder);
    if (total <= limit_bytes) return;
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return a.used.tv_sec != b.used.tv_sec ? a.used.tv_sec < b.used.tv_sec
                                            : a.used.tv_nsec < b.used.tv_nsec;
    });
    // Some room below the limit, so that not every write has to look again.
    const uint64_t target = limit_bytes - limit_bytes / 4;
    for (const Entry& entry : entries) {
      if (total <= target) break;
      if (::unlink(entry.path.c_str()) == 0) total -= entry.size;
    }
  } catch (const Error& error) {
    warn_once("cannot clean up the cache folder " + directory_ + ": " + error.what());
  }
}

void DiskCache::clear() {
  if (!usable(false)) return;
  DIR* folder = ::opendir(directory_.c_str());
  if (folder == nullptr) return;
  while (const dirent* item = ::readdir(folder)) {
    // Entries only: the user may have named a folder that holds other things, too.
    const std::string_view name = item->d_name;
    if (!name.starts_with("neff-") && !name.starts_with("kernel-")) continue;
    ::unlink((directory_ + "/" + item->d_name).c_str());
  }
  ::closedir(folder);
}

DiskCache& disk_cache() {
  static auto* cache = new DiskCache(env::cache_enabled() ? env::cache_dir() : std::string());
  return *cache;
}

namespace {

// The build id that the linker put into the object this code is in; else the file's size and time.
Hash128 find_build_hash() {
  Hasher hasher;
  struct Search {
    uintptr_t address;
    std::vector<unsigned char> id;
  };
  static const char anchor = 0;
  Search search{reinterpret_cast<uintptr_t>(&anchor), {}};
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* found = static_cast<Search*>(data);
        bool ours = false;
        for (int k = 0; k < info->dlpi_phnum; ++k) {
          const auto& header = info->dlpi_phdr[k];
          const uintptr_t start = info->dlpi_addr + header.p_vaddr;
          if (header.p_type == PT_LOAD && found->address >= start &&
              found->address < start + header.p_memsz) {
            ours = true;
          }
        }
        if (!ours) return 0;
        for (int k = 0; k < info->dlpi_phnum; ++k) {
          const auto& header = info->dlpi_phdr[k];
          if (header.p_type != PT_NOTE) continue;
          const auto* at = reinterpret_cast<const unsigned char*>(info->dlpi_addr + header.p_vaddr);
          const auto* end = at + header.p_memsz;
          while (at + sizeof(ElfW(Nhdr)) <= end) {
            ElfW(Nhdr) note;
            std::memcpy(&note, at, sizeof note);
            const auto* name = at + sizeof note;
            const auto* content = name + (note.n_namesz + 3) / 4 * 4;
            const auto* next = content + (note.n_descsz + 3) / 4 * 4;
            if (next > end) break;
            if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
                std::memcmp(name, "GNU", 4) == 0) {
              found->id.assign(content, content + note.n_descsz);
            }
            at = next;
          }
        }
        return 1;
      },
      &search);
  hasher.add_bytes(search.id.data(), search.id.size());
  if (search.id.empty()) {
    Dl_info info;
    struct stat file;
    if (::dladdr(&anchor, &info) != 0 && ::stat(info.dli_fname, &file) == 0) {
      hasher.add(static_cast<uint64_t>(file.st_size));
      hasher.add(static_cast<uint64_t>(file.st_mtim.tv_sec));
      hasher.add(static_cast<uint64_t>(file.st_mtim.tv_nsec));
    }
  }
  return hasher.finish();
}

}  // namespace

const Hash128& build_hash() {
  static const Hash128 hash = find_build_hash();
  return hash;
}

}  // namespace neuron::compiler
