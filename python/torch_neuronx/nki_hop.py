"""NKI kernels as PyTorch operators. The package ``nki`` is needed to write or call a kernel."""

import importlib.util

import torch


def _require_nki(what: str) -> None:
    if importlib.util.find_spec("nki") is None:
        raise ImportError(
            f"{what} needs the package 'nki' (Neuron Kernel Interface) of the Neuron SDK, which is "
            "not installed"
        )


def nki_op(name: str, fn=None, *, mutates_args=()):
    """Registers a Python function that calls NKI kernels as the operator ``"namespace::name"``.

    The function's type hints give the schema; it is its own fake implementation. ``mutates_args``:
    names of the arguments that it writes. Without ``fn`` this is a decorator.
    """

    def register(function):
        op = torch.library.custom_op(
            name, function, mutates_args=tuple(mutates_args), device_types="neuron"
        )
        op.register_fake(function)
        return op

    return register if fn is None else register(fn)


def wrap_nki(kernel):
    """A kernel as a callable that torch.compile sees as one operator. Needs NKI and a chip."""
    _require_nki("wrap_nki")
    raise NotImplementedError(
        "wrap_nki: kernels are run by the Neuron compiler and hardware; the simulator has neither"
    )
