"""Shared fixtures: the suite runs against the installed package."""

import pytest
import torch

DEVICE = torch.device("neuron")

# The references are small: one thread computes them in steady time on a busy machine.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fresh_state():
    """Every test starts from one seed and with no operators counted."""
    import torch_neuronx

    torch.manual_seed(0)
    torch_neuronx.clear_op_tracking()
    yield
    torch.neuron.synchronize()
    torch._dynamo.reset() if "torch._dynamo" in __import__("sys").modules else None


def both(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The tensor on the device (same strides, expanded dims included) and on the CPU."""
    sizes, strides = tensor.size(), tensor.stride()
    extent = sum((n - 1) * k for n, k in zip(sizes, strides, strict=True)) + 1
    extent = extent if tensor.numel() else 0
    flat = tensor.as_strided((extent,), (1,)) if extent else tensor.reshape(-1)
    return flat.to(DEVICE).as_strided(sizes, strides), tensor


def assert_same(actual, expected, **tolerances) -> None:
    """Equal within torch's tolerances for the dtype; structure, dtype and shape included."""
    torch.testing.assert_close(
        torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.cpu(), actual),
        torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.cpu(), expected),
        equal_nan=True,
        **tolerances,
    )
