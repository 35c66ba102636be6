#pragma once

#include <functional>
#include <string>

#include "neuron/hlo/module.h"

namespace neuron::lowering {

/// A process group as programs see it.
struct ProgramGroup {
  /// Groups of global ranks that do the same thing at the same time; one of them has this process.
  hlo::ReplicaGroups groups;
  /// The row with this process, in the order of the group's ranks.
  Dims ranks;
};

/// How a group's name becomes devices. Throws Error(kUnsupported) for groups whose collectives
/// cannot be part of a program; those run between programs. Set by the process groups.
void set_group_resolver(std::function<ProgramGroup(const std::string& name)> resolve);

/// The groups that rank `self`'s group `ranks` belongs to in a job of `count` devices: if the ranks
/// are evenly spaced, as along a dim of a device mesh, all groups of that dim, so that every rank
/// makes the same program; else the group alone.
hlo::ReplicaGroups replica_groups_of(DimsRef ranks, int64_t count);

}  // namespace neuron::lowering
