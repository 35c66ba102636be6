#pragma once

#include <cstdint>
#include <span>
#include <string_view>

// What a chip is: the numbers that the simulator, its clock and the compilers need. Numbers are
// those of the Neuron SDK 2.32 documentation; the page is named beside each table.
namespace neuron {

/// One engine of a physical NeuronCore.
struct Engine {
  double ghz = 0;
  /// fp32 elements a cycle; 16-bit ones in the best case.
  double elements_per_cycle = 0;
  double elements_per_cycle_16bit = 0;
};

struct TensorEngine {
  double ghz = 0;
  int rows = 0;  // Of the array: contraction
  int columns = 0;
  double tflops_bf16 = 0;
  double tflops_fp32 = 0;
  double tflops_fp8 = 0;  // The fastest 8-bit mode: fp8 on Trn2, MXFP8 on Trn3
};

/// A generation of chips. Immutable; there is one constant object per name.
struct Target {
  std::string_view name;           // "trn2", as neuronx-cc spells it
  std::string_view core_name;      // "NeuronCore-v3"
  std::string_view arch_name;      // As nrt_get_instance_info reports it
  std::string_view instance_name;  // Instance that the simulator imitates
  uint32_t instance_family;        // nrt_instance_info_t
  uint32_t instance_size;

  int chips_per_instance;
  int cores_per_chip;  // Physical
  int hbm_stacks_per_chip;
  uint64_t hbm_bytes_per_chip;
  double hbm_gb_per_second_per_chip;

  uint64_t sbuf_bytes;  // Per physical core, as everything below
  uint64_t sbuf_usable_partition_bytes;
  uint64_t psum_bytes;
  int partitions;
  TensorEngine tensor;
  Engine vector;
  Engine scalar;
  Engine gpsimd;
  int dma_engines;
  double dma_gb_per_second;  // Effective, all engines
  double dma_latency_ns;
  /// Device side of one launch. Not documented; our assumption until it is calibrated.
  double launch_ns;

  constexpr int cores_per_instance() const { return chips_per_instance * cores_per_chip; }
  /// Cores that share one HBM stack.
  constexpr int cores_per_stack() const { return cores_per_chip / hbm_stacks_per_chip; }
  constexpr uint64_t hbm_bytes_per_stack() const {
    return hbm_bytes_per_chip / static_cast<uint64_t>(hbm_stacks_per_chip);
  }
  /// Bandwidth of one physical core: its share of HBM, unless its DMA engines are slower.
  constexpr double core_gb_per_second() const {
    const double share = hbm_gb_per_second_per_chip / cores_per_chip;
    return share < dma_gb_per_second ? share : dma_gb_per_second;
  }
};

extern const Target kTrn2;
extern const Target kTrn3;

std::span<const Target* const> all_targets();
/// Throws Error(kInvalid) naming the known ones.
const Target& find_target(std::string_view name);

}  // namespace neuron
