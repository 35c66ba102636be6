#include "neuron/hlo/module.h"

#include <array>

#include "neuron/base/error.h"

namespace neuron::hlo {

namespace {

struct OpRow {
  std::string_view enumerator;
  std::string_view name;
  int operands;
  OpClass op_class;
};

constexpr OpRow kOps[] = {
#define NEURON_OP(enumerator, name, operands, category) \
  {#enumerator, name, operands, OpClass::category},
#include "neuron/hlo/ops.def"
#undef NEURON_OP
};

}  // namespace

std::string_view name_of(Op op) { return kOps[static_cast<size_t>(op)].enumerator; }
std::string_view stablehlo_name(Op op) { return kOps[static_cast<size_t>(op)].name; }
OpClass class_of(Op op) { return kOps[static_cast<size_t>(op)].op_class; }
int operand_count(Op op) { return kOps[static_cast<size_t>(op)].operands; }

std::string to_string(const Type& type) { return neuron::to_string(type.dtype, type.dims); }

Ints CollectiveInts::encode() const {
  Ints ints{first, second, groups.channel, groups.columns};
  ints.append(groups.ids.begin(), groups.ids.end());
  return ints;
}

CollectiveInts CollectiveInts::decode(const Ints& ints) {
  NEURON_CHECK(ints.size() >= 4, kInvalid, "a collective with ", ints.size(), " attributes");
  CollectiveInts all;
  all.first = ints[0];
  all.second = ints[1];
  all.groups.channel = ints[2];
  all.groups.columns = ints[3];
  all.groups.ids.append(ints.begin() + 4, ints.end());
  return all;
}

}  // namespace neuron::hlo
