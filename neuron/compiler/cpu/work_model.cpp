#include "neuron/compiler/cpu/work_model.h"

#include <algorithm>
#include <cmath>

#include "neuron/compiler/cpu/fuse.h"

namespace neuron::compiler::cpu {

namespace {

// Measured on one Zen 4 core (AVX-512): bytes in cache and from memory, and one cheap operation on
// one element of a 16-lane vector.
constexpr double kCacheNs = 0.007;
constexpr double kMemoryNs = 0.028;
constexpr double kOpNs = 0.016;
constexpr double kCacheBytes = 1 << 20;
// Splitting pays from here on, in pieces of at least kPieceNs.
constexpr double kParallelNs = 15000;
constexpr double kPieceNs = 8000;

double footprint(const LoopNest& nest, const Access& access) {
  double elements = 1;
  for (size_t a = 0; a < access.stride.size(); ++a) {
    if (access.stride[a] == 0) continue;
    elements *= static_cast<double>(a < nest.outer.size() ? nest.outer[a] : nest.row);
  }
  return elements * static_cast<double>(size_of(access.stored));
}

bool moves_in_row(const Stmt& s) { return !s.access.stride.empty() && s.access.stride.back() != 0; }

}  // namespace

NestWork work_of(const LoopNest& nest) {
  NestWork result;
  neff::Work& work = result.work;
  double rows = 1;
  for (int64_t extent : nest.outer) rows *= static_cast<double>(extent);
  const double elements = rows * static_cast<double>(nest.row);
  SmallVector<uint8_t, 64> varies;
  hlo::Node node;
  for (const Sweep& sweep : nest.sweeps) {
    for (const Stmt& s : sweep.body) {
      bool vary = moves_in_row(s) || (s.kind == StmtKind::Index);
      for (StmtId in : s.in) vary = vary || (in < varies.size() && varies[in] != 0);
      varies.push_back(vary ? 1 : 0);
      if (s.kind == StmtKind::Load || s.kind == StmtKind::Gather) {
        double bytes = footprint(nest, s.access);
        if (s.kind == StmtKind::Gather) {
          bytes = (vary ? elements : rows) * static_cast<double>(size_of(s.type));
        }
        work.bytes_read += bytes;
      }
      double cost = 0.5;
      if (s.kind == StmtKind::Compute) {
        node.op = s.op;
        node.type.dtype = s.type;
        cost = op_cost(node);
      } else if (s.kind == StmtKind::Gather) {
        cost = 10;
      } else if (s.kind == StmtKind::Philox) {
        cost = 24;
      }
      work.vector_ops += cost * (vary ? elements : rows);
    }
    work.vector_ops += 2 * elements * static_cast<double>(sweep.reduces.size());
    for (const Store& s : sweep.stores) work.bytes_written += footprint(nest, s.access);
  }
  for (const RowStore& s : nest.row_stores) {
    work.bytes_written += footprint(nest, s.access);
    work.vector_ops += static_cast<double>(s.epilogue.size()) * rows;
  }
  const double bytes = work.bytes_read + work.bytes_written;
  const double memory = bytes * (bytes > kCacheBytes ? kMemoryNs : kCacheNs);
  result.nanoseconds = std::max(memory, work.vector_ops * kOpNs) + 3 * rows;
  return result;
}

int64_t grain_of(const LoopNest& nest, const NestWork& work) {
  if (work.nanoseconds < kParallelNs) return 0;
  const auto iterations = static_cast<double>(std::max<int64_t>(1, iterations_of(nest)));
  return std::max<int64_t>(
      1, static_cast<int64_t>(std::ceil(kPieceNs * iterations / work.nanoseconds)));
}

neff::Work work_of(const neff::LibraryStep& step) {
  neff::Work work;
  auto bytes = [](const neff::LibraryTensor& t) {
    double n = static_cast<double>(size_of(t.dtype));
    for (size_t i = 0; i < t.dims.size(); ++i) {
      if (t.strides[i] != 0) n *= static_cast<double>(t.dims[i]);
    }
    return n;
  };
  for (const neff::LibraryTensor& t : step.inputs) work.bytes_read += bytes(t);
  double out = 0;
  for (const neff::LibraryTensor& t : step.outputs) {
    work.bytes_written += bytes(t);
    out += static_cast<double>(count_elements(t.dims));
  }
  if (step.name == "neuron.dot") {
    work.matmul_flops = 2 * out * static_cast<double>(step.inputs[0].dims[2]);
  } else if (step.name == "neuron.convolution") {
    const Dims& kernel = step.inputs[1].dims;
    double taps = 2;
    for (size_t i = 1; i < kernel.size(); ++i) taps *= static_cast<double>(kernel[i]);
    work.matmul_flops = out * taps;
  } else {
    work.vector_ops = 4 * out;
  }
  return work;
}

}  // namespace neuron::compiler::cpu
