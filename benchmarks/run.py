"""Benchmarks of device ``neuron`` against CPU eager in the same run; medians.

Usage: python benchmarks/run.py [name ...] [--json FILE]
"""

import argparse
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from harness import Row, compare, save, show, synchronize
from torch import nn

DEVICE = torch.device("neuron")
BENCHMARKS = {}


def benchmark(function):
    BENCHMARKS[function.__name__] = function
    return function


def both(*shape, dtype=torch.float32):
    host = torch.randn(*shape).to(dtype)
    return host.to(DEVICE), host


@benchmark
def host_cost():
    """A small op, kernel included."""
    rows = []
    x, y = both(8, 8)
    rows.append(
        compare(
            "add 8x8", lambda: x + x, lambda: y + y, repeat=20000, scale=1e6, unit="us", goal=1.15
        )
    )
    rows.append(
        compare(
            "mul_ by a number, 8x8",
            lambda: x.mul_(1.0),
            lambda: y.mul_(1.0),
            repeat=20000,
            scale=1e6,
            unit="us",
        )
    )
    rows.append(
        compare(
            "softmax 8x8",
            lambda: x.softmax(-1),
            lambda: y.softmax(-1),
            repeat=10000,
            scale=1e6,
            unit="us",
        )
    )
    rows.append(compare("mm 8x8", lambda: x @ x, lambda: y @ y, repeat=10000, scale=1e6, unit="us"))
    return rows


@benchmark
def new_sizes():
    """A structured op at sizes never seen before."""
    sizes = iter(range(100, 10**6))
    base_device, base_host = both(1 << 16)

    def run(base):
        n = next(sizes)
        view = base[:n]
        return view + view

    return [
        compare(
            "add at new sizes",
            lambda: run(base_device),
            lambda: run(base_host),
            repeat=500,
            scale=1e6,
            unit="us",
        )
    ]


@benchmark
def pointwise():
    """Elementwise chains in and out of cache."""
    rows = []
    for count, label in ((1 << 12, "16 KiB"), (1 << 18, "1 MiB"), (1 << 24, "64 MiB")):
        x, y = both(count)

        def chain(t):
            return 0.5 * t * (1 + torch.tanh(0.7978845608 * (t + 0.044715 * t * t * t)))

        compiled = torch.compile(chain, backend="neuron")
        repeat = max(1, (1 << 20) // count)
        rows.append(
            compare(
                f"gelu chain {label}, eager",
                lambda x=x: chain(x),
                lambda y=y: chain(y),
                repeat=repeat,
            )
        )
        rows.append(
            compare(
                f"gelu chain {label}, compiled",
                lambda x=x, c=compiled: c(x),
                lambda y=y: chain(y),
                repeat=repeat,
                goal=1 / 6 if count == 1 << 24 else None,
            )
        )
        rows.append(compare(f"add {label}", lambda x=x: x + x, lambda y=y: y + y, repeat=repeat))
    return rows


@benchmark
def rows_of_numbers():
    """Row reductions."""
    rows = []
    for shape in ((1024, 384), (4096, 4096)):
        x, y = both(*shape)
        w, v = both(shape[1])
        rows.append(
            compare(
                f"softmax {shape}", lambda x=x: x.softmax(-1), lambda y=y: y.softmax(-1), repeat=5
            )
        )
        rows.append(
            compare(
                f"layer_norm {shape}",
                lambda x=x, w=w: F.layer_norm(x, w.shape, w, w),
                lambda y=y, v=v: F.layer_norm(y, v.shape, v, v),
                repeat=5,
            )
        )
        rows.append(
            compare(f"sum over rows {shape}", lambda x=x: x.sum(0), lambda y=y: y.sum(0), repeat=5)
        )
    return rows


@benchmark
def matmul():
    """Matrix products; M <= 8 is the decoding case."""
    rows = []
    for m, k, n in (
        (256, 256, 256),
        (1024, 384, 1536),
        (1024, 1024, 1024),
        (1, 4096, 4096),
        (4, 320, 1280),
        (8, 4096, 4096),
    ):
        (a, c), (b, d) = both(m, k), both(n, k)
        rows.append(
            compare(
                f"linear {m}x{k}x{n}",
                lambda a=a, b=b: F.linear(a, b),
                lambda c=c, d=d: F.linear(c, d),
                repeat=max(1, 10**9 // (m * k * n)),
                goal=0.7 if m <= 8 else 1.05,
            )
        )
    return rows


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, cache=None):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(width, dim=2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        if cache is not None:
            k = torch.cat([cache[0], k], 2) if cache[0] is not None else k
            v = torch.cat([cache[1], v], 2) if cache[1] is not None else v
            cache[:] = [k, v]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, vocabulary=512, layers=6, width=384, heads=6, context=256):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())

    def decode(self, token, position, caches):
        x = self.tokens(token) + self.positions.weight[position]
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, cache)
        return self.head(self.norm(x))


def training(device, compiled, autocast=False):
    torch.manual_seed(0)
    model = GPT().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    forward = torch.compile(model, backend="neuron") if compiled else model
    ids = torch.randint(512, (4, 257), generator=torch.Generator().manual_seed(1)).to(device)

    def step():
        for group in optimizer.param_groups:
            group["lr"] *= 0.999
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=autocast):
            loss = forward(ids[:, :-1], ids[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def kernels_and_programs():
    import torch_neuronx

    stats = torch_neuronx.get_runtime_stats()
    return stats["kernels_compiled"], stats["programs_built"]


@benchmark
def gpt_step():
    """A training step of 6 layers x 384, batch 4 x 256 tokens, AdamW."""
    rows = []
    for label, compiled, autocast, goal in (
        ("f32, eager", False, False, 1.15),
        ("f32, compiled", True, False, 1.0),
        ("bf16, eager", False, True, None),
        ("bf16, compiled", True, True, None),
    ):
        device, host = training(DEVICE, compiled, autocast), training("cpu", False, autocast)
        for _ in range(3):
            device()
        synchronize()
        before = kernels_and_programs()
        row = compare(f"GPT step {label}", device, host, rounds=7, warmup=1, goal=goal)
        after = kernels_and_programs()
        row.notes = {"kernels": after[0] - before[0], "programs": after[1] - before[1]}
        rows.append(row)
    return rows


@benchmark
def decode():
    """One token at a time with a growing KV cache: every step has new sizes."""

    def run(device, compiled=False):
        torch.manual_seed(0)
        model = GPT().to(device).eval()
        decode = model.decode
        if compiled:
            decode = torch.compile(decode, backend="neuron", dynamic=True)

        @torch.no_grad()
        def step():
            caches = [[None, None] for _ in model.blocks]
            token = torch.zeros(1, 1, dtype=torch.long, device=device)
            for position in range(64):
                decode(token, position, caches)

        return step

    options = {"rounds": 5, "warmup": 1, "goal": 1.5}
    return [
        compare("decode 64 tokens", run(DEVICE), run("cpu"), **options),
        compare("decode 64 tokens, compiled", run(DEVICE, True), run("cpu"), **options),
    ]


@benchmark
def compiled_lengths():
    """A compiled transformer layer at lengths never seen before: lowered in C++, no new code."""
    torch.manual_seed(0)
    host, device = Block(64, 4).eval(), Block(64, 4).to(DEVICE).eval()
    device.load_state_dict(host.state_dict())
    fast = torch.compile(device, backend="neuron", dynamic=True)
    x, y = both(1, 2048, 64)
    lengths = {id(t): iter(range(40, 2048)) for t in (x, y)}

    @torch.no_grad()
    def run(layer, base):
        layer(base[:, : next(lengths[id(base)])])

    with torch.no_grad():
        for length in (2, 5, 9, 17, 33):
            fast(x[:, :length])
    before = kernels_and_programs()
    row = compare(
        "layer at new lengths, compiled",
        lambda: run(fast, x),
        lambda: run(host, y),
        repeat=20,
        scale=1e6,
        unit="us",
        goal=1.0,
    )
    after = kernels_and_programs()
    row.notes = {"kernels": after[0] - before[0], "programs": after[1] - before[1]}
    return [row]


@benchmark
def cold_start():
    """Process start: import torch with and without the autoload."""

    def measure(autoload):
        code = "import time; t = time.perf_counter(); import torch; print(time.perf_counter() - t)"
        times = []
        for _ in range(5):
            out = subprocess.run(
                [sys.executable, "-c", code],
                capture_output=True,
                text=True,
                check=True,
                env={
                    **__import__("os").environ,
                    "TORCH_DEVICE_BACKEND_AUTOLOAD": str(int(autoload)),
                },
            )
            times.append(float(out.stdout))
        return sorted(times)[2] * 1e3

    with_autoload, without = measure(True), measure(False)
    return [
        Row(
            "import torch, with and without autoload",
            "ms",
            with_autoload,
            without,
            notes={"difference": f"{with_autoload - without:.0f} ms"},
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"any of {', '.join(BENCHMARKS)}")
    parser.add_argument("--json", default="out/benchmarks.json")
    options = parser.parse_args()
    rows = []
    for name in options.names or BENCHMARKS:
        start = time.perf_counter()
        found = BENCHMARKS[name]()
        print(f"== {name}: {BENCHMARKS[name].__doc__} ({time.perf_counter() - start:.0f} s)")
        show(found)
        rows += found
    import os

    os.makedirs(os.path.dirname(options.json) or ".", exist_ok=True)
    save(rows, options.json)
    print(f"written to {options.json}")


if __name__ == "__main__":
    main()
