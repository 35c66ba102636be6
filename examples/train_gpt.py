"""Trains a small GPT on English text, saves and reloads it, and samples from it.

Ordinary PyTorch: ``--device`` may be neuron, cpu or cuda. The text ships with CPython
(pydoc_data.topics). At the end the first losses are compared with a run on the CPU.
"""

import argparse
import math
import os
import tempfile
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(width, dim=2)
        q, k, v = (
            t.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for t in (q, k, v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(batch, length, width)
        x = x + self.dropout(self.out(y))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh")))


class GPT(nn.Module):
    def __init__(self, vocabulary, layers=4, width=192, heads=6, context=128, dropout=0.0):
        super().__init__()
        self.context = context
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self._initialise)

    @staticmethod
    def _initialise(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, ids, targets=None):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def generate(self, ids, count, temperature=0.8, top_k=20):
        for _ in range(count):
            logits = self(ids[:, -self.context :])[:, -1] / temperature
            least = torch.topk(logits, top_k).values[:, -1:]
            logits = logits.masked_fill(logits < least, -math.inf)
            ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1)], dim=1)
        return ids


def load_text() -> str:
    from pydoc_data import topics

    return "\n\n".join(topics.topics.values())


def batches(data, batch, context, seed):
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(data) - context - 1, (batch,), generator=generator)
        windows = torch.stack([data[s : s + context + 1] for s in starts.tolist()])
        yield windows[:, :-1], windows[:, 1:]


def learning_rate(step, steps, peak=2e-3, warmup=20):
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup))))


def build(vocabulary, device):
    torch.manual_seed(1337)
    model = GPT(vocabulary).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    return model, optimizer


def train_step(forward, model, optimizer, ids, targets, rate):
    for group in optimizer.param_groups:
        group["lr"] = rate
    loss = forward(ids, targets)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    parser.add_argument("--compare", type=int, default=10, help="steps to repeat on the CPU")
    options = parser.parse_args()
    device = torch.device(options.device)

    text = load_text()
    alphabet = sorted(set(text))
    index = {c: i for i, c in enumerate(alphabet)}
    data = torch.tensor([index[c] for c in text])
    model, optimizer = build(len(alphabet), device)
    count = sum(p.numel() for p in model.parameters())
    print(
        f"{len(text):,} characters of text, {len(alphabet)} symbols, {count / 1e6:.2f} M weights "
        f"on {device}{' with torch.compile' if options.compile else ''}"
    )

    forward = torch.compile(model) if options.compile else model
    first, progress = [], None
    try:
        from tqdm import tqdm

        progress = tqdm(total=options.steps, unit="step")
    except ImportError:
        pass
    source = batches(data, options.batch, model.context, seed=0)
    tokens, started, shown = 0, time.perf_counter(), None
    for step in range(options.steps):
        ids, targets = (t.to(device) for t in next(source))
        rate = learning_rate(step, options.steps)
        loss = train_step(forward, model, optimizer, ids, targets, rate)
        if step < options.compare:
            first.append(loss.item())
        tokens += ids.numel()
        if step % 10 == 9 or step + 1 == options.steps:
            shown = loss.item()
            speed = tokens / (time.perf_counter() - started)
            if progress is not None:
                progress.set_postfix(loss=f"{shown:.3f}", tokens_per_s=f"{speed:,.0f}")
            else:
                print(f"step {step + 1}: loss {shown:.3f}, {speed:,.0f} tokens/s")
        if progress is not None:
            progress.update()
    if progress is not None:
        progress.close()

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "gpt.pt")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        size = os.path.getsize(path)
        reloaded = GPT(len(alphabet)).to(device)
        reloaded.load_state_dict(torch.load(path, map_location=device)["model"])
    print(f"checkpoint of {size / 1e6:.1f} MB saved and reloaded on {device}")

    reloaded.eval()
    torch.manual_seed(7)
    prompt = torch.tensor([[index[c] for c in "The "]], device=device)
    sample = reloaded.generate(prompt, 200)[0].tolist()
    print("--- sample " + "-" * 50)
    print("".join(alphabet[i] for i in sample))
    print("-" * 61)

    if options.compare and device.type != "cpu":
        reference, reference_optimizer = build(len(alphabet), "cpu")
        source = batches(data, options.batch, model.context, seed=0)
        worst = 0.0
        for step in range(min(options.compare, options.steps)):
            ids, targets = next(source)
            rate = learning_rate(step, options.steps)
            loss = train_step(reference, reference, reference_optimizer, ids, targets, rate).item()
            worst = max(worst, abs(loss - first[step]) / abs(loss))
        print(
            f"first {len(first)} losses against the CPU: largest relative difference {worst:.1e} "
            f"({'agree' if worst < 1e-3 else 'DIFFER'})"
        )


if __name__ == "__main__":
    main()
