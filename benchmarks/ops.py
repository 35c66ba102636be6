"""Every family of operators on device ``neuron`` against CPU eager, in and out of cache.

Usage: python benchmarks/ops.py [family ...] [--match TEXT] [--threads N] [--json FILE]

Device and CPU run in turns, in blocks of calls. A row is the ratio of the fastest blocks, which
other work on the machine disturbs least; ``!`` marks rows over 1.5. Sizes are those of the input:
64 KiB and 1 MiB stay in cache, 32 MiB does not. On a busy machine compare with --threads 1: OpenMP,
which the CPU side waits in, loses whole time slices whenever another process takes a core.
"""

import argparse
import math
import os
import statistics
import time

import torch
from harness import Row, save, show, synchronize
from op_cases import SIZES, Maker, all_cases

DEVICE = torch.device("neuron")
SLOW = 1.5


def measure(name, build, n, goal, block):
    """Ratio of the fastest of blocks that alternate; each lasts about `block` seconds."""
    works = []
    for device in (DEVICE, torch.device("cpu")):
        torch.manual_seed(0)
        works.append(build(Maker(device), n))
    device_work, cpu_work = works
    for _ in range(2):
        device_work()
        synchronize()
        cpu_work()

    def seconds(work, repeat, on_device):
        start = time.perf_counter()
        for _ in range(repeat):
            work()
        if on_device:
            synchronize()
        return (time.perf_counter() - start) / repeat

    once = max(seconds(cpu_work, 1, False), seconds(device_work, 1, True))
    repeat = max(1, min(200, int(block / once)))
    rounds = 7 if once < 0.01 else 4 if once < 0.1 else 3
    device, cpu = [], []
    for _ in range(rounds):
        device.append(seconds(device_work, repeat, True))
        cpu.append(seconds(cpu_work, repeat, False))
    row = Row(name, "us", min(device) * 1e6, min(cpu) * 1e6, goal)
    if row.ratio > SLOW:
        row.notes["!"] = "slow"
    return row


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(value) for value in values))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("families", nargs="*")
    parser.add_argument("--match", default="", help="only rows whose name contains this")
    parser.add_argument("--json", default="out/ops.json")
    parser.add_argument("--block", type=float, default=0.004, help="seconds of a round")
    parser.add_argument("--threads", type=int, default=0, help="of both; default: all cores")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
        os.environ["TORCH_NEURONX_NUM_THREADS"] = str(options.threads)
    families = {}
    for family, name, build, sizes, goal in all_cases():
        if options.families and family not in options.families:
            continue
        for size in sizes:
            label = f"{name} {size}" if len(sizes) > 1 or size != "1M" else name
            if options.match in label:
                families.setdefault(family, []).append((label, build, SIZES[size], goal))
    start, everything = time.perf_counter(), []
    for family, cases in families.items():
        rows = [measure(name, build, n, goal, options.block) for name, build, n, goal in cases]
        mean = geometric_mean([row.ratio for row in rows])
        print(f"== {family}: geometric mean {mean:.2f}{' !' if mean > SLOW else ''}", flush=True)
        show(rows)
        everything += [(family, row) for row in rows]
    print(f"\n{'family':<16} {'rows':>5} {'mean':>6} {'worst':>6}")
    for family in families:
        ratios = [row.ratio for name, row in everything if name == family]
        print(f"{family:<16} {len(ratios):>5} {geometric_mean(ratios):>6.2f} {max(ratios):>6.2f}")
    ratios = [row.ratio for _, row in everything]
    print(
        f"{'all':<16} {len(ratios):>5} {geometric_mean(ratios):>6.2f} {max(ratios):>6.2f}"
        f"   {sum(r > SLOW for r in ratios)} over {SLOW}, {time.perf_counter() - start:.0f} s"
    )
    os.makedirs(os.path.dirname(options.json) or ".", exist_ok=True)
    save([row for _, row in everything], options.json)


if __name__ == "__main__":
    main()
