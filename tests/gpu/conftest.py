"""Tests of this directory run if a GPU is available; otherwise they are skipped with the reason."""

import shutil
import subprocess

import pytest

from tests.waiting import LIMIT_S


@pytest.fixture(autouse=True, scope="session")
def gpu() -> None:
    if shutil.which("nvidia-smi") is None:
        pytest.skip("needs an NVIDIA GPU: nvidia-smi is not installed here")
    listing = subprocess.run(("nvidia-smi", "-L"), check=False, capture_output=True, text=True, timeout=LIMIT_S)
    if "GPU 0" not in listing.stdout:
        pytest.skip(f"needs an NVIDIA GPU: {listing.stdout or listing.stderr}")
