"""``torch.backends.neuron``: switches that programs written for ``torch.backends.cuda`` set."""


class _Matmul:
    """f32 products are exact f32 on the simulator; the switches are kept, not acted on."""

    allow_tf32 = False
    allow_fp16_reduced_precision_reduction = False
    allow_bf16_reduced_precision_reduction = False
    fp32_precision = "ieee"


matmul = _Matmul()


def is_built() -> bool:
    return True


def is_available() -> bool:
    from torch_neuronx import neuron

    return neuron.is_available()
