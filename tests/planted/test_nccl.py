"""The real NCCL among planted GPUs: what the doctor predicts against what NCCL does, and faults in NCCL's own words.

Nothing here was seen on a GPU. ``make planted`` runs these, ``make planted-all`` all machines, faults and releases.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import pytest

from tests.lab.hosts import why_no_lab
from tests.nccl_wheels import libnccl
from tests.planted.faults import FAULTS, Fault, end
from tests.planted.graph import SPEAKS, decided
from tests.planted.machines import MACHINES, Kind, compared, predicted
from tests.planted.real import REAL_TWO_A100, two_a100
from tests.planted.world import Machines

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
    """The jumps of redirect.c are those of x86_64."""
    foreign = None if platform.machine() == "x86_64" else f"no GPU can be planted on {platform.machine()}"
    if reason := foreign or why_no_lab():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def hosts() -> Iterator[dict[int, Machines]]:
    """One DGX H100, and two of them."""
    skip_where_none_can_be_planted()
    kind = next(kind for kind in MACHINES if kind.name == "two DGX H100")
    with Machines(kind.build()[:1]) as one, Machines(kind.build()) as two:
        yield {1: one, 2: two}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if fault.name in NAMES], ids=lambda fault: fault.name
)
def test_nccl_meets_a_fault_as_the_table_has_it(hosts: dict[int, Machines], fault: Fault, release: str):
    says, ends = fault.seen_by(release)

    ran = hosts[fault.hosts].run(libnccl(release), 2, **fault.how)

    assert ran.lines("is not planted") == ()
    assert [bool(re.fullmatch(of, end(code))) for of, code in zip(ends, ran.codes, strict=True)] == [
        True,
        True,
    ], ran
    if says:
        assert ran.lines(says)
    else:
        assert ran.lines("NCCL WARN") == ()


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("kind", [kind for kind in MACHINES if kind.ranks <= 8], ids=lambda kind: kind.name)
def test_nccl_takes_between_gpus_what_the_doctor_predicts(kind: Kind, release: str):
    skip_where_none_can_be_planted()
    machines = kind.build()
    with Machines(machines) as planted:
        ran = planted.run(libnccl(release), kind.ranks, env=SPEAKS)

    assert set(ran.codes) == {0}
    assert ran.lines("is not planted") == ()
    asked, differ = compared(machines, predicted(machines, release), ran)
    assert asked["transport"] == asked["rate"] == len(list(combinations(range(kind.ranks), 2)))
    assert differ == []


def test_two_planted_a100_are_to_nccl_what_two_real_ones_were():
    skip_where_none_can_be_planted()
    with Machines([two_a100()]) as planted:
        ran = planted.run(libnccl("2.27.5"), 2, env=SPEAKS)

    found = decided(ran.said[0])
    assert replace(found, chosen=()) == REAL_TWO_A100
