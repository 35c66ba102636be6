#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "neuron/c10d/checks.h"
#include "neuron/c10d/staging.h"
#include "neuron/c10d/work.h"
#include "neuron/c10d/world.h"
#include "neuron/runtime/communicator.h"

namespace neuron::distributed {

/// Makes a Gloo backend for ranks of several hosts: (store, rank, size, timeout).
using GlooFactory = std::function<c10::intrusive_ptr<::c10d::Backend>(
    const c10::intrusive_ptr<::c10d::Store>&, int, int, std::chrono::milliseconds)>;
/// libtorch's Gloo has no public headers; torch's Python face makes the objects.
void set_gloo_factory(GlooFactory factory);

/// The communicator of ranks of one host, which meet in the store.
std::shared_ptr<runtime::Communicator> meet_on_host(const c10::intrusive_ptr<::c10d::Store>& store,
                                                    const runtime::CommunicatorOptions& options);

/// The backend `neuron` of one group. Thread-safe as c10d has it: collectives of one group must be
/// called in one order on all ranks, so not from several threads at once.
class ProcessGroupNeuron final : public ::c10d::Backend {
 public:
  struct Options final : public ::c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
        : ::c10d::Backend::Options("neuron", timeout) {}
  };

  /// Meets the other ranks. An empty global_ranks_in_group means the default group.
  ProcessGroupNeuron(const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
                     c10::intrusive_ptr<Options> options, const Launch& launch);
  ~ProcessGroupNeuron() override;

  const std::string getBackendName() const override { return "neuron"; }
  c10::intrusive_ptr<::c10d::Backend::Options> getBackendOptions() override { return options_; }
  /// "shared memory" or "gloo".
  const char* transport() const { return transport_; }
  bool is_on_one_host() const { return on_one_host_; }
  const std::vector<int>& global_ranks() const { return global_ranks_; }

  c10::intrusive_ptr<::c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                             const ::c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<::c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                             const ::c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<::c10d::Work> allreduce_sparse(
      std::vector<at::Tensor>& tensors, const ::c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<::c10d::Work> allreduce_coalesced(
      std::vector<at::Tensor>& tensors, const ::c10d::AllreduceCoalescedOptions& options) override;
  c10::intrusive_ptr<::c10d::Work> reduce(std::vector<at::Tensor>& tensors,
                                          const ::c10d::ReduceOptions& options) override;
  c10::intrusive_ptr<::c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                             std::vector<at::Tensor>& inputs,
                                             const ::c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<::c10d::Work> _allgather_base(
      at::Tensor& output, at::Tensor& input, const ::c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<::c10d::Work> allgather_coalesced(
      std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
      const ::c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<::c10d::Work> allgather_into_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const ::c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<::c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs,
                                          std::vector<at::Tensor>& inputs,
                                          const ::c10d::GatherOptions& options) override;
  c10::intrusive_ptr<::c10d::Work> scatter(std::vector<at::Tensor>& outputs,
                                           std::vector<std::vector<at::Tensor>>& inputs,
                                           const ::c10d::ScatterOptions& options) override;
  c10::intrusive_ptr<::c10d::Work> reduce_scatter(
      std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
      const ::c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<::c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const ::c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<::c10d::Work> reduce_scatter_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const ::c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<::c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                                 std::vector<int64_t>& output_splits,
                                                 std::vector<int64_t>& input_splits,
                                                 const ::c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<::c10d::Work> alltoall(std::vector<at::Tensor>& outputs,
                                            std::vector<at::Tensor>& inputs,
                                            const ::c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<::c10d::Work> send(std::vector<at::Tensor>& tensors, int destination,
                                        int tag) override;
  c10::intrusive_ptr<::c10d::Work> recv(std::vector<at::Tensor>& tensors, int source,
                                        int tag) override;
  c10::intrusive_ptr<::c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors,
                                                 int tag) override;
  c10::intrusive_ptr<::c10d::Work> barrier(const ::c10d::BarrierOptions& options) override;
  void monitoredBarrier(const ::c10d::BarrierOptions& options, bool wait_all_ranks) override;

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  c10::intrusive_ptr<::c10d::Work> endCoalescing() override;

  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<::c10d::Backend> split(
      const c10::intrusive_ptr<::c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<::c10d::Backend::Options>& options) override;
  c10::intrusive_ptr<::c10d::Backend> merge(
      const c10::intrusive_ptr<::c10d::Store>& store,
      const c10::intrusive_ptr<::c10d::Backend::Options>& options, const int& rank,
      const int& size) override;
  bool supportsShrinking() const override { return true; }
  c10::intrusive_ptr<::c10d::Backend> shrink(
      const std::vector<int64_t>& ranks_to_exclude, int flags,
      const c10::intrusive_ptr<::c10d::Backend::Options>& options) override;
  void eagerConnectSingleDevice(at::Device device) override;

  void setTimeout(std::chrono::milliseconds timeout) override;
  /// The numbers start when the group is made.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;
  ::c10d::ErrorType getError() override;
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<::c10d::WorkInfo>)>&& hook) override;
  void waitForPendingWorks() override;
  /// Durations are always known.
  void enableCollectivesTiming() override {}
  void abort() override;
  void shutdown() override;

 private:
  /// What outlives the group: operations that are still running report here.
  struct Shared;

  Caller caller(const char* op) const;
  int global_rank(int rank) const;
  void check_reduction(const Caller& caller, const ::c10d::ReduceOp& op,
                       c10::ScalarType type) const;
  /// Fills in how to reduce; reads the factor of PREMUL_SUM.
  static void set_reduction(runtime::Collective& collective, const ::c10d::ReduceOp& op,
                            c10::ScalarType type);

  /// Where and as what a call appears outside.
  struct Call {
    const char* op;       // "all_reduce"
    const char* title;    // "neuron:all_reduce", for profilers
    const char* counted;  // "c10d::allreduce_", in the operator counts
    ::c10d::OpType type;
    std::chrono::milliseconds timeout = ::c10d::kUnsetTimeout;
  };
  /// Starts the collective on the current stream of `device` and wraps it.
  c10::intrusive_ptr<::c10d::Work> start(const Call& call, runtime::Collective collective,
                                         Staging& staging, c10::DeviceIndex device,
                                         std::vector<at::Tensor> inputs,
                                         std::vector<at::Tensor> outputs);
  c10::intrusive_ptr<::c10d::Work> transfer(const Call& call, std::vector<at::Tensor>& tensors,
                                            int peer, int tag);
  c10::intrusive_ptr<::c10d::Work> finish(const Call& call, Started started,
                                          const std::vector<at::Tensor>& inputs, bool is_transfer);
  /// What several collectives made by one call look like.
  c10::intrusive_ptr<::c10d::Work> as_one(::c10d::OpType type,
                                          std::vector<c10::intrusive_ptr<::c10d::Work>> works);
  void connect(const c10::intrusive_ptr<::c10d::Store>& store);
  runtime::Communicator& communicator(const Caller& caller) const;

  c10::intrusive_ptr<::c10d::Store> store_;
  c10::intrusive_ptr<Options> options_;
  const Launch launch_;
  std::string name_;
  std::vector<int> global_ranks_;
  std::shared_ptr<runtime::Communicator> communicator_;
  const char* transport_ = "shared memory";
  bool on_one_host_ = true;
  bool is_default_ = false;
  std::shared_ptr<Shared> shared_;
  std::atomic<uint64_t> transfers_{0};
  std::atomic<bool> closed_{false};
  int splits_ = 0;

  std::mutex coalescing_mutex_;
  bool coalescing_ = false;  // Guarded, as the next.
  std::vector<c10::intrusive_ptr<::c10d::Work>> coalesced_;
};

}  // namespace neuron::distributed
