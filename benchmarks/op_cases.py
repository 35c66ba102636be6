"""What benchmarks/ops.py times: cases by family, each for several sizes.

A case builds its inputs on a device and returns the function to time.
"""

import math

import torch
import torch.nn.functional as F

SIZES = {"64K": 1 << 14, "1M": 1 << 18, "32M": 1 << 23}  # Elements of float32
SMALL = ("64K", "1M")
CASES = []


class Maker:
    """Makes the same inputs on any device."""

    def __init__(self, device):
        self.device = device

    def randn(self, *shape, dtype=torch.float32, grad=False):
        return torch.randn(*shape).to(dtype).to(self.device).requires_grad_(grad)

    def ints(self, high, *shape, dtype=torch.int64):
        return torch.randint(high, shape, dtype=dtype).to(self.device)

    def positive(self, *shape, dtype=torch.float32):
        return (torch.rand(*shape) + 0.5).to(dtype).to(self.device)

    def on(self, thing):
        return thing.to(self.device)


def case(family, name, build, sizes=tuple(SIZES), goal=None):
    CASES.append((family, name, build, sizes, goal))


def add(family, sizes=tuple(SIZES), goal=None, **builds):
    for name, build in builds.items():
        case(family, name, build, sizes, goal)


def matrix(n):
    """A shape of n elements, at most twice as wide as high."""
    rows = 1 << (int(math.log2(n)) // 2)
    return rows, n // rows


def call(function, *inputs):
    return lambda: function(*inputs)


def training(function, *inputs, parameters=()):
    """Forward and backward; gradients start anew."""
    leaves = [x for x in (*inputs, *parameters) if x.requires_grad]
    with torch.no_grad():
        out = function(*inputs)
        cotangent = torch.ones_like(out)

    def run():
        return torch.autograd.grad(function(*inputs), leaves, cotangent)

    return run


def elementwise():
    for name in [
        "neg",
        "abs",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "sin",
        "tanh",
        "erf",
        "sigmoid",
        "reciprocal",
        "floor",
    ]:
        op = getattr(torch, name)
        case("unary", name, lambda t, n, op=op: call(op, t.positive(n)))
    for name in ["relu", "gelu", "silu", "elu", "softplus", "hardswish", "logsigmoid"]:
        op = getattr(F, name)
        case("activation", name, lambda t, n, op=op: call(op, t.randn(n)), ("1M", "32M"))
        case(
            "activation",
            f"{name} backward",
            lambda t, n, op=op: training(op, t.randn(n, grad=True)),
            ("1M",),
        )
    for name in ["add", "sub", "mul", "div", "maximum", "pow", "atan2", "fmod"]:
        op = getattr(torch, name)
        case("binary", name, lambda t, n, op=op: call(op, t.positive(n), t.positive(n)))
    for dtype in (torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.complex64):
        short = str(dtype)[6:]
        for name in ["add", "mul"]:
            op = getattr(torch, name)
            case(
                "dtypes",
                f"{name} {short}",
                lambda t, n, op=op, d=dtype: call(
                    op, t.positive(n, dtype=d), t.positive(n, dtype=d)
                ),
            )
        if not dtype.is_complex:
            case(
                "dtypes",
                f"sum {short}",
                lambda t, n, d=dtype: call(torch.sum, t.positive(n).to(d)),
            )
    for dtype in (torch.bfloat16, torch.float16):
        for name in ["exp", "tanh"]:
            op = getattr(torch, name)
            case(
                "dtypes",
                f"{name} {str(dtype)[6:]}",
                lambda t, n, op=op, d=dtype: call(op, t.positive(n, dtype=d)),
                ("1M",),
            )
    for name in ["eq", "lt", "ge"]:
        op = getattr(torch, name)
        case("comparison", name, lambda t, n, op=op: call(op, t.randn(n), t.randn(n)))
    add(
        "comparison",
        where=lambda t, n: call(torch.where, t.randn(n) > 0, t.randn(n), t.randn(n)),
        isnan=lambda t, n: call(torch.isnan, t.randn(n)),
        logical_and=lambda t, n: call(torch.logical_and, t.randn(n) > 0, t.randn(n) > 0),
        clamp=lambda t, n: call(lambda x: x.clamp(-1, 1), t.randn(n)),
    )
    add(
        "broadcast",
        row=lambda t, n: call(torch.add, t.randn(*matrix(n)), t.randn(matrix(n)[1])),
        column=lambda t, n: call(torch.mul, t.randn(*matrix(n)), t.randn(matrix(n)[0], 1)),
        in_place=lambda t, n: call(lambda x, y: x.add_(y, alpha=0.1), t.randn(n), t.randn(n)),
        number=lambda t, n: call(lambda x: x * 2.5, t.randn(n)),
        addcmul=lambda t, n: call(torch.addcmul, t.randn(n), t.randn(n), t.randn(n)),
        lerp=lambda t, n: call(lambda x, y: x.lerp(y, 0.3), t.randn(n), t.randn(n)),
        transposed=lambda t, n: call(torch.add, t.randn(*matrix(n)), t.randn(*matrix(n)[::-1]).t()),
    )
    f32, bf16, f16, i64, i32 = (
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.int32,
    )
    for a, b in (
        (f32, bf16),
        (bf16, f32),
        (f32, f16),
        (f16, f32),
        (f32, i64),
        (i64, f32),
        (i64, i32),
    ):
        case(
            "casts",
            f"{str(a)[6:]} to {str(b)[6:]}",
            lambda t, n, a=a, b=b: call(lambda x: x.to(b), (t.randn(n) * 100).to(a)),
        )
    add(
        "casts",
        bool_to_float32=lambda t, n: call(lambda x: x.float(), t.randn(n) > 0),
        float32_to_bool=lambda t, n: call(lambda x: x.bool(), t.randn(n)),
    )


def movement():
    def image(t, n):
        return t.randn(n // 16384, 16, 32, 32)

    def m(t, n):
        return t.randn(*matrix(n))

    add(
        "movement",
        clone=lambda t, n: call(torch.clone, t.randn(n)),
        copy_=lambda t, n: call(lambda x, y: x.copy_(y), t.randn(n), t.randn(n)),
        fill=lambda t, n: call(lambda x: x.fill_(1.0), t.randn(n)),
        zeros=lambda t, n: call(lambda: torch.zeros(n, device=t.device)),
        arange=lambda t, n: call(lambda: torch.arange(n, device=t.device)),
        transpose=lambda t, n: call(lambda x: x.t().contiguous(), m(t, n)),
        permute=lambda t, n: call(lambda x: x.permute(0, 2, 3, 1).contiguous(), image(t, n)),
        permute_back=lambda t, n: call(
            lambda x: x.permute(0, 3, 1, 2).contiguous(), t.randn(n // 16384, 32, 32, 16)
        ),
        heads=lambda t, n: call(
            lambda x: x.transpose(1, 2).contiguous(), t.randn(n // 16384, 32, 8, 64)
        ),
        to_channels_last=lambda t, n: call(
            lambda x: x.contiguous(memory_format=torch.channels_last), image(t, n)
        ),
        cat=lambda t, n: call(lambda x, y: torch.cat([x, y]), m(t, n), m(t, n)),
        cat_last=lambda t, n: call(lambda x, y: torch.cat([x, y], 1), m(t, n), m(t, n)),
        stack=lambda t, n: call(lambda x, y: torch.stack([x, y], -1), m(t, n), m(t, n)),
        slice=lambda t, n: call(lambda x: x[:, ::2].contiguous(), m(t, n)),
        narrow=lambda t, n: call(lambda x: x[:, 8:-8].contiguous(), m(t, n)),
        pad=lambda t, n: call(lambda x: F.pad(x, (1, 1, 1, 1)), image(t, n)),
        pad_reflect=lambda t, n: call(lambda x: F.pad(x, (1, 1, 1, 1), "reflect"), image(t, n)),
        flip=lambda t, n: call(lambda x: x.flip(1), m(t, n)),
        flip_rows=lambda t, n: call(lambda x: x.flip(0), m(t, n)),
        roll=lambda t, n: call(lambda x: x.roll(3, 1), m(t, n)),
        tril=lambda t, n: call(torch.tril, m(t, n)),
        repeat=lambda t, n: call(lambda x: x.repeat(2, 2), m(t, n)),
        repeat_interleave=lambda t, n: call(lambda x: x.repeat_interleave(2, 1), m(t, n)),
        slice_assign=lambda t, n: call(
            lambda x, y: x[:, 8:-8].copy_(y), m(t, n), m(t, n)[:, 8:-8].contiguous()
        ),
        unfold=lambda t, n: call(lambda x: F.unfold(x, 3, padding=1), image(t, n)),
    )


def indexing():
    def m(t, n):
        return t.randn(*matrix(n))

    def rows(t, n):
        return t.ints(matrix(n)[0], matrix(n)[0])

    def each(t, n):
        return t.ints(matrix(n)[1], *matrix(n))

    add(
        "indexing",
        index_select=lambda t, n: call(lambda x, i: x.index_select(0, i), m(t, n), rows(t, n)),
        index_columns=lambda t, n: call(
            lambda x, i: x[:, i], m(t, n), t.ints(matrix(n)[1], matrix(n)[1])
        ),
        index_flat=lambda t, n: call(lambda x, i: x[i], t.randn(n), t.ints(n, n)),
        gather=lambda t, n: call(lambda x, i: x.gather(1, i), m(t, n), each(t, n)),
        take=lambda t, n: call(torch.take, t.randn(n), t.ints(n, n)),
        scatter=lambda t, n: call(lambda x, i, y: x.scatter(1, i, y), m(t, n), each(t, n), m(t, n)),
        scatter_add=lambda t, n: call(
            lambda x, i, y: x.scatter_add(1, i, y), m(t, n), each(t, n), m(t, n)
        ),
        index_add=lambda t, n: call(
            lambda x, i, y: x.index_add(0, i, y), m(t, n), rows(t, n), m(t, n)
        ),
        index_put=lambda t, n: call(
            lambda x, i, y: x.index_put((i,), y), m(t, n), rows(t, n), m(t, n)
        ),
        index_put_add=lambda t, n: call(
            lambda x, i, y: x.index_put((i,), y, accumulate=True), m(t, n), rows(t, n), m(t, n)
        ),
        embedding=lambda t, n: call(F.embedding, t.ints(1000, n // 128), t.randn(1000, 128)),
        embedding_backward=lambda t, n: training(
            lambda w, i: F.embedding(i, w), t.randn(1000, 128, grad=True), t.ints(1000, n // 128)
        ),
        embedding_bag=lambda t, n: call(
            lambda i, w: F.embedding_bag(i, w, mode="sum"),
            t.ints(1000, n // 1024, 8),
            t.randn(1000, 128),
        ),
        one_hot=lambda t, n: call(lambda i: F.one_hot(i, 64), t.ints(64, n // 64)),
        masked_fill=lambda t, n: call(lambda x, k: x.masked_fill(k, 0.0), m(t, n), m(t, n) > 0),
        masked_select=lambda t, n: call(torch.masked_select, m(t, n), m(t, n) > 0),
        nonzero=lambda t, n: call(torch.nonzero, m(t, n) > 1),
        searchsorted=lambda t, n: call(torch.searchsorted, t.randn(1024).sort()[0], t.randn(n)),
        bincount=lambda t, n: call(lambda i: torch.bincount(i, minlength=256), t.ints(256, n)),
    )


def reductions():
    def m(t, n):
        return t.randn(*matrix(n))

    for name in ("sum", "mean", "amax", "argmax", "var", "logsumexp", "all", "prod", "norm"):
        op = getattr(torch, name)
        family = "arg reduction" if name.startswith("arg") else "reduction"
        for dim in (0, 1):

            def build(t, n, op=op, dim=dim, name=name):
                x = m(t, n) if name != "all" else m(t, n) > -9
                return call(lambda: op(x, dim=dim))

            case(family, f"{name} dim {dim}", build)
        if name not in ("logsumexp", "amax"):
            case(
                family,
                f"{name} whole",
                lambda t, n, op=op, name=name: call(op, m(t, n) if name != "all" else m(t, n) > -9),
            )
    add(
        "reduction",
        sum_middle=lambda t, n: call(lambda x: x.sum(1), t.randn(16, n // 1024, 64)),
        sum_channels=lambda t, n: call(lambda x: x.sum((0, 2, 3)), t.randn(n // 16384, 16, 32, 32)),
        sum_transposed=lambda t, n: call(lambda x: x.sum(0), m(t, n).t()),
        any_whole=lambda t, n: call(lambda x: x.any(), m(t, n) > 9),
        sum_bfloat16=lambda t, n: call(lambda x: x.sum(1), m(t, n).bfloat16()),
    )
    add(
        "arg reduction",
        max_dim=lambda t, n: call(lambda x: x.max(1), m(t, n)),
        min_dim_0=lambda t, n: call(lambda x: x.min(0), m(t, n)),
    )
    add(
        "scan",
        cumsum=lambda t, n: call(lambda x: x.cumsum(1), m(t, n)),
        cumsum_dim_0=lambda t, n: call(lambda x: x.cumsum(0), m(t, n)),
        cumsum_flat=lambda t, n: call(lambda x: x.cumsum(0), t.randn(n)),
        cumprod=lambda t, n: call(lambda x: x.cumprod(1), m(t, n)),
        cummax=lambda t, n: call(lambda x: x.cummax(1), m(t, n)),
        logcumsumexp=lambda t, n: call(lambda x: x.logcumsumexp(1), m(t, n)),
    )
    add(
        "sort",
        sort=lambda t, n: call(lambda x: x.sort(1), m(t, n)),
        sort_dim_0=lambda t, n: call(lambda x: x.sort(0), m(t, n)),
        argsort=lambda t, n: call(lambda x: x.argsort(1), m(t, n)),
        topk=lambda t, n: call(lambda x: x.topk(8, 1), m(t, n)),
        kthvalue=lambda t, n: call(lambda x: x.kthvalue(4, 1), m(t, n)),
        median=lambda t, n: call(lambda x: x.median(1), m(t, n)),
        sizes=SMALL,
    )
    add(
        "sort",
        sort_flat=lambda t, n: call(torch.sort, t.randn(n)),
        sort_int64=lambda t, n: call(torch.sort, t.ints(1 << 40, n)),
        unique=lambda t, n: call(torch.unique, t.ints(1000, n)),
        sizes=SMALL,
    )


def products():
    def square(n):
        return math.isqrt(n)

    def m(t, n, **options):
        return t.randn(square(n), square(n), **options)

    for dtype in (torch.float32, torch.bfloat16):
        d, short = dtype, {torch.float32: "", torch.bfloat16: " bfloat16"}[dtype]
        case(
            "matmul",
            f"mm{short}",
            lambda t, n, d=d: call(torch.mm, m(t, n, dtype=d), m(t, n, dtype=d)),
            SMALL,
        )
        case(
            "matmul",
            f"bmm{short}",
            lambda t, n, d=d: call(
                torch.bmm, t.randn(n // 4096, 64, 64, dtype=d), t.randn(n // 4096, 64, 64, dtype=d)
            ),
            SMALL,
        )
        case(
            "matmul",
            f"bmm 24x256x64x256{short}",
            lambda t, n, d=d: call(
                torch.bmm, t.randn(24, 256, 64, dtype=d), t.randn(24, 64, 256, dtype=d)
            ),
            ("1M",),
        )
        case(
            "matmul",
            f"linear{short}",
            lambda t, n, d=d: call(
                F.linear,
                t.randn(n // 256, 256, dtype=d),
                t.randn(512, 256, dtype=d),
                t.randn(512, dtype=d),
            ),
        )
        case(
            "matmul",
            f"linear training{short}",
            lambda t, n, d=d: training(
                F.linear,
                t.randn(n // 256, 256, dtype=d, grad=True),
                t.randn(512, 256, dtype=d, grad=True),
                t.randn(512, dtype=d, grad=True),
            ),
            SMALL,
        )
    add(
        "matmul",
        mv=lambda t, n: call(torch.mv, m(t, n), t.randn(square(n))),
        transposed=lambda t, n: call(lambda a, b: a.t() @ b, m(t, n), m(t, n)),
        addmm=lambda t, n: call(torch.addmm, t.randn(square(n)), m(t, n), m(t, n)),
        dot=lambda t, n: call(torch.dot, t.randn(n), t.randn(n)),
        einsum=lambda t, n: call(
            lambda a, b: torch.einsum("bik,bjk->bij", a, b),
            t.randn(n // 4096, 64, 64),
            t.randn(n // 4096, 64, 64),
        ),
        outer=lambda t, n: call(torch.outer, t.randn(square(n)), t.randn(square(n))),
        float64=lambda t, n: call(
            torch.mm, m(t, n, dtype=torch.float64), m(t, n, dtype=torch.float64)
        ),
        complex64=lambda t, n: call(
            torch.mm, m(t, n, dtype=torch.complex64), m(t, n, dtype=torch.complex64)
        ),
        sizes=SMALL,
    )


def networks():
    def conv(
        dims, channels=16, out=32, kernel=3, training_step=False, last=False, goal=None, **options
    ):
        op = getattr(
            F, ("conv_transpose" if options.pop("transposed", False) else "conv") + f"{dims}d"
        )

        def build(t, n):
            side = {1: 1024, 2: 32, 3: 8}[dims]
            batch = max(1, n // (channels * side**dims))
            groups = options.get("groups", 1)
            x = t.randn(batch, channels, *[side] * dims)
            inner = (out, channels // groups) if op.__name__[:5] != "conv_" else (channels, out)
            w = t.randn(*inner, *[kernel] * dims) * 0.1
            if last:
                x = x.contiguous(memory_format=torch.channels_last)
                w = w.contiguous(memory_format=torch.channels_last)

            def run(x, w):
                return op(x, w, padding=kernel // 2, **options)

            if not training_step:
                return call(run, x, w)
            return training(run, x.requires_grad_(), w.requires_grad_())

        return build

    for dims in (1, 2, 3):
        case("convolution", f"conv{dims}d", conv(dims), SMALL)
        case("convolution", f"conv{dims}d training", conv(dims, training_step=True), SMALL, 1.1)
    for label, options in (
        ("1x1", {"kernel": 1}),
        ("stride 2", {"stride": 2}),
        ("dilated", {"dilation": 2}),
        ("grouped", {"groups": 4}),
        ("depthwise", {"groups": 16, "out": 16}),
        ("channels_last", {"last": True}),
        ("transposed", {"transposed": True}),
    ):
        case("convolution", f"conv2d {label}", conv(2, **options), SMALL)
        case(
            "convolution",
            f"conv2d {label} training",
            conv(2, training_step=True, **options),
            ("1M",),
            1.1,
        )
    case("convolution", "conv2d", conv(2), ("32M",))

    def image(t, n, grad=False):
        return t.randn(max(1, n // 16384), 16, 32, 32, grad=grad)

    add(
        "pooling",
        max_pool2d=lambda t, n: call(lambda x: F.max_pool2d(x, 2), image(t, n)),
        max_pool2d_training=lambda t, n: training(lambda x: F.max_pool2d(x, 2), image(t, n, True)),
        avg_pool2d=lambda t, n: call(lambda x: F.avg_pool2d(x, 2), image(t, n)),
        avg_pool2d_training=lambda t, n: training(lambda x: F.avg_pool2d(x, 2), image(t, n, True)),
        adaptive_avg_pool2d=lambda t, n: call(lambda x: F.adaptive_avg_pool2d(x, 1), image(t, n)),
        max_pool1d=lambda t, n: call(lambda x: F.max_pool1d(x, 3, 2), t.randn(n // 1024, 1024)),
        sizes=SMALL,
    )
    add(
        "resize",
        nearest=lambda t, n: call(lambda x: F.interpolate(x, scale_factor=2), image(t, n)),
        bilinear=lambda t, n: call(
            lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), image(t, n)
        ),
        bilinear_training=lambda t, n: training(
            lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), image(t, n, True)
        ),
        bicubic=lambda t, n: call(
            lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), image(t, n)
        ),
        grid_sample=lambda t, n: call(
            lambda x, g: F.grid_sample(x, g, align_corners=False),
            image(t, n),
            t.randn(max(1, n // 16384), 32, 32, 2).tanh(),
        ),
        pixel_shuffle=lambda t, n: call(lambda x: F.pixel_shuffle(x, 2), image(t, n)),
        sizes=SMALL,
    )

    def weights(t, size):
        return t.randn(size, grad=True), t.randn(size, grad=True)

    def norm(function, shape, step):
        def build(t, n):
            x = t.randn(*shape(n), grad=step)
            channels = x.shape[1] if function is not F.layer_norm else x.shape[-1]
            w, b = weights(t, channels)

            def run(x, w, b):
                if function is F.layer_norm:
                    return F.layer_norm(x, w.shape, w, b)
                if function is F.group_norm:
                    return F.group_norm(x, 4, w, b)
                if function is F.instance_norm:
                    return F.instance_norm(x, weight=w, bias=b)
                return F.batch_norm(x, None, None, w, b, training=True)

            if step:
                return training(run, x, w, b)
            return call(run, x, w.detach(), b.detach())

        return build

    for function, shape in (
        (F.layer_norm, lambda n: (n // 384, 384)),
        (F.batch_norm, lambda n: (max(2, n // 16384), 16, 32, 32)),
        (F.group_norm, lambda n: (max(1, n // 16384), 16, 32, 32)),
        (F.instance_norm, lambda n: (max(1, n // 16384), 16, 32, 32)),
    ):
        case("norm", function.__name__, norm(function, shape, False))
        case("norm", function.__name__ + " training", norm(function, shape, True), SMALL)
    add(
        "norm",
        rms_norm=lambda t, n: call(
            lambda x, w: F.rms_norm(x, w.shape, w), t.randn(n // 384, 384), t.randn(384)
        ),
        normalize=lambda t, n: call(F.normalize, t.randn(n // 384, 384)),
    )

    def rows(t, n, grad=False, width=512):
        return t.randn(n // width, width, grad=grad)

    add(
        "softmax",
        softmax=lambda t, n: call(lambda x: x.softmax(-1), rows(t, n)),
        softmax_dim_0=lambda t, n: call(lambda x: x.softmax(0), rows(t, n)),
        log_softmax=lambda t, n: call(lambda x: x.log_softmax(-1), rows(t, n)),
        softmax_bfloat16=lambda t, n: call(lambda x: x.softmax(-1), rows(t, n).bfloat16()),
    )
    add(
        "softmax",
        softmax_training=lambda t, n: training(lambda x: x.softmax(-1), rows(t, n, True)),
        log_softmax_training=lambda t, n: training(lambda x: x.log_softmax(-1), rows(t, n, True)),
        sizes=SMALL,
    )
    add(
        "loss",
        cross_entropy=lambda t, n: call(F.cross_entropy, rows(t, n), t.ints(512, n // 512)),
        cross_entropy_training=lambda t, n: training(
            F.cross_entropy, rows(t, n, True), t.ints(512, n // 512)
        ),
        mse_training=lambda t, n: training(F.mse_loss, t.randn(n, grad=True), t.randn(n)),
        l1_training=lambda t, n: training(F.l1_loss, t.randn(n, grad=True), t.randn(n)),
        smooth_l1=lambda t, n: call(F.smooth_l1_loss, t.randn(n), t.randn(n)),
        bce_with_logits_training=lambda t, n: training(
            F.binary_cross_entropy_with_logits, t.randn(n, grad=True), t.positive(n) - 0.5
        ),
        kl_div=lambda t, n: call(F.kl_div, t.randn(n), t.positive(n)),
        nll=lambda t, n: call(F.nll_loss, rows(t, n), t.ints(512, n // 512)),
        sizes=SMALL,
    )


def attention_and_recurrence():
    for label, shape, dtype in (
        ("tiny", (1, 2, 16, 16), torch.float32),
        ("tiny bfloat16", (1, 2, 16, 16), torch.bfloat16),
        ("2x4x256x64", (2, 4, 256, 64), torch.float32),
        ("2x4x256x64 bfloat16", (2, 4, 256, 64), torch.bfloat16),
        ("1x4x1024x64", (1, 4, 1024, 64), torch.float32),
    ):
        for causal in (False, True):
            options = {"is_causal": causal}
            name = f"{label}{' causal' if causal else ''}"

            def build(t, n, shape=shape, dtype=dtype, options=options, step=False):
                q, k, v = (t.randn(*shape, dtype=dtype, grad=step) for _ in range(3))
                make = training if step else call
                return make(
                    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options), q, k, v
                )

            case("attention", name, build, ("1M",))
            case(
                "attention",
                f"{name} training",
                lambda t, n, b=build: b(t, n, step=True),
                ("1M",),
                1.1,
            )

    def recurrent(kind, step, hidden=128, layers=1, **options):
        def build(t, n):
            torch.manual_seed(0)
            module = t.on(getattr(torch.nn, kind)(64, hidden, layers, batch_first=True, **options))
            x = t.randn(8, 32, 64, grad=step)
            if not step:
                with torch.no_grad():
                    return torch.no_grad()(call(lambda x: module(x)[0], x))
            return training(lambda x: module(x)[0], x, parameters=list(module.parameters()))

        return build

    for kind in ("LSTM", "GRU", "RNN"):
        case("recurrent", kind, recurrent(kind, False), ("1M",))
        case("recurrent", f"{kind} training", recurrent(kind, True), ("1M",), 1.1)
    case("recurrent", "LSTM 2 layers training", recurrent("LSTM", True, layers=2), ("1M",), 1.1)
    case(
        "recurrent",
        "LSTM bidirectional training",
        recurrent("LSTM", True, bidirectional=True),
        ("1M",),
        1.1,
    )


def random_numbers():
    add(
        "random",
        randn=lambda t, n: call(lambda: torch.randn(n, device=t.device)),
        rand=lambda t, n: call(lambda: torch.rand(n, device=t.device)),
        randint=lambda t, n: call(lambda: torch.randint(100, (n,), device=t.device)),
        bernoulli=lambda t, n: call(torch.bernoulli, t.positive(n) - 0.5),
        exponential_=lambda t, n: call(lambda x: x.exponential_(), t.randn(n)),
        dropout=lambda t, n: call(lambda x: F.dropout(x, 0.1), t.randn(n)),
        dropout_training=lambda t, n: training(lambda x: F.dropout(x, 0.1), t.randn(n, grad=True)),
        sizes=("64K", "1M", "32M"),
    )
    add(
        "random",
        randperm=lambda t, n: call(lambda: torch.randperm(n, device=t.device)),
        multinomial=lambda t, n: call(lambda p: torch.multinomial(p, 8), t.positive(*matrix(n))),
        sizes=SMALL,
    )


def optimizers():
    def optimizer(kind, count, goal=None, fused=False, **options):
        def build(t, n):
            shape = (n // count,)
            parameters = [t.randn(*shape, grad=True) for _ in range(count)]
            for p in parameters:
                p.grad = torch.randn(*shape).to(t.device)
            made = getattr(torch.optim, kind)(
                parameters, lr=1e-3, **({"fused": True} if fused else {"foreach": True}), **options
            )
            return made.step

        return build

    for fused in (False, True):
        label = "fused" if fused else "foreach"
        goal = None if fused else 0.5
        case(
            "optimizer",
            f"AdamW 100 tensors {label}",
            optimizer("AdamW", 100, fused=fused),
            goal=goal,
        )
        case("optimizer", f"SGD momentum {label}", optimizer("SGD", 100, fused=fused, momentum=0.9))
    case("optimizer", "Adagrad foreach", optimizer("Adagrad", 100), SMALL)
    case("optimizer", "RMSprop foreach", optimizer("RMSprop", 100), SMALL)

    def many(t, n):
        return [t.randn(n // 100) for _ in range(100)]

    add(
        "foreach",
        add=lambda t, n: call(torch._foreach_add, many(t, n), many(t, n)),
        mul_=lambda t, n: call(lambda x: torch._foreach_mul_(x, 0.999), many(t, n)),
        norm=lambda t, n: call(torch._foreach_norm, many(t, n)),
        sqrt=lambda t, n: call(lambda x: torch._foreach_sqrt(torch._foreach_abs(x)), many(t, n)),
    )


def mathematics():
    def batch(t, n, width=32):
        x = t.randn(n // width**2, width, width)
        return x @ x.transpose(1, 2) + 5 * t.on(torch.eye(width))

    add(
        "linalg",
        cholesky=lambda t, n: call(torch.linalg.cholesky, batch(t, n)),
        inv=lambda t, n: call(torch.linalg.inv, batch(t, n)),
        solve=lambda t, n: call(torch.linalg.solve, batch(t, n), batch(t, n)),
        det=lambda t, n: call(torch.linalg.det, batch(t, n)),
        qr=lambda t, n: call(torch.linalg.qr, batch(t, n)),
        triangular=lambda t, n: call(
            lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
            batch(t, n).tril(),
            batch(t, n),
        ),
        sizes=SMALL,
    )
    add(
        "linalg",
        eigh=lambda t, n: call(torch.linalg.eigh, batch(t, n)),
        svd=lambda t, n: call(torch.linalg.svd, batch(t, n)),
        sizes=("64K",),
    )
    add(
        "fft",
        rfft=lambda t, n: call(torch.fft.rfft, t.randn(n // 1024, 1024)),
        fft=lambda t, n: call(torch.fft.fft, t.randn(n // 2048, 1024, dtype=torch.complex64)),
        irfft=lambda t, n: call(torch.fft.irfft, t.randn(n // 2048, 513, dtype=torch.complex64)),
        fft2=lambda t, n: call(torch.fft.fft2, t.randn(n // 8192, 64, 64, dtype=torch.complex64)),
        stft=lambda t, n: call(
            lambda x, w: torch.stft(x, 256, window=w, return_complex=True),
            t.randn(n),
            t.positive(256),
        ),
        sizes=SMALL,
    )
    c64 = torch.complex64
    add(
        "complex",
        abs=lambda t, n: call(torch.abs, t.randn(n // 2, dtype=c64)),
        exp=lambda t, n: call(torch.exp, t.randn(n // 2, dtype=c64)),
        div=lambda t, n: call(torch.div, t.randn(n // 2, dtype=c64), t.randn(n // 2, dtype=c64)),
        angle=lambda t, n: call(torch.angle, t.randn(n // 2, dtype=c64)),
        conj_mul=lambda t, n: call(lambda x: x * x.conj(), t.randn(n // 2, dtype=c64)),
        sum=lambda t, n: call(lambda x: x.sum(), t.randn(n // 2, dtype=c64)),
        real=lambda t, n: call(lambda x: x.real.clone(), t.randn(n // 2, dtype=c64)),
    )
    add(
        "special",
        lgamma=lambda t, n: call(torch.lgamma, t.positive(n)),
        digamma=lambda t, n: call(torch.digamma, t.positive(n)),
        erfinv=lambda t, n: call(torch.erfinv, t.positive(n) - 0.75),
        i0=lambda t, n: call(torch.special.i0, t.randn(n)),
        ndtri=lambda t, n: call(torch.special.ndtri, t.positive(n) - 0.5),
        cdist=lambda t, n: call(torch.cdist, t.randn(n // 64, 64)[:1024], t.randn(128, 64)),
        sizes=SMALL,
    )


def all_cases():
    """(family, name, build(maker, elements), names of sizes, goal) of every case."""
    if not CASES:
        for group in (
            elementwise,
            movement,
            indexing,
            reductions,
            products,
            networks,
            attention_and_recurrence,
            random_numbers,
            optimizers,
            mathematics,
        ):
            group()
    return CASES
