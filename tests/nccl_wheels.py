"""The real libnccl out of NVIDIA's wheels, each fetched once and kept in build/nccl (1.5 GB) until `make clean`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.once import once

#: Bundled with torch 2.5 and 2.6, 2.9 and 2.10, and 2.13; the newest that the table of variables knows. Each costs
#: continuous integration half a minute.
RELEASES = ("2.21.5", "2.27.5", "2.30.7", "2.32.3")

_KEPT = Path(__file__).parent.parent / "build/nccl"
_LIBRARY = "nvidia/nccl/lib/libnccl.so.2"


def libnccl(release: str) -> Path:
    """Return the library of a release; skips without enough space or without a package index."""
    return once(release, lambda folder: _download(release, folder), within=_KEPT) / _LIBRARY


def _download(release: str, folder: Path) -> None:
    if shutil.disk_usage(folder).free < 2 * 10**9:
        pytest.skip("needs 2 GB of disk for NVIDIA's wheel")
    package = f"nvidia-nccl-cu12=={release}"
    options = ("-q", "--no-deps", "--no-cache-dir", "--dest", folder)
    command = (sys.executable, "-m", "pip", "download", *options, package)
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip(f"needs a package index with {package}")
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder, [name for name in packed.namelist() if name == _LIBRARY or ".dist-info/" in name])
    wheel.unlink()
