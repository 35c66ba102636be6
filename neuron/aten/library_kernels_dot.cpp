#include <ATen/core/Tensor.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <dlfcn.h>

#include <algorithm>
#include <complex>
#include <limits>

#include "neuron/aten/library_kernels.h"
#include "neuron/base/dtype.h"

// "neuron.dot.blas": [b, m, k] x [b, k, n] -> [b, m, n], any strides. The simulator's "neuron.dot"
// calls it where BLAS is faster than its own kernels: f64 and complex, and f32 without AVX-512.
// Strides that BLAS does not take go to at::bmm.
namespace neuron::aten::library {
namespace {

// Fortran's gemm; all by reference.
using Gemm = void (*)(const char* trans_a, const char* trans_b, const int* m, const int* n,
                      const int* k, const void* alpha, const void* a, const int* lda, const void* b,
                      const int* ldb, const void* beta, void* c, const int* ldc);

Gemm find_gemm(DType type) {
  const auto find = [](const char* name) {
    return reinterpret_cast<Gemm>(dlsym(RTLD_DEFAULT, name));
  };
  static const Gemm s = find("SGEMM"), d = find("DGEMM"), c = find("CGEMM"), z = find("ZGEMM");
  switch (type) {
    case DType::f32:
      return s;
    case DType::f64:
      return d;
    case DType::c64:
      return c;
    case DType::c128:
      return z;
    default:
      return nullptr;
  }
}

// One operand as BLAS sees it: column-major rows x cols, or its transpose.
struct Layout {
  char transposed = 'N';
  int leading = 1;
};

bool layout_of(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride, Layout& layout) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  if (rows > kMost || cols > kMost) return false;
  if ((row_stride == 1 || rows == 1) && (cols == 1 || col_stride >= std::max<int64_t>(rows, 1))) {
    layout.transposed = 'N';
    const int64_t leading = cols == 1 ? std::max<int64_t>(rows, 1) : col_stride;
    layout.leading = static_cast<int>(leading);
    return leading <= kMost;
  }
  if ((col_stride == 1 || cols == 1) && (rows == 1 || row_stride >= std::max<int64_t>(cols, 1))) {
    layout.transposed = 'T';
    const int64_t leading = rows == 1 ? std::max<int64_t>(cols, 1) : row_stride;
    layout.leading = static_cast<int>(leading);
    return leading <= kMost;
  }
  return false;
}

enum class Cut : uint8_t { Batch, Rows, Columns };

struct DotPlan {
  int64_t batch, m, n, k;
  size_t element;
  Gemm gemm = nullptr;
  bool columns_first = false;  // The result is column-major.
  Layout first, second, result;
  Cut cut = Cut::Batch;
  int64_t piece = 1, pieces = 1;  // Length of a piece along the cut, and how many.
};

// Pieces follow from the shape alone, so that results do not depend on the number of threads.
void cut(DotPlan& plan) {
  constexpr double kPieceFlops = 4e6;
  constexpr int64_t kMostPieces = 16;
  const double flops = 2.0 * static_cast<double>(plan.batch) * static_cast<double>(plan.m) *
                       static_cast<double>(plan.n) * static_cast<double>(plan.k);
  const auto wanted =
      std::clamp<int64_t>(static_cast<int64_t>(flops / kPieceFlops), 1, kMostPieces);
  int64_t extent, align;
  if (plan.batch >= wanted || plan.batch >= 4) {
    plan.cut = Cut::Batch;
    extent = plan.batch;
    align = 1;
  } else if (plan.n >= plan.m) {
    plan.cut = Cut::Columns;
    extent = plan.n;
    align = 32;
  } else {
    plan.cut = Cut::Rows;
    extent = plan.m;
    align = 16;
  }
  const int64_t each = (extent + wanted - 1) / wanted;
  plan.piece = std::max<int64_t>(1, (each + align - 1) / align * align);
  plan.pieces = std::max<int64_t>(1, (extent + plan.piece - 1) / plan.piece);
}

void* prepare(const nrtsim_lib_call_t* call) {
  const nrtsim_lib_tensor_t &a = call->inputs[0], &b = call->inputs[1], &c = call->outputs[0];
  if (a.rank != 3 || b.rank != 3 || c.rank != 3) return nullptr;
  auto* plan = new DotPlan();
  plan->batch = a.sizes[0];
  plan->m = a.sizes[1];
  plan->k = a.sizes[2];
  plan->n = b.sizes[2];
  plan->element = size_of(static_cast<DType>(c.dtype));
  if (a.dtype == b.dtype && a.dtype == c.dtype) {
    const Gemm gemm = find_gemm(static_cast<DType>(a.dtype));
    const int64_t m = plan->m, n = plan->n, k = plan->k;
    Layout result;
    // A row-major result is the column-major result of the transposed product.
    if (layout_of(n, m, c.strides[2], c.strides[1], result) && result.transposed == 'N') {
      plan->result = result;
      if (layout_of(n, k, b.strides[2], b.strides[1], plan->first) &&
          layout_of(k, m, a.strides[2], a.strides[1], plan->second)) {
        plan->gemm = gemm;
      }
    } else if (layout_of(m, n, c.strides[1], c.strides[2], result) && result.transposed == 'N') {
      plan->columns_first = true;
      plan->result = result;
      if (layout_of(m, k, a.strides[1], a.strides[2], plan->first) &&
          layout_of(k, n, b.strides[1], b.strides[2], plan->second)) {
        plan->gemm = gemm;
      }
    }
  }
  cut(*plan);
  return plan;
}

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

void multiply(const DotPlan& plan, const Run& run, Range batch, Range rows, Range columns) {
  const nrtsim_lib_tensor_t &a = run.call->inputs[0], &b = run.call->inputs[1],
                            &c = run.call->outputs[0];
  const auto at_offset = [](void* base, size_t element, int64_t offset) {
    return static_cast<char*>(base) + static_cast<int64_t>(element) * offset;
  };
  if (plan.gemm != nullptr) {
    const auto k = static_cast<int>(plan.k);
    const auto m = static_cast<int>(rows.size()), n = static_cast<int>(columns.size());
    // {1, 0} serves as 1 of every type once the width is right.
    const float one_f[2] = {1, 0}, zero_f[2] = {0, 0};
    const double one_d[2] = {1, 0}, zero_d[2] = {0, 0};
    const bool wide = a.dtype == static_cast<uint32_t>(DType::f64) ||
                      a.dtype == static_cast<uint32_t>(DType::c128);
    const void* one = wide ? static_cast<const void*>(one_d) : one_f;
    const void* zero = wide ? static_cast<const void*>(zero_d) : zero_f;
    for (int64_t i = batch.begin; i < batch.end; ++i) {
      const void* left =
          at_offset(run.inputs[0], plan.element, i * a.strides[0] + rows.begin * a.strides[1]);
      const void* right =
          at_offset(run.inputs[1], plan.element, i * b.strides[0] + columns.begin * b.strides[2]);
      void* out =
          at_offset(run.outputs[0], plan.element,
                    i * c.strides[0] + rows.begin * c.strides[1] + columns.begin * c.strides[2]);
      if (plan.columns_first) {
        plan.gemm(&plan.first.transposed, &plan.second.transposed, &m, &n, &k, one, left,
                  &plan.first.leading, right, &plan.second.leading, zero, out,
                  &plan.result.leading);
      } else {
        plan.gemm(&plan.first.transposed, &plan.second.transposed, &n, &m, &k, one, right,
                  &plan.first.leading, left, &plan.second.leading, zero, out, &plan.result.leading);
      }
    }
    return;
  }
  const at::Tensor left =
      run.input(0).narrow(0, batch.begin, batch.size()).narrow(1, rows.begin, rows.size());
  const at::Tensor right =
      run.input(1).narrow(0, batch.begin, batch.size()).narrow(2, columns.begin, columns.size());
  at::Tensor out = run.output(0)
                       .narrow(0, batch.begin, batch.size())
                       .narrow(1, rows.begin, rows.size())
                       .narrow(2, columns.begin, columns.size());
  const bool same = left.scalar_type() == out.scalar_type();
  const bool narrow = left.scalar_type() == at::kBFloat16 || left.scalar_type() == at::kHalf;
  if (same && left.size(0) == 1) {
    at::Tensor flat = out.select(0, 0);
    if (flat.is_contiguous()) {
      at::mm_out(flat, left.select(0, 0), right.select(0, 0));
    } else {
      flat.copy_(at::mm(left.select(0, 0), right.select(0, 0)));
    }
  } else if (same || narrow) {
    out.copy_(at::bmm(left, right));
  } else {
    out.copy_(at::bmm(left.to(out.scalar_type()), right.to(out.scalar_type())));
  }
}

void dot(void* state, const Run& run) {
  const auto& plan = *static_cast<const DotPlan*>(state);
  TORCH_CHECK(state != nullptr, "neuron.dot takes operands of rank 3");
  if (plan.batch == 0 || plan.m == 0 || plan.n == 0) return;
  if (plan.k == 0) {
    run.output(0).zero_();
    return;
  }
  const Range all_batch{0, plan.batch}, all_rows{0, plan.m}, all_columns{0, plan.n};
  run.parallel_for(plan.pieces, 1, [&](int64_t first, int64_t last) {
    // One by one even where a thread got several: what BLAS adds in which order may depend on the
    // size of its call.
    for (int64_t piece = first; piece < last; ++piece) {
      const auto range = [&](int64_t extent) {
        return Range{piece * plan.piece, std::min((piece + 1) * plan.piece, extent)};
      };
      switch (plan.cut) {
        case Cut::Batch:
          multiply(plan, run, range(plan.batch), all_rows, all_columns);
          break;
        case Cut::Rows:
          multiply(plan, run, all_batch, range(plan.m), all_columns);
          break;
        case Cut::Columns:
          multiply(plan, run, all_batch, all_rows, range(plan.n));
          break;
      }
    }
  });
}

void destroy(void* state) { delete static_cast<DotPlan*>(state); }

}  // namespace

void register_dot() {
  register_kernel("neuron.dot.blas",
                  {sizeof(nrtsim_lib_kernel_t), &prepare, &run_kernel<dot>, &destroy});
}

}  // namespace neuron::aten::library
