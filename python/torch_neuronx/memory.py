"""Memory statistics and control of ``torch.neuron``; units are bytes."""

import pickle

import torch

from torch_neuronx import _C
from torch_neuronx._utils import device_index


def _flatten(prefix: str, value, out: dict) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _flatten(f"{prefix}.{key}" if prefix else key, item, out)
    else:
        out[prefix] = value


def memory_stats_as_nested_dict(device=None) -> dict:
    return _C._memory_stats(device_index(device)) if _C._is_initialized() else {}


def memory_stats(device=None) -> dict:
    """Counters of the caching allocator, flat: ``allocated_bytes.all.current`` and so on."""
    out: dict = {}
    _flatten("", memory_stats_as_nested_dict(device), out)
    return dict(sorted(out.items()))


def _counter(name: str, device) -> int:
    return memory_stats(device).get(name, 0)


def memory_allocated(device=None) -> int:
    """Bytes in live tensors."""
    return _counter("allocated_bytes.all.current", device)


def max_memory_allocated(device=None) -> int:
    return _counter("allocated_bytes.all.peak", device)


def memory_reserved(device=None) -> int:
    """Bytes held by the caching allocator, free blocks included."""
    return _counter("reserved_bytes.all.current", device)


def max_memory_reserved(device=None) -> int:
    return _counter("reserved_bytes.all.peak", device)


memory_cached = memory_reserved
max_memory_cached = max_memory_reserved


def reset_peak_memory_stats(device=None) -> None:
    if _C._is_initialized():
        _C._reset_peak_stats(device_index(device))


reset_max_memory_allocated = reset_peak_memory_stats


def reset_accumulated_memory_stats(device=None) -> None:
    if _C._is_initialized():
        _C._reset_accumulated_stats(device_index(device))


def empty_cache() -> None:
    """Gives cached, unused memory back to the device."""
    if _C._is_initialized():
        _C._empty_cache()


def empty_host_cache() -> None:
    """Gives cached, unused pinned host memory back to the system."""
    _C._empty_host_cache()


def mem_get_info(device=None) -> tuple[int, int]:
    """(free, total) bytes of the device's HBM."""
    torch.neuron.init()
    return _C._memory_info(device_index(device))


def set_per_process_memory_fraction(fraction: float, device=None) -> None:
    """Limits this process to ``fraction`` (0 to 1) of the device's memory."""
    if not isinstance(fraction, float) or not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    torch.neuron.init()
    _C._set_memory_fraction(device_index(device), fraction)


def memory_snapshot() -> list:
    """Every segment of the caching allocator with its blocks."""
    return _C._memory_snapshot() if _C._is_initialized() else []


def _snapshot(device=None) -> dict:
    """The dictionary that torch's memory viewer reads."""
    return {
        "segments": memory_snapshot(),
        "device_traces": [[] for _ in range(torch.neuron.device_count())],
        "allocator_settings": {},
    }


def _dump_snapshot(filename: str = "dump_snapshot.pickle") -> None:
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)


def memory_summary(device=None, abbreviated: bool = False) -> str:
    """A table of the counters, for people."""
    stats = memory_stats(device)
    rows = [
        ("Allocated memory", "allocated_bytes", True),
        ("Active memory", "active_bytes", True),
        ("Requested memory", "requested_bytes", True),
        ("Reserved memory", "reserved_bytes", True),
        ("Allocations", "allocation", False),
        ("Segments", "segment", False),
    ]
    pools = ("all",) if abbreviated else ("all", "large_pool", "small_pool")

    def show(value: int, is_bytes: bool) -> str:
        if not is_bytes:
            return str(value)
        for unit in ("B", "KiB", "MiB", "GiB"):
            if value < 1024 or unit == "GiB":
                return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
            value /= 1024
        return str(value)

    lines = [
        f"PyTorch Neuron memory summary, device neuron:{device_index(device)}",
        f"{'Metric':<32}{'Current':>12}{'Peak':>12}{'Total':>12}{'Freed':>12}",
    ]
    for title, name, is_bytes in rows:
        for pool in pools:
            label = title if pool == "all" else f"  from {pool.replace('_', ' ')}"
            cells = [
                show(stats.get(f"{name}.{pool}.{kind}", 0), is_bytes)
                for kind in ("current", "peak", "allocated", "freed")
            ]
            lines.append(f"{label:<32}" + "".join(f"{cell:>12}" for cell in cells))
    lines.append(
        f"Retries after a flush: {stats.get('num_alloc_retries', 0)}, "
        f"out of memory: {stats.get('num_ooms', 0)}"
    )
    return "\n".join(lines) + "\n"
