#include "neuron/runtime/program_cache.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <future>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "neuron/base/env.h"
#include "neuron/base/error.h"
#include "neuron/compiler/disk_cache.h"
#include "neuron/hlo/module.h"
#include "neuron/nrt/loader.h"
#include "neuron/runtime/cache_stats.h"
#include "neuron/runtime/communicator.h"
#include "neuron/runtime/device.h"
#include "neuron/runtime/executor.h"
#include "neuron/runtime/program.h"

namespace neuron::runtime {
namespace {

struct Key {
  Hash128 module;
  int device;
  int64_t job = 0;
  friend bool operator==(const Key&, const Key&) = default;
};
struct KeyHasher {
  size_t operator()(const Key& key) const {
    return Hash128Hasher()(key.module) ^ (static_cast<size_t>(key.device) * 0x9E3779B97F4A7C15ull);
  }
};

// A program with collectives is loaded for a place in the job.
int64_t job_of(const hlo::Module& module) {
  if (std::none_of(module.nodes().begin(), module.nodes().end(),
                   [](const hlo::Node& node) { return hlo::is_collective(node.op); })) {
    return 0;
  }
  const auto [id, count] = global_device();
  return (int64_t{id} << 32) + count;
}

std::shared_ptr<compiler::Compiler> choose_compiler() {
  const env::Compiler wanted = env::compiler();
  const bool cpu =
      wanted == env::Compiler::Cpu || (wanted == env::Compiler::Auto && nrt::api().is_simulator);
  return compiler::make_compiler(cpu ? "cpu" : "neuronx-cc", device_properties(0).name);
}

std::string to_hex(const Hash128& hash) {
  char text[40];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high),
                static_cast<unsigned long long>(hash.low));
  return text;
}

// A program without inputs whose elements are random: torch's users do not think of it as one.
bool only_draws(const hlo::Module& module) {
  return module.parameters().empty() &&
         std::any_of(module.nodes().begin(), module.nodes().end(),
                     [](const hlo::Node& node) { return node.op == hlo::Op::PhiloxWord; });
}

// Whole programs on disk, for those who name a folder: TORCH_NEURONX_NEFF_CACHE_DIR, read anew for
// every program. Without it what is kept between runs is the compiler's business. Thread-safe.
class NeffFolder {
 public:
  std::shared_ptr<compiler::DiskCache> find() {
    const std::string path = env::neff_cache_dir();
    if (path.empty()) return nullptr;
    const std::lock_guard lock(mutex_);
    if (cache_ == nullptr || cache_->directory() != path) {
      cache_ = std::make_shared<compiler::DiskCache>(path);
    }
    return cache_;
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<compiler::DiskCache> cache_;
};

// Programs by device and fingerprint. No lock is held while one is built; whoever asks for a
// program that is being built waits for it. Thread-safe; leaked.
class ProgramCache {
 public:
  ProgramRef load(int device, const hlo::Module& module) {
    const Key key{hlo::fingerprint(module), device, job_of(module)};
    std::promise<ProgramRef> promise;
    std::shared_future<ProgramRef> future;
    uint64_t generation = 0;
    {
      std::lock_guard lock(mutex_);
      if (const auto found = entries_.find(key); found != entries_.end()) {
        recent_.splice(recent_.begin(), recent_, found->second.place);
        if (found->second.program != nullptr) return found->second.program;
        future = found->second.building;
      } else {
        recent_.push_front(key);
        generation = ++generations_;
        entries_.emplace(key,
                         Entry{nullptr, promise.get_future().share(), recent_.begin(), generation});
      }
    }
    if (future.valid()) return future.get();

    try {
      Built built;
      ProgramRef program = build(device, module, key.module, built);
      std::vector<ProgramRef> evicted;  // Unloaded after the lock is gone.
      {
        std::lock_guard lock(mutex_);
        if (Entry* entry = find(key, generation)) {
          entry->program = program;
          entry->compile_ms = built.milliseconds;
          entry->is_listed = !only_draws(module);
          bytes_ += program->neff_bytes();
          evict(evicted);
        }
      }
      promise.set_value(program);
      return program;
    } catch (...) {
      {
        std::lock_guard lock(mutex_);
        if (Entry* entry = find(key, generation)) {  // The next call tries again.
          recent_.erase(entry->place);
          entries_.erase(key);
        }
      }
      promise.set_exception(std::current_exception());
      throw;
    }
  }

  void set_compiler(std::shared_ptr<compiler::Compiler> compiler) {
    std::unordered_map<Key, Entry, KeyHasher> old;
    std::lock_guard lock(mutex_);
    compiler_ = std::move(compiler);
    std::swap(old, entries_);
    recent_.clear();
    bytes_ = 0;
  }

  void set_limits(CacheLimits limits) {
    std::lock_guard lock(mutex_);
    limits_ = limits;
  }

  size_t size() {
    std::lock_guard lock(mutex_);
    return entries_.size();
  }

  RuntimeStats stats() {
    RuntimeStats stats;
    std::shared_ptr<compiler::Compiler> compiler;
    {
      std::lock_guard lock(mutex_);
      compiler = compiler_;
    }
    if (compiler != nullptr) {
      const compiler::CompilerStats compiled = compiler->stats();
      stats.kernels_compiled = compiled.kernels;
      stats.disk_hits = compiled.disk_hits;
    }
    stats.programs_built = built_.load();
    stats.launches = launch_count();
    return stats;
  }

 private:
  struct Entry {
    ProgramRef program;  // Null while it is being built.
    std::shared_future<ProgramRef> building;
    std::list<Key>::iterator place;
    uint64_t generation;
    double compile_ms = 0;
    bool is_listed = true;
  };
  struct Built {
    double milliseconds = 0;
  };

  // The entry this builder made, unless the cache was emptied meanwhile. mutex_ is held.
  Entry* find(const Key& key, uint64_t generation) {
    const auto found = entries_.find(key);
    if (found == entries_.end() || found->second.generation != generation) return nullptr;
    return &found->second;
  }

  void evict(std::vector<ProgramRef>& evicted) {
    auto place = recent_.end();
    while ((entries_.size() > limits_.programs || bytes_ > limits_.neff_bytes) &&
           place != recent_.begin()) {
      --place;
      const auto found = entries_.find(*place);
      if (place == recent_.begin() || found->second.program == nullptr) continue;
      bytes_ -= found->second.program->neff_bytes();
      evicted.push_back(std::move(found->second.program));
      ++evictions_;
      entries_.erase(found);
      place = recent_.erase(place);
    }
  }

  std::shared_ptr<compiler::Compiler> compiler_of() {
    std::lock_guard lock(mutex_);
    if (compiler_ == nullptr) compiler_ = choose_compiler();
    return compiler_;
  }

  ProgramRef build(int device, const hlo::Module& module, const Hash128& fingerprint,
                   Built& built) {
    const auto start = std::chrono::steady_clock::now();
    const std::vector<std::byte> neff = neff_of(module, fingerprint);
    built.milliseconds =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    built_.fetch_add(1);
    {
      const std::lock_guard lock(mutex_);
      compile_ms_ += built.milliseconds;
      if (keep_built_) built_neffs_.emplace_back(to_hex(fingerprint), neff);
    }
    try {
      return std::make_shared<const Program>(device, module, neff);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kOutOfMemory) throw;
    }
    empty_cache();  // Cached blocks may be what the program lacks.
    return std::make_shared<const Program>(device, module, neff);
  }

  std::vector<std::byte> neff_of(const hlo::Module& module, const Hash128& fingerprint) {
    const std::shared_ptr<compiler::Compiler> compiler = compiler_of();
    const std::shared_ptr<compiler::DiskCache> folder = neffs_.find();
    if (folder == nullptr) {
      // Others may compile at the same time; then a few programs are counted as the wrong kind.
      const compiler::CompilerStats before = compiler->stats();
      std::vector<std::byte> neff = compiler->compile(module);
      const compiler::CompilerStats after = compiler->stats();
      const bool worked = after.kernels != before.kernels ||
                          (compiler->name() != "cpu" && after.programs != before.programs);
      (worked ? persistent_misses_ : persistent_hits_).fetch_add(1);
      return neff;
    }
    Hasher hasher;
    hasher.add(fingerprint.low);
    hasher.add(fingerprint.high);
    hasher.add(compiler::build_hash().low);
    hasher.add(compiler::build_hash().high);
    const std::string conditions =
        internal::join(compiler->name(), " ", env::target(), " ", env::logical_nc_config(), " ",
                       env::cc_flags(), " ", static_cast<int>(env::sim_numerics()));
    hasher.add_bytes(conditions.data(), conditions.size());
    const Hash128 key = hasher.finish();
    if (std::optional<std::vector<std::byte>> found = folder->read("neff", key)) {
      persistent_hits_.fetch_add(1);
      return std::move(*found);
    }
    std::vector<std::byte> neff = compiler->compile(module);
    persistent_misses_.fetch_add(1);
    folder->write("neff", key, neff);
    return neff;
  }

 public:
  CompilationCacheStats cache_stats() {
    CompilationCacheStats stats;
    const std::lock_guard lock(mutex_);
    for (const auto& [key, entry] : entries_) stats.entries += entry.is_listed ? 1 : 0;
    stats.misses = built_.load() - cleared_built_;
    const uint64_t launches = launch_count() - cleared_launches_;
    stats.hits = launches > stats.misses ? launches - stats.misses : 0;
    stats.persistent_hits = persistent_hits_.load();
    stats.persistent_misses = persistent_misses_.load();
    stats.evictions = evictions_;
    stats.neff_bytes = bytes_;
    stats.compile_ms = compile_ms_;
    return stats;
  }

  std::vector<CompilationCacheEntry> entries() {
    std::vector<CompilationCacheEntry> out;
    const std::lock_guard lock(mutex_);
    for (const Key& key : recent_) {
      const Entry& entry = entries_.at(key);
      if (entry.program == nullptr || !entry.is_listed) continue;
      out.push_back(
          {to_hex(key.module), key.device, entry.compile_ms, entry.program->neff_bytes()});
    }
    return out;
  }

  void clear(bool disk) {
    std::unordered_map<Key, Entry, KeyHasher> old;  // Unloaded after the lock is gone.
    std::shared_ptr<compiler::Compiler> compiler;
    {
      const std::lock_guard lock(mutex_);
      std::swap(old, entries_);
      recent_.clear();
      bytes_ = 0;
      compiler = compiler_;
      if (disk) {
        cleared_built_ = built_.load();
        cleared_launches_ = launch_count();
        persistent_hits_ = persistent_misses_ = 0;
        evictions_ = 0;
        compile_ms_ = 0;
      }
    }
    if (!disk) return;
    if (const auto folder = neffs_.find()) folder->clear();
    compiler::disk_cache().clear();
    if (compiler != nullptr) compiler->forget();
  }

  void keep_built(bool keep) {
    const std::lock_guard lock(mutex_);
    keep_built_ = keep;
    if (!keep) built_neffs_.clear();
  }
  std::vector<std::pair<std::string, std::vector<std::byte>>> take_built() {
    const std::lock_guard lock(mutex_);
    return std::exchange(built_neffs_, {});
  }

 private:
  std::atomic<uint64_t> built_{0};
  // Guards the rest.
  std::mutex mutex_;
  std::shared_ptr<compiler::Compiler> compiler_;
  std::unordered_map<Key, Entry, KeyHasher> entries_;
  std::list<Key> recent_;  // Youngest first.
  uint64_t generations_ = 0;
  size_t bytes_ = 0;
  CacheLimits limits_;
  uint64_t evictions_ = 0;
  double compile_ms_ = 0;
  uint64_t cleared_built_ = 0, cleared_launches_ = 0;  // Counts when the statistics were cleared.
  bool keep_built_ = false;
  std::vector<std::pair<std::string, std::vector<std::byte>>> built_neffs_;
  std::atomic<uint64_t> persistent_hits_{0}, persistent_misses_{0};
  NeffFolder neffs_;
};

ProgramCache& program_cache() {
  static ProgramCache* const instance = new ProgramCache;
  return *instance;
}

}  // namespace

ProgramRef load_program(int device, const hlo::Module& module) {
  check_accepting();
  ensure_device(device);
  return program_cache().load(device, module);
}

RuntimeStats runtime_stats() {
  if (in_bad_fork()) return {};
  return program_cache().stats();
}

CompilationCacheStats compilation_cache_stats() {
  return in_bad_fork() ? CompilationCacheStats() : program_cache().cache_stats();
}
std::vector<CompilationCacheEntry> compilation_cache_entries() {
  return in_bad_fork() ? std::vector<CompilationCacheEntry>() : program_cache().entries();
}
void clear_compilation_cache(bool disk) {
  if (in_bad_fork()) return;
  drain();
  program_cache().clear(disk);
}
void keep_built_neffs(bool keep) { program_cache().keep_built(keep); }
std::vector<std::pair<std::string, std::vector<std::byte>>> take_built_neffs() {
  return program_cache().take_built();
}

void set_compiler_for_testing(std::shared_ptr<compiler::Compiler> compiler) {
  program_cache().set_compiler(std::move(compiler));
}
void set_cache_limits_for_testing(CacheLimits limits) { program_cache().set_limits(limits); }
size_t cached_programs_for_testing() { return program_cache().size(); }

}  // namespace neuron::runtime
