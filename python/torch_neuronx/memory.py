"""Memory statistics and control of ``torch.neuron``; units are bytes."""

import pickle
import sys

import torch

from torch_neuronx import _C
from torch_neuronx._utils import check_index, device_index


def _flatten(prefix: str, value, out: dict) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _flatten(f"{prefix}.{key}" if prefix else key, item, out)
    else:
        out[prefix] = value


def _index(device) -> int:
    return check_index(device_index(device))


def memory_stats_as_nested_dict(device=None) -> dict:
    """As memory_stats(), as dictionaries in dictionaries."""
    return _C._memory_stats(_index(device))


def memory_stats(device=None) -> dict:
    """Counters of the caching allocator.

    Flat, as torch.cuda has them: ``allocated_bytes.all.current``, ``num_ooms`` and so on; also
    ``allocated_bytes``, ``reserved_bytes`` and ``active_bytes`` with ``current``, ``peak``,
    ``allocated`` and ``freed`` of all pools, ``num_tensor_frees`` and ``allocation_requests``.
    """
    nested = memory_stats_as_nested_dict(device)
    out: dict = {}
    _flatten("", nested, out)
    out = dict(sorted(out.items()))
    for name in ("allocated_bytes", "reserved_bytes", "active_bytes"):
        out[name] = dict(nested[name]["all"])
    out["num_tensor_frees"] = nested["allocation"]["all"]["freed"]
    out["allocation_requests"] = nested["allocation"]["all"]["allocated"] + nested["num_ooms"]
    return out


def _counter(name: str, kind: str, device) -> int:
    return memory_stats_as_nested_dict(device)[name]["all"][kind]


def memory_allocated(device=None) -> int:
    """Bytes in live tensors."""
    return _counter("allocated_bytes", "current", device)


def max_memory_allocated(device=None) -> int:
    return _counter("allocated_bytes", "peak", device)


def memory_reserved(device=None) -> int:
    """Bytes held by the caching allocator, free blocks included."""
    return _counter("reserved_bytes", "current", device)


def max_memory_reserved(device=None) -> int:
    return _counter("reserved_bytes", "peak", device)


memory_cached = memory_reserved
max_memory_cached = max_memory_reserved


def reset_peak_memory_stats(device=None) -> None:
    _C._reset_peak_stats(_index(device))


reset_max_memory_allocated = reset_peak_memory_stats
reset_max_memory_cached = reset_peak_memory_stats


def reset_accumulated_memory_stats(device=None) -> None:
    _C._reset_accumulated_stats(_index(device))


def empty_cache() -> None:
    """Gives cached, unused memory back to the device."""
    if _C._is_initialized():
        _C._empty_cache()


def empty_host_cache() -> None:
    """Gives cached, unused pinned host memory back to the system."""
    _C._empty_host_cache()


def host_memory_stats_as_nested_dict() -> dict:
    return _C._pinned_stats()


def host_memory_stats() -> dict:
    """Counters of pinned host memory: ``active_bytes.current``, ``num_host_alloc`` and so on."""
    out: dict = {}
    _flatten("", host_memory_stats_as_nested_dict(), out)
    return dict(sorted(out.items()))


def reset_peak_host_memory_stats() -> None:
    _C._reset_peak_pinned_stats()


def reset_accumulated_host_memory_stats() -> None:
    _C._reset_accumulated_pinned_stats()


def mem_get_info(device=None) -> tuple[int, int]:
    """(free, total) bytes of the device's HBM."""
    torch.neuron.init()
    return _C._memory_info(_index(device))


_fractions: dict[int, float] = {}


def set_per_process_memory_fraction(fraction: float, device=None) -> None:
    """Limits this process to ``fraction`` (0 to 1) of the device's memory."""
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    torch.neuron.init()
    index = _index(device)
    _C._set_memory_fraction(index, fraction)
    _fractions[index] = fraction


def get_per_process_memory_fraction(device=None) -> float:
    return _fractions.get(_index(device), 1.0)


def memory_snapshot() -> list:
    """Every segment of the caching allocator with its blocks."""
    segments = _C._memory_snapshot() if _C._is_initialized() else []
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            block["address"] = address
            address += block["size"]
        live = [b for b in segment["blocks"] if b["state"] == "active_allocated"]
        stacks = _C._allocation_frames(segment["device"], [b["address"] for b in live])
        for block, frames in zip(live, stacks, strict=True):
            block["frames"] = frames
    return segments


def _record_memory_history(
    enabled="all",
    context="all",
    stacks: str = "python",
    max_entries: int = sys.maxsize,
    device=None,
    clear_history: bool = False,
) -> None:
    """Starts (or with ``enabled=None`` ends) the recording of every allocation and free.

    ``enabled``: "all" keeps the events, "state" only where live memory was allocated. ``context``:
    None records no stacks. ``stacks`` "all" means "python". ``max_entries``: the newest so many.
    """
    if enabled not in (None, False, True, "state", "all"):
        raise ValueError(f"enabled must be None, 'state' or 'all', not {enabled!r}")
    if context not in (None, "state", "alloc", "all"):
        raise ValueError(f"context must be None, 'state', 'alloc' or 'all', not {context!r}")
    if stacks not in ("python", "all"):
        raise ValueError(f"stacks must be 'python' or 'all', not {stacks!r}")
    if max_entries < 1:
        raise ValueError(f"max_entries must be positive, not {max_entries}")
    if not enabled or clear_history:
        _C._record_memory_history(0, False)
    if enabled:
        kept = 1 if enabled == "state" else min(max_entries, sys.maxsize)
        _C._record_memory_history(kept, context is not None)


def _snapshot(device=None, augment_with_fx_traces: bool = False) -> dict:
    """The dictionary that torch's memory viewer reads."""
    return {
        "segments": memory_snapshot(),
        "device_traces": [_C._memory_history(i) for i in range(_C._device_count())],
        "allocator_settings": {
            "expandable_segments": False,
            "garbage_collection_threshold": 0.0,
            "max_split_size": -1,
            "roundup_power2_divisions": {},
        },
        "external_annotations": [],
    }


def _dump_snapshot(filename: str = "dump_snapshot.pickle") -> None:
    """Writes _snapshot() to a file for https://pytorch.org/memory_viz."""
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
        f"PyTorch Neuron Memory Summary, Device neuron:{device_index(device)}",
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
