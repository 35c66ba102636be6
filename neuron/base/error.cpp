#include "neuron/base/error.h"

#include <array>
#include <cstdio>
#include <ostream>

namespace neuron {

namespace internal {
void fail_assert(const char* condition, const char* file, int line, const std::string& message) {
  raise(ErrorKind::kInternal, "internal error, please report: ", condition, " is false at ", file,
        ":", line, message.empty() ? "" : ": ", message);
}
}  // namespace internal

std::ostream& operator<<(std::ostream& out, Bytes bytes) {
  constexpr std::array<const char*, 5> kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes.count);
  size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return out << text.data();
}

}  // namespace neuron
