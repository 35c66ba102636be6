#include "neuron/compiler/cpu/cpu_compiler.h"

#include <unordered_map>

#include "neuron/base/error.h"
#include "neuron/base/log.h"
#include "neuron/compiler/cpu/flat_programs.h"
#include "neuron/compiler/cpu/hardware_numerics.h"
#include "neuron/compiler/cpu/kernel_counters.h"
#include "neuron/compiler/cpu/plan.h"

namespace neuron::compiler::cpu {

namespace {

/// Numbers of a program's kernels by hash.
class KernelNumbers {
 public:
  /// The number of `hash`, and whether it is new.
  std::pair<uint32_t, bool> of(const Hash128& hash, std::vector<neff::KernelCode>& kernels) {
    if (kernels.size() < 16) {
      for (size_t k = 0; k < kernels.size(); ++k) {
        if (kernels[k].hash == hash) return {static_cast<uint32_t>(k), false};
      }
    } else {
      if (map_.empty()) {
        for (size_t k = 0; k < kernels.size(); ++k)
          map_[kernels[k].hash] = static_cast<uint32_t>(k);
      }
      auto [at, inserted] = map_.try_emplace(hash, static_cast<uint32_t>(kernels.size()));
      if (!inserted) return {at->second, false};
    }
    kernels.push_back({hash, {}});
    return {static_cast<uint32_t>(kernels.size() - 1), true};
  }

 private:
  std::unordered_map<Hash128, uint32_t, Hash128Hasher> map_;
};

const bool registered = register_compiler("cpu", [](std::string_view target) {
  return std::unique_ptr<Compiler>(new CpuCompiler(target));
});

FlatPrograms& flat_programs() {
  static FlatPrograms* all = new FlatPrograms;
  return *all;
}

}  // namespace

neff::Program CpuCompiler::compile_program(const hlo::Module& exact) {
  std::optional<hlo::Module> imitation;
  if (numerics_ == env::SimNumerics::Hardware) {
    imitation = imitate_hardware(exact, target_, [this](Narrowing narrowing, hlo::Op op) {
      warn_once(narrowing, op, target_);
    });
  }
  const hlo::Module& module = imitation ? *imitation : exact;
  neff::Program program;
  program.target = target_;
  program.cpu_features = host_features();
  for (const hlo::Parameter& p : module.parameters()) {
    program.parameters.push_back(
        {p.type.dtype, p.type.dims,
         storage_extent(p.type.dims, p.strides) * static_cast<int64_t>(size_of(p.type.dtype)), -1});
  }
  for (const hlo::Result& r : module.results()) {
    const hlo::Type& type = module.node(r.value).type;
    program.results.push_back(
        {type.dtype, type.dims,
         storage_extent(type.dims, r.strides) * static_cast<int64_t>(size_of(type.dtype)),
         r.alias});
  }
  program.scalar_count = static_cast<uint32_t>(module.scalars().size());
  const std::optional<FlatKey> flat = flat_key(module);
  if (flat) {
    if (std::optional<FlatPrograms::Found> found = flat_programs().find(*flat)) {
      program.kernels.push_back({found->hash, *found->object});
      program.steps.push_back(std::move(found->step));
      known_hits_.fetch_add(1, std::memory_order_relaxed);
      programs_.fetch_add(1, std::memory_order_relaxed);
      return program;
    }
  }
  Plan plan = make_plan(module);
  if (log::enabled(env::LogLevel::Debug)) {
    log::debug("plan of a program of ", module.size(), " operations:\n", to_string(plan));
  }
  program.arena_bytes = plan.arena_bytes;
  program.constants = std::move(plan.constants);
  program.steps.reserve(plan.steps.size());

  KernelNumbers numbers;
  std::vector<const LoopNest*> missing;
  std::vector<uint32_t> missing_number;
  for (PlannedStep& planned : plan.steps) {
    if (!planned.library && iterations_of(planned.nest) == 0) continue;
    neff::Step& step = program.steps.emplace_back();
    step.work = planned.work;
    step.parallel_group = planned.parallel_group;
    if (planned.library) {
      step.kind = planned.collective ? neff::Step::Kind::Collective : neff::Step::Kind::Library;
      step.library = std::move(planned.call);
      continue;
    }
    planned.nest.status_value = static_cast<int64_t>(program.steps.size());
    step.kernel.extent = iterations_of(planned.nest);
    step.kernel.grain = planned.grain;
    step.kernel.args = arguments_of(planned.nest);
    step.kernel.pointers = std::move(planned.pointers);
    const Hash128 hash = key_of(planned.nest);
    const auto [number, is_new] = numbers.of(hash, program.kernels);
    step.kernel.kernel = number;
    if (!is_new) continue;
    missing.push_back(&planned.nest);
    missing_number.push_back(number);
  }
  if (!missing.empty()) {
    const std::vector<KernelCache::Kernel> made = kernel_cache().get(missing);
    for (size_t k = 0; k < made.size(); ++k) {
      NEURON_ASSERT(made[k].hash == program.kernels[missing_number[k]].hash,
                    "the kernel cache answered in another order");
      program.kernels[missing_number[k]].object = *made[k].object;
    }
    if (flat && plan.steps.size() == 1 && program.steps.size() == 1 && plan.arena_bytes == 0 &&
        program.constants.empty() && made.size() == 1) {
      flat_programs().add(*flat, plan.steps[0], program.steps[0], made[0].hash, made[0].object);
    }
  }
  programs_.fetch_add(1, std::memory_order_relaxed);
  return program;
}

void CpuCompiler::forget_plans() { flat_programs().clear(); }

std::vector<std::byte> CpuCompiler::compile(const hlo::Module& module) {
  return neff::write_neff(compile_program(module));
}

void CpuCompiler::forget() { forget_kernels(); }

CompilerStats CpuCompiler::stats() const {
  const KernelCounters kernels = kernel_counters();
  CompilerStats stats;
  stats.programs = programs_.load(std::memory_order_relaxed);
  stats.kernels = kernels.generated;
  stats.kernel_hits = kernels.hits + known_hits_.load(std::memory_order_relaxed);
  stats.disk_hits = kernels.disk_hits;
  stats.disk_rebuilt = kernels.disk_rebuilt;
  stats.kernel_seconds = kernels.seconds;
  return stats;
}

}  // namespace neuron::compiler::cpu
