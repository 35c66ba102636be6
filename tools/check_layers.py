"""Checks that includes follow the layers: each folder of neuron/ may use only what is listed here.

Exit status 1 and one line per offence if not.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAY_USE = {
    "base": set(),
    "hlo": {"base"},
    "target": {"base"},
    "nrt": {"base"},
    "neff": {"base", "target"},
    "lowering": {"base", "hlo", "neff"},
    "compiler": {"base", "hlo", "target", "neff"},
    "compiler/cpu": {"base", "hlo", "target", "neff", "compiler"},
    "nrt/conformance": {"base", "neff", "nrt", "hlo/ops.def"},
    "nrtsim": {"base", "target", "neff", "nrt/nrt.h", "nrt/status.def", "hlo/ops.def"},
    "runtime": {
        "base",
        "hlo",
        "compiler",
        "nrt",
        "neff",
        "target",
        "nrtsim/library.h",
        "nrtsim/comm.h",
    },
    "aten": {"base", "hlo", "lowering", "runtime", "neff", "nrtsim/library.h"},
    "c10d": {"base", "hlo", "lowering", "runtime", "aten"},
    "dynamo": {"base", "hlo", "lowering", "runtime", "aten"},
    "bindings": {"base", "hlo", "lowering", "runtime", "aten", "c10d", "dynamo"},
}
TORCH_LAYERS = {"aten", "c10d", "dynamo", "bindings"}
TORCH = re.compile(r'#include\s*[<"](torch|ATen|c10|torchgen)/')
LLVM = re.compile(r'#include\s*[<"]llvm/')
OWN = re.compile(r'#include\s*"neuron/([^"]+)"')


def layer_of(path: str) -> str:
    folder = path.rsplit("/", 1)[0]
    return folder if folder in ("compiler/cpu", "nrt/conformance") else folder.split("/")[0]


def main() -> int:
    offences = []
    for file in sorted((ROOT / "neuron").rglob("*")):
        if file.suffix not in (".h", ".cpp", ".c"):
            continue
        relative = file.relative_to(ROOT / "neuron").as_posix()
        layer = layer_of(relative)
        allowed = MAY_USE.get(layer, set())
        is_test = relative.endswith(("_test.cpp", "_test.h")) or "/testing/" in relative
        for number, line in enumerate(file.read_text().splitlines(), 1):
            where = f"neuron/{relative}:{number}"
            if TORCH.search(line) and layer not in TORCH_LAYERS:
                offences.append(f"{where}: torch header in layer {layer}")
            if "torch/extension.h" in line and "#include" in line:
                offences.append(f"{where}: torch/extension.h is too dear; use narrower headers")
            if LLVM.search(line) and layer != "compiler/cpu":
                offences.append(f"{where}: LLVM header in layer {layer}")
            if (
                re.search(r"\b(std::)?getenv\(", line)
                and relative != "base/env.cpp"
                and not is_test
            ):
                offences.append(f"{where}: environment read outside base/env.cpp")
            match = OWN.search(line)
            if match and not is_test:
                used = match.group(1)
                if (
                    layer_of(used) != layer
                    and layer_of(used) not in allowed
                    and used not in allowed
                ):
                    offences.append(f"{where}: {layer} may not use {used}")
    print("\n".join(offences) if offences else "layers: ok")
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
