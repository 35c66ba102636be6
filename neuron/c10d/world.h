#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

// What the ranks know of each other's processes: hosts, NeuronCores, local ranks.
namespace neuron::distributed {

/// What the launcher says about this process; -1 where it says nothing.
struct Launch {
  int rank = -1, world_size = -1;              // RANK, WORLD_SIZE
  int local_rank = -1, local_world_size = -1;  // LOCAL_RANK, LOCAL_WORLD_SIZE
};

/// Refuses numbers that cannot be, before anything is sent.
void check_launch(const Launch& launch, int rank, int size);

/// One process of a group as it describes itself.
struct Member {
  std::string host;     // Equal for processes that can share memory
  int64_t process = 0;  // Its id there
  int local_rank = -1;  // -1: not said
  std::string cores;    // NEURON_RT_VISIBLE_CORES, "2,3"; empty: not set
  int core_count = 0;   // Cores that it sees
};

/// A store below `store` that no earlier group has written to: every member of a group calls this
/// once when the group is made.
c10::intrusive_ptr<::c10d::Store> fresh_store(const c10::intrusive_ptr<::c10d::Store>& store,
                                              int rank);

/// Describes this process and learns about the others. An absent rank becomes an error that names
/// it after the timeout.
std::vector<Member> exchange_members(::c10d::Store& store, const Launch& launch, int rank, int size,
                                     std::chrono::milliseconds timeout, const std::string& group);

/// Chooses this process's device from its place on the host, unless the program has chosen one.
/// Throws if the ranks of the host cannot have a NeuronCore each.
void place_rank(const std::vector<Member>& members, const Launch& launch, int rank);

/// Keeps the members of the default group for its sub-groups, and its store for claim_core().
void remember_world(std::vector<Member> members, c10::intrusive_ptr<::c10d::Store> store, int rank);
/// By global rank. Empty if one of them is not known.
std::vector<Member> known_members(const std::vector<int>& global_ranks);

/// The job, as the default group has it.
struct WorldFacts {
  c10::intrusive_ptr<::c10d::Store> store;  // Null: there is no default group.
  int rank = 0, size = 0;
};
WorldFacts known_world();

/// Lets programs have collectives among the ranks of the job. `timeout`: of the default group.
void serve_programs(std::chrono::milliseconds timeout);
/// The same limit for the programs' collectives of these ranks, from now on.
void set_program_timeout(const std::vector<int>& global_ranks, std::chrono::milliseconds timeout);
/// The default group ends, and the programs' communicators with it; aborted for a reason if that
/// is not empty.
void stop_serving_programs(const std::string& reason);

bool on_one_host(const std::vector<Member>& members);

/// Takes the NeuronCore behind `device` for this process; throws if another rank of the host has
/// it. Cheap after the first time.
void claim_core(int device);

}  // namespace neuron::distributed
