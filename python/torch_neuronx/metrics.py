"""Counters of the compilation cache, in the form of a metrics module.

Off unless ``TORCH_NEURONX_METRICS_ENABLED`` is 1 or ``set_enabled(True)`` was called; while off,
there are no counters and no metrics to be asked for.
"""

import os

from torch_neuronx import _C

_enabled: bool | None = None  # None: what the environment says.
_counters = {
    "CompilationCache.InMemoryHits": "cache_hits",
    "CompilationCache.InMemoryMisses": "cache_misses",
    "CompilationCache.PersistentHits": "persistent_hits",
    "CompilationCache.PersistentMisses": "persistent_misses",
    "CompilationCache.TotalCompilations": "total_compilations",
    "CompilationCache.Evictions": "evictions",
}
_metrics = {
    "CompilationCache.CompilationTime": "compilation_time_ms",
    "CompilationCache.NeffSize": "neff_size",
    "CompilationCache.MemoryUsage": None,
}
_base: dict[str, int] = {}  # Values at the last clear.
_seen: set = set()  # Programs that clear_metrics() has hidden.


def is_enabled() -> bool:
    if _enabled is not None:
        return _enabled
    return os.environ.get("TORCH_NEURONX_METRICS_ENABLED", "0").lower() in ("1", "true", "yes")


def set_enabled(enabled: bool) -> None:
    global _enabled
    _enabled = bool(enabled)


def get_counter_names() -> list[str]:
    return list(_counters) if is_enabled() else []


def get_counter_value(name: str) -> int | None:
    """The counter since the last clear; None if there is none of this name, or metrics are off."""
    if not is_enabled() or name not in _counters:
        return None
    value = _C._get_compilation_cache_stats()[_counters[name]]
    return max(value - _base.get(name, 0), 0)


def get_metric_names() -> list[str]:
    return list(_metrics) if is_enabled() else []


def _entries() -> list[dict]:
    all_entries = _C._get_compilation_cache_entries()
    return [e for e in all_entries if (e["cache_key"], e["device"]) not in _seen]


def get_metric_data(name: str) -> tuple[int, float, list[float]] | None:
    """(samples, their sum, the samples); None if there is none of this name, or metrics are off."""
    if not is_enabled() or name not in _metrics:
        return None
    field = _metrics[name]
    if field is None:
        samples = [_C._get_compilation_cache_stats()["memory_usage"]]
    else:
        samples = [entry[field] for entry in _entries()]
    return len(samples), sum(samples), samples


def get_compilation_metrics() -> dict:
    """All counters and the sums of all metrics; empty while metrics are off."""
    values = {name: get_counter_value(name) for name in get_counter_names()}
    values.update({name: get_metric_data(name)[1] for name in get_metric_names()})
    return values


def report_filtered(counter_names=None, metric_names=None) -> str:
    """A text with the named counters and metrics; None means all."""
    lines = []
    for name in get_metric_names():
        if metric_names is None or name in metric_names:
            count, total, _ = get_metric_data(name)
            lines += [f"Metric: {name}", f"  TotalSamples: {count}", f"  Accumulator: {total:.3f}"]
    for name in get_counter_names():
        if counter_names is None or name in counter_names:
            lines += [f"Counter: {name}", f"  Value: {get_counter_value(name)}"]
    return "\n".join(lines) + ("\n" if lines else "")


def report() -> str:
    return report_filtered()


def clear_counters() -> None:
    stats = _C._get_compilation_cache_stats()
    _base.update({name: stats[key] for name, key in _counters.items()})


def clear_metrics() -> None:
    _seen.update((e["cache_key"], e["device"]) for e in _C._get_compilation_cache_entries())


def clear_all() -> None:
    clear_counters()
    clear_metrics()
