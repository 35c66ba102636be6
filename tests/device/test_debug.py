"""Finding faults: comparison with the CPU, errors at the operator, fallback as an error."""

import pytest
import torch
import torch_neuronx
from conftest import DEVICE
from torch_neuronx import debug


def test_compare_is_silent_about_right_results():
    x = torch.randn(4, 5).to(DEVICE).requires_grad_()
    with debug.compare() as report:
        y = torch.nn.functional.gelu(x.t() @ x)
        y.sum().backward()
        torch.nn.functional.dropout(x, 0.5)
        buffer = torch.zeros(3, 6, device=DEVICE)[:, ::2]
        buffer += 1
    assert report.divergence is None and report.compared > 5
    assert any("dropout" in name for name in report.skipped)


def test_compare_reports_the_first_wrong_result():
    with torch.library._scoped_library("neuron_debug", "FRAGMENT") as library:
        library.define("halve(Tensor x) -> Tensor")
        library.define("double_(Tensor(a!) x) -> Tensor(a!)")
        library.impl("halve", lambda x: x / 2, "CPU")
        library.impl("halve", lambda x: x / 3, "PrivateUse1")
        library.impl("double_", lambda x: x.mul_(2), "CPU")
        library.impl("double_", lambda x: x.mul_(3), "PrivateUse1")
        ops = torch.ops.neuron_debug
        x = torch.arange(6.0).reshape(2, 3).to(DEVICE).t()
        with pytest.raises(debug.DivergenceError) as caught, debug.compare():
            ops.halve(x + 1)
        text = str(caught.value)
        assert "neuron_debug::halve: result 0" in text and "float32[3, 2] strides [1, 3]" in text
        with debug.compare(raises=False) as report:
            ops.double_(x)
            ops.halve(x)
        assert report.divergence.op == "neuron_debug::double_"
        assert "written" in report.divergence.result


def test_blocking_raises_where_the_fault_is():
    x = torch.arange(4.0, device=DEVICE)
    with debug.blocking(), pytest.raises((IndexError, RuntimeError), match="ind"):
        x[torch.tensor([9], device=DEVICE)]
    assert x.sum().item() == 6


def test_no_fallback():
    x = torch.randn(4, 4).to(DEVICE)
    with debug.no_fallback(), pytest.raises(NotImplementedError, match="fallback is off"):
        torch.linalg.lstsq(x, x)
    torch.linalg.lstsq(x, x)
    assert "aten::linalg_lstsq" in torch_neuronx.get_fallback_ops()
