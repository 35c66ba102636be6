// Collectives inside programs: which devices a group is, and the communicators that programs use.
//
// Programs have communicators of their own, one for each set of ranks, made at the first launch
// that needs it: the order of collectives on a communicator is the order in which ranks start them,
// and programs start theirs when they run, eager collectives when they are called.
#include <algorithm>
#include <map>
#include <mutex>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "neuron/base/error.h"
#include "neuron/c10d/process_group.h"
#include "neuron/c10d/world.h"
#include "neuron/lowering/collectives.h"

namespace neuron::distributed {
namespace {

struct Programs {
  std::mutex mutex;
  // Guarded by mutex, which is held while ranks meet:
  std::map<std::vector<int>, std::shared_ptr<runtime::Communicator>> communicators;
  std::map<std::vector<int>, std::chrono::milliseconds> timeouts;
  std::chrono::milliseconds timeout{};
  bool serving = false;
};
Programs& programs() {
  static auto* const all = new Programs;  // Leaked: threads may outlive main().
  return *all;
}

std::string key_of(const std::vector<int>& ranks) {
  std::string key = "programs";
  for (const int rank : ranks) key.append("/").append(std::to_string(rank));
  return key;
}

std::shared_ptr<runtime::Communicator> meet(const std::vector<int>& ranks, const WorldFacts& world,
                                            std::chrono::milliseconds timeout) {
  const auto store = c10::make_intrusive<::c10d::PrefixStore>(key_of(ranks), world.store);
  runtime::CommunicatorOptions options;
  options.rank =
      static_cast<int>(std::find(ranks.begin(), ranks.end(), world.rank) - ranks.begin());
  options.size = static_cast<int>(ranks.size());
  options.global_ranks = ranks;
  options.group = key_of(ranks);
  options.timeout = timeout;
  options.for_programs = true;
  try {
    return meet_on_host(store, options);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kDevice) throw;
    throw Error(ErrorKind::kCollective, error.what());
  }
}

/// The ranks of the group that has this process, ascending; empty if there is none.
std::vector<int> own_ranks(const hlo::ReplicaGroups& groups, int rank) {
  std::vector<int> ranks;
  for (int64_t row = 0; row < groups.rows(); ++row) {
    const DimsRef ids = groups.row(row);
    if (std::find(ids.begin(), ids.end(), int64_t{rank}) != ids.end()) {
      ranks.assign(ids.begin(), ids.end());
    }
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

void prepare(const hlo::ReplicaGroups& groups) {
  const WorldFacts world = known_world();
  NEURON_CHECK(world.store != nullptr, kCollective,
               "a program with collectives runs, but there is no default process group");
  const std::vector<int> ranks = own_ranks(groups, world.rank);
  NEURON_CHECK(!ranks.empty(), kCollective, "rank ", world.rank,
               " runs a program with collectives of other ranks");
  Programs& all = programs();
  const std::lock_guard lock(all.mutex);
  NEURON_CHECK(all.serving, kCollective,
               "a program with collectives runs, but the default process group has been destroyed");
  std::shared_ptr<runtime::Communicator>& communicator = all.communicators[ranks];
  if (communicator != nullptr) return;
  const auto own = all.timeouts.find(ranks);
  communicator = meet(ranks, world, own == all.timeouts.end() ? all.timeout : own->second);
}

void abandon(const hlo::ReplicaGroups& groups, const std::string& reason) {
  const std::vector<int> ranks = own_ranks(groups, known_world().rank);
  std::shared_ptr<runtime::Communicator> communicator;
  {
    Programs& all = programs();
    const std::lock_guard lock(all.mutex);
    const auto found = all.communicators.find(ranks);
    if (found != all.communicators.end()) communicator = found->second;
  }
  if (communicator != nullptr) communicator->abort(reason);
}

lowering::ProgramGroup resolve(const std::string& name) {
  const auto group = ::c10d::resolve_process_group(name);
  const auto backend = group->getBackend(c10::DeviceType::PrivateUse1);
  const auto* const ours = dynamic_cast<const ProcessGroupNeuron*>(backend.get());
  NEURON_CHECK(ours != nullptr, kUnsupported, "group '", name,
               "' is wrapped (TORCH_DISTRIBUTED_DEBUG) or of another backend: its collectives run "
               "between programs");
  NEURON_CHECK(ours->is_on_one_host(), kUnsupported, "the ranks of group '", name,
               "' are on several hosts: its collectives run between programs");
  const WorldFacts world = known_world();
  lowering::ProgramGroup found;
  for (const int rank : ours->global_ranks()) {
    NEURON_CHECK(rank < world.size, kUnsupported, "group '", name, "' has rank ", rank,
                 ", which the default group does not");
    found.ranks.push_back(rank);
  }
  found.groups = lowering::replica_groups_of(found.ranks, world.size);
  return found;
}

}  // namespace

void serve_programs(std::chrono::milliseconds timeout) {
  stop_serving_programs("");
  const WorldFacts world = known_world();
  {
    Programs& all = programs();
    const std::lock_guard lock(all.mutex);
    all.timeout = timeout;
    all.serving = true;
  }
  runtime::set_global_device(world.rank, world.size);
  runtime::set_program_groups({prepare, abandon});
  lowering::set_group_resolver(resolve);
}

void set_program_timeout(const std::vector<int>& global_ranks, std::chrono::milliseconds timeout) {
  std::vector<int> ranks = global_ranks;
  std::sort(ranks.begin(), ranks.end());
  Programs& all = programs();
  const std::lock_guard lock(all.mutex);
  all.timeouts[ranks] = timeout;
  const auto found = all.communicators.find(ranks);
  if (found != all.communicators.end() && found->second != nullptr) {
    found->second->set_timeout(timeout);
  }
}

void stop_serving_programs(const std::string& reason) {
  std::map<std::vector<int>, std::shared_ptr<runtime::Communicator>> ended;
  {
    Programs& all = programs();
    const std::lock_guard lock(all.mutex);
    ended.swap(all.communicators);
    all.serving = false;
    all.timeouts.clear();
  }
  for (const auto& [ranks, communicator] : ended) {
    if (communicator == nullptr) continue;
    reason.empty() ? communicator->close() : communicator->abort(reason);
  }
}

}  // namespace neuron::distributed
