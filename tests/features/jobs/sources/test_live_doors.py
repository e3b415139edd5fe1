"""Data sources of a running job: which of its ports is NCCL's RAS."""

import os
import socket
from collections.abc import Iterator

import pytest

from ddp_doctor.features.jobs.sources.live_doors import ras_port
from ddp_doctor.features.jobs.sources.live_process import Candidate


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def rank(**env: str) -> Candidate:
    """Return this process as a rank. The backend nccl2 of torch 2.15 gives its threads no names."""
    return Candidate(os.getpid(), 1, 1, {"RANK": "0", **env}, {1: "python"}, ["python"])


def test_ras_port_is_found_without_named_nccl_threads(port: int):
    assert ras_port([rank(NCCL_RAS_ADDR=f"localhost:{port}")]) == port


def test_port_of_the_jobs_store_is_not_mistaken_for_ras(port: int):
    assert ras_port([rank(NCCL_RAS_ADDR=f"localhost:{port}", MASTER_PORT=str(port))]) is None
