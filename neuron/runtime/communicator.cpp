#include "neuron/runtime/communicator.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <mutex>
#include <utility>

#include "neuron/base/error.h"
#include "neuron/nrt/loader.h"
#include "neuron/nrtsim/comm.h"
#include "neuron/runtime/capture_record.h"
#include "neuron/runtime/device.h"
#include "neuron/runtime/executor.h"

// Binds the transport of the simulator to streams, blocks and exceptions.
namespace neuron::runtime {
namespace {

std::atomic<bool> g_has_communicators{false};

// What the process groups say about this process. Leaked.
struct Job {
  std::mutex mutex;
  // Guarded by mutex:
  int id = 0, count = 0;
  ProgramGroups served;
};
Job& job() {
  static Job* const instance = new Job;
  return *instance;
}

using Timeout = std::optional<std::chrono::milliseconds>;

static_assert(static_cast<int>(CollectiveKind::kBroadcast) == NRTSIM_COMM_BROADCAST);
static_assert(static_cast<int>(CollectiveKind::kAllReduce) == NRTSIM_COMM_ALL_REDUCE);
static_assert(static_cast<int>(CollectiveKind::kReduce) == NRTSIM_COMM_REDUCE);
static_assert(static_cast<int>(CollectiveKind::kAllGather) == NRTSIM_COMM_ALL_GATHER);
static_assert(static_cast<int>(CollectiveKind::kGather) == NRTSIM_COMM_GATHER);
static_assert(static_cast<int>(CollectiveKind::kScatter) == NRTSIM_COMM_SCATTER);
static_assert(static_cast<int>(CollectiveKind::kReduceScatter) == NRTSIM_COMM_REDUCE_SCATTER);
static_assert(static_cast<int>(CollectiveKind::kAllToAll) == NRTSIM_COMM_ALL_TO_ALL);
static_assert(static_cast<int>(Reduction::kAverage) == NRTSIM_COMM_AVERAGE);
static_assert(static_cast<int>(Reduction::kMax) == NRTSIM_COMM_MAX);
static_assert(static_cast<int>(Reduction::kBitXor) == NRTSIM_COMM_BIT_XOR);

std::exception_ptr exception_of(const nrtsim_comm_error_t& error) {
  return std::make_exception_ptr(Error(static_cast<ErrorKind>(error.kind), error.text));
}

[[noreturn]] void raise_error(const nrtsim_comm_error_t& error) {
  std::rethrow_exception(exception_of(error));
}

void raise_if_forked() {
  if (in_bad_fork()) raise_bad_fork();
}

const nrtsim_comm_functions_t& transport() {
  const nrt::Api& api = nrt::api();
  NEURON_CHECK(api.is_simulator && api.nrtsim_comm != nullptr, kUnsupported,
               "collectives between processes run on the simulator only so far; ", api.path,
               " is not the simulator");
  return *api.nrtsim_comm();
}

class SimOperation final : public Operation {
 public:
  SimOperation(const nrtsim_comm_functions_t& functions, std::vector<BlockRef> blocks,
               const char* name)
      : functions_(functions), name_(name), blocks_(std::move(blocks)) {}
  ~SimOperation() override {
    if (handle_ != nullptr) functions_.free_op(handle_);
  }

  bool done() const override { return functions_.state(handle_, nullptr) != NRTSIM_COMM_RUNNING; }

  std::exception_ptr error() const override {
    nrtsim_comm_error_t error;
    if (functions_.state(handle_, &error) != NRTSIM_COMM_FAILED) return nullptr;
    return exception_of(error);
  }

  void wait(Timeout timeout) override {
    nrtsim_comm_error_t error;
    const int64_t limit = timeout.has_value() ? std::max<int64_t>(timeout->count(), 0) : -1;
    if (functions_.wait(handle_, limit, &error) != NRTSIM_COMM_DONE) raise_error(error);
  }

  void order_before(int device, int64_t stream) override {
    StreamState& state = stream_state(device, stream);
    if (state.is_captured()) refuse_while_capturing(state, "waiting for a collective");
    if (runs_here()) {
      wait(std::nullopt);
      return;
    }
    auto self = self_.lock();
    // `name_` lives as long as the library: the names of kinds are constants.
    enqueue(device, stream, [self] { self->wait(std::nullopt); }, {}, name_);
  }

  void on_done(std::function<void()> callback) override {
    {
      std::lock_guard lock(mutex_);
      if (!ended_) {
        callbacks_.push_back(std::move(callback));
        return;
      }
    }
    callback();
  }

  uint64_t sequence() const override { return functions_.op_sequence(handle_); }
  int source_rank() const override { return functions_.source(handle_); }

  // Where it has been started.
  void adopt(nrtsim_comm_op_t* handle, std::weak_ptr<SimOperation> self) {
    handle_ = handle;
    self_ = std::move(self);
  }
  nrtsim_comm_op_t* handle() const { return handle_; }

  // Called by the transport, once. May come before adopt().
  void end() {
    std::vector<std::function<void()>> callbacks;
    std::vector<BlockRef> blocks;
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
      callbacks.swap(callbacks_);
      blocks.swap(blocks_);
    }
    for (const auto& callback : callbacks) callback();
  }

 private:
  const nrtsim_comm_functions_t& functions_;
  const char* const name_;
  nrtsim_comm_op_t* handle_ = nullptr;
  std::weak_ptr<SimOperation> self_;
  std::mutex mutex_;  // Guards the rest.
  bool ended_ = false;
  std::vector<std::function<void()>> callbacks_;
  std::vector<BlockRef> blocks_;
};

// A collective that a capture has recorded: it runs when the capture is replayed. For whoever holds
// it, it is done when the recording has ended.
class CapturedOperation final : public Operation {
 public:
  CapturedOperation(StreamState& state, uint64_t sequence) : state_(state), sequence_(sequence) {}

  bool done() const override {
    const std::lock_guard lock(mutex_);
    return ended_;
  }
  std::exception_ptr error() const override { return nullptr; }
  void wait(Timeout) override {
    if (!done()) refuse_while_capturing(state_, "waiting for a collective");
  }
  // What the stream is given later is recorded behind it.
  void order_before(int device, int64_t stream) override {
    if (done()) return;
    if (&stream_state(device, stream) != &state_) {
      refuse_while_capturing(state_, "waiting for a collective on another stream");
    }
  }
  void on_done(std::function<void()> callback) override {
    {
      const std::lock_guard lock(mutex_);
      if (!ended_) {
        callbacks_.push_back(std::move(callback));
        return;
      }
    }
    callback();
  }
  uint64_t sequence() const override { return sequence_; }
  int source_rank() const override { return -1; }

  void end() {
    std::vector<std::function<void()>> callbacks;
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      callbacks.swap(callbacks_);
    }
    for (const auto& callback : callbacks) callback();
  }

 private:
  StreamState& state_;
  const uint64_t sequence_;
  mutable std::mutex mutex_;
  bool ended_ = false;  // Guarded, as the next.
  std::vector<std::function<void()>> callbacks_;
};

class SimCommunicator final : public Communicator {
 public:
  SimCommunicator(const nrtsim_comm_functions_t& functions, nrtsim_comm_t* handle)
      : functions_(functions), handle_(handle) {}
  ~SimCommunicator() override { functions_.free_comm(handle_); }

  OperationRef start(Collective collective, int device, int64_t stream, Timeout timeout) override {
    if (StreamState& state = stream_state(device, stream); state.is_captured()) [[unlikely]] {
      return record(state, std::move(collective), device, timeout);
    }
    std::vector<nrtsim_comm_piece_t> inputs, outputs;
    std::vector<BlockRef> blocks;
    for (const Piece& piece : collective.inputs) add(piece, inputs, blocks);
    for (const Piece& piece : collective.outputs) add(piece, outputs, blocks);
    const nrtsim_comm_collective_t call = {
        sizeof(nrtsim_comm_collective_t),
        static_cast<int32_t>(collective.kind),
        static_cast<int32_t>(collective.dtype),
        static_cast<int32_t>(collective.reduction),
        collective.root,
        collective.factor,
        inputs.data(),
        inputs.size(),
        outputs.data(),
        outputs.size(),
        collective.name.c_str(),
    };
    return begin(device, stream, timeout, std::move(blocks), "collective",
                 [&](const nrtsim_comm_start_t* start, nrtsim_comm_error_t* error) {
                   return functions_.collective(handle_, &call, start, error);
                 });
  }

  OperationRef send(Piece piece, DType dtype, int destination, int64_t tag, int device,
                    int64_t stream) override {
    NEURON_CHECK(destination >= 0, kInvalid, "send: no rank ", destination);
    return transfer(true, piece, dtype, destination, tag, device, stream);
  }

  OperationRef recv(Piece piece, DType dtype, int source, int64_t tag, int device,
                    int64_t stream) override {
    return transfer(false, piece, dtype, std::max(source, -1), tag, device, stream);
  }

  void set_timeout(std::chrono::milliseconds timeout) override {
    functions_.set_timeout(handle_, timeout.count());
  }
  uint64_t sequence() const override { return functions_.sequence(handle_); }
  void abort(const std::string& reason) override { functions_.abort(handle_, reason.c_str()); }
  void close() override { functions_.close(handle_); }

 private:
  static void add(const Piece& piece, std::vector<nrtsim_comm_piece_t>& pieces,
                  std::vector<BlockRef>& blocks) {
    pieces.push_back({piece.buffer.address, piece.count});
    if (piece.buffer.block == nullptr) return;
    retain(piece.buffer.block);
    blocks.emplace_back(piece.buffer.block);
  }

  OperationRef record(StreamState& state, Collective collective, int device, Timeout timeout) {
    std::vector<Block*> blocks;
    for (const std::vector<Piece>* pieces : {&collective.inputs, &collective.outputs}) {
      for (const Piece& piece : *pieces) blocks.push_back(piece.buffer.block);
    }
    const auto op = std::make_shared<CapturedOperation>(state, sequence());
    record_start(
        state,
        [self = self_, collective = std::move(collective), device, timeout](int64_t stream) {
          const auto locked = self.lock();
          NEURON_CHECK(locked != nullptr, kInvalid, "the process group whose ", collective.name,
                       " the graph has captured does not exist any more");
          locked->start(collective, device, stream, timeout)->order_before(device, stream);
        },
        blocks, "collective", [op] { op->end(); });
    return op;
  }

  OperationRef transfer(bool is_send, const Piece& piece, DType dtype, int peer, int64_t tag,
                        int device, int64_t stream) {
    std::vector<nrtsim_comm_piece_t> pieces;
    std::vector<BlockRef> blocks;
    add(piece, pieces, blocks);
    const nrtsim_comm_transfer_t call = {sizeof(nrtsim_comm_transfer_t),
                                         is_send,
                                         static_cast<int32_t>(dtype),
                                         peer,
                                         tag,
                                         pieces.front()};
    return begin(device, stream, std::nullopt, std::move(blocks), is_send ? "send" : "recv",
                 [&](const nrtsim_comm_start_t* start, nrtsim_comm_error_t* error) {
                   return functions_.transfer(handle_, &call, start, error);
                 });
  }

  // Starts now if the streams have nothing to do, else when they have passed this point.
  template <typename Start>
  OperationRef begin(int device, int64_t stream, Timeout timeout, std::vector<BlockRef> blocks,
                     const char* name, Start start_operation) {
    raise_if_forked();
    check_accepting();
    StreamState& state = stream_state(device, stream);
    if (state.is_captured()) refuse_while_capturing(state, name);
    // Of all streams: a stream that waits for another's event relies on the order of submission.
    const bool at_once = runs_here() || submitted_sequence() <= completed_sequence();
    // What an earlier failure has left in the buffers must not reach others.
    if (at_once) raise_deferred(state);
    auto op = std::make_shared<SimOperation>(functions_, std::move(blocks), name);
    nrtsim_comm_start_t start{};
    start.struct_size = sizeof(start);
    start.held = at_once ? 0 : 1;
    start.timeout_ms = timeout.has_value() ? std::max<int64_t>(timeout->count(), 1) : 0;
    start.user = new std::shared_ptr<SimOperation>(op);
    start.done = [](void* user, const nrtsim_comm_error_t*) {
      const std::unique_ptr<std::shared_ptr<SimOperation>> owner(
          static_cast<std::shared_ptr<SimOperation>*>(user));
      (*owner)->end();
    };
    nrtsim_comm_error_t error;
    nrtsim_comm_op_t* const handle = start_operation(&start, &error);
    if (handle == nullptr) {
      delete static_cast<std::shared_ptr<SimOperation>*>(start.user);
      raise_error(error);
    }
    op->adopt(handle, op);
    if (!at_once) release_in_order(state, op, name);
    return op;
  }

  // The mark runs on a failed stream, too: the others must not wait for an operation that will not
  // come.
  void release_in_order(StreamState& state, const std::shared_ptr<SimOperation>& op,
                        const char* name) {
    Task task;
    task.state = &state;
    task.op = name;
    task.even_if_poisoned = true;
    task.work = [op, this_functions = &functions_, comm = weak_handle(), state = &state] {
      if (state->is_poisoned()) {
        if (const auto locked = comm.lock()) {
          this_functions->abort(locked->handle_, kSkipped);
        }
        return;
      }
      this_functions->release(op->handle());
    };
    submit(std::move(task));
  }

  std::weak_ptr<SimCommunicator> weak_handle() { return self_; }

 public:
  void set_self(std::weak_ptr<SimCommunicator> self) { self_ = std::move(self); }

 private:
  const nrtsim_comm_functions_t& functions_;
  nrtsim_comm_t* const handle_;
  std::weak_ptr<SimCommunicator> self_;
};

// What set and get of a Rendezvous have thrown.
struct Exchange {
  const Rendezvous& rendezvous;
  std::exception_ptr failure;

  template <typename Body>
  int guarded(Body body) {
    try {
      body();
      return 0;
    } catch (...) {
      failure = std::current_exception();
      return 1;
    }
  }
};

int set_value(void* user, const char* key, const void* value, size_t bytes) {
  auto& exchange = *static_cast<Exchange*>(user);
  return exchange.guarded([&] {
    const auto* begin = static_cast<const uint8_t*>(value);
    exchange.rendezvous.set(key, std::vector<uint8_t>(begin, begin + bytes));
  });
}

int get_value(void* user, const char* key, void* value, size_t bytes) {
  auto& exchange = *static_cast<Exchange*>(user);
  return exchange.guarded([&] {
    const std::vector<uint8_t> got = exchange.rendezvous.get(key);
    NEURON_CHECK(got.size() == bytes, kDevice, "key '", key, "' of the rendezvous holds ",
                 got.size(), " bytes, expected ", bytes,
                 "; the ranks use different versions of torch_neuronx");
    std::memcpy(value, got.data(), bytes);
  });
}

// Identity of a namespace; empty where the system does not say.
std::string namespace_of(const char* kind) {
  struct stat status{};
  const std::string path = std::string("/proc/self/ns/") + kind;
  return stat(path.c_str(), &status) == 0 ? std::to_string(status.st_ino) : std::string();
}

}  // namespace

std::shared_ptr<Communicator> Communicator::create(const Rendezvous& rendezvous,
                                                   const CommunicatorOptions& options) {
  raise_if_forked();
  const nrtsim_comm_functions_t& functions = transport();
  NEURON_CHECK(
      options.global_ranks.empty() || static_cast<int>(options.global_ranks.size()) == options.size,
      kInvalid, "group '", options.group, "' of ", options.size, " ranks with ",
      options.global_ranks.size(), " global ranks");
  Exchange exchange{rendezvous, nullptr};
  nrtsim_comm_config_t config{};
  config.struct_size = sizeof(config);
  config.rank = options.rank;
  config.size = options.size;
  const std::vector<int32_t> global(options.global_ranks.begin(), options.global_ranks.end());
  config.global_ranks = global.empty() ? nullptr : global.data();
  config.group = options.group.c_str();
  config.timeout_ms = options.timeout.count();
  config.for_programs = options.for_programs ? 1 : 0;
  config.user = &exchange;
  config.set = set_value;
  config.get = get_value;
  nrtsim_comm_error_t error;
  nrtsim_comm_t* const handle = functions.create(&config, &error);
  if (handle == nullptr) {
    if (exchange.failure != nullptr) std::rethrow_exception(exchange.failure);
    raise_error(error);
  }
  g_has_communicators.store(true);
  auto communicator = std::make_shared<SimCommunicator>(functions, handle);
  communicator->set_self(communicator);
  return communicator;
}

void set_global_device(int id, int count) {
  const std::lock_guard lock(job().mutex);
  job().id = id;
  job().count = count;
}

std::pair<int, int> global_device() noexcept {
  const std::lock_guard lock(job().mutex);
  return {job().id, job().count};
}

void set_program_groups(ProgramGroups served) {
  const std::lock_guard lock(job().mutex);
  job().served = std::move(served);
}

void prepare_groups(std::span<const hlo::ReplicaGroups> all) {
  std::function<void(const hlo::ReplicaGroups&)> prepare;
  {
    const std::lock_guard lock(job().mutex);
    prepare = job().served.prepare;
  }
  NEURON_CHECK(prepare != nullptr, kInvalid,
               "a program with collectives needs torch.distributed.init_process_group()");
  for (const hlo::ReplicaGroups& groups : all) prepare(groups);
}

void abandon_groups(std::span<const hlo::ReplicaGroups> all, const std::string& reason) noexcept {
  try {
    std::function<void(const hlo::ReplicaGroups&, const std::string&)> abandon;
    {
      const std::lock_guard lock(job().mutex);
      abandon = job().served.abandon;
    }
    if (abandon == nullptr) return;
    for (const hlo::ReplicaGroups& groups : all) abandon(groups, reason);
  } catch (...) {  // The failure that led here is the one to report.
  }
}

void leave_communicators() noexcept {
  if (!g_has_communicators.load() || in_bad_fork()) return;
  nrt::api().nrtsim_comm()->leave_all();
}

std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  // Peers find each other's memory by process number, and only of the same user.
  return internal::join(boot, ":", namespace_of("pid"), ":", namespace_of("user"), ":", geteuid());
}

}  // namespace neuron::runtime
