#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "neuron/runtime/communicator.h"

namespace neuron::distributed {

/// The communicator for ranks of several hosts: copies on the host, sent by Gloo. Reductions add up
/// in rank order on every rank alike.
std::shared_ptr<runtime::Communicator> make_gloo_communicator(
    c10::intrusive_ptr<::c10d::Backend> gloo, const runtime::CommunicatorOptions& options);

}  // namespace neuron::distributed
