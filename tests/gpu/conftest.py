"""Tests of this folder run where a GPU is to be had; elsewhere they say so."""

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
