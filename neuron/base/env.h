#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

// Every environment variable of the project. Nothing else calls getenv. Values are read at first
// use and kept; a malformed value raises Error(kInvalid) with the variable's name, its value and
// what is allowed, at every use until it is corrected. All functions are thread-safe.
namespace neuron::env {

/// One row of the table from which docs/env.md is generated.
struct Variable {
  const char* name;
  const char* type;           // "choice", "flag", "integer", "bytes", "string", "path", "core list"
  const char* default_value;  // As it would be written; may be empty.
  const char* allowed;
  const char* description;
};

/// All variables, in the order of the documentation.
std::span<const Variable> table();
/// The table as a Markdown table (the body of docs/env.md).
std::string table_as_markdown();
/// Parses every variable; throws for the first malformed one. For start-up checks.
void validate();
/// Forgets all cached values. For tests that call setenv.
void reload();

enum class Nrt : uint8_t { Auto, Hardware, Sim };
enum class Compiler : uint8_t { Auto, Cpu, NeuronxCc };
enum class Executor : uint8_t { Auto, Inline, Thread };
enum class Fallback : uint8_t { Warn, Allow, Error };
enum class SimNumerics : uint8_t { Exact, Hardware };
enum class LogLevel : uint8_t { Error, Warning, Info, Debug };

Nrt nrt();
/// Explicit path of the NRT library, or empty.
const std::string& nrt_library();
/// "trn2" or "trn3"; empty if neither variable is set.
const std::string& target_override();
/// target_override(), or "trn2".
const std::string& target();
Compiler compiler();
/// Extra arguments for neuronx-cc, unsplit. Read at every call.
std::string cc_flags();
/// Directory of the disk cache: TORCH_NEURONX_CACHE_DIR, else below XDG_CACHE_HOME or HOME; empty
/// if there is none of them.
const std::string& cache_dir();
bool cache_enabled();
Executor executor();
/// Threads of the compute pool, the launching one included; 0: as many as fit the machine.
int num_threads();
bool launch_blocking();
/// Read at every call.
Fallback fallback();
/// Logical cores this process may own, or nothing if the variable is unset. Increasing, contiguous.
const std::optional<std::vector<int>>& visible_cores();
/// 0: not set.
int num_cores();
/// Physical cores per logical core, 1 or 2.
int logical_nc_config();
/// Bytes of HBM per logical core, or 0 for the target's own.
uint64_t hbm_limit();
LogLevel log_level();
/// Folder that built programs are written to, or empty.
const std::string& dump_dir();
/// Also the data of their first runs.
bool dump_data();
SimNumerics sim_numerics();
/// Folder of whole programs, or empty. Read at every call.
std::string neff_cache_dir();
/// Faults that the simulator injects, e.g. "nrt_load:RESOURCE@2"; see nrtsim/faults.h.
const std::string& sim_faults();
/// Collectives that the flight recorder remembers.
int flight_recorder_size();
/// Part of the host's identity; empty if not set.
const std::string& host_id();
/// Logical cores that the simulator shows when no other variable says so.
int sim_cores();
/// "ip:port" of rank 0, or empty.
const std::string& root_comm_id();
/// Folders in which programs are looked for.
std::vector<std::string> search_path();

}  // namespace neuron::env
