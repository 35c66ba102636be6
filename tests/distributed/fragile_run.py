"""A training run for test_failures.py: DDP or FSDP2 with a checkpoint after every step.

It resumes from its checkpoint, prints every loss, and can kill one of its ranks at a named point.
Ranks and addresses come from the environment, as torchrun sets them.
"""

import argparse
import datetime
import json
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

POINTS = ("start", "rendezvous", "forward", "backward", "optimizer", "checkpoint", "shutdown")
STEPS = 4


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--parallel", choices=("ddp", "fsdp2"), default="fsdp2")
    parser.add_argument("--point", choices=POINTS)
    parser.add_argument("--step", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=5)
    options = parser.parse_args()
    rank = int(os.environ["RANK"])
    first_start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"

    def here(point, step=None):
        if options.point == point and step in (None, options.step) and rank == 1 and first_start:
            (options.folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    here("start")
    dist.init_process_group(timeout=datetime.timedelta(seconds=options.timeout))
    here("rendezvous")
    torch.manual_seed(0)
    middle = nn.Tanh()
    model = nn.Sequential(nn.Linear(16, 32), middle, nn.Linear(32, 16)).to("neuron")

    def watch_gradient(module, arguments, hidden):
        hidden.register_hook(lambda gradient: here("backward", step))

    middle.register_forward_hook(watch_gradient)
    if options.parallel == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        for layer in model:
            dist.fsdp.fully_shard(layer)
        dist.fsdp.fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    latest, begin = options.folder / "latest", 0
    if latest.exists():
        begin = int(latest.read_text())
        weights, moments = get_state_dict(model, optimizer)
        dcp.load(
            {"model": weights, "optimizer": moments}, checkpoint_id=options.folder / str(begin)
        )
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)

    for step in range(begin, STEPS):
        generator = torch.Generator().manual_seed(100 * step + rank)
        x = torch.randn(8, 16, generator=generator).to("neuron")
        loss = (model(x) - x).square().mean()
        here("forward", step)
        optimizer.zero_grad()
        loss.backward()
        here("optimizer", step)
        optimizer.step()
        with open(options.folder / f"losses{rank}", "a") as losses:
            losses.write(json.dumps([step, loss.item()]) + "\n")
        weights, moments = get_state_dict(model, optimizer)
        here("checkpoint", step)
        dcp.save(
            {"model": weights, "optimizer": moments}, checkpoint_id=options.folder / str(step + 1)
        )
        if rank == 0:
            latest.write_text(str(step + 1))
    here("shutdown")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
