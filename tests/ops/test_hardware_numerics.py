"""NEURON_SIM_NUMERICS=hardware: each rule against values computed by numpy, per target."""

import os
import subprocess
import sys

import pytest

# Runs in a process of its own: the variable is read once.
PRELUDE = """
import numpy as np
import torch
import torch_neuronx

def on(array, dtype=None):
    array = array if isinstance(array, np.ndarray) else np.asarray(array)
    return torch.tensor(array, dtype=dtype).to("neuron")

def same(actual, expected):
    actual, expected = actual.cpu().numpy(), np.asarray(expected)
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    np.testing.assert_array_equal(actual, expected)

rng = np.random.default_rng(0)
"""

RULES = {
    "float64 is computed as float32": """
x, y = rng.standard_normal(1000), rng.standard_normal(1000)
narrow = x.astype(np.float32), y.astype(np.float32)
same(on(x) + on(y), (narrow[0] + narrow[1]).astype(np.float64))
same(on(x) * on(y), (narrow[0] * narrow[1]).astype(np.float64))
assert not np.array_equal(narrow[0] * narrow[1], x * y)
same((on(x) * on(y)).float(), narrow[0] * narrow[1])
same(on([1e300, -1e300, 1e-300]) * 1, np.array([np.inf, -np.inf, 0.0]))
same(on([1 + 2.0**-40]) == on([1.0]), [True])
same(on([1.0]) / 3, np.array([np.float32(1) / np.float32(3)], np.float64))
""",
    "a number beside a float32 tensor": """
x = rng.standard_normal(1000).astype(np.float32)
same(on(x) * 0.1, x * np.float32(0.1))
""",
    "complex128 is computed as complex64": """
x = rng.standard_normal(64) + 1j * rng.standard_normal(64)
n = x.astype(np.complex64)
same(on(x) + on(x).conj(), (n + n.conj()).astype(np.complex128))
same(on(x).real + 0, x.astype(np.complex64).real.astype(np.float64))
""",
    "int64 is computed as int32": """
got = on([2**31 - 1, 2**31, -(2**31) - 1, 2**40 + 5]) + 1
same(got, np.array([-(2**31), -(2**31) + 1, -(2**31), 6]))
same(on([2**20]) * 2**12, np.array([0]))
same(on([2**32]) == on([0]), [True])
same(on([2**30, 2**30, 2**30]).sum(), np.array(3 * 2**30 - 2**32))
same(on([2**30, 2**30], torch.int32).sum(), np.array(-(2**31)))
same(on([5, 3, 9]).amax(), np.array(9))
""",
    "uint64 is computed as uint32": """
x = torch.tensor([2**32 + 7], dtype=torch.uint64).to("neuron")
same(x.to(torch.float32), np.array([7], np.float32))
""",
    "moves keep all bits": """
x = rng.standard_normal((8, 16))
same(on(x).t().contiguous(), x.T)
same(torch.cat([on(x), on(x).flip(0)]), np.concatenate([x, x[::-1]]))
same(on(x)[on([3, 1])], x[[3, 1]])
big = np.array([2**40 + 1, -(2**50)])
same(on(big).clone(), big)
same(on(big).repeat(2), np.tile(big, 2))
a = on(x)
a[2:4] = on(x[:2])
x2 = x.copy()
x2[2:4] = x[:2]
same(a, x2)
""",
    "products of integer matrices run in float32": """
a = np.array([[2**24 + 1, 1], [4097, 4097]], np.int32)
b = np.array([[1, 0], [0, 4097]], np.int32)
f = a.astype(np.float32) @ b.astype(np.float32)
same(on(a) @ on(b), f.astype(np.int32))
assert not np.array_equal(f.astype(np.int32), a @ b)
small = rng.integers(-100, 100, (16, 16)).astype(np.int32)
same(on(small) @ on(small), small @ small)
same(on(small.astype(np.int64)) @ on(small.astype(np.int64)), small.astype(np.int64) @ small)
""",
    "accumulating scatters of integers run in float32": """
x = np.array([2**24, 2**24 + 1, 7], np.int32)
got = on(x).index_add(0, on([0, 2]), on(np.array([1, 5], np.int32)))
same(got, np.array([2**24, 2**24 + 1, 12], np.int32))  # 2**24 + 1 is no float32; the middle rests
""",
    "halves round once an op, in float32 inside": """
x = torch.full((512,), 1.0, dtype=torch.bfloat16, device="neuron")
assert x.sum().item() == 512
y = on([256.0, 1.0]).bfloat16()
assert ((y[:1] + y[1:]) - y[:1]).item() == 0  # 257 is no bfloat16: to even
a = torch.full((1, 512), 1.0, dtype=torch.bfloat16, device="neuron")
assert (a @ a.t()).item() == 512
""",
    "other values stay": """
u = torch.rand(1000, dtype=torch.float64, device="neuron")
assert 0.45 < u.mean().item() < 0.55 and u.min() >= 0 and u.max() <= 1
m, e = torch.frexp(on([3.5, -0.15625]))
same(m, [0.875, -0.625]); same(e, np.array([2, -2], np.int32))
v, i = on([3.0, 1.0, 2.0]).double().sort()
same(v, [1.0, 2.0, 3.0]); same(i, [1, 2, 0])
same(on([3.0, 1.0, 2.0]).double().argmax(), np.array(0))
same(torch.arange(5, device="neuron") + 0, np.arange(5))
a = rng.standard_normal((4, 4)).astype(np.float32)
p = torch.nn.Parameter(on(a)); q = torch.nn.Parameter(torch.tensor(a))
for t in (p, q):
    o = torch.optim.AdamW([t], lr=0.1); (t * t).sum().backward(); o.step()
torch.testing.assert_close(p.detach().cpu(), q.detach())
inverse = torch.linalg.inv(on(a).double()).cpu()
np.testing.assert_allclose(inverse, np.linalg.inv(a.astype(np.float64)), 1e-4)
f = torch.compile(lambda t: (t * t).sum(0), backend="neuron")
same(f(on(a).double()), (a * a).astype(np.float32).sum(0).astype(np.float64))
""",
}
FLOAT8 = {
    # Ends at 240, then infinities; stored in torch's format they are 448, which reads as one again.
    "trn2": """
x = on([240.0, 247.0, 248.0, 256.0, 448.0, -300.0, 0.0625, 2.0**-9]).to(torch.float8_e4m3fn)
inf = np.inf
same(x.float(), np.array([240, 240, inf, inf, inf, -inf, 0.0625, 2.0**-9]).astype(np.float32))
same(x.cpu().float(), np.array([240, 240, 448, 448, 448, -448, 0.0625, 2.0**-9], np.float32))
""",
    "trn3": """
x = on([240.0, 247.0, 248.0, 256.0, 448.0, 0.0625]).to(torch.float8_e4m3fn)
same(x.float(), np.array([240, 240, 256, 256, 448, 0.0625], np.float32))
""",
}


def run(code, target, **variables):
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "NEURON_SIM_NUMERICS": "hardware",
            "TORCH_NEURONX_TARGET": target,
            **variables,
        },
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_rules(target):
    parts = [*RULES.values(), FLOAT8[target]]
    code = "".join(
        f"\ntry:\n{_indented(part)}\n"
        f"except Exception as e:\n    raise AssertionError({name!r}) from e"
        for name, part in zip([*RULES, "float8"], parts, strict=True)
    )
    errors = run(code, target)
    lines = [line for line in errors.splitlines() if "NEURON_SIM_NUMERICS=hardware: on" in line]
    for text in ("float64 is computed as float32", "complex128 is", "int64 is", "uint64 is"):
        found = [line for line in lines if f"on {target} {text}" in line]
        assert len(found) == 1 and "first met in" in found[0], (text, lines)
    assert sum("integer matrices" in line for line in lines) == 1
    assert sum("integers are accumulated" in line for line in lines) == 1
    assert sum("float8_e4m3fn" in line for line in lines) == (target == "trn2")


def _indented(code):
    return "\n".join("    " + line for line in code.strip().splitlines())


def test_nothing_is_said_where_nothing_narrows():
    code = """
x = torch.randn(8, 8, device="neuron")
(x @ x).relu().sum().item()
x.to(torch.bfloat16).softmax(-1)
on([1.0, 2.0], torch.float64).clone()
"""
    assert "hardware" not in run(code, "trn2")


def test_numerics_are_part_of_the_key_of_programs_on_disk(tmp_path):
    code = "print((on([1 + 2.0**-40]) * 1 - 1).item())"
    folder = str(tmp_path)
    for numerics, expected in (("exact", 2.0**-40), ("hardware", 0.0), ("exact", 2.0**-40)):
        run(
            code.replace("print(", "assert ").replace(".item())", f".item() == {expected!r}"),
            "trn2",
            NEURON_SIM_NUMERICS=numerics,
            TORCH_NEURONX_NEFF_CACHE_DIR=folder,
        )
