import copy
import io
import pickle

import torch


def _round_trip(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


def test_save_and_load_keep_device_and_sharing():
    x = torch.randn(4, 4, device="neuron")
    loaded = _round_trip({"x": x, "row": x[1]})
    assert loaded["x"].device == x.device and torch.equal(loaded["x"].cpu(), x.cpu())
    loaded["x"][1, 0] = 7
    assert loaded["row"][0].item() == 7


def test_map_location_both_ways():
    x = torch.randn(3, device="neuron")
    assert _round_trip(x, map_location="cpu").device.type == "cpu"
    assert _round_trip(torch.ones(3), map_location="neuron").device.type == "neuron"


def test_deepcopy_and_pickle():
    model = torch.nn.Linear(3, 2).to("neuron")
    twin = copy.deepcopy(model)
    assert twin.weight.is_neuron and torch.equal(twin.weight.cpu(), model.weight.cpu())
    assert pickle.loads(pickle.dumps(model)).weight.is_neuron
