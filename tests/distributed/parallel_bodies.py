"""What each rank does in test_parallelism.py: train in parallel, compare with one CPU process."""

import copy

import torch
import torch.distributed as dist
import torch.distributed.pipelining.schedules as schedules
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, rand
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

DEVICE = "neuron"
STEPS = 3


def close(actual, expected, tolerance=1e-4):
    if isinstance(actual, DTensor):
        actual = actual.to(DEVICE).full_tensor()
    torch.testing.assert_close(
        actual.detach().cpu(), expected.detach(), rtol=tolerance, atol=tolerance
    )


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def make_model(seed=0, width=8):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, width), Block(width), Block(width), nn.Linear(width, 3))


def batch():
    # As many rows for each of 2, 3 or 4 ranks.
    return torch.randn(12, 6, generator=torch.Generator().manual_seed(3))


def part(rank, world):
    return batch()[rank::world].to(DEVICE)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.05)


def steps(forward, optimizer, x, count=STEPS):
    for _ in range(count):
        optimizer.zero_grad()
        forward(x).square().mean().backward()
        optimizer.step()


def trained_on_cpu():
    model = make_model()
    steps(model, adamw(model), batch())
    return model


def same_parameters(model, tolerance=1e-4):
    for ours, theirs in zip(model.parameters(), trained_on_cpu().parameters(), strict=True):
        close(ours, theirs, tolerance)


def shard(model, **options):
    for block in model:
        fully_shard(block, **options)
    return fully_shard(model, **options)


# --- Data parallel --------------------------------------------------------------------------------


def ddp(rank, world, options, compiled=False):
    model = make_model().to(DEVICE)
    forward = DistributedDataParallel(model, **options)
    if compiled:
        forward = torch.compile(forward, backend="neuron")
    steps(forward, adamw(model), part(rank, world))
    same_parameters(model)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.always, self.sometimes = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x, both):
        return self.always(x) + self.sometimes(x) if both else self.always(x)


def ddp_unused_parameters(rank, world):
    torch.manual_seed(0)
    model = Branches().to(DEVICE)
    reference = copy.deepcopy(model).cpu()
    forward = DistributedDataParallel(model, find_unused_parameters=True)
    forward(batch().to(DEVICE), rank == 0).sum().backward()
    reference(batch(), True).sum().backward()
    close(model.sometimes.weight.grad * world, reference.sometimes.weight.grad)
    close(model.always.weight.grad, reference.always.weight.grad)


def ddp_uneven_inputs(rank, world):
    model = make_model().to(DEVICE)
    forward = DistributedDataParallel(model)
    with forward.join():
        for _ in range(2 + rank):
            forward(batch().to(DEVICE)).sum().backward()
    model.zero_grad()
    with forward.no_sync():
        forward(part(rank, world)).sum().backward()
    forward(part(rank, world)).sum().backward()
    reference = make_model()
    reference(batch()).sum().backward()
    close(model[0].weight.grad * world / 2, reference[0].weight.grad)


def zero_redundancy(rank, world):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = make_model().to(DEVICE)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.05)
    steps(DistributedDataParallel(model), optimizer, part(rank, world))
    same_parameters(model)


def sync_batch_norm(rank, world):
    norm = nn.SyncBatchNorm(6).to(DEVICE)
    y = DistributedDataParallel(norm)(part(rank, world))
    reference = nn.BatchNorm1d(6)
    close(y, reference(batch())[rank::world])
    close(norm.running_mean, reference.running_mean)
    close(norm.running_var, reference.running_var)


# --- Sharded data parallel ------------------------------------------------------------------------


def fsdp2(rank, world, options, compiled=False):
    model = shard(make_model().to(DEVICE), **options)
    forward = torch.compile(model, backend="neuron") if compiled else model
    steps(forward, adamw(model), part(rank, world))
    same_parameters(model, 1e-3)


def fsdp2_hybrid(rank, world):
    mesh = init_device_mesh(DEVICE, (world // 2, 2), mesh_dim_names=("replicate", "shard"))
    fsdp2(rank, world, {"mesh": mesh})


def fsdp2_holds_its_share(rank, world):
    torch.neuron.empty_cache()
    before = torch.neuron.memory_allocated()
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(8)))
    shard(model).to_empty(device=DEVICE)
    nbytes = 8 * 512 * 512 * 4
    assert torch.neuron.memory_allocated() - before <= nbytes // world + 4096
    model(torch.ones(2, 512, device=DEVICE)).sum().backward()
    # Parameters and gradients, each a share; gathered layers are gone.
    torch.neuron.synchronize()  # Queued work holds what it reads.
    assert torch.neuron.memory_allocated() - before <= 2 * nbytes // world + 65536


def fsdp2_mixed_precision(rank, world):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = shard(make_model().to(DEVICE), mp_policy=policy)
    model(part(rank, world)).float().square().mean().backward()
    reference = make_model()
    reference(batch()).square().mean().backward()
    close(model[0].weight.grad, reference[0].weight.grad, 3e-2)


def fsdp2_cpu_offload(rank, world):
    model = shard(make_model(), offload_policy=CPUOffloadPolicy())
    steps(model, adamw(model), part(rank, world))
    assert next(model.parameters()).device.type == "cpu"
    same_parameters(model, 1e-3)


def fsdp1(rank, world, strategy):
    model = FullyShardedDataParallel(
        make_model().to(DEVICE),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        sharding_strategy=ShardingStrategy[strategy],
        device_id=torch.neuron.current_device(),
        use_orig_params=True,
    )
    steps(model, adamw(model), part(rank, world))
    model.clip_grad_norm_(1.0)
    with FullyShardedDataParallel.summon_full_params(model):
        same_parameters(model, 1e-3)


def activation_checkpointing(rank, world):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = make_model().to(DEVICE)
    for i in (1, 2):
        model[i] = checkpoint_wrapper(model[i])
    shard(model)
    steps(model, adamw(model), part(rank, world))
    same_parameters(model, 1e-3)


# --- Tensor parallel ------------------------------------------------------------------------------


def tensor_parallel(rank, world, compiled=False):
    mesh = init_device_mesh(DEVICE, (world,))
    model, reference = make_model().to(DEVICE), make_model()
    parallelize_module(model[1], mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    forward = torch.compile(model, backend="neuron") if compiled else model
    out, expected = forward(batch().to(DEVICE)), reference(batch())
    close(out, expected)
    out.square().mean().backward()
    expected.square().mean().backward()
    for name in ("up", "down"):
        close(getattr(model[1], name).weight.grad, getattr(reference[1], name).weight.grad)


def cross_entropy_of_shards(rank, world):
    mesh = init_device_mesh(DEVICE, (world,))
    torch.manual_seed(0)
    reference = nn.Linear(6, 8 * world)
    model = copy.deepcopy(reference).to(DEVICE)
    parallelize_module(model, mesh, ColwiseParallel(use_local_output=False))
    targets = torch.arange(12) % (8 * world)
    with loss_parallel():
        loss = F.cross_entropy(model(batch().to(DEVICE)), targets.to(DEVICE))
        loss.backward()
    expected = F.cross_entropy(reference(batch()), targets)
    expected.backward()
    close(loss, expected)
    close(model.weight.grad, reference.weight.grad)


def dtensor_arithmetic(rank, world):
    mesh = init_device_mesh(DEVICE, (world,))
    x = torch.arange(35.0).reshape(5, 7)  # Uneven over every number of ranks here.
    for source in (Shard(0), Shard(1), Replicate()):
        d = distribute_tensor(x.to(DEVICE), mesh, [source])
        for target in (Shard(0), Shard(1), Replicate()):
            close(d.redistribute(mesh, [target]), x)
        close(d @ d.t(), x @ x.t())
        close(d.sum(0), x.sum(0))
        close(d.softmax(1), x.softmax(1))
        close(d.mean(), x.mean())
    ones = torch.full((3,), rank + 1.0, device=DEVICE)
    total = DTensor.from_local(ones, mesh, [Partial()])
    close(total, torch.full((3,), world * (world + 1) / 2))


def dtensor_random_values(rank, world):
    mesh = init_device_mesh(DEVICE, (world,))
    torch.manual_seed(5)
    whole = rand(8, 8, device_mesh=mesh, placements=[Shard(0)]).full_tensor()
    assert len(set(whole.flatten().tolist())) > 60  # Shards differ from each other.
    torch.manual_seed(5)
    again = rand(8, 8, device_mesh=mesh, placements=[Shard(0)]).full_tensor()
    close(again, whole.cpu())


def functional_in_a_graph(rank, world):
    import torch.distributed._functional_collectives as functional

    everyone = list(range(world))

    def f(x):
        total = functional.all_reduce(x * 2, "sum", everyone)
        gathered = functional.all_gather_tensor(total + 1, 0, everyone)
        return functional.reduce_scatter_tensor(gathered.sin(), "sum", 0, everyone) + x

    x = torch.arange(4.0, device=DEVICE) + rank
    total = sum(2 * (torch.arange(4.0) + r) for r in range(world)) + 1
    expected = world * total.sin() + torch.arange(4.0) + rank
    close(f(x), expected)
    close(torch.compile(f, backend="neuron", fullgraph=True)(x), expected)


# --- Pipelines ------------------------------------------------------------------------------------


def pipeline(rank, world, schedule, stages_per_rank):
    torch.manual_seed(0)
    count = world * stages_per_rank
    layers = [nn.Linear(6, 6) for _ in range(count)]
    reference = nn.Sequential(*copy.deepcopy(layers))
    device = torch.device(DEVICE, torch.neuron.current_device())
    mine = range(rank, count, world)
    stages = [PipelineStage(layers[i].to(device), i, count, device) for i in mine]
    runner = getattr(schedules, schedule)(
        stages if stages_per_rank > 1 else stages[0],
        n_microbatches=4,
        loss_fn=lambda out, target: (out - target).square().mean(),
    )
    inputs = (batch().to(device),) if rank == 0 else ()
    last = {"target": torch.zeros(12, 6, device=device)} if count - 1 in mine else {}
    runner.step(*inputs, **last)
    reference(batch()).square().mean().backward()
    for i in mine:
        close(layers[i].weight.grad, reference[i].weight.grad)


# --- Checkpoints ----------------------------------------------------------------------------------


def save_shards(rank, world, path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model = shard(make_model().to(DEVICE))
    optimizer = adamw(model)
    steps(model, optimizer, part(rank, world))
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=path)
    steps(model, optimizer, part(rank, world))
    return [p.full_tensor().detach().cpu() for p in model.parameters()]


def resume_from_shards(rank, world, path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model = shard(make_model(seed=9).to(DEVICE))
    optimizer = adamw(model)
    weights, state = get_state_dict(model, optimizer)
    loaded = {"model": weights, "optimizer": state}
    dcp.load(loaded, checkpoint_id=path)
    set_state_dict(
        model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"]
    )
    steps(model, optimizer, part(rank, world))
    return [p.full_tensor().detach().cpu() for p in model.parameters()]


def objects(rank, world):
    out = [None] * world
    dist.all_gather_object(out, {"rank": rank})
    assert out == [{"rank": r} for r in range(world)]
    values = [rank, "x"] if rank == 0 else [None, None]
    dist.broadcast_object_list(values, src=0)
    assert values == [0, "x"]
