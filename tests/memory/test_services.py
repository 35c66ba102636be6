"""Statistics, history, limits and the compilation cache as programs read them."""

import gc
import os
import pickle
import subprocess
import sys

import pytest
import torch
import torch_neuronx
from conftest import DEVICE

C = torch_neuronx._C


def test_statistics_have_nested_and_flat_keys():
    gc.collect()  # What other tests have left is not to be freed in between.
    before = torch.neuron.memory_allocated()
    x = torch.empty(1000, 1000, device=DEVICE)
    stats = torch.neuron.memory_stats()
    for name in ("allocated_bytes", "reserved_bytes", "active_bytes"):
        assert isinstance(stats[name]["current"], int) and isinstance(stats[name]["peak"], int)
        assert stats[name]["current"] == stats[f"{name}.all.current"]
    assert torch.neuron.memory_allocated() - before >= x.nbytes
    counters = ("num_alloc_retries", "num_ooms", "num_tensor_frees", "allocation_requests")
    assert all(isinstance(stats[name], int) for name in counters)
    torch.neuron.reset_accumulated_memory_stats()
    assert not any(torch.neuron.memory_stats()[name] for name in counters)
    del x
    y = torch.empty(10, device=DEVICE)
    stats = torch.neuron.memory_stats()
    assert stats["num_tensor_frees"] == 1 and stats["allocation_requests"] == 1
    del y


def test_summary():
    text = torch.neuron.memory_summary()
    assert "Neuron Memory Summary" in text and "Device" in text
    assert len(torch.neuron.memory_summary(abbreviated=True)) <= len(text)


def test_statistics_of_pinned_memory():
    torch.neuron.reset_accumulated_host_memory_stats()
    before = torch.neuron.host_memory_stats()["active_bytes.current"]
    x = torch.ones(100_000).pin_memory()
    stats = torch.neuron.host_memory_stats()
    assert x.is_pinned() and stats["active_bytes.current"] - before >= x.nbytes
    assert stats["active_requests.allocated"] == 1
    del x
    assert torch.neuron.host_memory_stats()["active_bytes.current"] == before


def test_history_is_what_the_memory_viewer_reads(tmp_path):
    from torch.cuda import _memory_viz as viz

    torch.neuron.memory._record_memory_history(max_entries=1000)

    def makes_a_tensor():
        return torch.ones(1000, device=DEVICE)

    kept = makes_a_tensor()
    torch.ones(10, device=DEVICE)
    snapshot = torch.neuron.memory._snapshot()
    torch.neuron.memory._dump_snapshot(tmp_path / "snapshot.pickle")
    torch.neuron.memory._record_memory_history(enabled=None)
    blocks = [b for segment in snapshot["segments"] for b in segment["blocks"]]
    assert any(f["name"] == "makes_a_tensor" for b in blocks for f in b["frames"])
    for segment in snapshot["segments"]:
        assert sum(b["size"] for b in segment["blocks"]) == segment["total_size"]
    actions = [event["action"] for event in snapshot["device_traces"][0]]
    assert {"alloc", "free_requested", "free_completed"} <= set(actions)
    for view in (viz.segments, viz.memory):
        view(snapshot, format_flamegraph=lambda text: text)
    assert "html" in viz.trace_plot(snapshot) and "html" in viz.segment_plot(snapshot)
    assert viz.trace(snapshot) and viz.segsum(snapshot)
    saved = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    assert len(saved["segments"]) == len(snapshot["segments"])
    assert torch.neuron.memory._snapshot()["device_traces"][0] == []
    del kept


def test_limit_of_the_process():
    torch.neuron.empty_cache()
    torch.neuron.set_per_process_memory_fraction(0.0001)
    try:
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            torch.empty(10**9, device=DEVICE)
        assert torch.neuron.get_per_process_memory_fraction() == 0.0001
        assert torch.neuron.memory_stats()["num_ooms"] >= 1
    finally:
        torch.neuron.set_per_process_memory_fraction(1.0)
    with pytest.raises(ValueError):
        torch.neuron.set_per_process_memory_fraction(1.5)
    free, total = torch.neuron.mem_get_info()
    assert 0 < free <= total


def test_accelerator_memory_functions_agree():
    x = torch.ones(1000, device=DEVICE)
    assert torch.accelerator.memory_allocated() == torch.neuron.memory_allocated() > 0
    assert torch.accelerator.max_memory_reserved() == torch.neuron.max_memory_reserved()
    assert torch.accelerator.get_memory_info() == torch.neuron.mem_get_info()
    stats = torch.accelerator.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.neuron.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.empty_cache()
    torch.accelerator.empty_host_cache()
    del x


def test_compilation_cache_statistics(tmp_path, monkeypatch):
    x = torch.randn(7, 9, device=DEVICE)
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path))
    C._clear_compilation_memory_cache()
    assert C._get_compilation_cache_stats()["total_entries"] == 0
    before = C._get_compilation_cache_stats()
    y = x + x
    after = C._get_compilation_cache_stats()
    assert after["total_entries"] == 1
    assert after["persistent_misses"] == before["persistent_misses"] + 1
    assert len(list(tmp_path.rglob("*.neff"))) == 1
    (entry,) = C._get_compilation_cache_entries()
    assert entry["cache_key"] in C._get_all_cache_keys() and entry["compilation_time_ms"] > 0
    torch.randn(7, 9, device=DEVICE)  # Random fill is no entry.
    x + x
    hit = C._get_compilation_cache_stats()
    assert hit["total_entries"] == 1 and hit["cache_hits"] > after["cache_hits"]
    C._clear_compilation_memory_cache()
    torch.testing.assert_close((x + x).cpu(), y.cpu())
    again = C._get_compilation_cache_stats()
    assert again["persistent_hits"] == hit["persistent_hits"] + 1


def test_another_process_finds_the_programs(tmp_path):
    code = (
        "import torch, torch_neuronx;"
        "x = torch.ones(3, 5, device='neuron'); (x * 2.5).sum().item();"
        "s = torch_neuronx._C._get_compilation_cache_stats();"
        "print(s['persistent_hits'], s['persistent_misses'])"
    )
    env = {**os.environ, "TORCH_NEURONX_NEFF_CACHE_DIR": str(tmp_path / "neffs")}
    counts = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True
        )
        counts.append([int(n) for n in done.stdout.split()])
    assert counts[0][0] == 0 and counts[0][1] > 0
    assert counts[1] == [counts[0][1], 0]


def test_clearing_the_cache_empties_the_disk(tmp_path):
    code = (
        "import torch, torch_neuronx, os; C = torch_neuronx._C;"
        "x = torch.ones(3, 5, device='neuron'); (x * 2.5).sum().item();"
        "print(len(os.listdir(os.environ['TORCH_NEURONX_CACHE_DIR'])));"
        "C._clear_compilation_cache(); s = C._get_compilation_cache_stats();"
        "print(len(os.listdir(os.environ['TORCH_NEURONX_CACHE_DIR'])), s['total_entries'],"
        " s['cache_hits'], s['persistent_misses']);"
        "(x * 2.5).sum().item();"
        "print(C._get_compilation_cache_stats()['persistent_misses'])"
    )
    env = {**os.environ, "TORCH_NEURONX_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True
    )
    first, second, third = done.stdout.splitlines()
    assert int(first) > 0 and second == "0 0 0 0" and int(third) > 0


def test_metrics_module():
    metrics = torch_neuronx.metrics
    assert metrics.get_counter_names() == [] and metrics.report() == ""
    metrics.set_enabled(True)
    try:
        metrics.clear_all()
        C._clear_compilation_memory_cache()
        torch.ones(3, 11, device=DEVICE).sin()
        assert metrics.get_counter_value("CompilationCache.InMemoryMisses") >= 1
        count, total, samples = metrics.get_metric_data("CompilationCache.CompilationTime")
        assert count == len(samples) and total == sum(samples)
        assert "CompilationCache.NeffSize" in metrics.report()
        only = metrics.report_filtered(["CompilationCache.Evictions"], [])
        assert "Evictions" in only and "NeffSize" not in only
        assert metrics.get_counter_value("nonsense") is None
        assert "CompilationCache.PersistentHits" in metrics.get_compilation_metrics()
    finally:
        metrics.set_enabled(False)


def test_metrics_follow_the_environment(monkeypatch):
    monkeypatch.setattr(torch_neuronx.metrics, "_enabled", None)
    monkeypatch.setenv("TORCH_NEURONX_METRICS_ENABLED", "1")
    assert torch_neuronx.metrics.is_enabled()
    monkeypatch.setenv("TORCH_NEURONX_METRICS_ENABLED", "0")
    assert not torch_neuronx.metrics.is_enabled()
