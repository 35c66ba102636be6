// Linear algebra: factorisations and what is built on them, from a library.

#include "neuron/lowering/numerics.h"
#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

// Cholesky factors.
NEURON_LIBRARY_OP("aten::cholesky(Tensor self, bool upper=False) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::linalg_cholesky_ex(Tensor self, *, bool upper=False, bool check_errors=False) -> "
    "(Tensor L, Tensor info)");
NEURON_LIBRARY_OP("aten::cholesky_inverse(Tensor self, bool upper=False) -> Tensor");
NEURON_LIBRARY_OP("aten::cholesky_solve(Tensor self, Tensor input2, bool upper=False) -> Tensor");
NEURON_LIBRARY_OP("aten::_cholesky_solve_helper(Tensor self, Tensor A, bool upper) -> Tensor");

// LU and LDL factors, determinants, inverses and solutions.
NEURON_LIBRARY_OP(
    "aten::linalg_lu(Tensor A, *, bool pivot=True) -> (Tensor P, Tensor L, Tensor U)");
NEURON_LIBRARY_OP(
    "aten::linalg_lu_factor_ex(Tensor A, *, bool pivot=True, bool check_errors=False) -> (Tensor "
    "LU, Tensor pivots, Tensor info)");
NEURON_LIBRARY_OP(
    "aten::linalg_lu_solve(Tensor LU, Tensor pivots, Tensor B, *, bool left=True, bool "
    "adjoint=False) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::lu_unpack(Tensor LU_data, Tensor LU_pivots, bool unpack_data=True, bool "
    "unpack_pivots=True) -> (Tensor P, Tensor L, Tensor U)");
NEURON_LIBRARY_OP(
    "aten::linalg_ldl_factor_ex(Tensor self, *, bool hermitian=False, bool check_errors=False) -> "
    "(Tensor LD, Tensor pivots, Tensor info)");
NEURON_LIBRARY_OP(
    "aten::linalg_ldl_solve(Tensor LD, Tensor pivots, Tensor B, *, bool hermitian=False) -> "
    "Tensor");
NEURON_LIBRARY_OP("aten::_linalg_det(Tensor A) -> (Tensor result, Tensor LU, Tensor pivots)");
NEURON_LIBRARY_OP(
    "aten::_linalg_slogdet(Tensor A) -> (Tensor sign, Tensor logabsdet, Tensor LU, Tensor pivots)");
NEURON_LIBRARY_OP(
    "aten::linalg_inv_ex(Tensor A, *, bool check_errors=False) -> (Tensor inverse, Tensor info)");
NEURON_LIBRARY_OP(
    "aten::_linalg_solve_ex(Tensor A, Tensor B, *, bool left=True, bool check_errors=False) -> "
    "(Tensor result, Tensor LU, Tensor pivots, Tensor info)");
NEURON_LIBRARY_OP(
    "aten::triangular_solve(Tensor self, Tensor A, bool upper=True, bool transpose=False, bool "
    "unitriangular=False) -> (Tensor solution, Tensor cloned_coefficient)");
NEURON_LIBRARY_OP(
    "aten::linalg_solve_triangular(Tensor self, Tensor B, *, bool upper, bool left=True, bool "
    "unitriangular=False) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::linalg_lstsq(Tensor self, Tensor b, float? rcond=None, *, str? driver=None) -> (Tensor "
    "solution, Tensor residuals, Tensor rank, Tensor singular_values)");

// QR and Householder reflections.
NEURON_LIBRARY_OP("aten::linalg_qr(Tensor A, str mode=\"reduced\") -> (Tensor Q, Tensor R)");
NEURON_LIBRARY_OP("aten::geqrf(Tensor self) -> (Tensor a, Tensor tau)");
NEURON_LIBRARY_OP(
    "aten::ormqr(Tensor self, Tensor input2, Tensor input3, bool left=True, bool transpose=False) "
    "-> Tensor");
NEURON_LIBRARY_OP("aten::linalg_householder_product(Tensor input, Tensor tau) -> Tensor");

// Eigenvalues and singular values.
NEURON_LIBRARY_OP("aten::linalg_eig(Tensor self) -> (Tensor eigenvalues, Tensor eigenvectors)");
NEURON_LIBRARY_OP("aten::_linalg_eigvals(Tensor self) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::_linalg_eigh(Tensor A, str UPLO=\"L\", bool compute_v=True) -> (Tensor eigenvalues, "
    "Tensor eigenvectors)");
NEURON_LIBRARY_OP(
    "aten::_linalg_svd(Tensor A, bool full_matrices=False, bool compute_uv=True, *, str? "
    "driver=None) -> (Tensor U, Tensor S, Tensor Vh)");

// Matrix functions.
NEURON_LIBRARY_OP("aten::linalg_matrix_exp(Tensor self) -> Tensor");
NEURON_LIBRARY_OP("aten::_compute_linear_combination(Tensor input, Tensor coefficients) -> Tensor");

// Distances.
NEURON_LIBRARY_OP(
    "aten::_cdist_forward(Tensor x1, Tensor x2, float p, int? compute_mode) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::_cdist_backward(Tensor grad, Tensor x1, Tensor x2, float p, Tensor cdist) -> Tensor");
NEURON_LIBRARY_OP("aten::_pdist_forward(Tensor self, float p=2.) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::_pdist_backward(Tensor grad, Tensor self, float p, Tensor pdist) -> Tensor");

// Three components; every other one is a rotation of the operands.
Values cross(Builder& b, const OpCall& call) {
  const Dims& sizes = call.result().dims;
  const DType dtype = call.result().dtype;
  const Value x = b.broadcast_to(b.convert(call.tensor(0), dtype), sizes);
  const Value y = b.broadcast_to(b.convert(call.tensor(1), dtype), sizes);
  const int64_t dim = call.dim(2, x.rank());
  const auto part = [&](Value v, int64_t k) { return b.slice_dim(v, dim, k % 3, k % 3 + 1); };
  Values parts;
  for (int64_t k = 0; k < 3; ++k) {
    parts.push_back(
        b.sub(b.mul(part(x, k + 1), part(y, k + 2)), b.mul(part(x, k + 2), part(y, k + 1))));
  }
  return {b.concatenate(parts, dim)};
}
NEURON_LOWERING("aten::linalg_cross(Tensor self, Tensor other, *, int dim=-1) -> Tensor", cross);

Values trace(Builder& b, const OpCall& call) {
  const Value x = call.tensor(0);
  const int64_t rows = x.dim(0), columns = x.dim(1);
  const int64_t length = rows < columns ? rows : columns;
  const DType dtype = call.result().dtype;
  if (length == 0) return {b.zeros(dtype)};
  const Value diagonal = b.as_strided(x, Dims{length}, Dims{columns + 1}, 0);
  const DType wide = accumulation_dtype(dtype);
  return {b.convert(b.sum(b.convert(diagonal, wide), Dims{0}), dtype)};
}
NEURON_LOWERING("aten::trace(Tensor self) -> Tensor", trace);

}  // namespace
}  // namespace neuron::lowering
