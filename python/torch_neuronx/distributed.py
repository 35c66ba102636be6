"""torch.distributed on ``neuron``: the c10d backend and what it says about itself.

Registered when torch loads this package. ``init_process_group()`` without a backend name,
``"neuron"`` and ``"cpu:gloo,neuron:neuron"`` all find it; see docs/distributed.md.
"""

import os

import torch

from torch_neuronx import _C
from torch_neuronx.mesh import MeshSuggestion, suggest_mesh

__all__ = ["MeshSuggestion", "clear_flight_record", "flight_record", "suggest_mesh"]

_LAUNCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def flight_record() -> list[dict]:
    """The last collectives and transfers of this process, oldest first.

    One dict each, with the names of torch's flight recorder: ``process_group``,
    ``profiling_name``, ``collective_seq_id`` or ``p2p_seq_id``, sizes and dtypes of inputs and
    outputs, ``state`` (``"started"``, ``"completed"``, ``"failed"``), ``error``, times.
    """
    return _C._flight_record()


def clear_flight_record() -> None:
    """Forgets what flight_record() returns."""
    _C._clear_flight_record()


def _launch() -> tuple[int, int, int, int]:
    """What the launcher says; -1 for what it does not."""
    values = []
    for name in _LAUNCH:
        text = os.environ.get(name, "")
        try:
            values.append(int(text) if text else -1)
        except ValueError:
            raise ValueError(
                f"environment variable {name} is {text!r}, but must be a number"
            ) from None
        if text and values[-1] < 0:
            raise ValueError(f"environment variable {name} is {text}, but must not be negative")
    return tuple(values)


def _make_backend(group, options):
    """Called by torch.distributed for each new group: its facts, and ``pg_options``."""
    if options is None:
        options = _C.ProcessGroupNeuron.Options()
    elif not isinstance(options, _C.ProcessGroupNeuron.Options):
        # Options made for another backend of the same group.
        options = _C.ProcessGroupNeuron.Options()
    options._timeout = group.timeout
    options.group_name = group.group_id
    options.global_ranks_in_group = group.global_ranks_in_group
    return _C.ProcessGroupNeuron(
        group.store, group.group_rank, group.group_size, options, _launch()
    )


def _make_gloo(store, rank, size, timeout):
    from torch.distributed import ProcessGroupGloo

    return ProcessGroupGloo(store, rank, size, timeout=timeout)


def _name_groups(process_group) -> None:
    """torch calls every plug-in backend "custom", and leaves groups without a default backend."""
    plain_name = process_group.name
    plain_register = process_group._register_backend

    def name(self):
        found = plain_name(self)
        return "neuron" if found == "custom" and _has_neuron(self) else found

    def _register_backend(self, device, backend_type, backend):
        plain_register(self, device, backend_type, backend)
        if torch.device(device).type == "neuron" and plain_name(self) in ("undefined", "gloo"):
            types = type(self).BackendType
            if plain_name(self) == "undefined" or torch.device("cpu") not in self._device_types:
                self._set_default_backend(types.CUSTOM)

    process_group.name = name
    process_group._register_backend = _register_backend


def _explain_other_devices(process_group) -> None:
    """torch looks for a backend by the tensor's device before a backend is asked."""
    for method in (
        "all_gather_single",
        "all_gather_single_coalesced",
        "all_to_all_single",
        "allgather",
        "allreduce",
        "allreduce_coalesced",
        "alltoall",
        "broadcast",
        "gather",
        "recv",
        "recv_anysource",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_single",
        "reduce_scatter_single_coalesced",
        "scatter",
        "send",
    ):
        plain = getattr(process_group, method, None)
        if plain is not None:
            setattr(process_group, method, _with_explanation(method, plain))


def _with_explanation(method: str, plain):
    missing = "No backend type associated with device type "

    def call(self, *arguments, **options):
        try:
            return plain(self, *arguments, **options)
        except RuntimeError as error:
            text = str(error)
            if missing not in text or not _has_neuron(self):
                raise
            device = text[text.index(missing) + len(missing) :].split()[0]
            raise RuntimeError(
                f"neuron {method}: Expected neuron device, got {device}; this group has no backend "
                f"for {device} tensors (init_process_group('cpu:gloo,neuron:neuron') adds one)"
            ) from None

    call.__name__ = method
    call.__doc__ = plain.__doc__
    return call


def _has_neuron(group) -> bool:
    return any(device.type == "neuron" for device in group._device_types)


def _monitor_barriers(c10d) -> None:
    """torch offers monitored_barrier for Gloo by name; ours has it, too."""
    plain = c10d.monitored_barrier

    def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
        if c10d._rank_not_in_group(group) or not _is_ours(c10d, group):
            return plain(group, timeout, wait_all_ranks)
        target = group or c10d._get_default_group()
        backend = target._get_backend(torch.device("neuron"))
        if not isinstance(backend, _C.ProcessGroupNeuron):
            backend = backend.wrapped_pg
        if timeout is None:
            timeout = c10d._get_default_timeout(c10d.get_backend(group))
        elif isinstance(timeout, float):
            import datetime

            timeout = datetime.timedelta(seconds=timeout)
        c10d._check_valid_timeout(timeout)
        return backend.monitored_barrier(timeout, wait_all_ranks)

    monitored_barrier.__doc__ = plain.__doc__
    c10d.monitored_barrier = monitored_barrier
    torch.distributed.monitored_barrier = monitored_barrier


def _set_timeouts(c10d) -> None:
    """torch changes the timeout of a group's Gloo and NCCL backends only."""
    plain = c10d._set_pg_timeout

    def _set_pg_timeout(timeout, group=None):
        target = group or c10d._get_default_group()
        if c10d._rank_not_in_group(group) or not _has_neuron(target):
            return plain(timeout, group)
        target._get_backend(torch.device("neuron")).set_timeout(timeout)
        if torch.device("cpu") in target._device_types:
            plain(timeout, group)

    _set_pg_timeout.__doc__ = plain.__doc__
    c10d._set_pg_timeout = _set_pg_timeout


def _is_ours(c10d, group) -> bool:
    return c10d.get_backend(group) != c10d.Backend.GLOO and _has_neuron(
        group or c10d._get_default_group()
    )


def register() -> None:
    """Makes ``neuron`` the backend of the device type ``neuron``."""
    if not torch.distributed.is_available() or not hasattr(_C, "ProcessGroupNeuron"):
        return
    from torch.distributed import distributed_c10d as c10d

    c10d.Backend.register_backend("neuron", _make_backend, extended_api=True, devices=["neuron"])
    if c10d.is_gloo_available():
        _C._set_gloo_factory(_make_gloo)
    _name_groups(c10d.ProcessGroup)
    _explain_other_devices(c10d.ProcessGroup)
    _monitor_barriers(c10d)
    _set_timeouts(c10d)
