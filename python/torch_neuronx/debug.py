"""Finding faults: comparison with the CPU, errors where they arise, fallback as an error."""

import contextlib
import dataclasses

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from torch_neuronx import _C


class DivergenceError(AssertionError):
    """An operator's result differs from the CPU's."""


@dataclasses.dataclass
class Divergence:
    """The first result of an operator that is not the CPU's."""

    op: str
    result: str  # "result 0", "argument 1 (written)"
    inputs: list[str]  # Dtype, shape, strides and storage offset of each tensor.
    error: str

    def __str__(self):
        inputs = "\n".join(f"    {line}" for line in self.inputs)
        return (
            f"{self.op}: {self.result} differs from the CPU's\n  inputs:\n{inputs}\n  {self.error}"
        )


@dataclasses.dataclass
class Report:
    compared: int = 0
    skipped: list[str] = dataclasses.field(default_factory=list)  # Random or without values.
    divergence: Divergence | None = None


def _layout(tensor: torch.Tensor) -> str:
    text = (
        f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} "
        f"strides {list(tensor.stride())} offset {tensor.storage_offset()}"
    )
    bits = " conj" * tensor.is_conj() + " neg" * tensor.is_neg()
    return text + bits


def _host_copy(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on the CPU with the same strides, expanded dims included."""
    if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
        return tensor.detach().cpu()
    sizes, strides = tensor.size(), tensor.stride()
    extent = 0
    if tensor.numel():
        extent = sum((n - 1) * k for n, k in zip(sizes, strides, strict=True)) + 1
    flat = tensor.detach().as_strided((extent,), (1,)).cpu()
    return flat.as_strided(sizes, strides, 0)


# Results whose values nobody has written yet.
_no_values = ("empty", "new_empty", "resize", "set_", "record_stream", "_local_scalar_dense")


class _CompareMode(TorchDispatchMode):
    def __init__(self, report, rtol, atol, raises):
        super().__init__()
        self.report, self.rtol, self.atol, self.raises = report, rtol, atol, raises

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        flat, _ = tree_flatten((args, kwargs))
        tensors = [x for x in flat if isinstance(x, torch.Tensor)]
        on_device = [x for x in tensors if x.device.type == "neuron"]
        if not on_device or self.report.divergence is not None:
            return func(*args, **kwargs)
        name = func.name()
        base = name.removeprefix("aten::").split(".")[0]
        if (
            func.is_view
            or torch.Tag.nondeterministic_seeded in func.tags
            or base.startswith(_no_values)
        ):
            if not func.is_view:
                self.report.skipped.append(name)
            return func(*args, **kwargs)
        inputs = [_layout(x) for x in tensors]
        copies: dict[int, torch.Tensor] = {}

        def to_host(value):
            if isinstance(value, torch.Tensor) and value.device.type == "neuron":
                if id(value) not in copies:
                    copies[id(value)] = _host_copy(value)
                return copies[id(value)]
            if isinstance(value, torch.Tensor) and id(value) not in copies:
                copies[id(value)] = value.detach().clone()
            if isinstance(value, torch.Tensor):
                return copies[id(value)]
            if isinstance(value, torch.device) and value.type == "neuron":
                return torch.device("cpu")
            return value

        host_args, host_kwargs = tree_map(to_host, (args, kwargs))
        actual = func(*args, **kwargs)
        torch.neuron.synchronize()
        try:
            expected = func(*host_args, **host_kwargs)
        except Exception:  # The CPU lacks the kernel.
            self.report.skipped.append(name)
            return actual
        self.report.compared += 1
        for number, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            given = args[number] if number < len(args) else kwargs.get(argument.name)
            self.check(name, inputs, f"argument {argument.name}", given, _copied(given, copies))
        self.check(name, inputs, "result", actual, expected)
        return actual

    def check(self, name, inputs, what, actual, expected) -> None:
        if self.report.divergence is not None:
            return
        flat_actual, flat_expected = tree_flatten(actual)[0], tree_flatten(expected)[0]
        for number, (a, e) in enumerate(zip(flat_actual, flat_expected, strict=False)):
            if not isinstance(a, torch.Tensor) or not isinstance(e, torch.Tensor):
                continue
            try:
                torch.testing.assert_close(
                    a.detach().cpu(), e.detach(), rtol=self.rtol, atol=self.atol, equal_nan=True
                )
            except AssertionError as error:
                label = f"{what} {number}" if what == "result" else f"{what} (written)"
                found = Divergence(name, label, inputs, str(error))
                self.report.divergence = found
                if self.raises:
                    raise DivergenceError(str(found)) from None
                return


def _copied(value, copies):
    """The host copies that were made of the tensors in ``value``."""
    return tree_map(lambda x: copies.get(id(x), x) if isinstance(x, torch.Tensor) else x, value)


@contextlib.contextmanager
def compare(*, rtol: float | None = None, atol: float | None = None, raises: bool = True):
    """Runs every operator of the block on the CPU, too, and reports the first that differs.

    Yields a Report. ``raises``: a divergence raises DivergenceError at the operator. Tolerances
    default to torch.testing's for the dtype. Backward passes are compared as well; random operators
    are not. Slow: every tensor is copied to the host.
    """
    report = Report()
    with _CompareMode(report, rtol, atol, raises):
        yield report


@contextlib.contextmanager
def blocking():
    """Every operator of the block is waited for and raises its own errors, such as an index out of
    bounds; as under NEURON_LAUNCH_BLOCKING=1."""
    before = _C._set_blocking(True)
    try:
        yield
    finally:
        torch.neuron.synchronize()
        _C._set_blocking(before)


@contextlib.contextmanager
def no_fallback():
    """An operator that would run on the CPU raises NotImplementedError; as under
    TORCH_NEURONX_FALLBACK=error."""
    before = _C._exchange_fallback_allowed(0)
    try:
        yield
    finally:
        _C._exchange_fallback_allowed(before)
