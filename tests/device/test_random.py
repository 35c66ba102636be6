import torch


def test_seed_repeats_and_draws_advance():
    torch.manual_seed(1)
    a, b = torch.randn(100, device="neuron"), torch.randn(100, device="neuron")
    torch.manual_seed(1)
    c = torch.randn(100, device="neuron")
    assert torch.equal(a.cpu(), c.cpu()) and not torch.equal(a.cpu(), b.cpu())


def test_state_has_sixteen_bytes_and_restores():
    state = torch.neuron.get_rng_state()
    assert state.dtype == torch.uint8 and len(state) == 16
    a = torch.rand(50, device="neuron")
    torch.neuron.set_rng_state(state)
    assert torch.equal(torch.rand(50, device="neuron").cpu(), a.cpu())


def test_generator_objects():
    generator = torch.Generator("neuron").manual_seed(5)
    a = torch.rand(10, device="neuron", generator=generator)
    generator.manual_seed(5)
    assert torch.equal(torch.rand(10, device="neuron", generator=generator).cpu(), a.cpu())


def test_results_do_not_depend_on_strides():
    torch.manual_seed(3)
    plain = torch.empty(40, 60, device="neuron").normal_()
    torch.manual_seed(3)
    strided = torch.empty(60, 40, device="neuron").t().normal_()
    assert torch.equal(plain.cpu(), strided.cpu())


def test_moments():
    x = torch.randn(200_000, device="neuron")
    assert abs(x.mean().item()) < 0.01 and abs(x.std().item() - 1) < 0.01
    u = torch.rand(200_000, device="neuron")
    assert u.min().item() >= 0 and u.max().item() < 1 and abs(u.mean().item() - 0.5) < 0.005
    p = torch.randperm(1000, device="neuron").cpu()
    assert torch.equal(p.sort().values, torch.arange(1000)) and not torch.equal(
        p, torch.arange(1000)
    )


def test_fork_rng_and_checkpointed_dropout():
    from torch.utils.checkpoint import checkpoint

    def f(x):
        return torch.nn.functional.dropout(x * 2, 0.5).sin()

    x = torch.randn(1000, device="neuron", requires_grad=True)
    torch.manual_seed(9)
    f(x).sum().backward()
    plain, x.grad = x.grad.clone(), None
    torch.manual_seed(9)
    checkpoint(f, x, use_reentrant=False).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), plain.cpu())
