"""torch_neuronx.distributed.suggest_mesh: the least model parallelism that fits."""

import pytest
import ranks
import torch
from torch import nn
from torch_neuronx.distributed import suggest_mesh

GIB = 1 << 30
LLAMA_8B = {
    "parameters": 8_030_000_000,
    "layers": 32,
    "heads": 32,
    "kv_heads": 8,
    "hidden": 4096,
    "vocabulary": 128256,
}
LLAMA_70B = {
    "parameters": 70_600_000_000,
    "layers": 80,
    "heads": 64,
    "kv_heads": 8,
    "hidden": 8192,
    "vocabulary": 128256,
}
TRN2 = {"hbm_bytes": 24 * GIB, "cores_per_host": 64}


def sizes(found):
    return found.dp, found.pp, found.cp, found.tp


def test_a_small_model_is_data_parallel():
    assert sizes(suggest_mesh(8, parameters=124_000_000, layers=12, heads=12, **TRN2)) == (
        8,
        1,
        1,
        1,
    )
    assert sizes(suggest_mesh(1, parameters=1000, **TRN2)) == (1, 1, 1, 1)


@pytest.mark.parametrize("cores", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("sequence", [2048, 8192, 32768])
@pytest.mark.parametrize("model", [LLAMA_8B, LLAMA_70B])
def test_every_proposal_holds_what_it_promises(cores, sequence, model):
    try:
        found = suggest_mesh(cores, sequence=sequence, batch=1024, **model, **TRN2)
    except ValueError as error:
        assert "does not fit" in str(error) and "tp" in str(error)
        assert model is LLAMA_70B and cores <= 64
        return
    assert found.dp * found.pp * found.cp * found.tp == cores
    assert model["kv_heads"] % found.tp == 0 and model["layers"] % found.pp == 0
    assert 1024 % found.dp == 0 and sequence % found.cp == 0
    assert found.bytes_per_core == sum(found.memory.values()) <= 0.9 * found.hbm_bytes
    # AdamW with a float32 copy, in 16 bit: 16 bytes a parameter, over all cores.
    assert found.memory["state"] == pytest.approx(model["parameters"] * 16 / cores, rel=1e-6)
    assert str(cores // (found.tp * found.pp)) in str(found)


def test_few_sequences_leave_cores_for_model_parallelism():
    found = suggest_mesh(64, batch=16, **LLAMA_8B, **TRN2)
    assert found.dp == 16 and found.tp == 4 and found.cp == found.pp == 1
    # Without heads to divide, context parallelism is next.
    found = suggest_mesh(64, batch=16, **{**LLAMA_8B, "heads": 3, "kv_heads": 3}, **TRN2)
    assert sizes(found) == (16, 1, 4, 1)
    # An odd sequence leaves the pipeline only.
    found = suggest_mesh(
        64, batch=16, sequence=2047, **{**LLAMA_8B, "heads": 3, "kv_heads": 3}, **TRN2
    )
    assert sizes(found) == (16, 4, 1, 1)


def test_long_sequences_and_more_memory_change_the_answer():
    short = suggest_mesh(64, sequence=4096, **LLAMA_8B, **TRN2)
    long = suggest_mesh(64, sequence=131072, **LLAMA_8B, **TRN2)
    assert short.tp * short.cp < long.tp * long.cp
    roomy = suggest_mesh(64, sequence=131072, hbm_bytes=200 * GIB, cores_per_host=64, **LLAMA_8B)
    assert roomy.tp * roomy.cp < long.tp * long.cp


def test_a_module_tells_its_own_sizes():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(1000, 64)
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    with torch.device("meta"):
        model = Model()
    found = suggest_mesh(4, model, **TRN2)
    state = (1000 * 64 + 6 * (64 * 64 + 64)) * 16 / 4
    assert found.memory["state"] == pytest.approx(state, abs=1)
    assert found.memory["logits"] == 2048 * 1000 * 6


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"does not fit on 4 cores.*GiB"):
        suggest_mesh(4, **LLAMA_70B, **TRN2)
    with pytest.raises(ValueError, match="cannot be divided"):
        suggest_mesh(7, batch=2, sequence=5, parameters=10, layers=2, heads=2, **TRN2)
    with pytest.raises(ValueError, match="num_cores must be at least 1"):
        suggest_mesh(0, parameters=1)
    with pytest.raises(ValueError, match="needs `model` or"):
        suggest_mesh(2)
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        suggest_mesh(2, {"a": 1})


def test_the_target_gives_the_limit():
    assert (
        suggest_mesh(2, parameters=1000).hbm_bytes
        == torch.neuron.get_device_properties(0).total_memory
    )


def _mesh(rank, world):
    found = suggest_mesh(world, parameters=1_000_000, layers=2, heads=2, batch=2, **TRN2)
    mesh = found.init_device_mesh()
    every = found.init_device_mesh(all_dims=True)
    return mesh.mesh_dim_names, tuple(mesh.shape), every.mesh_dim_names, mesh["tp"].get_local_rank()


def test_the_mesh_is_made_on_all_ranks():
    for rank, found in enumerate(ranks.run(_mesh, 4)):
        assert found == (("dp", "tp"), (2, 2), ("pp", "dp", "cp", "tp"), rank % 2)
