// Ops whose result sizes depend on values: count first, wait for the number, then run an op of
// known size.

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/nonzero_static.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>

#include "neuron/aten/dispatch.h"
#include "neuron/aten/op_tracking.h"

namespace neuron::aten {
namespace {

at::Tensor nonzero_by_count(const at::Tensor& self) {
  TORCH_CHECK(self.dim() <= 64, "nonzero is not supported for more than 64 dimensions");
  const int64_t count = self.numel() == 0 ? 0 : at::ne(self, 0).sum(at::kLong).item<int64_t>();
  count_native("aten::nonzero");
  // Laid out as the CPU does it: one column after the other.
  return at::nonzero_static(self, count);
}

at::Tensor& nonzero_by_count_out(const at::Tensor& self, at::Tensor& out) {
  TORCH_CHECK(out.scalar_type() == at::kLong,
              "nonzero: Expected out tensor to have scalar type Long but got scalar type ",
              out.scalar_type());
  TORCH_CHECK(self.device() == out.device(),
              "expected self and out to be on the same device, but got out on ", out.device(),
              " and self on ", self.device());
  const at::Tensor found = nonzero_by_count(self);
  at::native::resize_output(out, found.sizes());
  return out.copy_(found);
}

at::Tensor masked_select_by_count(const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_select: expected BoolTensor for mask");
  TORCH_CHECK(self.device() == mask.device() || self.dim() == 0 || mask.dim() == 0,
              "Expected all tensors to be on the same device, but got mask is on ", mask.device(),
              ", different from other tensors on ", self.device(),
              " (when checking argument in method aten::masked_select)");
  const at::Tensor on_device = mask.to(self.device());
  const auto [picked, wide] = [&] {
    const auto sizes = at::infer_size(self.sizes(), on_device.sizes());
    return std::pair(self.expand(sizes), on_device.expand(sizes));
  }();
  count_native("aten::masked_select");
  const at::Tensor flat = picked.dim() == 0 ? picked.reshape({1}) : picked;
  const at::Tensor flags = wide.dim() == 0 ? wide.reshape({1}) : wide;
  c10::List<std::optional<at::Tensor>> indices;
  const at::Tensor where = nonzero_by_count(flags);
  for (int64_t d = 0; d < flags.dim(); ++d) indices.push_back(where.select(1, d));
  return at::index(flat, indices);
}

at::Tensor& masked_select_by_count_out(const at::Tensor& self, const at::Tensor& mask,
                                       at::Tensor& out) {
  TORCH_CHECK(self.scalar_type() == out.scalar_type(),
              "masked_select(): self and result must have the same scalar type");
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, mask);
  const at::Tensor picked = masked_select_by_count(self, mask);
  at::native::resize_output(out, picked.sizes());
  return out.copy_(picked);
}

at::Tensor none_of(const at::Tensor& like) {
  return at::empty({0}, like.options().dtype(at::kLong));
}

// Values, and for each of `count` of them where its run starts, from neighbours that differ.
struct Runs {
  at::Tensor starts;  // [unique]
  at::Tensor rank;    // [count]: which run an element belongs to; undefined if not asked for
};

// Neighbours along dim 0: numbers, or the rows of a matrix.
Runs find_runs(const at::Tensor& line, bool want_rank) {
  const int64_t count = line.size(0);
  at::Tensor differs = at::ones({count}, line.options().dtype(at::kBool));
  if (count > 1) {
    const at::Tensor unequal = line.narrow(0, 1, count - 1).ne(line.narrow(0, 0, count - 1));
    differs.narrow(0, 1, count - 1).copy_(line.dim() > 1 ? unequal.any(1) : unequal);
  }
  Runs runs;
  if (want_rank) runs.rank = differs.cumsum(0, at::kLong).sub_(1);
  runs.starts = nonzero_by_count(differs).select(1, 0);
  return runs;
}

at::Tensor lengths_of(const Runs& runs, int64_t count) {
  const at::Tensor end = at::full({1}, count, runs.starts.options());
  return at::cat({runs.starts.narrow(0, 1, runs.starts.size(0) - 1), end}).sub_(runs.starts);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> unique(const at::Tensor& self, bool sorted,
                                                      bool want_inverse, bool want_counts) {
  const at::Tensor none = none_of(self);
  if (self.numel() == 0) {
    return {at::empty({0}, self.options()),
            want_inverse ? at::empty(self.sizes(), none.options()) : none, none};
  }
  count_native("aten::_unique2");
  const at::Tensor flat = self.reshape(-1);
  auto [line, order] = at::sort(flat, std::optional<bool>(true), 0, false);
  const Runs runs = find_runs(line, want_inverse);
  at::Tensor inverse = none;
  if (want_inverse) {
    inverse = at::empty_like(order).scatter_(0, order, runs.rank).view(self.sizes());
  }
  return {line.index_select(0, runs.starts), inverse,
          want_counts ? lengths_of(runs, flat.size(0)) : none};
}

std::tuple<at::Tensor, at::Tensor> unique_without_counts(const at::Tensor& self, bool sorted,
                                                         bool want_inverse) {
  auto [values, inverse, counts] = unique(self, sorted, want_inverse, false);
  return {values, inverse};
}

// For each element, how many different values of its column are smaller.
at::Tensor ranks_in_columns(const at::Tensor& matrix) {
  auto [sorted, order] = at::sort(matrix, std::optional<bool>(true), 0, false);
  const int64_t count = matrix.size(0);
  at::Tensor differs = at::zeros_like(order);
  differs.narrow(0, 1, count - 1)
      .copy_(sorted.narrow(0, 1, count - 1).ne(sorted.narrow(0, 0, count - 1)));
  return at::empty_like(order).scatter_(0, order, differs.cumsum(0));
}

// The order of the rows of a matrix, compared from their first element on: columns are joined in
// pairs, whose ranks stand for both, until one is left.
at::Tensor order_of_rows(const at::Tensor& rows) {
  at::Tensor ranks = ranks_in_columns(rows);
  while (ranks.size(1) > 1) {
    const int64_t paired = ranks.size(1) / 2 * 2;
    const at::Tensor first = ranks.slice(1, 0, paired, 2), second = ranks.slice(1, 1, paired, 2);
    const at::Tensor joined = ranks_in_columns(first.mul(rows.size(0)).add_(second));
    ranks = paired == ranks.size(1) ? joined : at::cat({joined, ranks.narrow(1, paired, 1)}, 1);
  }
  return std::get<1>(at::sort(ranks.select(1, 0), std::optional<bool>(true), 0, false));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> unique_slices(const at::Tensor& self, int64_t dim,
                                                             bool consecutive) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  const int64_t count = self.dim() == 0 ? 1 : self.size(dim);
  const auto empty_dims = std::count(self.sizes().begin(), self.sizes().end(), 0);
  const at::Tensor none = none_of(self);
  if (count == 0) {
    TORCH_CHECK(empty_dims == 1,
                "Number of zero sized dimensions should be one, so unique cannot be applied.");
    return {at::empty(self.sizes(), self.options()), none, none};
  }
  TORCH_CHECK(
      empty_dims == 0,
      "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied");
  const at::Tensor slices =
      (self.dim() == 0 ? self.reshape({1}) : self.movedim(dim, 0)).contiguous();
  const at::Tensor rows = slices.view({count, -1});
  at::Tensor order;
  at::Tensor sorted = rows;
  if (!consecutive) {
    order = order_of_rows(rows);
    sorted = rows.index_select(0, order);
  }
  const Runs runs = find_runs(sorted, true);
  at::Tensor inverse = runs.rank;
  if (!consecutive) inverse = at::empty_like(order).scatter_(0, order, runs.rank);
  std::vector<int64_t> sizes = slices.sizes().vec();
  sizes[0] = runs.starts.size(0);
  const at::Tensor values = sorted.index_select(0, runs.starts).view(sizes).movedim(0, dim);
  return {values, inverse, lengths_of(runs, count)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> unique_dim(const at::Tensor& self, int64_t dim,
                                                          bool sorted, bool want_inverse,
                                                          bool want_counts) {
  count_native("aten::unique_dim");
  return unique_slices(self, dim, /*consecutive=*/false);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> unique_dim_consecutive(const at::Tensor& self,
                                                                      int64_t dim,
                                                                      bool want_inverse,
                                                                      bool want_counts) {
  count_native("aten::unique_dim_consecutive");
  return unique_slices(self, dim, /*consecutive=*/true);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> unique_consecutive_by_count(
    const at::Tensor& self, bool want_inverse, bool want_counts, std::optional<int64_t> dim) {
  if (dim.has_value() && !(self.dim() == 1 && (*dim == 0 || *dim == -1))) {
    count_native("aten::unique_consecutive");
    return unique_slices(self, *dim, /*consecutive=*/true);
  }
  const at::Tensor none = none_of(self);
  if (self.numel() == 0) return {at::empty({0}, self.options()), none, none};
  count_native("aten::unique_consecutive");
  const at::Tensor flat = self.reshape(-1);
  const Runs runs = find_runs(flat, want_inverse);
  return {flat.index_select(0, runs.starts), want_inverse ? runs.rank.view(self.sizes()) : none,
          want_counts ? lengths_of(runs, flat.size(0)) : none};
}

at::Tensor bincount_by_maximum(const at::Tensor& self, const std::optional<at::Tensor>& weights,
                               int64_t minlength) {
  TORCH_CHECK(minlength >= 0, "minlength should be >= 0");
  const bool weighted = weights.has_value() && weights->defined();
  TORCH_CHECK_NOT_IMPLEMENTED(at::isIntegralType(self.scalar_type(), false),
                              "\"bincount_cpu\" not implemented for '", self.scalar_type(), "'");
  if (self.dim() == 1 && self.numel() == 0)
    return at::zeros({minlength}, self.options().dtype(at::kLong));
  TORCH_CHECK(self.dim() == 1, "bincount only supports 1-d non-negative integral inputs.");
  TORCH_CHECK(!weighted || (weights->dim() == 1 && weights->size(0) == self.size(0)),
              "weights should be 1-d and have the same length as input");
  const at::Tensor index = self.to(at::kLong);
  const at::Tensor range = at::stack({index.min(), index.max()}).cpu();
  TORCH_CHECK(range[0].item<int64_t>() >= 0,
              "bincount only supports 1-d non-negative integral inputs.");
  const int64_t size = std::max(range[1].item<int64_t>() + 1, minlength);
  count_native("aten::bincount");
  if (!weighted) {
    at::Tensor counts = at::zeros({size}, index.options());
    return counts.scatter_add_(0, index, at::ones_like(index));
  }
  const auto type = weights->scalar_type() == at::kFloat ? at::kFloat : at::kDouble;
  at::Tensor sums = at::zeros({size}, weights->options().dtype(type));
  return sums.scatter_add_(0, index, weights->to(type));
}

}  // namespace
}  // namespace neuron::aten

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("nonzero", TORCH_FN(neuron::aten::nonzero_by_count));
  m.impl("nonzero.out", TORCH_FN(neuron::aten::nonzero_by_count_out));
  m.impl("_unique2", TORCH_FN(neuron::aten::unique));
  m.impl("_unique", TORCH_FN(neuron::aten::unique_without_counts));
  m.impl("unique_consecutive", TORCH_FN(neuron::aten::unique_consecutive_by_count));
  m.impl("unique_dim", TORCH_FN(neuron::aten::unique_dim));
  m.impl("unique_dim_consecutive", TORCH_FN(neuron::aten::unique_dim_consecutive));
  m.impl("bincount", TORCH_FN(neuron::aten::bincount_by_maximum));
  m.impl("masked_select", TORCH_FN(neuron::aten::masked_select_by_count));
  m.impl("masked_select.out", TORCH_FN(neuron::aten::masked_select_by_count_out));
}
