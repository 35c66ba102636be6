"""The backend function: AOTAutograd, then every graph through ``lower_graph``."""

import itertools
import logging
import time

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from torch_neuronx.neuron_dynamo_backend import metrics, settings
from torch_neuronx.neuron_dynamo_backend.decompositions import decomposition_table
from torch_neuronx.neuron_dynamo_backend.host_inputs import with_host_inputs
from torch_neuronx.neuron_dynamo_backend.lower import lower_graph

log = logging.getLogger(__name__)

_known_options = {"model_name", "dynamic", "fallback_execution"}
_backend_calls = itertools.count()


def graph_device(gm, example_inputs):
    """The first neuron device that the graph's inputs or attributes live on, or None."""
    tensors = [x for x in example_inputs if isinstance(x, torch.Tensor)]
    tensors += list(gm.parameters()) + list(gm.buffers())
    for tensor in tensors:
        if tensor.device.type == "neuron":
            return tensor.device
    for node in gm.graph.nodes:
        device = node.kwargs.get("device")
        if device is not None and torch.device(device).type == "neuron":
            return torch.device(device)
        for arg in node.args:
            if isinstance(arg, torch.device) and arg.type == "neuron":
                return arg
            if isinstance(arg, str) and arg.split(":")[0] == "neuron":
                return torch.device(arg)
    return None


def neuron_backend(gm, example_inputs, *, mode=None, options=None, **kwargs):
    """Dynamo backend ``neuron``.

    ``mode``: accepted for compatibility; there is one mode. ``options``: ``model_name`` names the
    graphs; ``fallback_execution`` False (default: unless TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION
    is 1) makes nodes that the device cannot run an error; ``dynamic`` may only be False, since
    torch.compile's own argument decides. Unknown keys raise ValueError.
    """
    entered = time.perf_counter()
    options = dict(options or {})
    unknown = set(options) - _known_options
    if unknown:
        raise ValueError(
            f"unknown torch.compile options {sorted(unknown)}; known: {sorted(_known_options)}"
        )
    if options.get("dynamic"):
        raise ValueError("the option 'dynamic' is not supported: use torch.compile(dynamic=True)")
    fallback = options.get("fallback_execution")
    if mode not in (None, "default"):
        log.info("neuron: torch.compile mode %r means the default mode here", mode)
    name = options.get("model_name", settings.get_model_name())

    call = next(_backend_calls)
    graphs = itertools.count()

    def compiler(kind):
        def compile_graph(gm, inputs):
            graph_name = f"{name}_{call}_{kind}_{next(graphs)}"
            record = metrics.begin_graph(graph_name, name, gm)
            start = time.perf_counter()
            metrics.count_passes(record, start - entered)
            with settings.fallback_execution(fallback):
                compiled = lower_graph(gm, inputs, name=graph_name)
            metrics.finish_graph(record, time.perf_counter() - start)
            return compiled

        return compile_graph

    compile_graphs = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=decomposition_table(),
        keep_inference_input_mutations=True,
    )
    tensors = [x for x in example_inputs if isinstance(x, torch.Tensor)]
    if tensors and graph_device(gm, example_inputs) is None:
        return with_host_inputs(gm, example_inputs, compile_graphs)
    return compile_graphs(gm, example_inputs)
