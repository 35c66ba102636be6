#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "neuron/dynamo/sizes.h"
#include "neuron/dynamo/specialisation.h"
#include "neuron/lowering/op_call.h"
#include "neuron/lowering/registry.h"

namespace neuron::dynamo {

/// A dimension list as expressions.
using SizeIds = std::vector<SizeId>;

/// One input of the graph, in the caller's order.
struct GraphInput {
  enum class Kind : uint8_t { Tensor, HostScalar, Number, Other } kind = Kind::Tensor;
  c10::ScalarType dtype = c10::ScalarType::Float;
  SizeIds sizes, strides;
};

/// Where a symbol's value is found in the inputs.
struct SymbolSource {
  enum class Part : uint8_t { Number, Size, Stride } part = Part::Number;
  size_t input = 0;
  size_t axis = 0;
};

/// One argument of a node; a lowering::Argument with sizes as expressions and tensors as values.
struct NodeArgument {
  lowering::Argument::Kind kind = lowering::Argument::Kind::None;
  /// Tensor, TensorList: values, kNone for undefined members, or ~SizeId for a number that stands
  /// where the schema has a tensor.
  static constexpr int64_t kNone = INT64_MAX;
  std::vector<int64_t> values;
  SizeIds numbers;  // Scalar, ScalarList, Int, IntList, Bool, BoolList.
  DType dtype = DType::f32;
  std::string text;
};

struct NodeResult {
  bool defined = true;
  DType dtype = DType::f32;
  SizeIds sizes;
};

/// One output of the graph, in the caller's order, or an input that is overwritten.
struct GraphOutput {
  enum class Kind : uint8_t {
    Fresh,      // `value`, in a new tensor
    Overwrite,  // `value`, written into input `base`; not returned
    Input,      // input `base` itself
    View,       // of input `base`, or of fresh output number `base`
    Number,     // `number`
    None,
  } kind = Kind::None;
  int64_t value = -1;
  int64_t base = -1;
  bool of_input = false;
  bool to_host = false;
  c10::ScalarType dtype = c10::ScalarType::Float;
  SizeIds sizes, strides;
  SizeId number = -1;  // View: the offset in elements from the base's first.
};

/// An FX graph, recorded once; lowered, compiled and kept for each set of sizes it is called with.
/// Recording is for one thread; afterwards thread-safe.
class Graph {
 public:
  Graph(std::string name, c10::DeviceIndex device, bool keep_text);

  // Recording. Nodes in topological order; values are named by small integers.
  Sizes& sizes() { return sizes_; }
  /// Returns the value, or -1 for numbers and others.
  int64_t add_input(GraphInput input);
  /// A tensor that belongs to the graph; becomes an input behind those of the caller. All of the
  /// caller's come first.
  int64_t add_constant(at::Tensor tensor);
  void bind(SizeId symbol, SymbolSource source);
  /// One value per result. Throws Error(kUnsupported) if there is no such lowering.
  std::vector<int64_t> add_node(const std::string& op, std::vector<NodeArgument> arguments,
                                std::vector<NodeResult> results);
  void add_output(GraphOutput output) { outputs_.push_back(std::move(output)); }

  /// Lowers and compiles for these values of the symbols, by number of the symbol.
  std::shared_ptr<const Specialisation> specialise(const std::vector<Number>& symbols);
  /// The same for the sizes of real inputs.
  std::shared_ptr<const Specialisation> specialise(const std::vector<CallInput>& inputs);
  /// Values of all expressions for these inputs.
  std::vector<Number> evaluate(const std::vector<CallInput>& inputs) const {
    return sizes_.evaluate(symbols_of(inputs));
  }
  /// Number of the node that the last specialise() could not lower, or -1.
  int64_t refused_node() const { return refused_; }

  const std::string& name() const { return name_; }
  size_t node_count() const { return nodes_.size(); }
  size_t input_count() const { return inputs_.size(); }
  const std::vector<at::Tensor>& constants() const { return constants_; }
  const std::vector<GraphOutput>& outputs() const { return outputs_; }
  size_t specialisation_count();
  /// Of the specialisation made last.
  const std::string& stablehlo() const { return text_; }

 private:
  struct Node {
    const lowering::Lowering* lowering;
    std::vector<NodeArgument> arguments;
    std::vector<NodeResult> results;
    int64_t first_value;
  };
  struct KeyHasher {
    size_t operator()(const std::vector<int64_t>& key) const;
  };
  struct Entry {
    std::vector<int64_t> key;
    std::shared_ptr<const Specialisation> made;
  };
  class Builder;
  friend class Builder;

  std::vector<Number> symbols_of(const std::vector<CallInput>& inputs) const;
  std::vector<int64_t> key_of(const std::vector<Number>& symbols) const;
  /// Makes the values that `id` reads part of the key; true if they were not.
  bool make_structural(SizeId id);

  std::string name_;
  const char* op_;  // The name, for ever.
  c10::DeviceIndex device_;
  bool keep_text_;
  DType default_dtype_;

  Sizes sizes_;
  std::vector<GraphInput> inputs_;
  std::vector<at::Tensor> constants_;
  std::vector<SymbolSource> sources_;  // By symbol.
  std::vector<uint8_t> bound_;
  std::vector<Node> nodes_;
  std::vector<GraphOutput> outputs_;
  int64_t values_ = 0;

  std::mutex mutex_;                 // Guards the rest.
  std::vector<uint8_t> structural_;  // By symbol: its value is part of the key.
  std::list<Entry> recent_;          // Youngest first.
  std::unordered_map<std::vector<int64_t>, std::list<Entry>::iterator, KeyHasher> made_;
  int64_t refused_ = -1;
  std::string text_;
};

}  // namespace neuron::dynamo
