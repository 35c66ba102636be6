#include <ATen/core/Tensor.h>
#include <ATen/core/op_registration/op_registration.h>

#define NEURON_META_INCLUDES
#include "neuron/aten/meta_structured_1.inc"
#undef NEURON_META_INCLUDES

#include "neuron/aten/meta.h"

namespace neuron::aten::internal {

std::vector<StructuredMeta> structured_metas_1() {
  std::vector<StructuredMeta> metas;
#define NEURON_META(name, function, ...)                                      \
  metas.push_back({name, c10::KernelFunction::makeFromUnboxedRuntimeFunction( \
                             static_cast<std::add_pointer_t<__VA_ARGS__>>(&at::meta::function))});
#include "neuron/aten/meta_structured_1.inc"
#undef NEURON_META
  return metas;
}

}  // namespace neuron::aten::internal
