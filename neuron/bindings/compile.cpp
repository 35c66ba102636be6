#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "neuron/aten/tensor.h"
#include "neuron/bindings/bindings.h"
#include "neuron/dynamo/graph.h"
#include "neuron/lowering/registry.h"

namespace py = pybind11;

namespace neuron::bindings {
namespace {

using dynamo::CallInput;
using dynamo::CallOutput;
using dynamo::Graph;
using dynamo::GraphInput;
using dynamo::GraphOutput;
using dynamo::NodeArgument;
using dynamo::NodeResult;
using dynamo::SizeId;
using dynamo::SizeIds;
using dynamo::Specialisation;
using dynamo::SymbolSource;
using lowering::Argument;
using lowering::Number;

/// A value of a Graph as Python holds it, so that node arguments can be told from numbers.
struct GraphValue {
  int64_t id;
};
/// An expression over the graph's symbols as Python holds it.
struct GraphSize {
  SizeId id;
};

const c10::FunctionSchema& schema_of(const std::string& name) {
  const size_t dot = name.find('.');
  const c10::OperatorName op(name.substr(0, dot),
                             dot == std::string::npos ? "" : name.substr(dot + 1));
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(op.name.c_str(), op.overload_name.c_str())
      .schema();
}

Number to_number(const py::handle& object) {
  Number number;
  if (py::isinstance<py::bool_>(object)) {
    number.kind = DType::pred;
    number.integer = object.cast<bool>() ? 1 : 0;
  } else if (PyLong_Check(object.ptr())) {
    int overflow = 0;
    number.kind = DType::i64;
    number.integer = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
    if (overflow > 0) {
      number.kind = DType::u64;
      number.integer = static_cast<int64_t>(PyLong_AsUnsignedLongLong(object.ptr()));
      if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    }
  } else if (PyComplex_Check(object.ptr())) {
    number.kind = DType::c128;
    number.real_imag = object.cast<std::complex<double>>();
  } else {
    number.kind = DType::f64;
    number.real_imag = object.cast<double>();
  }
  return number;
}

py::object to_python(const Number& number) {
  switch (number.kind) {
    case DType::pred:
      return py::bool_(number.integer != 0);
    case DType::f64:
      return py::float_(number.as_double());
    case DType::c128:
      return py::cast(number.as_complex());
    case DType::u64:
      return py::int_(static_cast<uint64_t>(number.integer));
    default:
      return py::int_(number.integer);
  }
}

SizeId to_size(Graph& graph, const py::handle& object) {
  if (py::isinstance<GraphSize>(object)) return object.cast<GraphSize>().id;
  return graph.sizes().constant(to_number(object));
}

SizeIds to_sizes(Graph& graph, const py::handle& list) {
  SizeIds ids;
  for (const py::handle& item : list) ids.push_back(to_size(graph, item));
  return ids;
}

int64_t to_value(Graph& graph, const py::handle& object) {
  if (object.is_none()) return NodeArgument::kNone;
  if (py::isinstance<GraphValue>(object)) return object.cast<GraphValue>().id;
  return ~static_cast<int64_t>(to_size(graph, object));  // A number in a tensor's place.
}

c10::TypePtr without_optional(const c10::TypePtr& type) {
  return type->kind() == c10::TypeKind::OptionalType
             ? type->expect<c10::OptionalType>()->getElementType()
             : type;
}

c10::ScalarType to_scalar_type(const py::handle& dtype) {
  return reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
}

/// A number for a Scalar or float argument; ints given for a float become one.
SizeId to_scalar(Graph& graph, const py::handle& object, bool is_float) {
  const SizeId id = to_size(graph, object);
  if (!is_float) return id;
  if (!graph.sizes().is_constant(id)) {
    const SizeId operands[] = {id};
    return graph.sizes().apply("to_float", operands);
  }
  Number number = graph.sizes().value_of_constant(id);
  if (number.kind == DType::f64) return id;
  number.real_imag = number.as_double();
  number.integer = 0;
  number.kind = DType::f64;
  return graph.sizes().constant(number);
}

/// Python argument -> NodeArgument, by the schema's type.
NodeArgument to_argument(Graph& graph, const c10::Argument& declared, const py::handle& object) {
  NodeArgument out;
  if (object.is_none()) return out;
  const c10::TypePtr type = without_optional(declared.real_type());
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      out.kind = Argument::Kind::Tensor;
      out.values.push_back(to_value(graph, object));
      return out;
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
      out.kind = Argument::Kind::Scalar;
      out.numbers.push_back(to_scalar(graph, object, type->kind() == c10::TypeKind::FloatType));
      return out;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      out.kind = Argument::Kind::Int;
      out.numbers.push_back(to_size(graph, object));
      return out;
    case c10::TypeKind::BoolType:
      out.kind = Argument::Kind::Bool;
      out.numbers.push_back(to_size(graph, object));
      return out;
    case c10::TypeKind::AnyType:  // A process group, or its name.
    case c10::TypeKind::StringType:
      out.kind = Argument::Kind::String;
      out.text = (py::hasattr(object, "group_name") ? object.attr("group_name") : object)
                     .cast<std::string>();
      return out;
    case c10::TypeKind::ScalarTypeType:
      out.kind = Argument::Kind::Type;
      out.dtype = aten::checked_dtype(to_scalar_type(object));
      return out;
    case c10::TypeKind::GeneratorType:
      out.kind = Argument::Kind::Generator;
      return out;
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::MemoryFormatType:
    case c10::TypeKind::DeviceObjType:
      out.kind = Argument::Kind::Ignored;
      return out;
    case c10::TypeKind::ListType: {
      const c10::TypePtr element =
          without_optional(type->expect<c10::ListType>()->getElementType());
      switch (element->kind()) {
        case c10::TypeKind::TensorType:
          out.kind = Argument::Kind::TensorList;
          for (const py::handle& item : object) out.values.push_back(to_value(graph, item));
          return out;
        case c10::TypeKind::IntType:
        case c10::TypeKind::SymIntType:
        case c10::TypeKind::BoolType:
          out.kind = element->kind() == c10::TypeKind::BoolType ? Argument::Kind::BoolList
                                                                : Argument::Kind::IntList;
          if (py::isinstance<py::sequence>(object)) {
            out.numbers = to_sizes(graph, object);
          } else {
            out.numbers.resize(static_cast<size_t>(std::max(declared.N().value_or(1), 1)),
                               to_size(graph, object));
          }
          return out;
        case c10::TypeKind::NumberType:
        case c10::TypeKind::FloatType:
          out.kind = Argument::Kind::ScalarList;
          for (const py::handle& item : object) {
            out.numbers.push_back(
                to_scalar(graph, item, element->kind() == c10::TypeKind::FloatType));
          }
          return out;
        default:
          break;
      }
      break;
    }
    default:
      break;
  }
  throw Error(ErrorKind::kUnsupported, "argument " + declared.name() + " of type " +
                                           declared.real_type()->annotation_str() +
                                           " cannot be lowered");
}

/// One value per result: None, or (dtype, sizes).
std::vector<int64_t> add_node(Graph& graph, const std::string& op, const py::sequence& args,
                              const py::sequence& results) {
  const c10::FunctionSchema& schema = schema_of(op);
  std::vector<NodeArgument> arguments;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    arguments.push_back(to_argument(graph, schema.arguments()[i], py::object(args[i])));
  }
  std::vector<NodeResult> types;
  for (const py::handle& item : results) {
    NodeResult& result = types.emplace_back();
    if (item.is_none()) {
      result.defined = false;
      continue;
    }
    const auto pair = item.cast<py::tuple>();
    result.dtype = aten::checked_dtype(to_scalar_type(py::object(pair[0])));
    result.sizes = to_sizes(graph, py::object(pair[1]));
  }
  return graph.add_node(op, std::move(arguments), std::move(types));
}

/// Evaluates `function` in Python: called with the operands' values.
dynamo::Sizes::Function python_function(const py::object& function) {
  // Released under the GIL, or not at all after the interpreter's end.
  const std::shared_ptr<py::object> kept(new py::object(function), [](py::object* object) {
    if (Py_IsInitialized() == 0) return;
    const py::gil_scoped_acquire gil;
    delete object;
  });
  return [kept](std::span<const Number> operands) {
    const py::gil_scoped_acquire gil;
    py::tuple arguments(operands.size());
    for (size_t i = 0; i < operands.size(); ++i) arguments[i] = to_python(operands[i]);
    return to_number((*kept)(*arguments));
  };
}

/// The boxed call: takes a list of inputs, empties it, returns the list of outputs.
py::list call_graph(Graph& graph, const py::list& arguments) {
  const size_t count = arguments.size();
  TORCH_CHECK(count + graph.constants().size() == graph.input_count(), graph.name(), ": expected ",
              graph.input_count() - graph.constants().size(), " inputs, got ", count);
  std::vector<CallInput> inputs(graph.input_count());
  for (size_t i = 0; i < count; ++i) {
    PyObject* const object = PyList_GET_ITEM(arguments.ptr(), static_cast<Py_ssize_t>(i));
    if (THPVariable_Check(object)) {
      inputs[i].tensor = THPVariable_Unpack(object);
    } else if (PyLong_Check(object) || PyFloat_Check(object)) {
      inputs[i].number = to_number(object);
    } else if (py::hasattr(object, "node")) {  // A symbolic number that has a value.
      inputs[i].number = to_number(py::handle(object).attr("node").attr("hint"));
    }
  }
  for (size_t i = 0; i < graph.constants().size(); ++i) {
    inputs[count + i].tensor = graph.constants()[i];
  }
  std::shared_ptr<const Specialisation> specialisation;
  {
    const py::gil_scoped_release release;
    specialisation = graph.specialise(inputs);
  }
  // The caller's references go, so that what is not returned is freed when the graph has run.
  std::vector<py::object> passed;
  for (const GraphOutput& output : graph.outputs()) {
    if (output.kind == GraphOutput::Kind::Input) {
      passed.push_back(
          py::reinterpret_borrow<py::object>(arguments[static_cast<size_t>(output.base)]));
    }
  }
  arguments.attr("clear")();
  std::vector<CallOutput> made;
  {
    const py::gil_scoped_release release;
    made = specialisation->run(std::move(inputs));
  }
  py::list returned(made.size());
  size_t at = 0, next_passed = 0;
  for (const GraphOutput& output : graph.outputs()) {
    switch (output.kind) {
      case GraphOutput::Kind::Overwrite:
        continue;
      case GraphOutput::Kind::Input:
        returned[at++] = std::move(passed[next_passed++]);
        continue;
      case GraphOutput::Kind::Number:
        returned[at] = to_python(made[at].number);
        break;
      case GraphOutput::Kind::None:
        returned[at] = py::none();
        break;
      case GraphOutput::Kind::Fresh:
      case GraphOutput::Kind::View:
        returned[at] =
            py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(made[at].tensor)));
        break;
    }
    ++at;
  }
  return returned;
}

}  // namespace

void bind_compile(py::module_& m) {
  py::class_<GraphValue>(m, "GraphValue").def_readonly("id", &GraphValue::id);
  py::class_<GraphSize>(m, "GraphSize").def_readonly("id", &GraphSize::id);

  py::class_<Graph, std::shared_ptr<Graph>> graph_class(m, "Graph");
  graph_class
      .def(py::init<std::string, c10::DeviceIndex, bool>(), py::arg("name"), py::arg("device"),
           py::arg("keep_text") = false)
      .def("number",
           [](Graph& graph, const py::object& number) {
             return GraphSize{graph.sizes().constant(to_number(number))};
           })
      .def("symbol", [](Graph& graph, bool real) { return GraphSize{graph.sizes().symbol(real)}; })
      .def("apply",
           [](Graph& graph, const std::string& op, const py::sequence& operands) {
             const SizeIds ids = to_sizes(graph, operands);
             return aten::translating_errors(
                 [&] { return GraphSize{graph.sizes().apply(op, ids)}; });
           })
      .def("function",
           [](Graph& graph, const py::object& function, const py::sequence& operands) {
             return GraphSize{
                 graph.sizes().apply(python_function(function), to_sizes(graph, operands))};
           })
      .def(
          "bind",
          [](Graph& graph, const GraphSize& symbol, size_t input, const std::string& part,
             size_t axis) {
            graph.bind(symbol.id, {part == "size"     ? SymbolSource::Part::Size
                                   : part == "stride" ? SymbolSource::Part::Stride
                                                      : SymbolSource::Part::Number,
                                   input, axis});
          },
          py::arg("symbol"), py::arg("input"), py::arg("part") = "number", py::arg("axis") = 0)
      .def("input",
           [](Graph& graph, const py::object& dtype, const py::sequence& sizes,
              const py::sequence& strides, bool host_scalar) {
             GraphInput input;
             input.kind = host_scalar ? GraphInput::Kind::HostScalar : GraphInput::Kind::Tensor;
             input.dtype = to_scalar_type(dtype);
             input.sizes = to_sizes(graph, sizes);
             input.strides = to_sizes(graph, strides);
             return GraphValue{
                 aten::translating_errors([&] { return graph.add_input(std::move(input)); })};
           })
      .def("number_input",
           [](Graph& graph) {
             GraphInput input;
             input.kind = GraphInput::Kind::Number;
             graph.add_input(std::move(input));
           })
      .def("constant",
           [](Graph& graph, at::Tensor tensor) {
             return GraphValue{
                 aten::translating_errors([&] { return graph.add_constant(std::move(tensor)); })};
           })
      .def("call",
           [](Graph& graph, const std::string& op, const py::sequence& args,
              const py::sequence& results) {
             std::vector<GraphValue> values;
             const std::vector<int64_t> ids =
                 aten::translating_errors([&] { return add_node(graph, op, args, results); });
             for (const int64_t id : ids) values.push_back({id});
             return values;
           })
      .def(
          "output",
          [](Graph& graph, const GraphValue& value, const py::object& dtype,
             const py::sequence& sizes, const py::sequence& strides, int64_t overwrites,
             bool to_host) {
            GraphOutput output;
            output.kind = overwrites >= 0 ? GraphOutput::Kind::Overwrite : GraphOutput::Kind::Fresh;
            output.value = value.id;
            output.base = overwrites;
            output.to_host = to_host;
            output.dtype = to_scalar_type(dtype);
            output.sizes = to_sizes(graph, sizes);
            output.strides = to_sizes(graph, strides);
            graph.add_output(std::move(output));
          },
          py::arg("value"), py::arg("dtype"), py::arg("sizes"), py::arg("strides"),
          py::arg("overwrites") = -1, py::arg("to_host") = false)
      .def("output_view",
           [](Graph& graph, bool of_input, int64_t base, const py::sequence& sizes,
              const py::sequence& strides, const py::object& offset) {
             GraphOutput output;
             output.kind = GraphOutput::Kind::View;
             output.of_input = of_input;
             output.base = base;
             output.sizes = to_sizes(graph, sizes);
             output.strides = to_sizes(graph, strides);
             output.number = to_size(graph, offset);
             graph.add_output(std::move(output));
           })
      .def("output_input",
           [](Graph& graph, int64_t input) {
             GraphOutput output;
             output.kind = GraphOutput::Kind::Input;
             output.base = input;
             graph.add_output(std::move(output));
           })
      .def("output_number",
           [](Graph& graph, const py::object& number) {
             GraphOutput output;
             output.kind = GraphOutput::Kind::Number;
             output.number = to_size(graph, number);
             graph.add_output(std::move(output));
           })
      .def("output_none", [](Graph& graph) { graph.add_output({}); })
      .def("specialise",
           [](Graph& graph, const py::sequence& symbols) {
             std::vector<Number> values;
             for (const py::handle& value : symbols) values.push_back(to_number(value));
             const py::gil_scoped_release release;
             graph.specialise(values);
           })
      .def_property_readonly("refused_node", &Graph::refused_node)
      .def_property_readonly("node_count", &Graph::node_count)
      .def_property_readonly("specialisations", &Graph::specialisation_count)
      .def_property_readonly("stablehlo", &Graph::stablehlo)
      .def("__call__", &call_graph);
  // What AOTAutograd looks for: the call takes one list and empties it.
  graph_class.attr("_boxed_call") = true;

  m.def("_has_lowering",
        [](const std::string& name) { return lowering::find_lowering(name) != nullptr; });
  m.def("_lowered_ops", [] {
    std::vector<std::string> names;
    for (const lowering::Lowering& lowering : lowering::all_lowerings()) {
      names.push_back(lowering.name());
    }
    return names;
  });
}

}  // namespace neuron::bindings
