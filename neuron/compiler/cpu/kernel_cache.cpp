#include <algorithm>
#include <atomic>
#include <ctime>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "neuron/base/error.h"
#include "neuron/compiler/compiler.h"
#include "neuron/compiler/cpu/kernel_counters.h"
#include "neuron/compiler/cpu/llvm_session.h"
#include "neuron/compiler/cpu/loop_nest.h"
#include "neuron/compiler/disk_cache.h"
#include "neuron/neff/program.h"

namespace neuron::compiler::cpu {
namespace {

using Object = std::shared_ptr<const std::vector<std::byte>>;

// From this many missing kernels on, a second thread helps: below, starting it costs as much.
constexpr size_t kParallelKernels = 4;

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Sessions wait here between uses; setting one up costs about a millisecond.
class SessionPool {
 public:
  std::unique_ptr<LlvmSession> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<LlvmSession> session = std::move(idle_.back());
        idle_.pop_back();
        return session;
      }
    }
    return std::make_unique<LlvmSession>();
  }
  void give(std::unique_ptr<LlvmSession> session) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(session));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<LlvmSession>> idle_;
};

class Cache final : public KernelCache {
 public:
  std::vector<Kernel> get(std::span<const LoopNest* const> nests) override {
    std::vector<Kernel> kernels(nests.size());
    std::vector<size_t> missing;  // Positions in `nests`, one per distinct hash.
    {
      const std::lock_guard lock(mutex_);
      for (size_t k = 0; k < nests.size(); ++k) {
        kernels[k].hash = key_of(*nests[k]);
        const auto found = objects_.find(kernels[k].hash);
        if (found != objects_.end()) {
          kernels[k].object = found->second;
          ++counters_.hits;
          continue;
        }
        const bool repeated = std::any_of(missing.begin(), missing.end(), [&](size_t other) {
          return kernels[other].hash == kernels[k].hash;
        });
        if (repeated) {
          ++counters_.hits;
        } else {
          missing.push_back(k);
        }
      }
    }
    if (missing.empty()) return kernels;
    std::vector<Object> built(missing.size());
    build(nests, kernels, missing, built);
    const std::lock_guard lock(mutex_);
    for (size_t m = 0; m < missing.size(); ++m) {
      // Another thread may have been faster; its object stays, so that all programs share one.
      objects_.emplace(kernels[missing[m]].hash, built[m]);
    }
    for (Kernel& kernel : kernels) {
      if (kernel.object == nullptr) kernel.object = objects_.at(kernel.hash);
    }
    return kernels;
  }

  KernelCounters counters() {
    const std::lock_guard lock(mutex_);
    return counters_;
  }

  void forget() {
    const std::lock_guard lock(mutex_);
    objects_.clear();
  }

 private:
  void build(std::span<const LoopNest* const> nests, const std::vector<Kernel>& kernels,
             const std::vector<size_t>& missing, std::vector<Object>& built) {
    std::atomic<size_t> next{0};
    std::mutex failure_mutex;
    std::exception_ptr failure;
    const auto work = [&] {
      try {
        std::unique_ptr<LlvmSession> session;
        for (size_t m = next++; m < missing.size(); m = next++) {
          const size_t k = missing[m];
          built[m] = build_one(session, *nests[k], kernels[k].hash);
        }
        if (session != nullptr) sessions_.give(std::move(session));
      } catch (...) {
        const std::lock_guard lock(failure_mutex);
        if (failure == nullptr) failure = std::current_exception();
        next = missing.size();
      }
    };
    std::thread second;
    if (missing.size() >= kParallelKernels && std::thread::hardware_concurrency() > 1) {
      second = std::thread(work);
    }
    work();
    if (second.joinable()) second.join();
    if (failure != nullptr) std::rethrow_exception(failure);
  }

  // From disk if another process has built it, else by LLVM.
  Object build_one(std::unique_ptr<LlvmSession>& session, const LoopNest& nest,
                   const Hash128& hash) {
    DiskCache& disk = disk_cache();
    const Hash128 key = disk_key(hash);
    const uint64_t damaged_before = disk.damaged();
    if (std::optional<std::vector<std::byte>> bytes = disk.read("kernel", key)) {
      const std::lock_guard lock(mutex_);
      ++counters_.disk_hits;
      return std::make_shared<const std::vector<std::byte>>(std::move(*bytes));
    }
    const double start = thread_seconds();
    if (session == nullptr) session = sessions_.take();
    auto object = std::make_shared<const std::vector<std::byte>>(
        session->compile(nest, neff::kernel_symbol(hash)));
    const double seconds = thread_seconds() - start;
    disk.write("kernel", key, *object);
    const std::lock_guard lock(mutex_);
    ++counters_.generated;
    counters_.seconds += seconds;
    if (disk.damaged() != damaged_before) ++counters_.disk_rebuilt;
    return object;
  }

  static Hash128 disk_key(const Hash128& hash) {
    static const Hash128 code = [] {
      Hasher hasher;
      hasher.add(build_hash().low);
      hasher.add(build_hash().high);
      hasher.add_bytes(host_features().data(), host_features().size());
      return hasher.finish();
    }();
    Hasher hasher;
    hasher.add(hash.low);
    hasher.add(hash.high);
    hasher.add(code.low);
    hasher.add(code.high);
    return hasher.finish();
  }

  std::mutex mutex_;
  std::unordered_map<Hash128, Object, Hash128Hasher> objects_;
  KernelCounters counters_;
  SessionPool sessions_;
};

Cache& cache() {
  static Cache* instance = new Cache;  // Never destroyed: threads may still compile at exit.
  return *instance;
}

}  // namespace

KernelCache& kernel_cache() { return cache(); }
KernelCounters kernel_counters() { return cache().counters(); }
void forget_kernels() { cache().forget(); }

}  // namespace neuron::compiler::cpu
