#pragma once

#include <functional>
#include <memory>
#include <span>

#include "neuron/runtime/runtime.h"

// Recording the work of a stream instead of running it, to be run any number of times later.
namespace neuron::runtime {

/// What was recorded: launches and copies in order, with the memory that they use, which stays
/// allocated as long as the recording lives. Filled by one thread at a time; replayed by any.
class Capture;
using CaptureRef = std::shared_ptr<Capture>;

/// From here on the stream's work is recorded and not run. Throws Error(kInvalid) if it is recorded
/// already.
CaptureRef begin_capture(int device, int64_t stream);
/// The stream runs its work again.
void end_capture(const CaptureRef& capture);
/// Enqueues everything that was recorded. Throws Error(kInvalid) if something happened during the
/// recording that cannot be repeated.
void replay(const CaptureRef& capture, int64_t stream);
size_t steps_of(const CaptureRef& capture);
/// One line per step.
std::string describe(const CaptureRef& capture);

bool is_capturing(int device, int64_t stream) noexcept;
/// `refresh` is given the scalars of the stream's newest recorded launch before each replay: random
/// numbers are drawn anew. Nothing if the stream is not recorded.
void refresh_before_replay(int device, int64_t stream,
                           std::function<void(std::span<ScalarSlot>)> refresh);

}  // namespace neuron::runtime
