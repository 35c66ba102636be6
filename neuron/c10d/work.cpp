#include "neuron/c10d/work.h"

#include <ATen/core/ivalue.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>

#include "neuron/aten/tensor.h"
#include "neuron/c10d/checks.h"
#include "neuron/c10d/recorder.h"
#include "neuron/c10d/workers.h"

namespace neuron::distributed {
namespace {

using Clock = std::chrono::steady_clock;
using Future = c10::ivalue::Future;

c10::Device device_at(c10::DeviceIndex index) { return {c10::DeviceType::PrivateUse1, index}; }

c10::Stream stream_at(c10::DeviceIndex index, int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, device_at(index), id);
}

std::string text_of(const std::exception_ptr& error) {
  if (error == nullptr) return {};
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "unknown error";
  }
}

}  // namespace

// Shared with the communicator's callbacks, which may outlive the Work.
class NeuronWork::State : public std::enable_shared_from_this<State> {
 public:
  explicit State(Started started)
      : parts(std::move(started)), remaining_(parts.operations.size()) {}
  ~State() { runtime::destroy_event(copied_); }

  /// Registers with the operations. Not in the constructor: callbacks hold a reference.
  void watch() {
    if (parts.operations.empty()) {
      end();
      return;
    }
    for (const runtime::OperationRef& operation : parts.operations) {
      operation->on_done([self = shared_from_this()] {
        if (self->remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1) self->operations_done();
      });
    }
  }

  bool is_done() {
    for (const runtime::OperationRef& operation : parts.operations) {
      if (!operation->done()) return false;
    }
    if (parts.copies.empty() || error() != nullptr) return true;
    const std::lock_guard lock(mutex_);
    return copied_ != nullptr && runtime::query_event(copied_);
  }

  std::exception_ptr error() const {
    for (const runtime::OperationRef& operation : parts.operations) {
      if (operation->done()) {
        if (std::exception_ptr found = operation->error()) return as_torch_error(found);
      }
    }
    const std::lock_guard lock(mutex_);
    return copy_error_;
  }

  /// Orders the current stream behind everything, blocking the host up to `timeout` if one is
  /// given.
  void wait(std::optional<std::chrono::milliseconds> timeout) {
    const Clock::time_point start = Clock::now();
    for (const runtime::OperationRef& operation : parts.operations) {
      if (timeout.has_value()) {
        const auto passed =
            std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
        operation->wait(std::max(*timeout - passed, std::chrono::milliseconds(1)));
      } else if (parts.blocks_host) {
        operation->wait();
      }
      operation->order_before(parts.device, aten::current_stream(parts.device));
    }
    finish_copies(stream_at(parts.device, aten::current_stream(parts.device)));
  }

  c10::intrusive_ptr<Future> future() {
    std::unique_lock lock(mutex_);
    if (future_ == nullptr) {
      future_ = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()),
                                            std::vector<c10::Device>{device_at(parts.device)});
      if (ended_) {
        lock.unlock();
        complete_future();
      }
    }
    return future_;
  }

  Clock::duration duration() {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(ended_, "getDuration: the operation is not done yet");
    return end_time_ - start_time_;
  }

  const Started parts;

 private:
  // On the communicator's thread.
  void operations_done() {
    if (!parts.copies.empty() && error() == nullptr) {
      run_soon([self = shared_from_this()] {
        const int64_t stream = self->side_stream();
        try {
          self->finish_copies(stream_at(self->parts.device, stream));
        } catch (...) {
          const std::lock_guard lock(self->mutex_);
          self->copy_error_ = std::current_exception();
        }
        self->end();
      });
      return;
    }
    end();
  }

  int64_t side_stream() const {
    return runtime::pooled_stream(parts.device, /*high_priority=*/false);
  }

  /// Copies on `stream`, or lets it wait for the copies that another caller has enqueued.
  void finish_copies(c10::Stream stream) {
    if (parts.copies.empty()) return;
    const std::lock_guard lock(mutex_);
    if (copied_ != nullptr) {
      runtime::stream_wait_event(stream.device_index(), stream.id(), copied_);
      return;
    }
    const c10::StreamGuard guard(stream);
    run_copies(parts.copies);
    runtime::Event* event = runtime::create_event(/*timing=*/false);
    runtime::record_event(event, stream.device_index(), stream.id());
    copied_ = event;
  }

  void end() {
    const std::string text = text_of(error());
    for (const uint64_t id : parts.records) record_end(id, text);
    bool has_future;
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      end_time_ = Clock::now();
      has_future = future_ != nullptr;
    }
    // Callbacks of the future may be anything, a collective that is waited for included.
    if (has_future) run_soon([self = shared_from_this()] { self->complete_future(); });
    if (parts.on_end != nullptr) parts.on_end(text);
  }

  void complete_future() {
    if (const std::exception_ptr failure = error()) {
      future_->setError(failure);
      return;
    }
    const c10::Stream stream = stream_at(parts.device, side_stream());
    {
      const std::lock_guard lock(mutex_);
      if (copied_ != nullptr) {
        runtime::stream_wait_event(stream.device_index(), stream.id(), copied_);
      }
    }
    // The future records an event on the current streams for those who wait for it.
    const c10::StreamGuard guard(stream);
    future_->markCompleted(c10::IValue(parts.outputs));
  }

  std::atomic<size_t> remaining_;
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  runtime::Event* copied_ = nullptr;
  bool ended_ = false;
  c10::intrusive_ptr<Future> future_;
  Clock::time_point end_time_;
  std::exception_ptr copy_error_;

  const Clock::time_point start_time_ = Clock::now();
};

NeuronWork::NeuronWork(Started started, int rank, ::c10d::OpType type, const char* title,
                       const std::vector<at::Tensor>& inputs)
    : Work(rank, type, title, inputs), state_(std::make_shared<State>(std::move(started))) {
  state_->watch();
  // As the profiler sees it the call has been made; how long it takes is the device's matter.
  if (recordFunctionEndCallback_) {
    recordFunctionEndCallback_();
    recordFunctionEndCallback_ = nullptr;
  }
}

NeuronWork::~NeuronWork() = default;

bool NeuronWork::isCompleted() { return state_->is_done(); }

bool NeuronWork::isSuccess() const { return state_->is_done() && state_->error() == nullptr; }

std::exception_ptr NeuronWork::exception() const { return state_->error(); }

int NeuronWork::sourceRank() const {
  TORCH_CHECK(state_->parts.operations.size() == 1, "sourceRank: this is no single receive");
  return translating([&] {
    state_->parts.operations[0]->wait();
    return state_->parts.operations[0]->source_rank();
  });
}

std::vector<at::Tensor> NeuronWork::result() { return state_->parts.outputs; }

void NeuronWork::synchronize() {
  translating([&] { state_->wait(std::nullopt); });
}

bool NeuronWork::wait(std::chrono::milliseconds timeout) {
  translating([&] { state_->wait(timeout > kNoTimeout ? std::optional(timeout) : std::nullopt); });
  return true;
}

void NeuronWork::blockCurrentStream() { synchronize(); }

void NeuronWork::abort() {
  TORCH_CHECK(false, "neuron: one operation cannot be aborted; abort() its process group");
}

c10::intrusive_ptr<Future> NeuronWork::getFuture() { return state_->future(); }

c10::intrusive_ptr<Future> NeuronWork::getFutureResult() {
  auto result = c10::make_intrusive<Future>(c10::AnyEnumType::get());
  const c10::intrusive_ptr<Future> done = state_->future();
  done->addCallback(
      [result](Future& future) {
        result->markCompleted(c10::IValue(static_cast<int64_t>(
            future.hasError() ? ::c10d::WorkResult::COMM_ERROR : ::c10d::WorkResult::SUCCESS)));
      },
      /*uses_future=*/true);
  return result;
}

float NeuronWork::getDuration() const {
  return std::chrono::duration<float, std::milli>(state_->duration()).count();
}

uint64_t NeuronWork::getSequencenumber() const { return state_->parts.sequence; }

// --- GroupedWork ---------------------------------------------------------------------------------

GroupedWork::GroupedWork(std::vector<c10::intrusive_ptr<::c10d::Work>> works,
                         c10::DeviceIndex device, int rank, ::c10d::OpType type)
    : Work(rank, type), works_(std::move(works)), device_(device) {}

bool GroupedWork::isCompleted() {
  return std::all_of(works_.begin(), works_.end(),
                     [](const auto& work) { return work->isCompleted(); });
}

bool GroupedWork::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(),
                     [](const auto& work) { return work->isSuccess(); });
}

std::exception_ptr GroupedWork::exception() const {
  for (const auto& work : works_) {
    if (std::exception_ptr found = work->exception()) return found;
  }
  return nullptr;
}

std::vector<at::Tensor> GroupedWork::result() {
  std::vector<at::Tensor> all;
  for (const auto& work : works_) {
    const std::vector<at::Tensor> some = work->result();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

void GroupedWork::synchronize() {
  for (const auto& work : works_) work->synchronize();
}

bool GroupedWork::wait(std::chrono::milliseconds timeout) {
  for (const auto& work : works_) work->wait(timeout);
  return true;
}

void GroupedWork::blockCurrentStream() { synchronize(); }

c10::intrusive_ptr<Future> GroupedWork::getFuture() {
  auto all = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()),
                                         std::vector<c10::Device>{device_at(device_)});
  auto remaining = std::make_shared<std::atomic<size_t>>(works_.size());
  auto failure = std::make_shared<std::exception_ptr>();
  auto mutex = std::make_shared<std::mutex>();
  for (const auto& work : works_) {
    work->getFuture()->addCallback(
        [all, remaining, failure, mutex, outputs = result()](Future& part) {
          if (part.hasError()) {
            const std::lock_guard lock(*mutex);
            *failure = part.exception_ptr();
          }
          if (remaining->fetch_sub(1) != 1) return;
          if (*failure != nullptr) {
            all->setError(*failure);
          } else {
            all->markCompleted(c10::IValue(outputs));
          }
        });
  }
  return all;
}

float GroupedWork::getDuration() const {
  float longest = 0;
  for (const auto& work : works_) longest = std::max(longest, work->getDuration());
  return longest;
}

uint64_t GroupedWork::getSequencenumber() const { return works_.back()->getSequencenumber(); }

}  // namespace neuron::distributed
