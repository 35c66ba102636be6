#include "neuron/base/env.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <forward_list>
#include <limits>
#include <mutex>
#include <string_view>

#include "neuron/base/error.h"

namespace neuron::env {
namespace {

// Rows of the table, in its order.
enum Id : size_t {
  kNrt,
  kNrtLibrary,
  kTarget,
  kTargetOverride,
  kCompiler,
  kCcFlags,
  kCacheDir,
  kCache,
  kExecutor,
  kNumThreads,
  kLaunchBlocking,
  kFallback,
  kVisibleCores,
  kNumCores,
  kLogicalNcConfig,
  kVirtualCoreSize,
  kHbmLimit,
  kRootCommId,
  kLogLevel,
  kDump,
  kDumpData,
  kFlightRecorderSize,
  kHostId,
  kSimCores,
  kSimFaults,
  kSimNumerics,
  kNeffCacheDir,
  kNeffDisableCache,
  kDisableNeffCache,
  kFallbackOnly,
  kDisableFallbackExecution,
  kDisableAutocopy,
  kRetainDevice,
  kMetrics,
  kMlirAtenOps,
  kStableHlo,
  kConcatenation,
  kPrologue,
  kCount,
};

constexpr std::array<Variable, kCount> kTable = {{
    {"TORCH_NEURONX_NRT", "choice", "auto", "auto, hardware, sim",
     "Which Neuron runtime is loaded: the vendor's libnrt.so, or the simulator that ships with the "
     "package. auto takes the hardware if a Neuron device is present, else the simulator."},
    {"TORCH_NEURONX_NRT_LIBRARY", "path", "", "path of a shared library",
     "Loads exactly this library as the Neuron runtime and looks nowhere else."},
    {"TORCH_NEURONX_TARGET", "choice", "trn2", "trn2, trn3",
     "Chip that programs are compiled for and that the simulator imitates."},
    {"NEURON_PLATFORM_TARGET_OVERRIDE", "choice", "", "trn2, trn3",
     "The Neuron SDK's name for the same; TORCH_NEURONX_TARGET wins."},
    {"TORCH_NEURONX_COMPILER", "choice", "auto", "auto, cpu, neuronx-cc",
     "Compiler behind the device. auto takes neuronx-cc on hardware and the CPU code generator "
     "with the simulator."},
    {"NEURON_CC_FLAGS", "string", "", "options of neuronx-cc",
     "Appended to every neuronx-cc command line."},
    {"TORCH_NEURONX_CACHE_DIR", "path", "~/.cache/torch_neuronx", "path of a directory",
     "Where compiled kernels and programs are kept between runs. Must belong to the user alone."},
    {"TORCH_NEURONX_CACHE", "flag", "1", "0, 1", "0 turns the disk cache off."},
    {"TORCH_NEURONX_EXECUTOR", "choice", "auto", "auto, inline, thread",
     "Who runs queued work: the thread that enqueues it (inline) or one executor thread. auto is "
     "inline on machines with up to 3 cores."},
    {"TORCH_NEURONX_NUM_THREADS", "integer", "0", "0 to 1024",
     "Threads of the compute pool, the launching thread included; 0 fits the machine."},
    {"NEURON_LAUNCH_BLOCKING", "flag", "0", "0, 1",
     "1 makes every operation wait for its end, so that an error appears where it was caused."},
    {"TORCH_NEURONX_FALLBACK", "choice", "warn", "warn, allow, error",
     "What happens to an operator without a lowering: run it on the CPU with one warning, run it "
     "silently, or refuse."},
    {"NEURON_RT_VISIBLE_CORES", "core list", "", "numbers and ranges such as 0-3 or 2,3",
     "Logical NeuronCores that this process owns; they must be contiguous and increasing. Wins "
     "over NEURON_RT_NUM_CORES."},
    {"NEURON_RT_NUM_CORES", "integer", "0", "0 to 1024",
     "How many logical NeuronCores this process owns; 0 leaves it to the runtime."},
    {"NEURON_LOGICAL_NC_CONFIG", "integer", "2", "1, 2", "Physical NeuronCores per logical core."},
    {"NEURON_RT_VIRTUAL_CORE_SIZE", "integer", "2", "1, 2",
     "Older name of NEURON_LOGICAL_NC_CONFIG, which wins."},
    {"TORCH_NEURONX_HBM_LIMIT", "bytes", "0",
     "a number of bytes; suffixes K, M, G (powers of 1024)",
     "HBM of each simulated logical core, for tests of memory limits; 0 is the target's own size."},
    {"NEURON_RT_ROOT_COMM_ID", "string", "", "ip:port",
     "Where rank 0 waits for the others when collectives start."},
    {"TORCH_NEURONX_LOG_LEVEL", "choice", "warning", "error, warning, info, debug",
     "How much is written to standard error."},
    {"TORCH_NEURONX_DUMP", "path", "", "path of a directory",
     "Every program that is built is written there as StableHLO text, for a look or another tool."},
    {"TORCH_NEURONX_DUMP_DATA", "flag", "0", "0, 1",
     "1 also writes the arguments and results of each program's first run (TORCH_NEURONX_DUMP)."},
    {"TORCH_NEURONX_FLIGHT_RECORDER_SIZE", "integer", "2000", "0 to 1000000",
     "Collectives that torch_neuronx.distributed.flight_record() remembers; 0 turns it off."},
    {"TORCH_NEURONX_HOST_ID", "string", "", "any text",
     "Ranks with different values never share memory, as if on different hosts."},
    {"NEURON_SIM_CORES", "integer", "2", "1 to 1024",
     "Logical NeuronCores that the simulator shows if the NEURON_RT variables do not say. Unset, "
     "it "
     "shows one for each rank of the launcher (LOCAL_WORLD_SIZE), at least 2, at most 64; or 128 "
     "if "
     "NEURON_LOGICAL_NC_CONFIG is set to 1."},
    {"NEURON_SIM_FAULTS", "string", "", "list of call:status[@n], e.g. nrt_load:RESOURCE@2",
     "Failures that the simulator injects, for tests."},
    {"NEURON_SIM_NUMERICS", "choice", "exact", "exact, hardware",
     "exact: the simulator computes every dtype as PyTorch's CPU does. hardware: 64-bit numbers "
     "are computed in 32 bits, integer products and accumulating scatters in float32 and "
     "float8_e4m3fn "
     "in the target's own format, with one warning for each kind; docs/architecture.md says what "
     "is not imitated."},
    {"TORCH_NEURONX_NEFF_CACHE_DIR", "path", "", "path of a directory",
     "Whole programs are kept there between runs as .neff files. Read for every program that is "
     "built. Must belong to the user alone."},
    {"TORCH_NEURONX_NEFF_DISABLE_CACHE", "flag", "0", "0, 1",
     "1 ignores TORCH_NEURONX_NEFF_CACHE_DIR."},
    {"TORCH_NEURONX_DISABLE_NEFF_CACHE", "flag", "0", "0, 1",
     "The documented name of TORCH_NEURONX_NEFF_DISABLE_CACHE."},
    {"TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS", "flag", "1", "0, 1",
     "Set to 1 at import. An operator that has a lowering and fails never runs on the CPU instead, "
     "so 0 changes nothing."},
    {"TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "flag", "0", "0, 1",
     "1 makes nodes of a compiled graph that the device cannot run an error when the graph is "
     "compiled. Read for every graph; the option fallback_execution of torch.compile wins."},
    {"TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY", "flag", "0", "0, 1",
     "1 refuses CPU tensors as inputs of graphs compiled with backend='neuron' instead of copying "
     "them to the device. Read at every call."},
    {"TORCH_NEURONX_RETAIN_DEVICE_MODE", "flag", "0", "0, 1",
     "1 returns results of a compiled graph whose inputs were all on the CPU to the CPU. Read at "
     "every call."},
    {"TORCH_NEURONX_METRICS_ENABLED", "flag", "0", "0, 1",
     "1 turns the counters of torch_neuronx.metrics on. Read at every call."},
    {"TORCH_NEURONX_MLIR_ATEN_OPS", "flag", "1", "0, 1",
     "Set to 1 at import, for programs that look; there is one way of lowering."},
    {"TORCH_NEURONX_ENABLE_STABLEHLO", "flag", "1", "0, 1",
     "Accepted; programs always go to neuronx-cc as StableHLO."},
    {"TORCH_NEURONX_ENABLE_CONCATENATION", "flag", "0", "0, 1",
     "Accepted; eager operators are not merged."},
    {"TORCH_NEURONX_ENABLE_PROLOGUE", "flag", "1", "0, 1",
     "Accepted; views are always read in place."},
}};

// Null and empty are the same: an empty variable counts as unset.
std::string_view raw(Id id) {
  const char* text = std::getenv(kTable[id].name);
  return text == nullptr ? std::string_view() : std::string_view(text);
}

[[noreturn]] void raise_malformed(Id id, std::string_view value) {
  raise(ErrorKind::kInvalid, "environment variable ", kTable[id].name, " is '", value,
        "', allowed: ", kTable[id].allowed);
}

// Position of the value in the row's comma-separated choices.
int parse_choice(Id id, std::string_view value) {
  if (value.empty()) value = kTable[id].default_value;
  std::string_view choices = kTable[id].allowed;
  for (int index = 0;; ++index) {
    const size_t comma = choices.find(", ");
    if (choices.substr(0, comma) == value) return index;
    if (comma == std::string_view::npos) raise_malformed(id, value);
    choices.remove_prefix(comma + 2);
  }
}

bool parse_flag(Id id) { return parse_choice(id, raw(id)) == 1; }

int64_t parse_integer(Id id, int64_t low, int64_t high) {
  std::string_view value = raw(id);
  if (value.empty()) value = kTable[id].default_value;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < low || number > high) {
    raise_malformed(id, value);
  }
  return number;
}

uint64_t parse_bytes(Id id) {
  const std::string_view value = raw(id);
  if (value.empty()) return 0;
  uint64_t number = 0;
  const char* last = value.data() + value.size();
  const auto [end, error] = std::from_chars(value.data(), last, number);
  if (error != std::errc()) raise_malformed(id, value);
  uint64_t unit = 1;
  if (end != last) {
    switch (*end) {
      case 'k':
      case 'K':
        unit = 1ull << 10;
        break;
      case 'm':
      case 'M':
        unit = 1ull << 20;
        break;
      case 'g':
      case 'G':
        unit = 1ull << 30;
        break;
      default:
        raise_malformed(id, value);
    }
    if (end + 1 != last) raise_malformed(id, value);
  }
  if (number > std::numeric_limits<uint64_t>::max() / unit) raise_malformed(id, value);
  return number * unit;
}

std::optional<std::vector<int>> parse_cores(Id id) {
  const std::string_view value = raw(id);
  if (value.empty()) return std::nullopt;
  std::vector<int> cores;
  const char* at = value.data();
  const char* last = at + value.size();
  const auto number = [&] {
    int result = 0;
    const auto [end, error] = std::from_chars(at, last, result);
    if (error != std::errc() || result < 0 || result > 4095) raise_malformed(id, value);
    at = end;
    return result;
  };
  for (;;) {
    const int first = number();
    int until = first;
    if (at != last && *at == '-') {
      ++at;
      until = number();
    }
    if (until < first) raise_malformed(id, value);
    for (int core = first; core <= until; ++core) {
      if (!cores.empty() && core != cores.back() + 1) raise_malformed(id, value);
      cores.push_back(core);
    }
    if (at == last) return cores;
    if (*at != ',') raise_malformed(id, value);
    ++at;
  }
}

std::string parse_root_comm_id() {
  const std::string_view value = raw(kRootCommId);
  if (value.empty()) return {};
  const size_t colon = value.rfind(':');
  int port = 0;
  if (colon == std::string_view::npos || colon == 0) raise_malformed(kRootCommId, value);
  const auto [end, error] =
      std::from_chars(value.data() + colon + 1, value.data() + value.size(), port);
  if (error != std::errc() || end != value.data() + value.size() || port < 0 || port > 65535) {
    raise_malformed(kRootCommId, value);
  }
  return std::string(value);
}

std::string parse_target() {
  for (const Id id : {kTarget, kTargetOverride}) {
    const std::string_view value = raw(id);
    if (value.empty()) continue;
    parse_choice(id, value);
    return std::string(value);
  }
  return {};
}

// A launcher that starts several ranks here expects a machine with a core for each.
int parse_sim_cores() {
  if (!raw(kSimCores).empty()) return static_cast<int>(parse_integer(kSimCores, 1, 1024));
  const char* text = std::getenv("LOCAL_WORLD_SIZE");
  const std::string_view ranks = text == nullptr ? std::string_view() : std::string_view(text);
  int count = 0;
  const auto [end, failure] = std::from_chars(ranks.data(), ranks.data() + ranks.size(), count);
  const bool number = failure == std::errc() && end == ranks.data() + ranks.size();
  // Whoever asks for one physical core each means a whole machine: 16 chips of 8 cores.
  if (!number && raw(kLogicalNcConfig) == "1") return 128;
  return number ? std::clamp(count, 2, 64) : 2;  // 64: one trn2.48xlarge
}

std::string find_cache_dir() {
  if (const std::string_view dir = raw(kCacheDir); !dir.empty()) return std::string(dir);
  if (const char* dir = std::getenv("XDG_CACHE_HOME"); dir != nullptr && dir[0] == '/') {
    return std::string(dir) + "/torch_neuronx";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/') {
    return std::string(home) + "/.cache/torch_neuronx";
  }
  return {};
}

// A value that is parsed at first use.
class CachedBase {
 public:
  virtual ~CachedBase() = default;
  virtual void parse() = 0;
  virtual void forget() = 0;
};

std::vector<CachedBase*>& all_cached() {
  static std::vector<CachedBase*> list;
  return list;
}

template <typename T>
class Cached : public CachedBase {
 public:
  explicit Cached(T (*parser)()) : parser_(parser) { all_cached().push_back(this); }
  const T& get() {
    const T* value = value_.load(std::memory_order_acquire);
    return value != nullptr ? *value : parse_again();
  }
  void parse() override { get(); }
  void forget() override { value_.store(nullptr, std::memory_order_release); }

 private:
  const T& parse_again() {
    T fresh = parser_();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (last_ == nullptr || !(*last_ == fresh)) last_ = &kept_->emplace_front(std::move(fresh));
    value_.store(last_, std::memory_order_release);
    return *last_;
  }

  T (*parser_)();
  std::atomic<const T*> value_ = nullptr;  // Null: not parsed since reload().
  std::mutex mutex_;
  const T* last_ = nullptr;  // Guarded by mutex_.
  // Every value there was: callers hold references. Leaked, since they may be used while the
  // process ends. Guarded by mutex_.
  std::forward_list<T>* const kept_ = new std::forward_list<T>;
};

Cached<Nrt> g_nrt([] { return static_cast<Nrt>(parse_choice(kNrt, raw(kNrt))); });
Cached<std::string> g_nrt_library([] { return std::string(raw(kNrtLibrary)); });
Cached<std::string> g_target_override(parse_target);
Cached<std::string> g_target([] {
  std::string name = parse_target();
  return name.empty() ? std::string("trn2") : name;
});
Cached<Compiler> g_compiler([] {
  return static_cast<Compiler>(parse_choice(kCompiler, raw(kCompiler)));
});
Cached<std::string> g_cache_dir(find_cache_dir);
Cached<bool> g_cache([] { return parse_flag(kCache); });
Cached<Executor> g_executor([] {
  return static_cast<Executor>(parse_choice(kExecutor, raw(kExecutor)));
});
Cached<int> g_num_threads([] { return static_cast<int>(parse_integer(kNumThreads, 0, 1024)); });
Cached<bool> g_launch_blocking([] { return parse_flag(kLaunchBlocking); });
Cached<std::optional<std::vector<int>>> g_visible_cores([] { return parse_cores(kVisibleCores); });
Cached<int> g_num_cores([] { return static_cast<int>(parse_integer(kNumCores, 0, 1024)); });
Cached<int> g_lnc([] {
  const bool newer = !raw(kLogicalNcConfig).empty();
  return static_cast<int>(parse_integer(newer ? kLogicalNcConfig : kVirtualCoreSize, 1, 2));
});
Cached<uint64_t> g_hbm_limit([] { return parse_bytes(kHbmLimit); });
Cached<std::string> g_root_comm_id(parse_root_comm_id);
Cached<LogLevel> g_log_level([] {
  return static_cast<LogLevel>(parse_choice(kLogLevel, raw(kLogLevel)));
});
Cached<std::string> g_dump_dir([] { return std::string(raw(kDump)); });
Cached<bool> g_dump_data([] { return parse_flag(kDumpData); });
Cached<int> g_flight_recorder_size([] {
  return static_cast<int>(parse_integer(kFlightRecorderSize, 0, 1000000));
});
Cached<std::string> g_host_id([] { return std::string(raw(kHostId)); });
Cached<int> g_sim_cores(parse_sim_cores);
Cached<SimNumerics> g_sim_numerics([] {
  return static_cast<SimNumerics>(parse_choice(kSimNumerics, raw(kSimNumerics)));
});
Cached<std::string> g_sim_faults([] { return std::string(raw(kSimFaults)); });

}  // namespace

std::span<const Variable> table() { return kTable; }

std::string table_as_markdown() {
  std::string text = "| variable | type | default | allowed | meaning |\n|---|---|---|---|---|\n";
  for (const Variable& row : kTable) {
    text += internal::join("| `", row.name, "` | ", row.type, " | ",
                           *row.default_value == '\0' ? "" : "`", row.default_value,
                           *row.default_value == '\0' ? "" : "`", " | ", row.allowed, " | ",
                           row.description, " |\n");
  }
  return text;
}

void validate() {
  for (CachedBase* value : all_cached()) value->parse();
}

void reload() {
  for (CachedBase* value : all_cached()) value->forget();
}

Nrt nrt() { return g_nrt.get(); }
const std::string& nrt_library() { return g_nrt_library.get(); }
const std::string& target_override() { return g_target_override.get(); }
const std::string& target() { return g_target.get(); }
Compiler compiler() { return g_compiler.get(); }
std::string cc_flags() { return std::string(raw(kCcFlags)); }
const std::string& cache_dir() { return g_cache_dir.get(); }
bool cache_enabled() { return g_cache.get(); }
Executor executor() { return g_executor.get(); }
int num_threads() { return g_num_threads.get(); }
bool launch_blocking() { return g_launch_blocking.get(); }
Fallback fallback() { return static_cast<Fallback>(parse_choice(kFallback, raw(kFallback))); }
const std::optional<std::vector<int>>& visible_cores() { return g_visible_cores.get(); }
int num_cores() { return g_num_cores.get(); }
int logical_nc_config() { return g_lnc.get(); }
uint64_t hbm_limit() { return g_hbm_limit.get(); }
const std::string& root_comm_id() { return g_root_comm_id.get(); }
LogLevel log_level() { return g_log_level.get(); }
const std::string& dump_dir() { return g_dump_dir.get(); }
bool dump_data() { return g_dump_data.get(); }
int flight_recorder_size() { return g_flight_recorder_size.get(); }
// Read anew: it counts when a process group is made, and may differ for the next.
const std::string& host_id() {
  g_host_id.forget();
  return g_host_id.get();
}
int sim_cores() { return g_sim_cores.get(); }
SimNumerics sim_numerics() { return g_sim_numerics.get(); }
std::string neff_cache_dir() {
  if (parse_flag(kNeffDisableCache) || parse_flag(kDisableNeffCache)) return {};
  return std::string(raw(kNeffCacheDir));
}
const std::string& sim_faults() { return g_sim_faults.get(); }

std::vector<std::string> search_path() {
  std::vector<std::string> folders;
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? std::string_view() : std::string_view(path);
  while (!rest.empty()) {
    const size_t colon = rest.find(':');
    if (const std::string_view folder = rest.substr(0, colon); !folder.empty()) {
      folders.emplace_back(folder);
    }
    if (colon == std::string_view::npos) break;
    rest.remove_prefix(colon + 1);
  }
  return folders;
}

}  // namespace neuron::env
