#include "neuron/compiler/cpu/flat_programs.h"

#include <utility>

#include "neuron/compiler/cpu/work_model.h"

namespace neuron::compiler::cpu {

namespace {

constexpr size_t kEntries = 4096;

bool equal(DimsRef a, DimsRef b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

}  // namespace

std::optional<FlatKey> flat_key(const hlo::Module& module) {
  if (module.parameters().empty() || module.results().empty()) return std::nullopt;
  const DimsRef dims = module.parameters()[0].type.dims;
  FlatKey key;
  key.elements = count_elements(dims);
  if (dims.empty() || key.elements < 2) return std::nullopt;
  Hasher hasher;
  for (const hlo::Parameter& parameter : module.parameters()) {
    if (!equal(parameter.type.dims, dims) || !is_contiguous(dims, parameter.strides)) {
      return std::nullopt;
    }
    hasher.add(parameter.value);
  }
  for (const hlo::Node& node : module.nodes()) {
    const bool whole = !node.type.dims.empty();
    if (whole && !equal(node.type.dims, dims)) return std::nullopt;
    bool numbers = true;  // Its ints do not name sizes.
    switch (node.op) {
      case hlo::Op::Parameter:
      case hlo::Op::ScalarParameter:
        break;
      case hlo::Op::Constant:
        if (node.bytes.size() != size_of(node.type.dtype)) return std::nullopt;
        hasher.add_bytes(node.bytes.data(), node.bytes.size());
        numbers = false;
        break;
      case hlo::Op::BroadcastInDim:
        if (!module.node(node.operands[0]).type.dims.empty()) return std::nullopt;
        numbers = false;
        break;
      default:
        if (hlo::class_of(node.op) != hlo::OpClass::Elementwise) return std::nullopt;
    }
    hasher.add(static_cast<uint64_t>(node.op) | static_cast<uint64_t>(node.type.dtype) << 8 |
               static_cast<uint64_t>(whole) << 16 |
               static_cast<uint64_t>(node.operands.size()) << 32);
    for (const hlo::ValueId operand : node.operands) hasher.add(operand);
    if (numbers) {
      for (const int64_t number : node.ints) hasher.add(static_cast<uint64_t>(number));
    }
  }
  for (const hlo::Scalar& scalar : module.scalars()) {
    hasher.add(scalar.value | static_cast<uint64_t>(scalar.kind) << 32);
  }
  for (const hlo::Result& result : module.results()) {
    if (!equal(module.node(result.value).type.dims, dims) || !is_contiguous(dims, result.strides)) {
      return std::nullopt;
    }
    hasher.add(result.value | static_cast<uint64_t>(result.staged) << 32);
    hasher.add(static_cast<uint64_t>(static_cast<int64_t>(result.alias)));
  }
  key.structure = hasher.finish();
  return key;
}

std::optional<FlatPrograms::Found> FlatPrograms::find(const FlatKey& key) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key.structure);
  if (found == entries_.end()) return std::nullopt;
  Entry& entry = found->second;
  entry.nest.row = key.elements;
  const Hash128 hash = key_of(entry.nest);
  for (const Variant& variant : entry.variants) {
    if (variant.object == nullptr || variant.hash != hash) continue;
    const NestWork work = work_of(entry.nest);
    Found result{entry.step, hash, variant.object};
    result.step.work = work.work;
    result.step.kernel.extent = iterations_of(entry.nest);
    result.step.kernel.grain = grain_of(entry.nest, work);
    result.step.kernel.args = arguments_of(entry.nest);
    return result;
  }
  return std::nullopt;
}

void FlatPrograms::add(const FlatKey& key, const PlannedStep& planned, const neff::Step& step,
                       Hash128 hash, std::shared_ptr<const std::vector<std::byte>> object) {
  const LoopNest& nest = planned.nest;
  if (planned.library || !nest.outer.empty() || nest.row != key.elements || nest.column_reduce ||
      nest.sweeps.size() != 1 || !nest.row_stores.empty() || nest.status_pointer != 0xFFFF) {
    return;
  }
  const std::lock_guard lock(mutex_);
  if (entries_.size() >= kEntries) entries_.clear();
  Entry& entry = entries_[key.structure];
  if (entry.variants[0].object == nullptr) {
    entry.nest = nest;
    entry.step = step;
  }
  // The newest first; the same kernel is never there twice, or it would have been found.
  entry.variants[1] = std::exchange(entry.variants[0], {hash, std::move(object)});
}

void FlatPrograms::clear() {
  const std::lock_guard lock(mutex_);
  entries_.clear();
}

}  // namespace neuron::compiler::cpu
