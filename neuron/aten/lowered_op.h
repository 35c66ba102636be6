#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "neuron/aten/entry_cache.h"
#include "neuron/aten/prepare.h"

namespace neuron::aten {

/// The boxed kernel of one overload. Thread-safe; never destroyed.
class LoweredOp final : public c10::OperatorKernel {
 public:
  explicit LoweredOp(Overload& overload);

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

  /// For calls from other kernels: runs for the effect on written arguments only.
  void run_trusted(const std::vector<c10::IValue>& arguments);

  /// Forgets what every LoweredOp knows of the calls it has seen.
  static void clear_caches();

 private:
  using Results = c10::SmallVector<at::Tensor, 4>;
  std::shared_ptr<const Entry> entry_for(const c10::IValue* arguments, CallView& view);
  /// Allocates and launches. Undefined tensors stand for results that are arguments.
  void run(const Entry& entry, const CallView& view, Results& results);
  /// The launch that was just captured takes new random numbers whenever it is replayed.
  void draw_again_on_replay(const Entry& entry, const CallView& view, c10::DeviceIndex device);
  void push_returns(const Entry& entry, const CallView& view, Results& results,
                    torch::jit::Stack* stack);
  /// Again, with lazily conjugated or negated tensors written out.
  void run_resolved(torch::jit::Stack* stack);
  void run_members(torch::jit::Stack* stack);

  Overload& overload_;
  EntryCache cache_;
};

}  // namespace neuron::aten
