#include "neuron/c10d/world.h"

#include <unistd.h>

#include <algorithm>
#include <bitset>
#include <mutex>
#include <sstream>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "neuron/aten/devices.h"
#include "neuron/base/env.h"
#include "neuron/base/error.h"
#include "neuron/runtime/communicator.h"
#include "neuron/runtime/placement.h"
#include "neuron/runtime/runtime.h"

namespace neuron::distributed {
namespace {

using ::c10d::Store;

// Lines of text: readable when the store is looked at.
std::vector<uint8_t> encode(const Member& member) {
  std::ostringstream text;
  text << member.process << '\n'
       << member.local_rank << '\n'
       << member.core_count << '\n'
       << member.cores << '\n'
       << member.host;
  const std::string encoded = text.str();
  return {encoded.begin(), encoded.end()};
}

Member decode(const std::vector<uint8_t>& value) {
  std::istringstream text(std::string(value.begin(), value.end()));
  Member member;
  text >> member.process >> member.local_rank >> member.core_count;
  text.ignore(1);
  std::getline(text, member.cores);
  std::getline(text, member.host, '\0');
  return member;
}

std::string list_of(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) {
    if (!text.empty()) text += ",";
    text += std::to_string(number);
  }
  return text;
}

Member describe_self(const Launch& launch) {
  // Launchers set variables in the process that they have started.
  if (!runtime::is_initialized()) env::reload();
  Member self;
  self.host = runtime::host_identity() + env::host_id();
  self.process = getpid();
  self.local_rank = launch.local_rank;
  if (const auto& cores = env::visible_cores()) self.cores = list_of(*cores);
  self.core_count = runtime::visible_cores();
  return self;
}

std::string member_key(int rank) { return "member/" + std::to_string(rank); }

/// Ranks whose key has not been written.
std::vector<int> absent_ranks(Store& store, int size) {
  std::vector<int> absent;
  for (int rank = 0; rank < size; ++rank) {
    if (!store.check({member_key(rank)})) absent.push_back(rank);
  }
  return absent;
}

struct World {
  std::mutex mutex;
  // Guarded by mutex:
  std::vector<Member> members;
  c10::intrusive_ptr<Store> store;
  int rank = 0;
  int local_rank = 0;
  std::bitset<128> claimed;
};

World& world() {
  static auto* const world = new World;  // Leaked: threads may outlive main().
  return *world;
}

}  // namespace

void check_launch(const Launch& launch, int rank, int size) {
  NEURON_CHECK(size > 0, kInvalid, "the process group has a world size of ", size,
               ", allowed are 1 and more (WORLD_SIZE is ", launch.world_size, ")");
  NEURON_CHECK(rank >= 0 && rank < size, kInvalid, "this process has rank ", rank,
               ", but the world size is ", size, ", so ranks are 0 to ", size - 1, " (RANK is ",
               launch.rank, ", WORLD_SIZE is ", launch.world_size, ")");
  if (launch.local_rank < 0 || launch.local_world_size < 0) return;
  NEURON_CHECK(launch.local_rank < launch.local_world_size, kInvalid, "LOCAL_RANK is ",
               launch.local_rank, ", but LOCAL_WORLD_SIZE is ", launch.local_world_size,
               ", so local ranks are 0 to ", launch.local_world_size - 1);
}

c10::intrusive_ptr<Store> fresh_store(const c10::intrusive_ptr<Store>& store, int rank) {
  // Each member counts its own visits in the store itself, so processes of any age agree.
  const int64_t visit = store->add("visits/" + std::to_string(rank), 1);
  return c10::make_intrusive<::c10d::PrefixStore>("group" + std::to_string(visit), store);
}

std::vector<Member> exchange_members(Store& store, const Launch& launch, int rank, int size,
                                     std::chrono::milliseconds timeout, const std::string& group) {
  store.set(member_key(rank), encode(describe_self(launch)));
  std::vector<Member> members;
  try {
    // One key per rank for rank 0, one for all others: the store sees 3 calls per rank.
    if (rank == 0) {
      std::vector<std::string> keys;
      for (int other = 0; other < size; ++other) keys.push_back(member_key(other));
      store.wait(keys, timeout);
      std::string all;
      for (const std::string& key : keys) {
        const std::vector<uint8_t> value = store.get(key);
        all.append(std::to_string(value.size())).append("\n").append(value.begin(), value.end());
      }
      store.set("members", std::vector<uint8_t>(all.begin(), all.end()));
    } else {
      store.wait({"members"}, timeout);
    }
    const std::vector<uint8_t> all = store.get("members");
    for (auto at = all.begin(); at != all.end();) {
      const auto line = std::find(at, all.end(), '\n');
      const auto length = std::stol(std::string(at, line));
      members.push_back(decode({line + 1, line + 1 + length}));
      at = line + 1 + length;
    }
  } catch (const std::exception& failure) {
    const std::vector<int> absent = absent_ranks(store, size);
    raise(ErrorKind::kDevice, "rank ", rank, " waited ", timeout.count(),
          " ms for the other ranks of group '", group, "' (", size, " ranks), but rank",
          absent.size() == 1 ? " " : "s ", absent.empty() ? "0" : list_of(absent),
          " did not come: ", failure.what());
  }
  return members;
}

void place_rank(const std::vector<Member>& members, const Launch& launch, int rank) {
  const Member& self = members[static_cast<size_t>(rank)];
  int local_rank = 0;
  int local_size = 0;
  std::vector<int> same_cores;
  for (size_t other = 0; other < members.size(); ++other) {
    if (members[other].host != self.host) continue;
    if (static_cast<int>(other) < rank) ++local_rank;
    ++local_size;
    if (members[other].cores == self.cores) same_cores.push_back(static_cast<int>(other));
  }
  // The launcher's numbers count processes of other groups, too.
  if (launch.local_rank >= 0) local_rank = launch.local_rank;
  local_size = std::max({local_size, launch.local_world_size, local_rank + 1});
  if (!self.cores.empty()) {
    // Either each rank has cores of its own, or all ranks share one list.
    NEURON_CHECK(same_cores.size() == 1 || static_cast<int>(same_cores.size()) <= self.core_count,
                 kInvalid, "NEURON_RT_VISIBLE_CORES=", self.cores, " gives ", self.core_count,
                 " NeuronCores to the ", same_cores.size(), " ranks ", list_of(same_cores),
                 " of this host; every rank needs one: list at least ", same_cores.size(),
                 " cores, or other cores for each rank");
  }
  runtime::set_local_ranks(local_size);
  {
    World& all = world();
    const std::lock_guard lock(all.mutex);
    all.local_rank = local_rank;
  }
  // With several cores of its own a process starts with the first of them.
  const bool own_cores = !self.cores.empty() && same_cores.size() == 1 && self.core_count > 1;
  if (!aten::device_chosen()) {
    aten::choose_device(own_cores ? 0 : static_cast<c10::DeviceIndex>(local_rank));
  }
}

void remember_world(std::vector<Member> members, c10::intrusive_ptr<Store> store, int rank) {
  World& all = world();
  const std::lock_guard lock(all.mutex);
  all.members = std::move(members);
  all.store = std::move(store);
  all.rank = rank;
  all.claimed.reset();
}

WorldFacts known_world() {
  World& all = world();
  const std::lock_guard lock(all.mutex);
  return {all.store, all.rank, static_cast<int>(all.members.size())};
}

std::vector<Member> known_members(const std::vector<int>& global_ranks) {
  World& all = world();
  const std::lock_guard lock(all.mutex);
  std::vector<Member> found;
  for (const int rank : global_ranks) {
    if (rank < 0 || static_cast<size_t>(rank) >= all.members.size()) return {};
    found.push_back(all.members[static_cast<size_t>(rank)]);
  }
  return found;
}

bool on_one_host(const std::vector<Member>& members) {
  return std::all_of(members.begin(), members.end(),
                     [&](const Member& member) { return member.host == members[0].host; });
}

void claim_core(int device) {
  World& all = world();
  const std::lock_guard lock(all.mutex);
  if (all.store == nullptr || all.claimed[static_cast<size_t>(device)]) return;
  // As the host numbers its cores.
  const int visible = runtime::visible_cores();
  int core = device < visible ? device : 0;
  if (const auto& cores = env::visible_cores()) {
    core = (*cores)[static_cast<size_t>(core)];
  } else if (device >= visible || env::num_cores() > 0) {
    // The runtime gave this process some cores; which ones is its own affair.
    all.claimed.set(static_cast<size_t>(device));
    return;
  }
  const Member& self = all.members[static_cast<size_t>(all.rank)];
  const std::string key = "core/" + std::to_string(core) + "/" + self.host;
  const std::string mine = std::to_string(all.rank);
  const std::string owner = all.store->compareSet(key, "", mine);
  NEURON_CHECK(owner == mine, kInvalid, "rank ", mine, " uses neuron:", device,
               ", which is NeuronCore ", core, " of this host, but rank ", owner,
               " has it already. One NeuronCore serves one process: call "
               "torch.neuron.set_device(LOCAL_RANK), or leave the choice to init_process_group(); "
               "this rank's local rank is ",
               all.local_rank);
  all.claimed.set(static_cast<size_t>(device));
}

}  // namespace neuron::distributed
