"""A device mesh proposed from the number of cores, the model's size and the HBM of a core."""

import dataclasses
import math

import torch

from torch_neuronx import _C

__all__ = ["MeshSuggestion", "suggest_mesh"]

_CHIPS_PER_HOST = 16  # trn2.48xlarge and a Trn3 Gen2 server alike
_CORES_PER_CHIP = 8  # Physical
# Of the HBM; the rest is for collectives' buffers, fragmentation and what this model leaves out.
_USABLE = 0.9


@dataclasses.dataclass(frozen=True)
class MeshSuggestion:
    """What suggest_mesh() proposes: ``dp * pp * cp * tp`` cores, and why.

    dp: data parallel ranks, over which (together with cp) FSDP shards parameters, gradients and
        optimizer state.
    pp: pipeline stages.
    cp: context parallel ranks, each with a part of the sequence.
    tp: tensor (and sequence) parallel ranks.
    memory: estimated bytes of one core by kind: ``"state"``, ``"gathered"``, ``"activations"``,
        ``"logits"``.
    hbm_bytes: HBM of one core that the estimate was held against.
    reasons: one sentence for each decision.
    """

    dp: int
    pp: int
    cp: int
    tp: int
    memory: dict[str, int]
    hbm_bytes: int
    reasons: tuple[str, ...]

    @property
    def bytes_per_core(self) -> int:
        """Sum of ``memory``."""
        return sum(self.memory.values())

    @property
    def shape(self) -> dict[str, int]:
        """Sizes by dim, outermost first; tensor parallel ranks are neighbours."""
        return {"pp": self.pp, "dp": self.dp, "cp": self.cp, "tp": self.tp}

    def init_device_mesh(self, device_type: str = "neuron", all_dims: bool = False):
        """The DeviceMesh, on all ranks of the job: collective. Dims of size 1 are left out unless
        `all_dims`; one dim is always there."""
        from torch.distributed.device_mesh import init_device_mesh

        dims = {name: size for name, size in self.shape.items() if all_dims or size > 1}
        dims = dims or {"dp": 1}
        return init_device_mesh(device_type, tuple(dims.values()), mesh_dim_names=tuple(dims))

    def __str__(self) -> str:
        sizes = " x ".join(f"{name} {size}" for name, size in self.shape.items())
        parts = ", ".join(f"{kind} {_gib(size)}" for kind, size in self.memory.items())
        lines = [f"{sizes}: {_gib(self.bytes_per_core)} of {_gib(self.hbm_bytes)} a core ({parts})"]
        return "\n".join([*lines, *(f"- {reason}" for reason in self.reasons)])


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"


@dataclasses.dataclass
class _Model:
    parameters: int
    layers: int
    heads: int | None
    kv_heads: int | None
    hidden: int
    vocabulary: int


def _from_config(model, names: tuple[str, ...]):
    config = getattr(model, "config", None)
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def _describe(model, parameters, layers, heads, kv_heads, hidden, vocabulary) -> _Model:
    if isinstance(model, torch.nn.Module):
        if parameters is None:
            parameters = sum(p.numel() for p in {id(p): p for p in model.parameters()}.values())
        stacks = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) > 1]
        layers = layers or _from_config(model, ("num_hidden_layers", "n_layer", "n_layers"))
        layers = layers or max((len(m) for m in stacks), default=1)
        heads = heads or _from_config(model, ("num_attention_heads", "n_head", "n_heads"))
        kv_heads = kv_heads or _from_config(model, ("num_key_value_heads", "n_kv_heads"))
        hidden = hidden or _from_config(model, ("hidden_size", "n_embd", "dim"))
        vocabulary = vocabulary or _from_config(model, ("vocab_size",))
        embeddings = [m for m in model.modules() if isinstance(m, torch.nn.Embedding)]
        if embeddings:
            widest = max(embeddings, key=lambda m: m.num_embeddings)
            hidden = hidden or widest.embedding_dim
            vocabulary = vocabulary or widest.num_embeddings
    elif model is not None:
        raise TypeError(f"model must be a torch.nn.Module, but got {type(model).__name__}")
    if parameters is None:
        raise ValueError("suggest_mesh needs `model` or the number of `parameters`")
    layers = layers or 1
    if hidden is None:  # 12 * layers * hidden^2 parameters are a usual transformer.
        hidden = max(1, round(math.sqrt(parameters / (12 * layers))))
    return _Model(parameters, layers, heads, kv_heads or heads, hidden, vocabulary or 0)


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _check(**sizes) -> None:
    for name, value in sizes.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise TypeError(f"{name} must be an int, but got {value!r}")
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, but got {value}")


def suggest_mesh(
    num_cores: int,
    model: torch.nn.Module | None = None,
    *,
    parameters: int | None = None,
    layers: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    hidden: int | None = None,
    vocabulary: int | None = None,
    sequence: int = 2048,
    batch: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
    state_bytes: int | None = None,
    checkpointing: bool = True,
    hbm_bytes: int | None = None,
    cores_per_host: int | None = None,
) -> MeshSuggestion:
    """Proposes how to divide `num_cores` logical NeuronCores into dp x pp x cp x tp for training
    a transformer, with FSDP over dp and cp, sequence parallelism beside tp, and micro-batches of
    one sequence.

    It takes the least model parallelism that fits: the estimate of one core's memory must stay
    below 90 % of its HBM, every data parallel rank must have a sequence, heads must divide by tp
    and layers by pp. Tensor parallelism is preferred to context parallelism, that to pipelines;
    tensor parallelism beyond one chip counts as dear, beyond one host it is not proposed.

    num_cores: cores of the whole job.
    model: read for what is not given: parameters, layers (the longest ModuleList), and the sizes
        in ``model.config``. May be on the meta device.
    parameters, layers, heads, kv_heads, hidden, vocabulary: sizes of the model; `hidden` is
        guessed from the others if nothing tells it.
    sequence: tokens of one sequence.
    batch: sequences of a step over all ranks; no limit on dp if None.
    dtype: of parameters, gradients and activations.
    state_bytes: optimizer state per parameter, master copy included; AdamW in float32 if None: 8,
        and 4 for the copy if `dtype` is narrower than float32.
    checkpointing: every layer keeps its input only and computes the rest again in backward.
    hbm_bytes: of one core; the target's (TORCH_NEURONX_TARGET, NEURON_LOGICAL_NC_CONFIG) if None.
    cores_per_host: logical cores that share NeuronLinks; the instance's if None.

    Raises ValueError if nothing fits, with the nearest miss.
    """
    _check(
        num_cores=num_cores, parameters=parameters, layers=layers, heads=heads, kv_heads=kv_heads,
        hidden=hidden, vocabulary=vocabulary, sequence=sequence, batch=batch,
        hbm_bytes=hbm_bytes, cores_per_host=cores_per_host,
    )  # fmt: skip
    about = _describe(model, parameters, layers, heads, kv_heads, hidden, vocabulary)
    _, memory, lnc = _C._device_properties(0)
    hbm_bytes = hbm_bytes or memory
    per_chip = max(1, _CORES_PER_CHIP // lnc)
    cores_per_host = cores_per_host or _CHIPS_PER_HOST * per_chip
    per_chip = min(per_chip, cores_per_host)
    width = dtype.itemsize
    if state_bytes is None:
        state_bytes = 8 + (4 if width < 4 else 0)

    def memory_of(dp: int, pp: int, cp: int, tp: int) -> dict[str, int]:
        stage_layers = math.ceil(about.layers / pp)
        own = about.parameters / (pp * tp)
        layer = about.parameters / about.layers / tp
        tokens = sequence / cp
        # Bytes of one layer's activations for one token, in elements of `dtype`: 34 bytes at 16
        # bit of Korthikanti et al., attention without its matrix of scores.
        inner = 17 * width * about.hidden * tokens / tp
        kept = about.hidden * width * tokens / tp if checkpointing else inner
        flying = pp  # Micro-batches whose activations the first stage of 1F1B holds.
        return {
            "state": math.ceil(own / (dp * cp) * (2 * width + state_bytes)),
            "gathered": math.ceil(2 * layer * 2 * width) if dp * cp > 1 else 0,
            "activations": math.ceil(kept * stage_layers * flying + inner),
            "logits": math.ceil(tokens * about.vocabulary * (width + 4) / tp),
        }

    limit = _USABLE * hbm_bytes
    best, nearest = None, None
    divided = [heads for heads in (about.heads, about.kv_heads) if heads is not None]
    for tp in _divisors(num_cores):
        if tp > cores_per_host or any(heads % tp for heads in divided):
            continue
        for pp in _divisors(num_cores // tp):
            if about.layers % pp:
                continue
            for cp in _divisors(num_cores // tp // pp):
                # Load-balanced causal attention cuts a sequence into 2 * cp pieces.
                if cp > 1 and sequence % (2 * cp):
                    continue
                dp = num_cores // tp // pp // cp
                if batch is not None and batch % dp:
                    continue
                memory = memory_of(dp, pp, cp, tp)
                needed = sum(memory.values())
                if nearest is None or needed < nearest[0]:
                    nearest = (needed, (dp, pp, cp, tp))
                if needed > limit:
                    continue
                cost = (
                    math.log2(tp) + 2 * math.log2(cp) + 3 * math.log2(pp)
                    + 4 * max(0.0, math.log2(tp / per_chip))
                )  # fmt: skip
                candidate = (cost, needed, (dp, pp, cp, tp), memory)
                if best is None or candidate[:2] < best[:2]:
                    best = candidate
    what = (
        f"a model of {about.parameters / 1e9:.3g} G parameters, {about.layers} layers, hidden size "
        f"{about.hidden}, sequences of {sequence} tokens"
    )
    if best is None:
        if nearest is None:
            raise ValueError(
                f"suggest_mesh: {num_cores} cores cannot be divided for {what}: heads "
                f"({about.heads}, {about.kv_heads}) must divide by tp, layers by pp, the batch "
                f"({batch}) by dp and the sequence by twice cp; change the number of cores or the "
                "batch"
            )
        dp, pp, cp, tp = nearest[1]
        raise ValueError(
            f"suggest_mesh: {what} does not fit on {num_cores} cores: dp {dp} x pp {pp} x cp {cp} "
            f"x tp {tp} comes nearest and needs {_gib(nearest[0])} a core of {_gib(limit)} "
            f"(90 % of {_gib(hbm_bytes)}); use more cores, shorter sequences, checkpointing=True "
            "or a smaller optimizer state"
        )
    _, needed, (dp, pp, cp, tp), memory = best
    alone = sum(memory_of(1, 1, 1, 1).values())
    reasons = [
        f"{what} would need {_gib(alone)} on one core; a core has {_gib(hbm_bytes)}",
        f"FSDP over dp x cp = {dp * cp} ranks holds 1/{dp * cp * tp * pp} of the state on each",
    ]
    if batch is not None:
        steps = batch // dp
        reasons.append(f"{batch} sequences a step give each of the {dp} replicas {steps}")
    if tp > 1:
        place = "within a chip" if tp <= per_chip else "within a host, beyond a chip"
        reasons.append(f"tensor parallelism over {tp} neighbours, {place}")
    if cp > 1:
        reasons.append(f"context parallelism: {sequence // cp} of {sequence} tokens a rank")
    if pp > 1:
        reasons.append(f"{pp} pipeline stages of {about.layers // pp} layers")
    return MeshSuggestion(dp, pp, cp, tp, memory, hbm_bytes, tuple(reasons))
