"""Streams and events of ``torch.neuron``: torch's generic classes with our device filled in."""

import torch

from torch_neuronx._utils import device_index


class Stream(torch.Stream):
    """A queue of work on one device; work of one stream runs in order.

    ``device``: default the current one. ``priority``: lower is more urgent; negative ones come from
    a pool of their own, so that they share no queue with others. Work of one process runs in the
    order in which it was queued, whatever its priority.
    """

    def __new__(cls, device=None, priority: int = 0, **kwargs):
        if "stream_id" in kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        return super().__new__(
            cls, device=torch.device("neuron", device_index(device)), priority=priority
        )

    def wait_stream(self, stream) -> None:
        super().wait_stream(stream)

    def __repr__(self):
        return f"torch.neuron.Stream(device={self.device}, stream_id={self.stream_id})"


class _EventType(type):
    def __instancecheck__(cls, obj):
        return isinstance(obj, torch.Event) and obj.device.type == "neuron"


class Event(metaclass=_EventType):
    """A point in a stream. ``elapsed_time`` between two timed events is in milliseconds.

    Makes a ``torch.Event``, whose C++ code knows no subclasses. ``blocking`` is accepted: every
    ``synchronize()`` sleeps after a short spin.
    """

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ):
        if interprocess:
            raise NotImplementedError("neuron: events are not shared between processes")
        return torch.Event(device="neuron", enable_timing=enable_timing)


class StreamContext:
    """Context manager that selects a stream; None changes nothing."""

    def __init__(self, stream):
        self.stream = stream
        self.previous = None
        self.previous_device = None

    def __enter__(self):
        if self.stream is None:
            return
        self.previous_device = torch.neuron.current_device()
        self.previous = current_stream(self.stream.device)
        set_stream(self.stream)

    def __exit__(self, kind, value, traceback):
        if self.stream is None:
            return
        set_stream(self.previous)
        torch.neuron.set_device(self.previous_device)


def stream(stream) -> StreamContext:
    """``with torch.neuron.stream(s):`` queues the work of the block on ``s``."""
    return StreamContext(stream)


def set_stream(stream) -> None:
    """Makes ``stream`` (and its device) current for the calling thread; None changes nothing."""
    if stream is None:
        return
    torch.accelerator.set_stream(stream)


def _wrap(stream) -> Stream:
    return Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )


def current_stream(device=None) -> Stream:
    """The calling thread's stream on ``device``."""
    return _wrap(torch.accelerator.current_stream(torch.device("neuron", device_index(device))))


def default_stream(device=None) -> Stream:
    """Stream 0 of ``device``."""
    current = torch.accelerator.current_stream(torch.device("neuron", device_index(device)))
    return Stream(stream_id=0, device_index=current.device_index, device_type=current.device_type)
