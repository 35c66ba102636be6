#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "neuron/base/hash.h"

namespace neuron::compiler {

/// A folder of files that many processes share: what was compiled once is read by all. A file is
/// named after its key and never changes; it carries a checksum and is replaced atomically. Damaged
/// files are removed and reported as absent. When the folder outgrows its limit, the files that
/// were not used for longest go.
///
/// Entries are code that will run, so a folder that others could write to is refused: it must
/// belong to this user and be writable by nobody else. No operation throws for trouble with files:
/// a cache that cannot be used is warned of once and behaves as empty. Thread-safe.
class DiskCache {
 public:
  /// `directory` is created (mode 0700) with its first entry; empty: no cache.
  explicit DiskCache(std::string directory, uint64_t limit_bytes = uint64_t{1} << 30);

  /// The bytes stored under the key, or nothing. `kind` is a short word of [a-z-]; files of kind
  /// "neff" end in .neff.
  std::optional<std::vector<std::byte>> read(std::string_view kind, const Hash128& key);
  void write(std::string_view kind, const Hash128& key, std::span<const std::byte> bytes);
  /// Removes the longest unused files until at most `limit_bytes` remain.
  void trim(uint64_t limit_bytes);
  /// Removes all entries.
  void clear();

  /// Damaged entries found by this process.
  uint64_t damaged() const { return damaged_; }
  const std::string& directory() const { return directory_; }

 private:
  enum class State : uint8_t { kUnknown, kUsable, kRefused };
  bool usable(bool create);
  std::string path_of(std::string_view kind, const Hash128& key) const;
  void warn_once(const std::string& text);

  const std::string directory_;
  const uint64_t limit_bytes_;
  std::atomic<State> state_{State::kUnknown};
  std::atomic<bool> warned_{false};
  std::atomic<uint64_t> damaged_{0};
  std::atomic<uint64_t> written_{0};  // Bytes since the last look at the whole folder.
};

/// The cache in env::cache_dir(), off if env::cache_enabled() says so.
DiskCache& disk_cache();

/// Differs between builds of this library: part of every key whose entry depends on our code.
const Hash128& build_hash();

}  // namespace neuron::compiler
