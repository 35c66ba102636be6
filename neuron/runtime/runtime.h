#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "neuron/base/dtype.h"
#include "neuron/hlo/module.h"

// What the torch layers (aten, dynamo, c10d) see of the runtime. Nothing here knows torch.
namespace neuron::runtime {

// --- Devices
// --------------------------------------------------------------------------------------

/// Logical NeuronCores visible to this process. Cheap, never throws, does not open the runtime.
int device_count() noexcept;
/// Opens the NRT and device `index` if needed. Throws Error(kDevice), or, in a forked child of an
/// initialised parent, an Error that asks for the spawn start method.
void ensure_device(int index);
bool is_initialized() noexcept;
/// This process was forked after its parent had opened the runtime.
bool in_bad_fork() noexcept;

struct DeviceProperties {
  std::string name;          // "trn2", "trn3"
  int64_t total_memory = 0;  // Bytes of HBM of the logical core
  int lnc = 2;
};
DeviceProperties device_properties(int index);

// --- Memory
// ---------------------------------------------------------------------------------------

/// One allocated piece of device memory, reference counted: tensors hold one reference through
/// their DataPtr, queued work holds others. Freed to its stream's pool when the count drops to 0.
class Block;
void retain(Block* block) noexcept;
void release(Block* block) noexcept;

/// Owning reference.
class BlockRef {
 public:
  BlockRef() = default;
  explicit BlockRef(Block* block) : block_(block) {  // Takes over one reference.
  }
  BlockRef(const BlockRef& other) : block_(other.block_) {
    if (block_ != nullptr) retain(block_);
  }
  BlockRef(BlockRef&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  BlockRef& operator=(BlockRef other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~BlockRef() {
    if (block_ != nullptr) release(block_);
  }
  Block* get() const { return block_; }
  Block* detach() { return std::exchange(block_, nullptr); }

 private:
  Block* block_ = nullptr;
};

void* address_of(const Block* block) noexcept;
size_t size_of(const Block* block) noexcept;

/// One counter of the allocator, as torch's memory_stats has it.
struct Stat {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  void increase(int64_t amount) {
    current += amount;
    allocated += amount;
    if (current > peak) peak = current;
  }
  void decrease(int64_t amount) {
    current -= amount;
    freed += amount;
  }
};

struct MemoryStats {
  // Index 0: all, 1: small pool, 2: large pool.
  Stat allocation[3], segment[3], active[3], inactive_split[3];
  Stat allocated_bytes[3], reserved_bytes[3], active_bytes[3], inactive_split_bytes[3],
      requested_bytes[3];
  int64_t num_alloc_retries = 0, num_ooms = 0, num_sync_all_streams = 0, num_device_alloc = 0,
          num_device_free = 0;
};

/// Allocates from the device's caching allocator, for use on `stream`. Throws Error(kOutOfMemory)
/// with request, used, reserved, limit and advice after a flush and a retry. bytes == 0 gives null.
BlockRef allocate(int device, size_t bytes, int64_t stream);
/// The block is also used on `stream`: it is not reused before that stream has passed this point.
void record_stream(Block* block, int64_t stream);
void empty_cache();
MemoryStats memory_stats(int device);
void reset_peak_stats(int device);
void reset_accumulated_stats(int device);
/// {free, total} bytes of HBM.
std::pair<size_t, size_t> memory_info(int device);
void set_memory_fraction(int device, double fraction);

struct BlockInfo {
  uint64_t address;
  size_t size, requested;
  bool allocated, active;
};
struct SegmentInfo {
  int device;
  uint64_t address;
  size_t total_size;
  int64_t stream;
  bool large;
  std::vector<BlockInfo> blocks;
};
/// Every segment with its blocks, in address order.
std::vector<SegmentInfo> memory_snapshot();

/// Pinned host memory: a caching allocator over page-aligned regions.
void* allocate_pinned(size_t bytes);
void free_pinned(void* address) noexcept;
/// Interior pointers count. Lock-light.
bool is_pinned(const void* address) noexcept;
void empty_pinned_cache();

// --- Streams and events
// ---------------------------------------------------------------------------

/// Stream 0 is a device's default stream. Ids are per device.
int64_t new_stream(int device, int priority);
int64_t pooled_stream(int device, bool high_priority);
bool query_stream(int device, int64_t stream);
/// Waits; throws the stream's first deferred error (once), naming op and shapes.
void synchronize_stream(int device, int64_t stream);
void synchronize_device(int device);
/// Inline, what has been launched has run: raises the stream's deferred error, if there is one, so
/// that it appears at the call that caused it. Does nothing where an executor thread runs the work.
void raise_if_run(int device, int64_t stream);

class Event;
Event* create_event(bool timing);
void destroy_event(Event* event) noexcept;
void record_event(Event* event, int device, int64_t stream);
void stream_wait_event(int device, int64_t stream, Event* event);
bool query_event(Event* event);
void synchronize_event(Event* event);
/// Milliseconds between two completed timing events, host clock.
double elapsed_ms(Event* start, Event* end);

// --- Programs
// -------------------------------------------------------------------------------------

/// A compiled and loaded program. Immutable; shared by all threads.
class Program;
using ProgramRef = std::shared_ptr<const Program>;

/// Compiles (or finds by fingerprint) and loads. Throws what the compiler throws.
ProgramRef load_program(int device, const hlo::Module& module);

/// A 16-byte run-time scalar: i64/u64/pred in `integer`, f64/c128 in `real`.
union ScalarSlot {
  struct {
    int64_t integer, unused;
  };
  double real[2];
};

/// A flat device buffer: address and the block that owns it (null: host memory that the caller
/// keeps alive until the stream has passed).
struct Buffer {
  void* address = nullptr;
  Block* block = nullptr;
};

/// Enqueues one run. `op` must be a string that lives forever (an operator name); errors name it
/// and the program's shapes. In inline mode the program has run when this returns.
void launch(int device, int64_t stream, const ProgramRef& program,
            std::span<const Buffer> parameters, std::span<const ScalarSlot> scalars,
            std::span<const Buffer> results, const char* op);

/// Transfers of `bytes` in stream order through the NRT. `wait`: return only when done (host memory
/// may be reused or read); otherwise the host memory must be pinned and stay untouched until the
/// stream has passed.
void write(int device, int64_t stream, Buffer destination, const void* source, size_t bytes,
           bool wait);
void read(int device, int64_t stream, void* destination, Buffer source, size_t bytes, bool wait);
/// Device to device, also across devices; flat bytes; ranges must not overlap.
void copy(int device, int64_t stream, Buffer destination, Buffer source, size_t bytes);

/// Enqueues host work in stream order (transfers, fallback write-backs). The blocks are kept.
void enqueue(int device, int64_t stream, std::function<void()> work, std::span<Block* const> blocks,
             const char* op);

/// Everything runs on the calling thread (up to 3 cores, or by TORCH_NEURONX_EXECUTOR=inline).
bool is_inline() noexcept;

struct RuntimeStats {
  uint64_t programs_built = 0;  // load_program misses
  uint64_t kernels_compiled = 0;
  uint64_t launches = 0;
  uint64_t disk_hits = 0;
};
RuntimeStats runtime_stats();

/// Hands the torch side's library kernels to the NRT library, if it is our simulator (else no-op).
struct LibraryKernel;  // nrtsim/library.h: nrtsim_lib_kernel
void register_library_kernel(const char* name, const void* nrtsim_lib_kernel);

/// Drains all streams and refuses new work; called at interpreter exit.
void shutdown() noexcept;

}  // namespace neuron::runtime
