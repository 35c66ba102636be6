"""``torch.neuron.nvtx``: ranges of programs written for ``torch.cuda.nvtx``, as profiler ranges."""

import threading

import torch

_open = threading.local()


def range(msg, *args, **kwargs):
    """Context manager and decorator: a range with this name in torch.profiler's traces."""
    return torch.profiler.record_function(msg.format(*args, **kwargs))


def range_push(msg: str) -> int:
    """Opens a range in this thread and returns its depth."""
    stack = _open.__dict__.setdefault("stack", [])
    stack.append(torch.profiler.record_function(msg))
    stack[-1].__enter__()
    return len(stack) - 1


def range_pop() -> int:
    """Closes the newest range of this thread and returns its depth."""
    stack = _open.__dict__.setdefault("stack", [])
    if stack:
        stack.pop().__exit__(None, None, None)
    return len(stack)


def mark(msg: str) -> None:
    """A range without length."""
    with torch.profiler.record_function(msg):
        pass
