#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "neuron/compiler/cpu/loop_nest.h"
#include "neuron/compiler/cpu/plan.h"
#include "neuron/neff/program.h"

namespace neuron::compiler::cpu {

/// What a flat program is, and how many elements it works on.
struct FlatKey {
  Hash128 structure;
  int64_t elements = 0;
};

/// Null unless `module` is pointwise over contiguous tensors of one shape (and scalars): its plan
/// is then one loop over the elements, whose number is all that a new shape changes.
std::optional<FlatKey> flat_key(const hlo::Module& module);

/// Plans of flat programs by structure, so that new sizes need no fusion. Bounded; thread-safe.
class FlatPrograms {
 public:
  struct Found {
    neff::Step step;
    Hash128 hash;
    std::shared_ptr<const std::vector<std::byte>> object;
  };
  std::optional<Found> find(const FlatKey& key);
  /// Remembers the plan of a flat program if it is a single loop over all elements.
  void add(const FlatKey& key, const PlannedStep& planned, const neff::Step& step, Hash128 hash,
           std::shared_ptr<const std::vector<std::byte>> object);
  void clear();

 private:
  // Long loops may take another kernel (streaming stores) than short ones.
  struct Variant {
    Hash128 hash;
    std::shared_ptr<const std::vector<std::byte>> object;
  };
  struct Entry {
    LoopNest nest;
    neff::Step step;
    std::array<Variant, 2> variants;
  };
  std::mutex mutex_;
  std::unordered_map<Hash128, Entry, Hash128Hasher> entries_;
};

}  // namespace neuron::compiler::cpu
