"""Profiles of the device: what it ran, when, and the programs themselves.

``torch.profiler.profile`` with ``ProfilerActivity.PrivateUse1`` shows device time. Given a
``NeuronConfig`` (or the text ``"profile_output_dir:..."``) as its experimental configuration, it
also writes a folder ``<output>/<host>_pid_<pid>`` with

- ``trace_info.pb``: what was recorded, where and when;
- ``ntrace.pb``: one message per launch and copy;
- ``cpu_util.pb``, ``host_mem.pb``: processor time and memory of the process;
- per device an ``.ntff`` file with its part of the trace, and the ``.neff`` of every program that
  was built meanwhile. Eager programs are built anew when the profile begins.

The ``.pb`` and ``.ntff`` files are protocol buffers without a schema file: field 1 of a launch is
its name, 2 its kind, 3 device, 4 stream, 5 and 6 begin and end in nanoseconds since 1970, 7 bytes,
8 the number that ties it to a CPU operator.
"""

import enum
import json
import os
import pathlib
import resource
import socket
import time

import torch
from torch._C._profiler import _ExperimentalConfig

from torch_neuronx import _C


class NRTProfilerError(RuntimeError):
    """The profiler was used in the wrong order, or could not write its files."""


class ProfileMode(enum.Enum):
    """What a profile's folder holds."""

    DEVICE = "device"  # .neff, .ntff
    RUNTIME = "runtime"  # trace_info.pb, ntrace.pb
    CPU_UTIL = "cpu_util"  # cpu_util.pb
    HOST_MEMORY = "host_memory"  # host_mem.pb


_ALL_MODES = tuple(ProfileMode)
_KEYS = {
    "profile_output_dir",
    "modes",
    "max_events_per_nc",
    "capture_enabled_for_nc",
    "host_memory",
}


class NeuronConfig(_ExperimentalConfig):
    """``torch.profiler.profile(..., experimental_config=NeuronConfig(...))``.

    ``modes``: kinds of files (default all). ``profile_output_dir``: where the folder goes.
    ``capture_enabled_for_nc``: device indices (default all). ``max_events_per_nc``: the first so
    many events of each device.
    """

    def __init__(
        self,
        modes=_ALL_MODES,
        profile_output_dir: str = "./output",
        capture_enabled_for_nc=None,
        max_events_per_nc: int | None = None,
    ):
        parts = [f"profile_output_dir:{profile_output_dir}"]
        parts.append("modes:" + ",".join(ProfileMode(mode).value for mode in modes))
        if capture_enabled_for_nc is not None:
            parts.append("capture_enabled_for_nc:" + ",".join(map(str, capture_enabled_for_nc)))
        if max_events_per_nc is not None:
            parts.append(f"max_events_per_nc:{max_events_per_nc}")
        super().__init__(custom_profiler_config=";".join(parts))


def _parse(text: str) -> dict:
    """The configuration text ``key:value;key:value``."""
    found = {}
    for part in filter(None, text.split(";")):
        key, _, value = part.partition(":")
        if key not in _KEYS:
            raise NRTProfilerError(f"unknown profiler setting {key!r}; known: {sorted(_KEYS)}")
        found[key] = value
    modes = set(_ALL_MODES)
    if "modes" in found:
        modes = {ProfileMode(value) for value in found["modes"].split(",") if value}
    if found.get("host_memory", "").lower() in ("0", "false"):
        modes.discard(ProfileMode.HOST_MEMORY)
    devices = None
    if found.get("capture_enabled_for_nc"):
        devices = {int(value) for value in found["capture_enabled_for_nc"].split(",")}
    limit = int(found["max_events_per_nc"]) if "max_events_per_nc" in found else None
    folder = found.get("profile_output_dir") or "./output"
    return {"folder": folder, "modes": modes, "devices": devices, "limit": limit}


# -- Protocol buffers --------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _message(*fields) -> bytes:
    """Fields numbered from 1; integers, texts and nested messages."""
    out = bytearray()
    for number, value in enumerate(fields, 1):
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, int):
                out += _varint(number << 3) + _varint(item)
            else:
                data = item.encode() if isinstance(item, str) else item
                out += _varint(number << 3 | 2) + _varint(len(data)) + data
    return bytes(out)


def _host_memory() -> list[bytes]:
    fields = []
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmPeak", "VmSize", "VmHWM", "VmRSS"):
            fields.append(_message(name, int(value.split()[0]) * 1024))
    pinned = _C._pinned_stats()["allocated_bytes"]
    return [*fields, _message("Pinned", pinned["current"]), _message("PinnedPeak", pinned["peak"])]


def _select(records, settings) -> list:
    kept, counts = [], {}
    for record in records:
        device = record[2]
        if settings["devices"] is not None and device not in settings["devices"]:
            continue
        counts[device] = counts.get(device, 0) + 1
        if settings["limit"] is None or counts[device] <= settings["limit"]:
            kept.append(record)
    return kept


def _write_profile(records, config: str) -> pathlib.Path:
    settings = _parse(config)
    records = _select(records, settings)
    modes = settings["modes"]
    folder = pathlib.Path(settings["folder"]) / f"{socket.gethostname()}_pid_{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    begin = min((r[4] for r in records), default=time.time_ns())
    end = max((r[5] for r in records), default=begin)
    if ProfileMode.RUNTIME in modes:
        info = (socket.gethostname(), os.getpid(), _C._device_properties(0)[0], begin, end)
        (folder / "trace_info.pb").write_bytes(_message(*info, len(records)))
        (folder / "ntrace.pb").write_bytes(_message([_message(*record) for record in records]))
    if ProfileMode.CPU_UTIL in modes:
        used = resource.getrusage(resource.RUSAGE_SELF)
        times = (int(used.ru_utime * 1e9), int(used.ru_stime * 1e9), max(end - begin, 0))
        (folder / "cpu_util.pb").write_bytes(_message(*times, os.cpu_count() or 1))
    if ProfileMode.HOST_MEMORY in modes:
        (folder / "host_mem.pb").write_bytes(_message(_host_memory()))
    if ProfileMode.DEVICE in modes:
        for device in sorted({record[2] for record in records}):
            mine = [_message(*record) for record in records if record[2] == device]
            (folder / f"profile_nc{device}.ntff").write_bytes(_message(mine))
        for name, neff in _C._take_built_neffs().items():
            (folder / f"{name}.neff").write_bytes(neff)
    return folder


_C._set_profile_writer(_write_profile)


class NeuronProfiler:
    """Joins torch.profiler and the device's own trace; a context manager.

    ``pytorch_activities``: torch.profiler activities, or None for no torch trace.
    ``record_shapes``: as torch.profiler. ``pytorch_trace_file``: a Chrome trace is written there
    at the end. ``neuron_output_dir``: the folder of the device's files, which also gets
    ``framework_mapping_<time>.json``. ``event_filters``: ``{"nc": [device indices], "types":
    ["program", "copy_to_device", "copy_to_host", "copy_on_device"]}``.
    """

    def __init__(
        self,
        pytorch_activities=None,
        record_shapes: bool = False,
        pytorch_trace_file: str | None = None,
        neuron_output_dir: str = "./output",
        event_filters: dict | None = None,
        **pytorch_options,
    ):
        self._filters = dict(event_filters or {})
        unknown = set(self._filters) - {"nc", "types"}
        if unknown:
            raise ValueError(f"unknown event filters {sorted(unknown)}; known: 'nc', 'types'")
        self._activities = list(pytorch_activities or [])
        self._options = {"record_shapes": record_shapes, **pytorch_options}
        self._trace_file = pytorch_trace_file
        self._folder = str(neuron_output_dir)
        self._active = False
        self._torch = None
        self._run_folder: pathlib.Path | None = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, value, traceback):
        self.stop()
        return False

    def start(self) -> None:
        if self._active:
            raise NRTProfilerError("the profiler is active already")
        self._torch = None
        if self._activities:
            # The device's events come from this class.
            cpu = [a for a in self._activities if a != torch.profiler.ProfilerActivity.PrivateUse1]
            activities = cpu or [torch.profiler.ProfilerActivity.CPU]
            self._torch = torch.profiler.profile(activities=activities, **self._options)
        _C._clear_compilation_memory_cache()
        _C._keep_built_neffs(True)
        if self._torch is not None:
            self._torch.start()
        _C._start_launch_trace()
        self._active = True

    def stop(self) -> None:
        if not self._active:
            raise NRTProfilerError("the profiler is not active")
        self._active = False
        records = _C._stop_launch_trace()
        if self._torch is not None:
            self._torch.stop()
        config = f"profile_output_dir:{self._folder}"
        if "nc" in self._filters:
            config += ";capture_enabled_for_nc:" + ",".join(map(str, self._filters["nc"]))
        if "types" in self._filters:
            records = [r for r in records if r[1] in self._filters["types"]]
        try:
            self._run_folder = _write_profile(records, config)
        finally:
            _C._keep_built_neffs(False)
        self._write_mapping(records)
        if self._trace_file is not None and self._torch is not None:
            self.export_pytorch_trace(self._trace_file)

    def _write_mapping(self, records) -> None:
        keys = ("name", "kind", "device", "stream", "begin_ns", "end_ns", "bytes", "correlation")
        mapping = {
            "process": os.getpid(),
            "device_runs": [dict(zip(keys, record, strict=True)) for record in records],
        }
        if self._torch is not None and self._torch.profiler is not None:
            mapping["framework_events"] = [
                {
                    "name": event.name(),
                    "sequence_number": event.sequence_nr(),
                    "thread": event.start_thread_id(),
                    "begin_ns": event.start_ns(),
                    "end_ns": event.end_ns(),
                }
                for event in self._torch.profiler.kineto_results.events()
            ]
        path = pathlib.Path(self._folder) / f"framework_mapping_{time.time_ns()}.json"
        path.write_text(json.dumps(mapping))

    def is_active(self) -> bool:
        return self._active

    def has_pytorch_profiling(self) -> bool:
        return bool(self._activities)

    def get_pytorch_trace(self):
        """The torch.profiler.profile of the last run, or None."""
        return self._torch

    def get_nrt_output_directory(self) -> str:
        return self._folder

    def export_pytorch_trace(self, path: str) -> None:
        """Writes the Chrome trace of the last run."""
        if self._torch is None or self._active:
            raise NRTProfilerError("there is no finished PyTorch trace to export")
        self._torch.export_chrome_trace(str(path))
