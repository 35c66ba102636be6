"""Process groups: how they start and end, asynchronous work, environments, several hosts."""

import datetime
import os
import subprocess
import sys
import time

import pytest
import ranks
import torch
import torch.distributed as dist

NEURON = torch.device("neuron")


def backend_of(group=None):
    found = (group or dist.group.WORLD)._get_backend(NEURON)
    return getattr(found, "wrapped_pg", found)


# --- Start ---------------------------------------------------------------------------------------


def _by_name(rank, world, store, name):
    dist.init_process_group(name, store=store, rank=rank, world_size=world)
    assert dist.get_default_backend_for_device("neuron") == "neuron"
    assert backend_of().name() == "neuron"
    assert dist.group.WORLD.name() in ("neuron", "gloo" if name == "cpu:gloo,neuron:neuron" else "")
    tensor = torch.ones(2, device="neuron")
    dist.all_reduce(tensor)
    assert tensor.tolist() == [world] * 2
    assert tensor.device.index == torch.neuron.current_device() == rank
    assert torch.neuron.device_count() >= world
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=10))
    if name == "cpu:gloo,neuron:neuron":
        host = torch.ones(2)
        dist.all_reduce(host)
        assert host.tolist() == [world] * 2


@pytest.mark.parametrize("name", [None, "neuron", "cpu:gloo,neuron:neuron"])
def test_backend_names(name):
    ranks.run(_by_name, 3, name, group=False)


def _mesh(rank, world):
    mesh = dist.init_device_mesh("neuron", (2, 2), mesh_dim_names=("dp", "tp"))
    for dim, members in (
        ("dp", [rank % 2, rank % 2 + 2]),
        ("tp", [rank // 2 * 2, rank // 2 * 2 + 1]),
    ):
        tensor = torch.tensor([float(rank)], device="neuron")
        dist.all_reduce(tensor, group=mesh[dim].get_group())
        assert tensor.item() == sum(members)


def test_device_mesh():
    ranks.run(_mesh, 4)


def _eager(rank, world, store):
    device = torch.device("neuron", rank)
    dist.init_process_group(store=store, rank=rank, world_size=world, device_id=device)
    dist.barrier()
    pair = dist.new_group([0, 1])  # Rank 2 is outside and only passes by.
    halves = dist.split_group(split_ranks=[[0, 1], [2]])
    tensor = torch.full((1,), float(rank + 1), device="neuron")
    dist.all_reduce(tensor, group=halves)
    assert tensor.item() == 3.0
    if rank < 2:
        dist.all_reduce(tensor, group=pair)
        assert tensor.item() == 6.0


def test_eager_start_and_split():
    ranks.run(_eager, 3, group=False)


def _shrink(rank, world, store):
    device = torch.device("neuron", rank)
    dist.init_process_group(store=store, rank=rank, world_size=world, device_id=device)
    if rank == 1:
        return
    dist.shrink_group([1])
    tensor = torch.ones(1, device="neuron")
    dist.all_reduce(tensor)
    assert tensor.item() == 2.0 and dist.get_world_size() == 2


def test_shrink():
    ranks.run(_shrink, 3, group=False)


def _again(rank, world, store):
    # The same store twice: nothing of the first group may be taken for the second's.
    for _ in range(3):
        dist.init_process_group("neuron", store=store, rank=rank, world_size=world)
        group = dist.new_group([0, 1])
        tensor = torch.ones(1, device="neuron")
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == 2.0
        dist.destroy_process_group()
    with pytest.raises(ValueError, match="has not been initialized"):
        dist.all_reduce(torch.ones(1, device="neuron"))


def test_start_again_in_one_process():
    ranks.run(_again, 2, group=False)


def _detail(rank, world, store):
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        dist.init_process_group("neuron", store=store, rank=rank, world_size=world)
        tensor = torch.ones(2, device="neuron")
        dist.all_reduce(tensor)
        assert tensor.tolist() == [world] * 2
        assert dist.group.WORLD._get_backend(NEURON) is not backend_of()
        with pytest.raises(RuntimeError, match="Detected mismatch between collectives"):
            dist.all_reduce(torch.ones(2 + rank, device="neuron"))
        dist.destroy_process_group()
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)


def test_debug_wrapper():
    ranks.run(_detail, 2, group=False)


# --- Work ----------------------------------------------------------------------------------------


def _async_work(rank, world):
    if rank == 1:
        time.sleep(0.3)
    tensor = torch.ones(4, device="neuron")
    work = dist.all_reduce(tensor, async_op=True)
    if rank == 0:
        assert not work.is_completed()
    called = []
    future = work.get_future()
    chained = future.then(lambda f: called.append(f.value()[0].tolist()) or f.value()[0] + 1)
    work.wait()
    assert tensor.tolist() == [2.0] * 4
    assert chained.wait().tolist() == [3.0] * 4 and called == [[2.0] * 4]
    assert work.is_completed() and work.is_success()
    assert work.result()[0].data_ptr() == tensor.data_ptr()
    assert work._get_duration() >= 0
    first = work._get_sequence_number() if hasattr(work, "_get_sequence_number") else None
    column = torch.ones(4, 2, device="neuron")[:, 0]
    work = dist.all_reduce(column, async_op=True)
    while not work.is_completed():  # Nobody waits: the column is written all the same.
        time.sleep(0.001)
    assert column.tolist() == [2.0] * 4
    if first is not None:
        assert work._get_sequence_number() > first

    # A callback may run another collective and wait for it.
    def again(future):
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]

    tensor = torch.ones(2, device="neuron")
    assert (
        dist.all_reduce(tensor, async_op=True).get_future().then(again).wait().tolist() == [4.0] * 2
    )


def test_async_work():
    ranks.run(_async_work, 2)


def _behind_another_stream(rank, world):
    from torch_neuronx import _C

    assert not _C._is_inline()
    side, late = torch.neuron.Stream(), torch.neuron.Stream()
    x = torch.full((300, 300), 1 / 300, device="neuron")
    for _ in range(5):
        tensor = torch.zeros(300, 300, device="neuron")
        side.wait_stream(torch.neuron.current_stream())
        with torch.neuron.stream(side):
            y = x
            for _ in range(30):
                y = y @ x
            tensor.add_(y * 300)
        late.wait_stream(side)
        with torch.neuron.stream(late):
            work = dist.all_reduce(tensor, async_op=True)
            work.wait()
        torch.neuron.current_stream().wait_stream(late)
        torch.testing.assert_close(tensor.cpu(), torch.full((300, 300), float(world)))


def test_collectives_start_behind_other_streams(monkeypatch):
    monkeypatch.setenv("TORCH_NEURONX_EXECUTOR", "thread")
    pool = ranks.Pool()
    try:
        pool.run(_behind_another_stream, 2, (), {})
    finally:
        pool.stop()


def _records(rank, world):
    import torch_neuronx
    from torch_neuronx import distributed

    distributed.clear_flight_record()
    torch_neuronx.clear_op_tracking()
    dist.all_reduce(torch.ones(2, 3, device="neuron"))
    work = dist.isend(torch.ones(1, device="neuron"), 1 - rank)
    dist.recv(torch.ones(1, device="neuron"), 1 - rank)
    work.wait()
    expected = [("neuron:all_reduce", [[2, 3]]), ("neuron:send", [[1]])]

    def completed():
        return [
            (r["profiling_name"], r["input_sizes"])
            for r in distributed.flight_record()
            if r["state"] == "completed"
        ]

    deadline = time.monotonic() + 10
    while not all(e in completed() for e in expected) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert all(e in completed() for e in expected), distributed.flight_record()
    assert any("allreduce" in name for name in torch_neuronx.get_executed_ops())
    with torch.profiler.profile() as profile:
        dist.all_reduce(torch.ones(1, device="neuron"))
    assert any(event.name == "neuron:all_reduce" for event in profile.events())


def test_records():
    ranks.run(_records, 2)


# --- Errors --------------------------------------------------------------------------------------


def _refusals(rank, world):
    def refused(kind, text, call):
        with pytest.raises(kind, match=text):
            call()

    def ones(*shape, dtype=torch.float32):
        return torch.ones(*shape, dtype=dtype, device="neuron")

    any_error = (RuntimeError, ValueError)
    refused(any_error, "Expected neuron device, got cpu", lambda: dist.all_reduce(torch.ones(2)))
    refused(
        any_error,
        "Expected neuron device, got cpu",
        lambda: dist.all_gather([ones(1), torch.ones(1)], ones(1)),
    )
    refused(
        any_error,
        "Invalid usage of tensors with different dtypes",
        lambda: dist.all_gather([ones(2), ones(2)], ones(2, dtype=torch.int32)),
    )
    refused(
        any_error,
        "Invalid usage of tensors with different dtypes",
        lambda: dist.all_reduce_coalesced([ones(2), ones(2, dtype=torch.int32)]),
    )
    refused(
        any_error, "tensor_list has 1 tensors.*2 ranks", lambda: dist.all_gather([ones(1)], ones(1))
    )
    refused(
        any_error, "same number of elements", lambda: dist.all_gather([ones(3), ones(3)], ones(2))
    )
    refused(
        any_error,
        "world_size times input",
        lambda: dist.all_gather_into_tensor(ones(3), ones(2)),
    )
    refused(any_error, "times world_size", lambda: dist.reduce_scatter_tensor(ones(2), ones(3)))
    refused(any_error, "does not divide equally", lambda: dist.all_to_all_single(ones(3), ones(3)))
    refused(
        any_error,
        "add up to 3",
        lambda: dist.all_to_all_single(ones(4), ones(4), [2, 2], [1, 2]),
    )
    refused(any_error, "rank", lambda: dist.broadcast(ones(1), src=7))
    refused(any_error, "itself|rank", lambda: dist.send(ones(1), rank))
    refused(any_error, "non-integral", lambda: dist.all_reduce(ones(2), dist.ReduceOp.BAND))
    refused(
        any_error, "boolean", lambda: dist.all_reduce(ones(2, dtype=torch.bool), dist.ReduceOp.AVG)
    )
    refused(any_error, "share one place", lambda: dist.all_reduce(ones(1).expand(3)))
    sparse = torch.sparse_coo_tensor([[0]], [1.0], (2,), device="neuron")
    refused(NotImplementedError, "does not take sparse", lambda: dist.all_reduce(sparse))
    # Nothing of that was sent.
    tensor = ones(2)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 2


def test_bad_arguments():
    ranks.run(_refusals, 2)


def _mismatch(rank, world, what):
    tensor = torch.ones(3 if what == "size" and rank else 2, device="neuron")
    if what == "dtype" and rank:
        tensor = tensor.int()
    with pytest.raises(Exception, match="rank") as info:
        if what == "kind" and rank:
            dist.broadcast(tensor, 0)
        else:
            dist.all_reduce(tensor)
        torch.neuron.synchronize()
    assert "all_reduce" in str(info.value)


@pytest.mark.parametrize("what", ["size", "dtype", "kind"])
def test_different_calls(what):
    ranks.run(_mismatch, 2, what)


def _absent(rank, world):
    if rank == 1:
        time.sleep(2.0)
        return
    started = time.monotonic()
    work = dist.all_reduce(torch.ones(1, device="neuron"), async_op=True)
    with pytest.raises(RuntimeError, match="rank"):
        work.wait(datetime.timedelta(milliseconds=300))
    assert time.monotonic() - started < 1.5
    with pytest.raises(RuntimeError, match="1"):
        backend_of().monitored_barrier(datetime.timedelta(milliseconds=300))
    dist.distributed_c10d._abort_process_group()


def test_absent_rank():
    ranks.run(_absent, 2, timeout=3)


def _hooks_and_timeouts(rank, world):
    group = dist.group.WORLD
    seen = []
    group._register_on_completion_hook(lambda info: seen.append((info.op_type, info.seq)))
    dist.all_reduce(torch.ones(1, device="neuron"))
    dist.barrier()
    group._wait_for_pending_works()
    kinds = torch._C._distributed_c10d.OpType
    # Hooks run on threads of their own, in no promised order.
    assert sorted(seen, key=lambda s: s[1]) == [(kinds.ALLREDUCE, 1), (kinds.BARRIER, 2)]
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(milliseconds=400))
    if rank == 1:
        time.sleep(1.5)
        return
    started = time.monotonic()
    with pytest.raises(RuntimeError, match="rank 1 had not arrived"):
        dist.all_reduce(torch.ones(1, device="neuron"))
        torch.neuron.synchronize()
    assert time.monotonic() - started < 1.4


def test_hooks_and_timeouts():
    ranks.run(_hooks_and_timeouts, 2)


def _dying(rank, world):
    dist.all_reduce(torch.ones(1, device="neuron"))
    if rank == 1:
        os.kill(os.getpid(), 9)
    started = time.monotonic()
    with pytest.raises(RuntimeError, match="rank 1"):
        dist.all_reduce(torch.ones(1, device="neuron"))
        torch.neuron.synchronize()
    assert time.monotonic() - started < 10
    return "raised"


def test_dead_rank():
    pool = ranks.Pool()
    try:
        pool.grow(2)
        for rank in range(2):
            pool.tasks[rank].put((1, _dying, 2, (), {"timeout": 20}))
        rank, fine, outcome = pool.results.get(timeout=60)
        assert (rank, fine, outcome) == (0, True, "raised"), outcome
    finally:
        pool.stop()


# --- Environments --------------------------------------------------------------------------------


def start_alone(code, **environment):
    script = "import torch, torch.distributed as dist\nstore = dist.HashStore()\n" + code
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_wrong_environment():
    code = """
import os
local = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
for rank, world, values in ((5, 4, ()), (0, 1, ("3", "2")), (0, 1, ("x",)), (0, 1, ("64", "65"))):
    os.environ.update(zip(local, values))
    try:
        dist.init_process_group("neuron", store=store, rank=rank, world_size=world)
    except (RuntimeError, ValueError) as error:
        print("error:", str(error).splitlines()[0])
"""
    found = start_alone(code)
    lines = [line for line in found.stdout.splitlines() if line.startswith("error:")]
    assert len(lines) == 4, found.stdout + found.stderr
    assert "rank 5" in lines[0] and "0 to 3" in lines[0]
    assert "LOCAL_RANK is 3" in lines[1] and "LOCAL_WORLD_SIZE is 2" in lines[1]
    assert "LOCAL_RANK is 'x'" in lines[2]
    assert "65 ranks" in lines[3] and "has 64" in lines[3]


def _two_on_one_core(rank, world):
    torch.neuron.set_device(0)
    try:
        dist.all_reduce(torch.ones(1, device="neuron:0"))
    except RuntimeError as error:
        return str(error)
    finally:
        torch.neuron.set_device(rank)
    return None


def test_two_ranks_on_one_core():
    texts = ranks.run(_two_on_one_core, 2, timeout=2)
    assert any("One NeuronCore serves one process" in str(text) for text in texts), texts


def _cores(rank, world, store, cores):
    os.environ["NEURON_RT_VISIBLE_CORES"] = cores[rank]
    os.environ["LOCAL_WORLD_SIZE"] = str(world)
    dist.init_process_group("neuron", store=store, rank=rank, world_size=world)
    for name in {"neuron", f"neuron:{rank}"}:
        tensor = torch.ones(2, device=name)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [2.0, 2.0] and tensor.device.index == rank
        assert (tensor.sum() + 1).item() == 5.0
    assert torch.neuron.device_count() == world
    with pytest.raises(RuntimeError, match="out of range"):
        torch.ones(1, device=f"neuron:{world}")


def test_cores_of_ranks():
    pool = ranks.Pool()
    try:
        with pytest.raises(AssertionError, match="NEURON_RT_VISIBLE_CORES=0 gives 1 NeuronCores"):
            pool.run(_cores, 2, (["0", "0"],), {"group": False})
        # One core each, wherever it lies: its index is the local rank.
        pool.run(_cores, 2, (["3", "4"],), {"group": False})
    finally:
        pool.stop()


# --- Several hosts -------------------------------------------------------------------------------


def _hosts(rank, world, per_host):
    import test_collectives

    assert backend_of().transport == ("gloo" if world > per_host else "shared memory")
    for dtype in (torch.float32, torch.bfloat16, torch.uint8, torch.bool, torch.int16):
        test_collectives._reductions(rank, world, dtype)
    for dtype in (torch.float32, torch.uint16, torch.float8_e5m2):
        test_collectives._movements(rank, world, dtype, (2, 3))
    test_collectives._uneven(rank, world, 0)
    test_collectives._coalesced(rank, world)
    test_collectives._empties(rank, world, (0, 3))
    # A group within one host shares memory again.
    groups = [
        dist.new_group(list(range(h, min(h + per_host, world)))) for h in range(0, world, per_host)
    ]
    mine = groups[rank // per_host]
    assert backend_of(mine).transport == "shared memory"
    tensor = torch.ones(1, device="neuron")
    dist.all_reduce(tensor, group=mine)
    assert tensor.item() == min(per_host, world - rank // per_host * per_host)


def _as_hosts(rank, world, store, per_host):
    os.environ["TORCH_NEURONX_HOST_ID"] = f"host{rank // per_host}"
    try:
        dist.init_process_group(
            "neuron",
            store=store,
            rank=rank,
            world_size=world,
            timeout=datetime.timedelta(seconds=20),
        )
        _hosts(rank, world, per_host)
    finally:
        del os.environ["TORCH_NEURONX_HOST_ID"]


@pytest.mark.parametrize("per_host", [1, 2])
def test_ranks_of_two_hosts(per_host):
    ranks.run(_as_hosts, per_host + 1, per_host, group=False)
