"""Collectives of backend neuron against Gloo on CPU tensors, in one run.

    python benchmarks/collectives.py [--ranks 2] [--json out.json]

Spawns the ranks on this machine, times both backends in turns and prints medians of the slowest
rank, with the ratio neuron / Gloo; then a training step under FSDP2, and how long 16 ranks take.
"""

import argparse
import json
import os
import socket
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

SIZES = {"1 KiB": 1 << 10, "1 MiB": 1 << 20, "64 MiB": 64 << 20}


def all_reduce(group, device, bytes_, world):
    x = torch.ones(bytes_ // 4, device=device)
    return lambda: dist.all_reduce(x, dist.ReduceOp.MAX, group=group)


def all_gather(group, device, bytes_, world):
    x = torch.ones(bytes_ // 4 // world, device=device)
    out = torch.empty(x.numel() * world, device=device)
    return lambda: dist.all_gather_into_tensor(out, x, group=group)


def reduce_scatter(group, device, bytes_, world):
    x = torch.ones(bytes_ // 4 // world * world, device=device)
    out = torch.empty(x.numel() // world, device=device)
    return lambda: dist.reduce_scatter_tensor(out, x, group=group)


def broadcast(group, device, bytes_, world):
    x = torch.ones(bytes_ // 4, device=device)
    return lambda: dist.broadcast(x, 0, group=group)


def all_to_all(group, device, bytes_, world):
    x = torch.ones(bytes_ // 4 // world * world, device=device)
    out = torch.empty_like(x)
    return lambda: dist.all_to_all_single(out, x, group=group)


COLLECTIVES = (all_reduce, all_gather, reduce_scatter, broadcast, all_to_all)


def once(work, repeat, device):
    dist.barrier()
    start = time.perf_counter()
    for _ in range(repeat):
        work()
    if device == "neuron":
        torch.neuron.synchronize()
    return (time.perf_counter() - start) / repeat


def compare(ours, gloo, repeat, rounds):
    """Median seconds of both; in each round both run, one after the other."""
    times = {"neuron": [], "cpu": []}
    for _ in range(rounds + 1):
        for device, work in (("neuron", ours), ("cpu", gloo)):
            slowest = torch.tensor([once(work, repeat, device)])
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            times[device].append(slowest.item())
    return tuple(statistics.median(times[d][1:]) for d in ("neuron", "cpu"))


def fsdp_step(device, mesh):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(device)
    for block in model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(2, 128, 256, device=device)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def rank_main(rank, world, port, answers, only_reduce):
    from torch.distributed.device_mesh import init_device_mesh

    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo,neuron:neuron")
    rows = []

    def add(name, ours, gloo, repeat, rounds):
        neuron, cpu = compare(ours, gloo, repeat, rounds)
        rows.append({"name": name, "neuron": neuron, "gloo": cpu, "ratio": neuron / cpu})

    if only_reduce:
        pair = [all_reduce(None, device, 1 << 20, world) for device in ("neuron", "cpu")]
        add(f"all_reduce 1 MiB, {world} ranks", *pair, 1, 5)
    else:
        for size, bytes_ in SIZES.items():
            for make in COLLECTIVES:
                pair = [make(None, device, bytes_, world) for device in ("neuron", "cpu")]
                repeat = 50 if bytes_ <= 1 << 10 else 10 if bytes_ <= 1 << 20 else 1
                add(f"{make.__name__} {size}", *pair, repeat, 7)
        steps = [fsdp_step(d, init_device_mesh(d, (world,))) for d in ("neuron", "cpu")]
        add("FSDP2 step, 4 layers of 256", *steps, 1, 7)
    if rank == 0:
        answers.put(rows)
    dist.barrier()
    dist.destroy_process_group()


def measure(world, only_reduce=False):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = mp.get_context("spawn")
    answers = context.SimpleQueue()
    processes = mp.spawn(rank_main, (world, port, answers, only_reduce), nprocs=world, join=False)
    rows = answers.get()
    while not processes.join():
        pass
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--many", type=int, default=16, help="ranks of the last row")
    parser.add_argument("--json", help="file for the rows")
    options = parser.parse_args()
    rows = measure(options.ranks)
    if options.many:
        rows += measure(options.many, only_reduce=True)
    print(f"{'':<28} {'neuron ms':>10} {'Gloo ms':>10} {'ratio':>7}")
    for row in rows:
        print(
            f"{row['name']:<28} {row['neuron'] * 1e3:>10.3f} {row['gloo'] * 1e3:>10.3f} "
            f"{row['ratio']:>7.2f}"
        )
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
