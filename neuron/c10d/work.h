#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "neuron/c10d/staging.h"
#include "neuron/runtime/communicator.h"

namespace neuron::distributed {

/// What a Work is made of.
struct Started {
  std::vector<runtime::OperationRef> operations;
  std::vector<Staging::CopyBack> copies;
  std::vector<at::Tensor> outputs;
  c10::DeviceIndex device = 0;
  bool blocks_host = false;  // wait() returns when it is done: barriers
  uint64_t sequence = 0;
  std::vector<uint64_t> records;  // Of the flight recorder
  /// Called once, on a thread of the communicator, with the text of the error if there is one.
  std::function<void(const std::string& error)> on_end;
};

/// One or several operations of the communicator as torch sees them.
///
/// Received temporaries are copied into the caller's tensors by whoever comes first: wait(), on the
/// current stream, or the end of the operations, on a stream of the pool. The other side then waits
/// for the event that the first one has recorded.
class NeuronWork final : public ::c10d::Work {
 public:
  NeuronWork(Started started, int rank, ::c10d::OpType type, const char* title,
             const std::vector<at::Tensor>& inputs);
  ~NeuronWork() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void blockCurrentStream() override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override;

 private:
  class State;
  const std::shared_ptr<State> state_;
};

/// Several Works as one.
class GroupedWork final : public ::c10d::Work {
 public:
  GroupedWork(std::vector<c10::intrusive_ptr<::c10d::Work>> works, c10::DeviceIndex device,
              int rank, ::c10d::OpType type);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void blockCurrentStream() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override;

 private:
  const std::vector<c10::intrusive_ptr<::c10d::Work>> works_;
  const c10::DeviceIndex device_;
};

}  // namespace neuron::distributed
