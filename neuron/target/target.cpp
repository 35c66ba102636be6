#include "neuron/target/target.h"

#include <array>

#include "neuron/base/error.h"

namespace neuron {

std::span<const Target* const> all_targets() {
  static constexpr std::array<const Target*, 2> kTargets = {&kTrn2, &kTrn3};
  return kTargets;
}

const Target& find_target(std::string_view name) {
  std::string known;
  for (const Target* target : all_targets()) {
    if (target->name == name) return *target;
    known += (known.empty() ? "" : ", ") + std::string(target->name);
  }
  raise(ErrorKind::kInvalid, "unknown target '", name, "', known: ", known);
}

}  // namespace neuron
