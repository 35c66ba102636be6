// Order: sorting, order statistics, and searching in sorted rows.

#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

Values sorted(Builder& b, Value x, int64_t dim, bool descending, bool stable) {
  if (x.rank() == 0) return {x, b.zeros(DType::i64)};
  return b.sort(x, dim, descending, !stable);
}

Values sort_stable(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  return sorted(b, x, call.dim(2, x.rank()), call.flag(3), call.flag(1));
}
NEURON_LOWERING(
    "aten::sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor "
    "values, Tensor indices)",
    sort_stable);

Values sort(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  return sorted(b, x, call.dim(1, x.rank()), call.flag(2), /*stable=*/false);
}
NEURON_LOWERING(
    "aten::sort(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)",
    sort);

// Partial orders need no whole sort.
NEURON_LIBRARY_OP(
    "aten::topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor "
    "values, Tensor indices)");
NEURON_LIBRARY_OP(
    "aten::kthvalue(Tensor self, SymInt k, int dim=-1, bool keepdim=False) -> (Tensor values, "
    "Tensor indices)");
NEURON_LIBRARY_OP("aten::median(Tensor self) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::median.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor "
    "indices)");
NEURON_LIBRARY_OP("aten::nanmedian(Tensor self) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::nanmedian.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor "
    "indices)");
NEURON_LIBRARY_OP(
    "aten::mode(Tensor self, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)");

NEURON_LIBRARY_OP(
    "aten::searchsorted.Tensor(Tensor sorted_sequence, Tensor self, *, bool out_int32=False, bool "
    "right=False, str? side=None, Tensor? sorter=None) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::searchsorted.Scalar(Tensor sorted_sequence, Scalar self, *, bool out_int32=False, bool "
    "right=False, str? side=None, Tensor? sorter=None) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::bucketize.Tensor(Tensor self, Tensor boundaries, *, bool out_int32=False, bool "
    "right=False) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::bucketize.Scalar(Scalar self, Tensor boundaries, *, bool out_int32=False, bool "
    "right=False) -> Tensor");

// Counting into bins; the number of bins is an argument.
NEURON_LIBRARY_OP("aten::histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::histogram.bin_ct(Tensor self, int bins=100, *, float[]? range=None, Tensor? "
    "weight=None, bool density=False) -> (Tensor hist, Tensor bin_edges)");
NEURON_LIBRARY_OP(
    "aten::histogram.bins_tensor(Tensor self, Tensor bins, *, Tensor? weight=None, bool "
    "density=False) -> (Tensor hist, Tensor bin_edges)");
NEURON_LIBRARY_OP(
    "aten::_histogramdd_bin_edges(Tensor self, int[] bins, *, float[]? range=None, Tensor? "
    "weight=None, bool density=False) -> Tensor[]");
NEURON_LIBRARY_OP(
    "aten::_histogramdd_from_bin_cts(Tensor self, int[] bins, *, float[]? range=None, Tensor? "
    "weight=None, bool density=False) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::_histogramdd_from_bin_tensors(Tensor self, Tensor[] bins, *, Tensor? weight=None, bool "
    "density=False) -> Tensor");

}  // namespace
}  // namespace neuron::lowering
