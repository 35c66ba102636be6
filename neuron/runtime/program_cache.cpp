#include "neuron/runtime/program_cache.h"

#include <atomic>
#include <future>
#include <list>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "neuron/base/env.h"
#include "neuron/base/error.h"
#include "neuron/hlo/module.h"
#include "neuron/nrt/loader.h"
#include "neuron/runtime/device.h"
#include "neuron/runtime/executor.h"
#include "neuron/runtime/program.h"

namespace neuron::runtime {
namespace {

struct Key {
  Hash128 module;
  int device;
  friend bool operator==(const Key&, const Key&) = default;
};
struct KeyHasher {
  size_t operator()(const Key& key) const {
    return Hash128Hasher()(key.module) ^ (static_cast<size_t>(key.device) * 0x9E3779B97F4A7C15ull);
  }
};

std::shared_ptr<compiler::Compiler> choose_compiler() {
  const env::Compiler wanted = env::compiler();
  const bool cpu = wanted == env::Compiler::Cpu ||
                   (wanted == env::Compiler::Auto && nrt::api().is_simulator);
  return compiler::make_compiler(cpu ? "cpu" : "neuronx-cc", device_properties(0).name);
}

// Programs by device and fingerprint. No lock is held while one is built; whoever asks for a program
// that is being built waits for it. Thread-safe; leaked.
class ProgramCache {
 public:
  ProgramRef load(int device, const hlo::Module& module) {
    const Key key{hlo::fingerprint(module), device};
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
        entries_.emplace(
            key, Entry{nullptr, promise.get_future().share(), recent_.begin(), generation});
      }
    }
    if (future.valid()) return future.get();

    try {
      ProgramRef program = build(device, module);
      std::vector<ProgramRef> evicted;  // Unloaded after the lock is gone.
      {
        std::lock_guard lock(mutex_);
        if (Entry* entry = find(key, generation)) {
          entry->program = program;
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
      entries_.erase(found);
      place = recent_.erase(place);
    }
  }

  std::shared_ptr<compiler::Compiler> compiler_of() {
    std::lock_guard lock(mutex_);
    if (compiler_ == nullptr) compiler_ = choose_compiler();
    return compiler_;
  }

  ProgramRef build(int device, const hlo::Module& module) {
    const std::vector<std::byte> neff = compiler_of()->compile(module);
    built_.fetch_add(1);
    try {
      return std::make_shared<const Program>(device, module, neff);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kOutOfMemory) throw;
    }
    empty_cache();  // Cached blocks may be what the program lacks.
    return std::make_shared<const Program>(device, module, neff);
  }

  std::atomic<uint64_t> built_{0};
  // Guards the rest.
  std::mutex mutex_;
  std::shared_ptr<compiler::Compiler> compiler_;
  std::unordered_map<Key, Entry, KeyHasher> entries_;
  std::list<Key> recent_;  // Youngest first.
  uint64_t generations_ = 0;
  size_t bytes_ = 0;
  CacheLimits limits_;
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

void set_compiler_for_testing(std::shared_ptr<compiler::Compiler> compiler) {
  program_cache().set_compiler(std::move(compiler));
}
void set_cache_limits_for_testing(CacheLimits limits) { program_cache().set_limits(limits); }
size_t cached_programs_for_testing() { return program_cache().size(); }

}  // namespace neuron::runtime
