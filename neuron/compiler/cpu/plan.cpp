#include "neuron/compiler/cpu/plan.h"

#include <algorithm>

#include "neuron/base/error.h"
#include "neuron/compiler/cpu/fuse.h"
#include "neuron/compiler/cpu/legalize.h"
#include "neuron/compiler/cpu/library_steps.h"
#include "neuron/compiler/cpu/narrow_products.h"
#include "neuron/compiler/cpu/nest.h"
#include "neuron/compiler/cpu/schedule.h"
#include "neuron/compiler/cpu/simplify.h"

namespace neuron::compiler::cpu {

namespace {

// Below this many nodes there is nothing to find that the lowering did not see.
constexpr size_t kSimplifyFrom = 24;

Plan plan_legal(const hlo::Module& module, bool cut_rows) {
  Fusion fusion(module, cut_rows);
  fusion.run();
  fusion.freeze();
  Plan plan;
  NestBuilder builder(fusion);
  const size_t groups = fusion.groups().size();
  SmallVector<int32_t, 32> step_of(groups, -1);
  plan.steps.reserve(groups + 2);
  for (uint32_t g = 0; g < groups; ++g) {
    const Group& group = fusion.groups()[g];
    if (group.parent != kNone || group.outputs.empty()) continue;
    step_of[g] = static_cast<int32_t>(plan.steps.size());
    plan.steps.push_back(builder.build(g));
    const LoopNest& nest = plan.steps.back().nest;
    // A row that several axes walk did not collapse to one: this module has to do without such
    // rows.
    if (!nest.column_reduce && nest.reduced_axes > 0) return plan_legal(module, false);
  }
  for (uint32_t g = 0; g < groups; ++g) {
    const uint32_t after = fusion.groups()[g].after;
    if (step_of[g] >= 0 && after != kNone) {
      plan.steps[static_cast<size_t>(step_of[g])].after = step_of[fusion.find(after)];
    }
  }
  for (ValueId v = 0; v < module.size(); ++v) {
    if (fusion.info(v).live) add_library_steps(fusion, v, &plan.steps);
  }
  schedule(fusion, builder, &plan);
  plan.arena_bytes = plan_memory(fusion, &plan);
  plan.constants = std::move(fusion.constants());
  return plan;
}

}  // namespace

Plan make_plan(const hlo::Module& module) {
  std::optional<hlo::Module> legal = legalize(module);
  std::optional<hlo::Module> narrow = narrow_products(legal ? *legal : module);
  const hlo::Module& first = narrow ? *narrow : legal ? *legal : module;
  std::optional<hlo::Module> simple;
  if (first.size() >= kSimplifyFrom) simple = simplify(first);
  return plan_legal(simple ? *simple : first, true);
}

}  // namespace neuron::compiler::cpu
