#pragma once

// Device indices of a process that is one of several on its host.
namespace neuron::runtime {

/// Lets device indices go up to `ranks`, so that every rank may call its device by its local rank.
/// A process sees its own cores only: indices beyond them mean its first one.
void set_local_ranks(int ranks);
/// Logical cores that the environment gives to this process; throws for a malformed variable.
int visible_cores();

}  // namespace neuron::runtime
