#include "neuron/target/target.h"

namespace neuron {

// Pages of the Neuron SDK 2.32 documentation: "trainium2" and "trn2-arch" (chip, instance),
// "neuron-core-v3" and the NKI guide "trainium2_arch" (core, engines), "nki-dma-bandwidth-guide"
// (DMA rates), "logical-neuroncore-config" and "device-memory" (24 GiB a stack, shared by two
// cores), and the runtime's instance table (family and size numbers).
constexpr Target kTrn2 = {
    .name = "trn2",
    .core_name = "NeuronCore-v3",
    .arch_name = "NCv3",
    .instance_name = "trn2.48xlarge",
    .instance_family = 5,
    .instance_size = 7,

    .chips_per_instance = 16,
    .cores_per_chip = 8,
    .hbm_stacks_per_chip = 4,
    .hbm_bytes_per_chip = 96ull << 30,
    .hbm_gb_per_second_per_chip = 2900,

    .sbuf_bytes = 28ull << 20,
    .sbuf_usable_partition_bytes = 212984,
    .psum_bytes = 2ull << 20,
    .partitions = 128,
    // Core figures; the chip page's 667 bf16 and 1299 fp8 are 3-6 % above eight times these.
    .tensor = {.ghz = 2.4,
               .rows = 128,
               .columns = 128,
               .tflops_bf16 = 79,
               .tflops_fp32 = 20,
               .tflops_fp8 = 158},
    .vector = {.ghz = 0.96, .elements_per_cycle = 256, .elements_per_cycle_16bit = 512},
    .scalar = {.ghz = 1.2, .elements_per_cycle = 128, .elements_per_cycle_16bit = 128},
    .gpsimd = {.ghz = 1.2, .elements_per_cycle = 128, .elements_per_cycle_16bit = 128},
    .dma_engines = 16,
    .dma_gb_per_second = 368,
    .dma_latency_ns = 1300,
    .launch_ns = 15000,
};

static_assert(kTrn2.cores_per_stack() == 2);
static_assert(kTrn2.hbm_bytes_per_stack() == 24ull << 30);

}  // namespace neuron
