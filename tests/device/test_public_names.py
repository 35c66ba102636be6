"""What programs rely on by name: modules, functions, defaults, errors of wrong arguments."""

import importlib
import os
import subprocess
import sys
import threading
from unittest.mock import patch

import pytest
import torch
import torch_neuronx
from conftest import DEVICE

two_cores = pytest.mark.skipif(torch.neuron.device_count() < 2, reason="needs two visible cores")


@pytest.mark.parametrize(
    "module",
    [
        "torch.neuron",
        "torch.neuron.amp",
        "torch.neuron.memory",
        "torch.neuron.random",
        "torch.backends.neuron",
        "torch_neuronx.amp",
        "torch_neuronx.debug",
        "torch_neuronx.memory",
        "torch_neuronx.metrics",
        "torch_neuronx.neuron",
        "torch_neuronx.neuron_dynamo_backend.backend",
        "torch_neuronx.neuron_dynamo_backend.exceptions",
        "torch_neuronx.nki_hop",
        "torch_neuronx.profiling",
        "torch_neuronx.streams",
        "torch_neuronx.utils",
    ],
)
def test_modules_can_be_imported(module):
    assert importlib.import_module(module) is not None


def test_both_packages_carry_the_functions():
    assert torch_neuronx.neuron is torch.neuron
    for name in [
        "clear_op_tracking",
        "current_device",
        "current_stream",
        "default_stream",
        "device",
        "device_count",
        "empty_cache",
        "get_device_name",
        "get_device_properties",
        "get_dynamo_metrics",
        "get_executed_ops",
        "get_fallback_ops",
        "get_rng_state",
        "initial_seed",
        "is_available",
        "is_initialized",
        "manual_seed",
        "manual_seed_all",
        "max_memory_allocated",
        "max_memory_reserved",
        "memory_allocated",
        "memory_reserved",
        "memory_stats",
        "memory_summary",
        "reset_accumulated_memory_stats",
        "reset_dynamo_metrics",
        "reset_peak_memory_stats",
        "seed",
        "set_device",
        "set_rng_state",
        "set_stream",
        "stream",
        "synchronize",
        "Event",
        "Stream",
        "StreamContext",
    ]:
        assert callable(getattr(torch.neuron, name)), name
        assert callable(getattr(torch_neuronx, name)), name
    assert torch_neuronx.memory_cached is torch.neuron.memory_cached
    assert torch.neuron.is_neuron_runtime_initialized() in (True, False)
    with pytest.raises(AttributeError):
        torch_neuronx.nonsense  # noqa: B018
    for name in torch_neuronx.__all__:
        assert getattr(torch_neuronx, name) is not None
    for name in torch_neuronx.neuron_dynamo_backend.__all__:
        assert getattr(torch_neuronx.neuron_dynamo_backend, name) is not None


def test_every_cuda_name_that_programs_use_most_exists():
    for name in [
        "is_available",
        "device_count",
        "amp",
        "current_device",
        "set_device",
        "empty_cache",
        "synchronize",
        "is_bf16_supported",
        "get_device_capability",
        "get_device_name",
        "get_device_properties",
        "max_memory_allocated",
        "manual_seed_all",
        "Stream",
        "stream",
        "graph",
        "CUDAGraph",
        "memory_allocated",
        "manual_seed",
        "reset_peak_memory_stats",
        "current_stream",
        "get_rng_state",
        "FloatTensor",
        "HalfTensor",
        "max_memory_reserved",
        "memory_reserved",
        "get_rng_state_all",
        "set_rng_state_all",
        "mem_get_info",
        "Event",
        "default_generators",
        "OutOfMemoryError",
        "device",
        "default_stream",
        "memory_stats",
        "random",
        "StreamContext",
        "is_current_stream_capturing",
        "reset_max_memory_allocated",
        "nvtx",
    ]:
        assert hasattr(torch.neuron, name), name


def test_environment_defaults_are_set_at_import():
    code = (
        "import os, torch; print([os.environ[n] for n in ('TORCH_NEURONX_MLIR_ATEN_OPS', "
        "'TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS', 'NEURON_LAUNCH_BLOCKING', "
        "'TORCH_NEURONX_RETAIN_DEVICE_MODE')])"
    )
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("NEURON_", "TORCH_NEURONX"))}
    for given, expected in (({}, "0"), ({"NEURON_LAUNCH_BLOCKING": "1"}, "1")):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env={**plain, **given}
        )
        assert done.stdout.strip() == str(["1", "1", expected, "0"]), done.stderr


def test_set_device_goes_through_the_package():
    with patch("torch_neuronx.set_device") as replaced:
        torch.neuron.set_device(0)
    replaced.assert_called_once_with(0)


def test_devices_that_do_not_exist():
    for error in (ValueError, RuntimeError):
        with pytest.raises(error, match=r"Invalid device id 99.*out of range.*valid range"):
            torch.neuron.set_device(99)
        with pytest.raises(error, match="out of range"), torch.neuron.device(99):
            pass
    with pytest.raises(RuntimeError, match="is out of range"):
        torch.ones(2, device="neuron:77")
    for bad in (99, -1, 2**33):
        with pytest.raises((RuntimeError, IndexError, ValueError)):
            torch.neuron.get_device_properties(bad)
    for bad in ("bogus", 1.5, "cpu"):
        with pytest.raises(ValueError):
            torch.neuron.get_device_name(bad)
    for bad in (99, "cpu"):
        with pytest.raises((RuntimeError, ValueError)):
            torch.neuron.Stream(device=bad)


def test_names_and_properties():
    for spelling in (None, 0, "neuron:0", torch.device("neuron", 0)):
        assert torch.neuron.get_device_name(spelling) == "neuron:0"
        properties = torch.neuron.get_device_properties(spelling)
        assert properties.name.startswith("trn") and properties.total_memory > 0


@two_cores
def test_new_threads_inherit_what_the_main_thread_chose():
    seen = []

    def other():
        seen.append(torch.neuron.current_device())
        torch.neuron.set_device(0)
        seen.append(torch.neuron.current_device())

    torch.neuron.set_device(1)
    try:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert seen == [1, 0] and torch.neuron.current_device() == 1
        with torch.neuron.device(0):  # Not a choice: threads do not see it.
            thread = threading.Thread(target=lambda: seen.append(torch.neuron.current_device()))
            thread.start()
            thread.join()
        assert seen[-1] == 1
    finally:
        torch.neuron.set_device(0)


@two_cores
def test_integers_name_this_device():
    assert torch.ones(2, device=1).device == torch.device("neuron:1")
    assert torch.ones(2).to(1).device == torch.device("neuron:1")
    assert next(torch.nn.Linear(2, 2).to(0).parameters()).device == torch.device("neuron:0")
    with torch.neuron.device(1):
        assert torch.ones(1, device="neuron").device.index == 1


def test_legacy_tensor_types():
    x = torch.neuron.FloatTensor(2, 3)
    assert x.shape == (2, 3) and x.dtype == torch.float32 and x.device.type == "neuron"
    assert isinstance(x, torch.neuron.FloatTensor) and not isinstance(x, torch.neuron.HalfTensor)
    assert not isinstance(x.cpu(), torch.neuron.FloatTensor)
    assert torch.neuron.LongTensor([1, 2]).tolist() == [1, 2]


def test_texts_of_errors():
    x = torch.ones(2, 2, device=DEVICE)
    for call in (lambda: torch.add(x, torch.ones(2, 2)), lambda: torch.mm(torch.ones(2, 2), x)):
        with pytest.raises(RuntimeError, match="is on cpu device, expected neuron"):
            call()
    with pytest.raises(RuntimeError, match="same size"):
        torch._copy_from_and_resize(torch.ones(5), torch.ones(3, device=DEVICE))
    with pytest.raises(RuntimeError, match="only support copy from cpu tensor to"):
        torch._copy_from_and_resize(x, x)
    empty = torch.empty(0, device=DEVICE)
    torch._copy_from_and_resize(torch.ones(3), empty)
    assert empty.tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="invalid storage offset"):
        x.set_(x.untyped_storage(), -1, (2,), (1,))
    for source in (torch.ones(3).untyped_storage(), torch.ones(3)):
        with pytest.raises(RuntimeError, match="expected neuron"):
            torch.empty(0, device=DEVICE).set_(source)
    with pytest.raises(RuntimeError, match="pin"):
        x.pin_memory()


def test_copy_hooks_can_be_replaced():
    a, b = torch.ones(2), torch.zeros(2, device=DEVICE)
    torch_neuronx._C._nrt_copy_cpu_to_neuron_tensor(a, b)
    torch_neuronx._C._nrt_copy_neuron_to_cpu_tensor(b * 3, a)
    assert a.tolist() == [3, 3]
    with patch.object(torch_neuronx._C, "_nrt_copy_neuron_to_cpu_tensor") as hook:
        b.half()
    hook.assert_not_called()


def test_registered_operators():
    names = torch_neuronx.utils.get_neuron_registered_ops()
    assert len(names) > 500 and "aten::add" in names and "add" in names and "nonsense" not in names
    kept = torch_neuronx.utils.get_neuron_registered_ops(as_sorted=True, keep_variant=True)
    assert "aten::add.Tensor" in kept and list(kept) == sorted(kept)


def test_switches_are_read_per_call(monkeypatch):
    utils = torch_neuronx.utils
    for value in ("1", "0"):
        monkeypatch.setenv("NEURON_LAUNCH_BLOCKING", value)
        monkeypatch.setenv("TORCH_NEURONX_MLIR_ATEN_OPS", value)
        assert utils.is_sync_mode_enabled() == utils.use_mlir_aten_ops() == (value == "1")
    assert utils.get_logical_neuron_cores() in ("1", "2")
    x = torch.randn(4, 4).to(DEVICE)
    monkeypatch.setenv("TORCH_NEURONX_FALLBACK", "error")
    with pytest.raises(NotImplementedError, match="fallback is off"):
        torch.linalg.lstsq(x, x)
    monkeypatch.setenv("TORCH_NEURONX_FALLBACK", "allow")
    torch.linalg.lstsq(x, x)


def test_nki_needs_its_package():
    with pytest.raises((ImportError, NotImplementedError), match=r"nki|kernels"):
        torch_neuronx.wrap_nki(lambda x: x)

    @torch_neuronx.nki_op("neuron_test::double")
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert double(torch.ones(2, device=DEVICE)).tolist() == [2, 2]


def test_matmul_switches_are_checked():
    matmul = torch.backends.neuron.matmul
    matmul.allow_tf32 = True
    assert matmul.fp32_precision == "tf32"
    matmul.fp32_precision = "ieee"
    assert matmul.allow_tf32 is False
    with pytest.raises(TypeError):
        matmul.allow_tf32 = 1
    with pytest.raises(AttributeError):
        matmul.nonsense = True
    with pytest.raises(ValueError):
        matmul.fp32_precision = "half"
