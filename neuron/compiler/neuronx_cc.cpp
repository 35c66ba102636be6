#include "neuron/compiler/neuronx_cc.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "neuron/base/env.h"
#include "neuron/base/error.h"
#include "neuron/compiler/disk_cache.h"

extern char** environ;

namespace neuron::compiler {
namespace {

constexpr char kProgram[] = "neuronx-cc";
constexpr size_t kLogBytes = 8192;  // Of a failed run, in the error message.

/// A fresh folder, removed with everything in it.
class WorkFolder {
 public:
  WorkFolder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "torch_neuronx_XXXXXX").string();
    NEURON_CHECK(::mkdtemp(pattern.data()) != nullptr, kIo, "cannot create a folder like ", pattern,
                 ": ", std::strerror(errno));
    path_ = pattern;
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  ~WorkFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string file(const char* name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string find_program() {
  std::string searched;
  for (const std::string& folder : env::search_path()) {
    const std::string candidate = folder + "/" + kProgram;
    struct stat info;
    if (::stat(candidate.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
        ::access(candidate.c_str(), X_OK) == 0) {
      return candidate;
    }
    searched += (searched.empty() ? "" : ":") + folder;
  }
  raise(ErrorKind::kIo, "compiling for Neuron hardware: no program ", kProgram, " in PATH (",
        searched,
        "); install the neuronx-cc package, or set TORCH_NEURONX_COMPILER=cpu to compile ",
        "for the simulator");
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string tail_of(const std::string& log) {
  if (log.size() <= kLogBytes) return log;
  return "...\n" + log.substr(log.size() - kLogBytes);
}

/// Runs the command in `folder`, both output streams into `log_path`; returns waitpid's status.
int run(const std::vector<std::string>& command, const std::string& folder,
        const std::string& log_path) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log_path.c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t child = 0;
  const int problem =
      ::posix_spawn(&child, command[0].c_str(), &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  NEURON_CHECK(problem == 0, kIo, "cannot start ", command[0], ": ", std::strerror(problem));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    NEURON_CHECK(errno == EINTR, kIo, "waiting for ", command[0], ": ", std::strerror(errno));
  }
  return status;
}

std::string describe(int status) {
  if (WIFSIGNALED(status)) return internal::join("was killed by signal ", WTERMSIG(status));
  return internal::join("ended with status ", WEXITSTATUS(status));
}

const bool registered = register_compiler("neuronx-cc", [](std::string_view target) {
  return std::unique_ptr<Compiler>(new NeuronxCc(target));
});

}  // namespace

std::vector<std::string> split_flags(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = 0;
  for (size_t k = 0; k < text.size(); ++k) {
    const char c = text[k];
    if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else if (c == '\\' && quote == '"' && k + 1 < text.size() &&
                 (text[k + 1] == '"' || text[k + 1] == '\\')) {
        word += text[++k];
      } else {
        word += c;
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      in_word = true;
    } else if (c == '\\' && k + 1 < text.size()) {
      word += text[++k];
      in_word = true;
    } else if (c == ' ' || c == '\t' || c == '\n') {
      if (in_word) words.push_back(std::move(word));
      word.clear();
      in_word = false;
    } else {
      word += c;
      in_word = true;
    }
  }
  NEURON_CHECK(quote == 0, kInvalid, "NEURON_CC_FLAGS: a ", quote, " is not closed in '", text,
               "'");
  if (in_word) words.push_back(std::move(word));
  return words;
}

std::vector<std::byte> NeuronxCc::compile(const hlo::Module& module) {
  const std::string program = find_program();
  std::vector<std::string> command = {
      program,           "compile", "module.mlir",
      "--framework",     "XLA",     "--target",
      target_,           "--lnc",   std::to_string(env::logical_nc_config()),
      "--auto-cast=none"};
  // The user's options come last: the right-most of two that compete wins.
  for (std::string& flag : split_flags(env::cc_flags())) command.push_back(std::move(flag));
  command.insert(command.end(), {"--output", "module.neff"});
  const std::string text = hlo::to_stablehlo(module);

  Hasher hasher;
  hasher.add_bytes(text.data(), text.size());
  for (const std::string& word : command) hasher.add_bytes(word.data(), word.size());
  struct stat info;
  if (::stat(program.c_str(), &info) == 0) {
    // Another version of the compiler makes other programs.
    hasher.add(static_cast<uint64_t>(info.st_size));
    hasher.add(static_cast<uint64_t>(info.st_mtim.tv_sec));
  }
  const Hash128 key = hasher.finish();
  if (std::optional<std::vector<std::byte>> cached = disk_cache().read("neff", key)) {
    ++disk_hits_;
    return std::move(*cached);
  }

  const WorkFolder folder;
  {
    std::ofstream file(folder.file("module.mlir"), std::ios::binary);
    file << text;
    file.close();
    NEURON_CHECK(file.good(), kIo, "cannot write ", folder.file("module.mlir"));
  }
  const std::string log_path = folder.file("compiler.log");
  const int status = run(command, folder.path(), log_path);
  std::string line;
  for (const std::string& word : command) line += (line.empty() ? "" : " ") + word;
  NEURON_CHECK(status == 0, kIo, kProgram, " ", describe(status), "\n  command: ", line,
               "\n  log: ", tail_of(read_text(log_path)));
  const std::string neff = read_text(folder.file("module.neff"));
  NEURON_CHECK(!neff.empty(), kIo, kProgram,
               " reported success but wrote no NEFF\n  command: ", line,
               "\n  log: ", tail_of(read_text(log_path)));
  const auto* data = reinterpret_cast<const std::byte*>(neff.data());
  std::vector<std::byte> bytes(data, data + neff.size());
  disk_cache().write("neff", key, bytes);
  ++programs_;
  return bytes;
}

CompilerStats NeuronxCc::stats() const {
  CompilerStats stats;
  stats.programs = programs_;
  stats.disk_hits = disk_hits_;
  stats.disk_rebuilt = disk_cache().damaged();
  return stats;
}

}  // namespace neuron::compiler
