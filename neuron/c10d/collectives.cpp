#include <numeric>

#include "neuron/aten/tensor.h"
#include "neuron/c10d/process_group.h"

// The collectives of ProcessGroupNeuron: checks, and which piece of which tensor goes where.
namespace neuron::distributed {
namespace {

using ::c10d::OpType;
using ::c10d::ReduceOp;
using ::c10d::Work;
using runtime::Collective;
using runtime::CollectiveKind;
using runtime::Piece;
using WorkRef = c10::intrusive_ptr<Work>;

const char* name_of_reduction(ReduceOp::RedOpType op) {
  switch (op) {
    case ReduceOp::SUM:
      return "SUM";
    case ReduceOp::AVG:
      return "AVG";
    case ReduceOp::PRODUCT:
      return "PRODUCT";
    case ReduceOp::MIN:
      return "MIN";
    case ReduceOp::MAX:
      return "MAX";
    case ReduceOp::BAND:
      return "BAND";
    case ReduceOp::BOR:
      return "BOR";
    case ReduceOp::BXOR:
      return "BXOR";
    case ReduceOp::PREMUL_SUM:
      return "PREMUL_SUM";
    case ReduceOp::UNUSED:
      break;
  }
  return "UNUSED";
}

runtime::Reduction reduction_of(ReduceOp::RedOpType op, bool is_bool) {
  using runtime::Reduction;
  switch (op) {
    // Booleans are bytes that are 0 or 1: a sum is an or, a product an and.
    case ReduceOp::SUM:
    case ReduceOp::PREMUL_SUM:
      return is_bool ? Reduction::kMax : Reduction::kSum;
    case ReduceOp::AVG:
      return Reduction::kAverage;
    case ReduceOp::PRODUCT:
      return is_bool ? Reduction::kMin : Reduction::kProduct;
    case ReduceOp::MIN:
      return Reduction::kMin;
    case ReduceOp::MAX:
      return Reduction::kMax;
    case ReduceOp::BAND:
      return Reduction::kBitAnd;
    case ReduceOp::BOR:
      return Reduction::kBitOr;
    case ReduceOp::BXOR:
      return Reduction::kBitXor;
    case ReduceOp::UNUSED:
      break;
  }
  TORCH_CHECK(false, "unknown reduce op ", static_cast<int>(op));
}

Collective make(CollectiveKind kind, const at::Tensor& like) {
  Collective collective;
  collective.kind = kind;
  collective.dtype = wire_type(like.scalar_type());
  return collective;
}

std::vector<int64_t> even(int64_t elements, int parts) {
  return std::vector<int64_t>(static_cast<size_t>(parts), elements / parts);
}

/// Elements per rank of a split along dim 0.
std::vector<int64_t> split_lengths(const Caller& caller, const at::Tensor& tensor,
                                   const std::vector<int64_t>& splits, const char* argument) {
  TORCH_CHECK_VALUE(tensor.dim() > 0, caller, argument, " needs a dim to split, but is a scalar");
  const int64_t rows = tensor.size(0);
  const int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % caller.size == 0, caller, "dim 0 of ", argument, " has size ", rows,
                      ", which does not divide equally across the ", caller.size,
                      " ranks of the group");
    return even(tensor.numel(), caller.size);
  }
  TORCH_CHECK_VALUE(splits.size() == static_cast<size_t>(caller.size), caller,
                    "Number of tensor splits not equal to group size: ", argument, " has ",
                    splits.size(), " splits, the group ", caller.size, " ranks");
  int64_t sum = 0;
  std::vector<int64_t> lengths;
  for (const int64_t split : splits) {
    TORCH_CHECK_VALUE(split >= 0, caller, "a split size of ", argument, " is negative: ", split);
    sum += split;
    lengths.push_back(split * row);
  }
  TORCH_CHECK_VALUE(sum == rows, caller, "Split sizes doesn't match total dim 0 size: those of ",
                    argument, " add up to ", sum, ", dim 0 has size ", rows);
  return lengths;
}

void check_same_count(const Caller& caller, const at::Tensor& a, const char* name_a,
                      const at::Tensor& b, const char* name_b) {
  TORCH_CHECK_VALUE(a.numel() == b.numel(), caller, name_a, " and ", name_b,
                    " of this rank must have the same number of elements, but have sizes ",
                    a.sizes(), " and ", b.sizes());
}

}  // namespace

void ProcessGroupNeuron::check_reduction(const Caller& caller, const ReduceOp& op,
                                         c10::ScalarType type) const {
  const char* name = name_of_reduction(op.op_);
  const bool is_bool = type == c10::ScalarType::Bool;
  TORCH_CHECK_NOT_IMPLEMENTED(
      aten::dtype_of(type).has_value() || type == c10::ScalarType::ComplexHalf, caller, "ReduceOp.",
      name, " is not supported for dtype ", type);
  switch (op.op_) {
    case ReduceOp::BAND:
    case ReduceOp::BOR:
    case ReduceOp::BXOR:
      TORCH_CHECK_VALUE(c10::isIntegralType(type, /*includeBool=*/true), caller,
                        "Cannot use ReduceOp.", name, " with non-integral dtype ", type);
      return;
    case ReduceOp::PREMUL_SUM:
      TORCH_CHECK_VALUE(c10::isFloatingType(type) || c10::isComplexType(type), caller,
                        "Cannot use ReduceOp.PREMUL_SUM with dtype ", type,
                        ": it must be floating-point or complex");
      return;
    case ReduceOp::AVG:
      TORCH_CHECK_VALUE(!is_bool, caller, "Cannot use ReduceOp.AVG with boolean tensors");
      return;
    case ReduceOp::SUM:
      return;
    case ReduceOp::PRODUCT:
    case ReduceOp::MIN:
    case ReduceOp::MAX:
      TORCH_CHECK_VALUE(!c10::isComplexType(type), caller, "Cannot use ReduceOp.", name,
                        " with complex dtype ", type);
      return;
    case ReduceOp::UNUSED:
      break;
  }
  TORCH_CHECK_VALUE(false, caller, "unknown reduce op ", static_cast<int>(op.op_));
}

void ProcessGroupNeuron::set_reduction(Collective& collective, const ReduceOp& op,
                                       c10::ScalarType type) {
  const bool is_bool = type == c10::ScalarType::Bool;
  if (is_bool) collective.dtype = DType::u8;
  collective.reduction = reduction_of(op.op_, is_bool);
  if (op.op_ != ReduceOp::PREMUL_SUM) return;
  const auto* extra = dynamic_cast<const ::c10d::PreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(extra != nullptr, "ReduceOp.PREMUL_SUM comes without its factor");
  collective.factor =
      extra->tensor_factor.defined() ? extra->tensor_factor.item<double>() : extra->double_factor;
}

WorkRef ProcessGroupNeuron::broadcast(std::vector<at::Tensor>& tensors,
                                      const ::c10d::BroadcastOptions& options) {
  const Caller who = caller("broadcast");
  check_single(who, tensors.size(), "tensors");
  const at::Tensor& tensor = tensors[0];
  check_tensor(who, tensor, "tensor");
  check_rank(who, options.rootRank, "src");
  TORCH_CHECK_VALUE(options.rootTensor == 0, who, "rootTensor must be 0");
  const bool is_root = options.rootRank == rank_;
  if (!is_root) check_writable(who, tensor, "tensor");
  Collective collective = make(CollectiveKind::kBroadcast, tensor);
  collective.root = static_cast<int>(options.rootRank);
  Staging staging;
  collective.outputs = {is_root ? staging.input(tensor) : staging.output(tensor)};
  if (is_root) collective.inputs = collective.outputs;
  return start(
      {"broadcast", "neuron:broadcast", "c10d::broadcast_", OpType::BROADCAST, options.timeout},
      std::move(collective), staging, tensor.device().index(), tensors, tensors);
}

WorkRef ProcessGroupNeuron::allreduce(std::vector<at::Tensor>& tensors,
                                      const ::c10d::AllreduceOptions& options) {
  const Caller who = caller("all_reduce");
  check_single(who, tensors.size(), "tensors");
  const at::Tensor& tensor = tensors[0];
  check_tensor(who, tensor, "tensor");
  check_writable(who, tensor, "tensor");
  check_reduction(who, options.reduceOp, tensor.scalar_type());
  Collective collective = make(CollectiveKind::kAllReduce, tensor);
  set_reduction(collective, options.reduceOp, tensor.scalar_type());
  Staging staging;
  collective.outputs = {staging.in_place(tensor)};
  collective.inputs = collective.outputs;
  return start(
      {"all_reduce", "neuron:all_reduce", "c10d::allreduce_", OpType::ALLREDUCE, options.timeout},
      std::move(collective), staging, tensor.device().index(), tensors, tensors);
}

WorkRef ProcessGroupNeuron::allreduce_sparse(std::vector<at::Tensor>&,
                                             const ::c10d::AllreduceOptions&) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, caller("all_reduce"),
      "sparse tensors are not supported; reduce their dense form (tensor.to_dense())");
}

WorkRef ProcessGroupNeuron::allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                const ::c10d::AllreduceCoalescedOptions& options) {
  const Caller who = caller("all_reduce_coalesced");
  TORCH_CHECK_VALUE(!tensors.empty(), who, "the list of tensors is empty");
  check_tensors(who, tensors, "tensors");
  for (const at::Tensor& tensor : tensors) check_writable(who, tensor, "tensors");
  const c10::ScalarType type = tensors[0].scalar_type();
  check_reduction(who, options.reduceOp, type);
  Collective collective = make(CollectiveKind::kAllReduce, tensors[0]);
  set_reduction(collective, options.reduceOp, type);
  Staging staging;
  for (const at::Tensor& tensor : tensors) collective.outputs.push_back(staging.in_place(tensor));
  collective.inputs = collective.outputs;
  return start({"all_reduce_coalesced", "neuron:all_reduce_coalesced", "c10d::allreduce_coalesced_",
                OpType::ALLREDUCE_COALESCED, options.timeout},
               std::move(collective), staging, tensors[0].device().index(), tensors, tensors);
}

WorkRef ProcessGroupNeuron::reduce(std::vector<at::Tensor>& tensors,
                                   const ::c10d::ReduceOptions& options) {
  const Caller who = caller("reduce");
  check_single(who, tensors.size(), "tensors");
  const at::Tensor& tensor = tensors[0];
  check_tensor(who, tensor, "tensor");
  check_rank(who, options.rootRank, "dst");
  TORCH_CHECK_VALUE(options.rootTensor == 0, who, "rootTensor must be 0");
  check_reduction(who, options.reduceOp, tensor.scalar_type());
  const bool is_root = options.rootRank == rank_;
  if (is_root) check_writable(who, tensor, "tensor");
  Collective collective = make(CollectiveKind::kReduce, tensor);
  collective.root = static_cast<int>(options.rootRank);
  set_reduction(collective, options.reduceOp, tensor.scalar_type());
  Staging staging;
  collective.inputs = {is_root ? staging.in_place(tensor) : staging.input(tensor)};
  if (is_root) collective.outputs = collective.inputs;
  return start({"reduce", "neuron:reduce", "c10d::reduce_", OpType::REDUCE, options.timeout},
               std::move(collective), staging, tensor.device().index(), tensors, tensors);
}

WorkRef ProcessGroupNeuron::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                      std::vector<at::Tensor>& inputs,
                                      const ::c10d::AllgatherOptions& options) {
  const Caller who = caller("all_gather");
  check_single(who, inputs.size(), "the list of inputs");
  check_single(who, outputs.size(), "the list of output lists");
  const at::Tensor& input = inputs[0];
  check_tensor(who, input, "tensor");
  check_list_length(who, outputs[0].size(), "tensor_list");
  check_tensors(who, outputs[0], "tensor_list");
  check_same_kind(who, input, "tensor", outputs[0][0], "tensor_list");
  check_same_count(who, input, "tensor", outputs[0][static_cast<size_t>(rank_)], "tensor_list");
  Collective collective = make(CollectiveKind::kAllGather, input);
  Staging staging;
  collective.inputs = {staging.input(input)};
  for (const at::Tensor& output : outputs[0]) {
    check_writable(who, output, "tensor_list");
    collective.outputs.push_back(staging.output(output));
  }
  return start(
      {"all_gather", "neuron:all_gather", "c10d::allgather_", OpType::ALLGATHER, options.timeout},
      std::move(collective), staging, input.device().index(), inputs, outputs[0]);
}

WorkRef ProcessGroupNeuron::_allgather_base(at::Tensor& output, at::Tensor& input,
                                            const ::c10d::AllgatherOptions& options) {
  const Caller who = caller("all_gather_into_tensor");
  check_tensor(who, input, "input_tensor");
  check_tensor(who, output, "output_tensor");
  check_same_kind(who, input, "input_tensor", output, "output_tensor");
  check_writable(who, output, "output_tensor");
  TORCH_CHECK_VALUE(output.numel() == input.numel() * size_, who,
                    "output tensor size must be equal to world_size times input tensor size: ",
                    "output_tensor has sizes ", output.sizes(), ", input_tensor ", input.sizes(),
                    ", and the group ", size_, " ranks");
  Collective collective = make(CollectiveKind::kAllGather, input);
  Staging staging;
  collective.inputs = {staging.input(input)};
  collective.outputs = staging.output_pieces(output, even(output.numel(), size_));
  return start({"all_gather_into_tensor", "neuron:all_gather_into_tensor", "c10d::_allgather_base_",
                OpType::_ALLGATHER_BASE, options.timeout},
               std::move(collective), staging, input.device().index(), {input}, {output});
}

WorkRef ProcessGroupNeuron::allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs,
                                                std::vector<at::Tensor>& inputs,
                                                const ::c10d::AllgatherOptions& options) {
  const Caller who = caller("all_gather_coalesced");
  check_list_length(who, outputs.size(), "output_tensor_lists");
  TORCH_CHECK_VALUE(!inputs.empty(), who, "input_tensor_list is empty");
  for (const std::vector<at::Tensor>& list : outputs) {
    TORCH_CHECK_VALUE(list.size() == inputs.size(), who, "each output list must be as long as ",
                      "input_tensor_list (", inputs.size(), "), but one has ", list.size());
  }
  std::vector<WorkRef> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<std::vector<at::Tensor>> of_one(1);
    for (const std::vector<at::Tensor>& list : outputs) of_one[0].push_back(list[i]);
    std::vector<at::Tensor> one = {inputs[i]};
    works.push_back(allgather(of_one, one, options));
  }
  return as_one(OpType::ALLGATHER_COALESCED, std::move(works));
}

WorkRef ProcessGroupNeuron::allgather_into_tensor_coalesced(
    std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
    const ::c10d::AllgatherOptions& options) {
  const Caller who = caller("all_gather_into_tensor_coalesced");
  TORCH_CHECK_VALUE(!inputs.empty() && inputs.size() == outputs.size(), who,
                    "as many outputs as inputs are needed, and at least one; there are ",
                    outputs.size(), " and ", inputs.size());
  std::vector<WorkRef> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    works.push_back(_allgather_base(outputs[i], inputs[i], options));
  }
  return as_one(OpType::COALESCED, std::move(works));
}

WorkRef ProcessGroupNeuron::gather(std::vector<std::vector<at::Tensor>>& outputs,
                                   std::vector<at::Tensor>& inputs,
                                   const ::c10d::GatherOptions& options) {
  const Caller who = caller("gather");
  check_rank(who, options.rootRank, "dst");
  check_single(who, inputs.size(), "the list of inputs");
  const at::Tensor& input = inputs[0];
  check_tensor(who, input, "tensor");
  Collective collective = make(CollectiveKind::kGather, input);
  collective.root = static_cast<int>(options.rootRank);
  Staging staging;
  std::vector<at::Tensor> received;
  if (options.rootRank == rank_) {
    check_single(who, outputs.size(), "the list of output lists");
    check_list_length(who, outputs[0].size(), "gather_list");
    check_tensors(who, outputs[0], "gather_list");
    check_same_kind(who, input, "tensor", outputs[0][0], "gather_list");
    check_same_count(who, input, "tensor", outputs[0][static_cast<size_t>(rank_)], "gather_list");
    for (const at::Tensor& output : outputs[0]) {
      check_writable(who, output, "gather_list");
      collective.outputs.push_back(staging.output(output));
    }
    received = outputs[0];
  } else {
    TORCH_CHECK_VALUE(outputs.empty() || outputs[0].empty(), who,
                      "gather_list must be empty on ranks other than the root (rank ",
                      options.rootRank, ")");
  }
  collective.inputs = {staging.input(input)};
  return start({"gather", "neuron:gather", "c10d::gather_", OpType::GATHER, options.timeout},
               std::move(collective), staging, input.device().index(), inputs, received);
}

WorkRef ProcessGroupNeuron::scatter(std::vector<at::Tensor>& outputs,
                                    std::vector<std::vector<at::Tensor>>& inputs,
                                    const ::c10d::ScatterOptions& options) {
  const Caller who = caller("scatter");
  check_rank(who, options.rootRank, "src");
  check_single(who, outputs.size(), "the list of outputs");
  const at::Tensor& output = outputs[0];
  check_tensor(who, output, "tensor");
  check_writable(who, output, "tensor");
  Collective collective = make(CollectiveKind::kScatter, output);
  collective.root = static_cast<int>(options.rootRank);
  Staging staging;
  std::vector<at::Tensor> sent;
  if (options.rootRank == rank_) {
    check_single(who, inputs.size(), "the list of input lists");
    check_list_length(who, inputs[0].size(), "scatter_list");
    check_tensors(who, inputs[0], "scatter_list");
    check_same_kind(who, output, "tensor", inputs[0][0], "scatter_list");
    check_same_count(who, output, "tensor", inputs[0][static_cast<size_t>(rank_)], "scatter_list");
    for (const at::Tensor& input : inputs[0]) collective.inputs.push_back(staging.input(input));
    sent = inputs[0];
  } else {
    TORCH_CHECK_VALUE(inputs.empty() || inputs[0].empty(), who,
                      "scatter_list must be empty on ranks other than the root (rank ",
                      options.rootRank, ")");
  }
  collective.outputs = {staging.output(output)};
  return start({"scatter", "neuron:scatter", "c10d::scatter_", OpType::SCATTER, options.timeout},
               std::move(collective), staging, output.device().index(), sent, outputs);
}

WorkRef ProcessGroupNeuron::reduce_scatter(std::vector<at::Tensor>& outputs,
                                           std::vector<std::vector<at::Tensor>>& inputs,
                                           const ::c10d::ReduceScatterOptions& options) {
  const Caller who = caller("reduce_scatter");
  check_single(who, outputs.size(), "the list of outputs");
  check_single(who, inputs.size(), "the list of input lists");
  const at::Tensor& output = outputs[0];
  check_tensor(who, output, "output");
  check_writable(who, output, "output");
  check_list_length(who, inputs[0].size(), "input_list");
  check_tensors(who, inputs[0], "input_list");
  check_same_kind(who, output, "output", inputs[0][0], "input_list");
  check_same_count(who, output, "output", inputs[0][static_cast<size_t>(rank_)], "input_list");
  check_reduction(who, options.reduceOp, output.scalar_type());
  Collective collective = make(CollectiveKind::kReduceScatter, output);
  set_reduction(collective, options.reduceOp, output.scalar_type());
  Staging staging;
  for (const at::Tensor& input : inputs[0]) collective.inputs.push_back(staging.input(input));
  collective.outputs = {staging.output(output)};
  return start({"reduce_scatter", "neuron:reduce_scatter", "c10d::reduce_scatter_",
                OpType::REDUCE_SCATTER, options.timeout},
               std::move(collective), staging, output.device().index(), inputs[0], outputs);
}

WorkRef ProcessGroupNeuron::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                 const ::c10d::ReduceScatterOptions& options) {
  const Caller who = caller("reduce_scatter_tensor");
  check_tensor(who, output, "output");
  check_tensor(who, input, "input");
  check_same_kind(who, input, "input", output, "output");
  check_writable(who, output, "output");
  TORCH_CHECK_VALUE(input.numel() == output.numel() * size_, who,
                    "input tensor must be the same size as output tensor times world_size: "
                    "input has sizes ",
                    input.sizes(), ", output ", output.sizes(), ", and the group ", size_,
                    " ranks");
  check_reduction(who, options.reduceOp, output.scalar_type());
  Collective collective = make(CollectiveKind::kReduceScatter, output);
  set_reduction(collective, options.reduceOp, output.scalar_type());
  Staging staging;
  collective.inputs = staging.input_pieces(input, even(input.numel(), size_));
  collective.outputs = {staging.output(output)};
  return start({"reduce_scatter_tensor", "neuron:reduce_scatter_tensor",
                "c10d::_reduce_scatter_base_", OpType::_REDUCE_SCATTER_BASE, options.timeout},
               std::move(collective), staging, output.device().index(), {input}, {output});
}

WorkRef ProcessGroupNeuron::reduce_scatter_tensor_coalesced(
    std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
    const ::c10d::ReduceScatterOptions& options) {
  const Caller who = caller("reduce_scatter_tensor_coalesced");
  TORCH_CHECK_VALUE(!inputs.empty() && inputs.size() == outputs.size(), who,
                    "as many outputs as inputs are needed, and at least one; there are ",
                    outputs.size(), " and ", inputs.size());
  std::vector<WorkRef> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    works.push_back(_reduce_scatter_base(outputs[i], inputs[i], options));
  }
  return as_one(OpType::COALESCED, std::move(works));
}

WorkRef ProcessGroupNeuron::alltoall_base(at::Tensor& output, at::Tensor& input,
                                          std::vector<int64_t>& output_splits,
                                          std::vector<int64_t>& input_splits,
                                          const ::c10d::AllToAllOptions& options) {
  const Caller who = caller("all_to_all_single");
  check_tensor(who, output, "output");
  check_tensor(who, input, "input");
  check_same_kind(who, input, "input", output, "output");
  check_writable(who, output, "output");
  Collective collective = make(CollectiveKind::kAllToAll, input);
  Staging staging;
  collective.inputs = staging.input_pieces(input, split_lengths(who, input, input_splits, "input"));
  collective.outputs =
      staging.output_pieces(output, split_lengths(who, output, output_splits, "output"));
  return start({"all_to_all_single", "neuron:all_to_all_single", "c10d::alltoall_base_",
                OpType::ALLTOALL_BASE, options.timeout},
               std::move(collective), staging, input.device().index(), {input}, {output});
}

WorkRef ProcessGroupNeuron::alltoall(std::vector<at::Tensor>& outputs,
                                     std::vector<at::Tensor>& inputs,
                                     const ::c10d::AllToAllOptions& options) {
  const Caller who = caller("all_to_all");
  check_list_length(who, inputs.size(), "input_tensor_list");
  check_list_length(who, outputs.size(), "output_tensor_list");
  check_tensors(who, inputs, "input_tensor_list");
  check_tensors(who, outputs, "output_tensor_list");
  check_same_kind(who, inputs[0], "input_tensor_list", outputs[0], "output_tensor_list");
  const auto own = static_cast<size_t>(rank_);
  check_same_count(who, inputs[own], "input_tensor_list", outputs[own], "output_tensor_list");
  Collective collective = make(CollectiveKind::kAllToAll, inputs[0]);
  Staging staging;
  for (const at::Tensor& input : inputs) collective.inputs.push_back(staging.input(input));
  for (const at::Tensor& output : outputs) {
    check_writable(who, output, "output_tensor_list");
    collective.outputs.push_back(staging.output(output));
  }
  return start(
      {"all_to_all", "neuron:all_to_all", "c10d::alltoall_", OpType::ALLTOALL, options.timeout},
      std::move(collective), staging, inputs[0].device().index(), inputs, outputs);
}

}  // namespace neuron::distributed
