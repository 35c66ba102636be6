#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "neuron/base/dtype.h"
#include "neuron/runtime/runtime.h"

// Collectives and point-to-point transfers between the processes of one host. Nothing here knows
// torch; on the simulator the transport is shared memory.
//
// One thread per process moves every outstanding operation forward; it sleeps while none can move.
// Collectives of one communicator run in the order of their start() calls, which must be the same
// on every rank; transfers between two ranks with equal tags match in order and never wait for a
// collective.
namespace neuron::runtime {

/// Values that the ranks of a group exchange while they meet (c10d's store). `get` waits until the
/// key is there and throws after the group's timeout.
struct Rendezvous {
  std::function<void(const std::string& key, const std::vector<uint8_t>& value)> set;
  std::function<std::vector<uint8_t>(const std::string& key)> get;
};

enum class Reduction : uint8_t {
  kSum,
  kAverage,
  kProduct,
  kMin,
  kMax,
  kBitAnd,
  kBitOr,
  kBitXor,
};

enum class CollectiveKind : uint8_t {
  kBarrier,
  kBroadcast,      // inputs[i] of the root -> outputs[i] of every rank
  kAllReduce,      // inputs[i] of all ranks, reduced -> outputs[i]; may be the same memory
  kReduce,         // the same, outputs at the root only
  kAllGather,      // inputs[0] of rank r -> outputs[r] of every rank
  kGather,         // the same, outputs at the root only
  kScatter,        // inputs[r] of the root -> outputs[0] of rank r
  kReduceScatter,  // inputs[r] of all ranks, reduced -> outputs[0] of rank r
  kAllToAll,       // inputs[r] of rank s -> outputs[s] of rank r
};

/// Dense elements of the call's dtype in device memory. Empty pieces are allowed everywhere.
struct Piece {
  Buffer buffer;
  int64_t count = 0;  // Elements
};

/// What one rank contributes. Kind, dtype, reduction, root and the sizes that must agree are
/// compared between the ranks before data moves; a mismatch is an error on every rank that names
/// the ranks and what each asked for.
struct Collective {
  CollectiveKind kind = CollectiveKind::kBarrier;
  DType dtype = DType::f32;
  Reduction reduction = Reduction::kSum;
  double factor = 1;  // Multiplies every input before a sum (c10d's PREMUL_SUM)
  int root = 0;
  std::vector<Piece> inputs, outputs;
  std::string name;  // "all_reduce", with what errors and the flight recorder shall say
};

/// A started collective or transfer. Thread-safe.
class Operation {
 public:
  virtual ~Operation() = default;
  virtual bool done() const = 0;
  /// The error, if it ended with one; null while it runs.
  virtual std::exception_ptr error() const = 0;
  /// Blocks the host; throws the operation's error, or after `timeout` an Error that says which
  /// ranks had not arrived.
  virtual void wait(std::optional<std::chrono::milliseconds> timeout = std::nullopt) = 0;
  /// Work enqueued on the stream from now on runs after the operation. Blocks the host only where
  /// streams run inline; an error then is thrown here, else by the stream's next synchronisation.
  virtual void order_before(int device, int64_t stream) = 0;
  /// Runs when done (at once if it is already), on the communicator's thread, or on one that waits
  /// for an operation: keep it short. No lock of the transport is held.
  virtual void on_done(std::function<void()> callback) = 0;
  virtual uint64_t sequence() const = 0;
  /// recv from any rank: who sent; -1 until then.
  virtual int source_rank() const = 0;
};
using OperationRef = std::shared_ptr<Operation>;

struct CommunicatorOptions {
  int rank = 0, size = 1;
  std::vector<int> global_ranks;  // For messages; empty: the ranks themselves
  std::string group;              // For messages: "default_pg"
  std::chrono::milliseconds timeout{600000};
  /// The group serves the collectives of programs: the NRT library finds it by its global ranks.
  /// Such a group carries nothing else, so that the order on it is that of the programs.
  bool for_programs = false;
};

/// The ranks of one group on one host.
class Communicator {
 public:
  /// Meets the other ranks. Throws Error(kDevice) with the absent ranks after the timeout.
  static std::shared_ptr<Communicator> create(const Rendezvous& rendezvous,
                                              const CommunicatorOptions& options);
  virtual ~Communicator() = default;

  /// Starts after the work already enqueued on the stream; the buffers' blocks are kept until done.
  virtual OperationRef start(Collective collective, int device, int64_t stream,
                             std::optional<std::chrono::milliseconds> timeout = std::nullopt) = 0;
  virtual OperationRef send(Piece piece, DType dtype, int destination, int64_t tag, int device,
                            int64_t stream) = 0;
  /// source < 0: from any rank.
  virtual OperationRef recv(Piece piece, DType dtype, int source, int64_t tag, int device,
                            int64_t stream) = 0;

  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
  /// Collectives started so far.
  virtual uint64_t sequence() const = 0;
  /// Ends every outstanding and later operation, here and on the other ranks, with this reason.
  virtual void abort(const std::string& reason) = 0;
  /// Waits for outstanding operations and leaves the group; the memory goes with the last rank.
  virtual void close() = 0;
};

/// What this process is among all devices of the job: programs with collectives are loaded with it
/// (nrt_load_collectives). Programs loaded before keep what they have.
void set_global_device(int id, int count);
/// {id, count}; count 0: not in a job.
std::pair<int, int> global_device() noexcept;
/// How process groups serve programs. `groups` means the one of them that has this process.
struct ProgramGroups {
  /// Makes sure that the group can run a program's collectives; throws Error if it cannot. Called
  /// at every launch of such a program, on the launching thread.
  std::function<void(const hlo::ReplicaGroups& groups)> prepare;
  /// A program will not come to its collectives here: the others must not wait.
  std::function<void(const hlo::ReplicaGroups& groups, const std::string& reason)> abandon;
};
inline constexpr const char* kSkipped = "an earlier operation of the stream has failed";
void set_program_groups(ProgramGroups served);
void prepare_groups(std::span<const hlo::ReplicaGroups> all);
void abandon_groups(std::span<const hlo::ReplicaGroups> all, const std::string& reason) noexcept;

/// Whether process `key` values come from the same host: boot id, shared-memory and user
/// namespaces.
std::string host_identity();

/// The process ends: gives outstanding operations a second, ends the others with an error and tells
/// all groups. Part of shutdown().
void leave_communicators() noexcept;

}  // namespace neuron::runtime
