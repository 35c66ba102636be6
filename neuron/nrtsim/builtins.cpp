#include "neuron/nrtsim/builtins.h"

#include <array>

#include "neuron/nrtsim/builtin_support.h"

namespace neuron::nrtsim {

std::span<const Builtin> builtins() {
  static const std::array kBuiltins = {
      Builtin{"neuron.copy", builtin_kernel<run_copy>()},
      Builtin{"neuron.unary", builtin_kernel<run_unary>()},
      Builtin{"neuron.binary", builtin_kernel<run_binary>()},
      Builtin{"neuron.ternary", builtin_kernel<run_ternary>()},
      Builtin{"neuron.dot", dot_kernel()},
      Builtin{"neuron.convolution", builtin_kernel<run_convolution>()},
      Builtin{"neuron.sort", builtin_kernel<run_sort>()},
      Builtin{"neuron.gather", builtin_kernel<run_gather>()},
      Builtin{"neuron.scatter", builtin_kernel<run_scatter>()},
      Builtin{"neuron.dynamic_update_slice", builtin_kernel<run_dynamic_update_slice>()},
      Builtin{"neuron.as_strided_scatter", builtin_kernel<run_as_strided_scatter>()},
      Builtin{"neuron.scan", builtin_kernel<run_scan>()},
      Builtin{"neuron.arg_reduce", builtin_kernel<run_arg_reduce>()},
      Builtin{"neuron.reduce", builtin_kernel<run_reduce>()},
      Builtin{"neuron.reduce_window", builtin_kernel<run_reduce_window>()},
  };
  return kBuiltins;
}

}  // namespace neuron::nrtsim
