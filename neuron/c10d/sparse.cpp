#include <torch/library.h>

// Without these, sparse tensors would be moved to the host and looked for there.
namespace neuron::distributed {
namespace {

void refuse(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "neuron: ", op.operator_name().name,
                              " does not take sparse tensors; reduce or send their dense form "
                              "(tensor.to_dense())");
}

}  // namespace
}  // namespace neuron::distributed

TORCH_LIBRARY_IMPL(c10d, SparsePrivateUse1, m) {
  for (const char* name :
       {"allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_", "allgather_",
        "_allgather_base_", "allgather_coalesced_", "allgather_into_tensor_coalesced_", "gather_",
        "scatter_", "reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_",
        "alltoall_", "alltoall_base_", "send", "recv_", "recv_any_source_"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&neuron::distributed::refuse>());
  }
}
