"""Small real models: the losses of a training run are the CPU's."""

import pathlib
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
from train_gpt import GPT


def losses(device, steps, compiled=False, autocast=False, optimizer=torch.optim.AdamW, **options):
    torch.manual_seed(0)
    model = GPT(64, layers=2, width=64, heads=4, context=32).to(device)
    optimizer = optimizer(model.parameters(), lr=1e-3, **options)
    forward = torch.compile(model, backend="neuron") if compiled else model
    generator = torch.Generator().manual_seed(1)
    out = []
    for step in range(steps):
        ids = torch.randint(64, (4, 33), generator=generator).to(device)
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 / (1 + 0.1 * step)
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=autocast):
            loss = forward(ids[:, :-1], ids[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        out.append(loss.item())
    return torch.tensor(out)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_gpt_in_f32(compiled):
    torch.testing.assert_close(losses("neuron", 50, compiled), losses("cpu", 50), rtol=1e-3, atol=0)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_gpt_in_bf16_autocast(compiled):
    torch.testing.assert_close(
        losses("neuron", 20, compiled, True), losses("cpu", 20, False, True), rtol=3e-2, atol=0
    )


@pytest.mark.parametrize(
    "options", [{"foreach": True}, {"fused": True}, {"foreach": False}], ids=str
)
def test_no_kernel_and_no_program_after_step_three(options):
    import torch_neuronx

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
    counts = []
    for step in range(8):
        optimizer.param_groups[0]["lr"] = 1e-3 * 0.9**step
        loss = F.cross_entropy(
            model(torch.randn(4, 8, device="neuron")), torch.randint(2, (4,), device="neuron")
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stats = torch_neuronx.get_runtime_stats()
        counts.append((stats["kernels_compiled"], stats["programs_built"]))
    assert counts[3] == counts[-1]


def test_lstm_language_model():
    def run(device):
        torch.manual_seed(0)
        embed, lstm, head = (
            nn.Embedding(20, 16),
            nn.LSTM(16, 32, 2, batch_first=True),
            nn.Linear(32, 20),
        )
        model = nn.ModuleList([embed, lstm, head]).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        ids = torch.randint(20, (3, 12), generator=torch.Generator().manual_seed(3)).to(device)
        out = []
        for _ in range(5):
            loss = F.cross_entropy(
                head(lstm(embed(ids[:, :-1]))[0]).flatten(0, 1), ids[:, 1:].flatten()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            out.append(loss.item())
        return torch.tensor(out)

    torch.testing.assert_close(run("neuron"), run("cpu"), rtol=1e-4, atol=0)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_convolutional_network(memory_format):
    def run(device):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, stride=2),
            nn.GroupNorm(4, 16),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 4),
        ).to(device, memory_format=memory_format)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x = torch.randn(4, 3, 16, 16).to(device, memory_format=memory_format)
        y = torch.tensor([0, 1, 2, 3]).to(device)
        out = []
        for _ in range(5):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            out.append(loss.item())
        return torch.tensor([*out, model[1].running_mean.sum().item()])

    torch.testing.assert_close(run("neuron"), run("cpu"), rtol=1e-3, atol=1e-4)
