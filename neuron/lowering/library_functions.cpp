// Functions that are rare enough to be left whole to a library.

#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

// Incomplete gamma functions and the like.
NEURON_LIBRARY_OP("aten::igamma(Tensor self, Tensor other) -> Tensor");
NEURON_LIBRARY_OP("aten::igammac(Tensor self, Tensor other) -> Tensor");
NEURON_LIBRARY_OP("aten::special_zeta(Tensor self, Tensor other) -> Tensor");
NEURON_LIBRARY_OP("aten::special_zeta.other_scalar(Tensor self, Scalar other) -> Tensor");
NEURON_LIBRARY_OP("aten::special_zeta.self_scalar(Scalar self, Tensor other) -> Tensor");
NEURON_LIBRARY_OP("aten::special_erfcx(Tensor self) -> Tensor");
NEURON_LIBRARY_OP("aten::special_log_ndtr(Tensor self) -> Tensor");

// Bessel and Airy functions.
NEURON_LIBRARY_OP("aten::special_airy_ai(Tensor x) -> Tensor");
NEURON_LIBRARY_OP("aten::special_bessel_j0(Tensor self) -> Tensor");
NEURON_LIBRARY_OP("aten::special_bessel_j1(Tensor self) -> Tensor");
NEURON_LIBRARY_OP("aten::special_bessel_y0(Tensor self) -> Tensor");
NEURON_LIBRARY_OP("aten::special_bessel_y1(Tensor self) -> Tensor");
NEURON_LIBRARY_OP("aten::special_modified_bessel_k0(Tensor self) -> Tensor");
NEURON_LIBRARY_OP("aten::special_modified_bessel_k1(Tensor self) -> Tensor");
NEURON_LIBRARY_OP("aten::special_scaled_modified_bessel_k0(Tensor x) -> Tensor");
NEURON_LIBRARY_OP("aten::special_scaled_modified_bessel_k1(Tensor x) -> Tensor");
NEURON_LIBRARY_OP("aten::special_spherical_bessel_j0(Tensor x) -> Tensor");

// Orthogonal polynomials.
NEURON_LIBRARY_OP("aten::special_chebyshev_polynomial_t(Tensor x, Tensor n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_chebyshev_polynomial_t.n_scalar(Tensor x, Scalar n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_chebyshev_polynomial_t.x_scalar(Scalar x, Tensor n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_chebyshev_polynomial_u(Tensor x, Tensor n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_chebyshev_polynomial_u.n_scalar(Tensor x, Scalar n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_chebyshev_polynomial_u.x_scalar(Scalar x, Tensor n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_chebyshev_polynomial_v(Tensor x, Tensor n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_chebyshev_polynomial_v.n_scalar(Tensor x, Scalar n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_chebyshev_polynomial_v.x_scalar(Scalar x, Tensor n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_chebyshev_polynomial_w(Tensor x, Tensor n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_chebyshev_polynomial_w.n_scalar(Tensor x, Scalar n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_chebyshev_polynomial_w.x_scalar(Scalar x, Tensor n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_hermite_polynomial_h(Tensor x, Tensor n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_hermite_polynomial_h.n_scalar(Tensor x, Scalar n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_hermite_polynomial_h.x_scalar(Scalar x, Tensor n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_hermite_polynomial_he(Tensor x, Tensor n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_hermite_polynomial_he.n_scalar(Tensor x, Scalar n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_hermite_polynomial_he.x_scalar(Scalar x, Tensor n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_laguerre_polynomial_l(Tensor x, Tensor n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_laguerre_polynomial_l.n_scalar(Tensor x, Scalar n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_laguerre_polynomial_l.x_scalar(Scalar x, Tensor n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_legendre_polynomial_p(Tensor x, Tensor n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_legendre_polynomial_p.n_scalar(Tensor x, Scalar n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_legendre_polynomial_p.x_scalar(Scalar x, Tensor n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_shifted_chebyshev_polynomial_t(Tensor x, Tensor n) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::special_shifted_chebyshev_polynomial_t.n_scalar(Tensor x, Scalar n) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::special_shifted_chebyshev_polynomial_t.x_scalar(Scalar x, Tensor n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_shifted_chebyshev_polynomial_u(Tensor x, Tensor n) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::special_shifted_chebyshev_polynomial_u.n_scalar(Tensor x, Scalar n) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::special_shifted_chebyshev_polynomial_u.x_scalar(Scalar x, Tensor n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_shifted_chebyshev_polynomial_v(Tensor x, Tensor n) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::special_shifted_chebyshev_polynomial_v.n_scalar(Tensor x, Scalar n) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::special_shifted_chebyshev_polynomial_v.x_scalar(Scalar x, Tensor n) -> Tensor");
NEURON_LIBRARY_OP("aten::special_shifted_chebyshev_polynomial_w(Tensor x, Tensor n) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::special_shifted_chebyshev_polynomial_w.n_scalar(Tensor x, Scalar n) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::special_shifted_chebyshev_polynomial_w.x_scalar(Scalar x, Tensor n) -> Tensor");

// Integers.
NEURON_LIBRARY_OP("aten::gcd(Tensor self, Tensor other) -> Tensor");
NEURON_LIBRARY_OP("aten::lcm(Tensor self, Tensor other) -> Tensor");

// Random numbers of other distributions, and their gradients.
NEURON_LIBRARY_OP("aten::_standard_gamma(Tensor self, Generator? generator=None) -> Tensor");
NEURON_LIBRARY_OP("aten::_standard_gamma_grad(Tensor self, Tensor output) -> Tensor");
NEURON_LIBRARY_OP("aten::_sample_dirichlet(Tensor self, Generator? generator=None) -> Tensor");
NEURON_LIBRARY_OP("aten::_dirichlet_grad(Tensor x, Tensor alpha, Tensor total) -> Tensor");
NEURON_LIBRARY_OP("aten::poisson(Tensor self, Generator? generator=None) -> Tensor");
NEURON_LIBRARY_OP("aten::binomial(Tensor count, Tensor prob, Generator? generator=None) -> Tensor");

// Losses over margins and alignments.
NEURON_LIBRARY_OP(
    "aten::multilabel_margin_loss_forward(Tensor self, Tensor target, int reduction) -> (Tensor "
    "output, Tensor is_target)");
NEURON_LIBRARY_OP(
    "aten::multilabel_margin_loss_backward(Tensor grad_output, Tensor self, Tensor target, int "
    "reduction, Tensor is_target) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::_ctc_loss(Tensor log_probs, Tensor targets, int[] input_lengths, int[] target_lengths, "
    "int blank=0, bool zero_infinity=False) -> (Tensor, Tensor)");
NEURON_LIBRARY_OP(
    "aten::_ctc_loss.Tensor(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor "
    "target_lengths, int blank=0, bool zero_infinity=False) -> (Tensor, Tensor)");
NEURON_LIBRARY_OP(
    "aten::_ctc_loss_backward(Tensor grad, Tensor log_probs, Tensor targets, int[] input_lengths, "
    "int[] target_lengths, Tensor neg_log_likelihood, Tensor log_alpha, int blank, bool "
    "zero_infinity=False) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::_ctc_loss_backward.Tensor(Tensor grad, Tensor log_probs, Tensor targets, Tensor "
    "input_lengths, Tensor target_lengths, Tensor neg_log_likelihood, Tensor log_alpha, int blank, "
    "bool zero_infinity=False) -> Tensor");

NEURON_LIBRARY_OP(
    "aten::hash_tensor(Tensor self, int[1] dim=[], *, bool keepdim=False, int mode=0) -> Tensor");

// Segments.
NEURON_LIBRARY_OP(
    "aten::segment_reduce(Tensor data, str reduce, *, Tensor? lengths=None, Tensor? indices=None, "
    "Tensor? offsets=None, int axis=0, bool unsafe=False, Scalar? initial=None) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::_segment_reduce_backward(Tensor grad, Tensor output, Tensor data, str reduce, *, "
    "Tensor? lengths=None, Tensor? offsets=None, int axis=0, Scalar? initial=None) -> Tensor");

// Simulated quantisation.
NEURON_LIBRARY_OP(
    "aten::fake_quantize_per_tensor_affine_cachemask(Tensor self, float scale, int zero_point, int "
    "quant_min, int quant_max) -> (Tensor output, Tensor mask)");
NEURON_LIBRARY_OP(
    "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams(Tensor self, Tensor scale, "
    "Tensor zero_point, Tensor fake_quant_enabled, int quant_min, int quant_max) -> (Tensor "
    "output, Tensor mask)");
NEURON_LIBRARY_OP(
    "aten::fake_quantize_per_channel_affine_cachemask(Tensor self, Tensor scale, Tensor "
    "zero_point, int axis, int quant_min, int quant_max) -> (Tensor output, Tensor mask)");
NEURON_LIBRARY_OP(
    "aten::_fake_quantize_learnable_per_tensor_affine(Tensor self, Tensor scale, Tensor "
    "zero_point, int quant_min, int quant_max, float grad_factor=1.) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::_fake_quantize_learnable_per_tensor_affine_backward(Tensor grad, Tensor self, Tensor "
    "scale, Tensor zero_point, int quant_min, int quant_max, float grad_factor=1.) -> (Tensor, "
    "Tensor, Tensor)");
NEURON_LIBRARY_OP(
    "aten::_fake_quantize_learnable_per_channel_affine(Tensor self, Tensor scale, Tensor "
    "zero_point, int axis, int quant_min, int quant_max, float grad_factor=1.) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::_fake_quantize_learnable_per_channel_affine_backward(Tensor grad, Tensor self, Tensor "
    "scale, Tensor zero_point, int axis, int quant_min, int quant_max, float grad_factor=1.) -> "
    "(Tensor, Tensor, Tensor)");

}  // namespace
}  // namespace neuron::lowering
