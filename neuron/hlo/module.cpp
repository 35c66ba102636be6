#include "neuron/hlo/module.h"

#include <array>

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

}  // namespace neuron::hlo
