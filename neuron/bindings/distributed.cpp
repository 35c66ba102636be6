#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "neuron/bindings/bindings.h"
#include "neuron/c10d/process_group.h"
#include "neuron/c10d/recorder.h"

namespace py = pybind11;

namespace neuron::bindings {
namespace {

using distributed::Launch;
using distributed::ProcessGroupNeuron;
using StoreRef = c10::intrusive_ptr<::c10d::Store>;
using BackendRef = c10::intrusive_ptr<::c10d::Backend>;

/// Holds a Python function for as long as the process lives.
distributed::GlooFactory wrap_factory(const py::object& make) {
  return [make = make.inc_ref()](const StoreRef& store, int rank, int size,
                                 std::chrono::milliseconds timeout) {
    const py::gil_scoped_acquire acquire;
    return py::cast<BackendRef>(make(store, rank, size, timeout));
  };
}

py::list facts(const std::vector<distributed::TensorFacts>& tensors, bool sizes) {
  py::list out;
  for (const distributed::TensorFacts& tensor : tensors) {
    if (sizes) {
      out.append(py::cast(tensor.sizes));
    } else {
      out.append(std::string(c10::toString(tensor.type)));
    }
  }
  return out;
}

py::list flight_record() {
  py::list out;
  for (const distributed::Record& record : distributed::recorded()) {
    py::dict entry;
    entry["record_id"] = record.id;
    entry["process_group"] = record.group;
    entry["profiling_name"] = std::string("neuron:") + record.op;
    entry[record.is_transfer ? "p2p_seq_id" : "collective_seq_id"] = record.sequence;
    entry["is_p2p"] = record.is_transfer;
    entry["rank"] = record.rank;
    entry["state"] = !record.ended ? "started" : record.error.empty() ? "completed" : "failed";
    entry["error"] = record.error;
    entry["input_sizes"] = facts(record.inputs, true);
    entry["input_dtypes"] = facts(record.inputs, false);
    entry["output_sizes"] = facts(record.outputs, true);
    entry["output_dtypes"] = facts(record.outputs, false);
    entry["time_created_ns"] = record.created_ns;
    entry["time_completed_ns"] = record.completed_ns;
    entry["timeout_ms"] = record.timeout_ms;
    out.append(entry);
  }
  return out;
}

}  // namespace

void bind_distributed(py::module_& m) {
  m.def("_flight_record", flight_record);
  m.def("_clear_flight_record", distributed::clear_records);

  py::module_ c10d;
  try {
    c10d = py::module_::import("torch._C._distributed_c10d");
  } catch (py::error_already_set&) {
    return;  // A torch without torch.distributed.
  }
  m.def("_set_gloo_factory",
        [](const py::object& make) { distributed::set_gloo_factory(wrap_factory(make)); });

  const py::object backend = c10d.attr("Backend");
  py::class_<ProcessGroupNeuron, c10::intrusive_ptr<ProcessGroupNeuron>> group(
      m, "ProcessGroupNeuron", backend);
  using Options = ProcessGroupNeuron::Options;
  py::class_<Options, c10::intrusive_ptr<Options>>(group, "Options", backend.attr("Options"))
      .def(py::init([](std::chrono::milliseconds timeout) {
             return c10::make_intrusive<Options>(timeout);
           }),
           py::arg("timeout") = kBackendDefaultTimeout)
      .def("__copy__", [](const Options& self) { return c10::make_intrusive<Options>(self); })
      .def("__deepcopy__",
           [](const Options& self, const py::dict&) { return c10::make_intrusive<Options>(self); });
  group
      .def(py::init([](const StoreRef& store, int rank, int size,
                       const c10::intrusive_ptr<Options>& options,
                       const std::tuple<int, int, int, int>& launch) {
             const auto [env_rank, world_size, local_rank, local_world_size] = launch;
             const py::gil_scoped_release release;
             return c10::make_intrusive<ProcessGroupNeuron>(
                 store, rank, size, options,
                 Launch{env_rank, world_size, local_rank, local_world_size});
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"),
           py::arg("launch"))
      .def(
          "perform_nocolor_split", [](ProcessGroupNeuron&, const py::object&) {},
          "Ranks outside a new group have nothing to do.")
      .def(
          "monitored_barrier",
          [](ProcessGroupNeuron& self, std::chrono::milliseconds timeout, bool wait_all_ranks) {
            const py::gil_scoped_release release;
            ::c10d::BarrierOptions options;
            options.timeout = timeout;
            self.monitoredBarrier(options, wait_all_ranks);
          },
          py::arg("timeout"), py::arg("wait_all_ranks") = false)
      .def_property_readonly(
          "options",
          [](ProcessGroupNeuron& self) {
            return c10::static_intrusive_pointer_cast<Options>(self.getBackendOptions());
          })
      .def_property_readonly("transport", &ProcessGroupNeuron::transport,
                             "How the ranks of this group reach each other.");
}

}  // namespace neuron::bindings
