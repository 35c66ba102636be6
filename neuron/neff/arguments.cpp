#include "neuron/neff/arguments.h"

#include <cstring>

#include "neuron/base/error.h"

namespace neuron::neff {
namespace {

// Layout: count, then per argument its kind (one byte), the three lengths and the items. Lengths
// and integers are LEB128 (zigzag for integers), so that the usual argument takes 5 bytes.
class Writer {
 public:
  void byte(uint8_t value) { bytes_.push_back(static_cast<std::byte>(value)); }
  void unsigned_number(uint64_t value) {
    while (value >= 0x80) {
      byte(static_cast<uint8_t>(value | 0x80));
      value >>= 7;
    }
    byte(static_cast<uint8_t>(value));
  }
  void signed_number(int64_t value) {
    unsigned_number((static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63));
  }
  void raw(const void* data, size_t size) {
    const auto* first = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), first, first + size);
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint8_t byte() {
    NEURON_CHECK(!bytes_.empty(), kInvalid, "library arguments end early");
    const auto value = static_cast<uint8_t>(bytes_[0]);
    bytes_ = bytes_.subspan(1);
    return value;
  }
  uint64_t unsigned_number() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t next = byte();
      value |= static_cast<uint64_t>(next & 0x7F) << shift;
      if ((next & 0x80) == 0) return value;
    }
    raise(ErrorKind::kInvalid, "library arguments hold a number of more than 64 bits");
  }
  int64_t signed_number() {
    const uint64_t value = unsigned_number();
    return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
  }
  /// A length of items that take at least `item_bytes` each.
  size_t length(size_t item_bytes) {
    const uint64_t value = unsigned_number();
    NEURON_CHECK(value <= bytes_.size() / item_bytes, kInvalid, "library arguments claim ", value,
                 " items where ", bytes_.size(), " bytes are left");
    return static_cast<size_t>(value);
  }
  void raw(void* data, size_t size) {
    NEURON_CHECK(size <= bytes_.size(), kInvalid, "library arguments end early");
    if (size > 0) std::memcpy(data, bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
  }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace

std::vector<std::byte> encode_arguments(std::span<const LibraryArgument> arguments) {
  Writer out;
  out.unsigned_number(arguments.size());
  for (const LibraryArgument& argument : arguments) {
    out.byte(static_cast<uint8_t>(argument.kind));
    out.unsigned_number(argument.ints.size());
    for (int64_t value : argument.ints) out.signed_number(value);
    out.unsigned_number(argument.doubles.size());
    out.raw(argument.doubles.data(), argument.doubles.size() * sizeof(double));
    out.unsigned_number(argument.text.size());
    out.raw(argument.text.data(), argument.text.size());
  }
  return out.take();
}

std::vector<LibraryArgument> decode_arguments(std::span<const std::byte> bytes) {
  std::vector<LibraryArgument> arguments;
  if (bytes.empty()) return arguments;
  Reader in(bytes);
  // Kind and three lengths.
  const size_t count = in.length(4);
  arguments.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    LibraryArgument argument;
    const uint8_t kind = in.byte();
    NEURON_CHECK(kind <= static_cast<uint8_t>(LibraryArgument::Kind::MemoryFormat), kInvalid,
                 "library argument ", i, " has unknown kind ", static_cast<int>(kind));
    argument.kind = static_cast<LibraryArgument::Kind>(kind);
    argument.ints.resize(in.length(1));
    for (int64_t& value : argument.ints) value = in.signed_number();
    argument.doubles.resize(in.length(sizeof(double)));
    in.raw(argument.doubles.data(), argument.doubles.size() * sizeof(double));
    argument.text.resize(in.length(1));
    in.raw(argument.text.data(), argument.text.size());
    arguments.push_back(std::move(argument));
  }
  NEURON_CHECK(in.at_end(), kInvalid, "library arguments have bytes left over");
  return arguments;
}

}  // namespace neuron::neff
