"""Profiles: device times in torch.profiler, and the files of a run."""

import json
import pathlib

import pytest
import torch
from conftest import DEVICE
from torch.profiler import ProfilerActivity, profile, record_function
from torch_neuronx.profiling import NeuronConfig, NeuronProfiler, NRTProfilerError, ProfileMode

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


def work():
    x = torch.ones(64, 64, device=DEVICE)
    with record_function("outer"):
        y = x @ x + 1
    return y.cpu()


def test_device_times_belong_to_operators(tmp_path):
    with profile(activities=BOTH) as found:
        work()
    averages = {e.key: e for e in found.key_averages() if e.device_type.name == "CPU"}
    assert averages["aten::mm"].device_time_total > 0
    assert averages["outer"].device_time_total >= averages["aten::mm"].device_time_total
    found.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    named = {(e.get("cat"), e.get("name")) for e in events}
    assert ("kernel", "aten::mm") in named and ("user_annotation", "outer") in named
    assert ("gpu_memcpy", "copy to host") in named


def folder_of(path: pathlib.Path) -> set[str]:
    (folder,) = path.iterdir()
    assert "_pid_" in folder.name
    return {f.name if f.suffix == ".pb" else f.suffix for f in folder.iterdir()}


PB = {"trace_info.pb", "ntrace.pb", "cpu_util.pb", "host_mem.pb"}


def test_folder_of_files(tmp_path):
    with profile(activities=BOTH, experimental_config=NeuronConfig(profile_output_dir=tmp_path)):
        work()
    assert folder_of(tmp_path) == PB | {".ntff", ".neff"}


def test_modes_and_text_configuration(tmp_path):
    modes = [ProfileMode.RUNTIME]
    config = NeuronConfig(modes=modes, profile_output_dir=tmp_path / "a")
    with profile(activities=BOTH, experimental_config=config):
        work()
    assert folder_of(tmp_path / "a") == {"trace_info.pb", "ntrace.pb"}
    text = f"profile_output_dir:{tmp_path}/b;max_events_per_nc:1;host_memory:false"
    config = torch._C._profiler._ExperimentalConfig(custom_profiler_config=text)
    with profile(activities=[ProfilerActivity.PrivateUse1], experimental_config=config):
        work()
    assert folder_of(tmp_path / "b") == PB - {"host_mem.pb"} | {".ntff", ".neff"}
    (folder,) = (tmp_path / "b").iterdir()
    assert (folder / "ntrace.pb").read_bytes().count(b"aten::") <= 1


def test_neuron_profiler(tmp_path):
    trace = tmp_path / "torch.json"
    profiler = NeuronProfiler([ProfilerActivity.CPU], False, str(trace), str(tmp_path / "out"))
    with pytest.raises(NRTProfilerError, match="not active"):
        profiler.stop()
    assert profiler.has_pytorch_profiling() and not profiler.is_active()
    with profiler:
        assert profiler.is_active()
        with pytest.raises(RuntimeError, match="active already"):
            profiler.start()
        work()
    assert not profiler.is_active() and profiler.get_pytorch_trace() is not None
    assert profiler.get_nrt_output_directory() == str(tmp_path / "out")
    assert "outer" in trace.read_text()
    (mapping,) = (tmp_path / "out").glob("framework_mapping_*.json")
    runs = json.loads(mapping.read_text())["device_runs"]
    assert "aten::mm" in {run["name"] for run in runs}
    assert all(run["end_ns"] >= run["begin_ns"] > 0 for run in runs)


def test_event_filters(tmp_path):
    filters = {"nc": [0], "types": ["copy_to_host"]}
    profiler = NeuronProfiler(neuron_output_dir=str(tmp_path), event_filters=filters)
    assert not profiler.has_pytorch_profiling()
    with profiler:
        work()
    (mapping,) = tmp_path.glob("framework_mapping_*.json")
    assert {r["kind"] for r in json.loads(mapping.read_text())["device_runs"]} == {"copy_to_host"}
    with pytest.raises(ValueError):
        NeuronProfiler(event_filters={"nonsense": 1})
    with pytest.raises(NRTProfilerError):
        profiler.export_pytorch_trace(str(tmp_path / "x.json"))
