"""Runs PyTorch's own operator samples on the device, so that TORCH_NEURONX_DUMP collects programs.

Usage: run_operators.py SAMPLES DTYPE...
"""

import contextlib
import sys
import warnings

import torch
from torch.testing._internal.common_methods_invocations import op_db

DEVICE = "neuron"


def to_device(sample):
    return sample.transform(lambda t: t.to(DEVICE) if isinstance(t, torch.Tensor) else t)


def run(op, dtype, count):
    needs_grad = dtype in op.backward_dtypes
    with contextlib.suppress(Exception):  # tests/ops judges what fails.
        samples = list(op.sample_inputs("cpu", dtype))[:count]
        for sample in samples:
            sample = to_device(sample)
            leaves = []

            def require(t, leaves=leaves):
                if isinstance(t, torch.Tensor) and t.is_floating_point():
                    leaves.append(t.detach().requires_grad_())
                    return leaves[-1]
                return t

            if needs_grad and op.supports_autograd:
                sample = sample.transform(require)
            result = op(sample.input, *sample.args, **sample.kwargs)
            if leaves:
                first = result if isinstance(result, torch.Tensor) else result[0]
                first.sum().backward()


def main():
    warnings.filterwarnings("ignore")
    count = int(sys.argv[1])
    for op in op_db:
        for name in sys.argv[2:]:
            dtype = getattr(torch, name)
            if dtype in op.dtypes:
                run(op, dtype, count)
    torch.neuron.synchronize()


if __name__ == "__main__":
    main()
