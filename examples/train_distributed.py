"""Trains a small Llama-like model on several cores: FSDP2 over one dimension of the device mesh,
tensor and sequence parallelism over the other.

    torchrun --nproc-per-node 4 examples/train_distributed.py --device neuron --tp 2

Ordinary PyTorch: ``--device`` may be neuron, cpu or cuda. Every rank reads the same text (it ships
with CPython); ranks of one data-parallel group take different windows of it. At the end the first
losses are compared with a run of the whole batch in one process on the CPU, and a sharded
checkpoint is saved and loaded into a model sharded over another mesh.
"""

import argparse
import os
import shutil
import tempfile
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from train_gpt import batches, load_text

WIDTH, LAYERS, HEADS, CONTEXT = 192, 4, 6, 128


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        batch, length, _ = x.shape
        # With tensor parallelism a rank holds some of the heads: -1, not HEADS.
        q, k, v = (
            layer(x).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 4 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.feed_forward = Attention(), FeedForward()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class Model(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if "norm" not in name:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device)[None])
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def shard(model, mesh):
    """Tensor and sequence parallelism over mesh["tp"], then FSDP2 over mesh["dp"]."""
    tp = mesh["tp"]
    if tp.size() > 1:
        sequence = PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
        )
        for block in model.blocks:
            parallelize_module(
                block,
                tp,
                {
                    "norm1": SequenceParallel(),
                    "attention": sequence,
                    "attention.q": ColwiseParallel(),
                    "attention.k": ColwiseParallel(),
                    "attention.v": ColwiseParallel(),
                    "attention.out": RowwiseParallel(output_layouts=Shard(1)),
                    "norm2": SequenceParallel(),
                    "feed_forward": sequence,
                    "feed_forward.gate": ColwiseParallel(),
                    "feed_forward.up": ColwiseParallel(),
                    "feed_forward.down": RowwiseParallel(output_layouts=Shard(1)),
                },
            )
        embedding = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
        parallelize_module(
            model,
            tp,
            {
                "tokens": embedding,
                "positions": embedding,
                "norm": SequenceParallel(),
                "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
            },
        )
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def build(vocabulary):
    torch.manual_seed(1337)
    return Model(vocabulary)


def step_of(model, optimizer, ids, targets):
    loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)


def train(options, mesh, data, vocabulary, say):
    device = torch.device(options.device)
    model = shard(build(vocabulary).to(device), mesh)
    optimizer = adamw(model)
    held = sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in model.parameters())
    whole = sum(p.numel() for p in model.parameters())
    say(f"{whole / 1e6:.2f} M weights, {held / 1e6:.2f} M of them on this rank; mesh {mesh}")

    dp = mesh["dp"]
    losses, started = [], time.perf_counter()
    source = batches(data, options.batch, CONTEXT, seed=0)
    for step in range(options.steps):
        ids, targets = (
            t.tensor_split(dp.size())[dp.get_local_rank()].to(device) for t in next(source)
        )
        loss = step_of(model, optimizer, ids, targets)
        if step < options.compare or step % 10 == 9 or step + 1 == options.steps:
            dist.all_reduce(loss, dist.ReduceOp.AVG, group=dp.get_group())
            losses.append(loss.item())
        if step % 10 == 9 or step + 1 == options.steps:
            speed = options.batch * CONTEXT * (step + 1) / (time.perf_counter() - started)
            say(f"step {step + 1}: loss {losses[-1]:.3f}, {speed:,.0f} tokens/s")
    return model, losses


def reload_elsewhere(options, model, vocabulary, say):
    """Saves the shards, and loads them into a model that is sharded over all ranks at once."""
    path = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(path)
    state = get_model_state_dict(model)
    dcp.save({"model": state}, checkpoint_id=path[0])
    flat = init_device_mesh(options.device, (dist.get_world_size(), 1), mesh_dim_names=("dp", "tp"))
    other = shard(Model(vocabulary).to(options.device), flat)
    loaded = {"model": get_model_state_dict(other)}
    dcp.load(loaded, checkpoint_id=path[0])
    set_model_state_dict(other, loaded["model"])
    ids = torch.arange(CONTEXT, device=options.device)[None] % vocabulary
    with torch.no_grad():
        before, after = model(ids), other(ids)
    same = torch.allclose(before, after, rtol=1e-4, atol=1e-5)
    say(f"sharded checkpoint reloaded over another mesh: outputs {'agree' if same else 'DIFFER'}")
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(path[0])
    return same


def compare(options, data, vocabulary, losses, say):
    model = build(vocabulary)
    optimizer = adamw(model)
    source = batches(data, options.batch, CONTEXT, seed=0)
    worst = 0.0
    for loss in losses[: options.compare]:
        reference = step_of(model, optimizer, *next(source)).item()
        worst = max(worst, abs(loss - reference) / abs(reference))
    same = worst < 1e-3
    say(
        f"first {options.compare} losses against one process on the CPU: largest relative "
        f"difference {worst:.1e} ({'agree' if same else 'DIFFER'})"
    )
    return same


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--tp", type=int, default=1, help="ranks of one tensor-parallel group")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16, help="windows of all ranks together")
    parser.add_argument("--compare", type=int, default=5, help="steps to repeat on the CPU")
    options = parser.parse_args()

    # Its logits are a view, but nothing writes into them.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    if options.device == "cpu":
        dist.init_process_group("gloo")
    else:
        device = torch.device(options.device, int(os.environ["LOCAL_RANK"]))
        torch.accelerator.set_device_index(device.index)
        dist.init_process_group(device_id=device)
    rank, world = dist.get_rank(), dist.get_world_size()
    if world % options.tp or options.batch % (world // options.tp):
        raise SystemExit(
            f"--tp {options.tp} must divide the {world} ranks, and the rest --batch {options.batch}"
        )

    def say(text):
        if rank == 0:
            print(text, flush=True)

    text = load_text()
    alphabet = sorted(set(text))
    index = {c: i for i, c in enumerate(alphabet)}
    data = torch.tensor([index[c] for c in text])
    mesh = init_device_mesh(
        options.device, (world // options.tp, options.tp), mesh_dim_names=("dp", "tp")
    )
    model, losses = train(options, mesh, data, len(alphabet), say)
    good = reload_elsewhere(options, model, len(alphabet), say)
    if options.compare and rank == 0:
        good = compare(options, data, len(alphabet), losses, say) and good
    dist.barrier()
    dist.destroy_process_group()
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
