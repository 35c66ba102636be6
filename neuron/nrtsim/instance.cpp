#include "neuron/nrtsim/instance.h"

#include <sys/mman.h>

#include <mutex>

#include "neuron/base/env.h"
#include "neuron/base/error.h"
#include "neuron/nrtsim/error.h"

namespace neuron::nrtsim {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = 2u << 20;

std::atomic<State> g_state{State::Uninitialized};
std::mutex g_mutex;
std::shared_ptr<Instance> g_instance;  // Guarded by g_mutex.

}  // namespace

// --- Memory --------------------------------------------------------------------------------------

size_t rounded_size(size_t bytes) {
  const size_t unit = bytes >= kHugePage ? kHugePage : kPage;
  return (bytes + unit - 1) / unit * unit;
}

void* map_memory(size_t bytes) {
  const size_t size = rounded_size(bytes);
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  if (size < kHugePage) {
    void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, kFlags, -1, 0);
    return address == MAP_FAILED ? nullptr : address;
  }
  // The kernel places mappings at any page: take more and cut the ends off.
  void* address = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<uintptr_t>(address);
  const uintptr_t aligned = (start + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned > start) munmap(address, aligned - start);
  const size_t rest = start + kHugePage - aligned;
  if (rest > 0) munmap(reinterpret_cast<void*>(aligned + size), rest);
  // Before the first touch; where it is refused, small pages serve.
  madvise(reinterpret_cast<void*>(aligned), size, MADV_HUGEPAGE);
  return reinterpret_cast<void*>(aligned);
}

void unmap_memory(void* address, size_t bytes) { munmap(address, rounded_size(bytes)); }

bool Bank::charge(uint64_t bytes) {
  uint64_t used = used_.load(std::memory_order_relaxed);
  do {
    if (bytes > limit_ || used > limit_ - bytes) return false;
  } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  return true;
}

Arena::~Arena() {
  if (data == nullptr) return;
  unmap_memory(data, bytes);
  bank->release(bytes);
}

Core::~Core() { trim_arenas(); }

bool Core::trim_arenas() {
  bool any = false;
  for (auto& slot : arenas) {
    Arena* arena = slot.exchange(nullptr, std::memory_order_acq_rel);
    any = any || arena != nullptr;
    delete arena;
  }
  return any;
}

Arena* take_arena(Core& core, size_t bytes) {
  for (auto& slot : core.arenas) {
    if (slot.load(std::memory_order_relaxed) == nullptr) continue;
    Arena* arena = slot.exchange(nullptr, std::memory_order_acquire);
    if (arena == nullptr) continue;
    if (arena->bytes >= bytes) return arena;
    // Too small is of no use to anyone who asks for this much; growing ends at the largest program.
    delete arena;
  }
  // Growth in large steps: programs of slightly different sizes then share one arena.
  const size_t size = rounded_size(bytes + bytes / 8 + (256u << 10));
  auto arena = std::make_unique<Arena>();
  if (!core.bank->charge(size) && !(core.trim_arenas() && core.bank->charge(size))) return nullptr;
  void* data = map_memory(size);
  if (data == nullptr) {
    core.bank->release(size);
    return nullptr;
  }
  arena->bank = core.bank;
  arena->data = static_cast<std::byte*>(data);
  arena->bytes = size;
  return arena.release();
}

void put_arena(Core& core, Arena* arena) {
  for (auto& slot : core.arenas) {
    Arena* empty = nullptr;
    if (slot.compare_exchange_strong(empty, arena, std::memory_order_release,
                                     std::memory_order_relaxed)) {
      return;
    }
  }
  delete arena;
}

// --- Topology ------------------------------------------------------------------------------------

Topology Topology::from_environment() {
  env::reload();
  Topology topology;
  topology.target = &find_target(env::target());
  topology.lnc = env::logical_nc_config();
  topology.total = topology.target->cores_per_instance() / topology.lnc;
  if (const auto& cores = env::visible_cores(); cores.has_value()) {
    topology.first_core = cores->front();
    topology.visible = static_cast<int>(cores->size());
    NEURON_CHECK(cores->back() < topology.total, kInvalid, "NEURON_RT_VISIBLE_CORES names core ",
                 cores->back(), ", but ", topology.target->instance_name, " has cores 0 to ",
                 topology.total - 1, " at LNC ", topology.lnc);
  } else {
    topology.visible = env::num_cores() > 0 ? env::num_cores() : env::sim_cores();
    NEURON_CHECK(topology.visible <= topology.total, kInvalid, topology.visible,
                 " NeuronCores are asked for (NEURON_RT_NUM_CORES, NEURON_SIM_CORES), but ",
                 topology.target->instance_name, " has ", topology.total, " at LNC ", topology.lnc);
  }
  return topology;
}

Instance::Instance(const Topology& topology) : topology_(topology) {
  const Target& target = *topology.target;
  const int sharing = target.cores_per_stack() / topology.lnc;  // Logical cores of one bank.
  const uint64_t own_limit = env::hbm_limit();
  std::shared_ptr<Bank> bank;
  int bank_index = -1;
  for (int i = 0; i < topology.visible; ++i) {
    auto core = std::make_shared<Core>();
    core->index = i;
    core->absolute = topology.first_core + i;
    if (own_limit > 0) {
      core->bank = std::make_shared<Bank>(own_limit);
    } else {
      if (core->absolute / sharing != bank_index) {
        bank_index = core->absolute / sharing;
        bank = std::make_shared<Bank>(target.hbm_bytes_per_stack());
      }
      core->bank = bank;
    }
    cores_.push_back(std::move(core));
  }
}

const std::shared_ptr<Core>& Instance::core(int64_t index) const {
  static const std::shared_ptr<Core> none;
  return index >= 0 && index < static_cast<int64_t>(cores_.size())
             ? cores_[static_cast<size_t>(index)]
             : none;
}

// --- Life cycle ----------------------------------------------------------------------------------

State state() { return g_state.load(std::memory_order_acquire); }

int check_open() {
  switch (state()) {
    case State::Open:
      return NRT_SUCCESS;
    case State::Uninitialized:
      return fail(NRT_UNINITIALIZED, "nrt_init has not been called");
    case State::Closed:
      return fail(NRT_CLOSED, "nrt_close has been called");
  }
  return NRT_FAILURE;
}

std::shared_ptr<Instance> instance() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  return g_instance;
}

bool open_instance() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  if (g_instance != nullptr) return false;
  g_instance = std::make_shared<Instance>(Topology::from_environment());
  g_state.store(State::Open, std::memory_order_release);
  return true;
}

void close_instance() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  if (g_instance == nullptr) return;
  g_state.store(State::Closed, std::memory_order_release);
  g_instance = nullptr;
}

}  // namespace neuron::nrtsim
