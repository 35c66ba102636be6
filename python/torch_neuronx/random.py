"""Random state of ``torch.neuron``: Philox generators with a 16-byte state (seed, offset)."""

import torch

from torch_neuronx import _C
from torch_neuronx._utils import device_index


def _get_generator(device) -> torch.Generator:
    return _C._default_generator(device_index(device))


class _DefaultGenerators:
    """The devices' generators, made on first use; behaves as a tuple."""

    def __len__(self):
        return _C._device_count()

    def __getitem__(self, index):
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"generator index {index} out of range for {len(self)} devices")
        return _C._default_generator(index)

    def __iter__(self):
        return (self[i] for i in range(len(self)))


default_generators = _DefaultGenerators()


def get_rng_state(device="neuron") -> torch.Tensor:
    """The state of the device's generator: a CPU uint8 tensor of 16 bytes."""
    return _get_generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device="neuron") -> None:
    """Sets the state; 16 bytes (seed, offset), or 8 (seed; the offset becomes 0)."""
    _get_generator(device).set_state(new_state.clone(memory_format=torch.contiguous_format))


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(i) for i in range(_C._device_count())]


def set_rng_state_all(new_states) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator."""
    _get_generator(None).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all devices. torch.manual_seed calls it."""
    for index in range(_C._device_count()):
        _C._default_generator(index).manual_seed(int(seed))


def seed() -> int:
    """Seeds the current device's generator with a random number and returns it."""
    return _get_generator(None).seed()


def seed_all() -> None:
    """The same random seed on all devices."""
    value = None
    for index in range(_C._device_count()):
        generator = _C._default_generator(index)
        if value is None:
            value = generator.seed()
        else:
            generator.manual_seed(value)


def initial_seed() -> int:
    """The current device's seed."""
    return _get_generator(None).initial_seed()
