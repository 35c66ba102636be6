"""Random chains of operators over random layouts and dtypes, against the CPU.

A chain starts from a few tensors in any layout and applies views, in-place writes, reductions,
products, casts, indexing and joins to whatever is alive. Each step runs on both sides: results,
and at the end every tensor that is alive, must agree, and a step that the CPU refuses must be
refused. NEURON_TEST_CHAINS=20000 asks for more chains than the default, drawn anew on each run.
"""

import os

import pytest
import torch
from conftest import DEVICE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CHAINS = int(os.environ.get("NEURON_TEST_CHAINS", "500"))
STEPS = 7

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
INTEGERS = [torch.int64, torch.int32, torch.uint8, torch.int16, torch.int8]
DTYPES = [
    torch.float32,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
# Relative error of one rounding, with room for another order of a sum.
EPSILON = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.complex64: 2e-5,
    torch.complex128: 1e-12,
    torch.bfloat16: 1.6e-2,
    torch.float16: 2e-3,
}
LARGEST = 64.0  # Floating-point elements are kept below: chains must not overflow.


class Draws:
    """Decisions of one chain: bytes from hypothesis, then zeros."""

    def __init__(self, data: bytes):
        self._data = data
        self._at = 0

    def below(self, n: int) -> int:
        value = self._data[self._at] if self._at < len(self._data) else 0
        self._at += 1
        return value % n

    def pick(self, options):
        return options[self.below(len(options))]

    def flip(self) -> bool:
        return self.below(2) == 1

    def seed(self) -> int:
        return self.below(256)


class Pair:
    """One tensor on both sides."""

    def __init__(self, device: torch.Tensor, host: torch.Tensor):
        self.device = device
        self.host = host


def values(sizes, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, sizes, generator=generator).bool()
    if dtype == torch.uint8:
        return torch.randint(0, 30, sizes, generator=generator, dtype=dtype)
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.randint(-9, 10, sizes, generator=generator, dtype=dtype)
    return (
        torch.randn(
            sizes,
            generator=generator,
            dtype=torch.complex128 if dtype.is_complex else torch.float64,
        )
        .mul(2)
        .to(dtype)
    )


def arrange(base: torch.Tensor, sizes, layout: int, offset: int) -> torch.Tensor:
    """A view of `base` with `sizes`; `layout` says how the elements lie in memory."""
    rank = len(sizes)
    if layout == 0 or rank == 0:
        strides = contiguous_strides(sizes)
    elif layout == 1:  # Dimensions in reverse.
        strides = contiguous_strides(sizes[::-1])[::-1]
    elif layout == 2:  # Every other element.
        strides = [2 * s for s in contiguous_strides(sizes)]
    elif layout == 3:  # Rows with a gap.
        strides = contiguous_strides([*sizes[:-1], sizes[-1] + 3])
    elif layout == 4:  # Channels last, whatever the rank.
        order = [0, *range(2, rank), 1] if rank > 2 else list(range(rank))
        inner = contiguous_strides([sizes[d] for d in order])
        strides = [0] * rank
        for d, s in zip(order, inner, strict=True):
            strides[d] = s
    else:  # Expanded along the first dimension.
        strides = [0, *contiguous_strides(sizes[1:])]
    return base.as_strided(sizes, strides, offset)


def contiguous_strides(sizes):
    strides, step = [], 1
    for n in reversed(sizes):
        strides.append(step)
        step *= max(n, 1)
    return strides[::-1]


def new_pair(d: Draws, dtype=None, sizes=None) -> Pair:
    dtype = dtype or d.pick(DTYPES)
    if sizes is None:
        sizes = [d.pick([1, 2, 3, 3, 4, 5, 8, 17, 0]) for _ in range(d.pick([2, 2, 3, 1, 4, 0]))]
    layout, offset = d.below(6), d.pick([0, 0, 1, 5])
    extent = offset + 2
    for n in sizes:
        extent *= max(n, 1) + 3
    base = values((min(extent, 200000),), dtype, d.seed())
    return Pair(
        arrange(base.to(DEVICE), sizes, layout, offset), arrange(base, sizes, layout, offset)
    )


# --- Steps: each makes a function of tensors from the decisions and the tensors' metadata ---------
# A step returns the pairs that it works on and a function to call on either side.


def dim_of(d: Draws, t: torch.Tensor) -> int:
    return d.below(max(t.dim(), 1)) - (t.dim() if d.flip() and t.dim() else 0)


def step_view(d: Draws, x: Pair, pool):
    t = x.host
    dim = dim_of(d, t)
    n = t.size(dim) if t.dim() else 1
    a, b = d.below(max(n, 1)), d.below(5)
    kind = d.below(14)
    other = dim_of(d, t)

    def run(t):
        match kind:
            case 0:
                return t.transpose(dim, other)
            case 1:
                return t.permute(*reversed(range(t.dim())))
            case 2:
                return t.select(dim, a)
            case 3:
                return t.narrow(dim, a, min(b, n - a))
            case 4:
                return t[..., a : a + 9 : 2] if t.dim() else t[None]
            case 5:
                return t.unsqueeze(dim)
            case 6:
                return t.squeeze()
            case 7:
                return t.unsqueeze(0).expand(b, *t.shape)
            case 8:
                return t.reshape(-1)
            case 9:
                return t.diagonal(0, dim, other)
            case 10:
                return t.unfold(dim, max(1, min(b, n)), 1 + a % 2)
            case 11:
                return t.split(max(1, b), dim)[-1]
            case 12:
                return t.conj() if t.is_complex() else t.view(same_width(t.dtype))
            case 13:
                return torch.view_as_real(t.resolve_conj()) if t.is_complex() else t.mT
        return None

    return [x], run


def same_width(dtype: torch.dtype) -> torch.dtype:
    return {
        torch.float32: torch.int32,
        torch.int64: torch.int64,
        torch.uint8: torch.int8,
        torch.bfloat16: torch.int16,
        torch.float16: torch.int16,
    }.get(dtype, dtype)


UNARY = ["neg", "abs", "sign", "tanh", "sigmoid", "exp", "sin", "sqrt", "relu", "floor", "round",
         "square", "reciprocal", "logical_not", "bitwise_not", "erf", "log1p", "expm1", "silu",
         "isnan", "signbit", "trunc", "cos", "atan", "rsqrt"]  # fmt: skip


def step_unary(d: Draws, x: Pair, pool):
    name = d.pick(UNARY)

    def run(t):
        if name in ("exp", "expm1"):
            t = t.clamp(max=3) if not t.is_complex() else t * 0.05
        if name in ("sqrt", "log1p") and not t.is_complex():
            t = t.abs()
        if name in ("reciprocal", "rsqrt"):
            t = t.abs() + 1
        if name == "silu":
            return torch.nn.functional.silu(t)
        return getattr(torch, name)(t)

    return [x], run


BINARY = ["add", "sub", "mul", "maximum", "minimum", "eq", "lt", "ge", "ne", "logical_and",
          "logical_xor", "bitwise_and", "bitwise_or", "atan2", "copysign", "fmax", "hypot",
          "logaddexp", "xlogy", "where", "lerp", "addcmul"]  # fmt: skip


def step_binary(d: Draws, x: Pair, pool):
    y = d.pick(pool)
    name = d.pick(BINARY)

    def run(t, u):
        match name:
            case "where":
                return torch.where(t > 0 if not t.is_complex() else t.real > 0, t, u)
            case "lerp":
                return torch.lerp(t, u, 0.25)
            case "addcmul":
                return torch.addcmul(t, t, u, value=2)
            case "xlogy":
                return torch.xlogy(t, u.abs() + 1)
        return getattr(torch, name)(t, u)

    return [x, y], run


SCALARS = [2, -3, 0.5, True, 1, -1.25, 3]


def step_scalar(d: Draws, x: Pair, pool):
    name = d.pick(["add", "mul", "sub", "pow", "remainder", "floor_divide", "div", "fmod", "gt",
                   "le", "bitwise_xor", "clamp"])  # fmt: skip
    scalar = d.pick(SCALARS)

    def run(t):
        if name == "pow":
            return torch.pow(t, 2)
        if name == "clamp":
            return torch.clamp(t, -1, 2)
        return getattr(torch, name)(t, scalar)

    return [x], run


def step_inplace(d: Draws, x: Pair, pool):
    y = d.pick(pool)
    kind = d.below(16)
    scalar = d.pick(SCALARS)
    dim = dim_of(d, x.host)
    seed = d.seed()
    n = x.host.size(dim) if x.host.dim() else 1
    a = d.below(max(n, 1))

    def run(t, u):
        match kind:
            case 0:
                return t.add_(u)
            case 1:
                return t.mul_(scalar)
            case 2:
                return t.copy_(u)
            case 3:
                return t.fill_(scalar)
            case 4:
                return t.masked_fill_(values(t.shape, torch.bool, seed).to(t.device), scalar)
            case 5:
                return t.select(dim, a).zero_() if t.dim() else t.zero_()
            case 6:
                return t.clamp_(-2, 3)
            case 7:
                return t.neg_()
            case 8:
                t[..., ::2] = scalar
                return t
            case 9:
                index = torch.tensor([a, a, 0], device=t.device)
                return t.index_add_(dim, index, t.index_select(dim, index).clone(), alpha=1)
            case 10:
                index = torch.tensor([a], device=t.device)
                return t.index_fill_(dim, index, scalar)
            case 11:
                where = values(t.shape, torch.bool, seed).to(t.device)
                t[where] = 1
                return t
            case 12:
                index = values(t.shape, torch.int64, seed).abs().remainder(max(n, 1)).to(t.device)
                return t.scatter_(dim, index[:1] if t.dim() and n else index, scalar)
            case 13:
                return t.sub_(u, alpha=2)
            case 14:
                return t.narrow(dim, a, 1).mul_(2) if t.dim() else t.mul_(2)
            case 15:
                return t.maximum(u, out=t) if kind < 0 else torch.maximum(t, u, out=t)
        return None

    return [x, y], run


def step_reduce(d: Draws, x: Pair, pool):
    kind = d.below(18)
    dim = dim_of(d, x.host)
    keep = d.flip()

    def run(t):
        match kind:
            case 0:
                return t.sum(dim, keepdim=keep)
            case 1:
                return t.sum()
            case 2:
                return t.mean(dim, keepdim=keep)
            case 3:
                return t.amax(dim, keepdim=keep)
            case 4:
                return t.amin()
            case 5:
                return t.any(dim, keepdim=keep)
            case 6:
                return t.all()
            case 7:
                return t.cumsum(dim)
            case 8:
                return t.argmax(dim, keepdim=keep)
            case 9:
                return t.max(dim, keepdim=keep)
            case 10:
                return t.softmax(dim)
            case 11:
                return t.logsumexp(dim, keepdim=keep)
            case 12:
                return t.var(dim, keepdim=keep)
            case 13:
                return t.norm(dim=dim)
            case 14:
                return t.sort(dim, descending=keep, stable=True)
            case 15:
                return t.clamp(-1.5, 1.5).prod(dim) if t.is_floating_point() else t.prod(dim)
            case 16:
                return t.count_nonzero(dim)
            case 17:
                return t.cummax(dim)
        return None

    return [x], run


def step_product(d: Draws, x: Pair, pool):
    t = x.host
    kind = d.below(5)
    if t.dim() == 0:
        kind = 4
    width = d.pick([1, 2, 3, 8, 17])
    inner = t.size(-1) if t.dim() else 1
    sizes = {
        0: [inner, width],
        1: [inner],
        2: [*t.shape[:-2], inner, width] if t.dim() > 2 else [inner, width],
        3: [width, inner],
        4: list(t.shape),
    }[kind]
    y = new_pair(d, t.dtype, sizes)

    def run(t, u):
        if kind == 3:
            return torch.nn.functional.linear(t, u)
        return t * u if kind == 4 else torch.matmul(t, u)

    return [x, y], run


def step_cast(d: Draws, x: Pair, pool):
    dtype = d.pick([*DTYPES, torch.int8, torch.int16])

    def run(t):
        if t.is_complex() and not dtype.is_complex:
            t = torch.view_as_real(t.resolve_conj()).select(-1, 0)
        if not dtype.is_floating_point and t.dtype.is_floating_point:
            t = t.nan_to_num(0).clamp(0 if dtype == torch.uint8 else -100, 100)
        return t.to(dtype)

    return [x], run


def step_join(d: Draws, x: Pair, pool):
    y = d.pick(pool)
    dim = dim_of(d, x.host)
    kind = d.below(3)

    def run(t, u):
        if kind == 0:
            return torch.cat([t, u], dim)
        if kind == 1:
            return torch.stack([t, t.clone(), t], dim)
        return torch.cat([t.unsqueeze(0), t.unsqueeze(0).expand(2, *t.shape)])

    return [x, y], run


def step_index(d: Draws, x: Pair, pool):
    t = x.host
    kind = d.below(16)
    dim = dim_of(d, t)
    n = t.size(dim) if t.dim() else 1
    seed = d.seed()
    count = d.pick([1, 2, 4, 0])
    a = d.below(5)

    def run(t):
        on = t.device
        positions = values((count,), torch.int64, seed).remainder(max(n, 1)).to(on)
        match kind:
            case 0:
                return t.index_select(dim, positions)
            case 1:
                return t.gather(dim, values(t.shape, torch.int64, seed).remainder(max(n, 1)).to(on))
            case 2:
                return t[values(t.shape, torch.bool, seed).to(on)]
            case 3:
                first = positions.remainder(max(t.size(0), 1)) if t.dim() else positions
                return t[first]
            case 4:
                return t.take(positions.remainder(max(t.numel(), 1)))
            case 5:
                return t.roll(a, dim)
            case 6:
                return t.flip(dim)
            case 7:
                return torch.nn.functional.pad(t, (1, a % 3), value=1) if t.dim() else t
            case 8:
                return t.repeat(2, *[1] * t.dim())
            case 9:
                return t.tril(a - 2)
            case 10:
                return t.masked_fill(values(t.shape, torch.bool, seed).to(on), 3)
            case 11:
                return t.scatter(dim, values(t.shape, torch.int64, seed).mul(0).to(on), 2)
            case 12:
                return t.clone(memory_format=torch.contiguous_format)
            case 13:
                return t[..., positions, :] if t.dim() == 2 else t[..., None, :1]
            case 14:
                return t.diff(dim=dim)
            case 15:
                return t.repeat_interleave(2, dim)
        return None

    return [x], run


KINDS = [step_view, step_view, step_view, step_unary, step_binary, step_binary, step_scalar,
         step_inplace, step_inplace, step_inplace, step_reduce, step_reduce, step_product,
         step_cast, step_join, step_index, step_index]  # fmt: skip


# --- Comparing ------------------------------------------------------------------------------------


def plain(t: torch.Tensor) -> torch.Tensor:
    return t.detach().resolve_conj().resolve_neg().cpu()


def difference(device: torch.Tensor, host: torch.Tensor, scale: float) -> str:
    """Empty if the two agree; `scale` is the size of the numbers that went into a sum."""
    for what in ("dtype", "shape"):
        if getattr(device, what) != getattr(host, what):
            return f"{what}: {getattr(device, what)}, expected {getattr(host, what)}"
    got, expected = plain(device), plain(host)
    if host.dtype == torch.complex32:
        got, expected = torch.view_as_real(got).float(), torch.view_as_real(expected).float()
        rtol = EPSILON[torch.float16]
        same = torch.allclose(got, expected, rtol=rtol, atol=rtol * scale, equal_nan=True)
        return "" if same else f"\n{got}\nexpected\n{expected}"
    if host.dtype not in EPSILON:
        return "" if torch.equal(got, expected) else f"\n{got}\nexpected\n{expected}"
    rtol = EPSILON[host.dtype]
    if torch.allclose(got, expected, rtol=rtol, atol=rtol * scale, equal_nan=True):
        return ""
    if host.is_complex():  # Infinite and undefined parts: compare them one by one.
        got, expected = torch.view_as_real(got), torch.view_as_real(expected)
        if torch.allclose(got, expected, rtol=rtol, atol=rtol * scale, equal_nan=True):
            return ""
    return f"\n{got}\nexpected\n{expected}"


def scale_of(pairs) -> float:
    """A bound on sums and products of the operands' elements, without being far off."""
    scale = 1.0
    for pair in pairs:
        t = pair.host
        if t.numel() and t.dtype in EPSILON:
            largest = float(torch.nan_to_num(plain(t).abs().double(), 0, 0, 0).max())
            scale *= max(1.0, largest)
    return scale


def bounded(t: torch.Tensor) -> bool:
    if t.dtype not in EPSILON or not t.numel():
        return True
    largest = float(torch.nan_to_num(plain(t).abs().double(), LARGEST, LARGEST, 0).max())
    return largest < LARGEST


def overlaps(t: torch.Tensor) -> bool:
    reach = 0
    for step, n in sorted((s, n) for s, n in zip(t.stride(), t.shape, strict=True) if n > 1):
        if step <= reach:
            return True
        reach += step * (n - 1)
    return False


def coincides(written: torch.Tensor, read: torch.Tensor) -> bool:
    """Whether the two share memory without being the same view of it."""
    if written.untyped_storage().data_ptr() != read.untyped_storage().data_ptr():
        return False
    return (written.shape, written.stride(), written.storage_offset()) != (
        read.shape,
        read.stride(),
        read.storage_offset(),
    )


def attempt(run, tensors):
    try:
        return run(*tensors), None
    except Exception as error:
        return None, error


def run_chain(data: bytes) -> None:
    d = Draws(data)
    pool = [new_pair(d), new_pair(d)]
    history = [f"{p.host.dtype} {tuple(p.host.shape)} {p.host.stride()}" for p in pool]
    for _ in range(STEPS):
        step = d.pick(KINDS)
        pairs, run = step(d, d.pick(pool), pool)
        cells = [c.cell_contents for c in run.__closure__ or ()]
        shapes = [(str(p.host.dtype), tuple(p.host.shape), p.host.stride()) for p in pairs]
        history.append(f"{step.__name__} {cells} of {shapes}")
        scale = scale_of(pairs)
        counts = max([1, *(p.host.numel() for p in pairs)])
        hosts = [p.host for p in pairs]
        coincide = step is step_inplace and coincides(*hosts)
        if coincide:
            # The CPU reads what it has written already, or refuses; the device reads first.
            hosts[1] = hosts[1].clone()
        expected, refused = attempt(run, hosts)
        got, error = attempt(run, [p.device for p in pairs])
        trace = "\n".join(history)
        if isinstance(refused, NotImplementedError):
            # The CPU has no kernel for the dtype; what the device has written is not comparable.
            if step is step_inplace:
                return
            continue
        if coincide and error is not None:
            return
        if (refused is None) != (error is None):
            pytest.fail(f"{trace}\nCPU: {refused!r}\nneuron: {error!r}")
        if refused is not None:
            continue
        if isinstance(expected, torch.Tensor):
            got, expected = (got,), (expected,)
        for ours, theirs in zip(got, expected, strict=True):
            wrong = difference(ours, theirs, scale * min(counts, 64))
            if wrong:
                pytest.fail(f"{trace}\n{wrong}")
            result = Pair(ours, theirs)
            if theirs.dtype in EPSILON and not overlaps(theirs):
                # Rounding must not add up over the chain: both sides go on from the same numbers.
                theirs.copy_(plain(ours))
            if not bounded(theirs):
                if overlaps(theirs):
                    return
                for t in (ours, theirs):
                    t.copy_(
                        t.nan_to_num(0, 0, 0).clamp(-3, 3)
                        if not t.is_complex()
                        else torch.zeros_like(t)
                    )
            if theirs.numel() < 5000 and theirs.dim() < 6:
                pool.append(result)
        pool = pool[-6:]
    for k, pair in enumerate(pool):
        wrong = difference(pair.device, pair.host, 1.0)
        if wrong:
            pytest.fail("\n".join(history) + f"\ntensor {k} at the end: {wrong}")


@settings(
    max_examples=CHAINS,
    deadline=None,
    database=None,
    derandomize=CHAINS <= 500,
    suppress_health_check=list(HealthCheck),
)
@given(st.binary(min_size=100, max_size=100))
def test_chains_agree_with_the_cpu(data):
    run_chain(data)
