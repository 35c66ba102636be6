#include "neuron/nrtsim/program_collective.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "neuron/base/error.h"
#include "neuron/nrtsim/comm.h"
#include "neuron/nrtsim/comm_engine.h"
#include "neuron/nrtsim/comm_group.h"
#include "neuron/nrtsim/error.h"

namespace neuron::nrtsim {
namespace {

// Leaked: groups may be looked for until the process ends.
struct ProgramGroups {
  std::mutex mutex;
  std::map<std::vector<int64_t>, std::weak_ptr<comm::Group>> groups;  // Guarded.
};
ProgramGroups& program_groups() {
  static auto* const all = new ProgramGroups;
  return *all;
}

// Attributes, as hlo encodes them.
struct Attributes {
  int64_t first, second, columns;
  DimsRef ids;
};
Attributes attributes_of(const neff::LibraryStep& step) {
  NEURON_CHECK(step.ints.size() > 4 && step.ints[3] >= 1 && step.inputs.size() == 1 &&
                   step.outputs.size() == 1,
               kInvalid, "corrupt NEFF: a collective ", step.name, " with ", step.ints.size(),
               " attributes, ", step.inputs.size(), " inputs and ", step.outputs.size(),
               " outputs");
  return {step.ints[0], step.ints[1], step.ints[3], DimsRef(step.ints).subspan(4)};
}

std::string list_text(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text;
}

int32_t reduction_of(int64_t kind) {
  constexpr int32_t kReductions[] = {NRTSIM_COMM_SUM, NRTSIM_COMM_PRODUCT, NRTSIM_COMM_MAX,
                                     NRTSIM_COMM_MIN, NRTSIM_COMM_BIT_AND, NRTSIM_COMM_BIT_OR};
  NEURON_CHECK(kind >= 0 && kind < 6, kInvalid, "corrupt NEFF: reduction ", kind);
  return kReductions[kind];
}

// Copies elements between a strided and a dense place. `to_dense` says which way.
void copy_strided(std::byte* strided, DimsRef dims, DimsRef strides, std::byte* dense,
                  int64_t element, bool to_dense) {
  if (dims.empty()) {
    std::memcpy(to_dense ? dense : strided, to_dense ? strided : dense,
                static_cast<size_t>(element));
    return;
  }
  const int64_t inner = count_elements(dims.subspan(1)) * element;
  const bool rows = dims.size() == 1 && strides[0] == 1;
  if (rows) {
    std::memcpy(to_dense ? dense : strided, to_dense ? strided : dense,
                static_cast<size_t>(dims[0] * element));
    return;
  }
  for (int64_t i = 0; i < dims[0]; ++i) {
    copy_strided(strided + i * strides[0] * element, dims.subspan(1), strides.subspan(1),
                 dense + i * inner, element, to_dense);
  }
}

}  // namespace

std::shared_ptr<comm::Group> find_program_group(const std::vector<int64_t>& global_ranks) {
  ProgramGroups& all = program_groups();
  const std::lock_guard lock(all.mutex);
  const auto found = all.groups.find(global_ranks);
  return found == all.groups.end() ? nullptr : found->second.lock();
}

void add_program_group(const std::vector<int64_t>& global_ranks,
                       const std::shared_ptr<comm::Group>& group) {
  ProgramGroups& all = program_groups();
  const std::lock_guard lock(all.mutex);
  all.groups[global_ranks] = group;
}

// --- Plan ----------------------------------------------------------------------------------------

ProgramCollective::ProgramCollective(const neff::LibraryStep& step, uint32_t device_id,
                                     uint32_t device_count)
    : step_(step) {
  const Attributes all = attributes_of(step);
  NEURON_CHECK(device_count > 0, kInvalid, "the program contains collectives (", step.name,
               "): it must be loaded by nrt_load_collectives");
  for (const int64_t id : all.ids) {
    NEURON_CHECK(id >= 0 && id < int64_t{device_count}, kInvalid, step.name, " names device ", id,
                 ", but the job has ", device_count);
  }
  std::vector<int64_t> row;
  if (step.name == "collective_permute") {
    // Whoever sends or receives meets; there is one group of them.
    row.assign(all.ids.begin(), all.ids.end());
    std::sort(row.begin(), row.end());
    row.erase(std::unique(row.begin(), row.end()), row.end());
  } else {
    const auto columns = static_cast<size_t>(all.columns);
    for (size_t at = 0; at + columns <= all.ids.size(); at += columns) {
      const DimsRef group = all.ids.subspan(at, columns);
      if (std::find(group.begin(), group.end(), int64_t{device_id}) != group.end()) {
        row.assign(group.begin(), group.end());
      }
    }
  }
  ranks_ = row;
  std::sort(ranks_.begin(), ranks_.end());
  const auto self = std::find(ranks_.begin(), ranks_.end(), int64_t{device_id});
  NEURON_CHECK(self != ranks_.end(), kInvalid, "device ", device_id, " is in no group of ",
               step.name);
  self_ = static_cast<size_t>(self - ranks_.begin());
  for (const int64_t rank : ranks_) {
    positions_.push_back(
        static_cast<size_t>(std::find(row.begin(), row.end(), rank) - row.begin()));
  }
  plan();
}

ProgramCollective::Part ProgramCollective::whole(const neff::LibraryTensor& tensor) const {
  return {0, tensor.dims, true};
}

ProgramCollective::Part ProgramCollective::chunk(const neff::LibraryTensor& tensor, int64_t dim,
                                                 size_t position) const {
  const auto d = static_cast<size_t>(dim);
  const auto parts = static_cast<int64_t>(ranks_.size());
  NEURON_CHECK(dim >= 0 && d < tensor.dims.size() && tensor.dims[d] % parts == 0, kInvalid,
               "corrupt NEFF: ", step_.name, " along dim ", dim);
  Part part = whole(tensor);
  part.dims[d] /= parts;
  part.offset = static_cast<int64_t>(position) * part.dims[d] * tensor.strides[d] *
                static_cast<int64_t>(size_of(tensor.dtype));
  return part;
}

void ProgramCollective::plan() {
  const Attributes all = attributes_of(step_);
  const neff::LibraryTensor& input = step_.inputs[0];
  const neff::LibraryTensor& output = step_.outputs[0];
  // What is only moved travels as it is.
  DType wire = input.dtype;
  const size_t size = ranks_.size();
  if (step_.name == "all_reduce") {
    kind_ = NRTSIM_COMM_ALL_REDUCE;
    reduction_ = reduction_of(all.first);
    inputs_ = {whole(input)};
    outputs_ = {whole(output)};
  } else if (step_.name == "reduce_scatter") {
    kind_ = NRTSIM_COMM_REDUCE_SCATTER;
    reduction_ = reduction_of(all.first);
    for (const size_t position : positions_) {
      inputs_.push_back(chunk(input, all.second, position));
    }
    outputs_ = {whole(output)};
  } else if (step_.name == "all_gather") {
    kind_ = NRTSIM_COMM_ALL_GATHER;
    inputs_ = {whole(input)};
    for (const size_t position : positions_) {
      outputs_.push_back(chunk(output, all.first, position));
    }
  } else if (step_.name == "all_to_all") {
    kind_ = NRTSIM_COMM_ALL_TO_ALL;
    for (const size_t position : positions_) {
      inputs_.push_back(chunk(input, all.first, position));
      outputs_.push_back(chunk(output, all.second, position));
    }
  } else if (step_.name == "collective_broadcast") {
    kind_ = NRTSIM_COMM_BROADCAST;
    root_ = static_cast<int32_t>(std::find(positions_.begin(), positions_.end(), size_t{0}) -
                                 positions_.begin());
    inputs_ = {whole(input)};
    outputs_ = {whole(output)};
  } else if (step_.name == "collective_permute") {
    kind_ = NRTSIM_COMM_ALL_TO_ALL;
    inputs_.resize(size);
    outputs_.resize(size);
    fills_ = true;
    for (size_t i = 0; i + 1 < all.ids.size(); i += 2) {
      const auto at = [&](int64_t rank) {
        return static_cast<size_t>(std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin());
      };
      const size_t source = at(all.ids[i]), target = at(all.ids[i + 1]);
      if (source == self_) inputs_[target] = whole(input);
      if (target == self_) {
        outputs_[source] = whole(output);
        fills_ = false;
      }
    }
  } else {
    raise(ErrorKind::kInvalid, "corrupt NEFF: no collective is called ", step_.name);
  }
  if (is_complex(wire)) {
    wire = real_of(wire);
    per_element_ = 2;
  } else if (wire == DType::pred || is_float8(wire)) {
    wire = DType::u8;
  }
  wire_ = static_cast<int32_t>(wire);
}

// --- Run -----------------------------------------------------------------------------------------

int ProgramCollective::run(void* const* inputs, void* const* outputs) const {
  // Of one tensor: parts that are not dense go through `staged`.
  struct Side {
    std::vector<nrtsim_comm_piece_t> pieces;
    std::vector<std::byte> staged;
  };
  const auto dense_bytes = [](const neff::LibraryTensor& tensor, const Part& part) {
    return count_elements(part.dims) * static_cast<int64_t>(size_of(tensor.dtype));
  };
  const auto prepare = [&](const neff::LibraryTensor& tensor, const std::vector<Part>& parts,
                           void* base, bool is_read) {
    Side side;
    const auto element = static_cast<int64_t>(size_of(tensor.dtype));
    int64_t staged = 0;
    for (const Part& part : parts) {
      if (part.is_used && !is_contiguous(part.dims, tensor.strides)) {
        staged += dense_bytes(tensor, part);
      }
    }
    side.staged.resize(static_cast<size_t>(staged));
    std::byte* next = side.staged.data();
    for (const Part& part : parts) {
      if (!part.is_used) {
        side.pieces.push_back({nullptr, 0});
        continue;
      }
      std::byte* const place = static_cast<std::byte*>(base) + part.offset;
      const int64_t count = count_elements(part.dims) * per_element_;
      if (is_contiguous(part.dims, tensor.strides)) {
        side.pieces.push_back({place, count});
        continue;
      }
      if (is_read && count > 0) {
        copy_strided(place, part.dims, tensor.strides, next, element, true);
      }
      side.pieces.push_back({next, count});
      next += dense_bytes(tensor, part);
    }
    return side;
  };
  try {
    comm::Engine& engine = comm::Engine::instance();
    const std::shared_ptr<comm::Group> group = find_program_group(ranks_);
    NEURON_CHECK(group != nullptr, kCollective, step_.name, ": there is no group of devices ",
                 list_text(ranks_), " for programs in this process");
    const neff::LibraryTensor& output = step_.outputs[0];
    const Side from = prepare(step_.inputs[0], inputs_, inputs[0], true);
    const Side to = prepare(output, outputs_, outputs[0], false);
    if (fills_) {
      std::vector<std::byte> zeros(
          static_cast<size_t>(dense_bytes(output, {0, output.dims, true})));
      if (!zeros.empty()) {
        copy_strided(static_cast<std::byte*>(outputs[0]), output.dims, output.strides, zeros.data(),
                     static_cast<int64_t>(size_of(output.dtype)), false);
      }
    }
    const nrtsim_comm_collective_t call = {
        sizeof(nrtsim_comm_collective_t),
        kind_,
        wire_,
        reduction_,
        root_,
        1.0,
        from.pieces.data(),
        from.pieces.size(),
        to.pieces.data(),
        to.pieces.size(),
        step_.name.c_str(),
    };
    nrtsim_comm_start_t start{};
    start.struct_size = sizeof(start);
    start.done = [](void*, const nrtsim_comm_error_t*) {};
    const std::shared_ptr<comm::Operation> op = group->start(call, start);
    if (engine.wait(*op, std::nullopt) != NRTSIM_COMM_DONE) {
      return fail(NRT_EXEC_HW_ERR_COLLECTIVES, op->failure().text);
    }
    const auto element = static_cast<int64_t>(size_of(output.dtype));
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const Part& part = outputs_[i];
      if (!part.is_used || is_contiguous(part.dims, output.strides) || to.pieces[i].count == 0) {
        continue;
      }
      copy_strided(static_cast<std::byte*>(outputs[0]) + part.offset, part.dims, output.strides,
                   static_cast<std::byte*>(to.pieces[i].address), element, false);
    }
    return NRT_SUCCESS;
  } catch (const Error& error) {
    return fail(NRT_EXEC_HW_ERR_COLLECTIVES, error.what());
  }
}

}  // namespace neuron::nrtsim
