"""Times work on the device and on the CPU in turns, in one process, and keeps medians."""

import gc
import json
import statistics
import time
from dataclasses import asdict, dataclass, field

import torch


@dataclass
class Row:
    """One measurement. ``ratio`` is device time over CPU time: below 1 the device is faster."""

    name: str
    unit: str
    device: float
    cpu: float
    goal: float | None = None
    notes: dict = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return self.device / self.cpu if self.cpu else float("nan")


def synchronize() -> None:
    torch.neuron.synchronize()


def _once(work, repeat: int, on_device: bool) -> float:
    start = time.perf_counter()
    for _ in range(repeat):
        work()
    if on_device:
        synchronize()
    return (time.perf_counter() - start) / repeat


def _take_turn(work) -> None:
    time.sleep(0.02)
    until = time.perf_counter() + 0.005
    work()
    while time.perf_counter() < until:
        work()


def compare(
    name,
    device_work,
    cpu_work,
    *,
    repeat=1,
    rounds=9,
    warmup=3,
    scale=1e3,
    unit="ms",
    goal=None,
    **notes,
) -> Row:
    """Runs both pieces of work in alternating rounds of ``repeat`` calls; medians of ``rounds``.

    Each turn starts with a pause, in which the other side's threads fall asleep (OpenMP's spin for
    a while after the CPU's turn and would take a core from the device, ours from the CPU), and
    with some untimed work, which wakes one's own.
    """
    for _ in range(warmup):
        device_work()
        cpu_work()
    synchronize()
    gc.collect()
    device, cpu = [], []
    for _ in range(rounds):
        _take_turn(device_work)
        device.append(_once(device_work, repeat, True))
        _take_turn(cpu_work)
        cpu.append(_once(cpu_work, repeat, False))
    return Row(
        name, unit, statistics.median(device) * scale, statistics.median(cpu) * scale, goal, notes
    )


def show(rows: list[Row]) -> None:
    width = max(len(row.name) for row in rows)
    print(f"{'':<{width}}  {'neuron':>10} {'CPU':>10} {'ratio':>7} {'goal':>6}")
    for row in rows:
        goal = f"{row.goal:.2f}" if row.goal is not None else ""
        print(
            f"{row.name:<{width}}  {row.device:>8.2f}{row.unit:>2} {row.cpu:>8.2f}{row.unit:>2} "
            f"{row.ratio:>7.2f} {goal:>6}"
            + ("  " + ", ".join(f"{k} {v}" for k, v in row.notes.items()) if row.notes else "")
        )


def save(rows: list[Row], path: str) -> None:
    with open(path, "w") as file:
        json.dump([{**asdict(row), "ratio": row.ratio} for row in rows], file, indent=1)
