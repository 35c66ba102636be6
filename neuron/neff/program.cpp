#include "neuron/neff/program.h"

namespace neuron::neff {

std::string kernel_symbol(const Hash128& hash) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string name(33, 'k');
  for (int i = 0; i < 16; ++i) {
    name[static_cast<size_t>(1 + i)] = kDigits[(hash.high >> (60 - 4 * i)) & 15];
    name[static_cast<size_t>(17 + i)] = kDigits[(hash.low >> (60 - 4 * i)) & 15];
  }
  return name;
}

}  // namespace neuron::neff
