import pytest
import torch


def test_autocast_defaults_to_bf16_and_follows_the_lists():
    a, b = torch.randn(4, 4, device="neuron"), torch.randn(4, 4, device="neuron")
    with torch.autocast("neuron"):
        assert (a @ b).dtype == torch.bfloat16
        assert torch.exp(a @ b).dtype == torch.float32
        assert torch.nn.functional.softmax(a @ b, -1).dtype == torch.float32
    with torch.autocast("neuron", dtype=torch.float16):
        assert (a @ b).dtype == torch.float16


def test_autocast_bans_plain_binary_cross_entropy():
    x = torch.rand(4, device="neuron")
    with torch.autocast("neuron"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        torch.nn.functional.binary_cross_entropy(x, x)


def test_scaler_skips_an_overflowed_step():
    w = torch.ones(3, device="neuron", requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    scaler = torch.amp.GradScaler("neuron", init_scale=4.0)
    scaler.scale((w * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert w.tolist() == [1, 1, 1] and scaler.get_scale() == 2.0
    optimizer.zero_grad()
    scaler.scale(w.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(w.detach().cpu(), torch.full((3,), 0.9))
