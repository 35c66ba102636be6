#include "neuron/dynamo/graph.h"

#include <bit>
#include <set>
#include <utility>

#include "neuron/aten/tensor.h"

namespace neuron::dynamo {
namespace {

/// Queued work names its operator by a string that must outlive the graph.
const char* intern(const std::string& name) {
  static std::mutex mutex;
  static auto* const names = new std::set<std::string>;  // Leaked: work may end after main().
  const std::scoped_lock lock(mutex);
  return names->insert(name).first->c_str();
}

}  // namespace

Graph::Graph(std::string name, c10::DeviceIndex device, bool keep_text)
    : name_(std::move(name)),
      op_(intern(name_)),
      device_(device),
      keep_text_(keep_text),
      default_dtype_(aten::checked_dtype(c10::get_default_dtype_as_scalartype())) {}

int64_t Graph::add_input(GraphInput input) {
  const bool is_value =
      input.kind == GraphInput::Kind::Tensor || input.kind == GraphInput::Kind::HostScalar;
  if (is_value) aten::checked_dtype(input.dtype);
  inputs_.push_back(std::move(input));
  // Value numbers of inputs and nodes share one sequence; inputs remember theirs by position.
  return is_value ? values_++ : -1;
}

int64_t Graph::add_constant(at::Tensor tensor) {
  GraphInput input;
  const bool host_scalar = tensor.device().is_cpu() && tensor.dim() == 0;
  input.kind = host_scalar ? GraphInput::Kind::HostScalar : GraphInput::Kind::Tensor;
  input.dtype = tensor.scalar_type();
  const auto constant = [&](int64_t size) {
    Number number;
    number.integer = size;
    return sizes_.constant(number);
  };
  for (const int64_t size : tensor.sizes()) input.sizes.push_back(constant(size));
  for (const int64_t stride : tensor.strides()) input.strides.push_back(constant(stride));
  constants_.push_back(std::move(tensor));
  return add_input(std::move(input));
}

void Graph::bind(SizeId symbol, SymbolSource source) {
  const size_t number = sizes_.symbol_of(symbol);
  if (sources_.size() <= number) {
    sources_.resize(number + 1);
    bound_.resize(number + 1, 0);
    structural_.resize(number + 1, 1);
  }
  if (bound_[number] != 0) return;
  bound_[number] = 1;
  sources_[number] = source;
  structural_[number] = sizes_.is_real(number) ? 0 : 1;
}

std::vector<int64_t> Graph::add_node(const std::string& op, std::vector<NodeArgument> arguments,
                                     std::vector<NodeResult> results) {
  const lowering::Lowering* const lowering = lowering::find_lowering(op);
  NEURON_CHECK(lowering != nullptr, kUnsupported, op, ": no lowering for neuron");
  std::vector<int64_t> ids;
  for (size_t k = 0; k < results.size(); ++k) ids.push_back(values_ + static_cast<int64_t>(k));
  nodes_.push_back({lowering, std::move(arguments), std::move(results), values_});
  values_ += static_cast<int64_t>(ids.size());
  return ids;
}

size_t Graph::KeyHasher::operator()(const std::vector<int64_t>& key) const {
  uint64_t hash = key.size();
  for (const int64_t word : key) {
    hash = (hash ^ static_cast<uint64_t>(word)) * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 29;
  }
  return hash;
}

std::vector<int64_t> Graph::key_of(const std::vector<Number>& symbols) const {
  std::vector<int64_t> key;
  key.reserve(symbols.size());
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (structural_[i] == 0) continue;
    key.push_back(symbols[i].kind == DType::f64
                      ? std::bit_cast<int64_t>(symbols[i].real_imag.real())
                      : symbols[i].integer);
  }
  return key;
}

bool Graph::make_structural(SizeId id) {
  bool changed = false;
  sizes_.for_each_symbol(id, [&](size_t symbol) {
    changed = changed || structural_[symbol] == 0;
    structural_[symbol] = 1;
  });
  return changed;
}

std::vector<Number> Graph::symbols_of(const std::vector<CallInput>& inputs) const {
  std::vector<Number> symbols(sizes_.symbol_count());
  for (size_t i = 0; i < symbols.size(); ++i) {
    TORCH_CHECK_NOT_IMPLEMENTED(i < bound_.size() && bound_[i] != 0, name_, ": size number ", i,
                                " is no part of any input");
    const SymbolSource& source = sources_[i];
    const CallInput& input = inputs[source.input];
    if (source.part == SymbolSource::Part::Number) {
      symbols[i] = input.number;
      if (sizes_.is_real(i) && input.number.kind != DType::f64) {
        symbols[i].kind = DType::f64;
        symbols[i].real_imag = input.number.as_double();
      }
      continue;
    }
    TORCH_CHECK(input.tensor.defined() && static_cast<size_t>(input.tensor.dim()) > source.axis,
                name_, ": input ", source.input, " has no dimension ", source.axis);
    symbols[i].integer = source.part == SymbolSource::Part::Size
                             ? input.tensor.sizes()[source.axis]
                             : input.tensor.strides()[source.axis];
  }
  return symbols;
}

std::shared_ptr<const Specialisation> Graph::specialise(const std::vector<CallInput>& inputs) {
  return specialise(symbols_of(inputs));
}

size_t Graph::specialisation_count() {
  const std::lock_guard lock(mutex_);
  return made_.size();
}

}  // namespace neuron::dynamo
