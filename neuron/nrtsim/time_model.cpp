#include "neuron/nrtsim/time_model.h"

#include <algorithm>

namespace neuron::nrtsim {

double step_time_ns(const neff::Work& work, const Target& target, int lnc) {
  // GB/s are bytes a nanosecond, TFLOPS are thousands of operations a nanosecond.
  const double memory =
      (work.bytes_read + work.bytes_written) / (target.core_gb_per_second() * lnc);
  const double tensor = work.matmul_flops / (target.tensor.tflops_bf16 * 1000.0 * lnc);
  const double vector =
      work.vector_ops / (target.vector.ghz * target.vector.elements_per_cycle * lnc);
  const double slowest = std::max({memory, tensor, vector});
  return slowest > 0 ? slowest + target.dma_latency_ns : 0;
}

double program_time_ns(const neff::Program& program, const Target& target, int lnc) {
  double total = target.launch_ns;
  for (const neff::Step& step : program.steps) total += step_time_ns(step.work, target, lnc);
  return total;
}

}  // namespace neuron::nrtsim
