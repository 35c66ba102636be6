"""Runs collectives.mlir (see hlo_print_samples) on four CPU devices of XLA; exits 1 if a result is
not what the collective means."""

import os
import pathlib
import re
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import numpy as np
from jax._src.interpreters import mlir
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib import xla_client

DEVICES = 4


def expected(x):
    """Results by device, in the order of the module's."""
    first, second = (0, 1), (2, 3)
    rows = {0: first, 1: first, 2: second, 3: second}
    for device in range(DEVICES):
        row = rows[device]
        at = row.index(device)
        source = {1: 0, 0: 1, 3: 2}.get(device)
        yield [
            sum(x[d] for d in row),
            np.concatenate([x[d] for d in row], axis=1),
            np.max(x, axis=0)[device : device + 1],
            np.concatenate([np.split(x[d], 2, axis=1)[at] for d in row], axis=0),
            np.zeros_like(x[0]) if source is None else x[source],
            np.abs(x[device]),
        ]


def main(path):
    # Ids name partitions of one replica; XLA runs such programs only through its own partitioner.
    # As replicas of one partition they have the same numbers, which for ops without
    # use_global_device_ids takes the channel away.
    text = pathlib.Path(path).read_text()
    with mlir.make_ir_context():
        assert mlir.ir.Module.parse(text).operation.verify()
    # XLA's CPU client has no collective_broadcast: what follows leaves it out.
    text = re.sub(
        r'"stablehlo.collective_broadcast"\(%arg0\) <{.*}>', '"stablehlo.abs"(%arg0)', text
    )
    lines = [
        line
        if "use_global_device_ids" in line
        else re.sub(
            r"channel_handle = #\S+ = \d+, \S+ = 1>"
            r"(, )?",
            "",
            line,
        )
        for line in text.splitlines()
    ]
    text = "\n".join(lines).replace(
        "module @program {",
        "module @program attributes {mhlo.num_partitions = 1 : i32, "
        f"mhlo.num_replicas = {DEVICES} : i32}} {{",
        1,
    )
    devices = jax.devices("cpu")
    options = xla_client.CompileOptions()
    build = options.executable_build_options
    build.num_replicas, build.num_partitions = DEVICES, 1
    build.device_assignment = xla_client.DeviceAssignment.create(np.arange(DEVICES).reshape(-1, 1))
    executable = devices[0].client.compile_and_load(
        text.encode(), xla_client._xla.DeviceList(tuple(devices)), options
    )
    x = np.arange(DEVICES * 24, dtype=np.float32).reshape(DEVICES, 4, 6)
    x = np.sin(x) * 8
    sharding = NamedSharding(Mesh(np.array(devices), ("d",)), PartitionSpec("d"))
    whole = jax.device_put(x.reshape(DEVICES * 4, 6), sharding)
    outputs = executable.execute_sharded([whole]).disassemble_into_single_device_arrays()
    wrong = 0
    for device, results in enumerate(expected(x)):
        for k, result in enumerate(results):
            got = np.asarray(outputs[k][device])
            if got.shape != result.shape or not np.allclose(got, result, rtol=1e-6):
                print(f"device {device}, result {k}:\n{got}\ninstead of\n{result}")
                wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
