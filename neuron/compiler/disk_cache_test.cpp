#include "neuron/compiler/disk_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>

namespace neuron::compiler {
namespace {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    char pattern[] = "/tmp/neuron_cache_test_XXXXXX";
    path = ::mkdtemp(pattern);
  }
  ~TemporaryFolder() {
    const std::string command = "rm -rf " + path;
    if (std::system(command.c_str()) != 0) ADD_FAILURE() << command;
  }
  std::string path;
};

std::vector<std::byte> some_bytes(size_t count, int seed) {
  std::vector<std::byte> bytes(count);
  for (size_t k = 0; k < count; ++k) bytes[k] = static_cast<std::byte>(k * 31 + seed);
  return bytes;
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  DIR* dir = ::opendir(folder.c_str());
  while (dir != nullptr) {
    const dirent* item = ::readdir(dir);
    if (item == nullptr) break;
    if (item->d_name[0] != '.') names.emplace_back(folder + "/" + item->d_name);
  }
  if (dir != nullptr) ::closedir(dir);
  return names;
}

TEST(DiskCache, KeepsEntriesForOtherProcesses) {
  TemporaryFolder folder;
  const std::string path = folder.path + "/a/b";
  const auto bytes = some_bytes(10000, 1);
  {
    DiskCache cache(path);
    EXPECT_FALSE(cache.read("kernel", {1, 2}).has_value());
    cache.write("kernel", {1, 2}, bytes);
  }
  struct stat info;
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  DiskCache cache(path);
  EXPECT_EQ(cache.read("kernel", {1, 2}), bytes);
  EXPECT_FALSE(cache.read("kernel", {2, 1}).has_value());
  EXPECT_FALSE(cache.read("neff", {1, 2}).has_value());
}

TEST(DiskCache, DamagedEntriesAreRemovedAndBuiltAgain) {
  TemporaryFolder folder;
  DiskCache cache(folder.path + "/c");
  const auto bytes = some_bytes(500, 2);
  int damages = 0;
  for (int kind = 0; kind < 3; ++kind) {
    cache.write("kernel", {7, 7}, bytes);
    const std::string path = files_in(cache.directory()).at(0);
    if (kind == 0) {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(100);
      file.put('\x55');
      file.put('\x66');
    } else if (kind == 1) {
      ASSERT_EQ(::truncate(path.c_str(), 90), 0);
    } else {
      ASSERT_EQ(::truncate(path.c_str(), 3), 0);
    }
    EXPECT_FALSE(cache.read("kernel", {7, 7}).has_value());
    EXPECT_EQ(cache.damaged(), static_cast<uint64_t>(++damages));
    EXPECT_TRUE(files_in(cache.directory()).empty());
  }
  cache.write("kernel", {7, 7}, bytes);
  EXPECT_EQ(cache.read("kernel", {7, 7}), bytes);
}

// Entries are code: a folder others may write to must not be believed.
TEST(DiskCache, RefusesFoldersThatOthersMayWriteTo) {
  TemporaryFolder folder;
  const std::string path = folder.path + "/open";
  {
    DiskCache cache(path);
    cache.write("kernel", {1, 1}, some_bytes(10, 1));
  }
  ASSERT_EQ(::chmod(path.c_str(), 0777), 0);
  DiskCache cache(path);
  EXPECT_FALSE(cache.read("kernel", {1, 1}).has_value());
  cache.write("kernel", {2, 2}, some_bytes(10, 1));
  EXPECT_EQ(files_in(path).size(), 1u);
}

TEST(DiskCache, SymbolicLinksAreNotFollowed) {
  TemporaryFolder folder;
  DiskCache cache(folder.path + "/c");
  cache.write("kernel", {1, 1}, some_bytes(10, 1));
  const std::string path = files_in(cache.directory()).at(0);
  ASSERT_EQ(::rename(path.c_str(), (folder.path + "/elsewhere").c_str()), 0);
  ASSERT_EQ(::symlink((folder.path + "/elsewhere").c_str(), path.c_str()), 0);
  EXPECT_FALSE(cache.read("kernel", {1, 1}).has_value());
}

TEST(DiskCache, WithoutAFolderItIsEmpty) {
  DiskCache none("");
  none.write("kernel", {1, 1}, some_bytes(10, 1));
  EXPECT_FALSE(none.read("kernel", {1, 1}).has_value());
  DiskCache impossible("/proc/nothing/here");
  impossible.write("kernel", {1, 1}, some_bytes(10, 1));
  EXPECT_FALSE(impossible.read("kernel", {1, 1}).has_value());
}

TEST(DiskCache, TheLongestUnusedEntriesGoFirst) {
  TemporaryFolder folder;
  DiskCache cache(folder.path + "/c", 100000);
  for (uint64_t k = 0; k < 9; ++k) {
    cache.write("kernel", {k, 0}, some_bytes(10000, static_cast<int>(k)));
    char name[64];
    std::snprintf(name, sizeof name, "/kernel-%016x%016x", 0, static_cast<unsigned>(k));
    const timespec times[2] = {{static_cast<time_t>(1000 + k), 0},
                               {static_cast<time_t>(1000 + k), 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, (cache.directory() + name).c_str(), times, 0), 0);
  }
  // Reading the oldest makes it the newest.
  EXPECT_TRUE(cache.read("kernel", {0, 0}).has_value());
  cache.trim(50000);
  EXPECT_TRUE(cache.read("kernel", {0, 0}).has_value());
  EXPECT_FALSE(cache.read("kernel", {1, 0}).has_value());
  EXPECT_TRUE(cache.read("kernel", {8, 0}).has_value());
  EXPECT_LE(files_in(cache.directory()).size(), 4u);
}

TEST(DiskCache, ManyProcessesWriteAndReadAtOnce) {
  TemporaryFolder folder;
  const std::string path = folder.path + "/shared";
  std::vector<pid_t> children;
  for (int child = 0; child < 4; ++child) {
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      DiskCache cache(path, 200000);
      int wrong = 0;
      for (int round = 0; round < 100; ++round) {
        const uint64_t key = static_cast<uint64_t>(round % 20);
        const auto bytes = some_bytes(3000 + key * 100, static_cast<int>(key));
        const auto found = cache.read("kernel", {key, 1});
        if (found.has_value() && *found != bytes) ++wrong;
        cache.write("kernel", {key, 1}, bytes);
      }
      ::_exit(wrong + static_cast<int>(cache.damaged()));
    }
    children.push_back(pid);
  }
  for (pid_t pid : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
}

TEST(DiskCache, TheBuildHashIsStable) {
  EXPECT_EQ(build_hash(), build_hash());
  EXPECT_NE(build_hash(), Hasher().finish());
}

}  // namespace
}  // namespace neuron::compiler
