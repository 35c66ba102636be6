"""Shapes of fake tensors, where torch's Meta functions and the kernels of ``neuron`` disagree.

torch.compile and torch.export see them; eager calls take theirs from neuron/aten/shape_functions*.
"""

import torch


def prepare() -> None:
    from torch._subclasses.fake_impls import register_op_impl

    _keep_convolution_formats()
    register_op_impl(torch.ops.aten._thnn_fused_lstm_cell.default)(_lstm_cell)


def _lstm_cell(mode, operator, input_gates, hidden_gates, cx, *biases):
    """torch's Meta function does not take cells without biases."""
    if cx.device.type != "neuron":
        return NotImplemented
    with mode:
        return (
            cx.new_empty(cx.shape),
            cx.new_empty(cx.shape),
            torch.empty_like(input_gates, memory_format=torch.contiguous_format),
        )


def _keep_convolution_formats() -> None:
    """Fake convolutions ask torch for their results' layout; ours keep channels_last."""
    plain = torch._C._conv_determine_backend_memory_format

    def determine(input, weight, backend):
        if input.device.type != "neuron":
            return plain(input, weight, backend)
        layouts = [torch._prims_common.suggest_memory_format(x) for x in (input, weight)]
        return layouts[0] if layouts[0] != torch.contiguous_format else layouts[1]

    torch._C._conv_determine_backend_memory_format = determine
