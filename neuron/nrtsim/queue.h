#pragma once

#include <cstdint>
#include <functional>

#include "neuron/nrt/nrt.h"

// The asynchronous calls: one ordered queue and one thread for each (core, unit, queue) in use.
namespace neuron::nrtsim::queue {

/// Requests that may wait in one queue before NRT_QUEUE_FULL.
inline constexpr int kDepth = 64;

/// Enqueues work; its status goes to `ret` (if not null) before the request counts as complete.
int schedule(int core, nrta_xu_t unit, int queue, std::function<int()> work, NRT_STATUS* ret,
             nrta_seq_t* seq);
int is_completed(nrta_seq_t seq, bool* completed);
int last_completed(int core, nrta_xu_t unit, int queue, nrta_seq_t* seq);
int notify_sequence(nrta_seq_t seq, int eventfd);
int notify_unit(int core, nrta_xu_t unit, int queue, int eventfd);
/// Finishes all requests and ends the threads.
void drain_and_stop();

}  // namespace neuron::nrtsim::queue
