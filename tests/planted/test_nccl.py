"""The real NCCL on simulated GPUs: ddp-doctor's predictions compared with NCCL, and faults in NCCL's messages.

Nothing here was seen on a GPU. ``make planted`` runs these tests, ``make planted-all`` all machines, faults and
releases.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import comb
from pathlib import Path

import pytest

from tests.machines import servers
from tests.nccl_wheels import libnccl
from tests.planted import why_none, why_not_before
from tests.planted.faults import FAULTS, USAGE, WELL, Fault, end
from tests.planted.graph import SPEAKS, decided
from tests.planted.machines import MACHINES, Kind, compared, predicted
from tests.planted.real import REAL_TWO_A100, two_a100
from tests.planted.world import Machines
from tests.waiting import LIMIT_S

pytestmark = [pytest.mark.planted, pytest.mark.timeout(600)]

#: Bundled with torch 2.9 and 2.10, and the newest: from 2.32 on warnings name their function.
RELEASES = ("2.27.5", "2.32.3")
#: Those whose end is NCCL's own and certain.
NAMES = (
    "a rank is missing",
    "another world size on one rank",
    "two ranks on one GPU",
    "one rank sees no GPU",
    "NCCL_SOCKET_IFNAME names no interface",
    "NCCL_ALGO is no algorithm",
    "NCCL_NET=IB and NCCL_IB_HCA names no adapter",
    "NCCL_BUFFSIZE with a unit",
    "NCCL_MAX_NCHANNELS on one rank",
    "no memory can be registered",
)


def skip_where_none_can_be_planted() -> None:
    """Skip in manual runs; continuous integration fails for each of the reasons."""
    if reason := why_none():
        pytest.skip(reason)


def nccl(release: str) -> Path:
    """Return the libnccl of a release; skips if no GPU can be simulated for it."""
    skip_where_none_can_be_planted()
    library = libnccl(release)
    if reason := why_not_before(library):
        pytest.skip(reason)
    return library


@pytest.fixture(scope="module")
def hosts() -> Iterator[dict[int, Machines]]:
    skip_where_none_can_be_planted()
    kind = next(kind for kind in MACHINES if kind.name == "two DGX H100")
    with Machines(kind.build()[:1]) as one, Machines(kind.build()) as two:
        yield {1: one, 2: two}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.name in NAMES], ids=lambda fault: fault.name)
def test_nccl_reacts_to_a_fault_as_in_the_table(hosts: dict[int, Machines], fault: Fault, release: str):
    says, ends = fault.seen_by(release)

    ran = hosts[fault.hosts].run(nccl(release), 2, **fault.how)

    assert [bool(re.fullmatch(of, end(code))) for of, code in zip(ends, ran.codes, strict=True)] == [True, True], ran
    if says:
        assert ran.lines(says)
    else:
        assert ran.lines("NCCL WARN") == ()


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("kind", [kind for kind in MACHINES if kind.ranks <= 8], ids=lambda kind: kind.name)
def test_nccl_uses_the_transports_that_ddp_doctor_predicts(kind: Kind, release: str):
    library = nccl(release)
    machines = kind.build()
    with Machines(machines) as planted:
        ran = planted.run(library, kind.ranks, env=SPEAKS)

    assert set(ran.codes) == {0}
    asked, differ = compared(machines, predicted(machines, release), ran)
    pairs = len(machines) * comb(kind.ranks // len(machines), 2)
    assert asked["transport"] + asked["transport, unsure"] == pairs
    assert differ == []


def test_two_simulated_a100_equal_two_real_ones_for_nccl():
    library = nccl("2.27.5")
    with Machines([two_a100()]) as planted:
        ran = planted.run(library, 2, env=SPEAKS)

    found = decided(ran.said[0])
    assert replace(found, chosen=()) == REAL_TWO_A100


@pytest.fixture(scope="module")
def sliced() -> Iterator[Machines]:
    skip_where_none_can_be_planted()
    with Machines([servers.mig()]) as planted:
        yield planted


def _slice(gpu: int, number: int) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": f"MIG-5e7d000{gpu}-0000-4000-8000-00000000000{number}"}


#: From 2.30 on NCCL tells slices by their UUID, before by the address of their GPU.
ONE_GPU = r"Duplicate GPU detected|Multiple Ranks are using the same GPU/Partition"


@pytest.mark.parametrize(
    ("slices", "refused_by"),
    [
        ((), RELEASES),  # each process is shown the first slice
        ((_slice(0, 0), _slice(0, 1)), RELEASES[:1]),
        ((_slice(0, 0), _slice(1, 0)), ()),
    ],
    ids=["nothing chosen", "slices of one GPU", "slices of two GPUs"],
)
@pytest.mark.parametrize("release", RELEASES)
def test_nccl_uses_slices_that_it_can_distinguish(
    sliced: Machines, slices: Sequence[dict[str, str]], refused_by: Sequence[str], release: str
):
    ran = sliced.run(nccl(release), 2, of=dict(enumerate(slices)), devices=(0, 0))

    refused = release in refused_by
    assert [end(code) for code in ran.codes] == [USAGE if refused else WELL] * 2, ran
    assert bool(ran.lines(ONE_GPU)) is refused


#: A stand-in for libnccl in rank.py, with a function of the runtime that NVIDIA may have added recently.
NEWER = """
__attribute__((noipa)) static int cudaFree(volatile int *at) { return *at + at[1] * at[2] - at[3]; }
__attribute__((noipa)) static int cudaOfTomorrow(volatile int *at) { return *at + at[1] * at[2] - at[4]; }
const char *ncclGetErrorString(int code) { return code ? "failed" : "no error"; }
const char *ncclGetLastError(void *communicator) { return communicator; }
int ncclGetUniqueId(void *id) { return cudaOfTomorrow(id) ? 1 : cudaFree(0); }
"""


def test_function_that_is_not_simulated_fails_the_test_with_its_name(hosts: dict[int, Machines], tmp_path: Path):
    (tmp_path / "newer.c").write_text(NEWER)
    library = tmp_path / "libnccl.so.2"
    subprocess.run(("cc", "-shared", "-fPIC", "-O1", tmp_path / "newer.c", "-o", library), check=True, timeout=LIMIT_S)

    with pytest.raises(AssertionError, match="planted: cudaOfTomorrow is not planted"):
        hosts[1].run(library, 1)
