#include <algorithm>

#include "neuron/base/error.h"
#include "neuron/hlo/builder.h"

namespace neuron::hlo {

namespace {

int64_t wrap_dim(std::string_view op, Value x, int64_t dim) {
  NEURON_ASSERT(x.defined(), "the operand is undefined: ", op);
  const int64_t wrapped = dim < 0 ? dim + x.rank() : dim;
  NEURON_CHECK(wrapped >= 0 && wrapped < x.rank(), kInvalid, op, ": dim ", dim, " is not one of ",
               to_string(x.type()));
  return wrapped;
}

bool contains(DimsRef dims, int64_t dim) {
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

void check_reducible(std::string_view op, Value x, ReduceKind kind) {
  const bool bits = kind == ReduceKind::And || kind == ReduceKind::Or;
  const bool order = kind == ReduceKind::Max || kind == ReduceKind::Min;
  NEURON_CHECK(!(bits && (is_floating(x.dtype()) || is_complex(x.dtype()))), kInvalid, op,
               ": And and Or take pred and integers, not ", to_string(x.type()));
  NEURON_CHECK(!(order && is_complex(x.dtype())), kInvalid, op, ": ", name_of(x.dtype()),
               " has no order");
}

/// The shape that gather gives and scatter takes: the operand's dims without `dims`, with the
/// shape of the indices inserted at `position`. Also checks the indices.
Dims gathered_dims(std::string_view op, Value x, std::span<const Value> indices, DimsRef dims,
                   int64_t position) {
  NEURON_CHECK(!indices.empty() && indices.size() == dims.size(), kInvalid, op, ": ",
               indices.size(), " index tensors were given for dims ", to_string(dims));
  for (Value index : indices) {
    NEURON_CHECK(index.defined() && is_integer(index.dtype()) && index.dims() == indices[0].dims(),
                 kInvalid, op, ": indices must be integers of one shape, not ",
                 to_string(index.type()), " beside ", to_string(indices[0].type()));
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    NEURON_CHECK(dims[i] >= 0 && dims[i] < x.rank() && !contains(dims.first(i), dims[i]), kInvalid,
                 op, ": dims ", to_string(dims), " are not distinct dims of ", to_string(x.type()));
  }
  const int64_t kept = x.rank() - static_cast<int64_t>(dims.size());
  NEURON_CHECK(position >= 0 && position <= kept, kInvalid, op, ": position ", position,
               " is beyond the ", kept, " dims that stay of ", to_string(x.type()));
  Dims result;
  int64_t at = 0;
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (contains(dims, i)) continue;
    if (at++ == position) result.append(indices[0].dims().begin(), indices[0].dims().end());
    result.push_back(x.dim(i));
  }
  if (at == position) result.append(indices[0].dims().begin(), indices[0].dims().end());
  return result;
}

}  // namespace

// --- Attributes -----------------------------------------------------------------------------

Ints DotDims::encode() const {
  Ints ints;
  ints.push_back(static_cast<int64_t>(lhs_batch.size()));
  ints.append(lhs_batch.begin(), lhs_batch.end());
  ints.append(rhs_batch.begin(), rhs_batch.end());
  ints.push_back(static_cast<int64_t>(lhs_contract.size()));
  ints.append(lhs_contract.begin(), lhs_contract.end());
  ints.append(rhs_contract.begin(), rhs_contract.end());
  return ints;
}

DotDims DotDims::decode(std::span<const int64_t> ints) {
  DotDims dims;
  size_t at = 0;
  auto count = [&]() {
    NEURON_ASSERT(
        at < ints.size() && ints[at] >= 0 && at + 2 * static_cast<size_t>(ints[at]) < ints.size(),
        "DotGeneral: broken attributes ", neuron::to_string(ints));
    return static_cast<size_t>(ints[at++]);
  };
  auto take = [&](Dims& into, size_t n) {
    into.append(ints.begin() + static_cast<ptrdiff_t>(at),
                ints.begin() + static_cast<ptrdiff_t>(at + n));
    at += n;
  };
  const size_t batch = count();
  take(dims.lhs_batch, batch);
  take(dims.rhs_batch, batch);
  const size_t contract = count();
  take(dims.lhs_contract, contract);
  take(dims.rhs_contract, contract);
  return dims;
}

Ints ConvolutionDims::encode() const {
  Ints ints;
  ints.reserve(4 + 5 * stride.size());
  ints.push_back(static_cast<int64_t>(stride.size()));
  for (const Dims* part : {&stride, &pad_low, &pad_high, &lhs_dilation, &rhs_dilation}) {
    ints.append(part->begin(), part->end());
  }
  ints.push_back(groups);
  ints.push_back(batch_groups);
  ints.push_back(reverse_kernel ? 1 : 0);
  return ints;
}

ConvolutionDims ConvolutionDims::decode(std::span<const int64_t> ints) {
  NEURON_ASSERT(
      !ints.empty() && ints[0] >= 0 && ints.size() == 4 + 5 * static_cast<size_t>(ints[0]),
      "Convolution: broken attributes ", neuron::to_string(ints));
  ConvolutionDims dims;
  const auto n = static_cast<ptrdiff_t>(ints[0]);
  auto at = ints.begin() + 1;
  for (Dims* part :
       {&dims.stride, &dims.pad_low, &dims.pad_high, &dims.lhs_dilation, &dims.rhs_dilation}) {
    part->append(at, at + n);
    at += n;
  }
  dims.groups = at[0];
  dims.batch_groups = at[1];
  dims.reverse_kernel = at[2] != 0;
  return dims;
}

// --- Indexed --------------------------------------------------------------------------------

Value Builder::as_strided_scatter(Value x, Value update, DimsRef strides, int64_t offset) {
  NEURON_CHECK(x.dtype() == update.dtype(), kInvalid, "AsStridedScatter: operand is ",
               to_string(x.type()), ", update is ", to_string(update.type()),
               "; they must have one dtype");
  const int64_t extent = storage_extent(update.dims(), strides);
  NEURON_CHECK(strides.size() == update.dims().size() && offset >= 0 &&
                   std::all_of(strides.begin(), strides.end(), [](int64_t s) { return s >= 0; }) &&
                   (extent == 0 || offset + extent <= x.count()),
               kInvalid, "AsStridedScatter: update ", to_string(update.type()), " with strides ",
               to_string(strides), " at offset ", offset, " does not fit ", to_string(x.type()));
  Node node{Op::AsStridedScatter, x.type(), {x.id(), update.id()}, {offset}};
  node.ints.append(strides.begin(), strides.end());
  return push(std::move(node));
}

Value Builder::dynamic_update_slice(Value x, Value update, std::span<const Value> starts) {
  bool fits =
      x.dtype() == update.dtype() && x.rank() == update.rank() && starts.size() == x.dims().size();
  for (size_t i = 0; fits && i < starts.size(); ++i) {
    fits =
        update.dims()[i] <= x.dims()[i] && starts[i].rank() == 0 && is_integer(starts[i].dtype());
  }
  NEURON_CHECK(fits, kInvalid, "DynamicUpdateSlice: update ", to_string(update.type()), " with ",
               starts.size(), " starts (rank-0 integers) does not fit ", to_string(x.type()));
  Node node{Op::DynamicUpdateSlice, x.type(), {x.id(), update.id()}};
  for (Value start : starts) node.operands.push_back(start.id());
  return push(std::move(node));
}

Value Builder::gather(Value x, std::span<const Value> indices, DimsRef dims, int64_t position,
                      OutOfBounds mode) {
  Node node{Op::Gather,
            {x.dtype(), gathered_dims("Gather", x, indices, dims, position)},
            {x.id()},
            {position, static_cast<int64_t>(mode)}};
  for (Value index : indices) node.operands.push_back(index.id());
  node.ints.append(dims.begin(), dims.end());
  return push(std::move(node));
}

Value Builder::scatter(ScatterKind kind, Value x, Value updates, std::span<const Value> indices,
                       DimsRef dims, int64_t position) {
  const Dims wanted = gathered_dims("Scatter", x, indices, dims, position);
  NEURON_CHECK(updates.dims() == wanted && updates.dtype() == x.dtype(), kInvalid,
               "Scatter: updates are ", to_string(updates.type()), "; they must be ",
               to_string(x.dtype(), wanted));
  NEURON_CHECK(!is_complex(x.dtype()) || (kind != ScatterKind::Min && kind != ScatterKind::Max),
               kInvalid, "Scatter: ", name_of(x.dtype()), " has no order");
  Node node{Op::Scatter, x.type(), {x.id(), updates.id()}, {position, static_cast<int64_t>(kind)}};
  for (Value index : indices) node.operands.push_back(index.id());
  node.ints.append(dims.begin(), dims.end());
  return push(std::move(node));
}

// --- Reductions -----------------------------------------------------------------------------

Value Builder::reduce(ReduceKind kind, Value x, DimsRef dims, bool keep) {
  check_reducible("Reduce", x, kind);
  Node node{Op::Reduce, {x.dtype(), {}}, {x.id()}, {static_cast<int64_t>(kind)}};
  Dims reduced;
  for (int64_t dim : dims) {
    const int64_t wrapped = wrap_dim("Reduce", x, dim);
    NEURON_CHECK(!contains(reduced, wrapped), kInvalid, "Reduce: dims ", to_string(dims),
                 " name a dim twice");
    reduced.push_back(wrapped);
  }
  if (reduced.empty()) return x;
  std::sort(reduced.begin(), reduced.end());
  Dims kept = x.dims();
  for (size_t i = 0; i < kept.size(); ++i) {
    if (contains(reduced, static_cast<int64_t>(i))) {
      kept[i] = 1;
    } else {
      node.type.dims.push_back(kept[i]);
    }
  }
  node.ints.append(reduced.begin(), reduced.end());
  const Value result = push(std::move(node));
  return keep ? reshape(result, kept) : result;
}

Value Builder::sum_keepdim(Value x, int64_t dim) {
  return reduce(ReduceKind::Sum, x, {{dim}}, true);
}

Value Builder::max_keepdim(Value x, int64_t dim) {
  return reduce(ReduceKind::Max, x, {{dim}}, true);
}

Value Builder::arg_reduce(bool is_max, Value x, int64_t dim, bool keep) {
  dim = wrap_dim("ArgReduce", x, dim);
  NEURON_CHECK(!is_complex(x.dtype()) && x.dim(dim) > 0, kInvalid,
               "ArgReduce: ", to_string(x.type()), " has no extreme along dim ", dim);
  Dims kept = x.dims(), dims = x.dims();
  kept[static_cast<size_t>(dim)] = 1;
  dims.erase(static_cast<size_t>(dim));
  const Value result = push({Op::ArgReduce, {DType::i64, dims}, {x.id()}, {dim, is_max ? 1 : 0}});
  return keep ? reshape(result, kept) : result;
}

Value Builder::scan(ScanKind kind, Value x, int64_t dim) {
  dim = wrap_dim("Scan", x, dim);
  NEURON_CHECK(!is_complex(x.dtype()) || kind == ScanKind::Sum || kind == ScanKind::Product,
               kInvalid, "Scan: ", name_of(x.dtype()), " has no order");
  return push({Op::Scan, x.type(), {x.id()}, {static_cast<int64_t>(kind), dim}});
}

Value Builder::reduce_window(ReduceKind kind, Value x, const WindowDims& window) {
  check_reducible("ReduceWindow", x, kind);
  const size_t rank = x.dims().size();
  WindowDims full = window;
  if (full.stride.empty()) full.stride.resize(rank, 1);
  if (full.dilation.empty()) full.dilation.resize(rank, 1);
  if (full.pad_low.empty()) full.pad_low.resize(rank, 0);
  if (full.pad_high.empty()) full.pad_high.resize(rank, 0);
  Node node{Op::ReduceWindow,
            {x.dtype(), {}},
            {x.id()},
            {static_cast<int64_t>(kind), static_cast<int64_t>(rank)}};
  node.ints.reserve(2 + 5 * rank);
  for (const Dims* part :
       {&full.size, &full.stride, &full.dilation, &full.pad_low, &full.pad_high}) {
    NEURON_CHECK(part->size() == rank, kInvalid, "ReduceWindow: window ", to_string(*part),
                 " does not have the rank of ", to_string(x.type()));
    node.ints.append(part->begin(), part->end());
  }
  for (size_t i = 0; i < rank; ++i) {
    const int64_t padded = x.dims()[i] + full.pad_low[i] + full.pad_high[i];
    const int64_t reach = (full.size[i] - 1) * full.dilation[i] + 1;
    NEURON_CHECK(full.size[i] >= 1 && full.stride[i] >= 1 && full.dilation[i] >= 1 && padded >= 0,
                 kInvalid, "ReduceWindow: size ", full.size[i], ", stride ", full.stride[i],
                 ", dilation ", full.dilation[i], ", padding ", full.pad_low[i], ", ",
                 full.pad_high[i], " of dim ", i, " does not fit ", to_string(x.type()));
    node.type.dims.push_back(padded < reach ? 0 : (padded - reach) / full.stride[i] + 1);
  }
  return push(std::move(node));
}

// --- Products -------------------------------------------------------------------------------

Value Builder::dot_general(Value lhs, Value rhs, const DotDims& dims) {
  NEURON_ASSERT(lhs.defined() && rhs.defined(), "DotGeneral: an operand is undefined");
  NEURON_CHECK(lhs.dtype() == rhs.dtype() && lhs.dtype() != DType::pred, kInvalid,
               "DotGeneral: operands are ", to_string(lhs.type()), " and ", to_string(rhs.type()),
               "; they must have one dtype, not pred");
  bool fits = dims.lhs_batch.size() == dims.rhs_batch.size() &&
              dims.lhs_contract.size() == dims.rhs_contract.size();
  // Bit i: dim i is taken already.
  uint64_t lhs_used = 0, rhs_used = 0;
  auto pair = [&](const Dims& left, const Dims& right) {
    for (size_t i = 0; fits && i < left.size(); ++i) {
      const int64_t l = left[i], r = right[i];
      fits = l >= 0 && l < lhs.rank() && r >= 0 && r < rhs.rank() && lhs.dim(l) == rhs.dim(r) &&
             (lhs_used >> l & 1) == 0 && (rhs_used >> r & 1) == 0;
      if (!fits) return;
      lhs_used |= 1ull << l;
      rhs_used |= 1ull << r;
    }
  };
  pair(dims.lhs_batch, dims.rhs_batch);
  pair(dims.lhs_contract, dims.rhs_contract);
  NEURON_CHECK(fits, kInvalid, "DotGeneral: ", to_string(lhs.type()), " and ",
               to_string(rhs.type()), " do not fit batch dims ", to_string(dims.lhs_batch), ", ",
               to_string(dims.rhs_batch), " and contracted dims ", to_string(dims.lhs_contract),
               ", ", to_string(dims.rhs_contract));
  Node node{Op::DotGeneral, {lhs.dtype(), {}}, {lhs.id(), rhs.id()}, dims.encode()};
  for (int64_t d : dims.lhs_batch) node.type.dims.push_back(lhs.dim(d));
  for (int64_t d = 0; d < lhs.rank(); ++d) {
    if ((lhs_used >> d & 1) == 0) node.type.dims.push_back(lhs.dim(d));
  }
  for (int64_t d = 0; d < rhs.rank(); ++d) {
    if ((rhs_used >> d & 1) == 0) node.type.dims.push_back(rhs.dim(d));
  }
  return push(std::move(node));
}

Value Builder::matmul(Value lhs, Value rhs) {
  NEURON_ASSERT(lhs.defined() && rhs.defined(), "DotGeneral: an operand is undefined");
  const int64_t rank = lhs.rank();
  NEURON_CHECK(rank >= 2 && rhs.rank() == rank, kInvalid, "DotGeneral: cannot multiply ",
               to_string(lhs.type()), " and ", to_string(rhs.type()),
               " as matrices; ranks must be equal and at least 2");
  DotDims dims;
  for (int64_t i = 0; i < rank - 2; ++i) {
    dims.lhs_batch.push_back(i);
    dims.rhs_batch.push_back(i);
  }
  dims.lhs_contract.push_back(rank - 1);
  dims.rhs_contract.push_back(rank - 2);
  return dot_general(lhs, rhs, dims);
}

Value Builder::convolution(Value input, Value kernel, const ConvolutionDims& dims) {
  NEURON_ASSERT(input.defined() && kernel.defined(), "Convolution: an operand is undefined");
  const size_t n = dims.stride.size();
  NEURON_CHECK(input.dtype() == kernel.dtype() && input.dtype() != DType::pred &&
                   input.dims().size() == n + 2 && kernel.dims().size() == n + 2 &&
                   dims.pad_low.size() == n && dims.pad_high.size() == n &&
                   dims.lhs_dilation.size() == n && dims.rhs_dilation.size() == n,
               kInvalid, "Convolution: input ", to_string(input.type()), " and kernel ",
               to_string(kernel.type()), " do not fit ", n, " spatial dims and one dtype");
  NEURON_CHECK(
      dims.groups >= 1 && dims.batch_groups >= 1 && (dims.groups == 1 || dims.batch_groups == 1) &&
          input.dim(1) == kernel.dim(1) * dims.groups && kernel.dim(0) % dims.groups == 0 &&
          kernel.dim(0) % dims.batch_groups == 0 && input.dim(0) % dims.batch_groups == 0,
      kInvalid, "Convolution: input ", to_string(input.type()), " and kernel ",
      to_string(kernel.type()), " do not fit ", dims.groups, " groups and ", dims.batch_groups,
      " batch groups");
  Node node{Op::Convolution,
            {input.dtype(), {input.dim(0) / dims.batch_groups, kernel.dim(0)}},
            {input.id(), kernel.id()},
            dims.encode()};
  for (size_t i = 0; i < n; ++i) {
    const int64_t size = input.dims()[i + 2], taps = kernel.dims()[i + 2];
    NEURON_CHECK(dims.stride[i] >= 1 && dims.lhs_dilation[i] >= 1 && dims.rhs_dilation[i] >= 1,
                 kInvalid, "Convolution: stride ", to_string(dims.stride), ", dilations ",
                 to_string(dims.lhs_dilation), " and ", to_string(dims.rhs_dilation),
                 " must be at least 1");
    const int64_t dilated = size == 0 ? 0 : (size - 1) * dims.lhs_dilation[i] + 1;
    const int64_t reach = taps == 0 ? 0 : (taps - 1) * dims.rhs_dilation[i] + 1;
    const int64_t padded = dilated + dims.pad_low[i] + dims.pad_high[i];
    node.type.dims.push_back(padded < reach ? 0 : (padded - reach) / dims.stride[i] + 1);
  }
  return push(std::move(node));
}

// --- Several results ------------------------------------------------------------------------

Values Builder::sort(Value x, int64_t dim, bool descending, bool any_order) {
  dim = wrap_dim("Sort", x, dim);
  NEURON_CHECK(!is_complex(x.dtype()), kInvalid, "Sort: ", name_of(x.dtype()), " has no order");
  Node node{Op::Sort, x.type(), {x.id()}, {dim, (descending ? 1 : 0) + (any_order ? 2 : 0)}};
  node.results = {x.type(), {DType::i64, x.dims()}};
  const Value values = push(std::move(node));
  const Value indices = push({Op::TupleElement, {DType::i64, x.dims()}, {values.id()}, {1}});
  return {values, indices};
}

Values Builder::library_call(std::string name, std::span<const Value> operands,
                             std::span<const Type> results, std::span<const std::byte> arguments,
                             std::span<const int64_t> ints) {
  NEURON_CHECK(!name.empty() && !results.empty(), kInvalid, "LibraryCall: ", name,
               " needs a name and at least one result");
  Node node{Op::LibraryCall, results[0]};
  node.operands.reserve(operands.size());
  for (Value operand : operands) {
    NEURON_ASSERT(operand.defined(), "LibraryCall: an operand of ", name, " is undefined");
    node.operands.push_back(operand.id());
  }
  node.ints.append(ints.begin(), ints.end());
  node.bytes.assign(arguments.begin(), arguments.end());
  node.name = std::move(name);
  if (results.size() > 1) node.results.assign(results.begin(), results.end());
  Values values{push(std::move(node))};
  for (size_t k = 1; k < results.size(); ++k) {
    values.push_back(push(
        {Op::TupleElement, results[k], {values[0].id()}, {static_cast<int64_t>(k)}, {}, {}, {}}));
  }
  return values;
}

}  // namespace neuron::hlo
