#include "neuron/runtime/program.h"

#include "neuron/base/error.h"

namespace neuron::runtime {

void run_program(const Program&, std::span<const Buffer>, std::span<const ScalarSlot>,
                 std::span<const Buffer>, const char* op) {
  raise(ErrorKind::kUnsupported, op, ": programs cannot be run yet");
}

void drop_cached_bindings() noexcept {}

}  // namespace neuron::runtime
