#include "neuron/runtime/program.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "neuron/base/error.h"
#include "neuron/base/shape.h"
#include "neuron/nrt/loader.h"
#include "neuron/nrt/status.h"
#include "neuron/runtime/capture_record.h"
#include "neuron/runtime/communicator.h"
#include "neuron/runtime/device.h"
#include "neuron/runtime/executor.h"
#include "neuron/runtime/launch_trace.h"

namespace neuron::runtime {
namespace {

std::atomic<uint64_t> g_launches{0};

// Stands for the memory of empty tensors: the NRT wants an address.
alignas(64) std::byte g_nothing[64];

// Every living program, for drop_cached_bindings(). Leaked.
struct Registry {
  std::mutex mutex;
  std::unordered_set<const Program*> programs;
};
Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

size_t buffer_bytes(const hlo::Type& type, DimsRef strides) {
  return static_cast<size_t>(storage_extent(type.dims, strides)) * size_of(type.dtype);
}

}  // namespace

// The NRT tensors of one run. Bindings stay: most programs see the same addresses at every step.
struct Program::Frame {
  struct Slot {
    nrt_tensor_t* tensor = nullptr;  // Owned.
    const void* address = kUnbound;
  };
  // No buffer has this address, not even an empty one.
  static inline const void* const kUnbound = g_nothing + 1;

  Frame() = default;
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;
  ~Frame() {
    for (Slot& slot : slots) {
      if (slot.tensor != nullptr) nrt::api().nrt_tensor_free(&slot.tensor);
    }
  }

  std::vector<Slot> slots;
  nrt::TensorSet inputs;
  nrt::TensorSet outputs;
  nrt::Tensor scalars;
  std::vector<ScalarSlot> scalar_block;  // What `scalars` is attached to on the simulator.
  Frame* next = nullptr;
};

Program::Program(int device, const hlo::Module& module, std::span<const std::byte> neff)
    : device_(device),
      is_simulator_(nrt::api().is_simulator),
      neff_bytes_(neff.size()),
      parameter_count_(module.parameters().size()),
      scalar_count_(module.scalars().size()),
      dump_(ProgramDump::create(module)) {
  ports_.reserve(parameter_count_ + module.results().size());
  types_.reserve(parameter_count_);
  for (size_t i = 0; i < parameter_count_; ++i) {
    const hlo::Parameter& parameter = module.parameters()[i];
    ports_.push_back(
        {"input" + std::to_string(i), buffer_bytes(parameter.type, parameter.strides)});
    types_.push_back(parameter.type);
  }
  for (size_t i = 0; i < module.results().size(); ++i) {
    const hlo::Result& result = module.results()[i];
    const std::string name = "output" + std::to_string(i);
    size_t bytes = buffer_bytes(module.node(result.value).type, result.strides);
    // A result that overwrites a parameter gets that parameter's whole buffer.
    if (result.alias >= 0) {
      bytes = std::max(bytes, ports_[static_cast<size_t>(result.alias)].bytes);
    }
    ports_.push_back({name, bytes});
  }
  for (const hlo::Node& node : module.nodes()) {
    if (!hlo::is_collective(node.op)) continue;
    hlo::ReplicaGroups groups = hlo::CollectiveInts::decode(node.ints).groups;
    if (std::find(replica_groups_.begin(), replica_groups_.end(), groups) ==
        replica_groups_.end()) {
      replica_groups_.push_back(std::move(groups));
    }
  }
  if (replica_groups_.empty()) {
    model_ = new nrt::LoadedModel(nrt::LoadedModel::load(neff, core_of(device)));
  } else {
    const auto [id, count] = global_device();
    NEURON_CHECK(count > 0, kInvalid,
                 "a program with collectives needs torch.distributed.init_process_group()");
    model_ =
        new nrt::LoadedModel(nrt::LoadedModel::load_collectives(neff, core_of(device), id, count));
  }
  std::lock_guard lock(registry().mutex);
  registry().programs.insert(this);
}

Program::~Program() {
  if (in_bad_fork()) return;
  {
    std::lock_guard lock(registry().mutex);
    registry().programs.erase(this);
  }
  delete spare_.load();
  while (idle_ != nullptr) delete std::exchange(idle_, idle_->next);
  delete model_;
}

Program::Frame* Program::make_frame() const {
  auto frame = std::make_unique<Frame>();
  frame->slots.resize(ports_.size());
  if (is_simulator_) {
    const nrt::Api& api = nrt::api();
    for (size_t i = 0; i < ports_.size(); ++i) {
      NRT_CHECK(api.nrt_tensor_allocate_empty(ports_[i].name.c_str(), &frame->slots[i].tensor),
                "making a tensor handle for ", ports_[i].name);
      add_to_set(*frame, i, frame->slots[i].tensor);
    }
  }
  if (scalar_count_ > 0) {
    const size_t bytes = scalar_count_ * sizeof(ScalarSlot);
    frame->scalar_block.resize(scalar_count_);
    if (is_simulator_) {
      frame->scalars = nrt::Tensor::empty("scalars");
      frame->scalars.attach(frame->scalar_block.data(), bytes);
    } else {
      frame->scalars = nrt::Tensor::allocate(core_of(device_), bytes, "scalars");
    }
    frame->inputs.add("scalars", frame->scalars);
  }
  return frame.release();
}

Program::Frame* Program::acquire_frame() const {
  if (Frame* frame = spare_.exchange(nullptr, std::memory_order_acquire)) [[likely]] {
    return frame;
  }
  {
    std::lock_guard lock(idle_lock_);
    if (idle_ != nullptr) return std::exchange(idle_, idle_->next);
  }
  return make_frame();
}

void Program::return_frame(Frame* frame) const noexcept {
  frame = spare_.exchange(frame, std::memory_order_acq_rel);
  if (frame == nullptr) [[likely]] {
    return;
  }
  std::lock_guard lock(idle_lock_);
  frame->next = idle_;
  idle_ = frame;
}

// The simulator's device memory is host memory, so a tensor can be pointed at any address. A real
// device wants a slice of the tensor that owns the memory.
void Program::bind(Frame& frame, size_t port, const Buffer& buffer) const {
  const nrt::Api& api = nrt::api();
  Frame::Slot& slot = frame.slots[port];
  const size_t bytes = ports_[port].bytes;
  slot.address = Frame::kUnbound;
  if (is_simulator_) {
    void* const address = bytes == 0 ? g_nothing : buffer.address;
    NEURON_ASSERT(address != nullptr, "no memory for ", ports_[port].name);
    NRT_CHECK(api.nrt_tensor_attach_buffer(slot.tensor, address, bytes), "attaching ", Bytes(bytes),
              " to ", ports_[port].name);
  } else {
    NEURON_ASSERT(buffer.block != nullptr, "no device memory for ", ports_[port].name);
    const DeviceRange range = range_of(buffer.block, buffer.address, bytes);
    nrt_tensor_t* slice = nullptr;
    NRT_CHECK(api.nrt_tensor_allocate_slice(static_cast<nrt_tensor_t*>(range.handle), range.offset,
                                            bytes, ports_[port].name.c_str(), &slice),
              "slicing ", Bytes(bytes), " for ", ports_[port].name);
    std::swap(slot.tensor, slice);  // The old one must outlive its place in the set.
    add_to_set(frame, port, slot.tensor);
    if (slice != nullptr) api.nrt_tensor_free(&slice);
  }
  slot.address = buffer.address;
}

void Program::add_to_set(Frame& frame, size_t port, nrt_tensor_t* tensor) const {
  nrt_tensor_set_t* set = port < parameter_count_ ? frame.inputs.get() : frame.outputs.get();
  NRT_CHECK(nrt::api().nrt_add_tensor_to_tensor_set(set, ports_[port].name.c_str(), tensor),
            "adding ", ports_[port].name, " to a tensor set");
}

NRT_STATUS Program::run(std::span<const Buffer> parameters, std::span<const ScalarSlot> scalars,
                        std::span<const Buffer> results, const char* op) const {
  NEURON_ASSERT(parameters.size() == parameter_count_ && scalars.size() == scalar_count_ &&
                    parameters.size() + results.size() == ports_.size(),
                "a program of ", parameter_count_, " parameters, ", scalar_count_, " scalars and ",
                ports_.size() - parameter_count_, " results was given ", parameters.size(), ", ",
                scalars.size(), " and ", results.size());
  g_launches.fetch_add(1, std::memory_order_relaxed);
  Frame* const frame = acquire_frame();
  struct Return {
    const Program* program;
    Frame* frame;
    ~Return() { program->return_frame(frame); }
  } give_back{this, frame};

  Frame::Slot* slot = frame->slots.data();
  for (size_t i = 0; i < parameters.size(); ++i, ++slot) {
    if (slot->address != parameters[i].address) bind(*frame, i, parameters[i]);
  }
  for (size_t i = 0; i < results.size(); ++i, ++slot) {
    if (slot->address != results[i].address) bind(*frame, parameter_count_ + i, results[i]);
  }
  if (scalar_count_ > 0) {
    if (is_simulator_) {
      std::memcpy(frame->scalar_block.data(), scalars.data(), scalars.size_bytes());
    } else {
      frame->scalars.write(scalars.data(), 0, scalars.size_bytes());
    }
  }
  if (dump_ != nullptr && dump_->claim_run()) [[unlikely]] {
    return run_and_dump(*frame, parameters, scalars, results, op);
  }
  return model_->try_execute(frame->inputs, frame->outputs);
}

NRT_STATUS Program::run_and_dump(const Frame& frame, std::span<const Buffer> parameters,
                                 std::span<const ScalarSlot> scalars,
                                 std::span<const Buffer> results, const char* op) const {
  std::vector<size_t> bytes;
  for (const Port& port : ports_) bytes.push_back(port.bytes);
  const std::span<const size_t> all = bytes;
  NEURON_CHECK(is_simulator_, kUnsupported,
               "TORCH_NEURONX_DUMP_DATA reads device memory as host memory, which only the "
               "simulator allows; unset it");
  dump_->write_inputs(parameters, all.first(parameter_count_), scalars);
  const NRT_STATUS status = model_->try_execute(frame.inputs, frame.outputs);
  if (status == NRT_SUCCESS) dump_->write_outputs(results, all.subspan(parameter_count_));
  dump_->write_op(op);
  return status;
}

std::string Program::signature() const {
  std::string text = "(";
  const char* separator = "";
  for (const hlo::Type& type : types_) {
    text += separator + to_string(type);
    separator = ", ";
  }
  return internal::join(text, ") on neuron:", device_);
}

void Program::raise_failure(NRT_STATUS status, const char* op) const {
  nrt::raise_status(status, std::string(op) + signature());
}

void Program::drop_cached_bindings() const noexcept {
  if (is_simulator_) return;  // Attached memory is only borrowed.
  Frame* frames = spare_.exchange(nullptr);
  {
    std::lock_guard lock(idle_lock_);
    if (frames != nullptr) {
      frames->next = std::exchange(idle_, nullptr);
    } else {
      frames = std::exchange(idle_, nullptr);
    }
  }
  while (frames != nullptr) delete std::exchange(frames, frames->next);
}

void run_program(const Program& program, std::span<const Buffer> parameters,
                 std::span<const ScalarSlot> scalars, std::span<const Buffer> results,
                 const char* op, int64_t stream) {
  const bool traced = tracing_launches.load(std::memory_order_relaxed);
  const int64_t begin = traced ? trace_clock() : 0;
  NRT_STATUS status = program.run(parameters, scalars, results, op);
  if (status == NRT_RESOURCE) {
    // The program could not get its scratch memory, so it has not started.
    empty_cache();
    status = program.run(parameters, scalars, results, op);
  }
  if (status != NRT_SUCCESS) {
    // A failed collective has told the others itself.
    if (!program.replica_groups().empty() && status != NRT_EXEC_HW_ERR_COLLECTIVES) {
      abandon_groups(program.replica_groups(), std::string(op) + " has failed");
    }
    program.raise_failure(status, op);
  }
  if (traced) [[unlikely]] {
    note_launch({op, LaunchRecord::Kind::Program, program.device(), stream, begin, trace_clock(), 0,
                 launch_correlation()});
  }
}

void drop_cached_bindings() noexcept {
  std::lock_guard lock(registry().mutex);
  for (const Program* program : registry().programs) program->drop_cached_bindings();
}

uint64_t launch_count() noexcept { return g_launches.load(std::memory_order_relaxed); }

void launch(int device, int64_t stream, const ProgramRef& program,
            std::span<const Buffer> parameters, std::span<const ScalarSlot> scalars,
            std::span<const Buffer> results, const char* op) {
  if (is_shut_down() || in_bad_fork()) [[unlikely]] {
    check_accepting();
  }
  // Here, where the ranks' order is the program's own.
  if (!program->replica_groups().empty()) [[unlikely]] {
    prepare_groups(program->replica_groups());
  }
  StreamState& state = stream_state(device, stream);
  if (state.is_captured()) [[unlikely]] {
    return record_launch(state, program, parameters, scalars, results, op);
  }
  if (runs_here()) {
    if (!state.is_poisoned()) [[likely]] {
      try {
        run_program(*program, parameters, scalars, results, op, stream);
        return;
      } catch (...) {
        if (is_blocking()) throw;
        store_current_exception(state, op);
      }
    } else {
      abandon_groups(program->replica_groups(), kSkipped);
    }
  } else {
    Task task;
    task.state = &state;
    task.op = op;
    task.stream = stream;
    task.program = program;
    task.parameter_count = parameters.size();
    task.buffers.reserve(parameters.size() + results.size());
    for (const std::span<const Buffer> buffers : {parameters, results}) {
      for (const Buffer& buffer : buffers) {
        task.buffers.push_back(buffer);
        // Blocks of this stream are reused in its order only; others must be held.
        Block* const block = buffer.block;
        if (block != nullptr && (block->stream != stream || device_of(block) != device)) {
          retain(block);
          task.blocks.push_back(block);
        }
      }
    }
    task.scalars.append(scalars.begin(), scalars.end());
    submit(std::move(task));
  }
  if (is_blocking()) [[unlikely]] {
    synchronize_stream(device, stream);
  }
}

}  // namespace neuron::runtime
