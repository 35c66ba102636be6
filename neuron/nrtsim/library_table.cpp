#include "neuron/nrtsim/library_table.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <shared_mutex>
#include <string>
#include <unordered_map>

#include "neuron/base/error.h"
#include "neuron/base/thread_pool.h"
#include "neuron/nrtsim/builtins.h"
#include "neuron/nrtsim/error.h"

namespace neuron::nrtsim {
namespace {

struct Entry {
  nrtsim_lib_kernel_t kernel;
  uint64_t order = 0;
};

struct Table {
  std::shared_mutex mutex;    // Guards all members.
  std::deque<Entry> entries;  // Addresses stay; never removed, since loaded programs use them.
  std::unordered_map<std::string, const Entry*> exact;
  std::vector<std::pair<std::string, const Entry*>> prefixes;  // Oldest first.
};

void add(Table& table, std::string_view name, const nrtsim_lib_kernel_t& kernel) {
  table.entries.push_back({kernel, table.entries.size()});
  const Entry* entry = &table.entries.back();
  if (!name.empty() && name.back() == '*') {
    table.prefixes.emplace_back(name.substr(0, name.size() - 1), entry);
  } else {
    table.exact[std::string(name)] = entry;
  }
}

Table& table() {
  static Table* instance = [] {
    auto* fresh = new Table;
    for (const Builtin& builtin : builtins()) add(*fresh, builtin.name, builtin.kernel);
    return fresh;
  }();
  return *instance;
}

nrtsim_lib_tensor_t describe(const neff::LibraryTensor& tensor) {
  return {static_cast<uint32_t>(tensor.dtype), static_cast<uint32_t>(tensor.dims.size()),
          tensor.dims.data(), tensor.strides.data()};
}

}  // namespace

void register_kernel(std::string_view name, const nrtsim_lib_kernel_t& kernel) {
  // A caller built with an older header has a smaller struct; what it lacks is null.
  nrtsim_lib_kernel_t copy{};
  const size_t known = std::min(kernel.struct_size, sizeof(copy));
  std::memcpy(&copy, &kernel, known);
  copy.struct_size = sizeof(copy);
  Table& all = table();
  const std::unique_lock<std::shared_mutex> lock(all.mutex);
  add(all, name, copy);
}

const nrtsim_lib_kernel_t* find_library_kernel(std::string_view name) {
  Table& all = table();
  const std::shared_lock<std::shared_mutex> lock(all.mutex);
  const Entry* best = nullptr;
  if (const auto found = all.exact.find(std::string(name)); found != all.exact.end()) {
    best = found->second;
  }
  for (const auto& [prefix, entry] : all.prefixes) {
    if (name.starts_with(prefix) && (best == nullptr || entry->order > best->order)) best = entry;
  }
  return best == nullptr ? nullptr : &best->kernel;
}

const nrtsim_lib_context_t& library_context() {
  static const nrtsim_lib_context_t context = {
      sizeof(nrtsim_lib_context_t),
      [](void (*body)(void*, int64_t, int64_t), void* user, int64_t count, int64_t grain) {
        ThreadPool::instance().parallel_for(
            count, grain, [&](int64_t begin, int64_t end) { body(user, begin, end); });
      },
      ThreadPool::instance().threads()};
  return context;
}

LibraryCall::LibraryCall(const neff::LibraryStep& step) {
  kernel_ = find_library_kernel(step.name);
  NEURON_CHECK(kernel_ != nullptr && kernel_->run != nullptr, kInvalid, "library kernel ",
               step.name, " is not registered with the simulator");
  for (const neff::LibraryTensor& x : step.inputs) inputs_.push_back(describe(x));
  for (const neff::LibraryTensor& x : step.outputs) outputs_.push_back(describe(x));
  call_ = {sizeof(call_),         step.name.c_str(),
           inputs_.data(),        static_cast<uint32_t>(inputs_.size()),
           outputs_.data(),       static_cast<uint32_t>(outputs_.size()),
           step.ints.data(),      step.ints.size(),
           step.arguments.data(), step.arguments.size()};
  if (kernel_->prepare != nullptr) state_ = kernel_->prepare(&call_);
}

LibraryCall::~LibraryCall() {
  if (state_ != nullptr && kernel_->destroy != nullptr) kernel_->destroy(state_);
}

int LibraryCall::run(void* const* inputs, void* const* outputs) const {
  std::array<char, 1024> message;
  message[0] = '\0';
  const int status = kernel_->run(state_, &call_, inputs, outputs, &library_context(),
                                  message.data(), message.size());
  if (status == 0) [[likely]]
    return 0;
  message.back() = '\0';
  return fail(status, call_.name, ": ", message.data());
}

}  // namespace neuron::nrtsim
