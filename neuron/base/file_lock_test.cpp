#include "neuron/base/file_lock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "neuron/base/error.h"

namespace neuron {
namespace {

using std::chrono::milliseconds;

TEST(FileLock, ExcludesASecondOwnerUntilReleased) {
  const std::string path = ::testing::TempDir() + "/neuron_lock_test";
  {
    auto first = FileLock::acquire(path, milliseconds(0));
    ASSERT_TRUE(first.has_value());
    EXPECT_FALSE(FileLock::acquire(path, milliseconds(5)).has_value());
    FileLock moved = std::move(*first);
    EXPECT_FALSE(FileLock::acquire(path, milliseconds(0)).has_value());
  }
  EXPECT_TRUE(FileLock::acquire(path, milliseconds(0)).has_value());
  std::remove(path.c_str());
}

TEST(FileLock, NamesTheFileItCannotOpen) {
  try {
    FileLock::acquire("/nonexistent/folder/lock", milliseconds(0));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_NE(std::string(error.what()).find("/nonexistent/folder/lock"), std::string::npos);
  }
}

}  // namespace
}  // namespace neuron
