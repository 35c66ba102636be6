#include "neuron/c10d/process_group.h"

#include <algorithm>
#include <condition_variable>
#include <numeric>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "neuron/aten/op_tracking.h"
#include "neuron/aten/tensor.h"
#include "neuron/c10d/gloo_communicator.h"
#include "neuron/c10d/recorder.h"
#include "neuron/c10d/workers.h"

namespace neuron::distributed {
namespace {

using ::c10d::Work;
using WorkRef = c10::intrusive_ptr<Work>;

GlooFactory& gloo_factory() {
  static auto* const factory = new GlooFactory;
  return *factory;
}

}  // namespace

std::shared_ptr<runtime::Communicator> meet_on_host(const c10::intrusive_ptr<::c10d::Store>& store,
                                                    const runtime::CommunicatorOptions& options) {
  runtime::Rendezvous rendezvous;
  rendezvous.set = [store](const std::string& key, const std::vector<uint8_t>& value) {
    store->set(key, value);
  };
  rendezvous.get = [store, timeout = options.timeout](const std::string& key) {
    store->wait({key}, timeout);
    return store->get(key);
  };
  return runtime::Communicator::create(rendezvous, options);
}

void set_gloo_factory(GlooFactory factory) { gloo_factory() = std::move(factory); }

struct ProcessGroupNeuron::Shared {
  using Hook = std::function<void(std::shared_ptr<::c10d::WorkInfo>)>;

  std::atomic<::c10d::ErrorType> error{::c10d::ErrorType::SUCCESS};
  std::mutex mutex;
  std::condition_variable all_ended;
  // Guarded by mutex:
  int pending = 0;
  std::shared_ptr<const Hook> hook;

  void ended() {
    const std::lock_guard lock(mutex);
    if (--pending == 0) all_ended.notify_all();
  }
};

ProcessGroupNeuron::ProcessGroupNeuron(const c10::intrusive_ptr<::c10d::Store>& store, int rank,
                                       int size, c10::intrusive_ptr<Options> options,
                                       const Launch& launch)
    : Backend(rank, size),
      options_(std::move(options)),
      launch_(launch),
      shared_(std::make_shared<Shared>()) {
  init();
  translating([&] { connect(store); });
}

void ProcessGroupNeuron::connect(const c10::intrusive_ptr<::c10d::Store>& store) {
  check_launch(launch_, rank_, size_);
  const auto& given = options_->global_ranks_in_group;
  name_ = given.empty() ? "default_pg" : options_->group_name;
  if (given.empty()) {
    global_ranks_.resize(static_cast<size_t>(size_));
    std::iota(global_ranks_.begin(), global_ranks_.end(), 0);
  } else {
    global_ranks_.assign(given.begin(), given.end());
  }
  store_ = fresh_store(store, rank_);
  std::vector<Member> members;
  if (!given.empty()) members = known_members(global_ranks_);
  if (members.empty()) {
    members = exchange_members(*store_, launch_, rank_, size_, options_->timeout, name_);
    place_rank(members, launch_, rank_);
  }
  on_one_host_ = on_one_host(members);
  is_default_ = given.empty();
  if (is_default_) {
    remember_world(std::move(members), store_, rank_);
    serve_programs(options_->timeout);
  } else {
    set_program_timeout(global_ranks_, options_->timeout);
  }

  runtime::CommunicatorOptions wanted;
  wanted.rank = rank_;
  wanted.size = size_;
  wanted.global_ranks = global_ranks_;
  wanted.group = name_;
  wanted.timeout = options_->timeout;
  if (on_one_host_) {
    communicator_ = meet_on_host(store_, wanted);
    return;
  }
  TORCH_CHECK(gloo_factory() != nullptr, "neuron: the ranks of group '", name_,
              "' are on several hosts, which takes Gloo, but "
              "this torch was built without it");
  transport_ = "gloo";
  communicator_ = make_gloo_communicator(
      gloo_factory()(c10::make_intrusive<::c10d::PrefixStore>("gloo", store_), rank_, size_,
                     options_->timeout),
      wanted);
}

ProcessGroupNeuron::~ProcessGroupNeuron() = default;

Caller ProcessGroupNeuron::caller(const char* op) const { return {op, rank_, size_, &name_}; }

int ProcessGroupNeuron::global_rank(int rank) const {
  return global_ranks_[static_cast<size_t>(rank)];
}

runtime::Communicator& ProcessGroupNeuron::communicator(const Caller& caller) const {
  TORCH_CHECK(!closed_.load(), caller, "the process group has been destroyed");
  return *communicator_;
}

// --- What every collective goes through
// -----------------------------------------------------------

WorkRef ProcessGroupNeuron::start(const Call& call, runtime::Collective collective,
                                  Staging& staging, c10::DeviceIndex device,
                                  std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs) {
  Started started;
  started.device = device;
  started.outputs = std::move(outputs);
  started.blocks_host = collective.kind == runtime::CollectiveKind::kBarrier;
  collective.name = call.op;
  translating([&] {
    claim_core(device);
    const auto timeout = call.timeout.count() > 0 ? std::optional(call.timeout) : std::nullopt;
    started.operations.push_back(
        communicator(caller(call.op))
            .start(std::move(collective), device, aten::current_stream(device), timeout));
  });
  started.sequence = started.operations[0]->sequence();
  started.copies = staging.take_copies();
  return finish(call, std::move(started), inputs, /*is_transfer=*/false);
}

WorkRef ProcessGroupNeuron::finish(const Call& call, Started started,
                                   const std::vector<at::Tensor>& inputs, bool is_transfer) {
  aten::counter_of(call.counted).native.fetch_add(1, std::memory_order_relaxed);
  Record record;
  record.group = name_;
  record.op = call.op;
  record.sequence = started.sequence;
  record.is_transfer = is_transfer;
  record.rank = rank_;
  record.timeout_ms = (call.timeout.count() > 0 ? call.timeout : options_->timeout).count();
  started.records.push_back(record_start(std::move(record), inputs, started.outputs));

  std::shared_ptr<const Shared::Hook> hook;
  {
    const std::lock_guard lock(shared_->mutex);
    ++shared_->pending;
    hook = shared_->hook;
  }
  started.on_end = [shared = shared_, hook, type = call.type, sequence = started.sequence,
                    begin = std::chrono::steady_clock::now()](const std::string& error) {
    if (!error.empty()) shared->error.store(::c10d::ErrorType::COMM_ERROR);
    if (hook == nullptr) {
      shared->ended();
      return;
    }
    const auto end = std::chrono::steady_clock::now();
    run_soon([shared, hook, type, sequence, begin, end] {
      (*hook)(std::make_shared<::c10d::WorkInfo>(type, sequence, begin, end, end - begin));
      shared->ended();
    });
  };
  WorkRef work =
      c10::make_intrusive<NeuronWork>(std::move(started), rank_, call.type, call.title, inputs);
  const std::lock_guard lock(coalescing_mutex_);
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

WorkRef ProcessGroupNeuron::as_one(::c10d::OpType type, std::vector<WorkRef> works) {
  if (works.size() == 1) return works[0];
  const c10::DeviceIndex device = aten::current_device();
  return c10::make_intrusive<GroupedWork>(std::move(works), device, rank_, type);
}

void ProcessGroupNeuron::startCoalescing() {
  const std::lock_guard lock(coalescing_mutex_);
  coalescing_ = true;
  coalesced_.clear();
}

WorkRef ProcessGroupNeuron::endCoalescing() {
  std::vector<WorkRef> works;
  {
    const std::lock_guard lock(coalescing_mutex_);
    coalescing_ = false;
    works = std::move(coalesced_);
    coalesced_.clear();
  }
  if (works.empty()) return nullptr;
  return as_one(::c10d::OpType::COALESCED, std::move(works));
}

// --- Transfers between two ranks
// ------------------------------------------------------------------

WorkRef ProcessGroupNeuron::transfer(const Call& call, std::vector<at::Tensor>& tensors, int peer,
                                     int tag) {
  const Caller who = caller(call.op);
  check_single(who, tensors.size(), "tensors");
  const at::Tensor& tensor = tensors[0];
  check_tensor(who, tensor, "tensor");
  const bool sends = call.type == ::c10d::OpType::SEND;
  if (call.type != ::c10d::OpType::RECVANYSOURCE) {
    check_rank(who, peer, sends ? "dst" : "src");
    TORCH_CHECK_VALUE(peer != rank_, who, "a rank cannot send to itself");
  }
  if (!sends) check_writable(who, tensor, "tensor");
  const c10::DeviceIndex device = tensor.device().index();
  Staging staging;
  Started started;
  started.device = device;
  started.outputs = tensors;
  translating([&] {
    claim_core(device);
    const DType type = wire_type(tensor.scalar_type());
    const int64_t stream = aten::current_stream(device);
    runtime::Communicator& all = communicator(who);
    started.operations.push_back(
        sends ? all.send(staging.input(tensor), type, peer, tag, device, stream)
              : all.recv(staging.output(tensor), type, peer, tag, device, stream));
  });
  started.sequence = transfers_.fetch_add(1) + 1;
  started.copies = staging.take_copies();
  return finish(call, std::move(started), tensors, /*is_transfer=*/true);
}

WorkRef ProcessGroupNeuron::send(std::vector<at::Tensor>& tensors, int destination, int tag) {
  return transfer({"send", "neuron:send", "c10d::send", ::c10d::OpType::SEND}, tensors, destination,
                  tag);
}

WorkRef ProcessGroupNeuron::recv(std::vector<at::Tensor>& tensors, int source, int tag) {
  return transfer({"recv", "neuron:recv", "c10d::recv_", ::c10d::OpType::RECV}, tensors, source,
                  tag);
}

WorkRef ProcessGroupNeuron::recvAnysource(std::vector<at::Tensor>& tensors, int tag) {
  return transfer({"recv_any_source", "neuron:recv_any_source", "c10d::recv_any_source_",
                   ::c10d::OpType::RECVANYSOURCE},
                  tensors, -1, tag);
}

WorkRef ProcessGroupNeuron::barrier(const ::c10d::BarrierOptions& options) {
  c10::DeviceIndex device = aten::current_device();
  if (options.device.has_value() && options.device->has_index() &&
      options.device->type() == c10::DeviceType::PrivateUse1) {
    device = options.device->index();
  } else if (!options.device_ids.empty()) {
    device = static_cast<c10::DeviceIndex>(options.device_ids[0]);
  } else if (bound_device_id_.has_value()) {
    device = bound_device_id_->index();
  }
  Staging nothing;
  return start(
      {"barrier", "neuron:barrier", "c10d::barrier", ::c10d::OpType::BARRIER, options.timeout}, {},
      nothing, device, {}, {});
}

void ProcessGroupNeuron::monitoredBarrier(const ::c10d::BarrierOptions& options,
                                          bool /*wait_all_ranks*/) {
  // The error of a barrier lists all absent ranks.
  barrier(options)->wait(options.timeout.count() > 0 ? options.timeout : kNoTimeout);
}

// --- Other groups
// ---------------------------------------------------------------------------------

c10::intrusive_ptr<::c10d::Backend> ProcessGroupNeuron::split(
    const c10::intrusive_ptr<::c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<::c10d::Backend::Options>& options) {
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) return nullptr;
  auto own =
      c10::make_intrusive<Options>(options == nullptr ? options_->timeout : options->timeout);
  for (const int rank : ranks) {
    check_rank(caller("split"), rank, "a rank of the new group");
    own->global_ranks_in_group.push_back(static_cast<uint64_t>(global_rank(rank)));
  }
  own->group_name = options == nullptr || options->group_name.empty()
                        ? name_ + ":split" + std::to_string(++splits_)
                        : options->group_name;
  auto below = c10::make_intrusive<::c10d::PrefixStore>(own->group_name + "/", store);
  return c10::make_intrusive<ProcessGroupNeuron>(below, static_cast<int>(mine - ranks.begin()),
                                                 static_cast<int>(ranks.size()), own, launch_);
}

c10::intrusive_ptr<::c10d::Backend> ProcessGroupNeuron::merge(
    const c10::intrusive_ptr<::c10d::Store>& store,
    const c10::intrusive_ptr<::c10d::Backend::Options>& options, const int& rank, const int& size) {
  auto own =
      c10::make_intrusive<Options>(options == nullptr ? options_->timeout : options->timeout);
  if (options != nullptr) {
    own->group_name = options->group_name;
    own->global_ranks_in_group = options->global_ranks_in_group;
  }
  auto below = c10::make_intrusive<::c10d::PrefixStore>(own->group_name + "/", store);
  return c10::make_intrusive<ProcessGroupNeuron>(below, rank, size, own, launch_);
}

c10::intrusive_ptr<::c10d::Backend> ProcessGroupNeuron::shrink(
    const std::vector<int64_t>& ranks_to_exclude, int flags,
    const c10::intrusive_ptr<::c10d::Backend::Options>& options) {
  std::vector<int> remaining;
  for (int rank = 0; rank < size_; ++rank) {
    if (std::find(ranks_to_exclude.begin(), ranks_to_exclude.end(), rank) ==
        ranks_to_exclude.end()) {
      remaining.push_back(rank);
    }
  }
  TORCH_CHECK(std::find(remaining.begin(), remaining.end(), rank_) != remaining.end(),
              caller("shrink"), "an excluded rank must not call shrink");
  constexpr int kAbort = 1;  // torch.distributed.SHRINK_ABORT
  if ((flags & kAbort) != 0) abort();
  auto own =
      c10::make_intrusive<Options>(options == nullptr ? options_->timeout : options->timeout);
  own->group_name = name_ + ":shrunk";
  for (const int rank : remaining) own->group_name += "_" + std::to_string(rank);
  return split(store_, remaining, own);
}

void ProcessGroupNeuron::eagerConnectSingleDevice(at::Device device) {
  // The ranks have met already; what is left is to take the core.
  translating([&] {
    runtime::ensure_device(device.index());
    claim_core(device.index());
  });
}

// --- Life
// -----------------------------------------------------------------------------------------

void ProcessGroupNeuron::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  communicator_->set_timeout(timeout);
  set_program_timeout(global_ranks_, timeout);
}

uint64_t ProcessGroupNeuron::getSequenceNumberForGroup() { return communicator_->sequence(); }

::c10d::ErrorType ProcessGroupNeuron::getError() { return shared_->error.load(); }

void ProcessGroupNeuron::registerOnCompletionHook(Shared::Hook&& hook) {
  TORCH_CHECK(onCompletionHook_ == nullptr, caller("registerOnCompletionHook"),
              "a hook is registered already");
  const std::lock_guard lock(shared_->mutex);
  onCompletionHook_ = hook;
  shared_->hook = std::make_shared<const Shared::Hook>(std::move(hook));
}

void ProcessGroupNeuron::waitForPendingWorks() {
  std::unique_lock lock(shared_->mutex);
  shared_->all_ended.wait(lock, [&] { return shared_->pending == 0; });
}

void ProcessGroupNeuron::abort() {
  if (closed_.exchange(true)) return;
  translating([&] {
    const std::string reason =
        "rank " + std::to_string(global_rank(rank_)) + " aborted the group '" + name_ + "'";
    communicator_->abort(reason);
    if (is_default_) stop_serving_programs(reason);
  });
}

void ProcessGroupNeuron::shutdown() {
  if (closed_.exchange(true)) return;
  translating([&] {
    communicator_->close();
    if (is_default_) stop_serving_programs("");
  });
}

}  // namespace neuron::distributed
