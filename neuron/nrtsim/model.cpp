#include "neuron/nrtsim/model.h"

#include <algorithm>
#include <array>
#include <string>

#include "neuron/base/error.h"
#include "neuron/base/thread_pool.h"
#include "neuron/nrtsim/error.h"
#include "neuron/nrtsim/object_loader.h"
#include "neuron/nrtsim/time_model.h"

namespace neuron::nrtsim {
namespace {

// Positions behind parameters and results.
enum Extra : uint32_t { kScalars, kArena, kConstants, kStatus, kExtraCount };

std::atomic<uint64_t> g_next_uid{1};

class Lock {
 public:
  explicit Lock(std::atomic_flag& flag) : flag_(flag) {
    while (flag_.test_and_set(std::memory_order_acquire)) {
    }
  }
  ~Lock() { flag_.clear(std::memory_order_release); }

 private:
  std::atomic_flag& flag_;
};

std::string port_name(bool output, size_t index) {
  return (output ? "output" : "input") + std::to_string(index);
}

// Share of one piece worth a thread that `extent` iterations of the step are.
double weight_of(const neff::Step& step) {
  if (step.kind == neff::Step::Kind::Kernel && step.kernel.grain > 0) {
    return static_cast<double>(step.kernel.extent) / static_cast<double>(step.kernel.grain);
  }
  // About 8 us at 10 bytes or 4 cheap operations a nanosecond.
  return std::max((step.work.bytes_read + step.work.bytes_written) / 80000.0,
                  step.work.vector_ops / 32000.0);
}

}  // namespace

// --- Load ----------------------------------------------------------------------------------------

std::unique_ptr<Model> Model::load(const std::shared_ptr<Core>& core, const Topology& topology,
                                   const std::byte* neff, size_t bytes, Place place, int& status) {
  if (!neff::is_our_neff(neff, bytes)) {
    status = fail(NRT_INVALID, "not a NEFF for the simulator (", bytes,
                  " bytes); one made by neuronx-cc needs a Trainium device");
    return nullptr;
  }
  std::unique_ptr<Model> model(new Model);
  model->program_ = neff::read_neff(neff, bytes);
  neff::Program& program = model->program_;
  if (!program.target.empty() && program.target != topology.target->name) {
    status = fail(NRT_INVALID, "the NEFF is compiled for ", program.target,
                  ", the simulator imitates ", topology.target->name);
    return nullptr;
  }
  if (std::string missing; !host_can_run(program.cpu_features, missing)) {
    status = fail(NRT_INVALID, "the NEFF's code needs the CPU feature ", missing,
                  ", which this host lacks (", program.cpu_features, ")");
    return nullptr;
  }
  // Code is shared over all programs, so only what the program owns alone is charged.
  const uint64_t own = program.constants.empty() ? 0 : rounded_size(program.constants.size());
  if (own > 0 && !core->bank->charge(own) && !(core->trim_arenas() && core->bank->charge(own))) {
    status = fail(NRT_RESOURCE, "a program with ", Bytes(program.constants.size()),
                  " of constants does not fit on core ", core->index, ": ",
                  Bytes(core->bank->used()), " of ", Bytes(core->bank->limit()), " are in use");
    return nullptr;
  }
  model->core_ = core;
  model->charged_ = own;
  model->prepare(load_kernels(program.kernels), place);
  // The code lives in the loader now.
  for (neff::KernelCode& kernel : program.kernels) std::vector<std::byte>().swap(kernel.object);
  model->time_ns_ = static_cast<uint64_t>(program_time_ns(program, *topology.target, topology.lnc));
  model->uid_ = g_next_uid.fetch_add(1, std::memory_order_relaxed);
  return model;
}

Model::~Model() {
  if (core_ != nullptr && charged_ > 0) core_->bank->release(charged_);
}

Model::Ref Model::ref_of(const neff::BufferRef& ref) const {
  using Kind = neff::BufferRef::Kind;
  const auto parameters = static_cast<uint32_t>(program_.parameters.size());
  const auto extras = parameters + static_cast<uint32_t>(program_.results.size());
  switch (ref.kind) {
    case Kind::Parameter:
      return {ref.index, ref.offset};
    case Kind::Result:
      return {parameters + ref.index, ref.offset};
    case Kind::Scalars:
      return {extras + kScalars, ref.offset};
    case Kind::Arena:
      return {extras + kArena, ref.offset};
    case Kind::Constant:
      return {extras + kConstants, ref.offset};
    case Kind::Status:
      return {extras + kStatus, ref.offset};
  }
  return {0, 0};
}

void Model::prepare(std::vector<neff::KernelFunction> functions, Place place) {
  launches_.reserve(program_.steps.size());
  for (size_t i = 0; i < program_.steps.size(); ++i) {
    const neff::Step& step = program_.steps[i];
    Launch launch;
    launch.index = static_cast<uint32_t>(i);
    launch.first_ref = static_cast<uint32_t>(refs_.size());
    if (step.kind == neff::Step::Kind::Kernel) {
      launch.function = functions[step.kernel.kernel];
      launch.args = step.kernel.args.data();
      launch.extent = step.kernel.extent;
      launch.grain = step.kernel.grain;
      for (const neff::BufferRef& ref : step.kernel.pointers) refs_.push_back(ref_of(ref));
    } else {
      launch.library = true;
      if (step.kind == neff::Step::Kind::Collective) {
        collectives_.push_back(
            std::make_unique<ProgramCollective>(step.library, place.device, place.count));
        launch.collective = collectives_.back().get();
      } else {
        calls_.push_back(std::make_unique<LibraryCall>(step.library));
        launch.call = calls_.back().get();
      }
      for (const neff::LibraryTensor& x : step.library.inputs) refs_.push_back(ref_of(x.buffer));
      for (const neff::LibraryTensor& x : step.library.outputs) refs_.push_back(ref_of(x.buffer));
    }
    launch.ref_count = static_cast<uint32_t>(refs_.size()) - launch.first_ref;
    launches_.push_back(launch);
  }
  prepare_stages();
}

void Model::prepare_stages() {
  for (uint32_t first = 0; first < launches_.size();) {
    const int32_t group = program_.steps[first].parallel_group;
    Stage stage;
    stage.first = first;
    stage.last = first + 1;
    bool kernels_only = !launches_[first].library;
    while (group >= 0 && stage.last < launches_.size() &&
           program_.steps[stage.last].parallel_group == group) {
      kernels_only = kernels_only && !launches_[stage.last].library;
      ++stage.last;
    }
    double total = 0;
    for (uint32_t i = stage.first; i < stage.last; ++i) total += weight_of(program_.steps[i]);
    // A library call threads inside; a group with one runs in order.
    if (stage.last - stage.first > 1 && kernels_only && total > 1.5) {
      double chunk = 0;
      stage.chunks.push_back(0);
      const auto close_chunk = [&] {
        stage.chunks.push_back(static_cast<uint32_t>(stage.pieces.size()));
        chunk = 0;
      };
      for (uint32_t i = stage.first; i < stage.last; ++i) {
        const Launch& launch = launches_[i];
        const double weight = weight_of(program_.steps[i]);
        if (weight < 1.5 || launch.grain <= 0) {
          stage.pieces.push_back({i, 0, launch.extent});
          chunk += weight;
          if (chunk >= 1) close_chunk();
          continue;
        }
        for (int64_t begin = 0; begin < launch.extent; begin += launch.grain) {
          stage.pieces.push_back({i, begin, std::min(begin + launch.grain, launch.extent)});
          chunk += 1;
          if (chunk >= 1) close_chunk();
        }
      }
      if (stage.chunks.back() != stage.pieces.size()) close_chunk();
    }
    first = stage.last;
    stages_.push_back(std::move(stage));
  }
}

// --- Tensors -------------------------------------------------------------------------------------

int Model::find_tensors(TensorSet& set, bool outputs, std::vector<nrt_tensor*>& found) const {
  const auto& infos = outputs ? program_.results : program_.parameters;
  found.clear();
  for (size_t i = 0; i <= infos.size(); ++i) {
    const bool scalars = i == infos.size();
    if (scalars && (outputs || !has_scalars())) break;
    const std::string name = scalars ? "scalars" : port_name(outputs, i);
    // Sets are mostly filled in order.
    nrt_tensor* tensor = i < set.entries.size() && set.entries[i].name == name
                             ? set.entries[i].tensor
                             : set.find(name);
    if (tensor == nullptr && (scalars || infos[i].bytes > 0)) {
      return fail(NRT_EXEC_BAD_INPUT, "the ", outputs ? "output" : "input", " set has no tensor ",
                  name);
    }
    found.push_back(tensor);
  }
  return NRT_SUCCESS;
}

int Model::resolve_side(TensorSet& set, bool outputs, Bases& bases) const {
  // Sides differ, so that one set used as both is looked up for each.
  const uint64_t key = uid_ * 2 + (outputs ? 1 : 0);
  const Lock lock(set.lock);
  if (set.resolved_for != key) {
    set.resolved_for = 0;
    if (const int status = find_tensors(set, outputs, set.resolved); status != 0) return status;
    set.resolved_for = key;
  }
  const auto& infos = outputs ? program_.results : program_.parameters;
  for (size_t i = 0; i < set.resolved.size(); ++i) {
    const nrt_tensor* tensor = set.resolved[i];
    const auto needed =
        i < infos.size() ? static_cast<size_t>(infos[i].bytes) : size_t{program_.scalar_count} * 16;
    if (needed > 0 && (tensor->size < needed || tensor->data == nullptr)) [[unlikely]] {
      if (tensor->data == nullptr) {
        return fail(NRT_INVALID, "tensor ", port_name(outputs, i), " has no memory");
      }
      return fail(NRT_INVALID, "tensor ", i < infos.size() ? port_name(outputs, i) : "scalars",
                  " has ", tensor->size, " bytes, the program needs ", needed);
    }
    bases.push_back(tensor == nullptr ? nullptr : tensor->data);
  }
  return NRT_SUCCESS;
}

int Model::resolve(TensorSet& inputs, TensorSet& outputs, Bases& bases) const {
  if (const int status = resolve_side(inputs, false, bases); status != 0) return status;
  void* scalars = nullptr;
  if (has_scalars()) {
    scalars = bases.back();
    bases.pop_back();
  }
  if (const int status = resolve_side(outputs, true, bases); status != 0) return status;
  bases.push_back(scalars);
  return NRT_SUCCESS;
}

void Model::mark_completed(TensorSet& outputs) const {
  const Lock lock(outputs.lock);
  if (outputs.resolved_for != uid_ * 2 + 1) return;
  for (nrt_tensor* tensor : outputs.resolved) {
    if (tensor != nullptr) tensor->completions.fetch_add(1, std::memory_order_release);
  }
}

// --- Run -----------------------------------------------------------------------------------------

int Model::run_piece(const Launch& launch, void* const* bases, int64_t begin, int64_t end) const {
  constexpr size_t kInline = 32;
  std::array<void*, kInline> local;
  std::vector<void*> many;
  void** pointers = local.data();
  if (launch.ref_count > kInline) [[unlikely]] {
    many.resize(launch.ref_count);
    pointers = many.data();
  }
  const Ref* refs = refs_.data() + launch.first_ref;
  for (uint32_t i = 0; i < launch.ref_count; ++i) {
    pointers[i] = static_cast<std::byte*>(bases[refs[i].base]) + refs[i].offset;
  }
  if (launch.collective != nullptr) return launch.collective->run(pointers, pointers + 1);
  if (launch.library) {
    return launch.call->run(pointers, pointers + launch.call->input_count());
  }
  if (end - begin > launch.grain && launch.grain > 0) {
    ThreadPool::instance().parallel_for(end, launch.grain, [&](int64_t b, int64_t e) {
      launch.function(pointers, launch.args, b, e);
    });
  } else {
    launch.function(pointers, launch.args, begin, end);
  }
  return 0;
}

int Model::run_launch(const Launch& launch, void* const* bases) const {
  if (!launch.library && launch.extent == 0) return 0;
  return run_piece(launch, bases, 0, launch.extent);
}

int Model::run_group(const Stage& stage, void* const* bases) const {
  const auto chunks = static_cast<int64_t>(stage.chunks.size()) - 1;
  ThreadPool::instance().parallel_for(chunks, 1, [&](int64_t begin, int64_t end) {
    const uint32_t last = stage.chunks[static_cast<size_t>(end)];
    for (uint32_t i = stage.chunks[static_cast<size_t>(begin)]; i < last; ++i) {
      const Piece& piece = stage.pieces[i];
      if (piece.begin < piece.end) {
        run_piece(launches_[piece.launch], bases, piece.begin, piece.end);
      }
    }
  });
  return 0;
}

int Model::status_error(int64_t status) const {
  const auto step = static_cast<size_t>(status - 1);
  std::string what;
  if (step < program_.steps.size()) {
    const neff::Step& at = program_.steps[step];
    what = at.kind == neff::Step::Kind::Kernel
               ? "kernel " + neff::kernel_symbol(program_.kernels[at.kernel.kernel].hash)
               : at.library.name;
  }
  return fail(NRT_EXEC_OOB, "index out of range in step ", step, " (", what, ") of the program");
}

int Model::run(Bases& bases) const {
  Arena* arena = nullptr;
  if (program_.arena_bytes > 0) {
    arena = take_arena(*core_, static_cast<size_t>(program_.arena_bytes));
    if (arena == nullptr) {
      return fail(NRT_RESOURCE, "scratch memory of ",
                  Bytes(static_cast<uint64_t>(program_.arena_bytes)), " does not fit on core ",
                  core_->index, ": ", Bytes(core_->bank->used()), " of ",
                  Bytes(core_->bank->limit()), " are in use");
    }
  }
  int64_t status_word = 0;
  bases.push_back(arena == nullptr ? nullptr : arena->data);
  bases.push_back(const_cast<std::byte*>(program_.constants.data()));
  bases.push_back(&status_word);
  int status = 0;
  for (const Stage& stage : stages_) {
    if (!stage.chunks.empty()) {
      status = run_group(stage, bases.data());
    } else {
      for (uint32_t i = stage.first; i < stage.last && status == 0; ++i) {
        status = run_launch(launches_[i], bases.data());
      }
    }
    if (status != 0) [[unlikely]]
      break;
  }
  if (arena != nullptr) put_arena(*core_, arena);
  core_->time_ns.fetch_add(time_ns_, std::memory_order_relaxed);
  if (status_word != 0 && status == 0) [[unlikely]]
    status = status_error(status_word);
  return status;
}

}  // namespace neuron::nrtsim
