#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "neuron/base/error.h"
#include "neuron/runtime/communicator.h"

extern char** environ;

// Each rank is a process of its own: this program again, told by variables which scenario to play.
namespace neuron::runtime {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

struct Rank {
  int rank, size;
  fs::path folder;
  std::shared_ptr<Communicator> comm;

  // Values through files, as a store would have them.
  Rendezvous rendezvous(const std::string& group) const {
    const fs::path base = folder / group;
    return {[base, me = rank](const std::string& key, const std::vector<uint8_t>& value) {
              const fs::path draft = base.string() + key + "." + std::to_string(me);
              std::ofstream(draft, std::ios::binary)
                  .write(reinterpret_cast<const char*>(value.data()),
                         static_cast<std::streamsize>(value.size()));
              fs::rename(draft, base.string() + key);
            },
            [base](const std::string& key) {
              const fs::path path = base.string() + key;
              for (int i = 0; i < 20000 && !fs::exists(path); ++i) usleep(1000);
              std::ifstream file(path, std::ios::binary);
              if (!file) raise(ErrorKind::kDevice, "no value for ", key);
              return std::vector<uint8_t>(std::istreambuf_iterator<char>(file), {});
            }};
  }
  std::shared_ptr<Communicator> join(const std::string& group, milliseconds timeout) const {
    CommunicatorOptions options;
    options.rank = rank;
    options.size = size;
    options.group = group;
    options.timeout = timeout;
    return Communicator::create(rendezvous(group), options);
  }
  // Tells the parent, and other ranks.
  void mark(const std::string& what) const { std::ofstream(folder / what) << "x"; }
  void await(const std::string& what) const {
    for (int i = 0; i < 20000 && !fs::exists(folder / what); ++i) usleep(1000);
    EXPECT_TRUE(fs::exists(folder / what)) << what;
  }
};

using Scenario = void (*)(Rank&);
inline std::map<std::string, Scenario>& scenarios() {
  static std::map<std::string, Scenario> all;
  return all;
}
#define SCENARIO(name)                                                     \
  void name(Rank& r);                                                      \
  const bool registered_##name = (scenarios().emplace(#name, name), true); \
  void name([[maybe_unused]] Rank& r)

// --- The parent's side ---------------------------------------------------------------------------

class Ranks {
 public:
  Ranks(const std::string& scenario, int size) : size_(size) {
    char pattern[] = "/tmp/neuron-comm-test-XXXXXX";
    folder_ = mkdtemp(pattern);
    for (int rank = 0; rank < size; ++rank) {
      std::vector<std::string> variables;
      for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
      variables.push_back("NEURON_TEST_SCENARIO=" + scenario);
      variables.push_back("NEURON_TEST_RANK=" + std::to_string(rank));
      variables.push_back("NEURON_TEST_SIZE=" + std::to_string(size));
      variables.push_back("NEURON_TEST_FOLDER=" + folder_.string());
      std::vector<char*> environment;
      for (std::string& entry : variables) environment.push_back(entry.data());
      environment.push_back(nullptr);
      std::string arguments[] = {"rank", "--gtest_filter=Rank.Plays", "--gtest_brief=1"};
      char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
      posix_spawn_file_actions_t actions;
      posix_spawn_file_actions_init(&actions);
      posix_spawn_file_actions_addopen(&actions, 1, output(rank).c_str(),
                                       O_WRONLY | O_CREAT | O_TRUNC, 0600);
      posix_spawn_file_actions_adddup2(&actions, 1, 2);
      pid_t pid = 0;
      EXPECT_EQ(posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, argv, environment.data()),
                0);
      posix_spawn_file_actions_destroy(&actions);
      pids_.push_back(pid);
    }
  }
  ~Ranks() {
    for (pid_t pid : pids_) {
      if (pid > 0) {
        ::kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
      }
    }
    fs::remove_all(folder_);
  }
  const fs::path& folder() const { return folder_; }
  void await(const std::string& what) const {
    for (int i = 0; i < 20000 && !fs::exists(folder_ / what); ++i) usleep(1000);
    EXPECT_TRUE(fs::exists(folder_ / what)) << text(0);
  }
  void kill(int rank) {
    ::kill(pids_[static_cast<size_t>(rank)], SIGKILL);
    waitpid(pids_[static_cast<size_t>(rank)], nullptr, 0);
    pids_[static_cast<size_t>(rank)] = 0;
  }
  // Every living rank must end well.
  void expect_success() {
    for (int rank = 0; rank < size_; ++rank) {
      pid_t& pid = pids_[static_cast<size_t>(rank)];
      if (pid == 0) continue;
      int status = -1;
      waitpid(pid, &status, 0);
      pid = 0;
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
          << "rank " << rank << " of " << size_ << " ended with " << status << "\n"
          << text(rank);
    }
  }
  std::string text(int rank) const {
    std::ifstream file(output(rank));
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

 private:
  std::string output(int rank) const {
    return (folder_ / ("output" + std::to_string(rank))).string();
  }
  const int size_;
  fs::path folder_;
  std::vector<pid_t> pids_;
};

inline void run(const std::string& scenario, int size) { Ranks(scenario, size).expect_success(); }

}  // namespace neuron::runtime
