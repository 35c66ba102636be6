"""Graphs: a stream's work, recorded once and run many times."""

import itertools

import torch

_pools = itertools.count(1 << 32)


def graph_pool_handle() -> tuple[int, int]:
    """A name for a memory pool that graphs share. Graphs own the memory they use; the name is
    accepted where ``torch.cuda.graphs`` takes one."""
    return (0, next(_pools))


class NeuronGraph(torch.accelerator.Graph):
    """``torch.accelerator.Graph`` with the arguments of ``torch.cuda.CUDAGraph``."""

    def capture_begin(self, pool=None, capture_error_mode: str = "global") -> None:
        if pool is not None:
            self.graph_pool = pool
        self.capture_error_mode = capture_error_mode
        super().capture_begin()


CUDAGraph = NeuronGraph  # What is left of the name when a program's "cuda" becomes "neuron".


class graph:
    """``with torch.neuron.graph(g):`` records the block's work into ``g`` instead of running it.

    ``stream``: which stream is recorded; default a stream of its own.
    """

    def __init__(self, neuron_graph, pool=None, stream=None, capture_error_mode: str = "global"):
        self.graph, self.pool, self.mode = neuron_graph, pool, capture_error_mode
        self.stream_context = torch.neuron.stream(stream or torch.neuron.Stream())

    def __enter__(self):
        torch.neuron.synchronize()
        self.stream_context.__enter__()
        self.graph.capture_begin(pool=self.pool, capture_error_mode=self.mode)

    def __exit__(self, kind, value, traceback):
        try:
            self.graph.capture_end()
        finally:
            self.stream_context.__exit__(kind, value, traceback)
        return False
