"""Helper script: print which torch and NCCL are installed, without importing torch (which takes a second).

Run by path in a separate process, with -I if ddp-doctor runs isolated, so it does not import ddp_doctor. Prints one
JSON object, here with a CUDA build of torch::

    {"python": "3.11.7", "machine": "x86_64", "torch_folder": "/v/lib/python3.11/site-packages/torch",
     "torch_problem": null, "torch_version": "2.7.0+cu126", "torch_cuda": "12.6", "torch_hip": null,
     "torch_git": "1341794...", "torch_metadata_version": "2.7.0", "torch_requires_python": ">=3.9.0",
     "torch_looks_backends_up": false, "torch_backends": [],
     "torch_nccl2_switch": null, "torch_nccl2_takes_local_rank": false,
     "torch_requires": ["nvidia-nccl-cu12==2.26.2; platform_system == \"Linux\""],
     "nccl_packages": {"nvidia-nccl-cu12": "2.26.2"}, "nccl_sizes": {"nvidia-nccl-cu12": 219454696},
     "nccl_file_bytes": 219454696,
     "torch_cuda_library": "/v/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so",
     "nccl_files": ["/v/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2"]}
"""

# isort: skip_file
import os
import sys

if __name__ == "__main__":  # before importing modules that a file on PYTHONPATH may hide
    LIBRARY = os.__file__.rpartition("/")[0]
    sys.path.sort(key=lambda entry: entry not in (LIBRARY, f"{LIBRARY}/lib-dynload"))

import ast
import importlib.metadata
import importlib.util
import json
import platform
import re
from contextlib import suppress
from pathlib import Path

#: torch/version.py's names and the names they are reported under.
VERSION_NAMES = {"__version__": "torch_version", "cuda": "torch_cuda", "hip": "torch_hip", "git_version": "torch_git"}
NCCL_PACKAGES = ("nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
NCCL_FILE = "libnccl.so.2"
#: The entry points that torch 2.15 and newer uses to find every backend (distributed_c10d.py).
BACKENDS = "torch.distributed.backends"
#: torch 2.14 asks whether the switch is "1", torch 2.15 whether it is "0" (_register_builtin_nccl_backend).
NCCL2_SWITCH = re.compile(r"""["']TORCH_DIST_USE_NCCL2["']\)\s*==\s*["']([01])["']""")
#: The function of torch 2.15 that binds a group to LOCAL_RANK's GPU.
NCCL2_DEVICE = "def _nccl2_device("


def main() -> None:
    """Read and print; ``os._exit`` skips the exit hooks of a broken installation."""
    facts = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "nccl_packages": {name: version for name in NCCL_PACKAGES if (version := version_of(name))},
        **wheel_facts(),
        **torch_facts(),
    }
    print(json.dumps(facts), flush=True)  # noqa: T201  the answer to the agent
    os._exit(0)


def version_of(package: str) -> str | None:
    """Return the version in a package's metadata, or None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def wheel_facts() -> dict[str, object]:
    """Return the library's size according to each NCCL package, and the size of the file that they all write."""
    sizes: dict[str, int] = {}
    there: int | None = None
    for name in NCCL_PACKAGES:
        files: list[importlib.metadata.PackagePath] = []
        with suppress(importlib.metadata.PackageNotFoundError, OSError, ValueError):  # no RECORD, or a broken one
            files = importlib.metadata.files(name) or []
        for file in files:
            if file.name == NCCL_FILE and file.size is not None:
                sizes[name], there = file.size, None
                with suppress(OSError):
                    there = Path(str(file.locate())).stat().st_size
    return {"nccl_sizes": sizes, "nccl_file_bytes": there}


def torch_facts() -> dict[str, object]:
    """Return facts about torch from its installed files."""
    spec = importlib.util.find_spec("torch")
    if spec is None:
        return {"torch_problem": "torch is not installed for this Python"}
    if spec.origin is None:
        folders = ", ".join(spec.submodule_search_locations or ())
        return {"torch_problem": f"{folders} holds no __init__.py: torch is only partly installed"}
    if spec.submodule_search_locations is None:
        return {"torch_problem": f"{spec.origin} is found in the place of torch"}
    folder = Path(spec.origin).parent
    library = folder / "lib" / "libtorch_cuda.so"
    return {
        "torch_folder": str(folder),
        "torch_cuda_library": str(library) if library.exists() else None,
        "nccl_files": nccl_files(folder),
        **backend_facts(folder),
        **metadata_facts(),
        **version_facts(folder / "version.py"),
    }


def backend_facts(torch_folder: Path) -> dict[str, object]:
    """Return how this torch finds its backends, those in the metadata of packages, and how it treats nccl2."""
    try:
        source = (torch_folder / "distributed" / "distributed_c10d.py").read_text("utf-8", "replace")
    except OSError:
        return {}
    looks_up = BACKENDS in source
    # Reading the metadata of 91 packages took 40 ms, so it is read only if this torch reads it as well.
    offered = importlib.metadata.entry_points(group=BACKENDS) if looks_up else ()
    switch = NCCL2_SWITCH.search(source)
    return {
        "torch_looks_backends_up": looks_up,
        "torch_backends": sorted({point.name.lower() for point in offered}),
        "torch_nccl2_switch": switch[1] if switch else None,
        "torch_nccl2_takes_local_rank": NCCL2_DEVICE in source,
    }


def metadata_facts() -> dict[str, object]:
    """Return the requirements in torch's package metadata, or {} if torch was built in place."""
    try:
        torch = importlib.metadata.distribution("torch")
    except importlib.metadata.PackageNotFoundError:
        return {}
    return {
        "torch_metadata_version": torch.version,
        "torch_requires_python": (torch.metadata.get_all("Requires-Python") or [None])[0],
        "torch_requires": [demand for demand in torch.requires or () if "nccl" in demand],
    }


def version_facts(file: Path) -> dict[str, object]:
    """Return the constants of torch/version.py, read as text and never run."""
    try:
        tree = ast.parse(file.read_text("utf-8", "replace"))
    except (OSError, SyntaxError, ValueError) as error:
        return {"torch_problem": f"{file} cannot be read: {error}"}
    found: dict[str, object] = {}
    for statement in tree.body:  # name = value, name: type = value
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Constant):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            if isinstance(target, ast.Name) and target.id in VERSION_NAMES:
                found[VERSION_NAMES[target.id]] = statement.value.value
    if not found.get("torch_version"):
        return {"torch_problem": f"{file} names no version"}
    return found


def nccl_files(torch_folder: Path) -> list[str]:
    """Return copies of libnccl: next to torch as the wheels put it, in torch itself, then in LD_LIBRARY_PATH."""
    folders = [torch_folder.parent / "nvidia" / "nccl" / "lib", torch_folder / "lib"]
    folders += [Path(name) for name in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if name]
    return [str(folder / NCCL_FILE) for folder in folders if (folder / NCCL_FILE).exists()]


if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
    main()
