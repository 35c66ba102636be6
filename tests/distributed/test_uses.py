"""Ways in which torch itself calls collectives: through autograd, communication hooks, threads."""

import threading

import pytest
import ranks
import torch
import torch.distributed as dist
from torch_neuronx import _C


def _through_autograd(rank, world):
    from torch.distributed import _functional_collectives as functional
    from torch.distributed.nn import functional as differentiable

    group = dist.group.WORLD

    def gradient(forward, count):
        x = torch.ones(count, device="neuron", requires_grad=True)
        forward(x).sum().backward()
        return x.grad.tolist()

    rows = 2 * world
    assert (
        gradient(lambda x: differentiable.all_reduce(x * (rank + 1)), 3)
        == [world * (rank + 1.0)] * 3
    )
    assert (
        gradient(lambda x: torch.stack(list(differentiable.all_gather(x * 2))), 3)
        == [2.0 * world] * 3
    )
    blank = torch.empty(rows, device="neuron")
    assert gradient(lambda x: differentiable.all_to_all_single(blank, x * 3), rows) == [3.0] * rows
    for forward, expected in (
        (lambda x: functional.all_gather_tensor_autograd(x, 0, group), float(world)),
        (lambda x: functional.reduce_scatter_tensor_autograd(x, "sum", 0, group), 1.0),
        (
            lambda x: functional.all_to_all_single_autograd(x, [2] * world, [2] * world, group),
            1.0,
        ),
    ):
        assert gradient(forward, rows) == [expected] * rows


def test_collectives_under_autograd():
    ranks.run(_through_autograd, 2)


def _communication_hooks(rank, world):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    def trained(hook, state=None):
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 8).to("neuron")
        parallel = torch.nn.parallel.DistributedDataParallel(model)
        if hook is not None:
            parallel.register_comm_hook(state, hook)
        for step in range(4):
            x = torch.full((2, 8), float(rank + step), device="neuron")
            model.zero_grad()
            parallel(x).square().mean().backward()
        return model.weight.grad.cpu()

    plain = trained(None)
    torch.testing.assert_close(trained(default_hooks.allreduce_hook), plain)
    torch.testing.assert_close(
        trained(default_hooks.fp16_compress_hook), plain, rtol=1e-2, atol=1e-2
    )
    # Its callbacks run collectives and wait for them. The gradient here has rank 1.
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=2, use_error_feedback=False
    )
    compressed = trained(powerSGD_hook.powerSGD_hook, state)
    torch.testing.assert_close(compressed, plain, rtol=1e-3, atol=1e-3)


def test_communication_hooks():
    ranks.run(_communication_hooks, 2)


def _threads(rank, world):
    groups = [dist.new_group(list(range(world))) for _ in range(3)]
    failures = []

    def work(index, group):
        try:
            for _ in range(30):
                tensor = torch.full((100,), float(index + rank), device="neuron")
                assert tensor.device.index == rank  # Threads inherit the process's device.
                dist.all_reduce(tensor, group=group)
                assert tensor[0].item() == sum(index + r for r in range(world))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


@pytest.mark.skipif(
    not _C._is_inline(), reason="one executor runs all streams in the order of submission"
)
def test_threads_with_groups_of_their_own():
    ranks.run(_threads, 2)
