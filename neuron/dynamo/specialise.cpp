// Lowering a recorded graph for one set of sizes.

#include <algorithm>
#include <map>
#include <utility>

#include "neuron/aten/tensor.h"
#include "neuron/dynamo/graph.h"
#include "neuron/lowering/lower.h"

namespace neuron::dynamo {
namespace {

/// Sets of sizes that one graph keeps; a program costs some ten KiB.
constexpr size_t kSpecialisations = 1024;

/// The kind in which a number travels (lowerings convert it to the dtype they want).
DType scalar_kind(DType dtype) {
  if (is_complex(dtype)) return DType::c128;
  if (is_floating(dtype)) return DType::f64;
  return dtype == DType::u64 ? DType::u64 : DType::i64;
}

}  // namespace

class Graph::Builder {
 public:
  Builder(Graph& graph, const std::vector<Number>& symbols)
      : graph_(graph),
        made_(std::make_shared<Specialisation>()),
        values_(static_cast<size_t>(graph.values_)),
        numbers_(graph.sizes_.evaluate(symbols)) {}

  /// Null if more numbers turned out to be part of the key.
  std::shared_ptr<const Specialisation> build() {
    made_->op_ = graph_.op_;
    made_->device_ = graph_.device_;
    made_->graph_ = &graph_;
    add_inputs();
    for (size_t n = 0; n < graph_.nodes_.size(); ++n) {
      graph_.refused_ = static_cast<int64_t>(n);
      if (!add_node(graph_.nodes_[n])) return nullptr;
    }
    graph_.refused_ = -1;
    add_outputs();
    made_->values_ = std::move(numbers_);
    if (results_ > 0) {
      const hlo::Module module = builder_.finish();
      if (graph_.keep_text_) graph_.text_ = hlo::to_stablehlo(module, graph_.name_);
      made_->program_ = runtime::load_program(graph_.device_, module);
    }
    return made_;
  }

 private:
  int64_t integer(SizeId id) const { return numbers_[static_cast<size_t>(id)].as_int(); }

  template <typename List>
  List dims(const SizeIds& ids) const {
    List list;
    for (const SizeId id : ids) list.push_back(integer(id));
    return list;
  }

  void add_inputs() {
    size_t value = 0;
    for (size_t i = 0; i < graph_.inputs_.size(); ++i) {
      const GraphInput& input = graph_.inputs_[i];
      if (input.kind == GraphInput::Kind::HostScalar) {
        const DType dtype = aten::checked_dtype(input.dtype);
        values_[value++] = builder_.convert(builder_.scalar(scalar_kind(dtype)), dtype);
        made_->scalars_.push_back(
            {Specialisation::Scalar::Kind::HostTensor, static_cast<int64_t>(i)});
      } else if (input.kind == GraphInput::Kind::Tensor) {
        Specialisation::Parameter parameter;
        parameter.input = i;
        parameter.dtype = input.dtype;
        parameter.sizes = dims<at::DimVector>(input.sizes);
        parameter.strides = dims<at::DimVector>(input.strides);
        values_[value++] = builder_.parameter(aten::checked_dtype(input.dtype),
                                              dims<Dims>(input.sizes), dims<Dims>(input.strides));
        made_->parameters_.push_back(std::move(parameter));
      }
    }
  }

  /// A run-time number for an expression, in the kind that it has (pred as i64).
  hlo::Value runtime_number(SizeId id) {
    const auto [at, is_new] = runtime_numbers_.try_emplace(id);
    if (is_new) {
      const DType kind = numbers_[static_cast<size_t>(id)].kind;
      at->second = builder_.scalar(kind == DType::pred ? DType::i64 : kind);
      made_->scalars_.push_back({Specialisation::Scalar::Kind::Expression, id});
      graph_.sizes_.for_each_symbol(id, [&](size_t symbol) {
        if (graph_.structural_[symbol] == 0) made_->values_change_ = true;
      });
    }
    return at->second;
  }

  /// A number that stands where the schema has a tensor.
  hlo::Value number_as_tensor(SizeId id) {
    if (!graph_.sizes_.is_constant(id)) return runtime_number(id);
    const Number& number = numbers_[static_cast<size_t>(id)];
    switch (number.kind) {
      case DType::c128:
        return builder_.constant_complex(DType::c128, number.as_complex());
      case DType::f64:
        return builder_.constant(DType::f64, number.as_double());
      default:
        return builder_.constant_int(number.kind, number.integer);
    }
  }

  lowering::Argument argument(const NodeArgument& given) {
    using Kind = lowering::Argument::Kind;
    lowering::Argument argument;
    argument.kind = given.kind;
    argument.dtype = given.dtype;
    argument.text = given.text;
    for (const int64_t value : given.values) {
      if (value == NodeArgument::kNone) {
        argument.tensors.push_back(hlo::Value());
      } else if (value < 0) {
        argument.tensors.push_back(number_as_tensor(static_cast<SizeId>(~value)));
      } else {
        argument.tensors.push_back(values_[static_cast<size_t>(value)]);
      }
      argument.wrapped.push_back(value < 0 ? 1 : 0);
    }
    const bool scalars = given.kind == Kind::Scalar || given.kind == Kind::ScalarList;
    for (const SizeId id : given.numbers) {
      if (!scalars) {
        argument.ints.push_back(integer(id));
        continue;
      }
      argument.numbers.push_back(numbers_[static_cast<size_t>(id)]);
      // Sizes that are computed with must not become part of a kernel.
      const bool constant = graph_.sizes_.is_constant(id);
      argument.runtime.push_back(constant ? hlo::Value() : runtime_number(id));
    }
    return argument;
  }

  bool add_node(const Node& node) {
    std::vector<lowering::Argument> arguments;
    arguments.reserve(node.arguments.size());
    for (const NodeArgument& given : node.arguments) arguments.push_back(argument(given));
    std::vector<lowering::ResultType> results;
    results.reserve(node.results.size());
    for (const NodeResult& result : node.results) {
      results.push_back({result.defined, result.dtype, dims<Dims>(result.sizes)});
    }
    const lowering::OpCall call(builder_, std::move(arguments), std::move(results),
                                graph_.default_dtype_);
    // One key and one counter for the graph; each call starts where eager mode would have started.
    call.trace().philox_seed = seed_;
    call.trace().philox_offset = offset_;
    call.trace().philox_counters = made_->philox_counters_;
    const hlo::Values values = lowering::lower_into(builder_, *node.lowering, call);
    if (!seed_.defined() && call.trace().philox_seed.defined()) {
      seed_ = call.trace().philox_seed;
      offset_ = call.trace().philox_offset;
      made_->scalars_.push_back({Specialisation::Scalar::Kind::Seed, 0});
      made_->scalars_.push_back({Specialisation::Scalar::Kind::Offset, 0});
    }
    made_->philox_counters_ = (call.trace().philox_counters + 3) / 4 * 4;
    std::copy(values.begin(), values.end(), values_.begin() + node.first_value);

    bool changed = false;
    for (size_t i = 0; i < node.arguments.size() && i < 64; ++i) {
      if ((call.trace().static_arguments >> i & 1) == 0) continue;
      for (const SizeId id : node.arguments[i].numbers) {
        changed = graph_.make_structural(id) || changed;
      }
    }
    return !changed;
  }

  void add_outputs() {
    for (const GraphOutput& output : graph_.outputs_) {
      Specialisation::Output& made = made_->outputs_.emplace_back();
      made.described = &output;
      made.sizes = dims<at::DimVector>(output.sizes);
      made.strides = dims<at::DimVector>(output.strides);
      if (output.number >= 0) made.number = numbers_[static_cast<size_t>(output.number)];
      if (output.kind == GraphOutput::Kind::Number) {
        graph_.sizes_.for_each_symbol(output.number, [&](size_t symbol) {
          if (graph_.structural_[symbol] == 0) made_->values_change_ = true;
        });
      }
      int32_t alias = -1;
      if (output.kind == GraphOutput::Kind::Overwrite) {
        for (size_t p = 0; p < made_->parameters_.size(); ++p) {
          if (made_->parameters_[p].input != static_cast<size_t>(output.base)) continue;
          alias = static_cast<int32_t>(p);
          made_->parameters_[p].overwritten = true;
        }
        NEURON_CHECK(alias >= 0, kUnsupported, graph_.name_, ": input ", output.base,
                     " is a host scalar and cannot be written by the graph");
      } else if (output.kind != GraphOutput::Kind::Fresh) {
        continue;
      }
      hlo::Value result = values_[static_cast<size_t>(output.value)];
      result = builder_.convert(result, aten::checked_dtype(output.dtype));
      result = builder_.broadcast_to(result, dims<Dims>(output.sizes));
      builder_.result(result, dims<Dims>(output.strides), alias);
      ++results_;
    }
  }

  Graph& graph_;
  std::shared_ptr<Specialisation> made_;
  hlo::Builder builder_;
  hlo::Values values_;
  std::vector<Number> numbers_;
  std::map<SizeId, hlo::Value> runtime_numbers_;
  hlo::Value seed_, offset_;  // Philox key and first counter, shared by all random calls.
  size_t results_ = 0;
};

std::shared_ptr<const Specialisation> Graph::specialise(const std::vector<Number>& symbols) {
  const std::lock_guard lock(mutex_);
  return aten::translating_errors([&] {
    if (!recent_.empty() && recent_.front().key.empty() && sizes_.symbol_count() == 0) {
      return recent_.front().made;
    }
    std::vector<int64_t> key = key_of(symbols);
    if (const auto found = made_.find(key); found != made_.end()) {
      recent_.splice(recent_.begin(), recent_, found->second);
      return found->second->made;
    }
    runtime::ensure_device(device_);
    std::shared_ptr<const Specialisation> made;
    while ((made = Builder(*this, symbols).build()) == nullptr) {
      // More numbers are part of the key than was known: what was made without them is void.
      made_.clear();
      recent_.clear();
      key = key_of(symbols);
    }
    recent_.push_front({key, made});
    made_[std::move(key)] = recent_.begin();
    if (recent_.size() > kSpecialisations) {
      made_.erase(recent_.back().key);
      recent_.pop_back();
    }
    return made;
  });
}

}  // namespace neuron::dynamo
