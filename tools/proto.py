"""Generate the Python stubs of the control plane from `proto/control.proto`; with `--check`, only compare them."""

import sys
from pathlib import Path
from subprocess import run
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
PACKAGE = "shoal/fleet/wire"  # the import path of the stubs, which is also the path of the file for protoc
TARGET = ROOT / "src" / PACKAGE


def generate(folder: Path) -> dict[str, bytes]:
    """Run protoc; return the generated files by name."""
    binaries = Path(sys.executable).parent
    options = [f"-I{PACKAGE}={ROOT / 'proto'}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    plugins = [f"--plugin=protoc-gen-{kind}={binaries / f'protoc-gen-{kind}'}" for kind in ("mypy", "mypy_grpc")]
    typed = [f"--mypy_out=quiet:{folder}", f"--mypy_grpc_out=quiet:{folder}"]
    run(
        [sys.executable, "-m", "grpc_tools.protoc", *options, *plugins, *typed, f"{PACKAGE}/control.proto"],
        check=True,
        cwd=ROOT,
    )
    return {path.name: path.read_bytes() for path in sorted((folder / PACKAGE).iterdir())}


def main() -> None:
    with TemporaryDirectory() as folder:
        fresh = generate(Path(folder))
    stale = [name for name, text in fresh.items() if not _is_same(TARGET / name, text)]
    if "--check" in sys.argv[1:]:
        if stale:
            sys.exit(f"out of date: {', '.join(stale)}; run `make proto`")
        return
    for name in stale:
        (TARGET / name).write_bytes(fresh[name])
        print(f"wrote {(TARGET / name).relative_to(ROOT)}")


def _is_same(path: Path, text: bytes) -> bool:
    return path.exists() and path.read_bytes() == text


if __name__ == "__main__":
    main()
