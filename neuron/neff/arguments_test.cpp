#include "neuron/neff/arguments.h"

#include <gtest/gtest.h>

#include <limits>

#include "neuron/base/error.h"

namespace neuron::neff {
namespace {

std::vector<LibraryArgument> samples() {
  using Kind = LibraryArgument::Kind;
  std::vector<LibraryArgument> list;
  list.push_back({Kind::Tensor, {}, {}, {}});
  list.push_back({Kind::TensorList, {2, 1, 0}, {}, {}});
  list.push_back({Kind::IntList,
                  {0, -1, 63, -64, 64, std::numeric_limits<int64_t>::max(),
                   std::numeric_limits<int64_t>::min()},
                  {},
                  {}});
  list.push_back({Kind::Complex, {}, {1.5, -std::numeric_limits<double>::infinity()}, {}});
  list.push_back({Kind::String, {}, {}, "gelsd"});
  list.push_back({Kind::None, {}, {}, {}});
  list.push_back({Kind::MemoryFormat, {2}, {}, {}});
  return list;
}

TEST(LibraryArguments, SurviveEncoding) {
  const std::vector<LibraryArgument> given = samples();
  const std::vector<LibraryArgument> read = decode_arguments(encode_arguments(given));
  ASSERT_EQ(read.size(), given.size());
  for (size_t i = 0; i < given.size(); ++i) {
    EXPECT_EQ(read[i].kind, given[i].kind) << i;
    EXPECT_EQ(read[i].ints, given[i].ints) << i;
    EXPECT_EQ(read[i].doubles, given[i].doubles) << i;
    EXPECT_EQ(read[i].text, given[i].text) << i;
  }
}

TEST(LibraryArguments, EmptyBytesAreNoArguments) { EXPECT_TRUE(decode_arguments({}).empty()); }

// Every prefix must be refused without reading past its end.
TEST(LibraryArguments, RefuseTruncatedBytes) {
  const std::vector<std::byte> bytes = encode_arguments(samples());
  for (size_t size = 1; size < bytes.size(); ++size) {
    EXPECT_THROW(decode_arguments(std::span(bytes).first(size)), Error) << size;
  }
}

TEST(LibraryArguments, RefuseTrailingAndUnknown) {
  std::vector<std::byte> bytes = encode_arguments(samples());
  bytes.push_back(std::byte{0});
  EXPECT_THROW(decode_arguments(bytes), Error);
  bytes.pop_back();
  bytes[1] = std::byte{200};
  EXPECT_THROW(decode_arguments(bytes), Error);
}

}  // namespace
}  // namespace neuron::neff
