"""Makes the source tree importable in place: links the built libraries into the package and writes
the metadata (entry points) that torch's autoload looks for.

Usage: python tools/dev_install.py BUILD_DIR
"""

import pathlib
import sys
import sysconfig

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENTRY_POINTS = """[torch.backends]
torch_neuronx = torch_neuronx:_autoload

[torch_dynamo_backends]
neuron = torch_neuronx.neuron_dynamo_backend.backend:neuron_backend
"""


def main() -> None:
    libraries = sorted((pathlib.Path(sys.argv[1]).resolve() / "lib").glob("*.so"))
    if not libraries:
        sys.exit(f"no libraries in {sys.argv[1]}/lib; build first")
    package = ROOT / "python" / "torch_neuronx"
    for library in libraries:
        link = package / library.name
        link.unlink(missing_ok=True)
        link.symlink_to(library)
    site = pathlib.Path(sysconfig.get_paths()["purelib"])
    (site / "torch_neuronx_dev.pth").write_text(f"{ROOT / 'python'}\n")
    info = site / "torch_neuronx-0.1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-neuronx\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (info / "RECORD").write_text("")


if __name__ == "__main__":
    main()
