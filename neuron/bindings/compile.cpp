#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "neuron/aten/tensor.h"
#include "neuron/bindings/bindings.h"
#include "neuron/dynamo/graph.h"
#include "neuron/lowering/registry.h"

namespace py = pybind11;

namespace neuron::bindings {
namespace {

using dynamo::CompiledGraph;
using dynamo::Graph;
using lowering::Argument;
using lowering::Number;

/// A value of a Graph as Python holds it, so that node arguments can be told from numbers.
struct GraphValue {
  int64_t id;
};

const c10::FunctionSchema& schema_of(const std::string& name) {
  const size_t dot = name.find('.');
  const c10::OperatorName op(name.substr(0, dot),
                             dot == std::string::npos ? "" : name.substr(dot + 1));
  return c10::Dispatcher::singleton().findSchemaOrThrow(op.name.c_str(), op.overload_name.c_str())
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

hlo::Value tensor_value(const Graph& graph, const py::handle& object) {
  return object.is_none() ? hlo::Value() : graph.value(object.cast<GraphValue>().id);
}

/// Python argument -> Argument, by the schema's type. Numbers are compile-time constants here.
Argument to_argument(Graph& graph, const c10::Argument& declared, const py::handle& object) {
  Argument out;
  c10::TypePtr type = declared.type();
  if (type->kind() == c10::TypeKind::OptionalType) {
    if (object.is_none()) return out;
    type = type->expect<c10::OptionalType>()->getElementType();
  }
  const c10::TypePtr real = declared.real_type();
  const auto kind_of = [](c10::TypePtr t) {
    return t->kind() == c10::TypeKind::OptionalType
               ? t->expect<c10::OptionalType>()->getElementType()
               : t;
  };
  const c10::TypePtr exact = kind_of(real);
  switch (exact->kind()) {
    case c10::TypeKind::TensorType:
      if (object.is_none()) return out;
      out.kind = Argument::Kind::Tensor;
      if (py::isinstance<GraphValue>(object)) {
        out.tensors.push_back(tensor_value(graph, object));
        out.wrapped.push_back(0);
      } else {  // A Python number in a tensor's place.
        out.tensors.push_back(graph.number(to_number(object)));
        out.wrapped.push_back(1);
      }
      return out;
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
      out.kind = Argument::Kind::Scalar;
      out.numbers.push_back(to_number(object));
      if (exact->kind() == c10::TypeKind::FloatType && out.numbers[0].kind != DType::f64) {
        out.numbers[0].real_imag = out.numbers[0].as_double();
        out.numbers[0].kind = DType::f64;
      }
      out.runtime.emplace_back();
      return out;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      out.kind = Argument::Kind::Int;
      out.ints.push_back(object.cast<int64_t>());
      return out;
    case c10::TypeKind::BoolType:
      out.kind = Argument::Kind::Bool;
      out.ints.push_back(object.cast<bool>() ? 1 : 0);
      return out;
    case c10::TypeKind::StringType:
      out.kind = Argument::Kind::String;
      out.text = object.cast<std::string>();
      return out;
    case c10::TypeKind::ScalarTypeType:
      out.kind = Argument::Kind::Type;
      out.dtype = aten::checked_dtype(reinterpret_cast<THPDtype*>(object.ptr())->scalar_type);
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
      const c10::TypePtr element = kind_of(exact->expect<c10::ListType>()->getElementType());
      const bool is_sequence = py::isinstance<py::sequence>(object);
      switch (element->kind()) {
        case c10::TypeKind::TensorType:
          out.kind = Argument::Kind::TensorList;
          for (const py::handle& item : object) {
            out.tensors.push_back(tensor_value(graph, item));
            out.wrapped.push_back(0);
          }
          return out;
        case c10::TypeKind::IntType:
        case c10::TypeKind::SymIntType:
        case c10::TypeKind::BoolType:
          out.kind = element->kind() == c10::TypeKind::BoolType ? Argument::Kind::BoolList
                                                                : Argument::Kind::IntList;
          if (!is_sequence) {
            out.ints.resize(static_cast<size_t>(std::max(declared.N().value_or(1), 1)),
                            object.cast<int64_t>());
          } else {
            for (const py::handle& item : object) out.ints.push_back(item.cast<int64_t>());
          }
          return out;
        case c10::TypeKind::NumberType:
        case c10::TypeKind::FloatType:
          out.kind = Argument::Kind::ScalarList;
          for (const py::handle& item : object) {
            out.numbers.push_back(to_number(item));
            if (element->kind() == c10::TypeKind::FloatType &&
                out.numbers.back().kind != DType::f64) {
              out.numbers.back().real_imag = out.numbers.back().as_double();
              out.numbers.back().kind = DType::f64;
            }
            out.runtime.emplace_back();
          }
          return out;
        default: break;
      }
      break;
    }
    default: break;
  }
  throw Error(ErrorKind::kUnsupported, "argument " + declared.name() + " of type " +
                                           real->annotation_str() + " cannot be lowered");
}

at::DimVector to_dims(const std::vector<int64_t>& list) { return {list.begin(), list.end()}; }

}  // namespace

void bind_compile(py::module_& m) {
  py::class_<GraphValue>(m, "GraphValue").def_readonly("id", &GraphValue::id);

  py::class_<CompiledGraph, std::shared_ptr<CompiledGraph>>(m, "CompiledGraph")
      .def("__call__",
           [](const CompiledGraph& graph, std::vector<at::Tensor> inputs) {
             py::gil_scoped_release release;
             return graph.run(std::move(inputs));
           })
      .def_property_readonly("stablehlo", &CompiledGraph::stablehlo);

  py::class_<Graph>(m, "Graph")
      .def(py::init<std::string, c10::DeviceIndex, bool>(), py::arg("name"), py::arg("device"),
           py::arg("keep_text") = false)
      .def("input",
           [](Graph& graph, const py::object& dtype, const std::vector<int64_t>& sizes,
              const std::vector<int64_t>& strides, bool host_scalar) {
             CompiledGraph::Input input;
             input.dtype = reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
             input.sizes = to_dims(sizes);
             input.strides = to_dims(strides);
             input.host_scalar = host_scalar;
             return GraphValue{
                 aten::translating_errors([&] { return graph.input(std::move(input)); })};
           })
      .def("call",
           [](Graph& graph, const std::string& op, const py::sequence& args,
              const py::sequence& results) {
             return aten::translating_errors([&] {
               const c10::FunctionSchema& schema = schema_of(op);
               std::vector<Argument> arguments;
               for (size_t i = 0; i < schema.arguments().size(); ++i) {
                 arguments.push_back(
                     to_argument(graph, schema.arguments()[i], py::object(args[i])));
               }
               std::vector<lowering::ResultType> types;
               for (const py::handle& item : results) {
                 lowering::ResultType type;
                 if (item.is_none()) {
                   type.defined = false;
                 } else {
                   const auto pair = item.cast<py::tuple>();
                   type.dtype = aten::checked_dtype(
                       reinterpret_cast<THPDtype*>(py::object(pair[0]).ptr())->scalar_type);
                   for (const int64_t size : pair[1].cast<std::vector<int64_t>>()) {
                     type.dims.push_back(size);
                   }
                 }
                 types.push_back(std::move(type));
               }
               std::vector<GraphValue> out;
               for (const int64_t id : graph.call(op, std::move(arguments), std::move(types))) {
                 out.push_back({id});
               }
               return out;
             });
           })
      .def("output",
           [](Graph& graph, const GraphValue& value, const py::object& dtype,
              const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
              int64_t mutates) {
             graph.output(value.id, {reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type,
                                     to_dims(sizes), to_dims(strides), mutates});
           },
           py::arg("value"), py::arg("dtype"), py::arg("sizes"), py::arg("strides"),
           py::arg("mutates") = -1)
      .def("compile", [](Graph& graph) {
        py::gil_scoped_release release;
        return std::const_pointer_cast<CompiledGraph>(graph.compile());
      });

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
