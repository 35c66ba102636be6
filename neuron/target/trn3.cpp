#include "neuron/target/target.h"

namespace neuron {

// Pages of the Neuron SDK 2.32 documentation: "trainium3" and "trn3-arch" (chip, UltraServer),
// "neuron-core-v4" and the NKI guide "trainium3_arch" (core, engines), "nki-dma-bandwidth-guide"
// (DMA rates). The instance is one server of 16 chips of a Gen1 UltraServer.
constexpr Target kTrn3 = {
    .name = "trn3",
    .core_name = "NeuronCore-v4",
    .arch_name = "NCv4",
    .instance_name = "trn3 (one server of 16 chips)",
    .instance_family = 14,
    .instance_size = 7,

    .chips_per_instance = 16,
    .cores_per_chip = 8,
    .hbm_stacks_per_chip = 4,
    .hbm_bytes_per_chip = 144ull << 30,
    .hbm_gb_per_second_per_chip = 4900,

    .sbuf_bytes = 32ull << 20,
    .sbuf_usable_partition_bytes = 245752,
    .psum_bytes = 2ull << 20,
    .partitions = 128,
    .tensor = {.ghz = 2.4,
               .rows = 128,
               .columns = 128,
               .tflops_bf16 = 79,
               .tflops_fp32 = 20,
               .tflops_fp8 = 315},
    .vector = {.ghz = 1.2, .elements_per_cycle = 256, .elements_per_cycle_16bit = 512},
    .scalar = {.ghz = 1.2, .elements_per_cycle = 128, .elements_per_cycle_16bit = 256},
    .gpsimd = {.ghz = 1.2, .elements_per_cycle = 128, .elements_per_cycle_16bit = 128},
    .dma_engines = 16,
    .dma_gb_per_second = 528,
    .dma_latency_ns = 1300,
    .launch_ns = 15000,
};

static_assert(kTrn3.cores_per_stack() == 2);
static_assert(kTrn3.hbm_bytes_per_stack() == 36ull << 30);

}  // namespace neuron
