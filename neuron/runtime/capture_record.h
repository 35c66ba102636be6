#pragma once

#include <functional>
#include <initializer_list>
#include <span>

#include "neuron/runtime/capture.h"
#include "neuron/runtime/stream.h"

// How launch(), the transfers and enqueue() hand their work to a recording. All of them may be
// called only while StreamState::capture is set.
namespace neuron::runtime {

void record_launch(StreamState& state, const ProgramRef& program,
                   std::span<const Buffer> parameters, std::span<const ScalarSlot> scalars,
                   std::span<const Buffer> results, const char* op);
void record_work(StreamState& state, std::function<void()> work, std::span<Block* const> blocks,
                 const char* op);
/// `what` needs the result of work that has not run: notes that for replay() and throws
/// Error(kInvalid).
[[noreturn]] void refuse_while_capturing(StreamState& state, const char* what);

}  // namespace neuron::runtime
