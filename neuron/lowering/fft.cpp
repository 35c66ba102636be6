// Fourier transforms, from a library: along the listed dims, with the normalisation and length that
// torch has worked out.

#include "neuron/lowering/registry.h"

namespace neuron::lowering {
namespace {

NEURON_LIBRARY_OP(
    "aten::_fft_c2c(Tensor self, SymInt[] dim, int normalization, bool forward) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::_fft_r2c(Tensor self, int[] dim, int normalization, bool onesided) -> Tensor");
NEURON_LIBRARY_OP(
    "aten::_fft_c2r(Tensor self, int[] dim, int normalization, SymInt last_dim_size) -> Tensor");

}  // namespace
}  // namespace neuron::lowering
