#include "neuron/c10d/gloo_communicator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "neuron/aten/tensor.h"
#include "neuron/base/error.h"
#include "neuron/c10d/host_reduction.h"
#include "neuron/c10d/workers.h"

namespace neuron::distributed {
namespace {

using runtime::Collective;
using runtime::CollectiveKind;
using runtime::Piece;
using Milliseconds = std::chrono::milliseconds;

class GlooOperation final : public runtime::Operation {
 public:
  GlooOperation(std::string what, uint64_t sequence)
      : what_(std::move(what)), sequence_(sequence) {}

  bool done() const override {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  std::exception_ptr error() const override {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  void wait(std::optional<Milliseconds> timeout) override {
    std::unique_lock lock(mutex_);
    if (!timeout.has_value()) {
      ended_.wait(lock, [&] { return done_; });
    } else if (!ended_.wait_for(lock, *timeout, [&] { return done_; })) {
      raise(ErrorKind::kDevice, what_, ": not done after ", timeout->count(),
            " ms; a rank has not called it or is gone");
    }
    if (error_ != nullptr) std::rethrow_exception(error_);
  }
  void order_before(int, int64_t) override { wait(std::nullopt); }
  void on_done(std::function<void()> callback) override {
    {
      const std::lock_guard lock(mutex_);
      if (!done_) {
        callbacks_.push_back(std::move(callback));
        return;
      }
    }
    callback();
  }
  uint64_t sequence() const override { return sequence_; }
  int source_rank() const override {
    const std::lock_guard lock(mutex_);
    return source_;
  }

  void finish(std::exception_ptr error, int source = -1) {
    std::vector<std::function<void()>> callbacks;
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
      error_ = std::move(error);
      source_ = source;
      callbacks = std::move(callbacks_);
      ended_.notify_all();
    }
    for (const auto& callback : callbacks) callback();
  }

  const std::string& what() const { return what_; }

 private:
  const std::string what_;
  const uint64_t sequence_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  // Guarded by mutex_:
  bool done_ = false;
  int source_ = -1;
  std::exception_ptr error_;
  std::vector<std::function<void()>> callbacks_;
};

at::Tensor bytes_on_host(size_t bytes) {
  return at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte));
}

int64_t total(const std::vector<Piece>& pieces) {
  int64_t count = 0;
  for (const Piece& piece : pieces) count += piece.count;
  return count;
}

/// Pieces as one host tensor of bytes, and back.
at::Tensor read_pieces(const std::vector<Piece>& pieces, size_t size, int device, int64_t stream) {
  at::Tensor host = bytes_on_host(static_cast<size_t>(total(pieces)) * size);
  auto* at = static_cast<char*>(host.mutable_data_ptr());
  for (const Piece& piece : pieces) {
    const size_t bytes = static_cast<size_t>(piece.count) * size;
    if (bytes > 0) runtime::read(device, stream, at, piece.buffer, bytes, /*wait=*/true);
    at += bytes;
  }
  return host;
}

void write_pieces(const std::vector<Piece>& pieces, size_t size, const at::Tensor& host, int device,
                  int64_t stream) {
  const auto* at = static_cast<const char*>(host.const_data_ptr());
  for (const Piece& piece : pieces) {
    const size_t bytes = static_cast<size_t>(piece.count) * size;
    if (bytes > 0) runtime::write(device, stream, piece.buffer, at, bytes, /*wait=*/true);
    at += bytes;
  }
}

std::vector<int64_t> byte_counts(const std::vector<Piece>& pieces, size_t size) {
  std::vector<int64_t> counts;
  for (const Piece& piece : pieces) counts.push_back(piece.count * static_cast<int64_t>(size));
  return counts;
}

/// Keeps the blocks under pieces alive.
struct Kept {
  explicit Kept(const std::vector<Piece>& pieces) {
    for (const Piece& piece : pieces) {
      if (piece.buffer.block == nullptr) continue;
      runtime::retain(piece.buffer.block);
      blocks.emplace_back(piece.buffer.block);
    }
  }
  std::vector<runtime::BlockRef> blocks;
};

/// What all ranks must agree on.
struct Header {
  int64_t kind, dtype, reduction, root, count;
};

class GlooCommunicator final : public runtime::Communicator,
                               public std::enable_shared_from_this<GlooCommunicator> {
 public:
  GlooCommunicator(c10::intrusive_ptr<::c10d::Backend> gloo, runtime::CommunicatorOptions options)
      : gloo_(std::move(gloo)), options_(std::move(options)) {
    thread_ = std::thread([this] { run_collectives(); });
  }

  ~GlooCommunicator() override { stop(); }

  runtime::OperationRef start(Collective collective, int device, int64_t stream,
                              std::optional<Milliseconds> timeout) override {
    check_open();
    const size_t size = size_of(collective.dtype);
    Job job;
    job.device = device;
    job.timeout = timeout.value_or(options_.timeout);
    job.host = read_pieces(collective.inputs, size, device, stream);
    job.kept = std::make_shared<Kept>(collective.outputs);
    job.operation = std::make_shared<GlooOperation>(
        internal::join(collective.name, " #", sequence_ + 1, " of group '", options_.group, "'"),
        sequence_ + 1);
    job.collective = std::move(collective);
    runtime::OperationRef operation = job.operation;
    const std::lock_guard lock(mutex_);
    ++sequence_;
    jobs_.push_back(std::move(job));
    wake_.notify_one();
    return operation;
  }

  runtime::OperationRef send(Piece piece, DType dtype, int destination, int64_t tag, int device,
                             int64_t stream) override {
    check_open();
    std::vector<at::Tensor> host = {read_pieces({piece}, size_of(dtype), device, stream)};
    auto operation = std::make_shared<GlooOperation>(
        internal::join("send to rank ", global(destination), ", group '", options_.group, "'"), 0);
    c10::intrusive_ptr<::c10d::Work> work = gloo_->send(host, destination, static_cast<int>(tag));
    run_soon([self = shared_from_this(), operation, work, host] {
      operation->finish(self->guarded(operation->what(), [&] { work->wait(self->timeout()); }));
    });
    return operation;
  }

  runtime::OperationRef recv(Piece piece, DType dtype, int source, int64_t tag, int device,
                             int64_t) override {
    check_open();
    const size_t size = size_of(dtype);
    std::vector<at::Tensor> host = {bytes_on_host(static_cast<size_t>(piece.count) * size)};
    auto operation = std::make_shared<GlooOperation>(
        internal::join("recv from ", source < 0 ? "any rank" : "rank ",
                       source < 0 ? std::string() : std::to_string(global(source)), ", group '",
                       options_.group, "'"),
        0);
    const c10::intrusive_ptr<::c10d::Work> work =
        source < 0 ? gloo_->recvAnysource(host, static_cast<int>(tag))
                   : gloo_->recv(host, source, static_cast<int>(tag));
    auto kept = std::make_shared<Kept>(std::vector<Piece>{piece});
    run_soon([self = shared_from_this(), operation, work, host, piece, size, device, source, kept] {
      int sender = source;
      const std::exception_ptr error = self->guarded(operation->what(), [&] {
        work->wait(self->timeout());
        if (sender < 0) sender = work->sourceRank();
        write_pieces({piece}, size, host[0], device, side_stream(device));
      });
      operation->finish(error, sender);
    });
    return operation;
  }

  void set_timeout(Milliseconds timeout) override {
    {
      const std::lock_guard lock(mutex_);
      options_.timeout = timeout;
    }
    gloo_->setTimeout(timeout);
  }

  uint64_t sequence() const override {
    const std::lock_guard lock(mutex_);
    return sequence_;
  }

  void abort(const std::string& reason) override {
    {
      const std::lock_guard lock(mutex_);
      closed_ = reason;
    }
    gloo_->abort();
  }

  void close() override {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [&] { return jobs_.empty() && !busy_; });
    closed_ = "the group has been destroyed";
  }

 private:
  struct Job {
    Collective collective;
    at::Tensor host;  // All inputs
    int device = 0;
    Milliseconds timeout;
    std::shared_ptr<GlooOperation> operation;
    std::shared_ptr<Kept> kept;
  };

  static int64_t side_stream(int device) { return runtime::pooled_stream(device, false); }

  int global(int rank) const {
    return options_.global_ranks.empty() ? rank : options_.global_ranks[static_cast<size_t>(rank)];
  }

  Milliseconds timeout() const {
    const std::lock_guard lock(mutex_);
    return options_.timeout;
  }

  void check_open() const {
    const std::lock_guard lock(mutex_);
    NEURON_CHECK(closed_.empty(), kDevice, "group '", options_.group, "': ", closed_);
  }

  /// The error that `body` ends with, worded for the user; null if none.
  template <typename Body>
  std::exception_ptr guarded(const std::string& what, Body&& body) {
    try {
      body();
      return nullptr;
    } catch (const Error& error) {
      return std::make_exception_ptr(error);
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      return std::make_exception_ptr(
          Error(ErrorKind::kDevice,
                internal::join("rank ", global(options_.rank), ": ", what, " failed: ",
                               closed_.empty() ? std::string() : closed_ + "; ", error.what())));
    }
  }

  void run_collectives() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      Job job = std::move(jobs_.front());
      jobs_.pop_front();
      busy_ = true;
      lock.unlock();
      job.operation->finish(guarded(job.operation->what(), [&] { run(job); }));
      job = Job();
      lock.lock();
      busy_ = false;
      idle_.notify_all();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      wake_.notify_one();
    }
    if (thread_.get_id() == std::this_thread::get_id()) {
      thread_.detach();  // The last reference was a job's.
    } else {
      thread_.join();
    }
  }

  // --- On the thread -----------------------------------------------------------------------------

  void wait(const c10::intrusive_ptr<::c10d::Work>& work, const Job& job) {
    work->wait(job.timeout);
  }

  /// Pieces of any sizes, one from each rank to each.
  at::Tensor exchange(at::Tensor input, std::vector<int64_t> sends, std::vector<int64_t> receives,
                      const Job& job) {
    int64_t bytes = 0;
    for (const int64_t count : receives) bytes += count;
    at::Tensor output = bytes_on_host(static_cast<size_t>(bytes));
    ::c10d::AllToAllOptions options;
    options.timeout = job.timeout;
    wait(gloo_->alltoall_base(output, input, receives, sends, options), job);
    return output;
  }

  void check_agreement(const Job& job) {
    const Collective& all = job.collective;
    const bool counted =
        all.kind == CollectiveKind::kBroadcast || all.kind == CollectiveKind::kAllReduce ||
        all.kind == CollectiveKind::kReduce || all.kind == CollectiveKind::kReduceScatter;
    const bool reduces = counted && all.kind != CollectiveKind::kBroadcast;
    const Header mine = {
        static_cast<int64_t>(all.kind), static_cast<int64_t>(all.dtype),
        reduces ? static_cast<int64_t>(all.reduction) : 0, all.root,
        counted ? total(all.kind == CollectiveKind::kBroadcast ? all.outputs : all.inputs) : 0};
    const auto ranks = static_cast<size_t>(options_.size);
    at::Tensor host = bytes_on_host(sizeof(Header) * ranks);
    for (size_t rank = 0; rank < ranks; ++rank) {
      std::memcpy(static_cast<Header*>(host.mutable_data_ptr()) + rank, &mine, sizeof(Header));
    }
    const std::vector<int64_t> counts(ranks, sizeof(Header));
    const at::Tensor headers = exchange(host, counts, counts, job);
    for (size_t rank = 0; rank < ranks; ++rank) {
      Header theirs;
      std::memcpy(&theirs, static_cast<const Header*>(headers.const_data_ptr()) + rank,
                  sizeof(Header));
      NEURON_CHECK(std::memcmp(&mine, &theirs, sizeof(Header)) == 0, kDevice, "rank ",
                   global(options_.rank), ": ", job.operation->what(), " does not match: rank ",
                   global(options_.rank), " asks for kind ", mine.kind, ", ",
                   name_of(static_cast<DType>(mine.dtype)), ", reduction ", mine.reduction,
                   ", root ", mine.root, ", ", mine.count, " elements; rank ",
                   global(static_cast<int>(rank)), " for kind ", theirs.kind, ", ",
                   name_of(static_cast<DType>(theirs.dtype)), ", reduction ", theirs.reduction,
                   ", root ", theirs.root, ", ", theirs.count, " elements");
    }
  }

  void run(Job& job) {
    check_agreement(job);
    const Collective& all = job.collective;
    const size_t size = size_of(all.dtype);
    const auto ranks = static_cast<size_t>(options_.size);
    const auto own = static_cast<size_t>(options_.rank);
    const auto root = static_cast<size_t>(all.root);
    const bool is_root = own == root;
    const std::vector<int64_t> nothing(ranks, 0);
    std::vector<int64_t> sends = nothing;
    std::vector<int64_t> receives = nothing;
    at::Tensor result;
    switch (all.kind) {
      case CollectiveKind::kBarrier:
        return;
      case CollectiveKind::kBroadcast: {
        std::vector<at::Tensor> whole = {
            is_root ? job.host : bytes_on_host(static_cast<size_t>(total(all.outputs)) * size)};
        if (whole[0].numel() > 0) {
          ::c10d::BroadcastOptions options;
          options.rootRank = all.root;
          options.timeout = job.timeout;
          wait(gloo_->broadcast(whole, options), job);
        }
        result = whole[0];
        break;
      }
      case CollectiveKind::kAllGather:
        std::fill(sends.begin(), sends.end(), job.host.numel());
        result = exchange(repeat(job.host), sends, byte_counts(all.outputs, size), job);
        break;
      case CollectiveKind::kGather:
        sends[root] = job.host.numel();
        if (is_root) receives = byte_counts(all.outputs, size);
        result = exchange(job.host, sends, receives, job);
        break;
      case CollectiveKind::kScatter:
        if (is_root) sends = byte_counts(all.inputs, size);
        receives[root] = all.outputs[0].count * static_cast<int64_t>(size);
        result = exchange(job.host, sends, receives, job);
        break;
      case CollectiveKind::kAllToAll:
        result =
            exchange(job.host, byte_counts(all.inputs, size), byte_counts(all.outputs, size), job);
        break;
      case CollectiveKind::kReduceScatter:
        std::fill(receives.begin(), receives.end(),
                  all.outputs[0].count * static_cast<int64_t>(size));
        result = reduce_on_host(exchange(job.host, byte_counts(all.inputs, size), receives, job),
                                options_.size, all.dtype, all.reduction, all.factor);
        break;
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kReduce:
        result = all_reduce(job, size);
        break;
    }
    write_pieces(all.outputs, size, result, job.device, side_stream(job.device));
  }

  at::Tensor repeat(const at::Tensor& bytes) const { return bytes.repeat({options_.size}); }

  /// Each rank reduces its share, then all gather the shares.
  at::Tensor all_reduce(const Job& job, size_t size) {
    const Collective& all = job.collective;
    const int64_t count = total(all.inputs);
    const int64_t ranks = options_.size;
    std::vector<int64_t> shares;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      shares.push_back((count * (rank + 1) / ranks - count * rank / ranks) *
                       static_cast<int64_t>(size));
    }
    const int64_t own = shares[static_cast<size_t>(options_.rank)];
    const std::vector<int64_t> own_shares(static_cast<size_t>(ranks), own);
    const at::Tensor reduced = reduce_on_host(exchange(job.host, shares, own_shares, job),
                                              options_.size, all.dtype, all.reduction, all.factor);
    return exchange(repeat(reduced), own_shares, shares, job);
  }

  const c10::intrusive_ptr<::c10d::Backend> gloo_;
  runtime::CommunicatorOptions options_;
  std::thread thread_;
  mutable std::mutex mutex_;
  std::condition_variable wake_, idle_;
  // Guarded by mutex_:
  std::deque<Job> jobs_;
  bool busy_ = false;
  bool stopping_ = false;
  uint64_t sequence_ = 0;
  std::string closed_;  // Why; empty while open
};

}  // namespace

std::shared_ptr<runtime::Communicator> make_gloo_communicator(
    c10::intrusive_ptr<::c10d::Backend> gloo, const runtime::CommunicatorOptions& options) {
  return std::make_shared<GlooCommunicator>(std::move(gloo), options);
}

}  // namespace neuron::distributed
