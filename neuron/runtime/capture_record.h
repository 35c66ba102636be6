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
/// `start` begins something on the stream that replay() is given, and orders the stream behind it;
/// it runs on the thread that replays. `at_end` runs when the recording has ended.
void record_start(StreamState& state, std::function<void(int64_t stream)> start,
                  std::span<Block* const> blocks, const char* op, std::function<void()> at_end);
/// `what` needs the result of work that has not run: notes that for replay() and throws
/// Error(kInvalid).
[[noreturn]] void refuse_while_capturing(StreamState& state, const char* what);

}  // namespace neuron::runtime
