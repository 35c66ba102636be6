import subprocess
import sys
import threading

import pytest
import torch


def test_autoload_gives_the_device_without_an_import():
    code = (
        "import sys, torch; assert torch.ones(2, device='neuron').is_neuron; "
        "assert torch.accelerator.current_accelerator().type == 'neuron'; "
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_autoload_can_be_switched_off():
    code = "import torch; assert not hasattr(torch, 'neuron')"
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env={**__import__("os").environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )


def test_importing_the_package_first_works():
    subprocess.run(
        [sys.executable, "-c", "import torch_neuronx, torch; torch.ones(1, device='neuron')"],
        check=True,
    )


def test_interpreter_exits_cleanly_with_live_tensors():
    code = "import torch; keep = torch.ones(10, device='neuron') + 1; s = torch.neuron.Stream()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""


def test_interpreter_exits_cleanly_right_after_a_backward_pass():
    # Autograd's thread still drops the gradients, which are Python objects, when the program ends.
    code = (
        "import torch\n"
        "leaves = [torch.ones(2, device='neuron', requires_grad=True) for _ in range(3000)]\n"
        "grads = torch.autograd.grad(torch.stack(leaves).sum(), leaves)\n"
        "del grads\n"
    )
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0 and done.stderr == ""


def test_device_index_out_of_range_names_the_valid_range():
    count = torch.neuron.device_count()
    with pytest.raises(RuntimeError, match=rf"is out of range.*\[0, {count - 1}\]"):
        torch.empty(1, device="neuron:99")


def test_each_thread_has_its_own_current_device():
    if torch.neuron.device_count() < 2:
        pytest.skip("needs two visible cores")
    seen = {}

    def other():
        torch.neuron.set_device(1)
        seen["other"] = torch.ones(1, device="neuron").device.index

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen["other"] == 1 and torch.neuron.current_device() == 0


def test_copies_between_devices():
    if torch.neuron.device_count() < 2:
        pytest.skip("needs two visible cores")
    x = torch.randn(5, 3, device="neuron:0")
    y = x.t().to("neuron:1")
    assert y.device.index == 1
    torch.testing.assert_close(y.cpu(), x.cpu().t())


def test_using_the_device_after_fork_asks_for_spawn():
    code = """
import os, torch
torch.ones(1, device="neuron")
pid = os.fork()
if pid == 0:
    try:
        torch.ones(1, device="neuron") + 1
    except RuntimeError as error:
        os._exit(0 if "spawn" in str(error) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_fork_before_first_use_is_fine():
    code = """
import os, torch
pid = os.fork()
if pid == 0:
    os._exit(0 if (torch.ones(3, device="neuron") + 1).sum().item() == 6 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_parameters_keep_their_identity_when_moved():
    layer = torch.nn.Linear(2, 2)
    weight = layer.weight
    assert layer.to("neuron").weight is weight and weight.is_neuron


def test_properties_name_the_target():
    properties = torch.neuron.get_device_properties()
    assert properties.name in ("trn2", "trn3") and properties.total_memory > 1 << 30


def test_repr_reads_the_device_once():
    assert repr(torch.arange(3, device="neuron")) == "tensor([0, 1, 2], device='neuron:0')"


def test_mixed_devices_name_the_argument():
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device="neuron") + torch.ones(3)


def test_malformed_environment_is_named():
    done = subprocess.run(
        [sys.executable, "-c", "import torch; torch.ones(1, device='neuron')"],
        capture_output=True,
        text=True,
        env={**__import__("os").environ, "TORCH_NEURONX_TARGET": "gpu"},
    )
    assert done.returncode != 0
    assert "TORCH_NEURONX_TARGET" in done.stderr and "trn2" in done.stderr and "gpu" in done.stderr
