#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "neuron/base/error.h"
#include "neuron/nrt/loader.h"
#include "neuron/nrt/status.h"
#include "neuron/runtime/capture_record.h"
#include "neuron/runtime/device.h"
#include "neuron/runtime/executor.h"
#include "neuron/runtime/launch_trace.h"
#include "neuron/runtime/runtime.h"
#include "neuron/runtime/stream.h"

// Bytes between host and device and between devices. The NRT moves them, so device memory need not
// be addressable from the host; buffers without a block are host memory.
namespace neuron::runtime {
namespace {

constexpr size_t kStaging = size_t{4} << 20;

// Where the bytes are: in an NRT tensor, or in host memory if `handle` is null. Device memory of
// the simulator is host memory, so only a real device needs the search for an address without a
// block.
DeviceRange locate(const Buffer& buffer, size_t bytes) {
  if (buffer.block != nullptr) return range_of(buffer.block, buffer.address, bytes);
  if (nrt::api().is_simulator) return {};
  return find_range(buffer.address);
}

nrt_tensor_t* tensor_of(const DeviceRange& range) {
  return static_cast<nrt_tensor_t*>(range.handle);
}

void write_now(const Buffer& destination, const void* source, size_t bytes) {
  const DeviceRange range = locate(destination, bytes);
  if (range.handle == nullptr) {
    std::memcpy(destination.address, source, bytes);
    return;
  }
  NRT_CHECK(nrt::api().nrt_tensor_write(tensor_of(range), source, range.offset, bytes), "copying ",
            Bytes(bytes), " from the host to the device");
}

void read_now(void* destination, const Buffer& source, size_t bytes) {
  const DeviceRange range = locate(source, bytes);
  if (range.handle == nullptr) {
    std::memcpy(destination, source.address, bytes);
    return;
  }
  NRT_CHECK(nrt::api().nrt_tensor_read(tensor_of(range), destination, range.offset, bytes),
            "copying ", Bytes(bytes), " from the device to the host");
}

// The NRT copies within one core only; between cores the bytes take the way over the host.
void copy_between_devices(const Buffer& destination, const Buffer& source, size_t bytes) {
  struct Staging {
    void* memory;
    explicit Staging(size_t size) : memory(allocate_pinned(size)) {}
    ~Staging() { free_pinned(memory); }
  } staging(std::min(bytes, kStaging));
  for (size_t done = 0; done < bytes; done += kStaging) {
    const size_t piece = std::min(bytes - done, kStaging);
    const auto at = [done](const Buffer& buffer) {
      return Buffer{static_cast<std::byte*>(buffer.address) + done, buffer.block};
    };
    read_now(staging.memory, at(source), piece);
    write_now(at(destination), staging.memory, piece);
  }
}

void copy_now(const Buffer& destination, const Buffer& source, size_t bytes) {
  const DeviceRange from = locate(source, bytes);
  const DeviceRange to = locate(destination, bytes);
  if (to.handle == nullptr) {
    read_now(destination.address, source, bytes);
  } else if (from.handle == nullptr) {
    write_now(destination, source.address, bytes);
  } else if (destination.block != nullptr && source.block != nullptr &&
             device_of(destination.block) != device_of(source.block)) {
    copy_between_devices(destination, source, bytes);
  } else {
    NRT_CHECK(
        nrt::api().nrt_tensor_copy(tensor_of(from), from.offset, tensor_of(to), to.offset, bytes),
        "copying ", Bytes(bytes), " on the device");
  }
}

// Tells a profiler, if there is one, how long a copy took.
class Timed {
 public:
  Timed(LaunchRecord::Kind kind, const char* op, int device, int64_t stream, size_t bytes)
      : active_(tracing_launches.load(std::memory_order_relaxed)) {
    if (active_)
      record_ = {op, kind, device, stream, trace_clock(), 0, bytes, launch_correlation()};
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  ~Timed() {
    if (!active_) return;
    record_.end = trace_clock();
    note_launch(record_);
  }

 private:
  const bool active_;
  LaunchRecord record_{};
};

// Runs `work` in stream order. `wait`: raises the stream's deferred error, or the work's own.
template <typename Work>
void transfer(int device, int64_t stream, bool wait, std::initializer_list<Block*> blocks,
              const char* op, Work work) {
  check_accepting();
  StreamState& state = stream_state(device, stream);
  if (state.is_captured()) [[unlikely]] {
    if (wait) refuse_while_capturing(state, op);
    return record_work(state, std::move(work), {blocks.begin(), blocks.size()}, op);
  }
  if (runs_here()) {
    if (wait) raise_deferred(state);
    if (state.is_poisoned()) return;
    try {
      work();
    } catch (...) {
      if (wait || is_blocking()) throw;
      store_current_exception(state, op);
    }
    return;
  }
  Task task;
  task.state = &state;
  task.op = op;
  task.work = std::move(work);
  for (Block* block : blocks) {
    if (block == nullptr) continue;
    retain(block);
    task.blocks.push_back(block);
  }
  submit(std::move(task));
  if (wait || is_blocking()) synchronize_stream(device, stream);
}

}  // namespace

void write(int device, int64_t stream, Buffer destination, const void* source, size_t bytes,
           bool wait) {
  transfer(device, stream, wait, {destination.block}, "copy to device", [=] {
    if (bytes == 0) return;
    const Timed timed(LaunchRecord::Kind::CopyToDevice, "copy to device", device, stream, bytes);
    write_now(destination, source, bytes);
  });
}

void read(int device, int64_t stream, void* destination, Buffer source, size_t bytes, bool wait) {
  transfer(device, stream, wait, {source.block}, "copy to host", [=] {
    if (bytes == 0) return;
    const Timed timed(LaunchRecord::Kind::CopyToHost, "copy to host", device, stream, bytes);
    read_now(destination, source, bytes);
  });
}

void copy(int device, int64_t stream, Buffer destination, Buffer source, size_t bytes) {
  transfer(device, stream, false, {destination.block, source.block}, "copy on device", [=] {
    if (bytes == 0) return;
    const Timed timed(LaunchRecord::Kind::CopyOnDevice, "copy on device", device, stream, bytes);
    copy_now(destination, source, bytes);
  });
}

}  // namespace neuron::runtime
