#include "neuron/runtime/capture.h"

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "neuron/base/error.h"
#include "neuron/base/small_vector.h"
#include "neuron/runtime/capture_record.h"
#include "neuron/runtime/program.h"

namespace neuron::runtime {

class Capture {
 public:
  struct Step {
    const char* op = nullptr;
    ProgramRef program;  // A launch if set, else `work`.
    SmallVector<Buffer, 16> buffers;
    size_t parameter_count = 0;
    SmallVector<ScalarSlot, 8> scalars;
    std::function<void(std::span<ScalarSlot>)> refresh;
    std::function<void()> work;
    std::function<void(int64_t stream)> start;  // If set, instead of `work`.
    std::vector<Block*> blocks;                 // That `work` uses.
  };

  Capture(int device, StreamState* state) : device(device), state(state) {}
  ~Capture() {
    if (StreamState* recorded = state; recorded != nullptr) {
      Capture* self = this;
      recorded->capture.compare_exchange_strong(self, nullptr);
    }
    finish();
    for (Block* block : kept) release(block);
  }

  // What waits for the end of the recording.
  void finish() {
    std::vector<std::function<void()>> ended;
    {
      const std::lock_guard lock(mutex);
      ended.swap(at_end);
    }
    for (const auto& call : ended) call();
  }

  void keep(Block* block) {
    if (block == nullptr) return;
    retain(block);
    kept.push_back(block);
  }

  const int device;
  StreamState* state;  // Null once the recording has ended.
  std::mutex mutex;    // Guards the rest.
  std::vector<Step> steps;
  std::vector<Block*> kept;
  std::vector<std::function<void()>> at_end;
  std::string spoiled;  // Why it cannot be replayed.
};

CaptureRef begin_capture(int device, int64_t stream) {
  StreamState& state = stream_state(device, stream);
  synchronize_stream(device, stream);
  auto capture = std::make_shared<Capture>(device, &state);
  Capture* none = nullptr;
  const bool begun = state.capture.compare_exchange_strong(none, capture.get());
  if (!begun) capture->state = nullptr;
  NEURON_CHECK(begun, kInvalid, "neuron:", device, ": stream ", stream,
               " is being captured already");
  return capture;
}

void end_capture(const CaptureRef& capture) {
  if (capture->state != nullptr) capture->state->capture.store(nullptr);
  capture->state = nullptr;
  capture->finish();
}

void replay(const CaptureRef& capture, int64_t stream) {
  const std::lock_guard lock(capture->mutex);
  NEURON_CHECK(capture->state == nullptr, kInvalid,
               "a graph cannot be replayed while it is being captured");
  NEURON_CHECK(capture->spoiled.empty(), kInvalid,
               "the captured graph cannot be replayed: ", capture->spoiled);
  for (Capture::Step& step : capture->steps) {
    if (step.start) {
      step.start(stream);
      continue;
    }
    if (step.program == nullptr) {
      enqueue(capture->device, stream, step.work, step.blocks, step.op);
      continue;
    }
    if (step.refresh) step.refresh({step.scalars.data(), step.scalars.size()});
    const std::span<const Buffer> buffers(step.buffers.data(), step.buffers.size());
    launch(capture->device, stream, step.program, buffers.first(step.parameter_count),
           {step.scalars.data(), step.scalars.size()}, buffers.subspan(step.parameter_count),
           step.op);
  }
}

size_t steps_of(const CaptureRef& capture) {
  const std::lock_guard lock(capture->mutex);
  return capture->steps.size();
}

std::string describe(const CaptureRef& capture) {
  const std::lock_guard lock(capture->mutex);
  std::string text;
  for (const Capture::Step& step : capture->steps) {
    text += step.op;
    if (step.program != nullptr) text += step.program->signature();
    text += '\n';
  }
  return text;
}

bool is_capturing(int device, int64_t stream) noexcept {
  return stream_state_unchecked(device, stream).capture.load(std::memory_order_relaxed) != nullptr;
}

void refresh_before_replay(int device, int64_t stream,
                           std::function<void(std::span<ScalarSlot>)> refresh) {
  Capture* capture = stream_state(device, stream).capture.load();
  if (capture == nullptr) return;
  const std::lock_guard lock(capture->mutex);
  if (!capture->steps.empty()) capture->steps.back().refresh = std::move(refresh);
}

void record_launch(StreamState& state, const ProgramRef& program,
                   std::span<const Buffer> parameters, std::span<const ScalarSlot> scalars,
                   std::span<const Buffer> results, const char* op) {
  Capture* capture = state.capture.load();
  if (capture == nullptr) return;
  const std::lock_guard lock(capture->mutex);
  Capture::Step& step = capture->steps.emplace_back();
  step.op = op;
  step.program = program;
  step.parameter_count = parameters.size();
  for (const std::span<const Buffer> buffers : {parameters, results}) {
    for (const Buffer& buffer : buffers) {
      step.buffers.push_back(buffer);
      capture->keep(buffer.block);
    }
  }
  step.scalars.append(scalars.begin(), scalars.end());
}

void record_work(StreamState& state, std::function<void()> work, std::span<Block* const> blocks,
                 const char* op) {
  Capture* capture = state.capture.load();
  if (capture == nullptr) return;
  const std::lock_guard lock(capture->mutex);
  Capture::Step& step = capture->steps.emplace_back();
  step.op = op;
  step.work = std::move(work);
  for (Block* block : blocks) {
    if (block == nullptr) continue;
    step.blocks.push_back(block);
    capture->keep(block);
  }
}

void record_start(StreamState& state, std::function<void(int64_t stream)> start,
                  std::span<Block* const> blocks, const char* op, std::function<void()> at_end) {
  Capture* capture = state.capture.load();
  if (capture == nullptr) return;
  const std::lock_guard lock(capture->mutex);
  Capture::Step& step = capture->steps.emplace_back();
  step.op = op;
  step.start = std::move(start);
  for (Block* block : blocks) capture->keep(block);
  capture->at_end.push_back(std::move(at_end));
}

void refuse_while_capturing(StreamState& state, const char* what) {
  if (Capture* capture = state.capture.load()) {
    const std::lock_guard lock(capture->mutex);
    if (capture->spoiled.empty()) {
      capture->spoiled = internal::join(what, " was called while it was being captured");
    }
  }
  raise(ErrorKind::kInvalid, what,
        ": operation not permitted when the stream is capturing; what the host would read has not "
        "been computed");
}

}  // namespace neuron::runtime
