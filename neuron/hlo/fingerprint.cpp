#include "neuron/hlo/module.h"

namespace neuron::hlo {

namespace {

void add_dims(Hasher& hasher, DimsRef dims) {
  for (int64_t size : dims) hasher.add(static_cast<uint64_t>(size));
}

}  // namespace

// Runs for every new shape of an eager op, so it touches each word once: counts are packed into one
// word per node, operands two to a word. Nodes that no result needs do not take part, and value
// numbers count the live nodes only.
Hash128 fingerprint(const Module& module) {
  const auto nodes = module.nodes();
  constexpr uint32_t kDead = 0, kLive = 1;
  SmallVector<uint32_t, 64> number(nodes.size(), kDead);
  for (const Result& result : module.results()) number[result.value] = kLive;
  // All parameters and scalars are arguments of the program, used or not.
  for (const Parameter& parameter : module.parameters()) number[parameter.value] = kLive;
  for (const Scalar& scalar : module.scalars()) number[scalar.value] = kLive;
  for (size_t i = nodes.size(); i-- > 0;) {
    if (is_collective(nodes[i].op)) number[i] = kLive;
    if (number[i] == kDead) continue;
    for (ValueId operand : nodes[i].operands) number[operand] = kLive;
  }
  uint32_t next = 0;
  Hasher hasher;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (number[i] == kDead) continue;
    number[i] = next++;
    const Node& node = nodes[i];
    hasher.add(static_cast<uint64_t>(node.op) | static_cast<uint64_t>(node.type.dtype) << 8 |
               static_cast<uint64_t>(node.type.dims.size()) << 16 |
               static_cast<uint64_t>(node.operands.size()) << 28 |
               static_cast<uint64_t>(node.ints.size()) << 44 |
               static_cast<uint64_t>(!node.bytes.empty()) << 60 |
               static_cast<uint64_t>(!node.name.empty()) << 61 |
               static_cast<uint64_t>(!node.results.empty()) << 62);
    add_dims(hasher, node.type.dims);
    const size_t operands = node.operands.size();
    for (size_t k = 0; k < operands; k += 2) {
      const uint64_t second = k + 1 < operands ? number[node.operands[k + 1]] : kNoValue;
      hasher.add(number[node.operands[k]] | second << 32);
    }
    add_dims(hasher, node.ints);
    if (!node.bytes.empty()) hasher.add_bytes(node.bytes.data(), node.bytes.size());
    if (!node.name.empty()) hasher.add_bytes(node.name.data(), node.name.size());
    if (!node.results.empty()) {
      hasher.add(node.results.size());
      for (const Type& type : node.results) {
        hasher.add(static_cast<uint64_t>(type.dtype) | type.dims.size() << 8);
        add_dims(hasher, type.dims);
      }
    }
  }
  hasher.add(module.parameters().size() | module.scalars().size() << 20 |
             static_cast<uint64_t>(module.results().size()) << 40);
  for (const Parameter& parameter : module.parameters()) {
    hasher.add(number[parameter.value] | static_cast<uint64_t>(parameter.strides.size()) << 32);
    add_dims(hasher, parameter.strides);
  }
  for (const Scalar& scalar : module.scalars()) {
    hasher.add(number[scalar.value] | static_cast<uint64_t>(scalar.kind) << 32);
  }
  for (const Result& result : module.results()) {
    hasher.add(number[result.value] | static_cast<uint64_t>(result.strides.size()) << 32 |
               static_cast<uint64_t>(result.staged) << 63);
    hasher.add(static_cast<uint64_t>(static_cast<int64_t>(result.alias)));
    add_dims(hasher, result.strides);
  }
  return hasher.finish();
}

}  // namespace neuron::hlo
