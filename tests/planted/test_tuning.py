"""The table that expected bandwidths are read from is what NCCL prints, and what NCCL takes follows from it."""

from __future__ import annotations

import csv

import pytest

from ddp_doctor.knowledge.network.expected_speed import TABLE
from tests.planted import at_random
from tests.planted.test_nccl import nccl
from tests.planted.tuning import KINDS, RELEASES, SIZES, choices, rows
from tests.planted.world import Machines

pytestmark = [pytest.mark.planted, pytest.mark.timeout(600)]


@pytest.mark.parametrize("at", [5, 6], ids=lambda at: KINDS[at].gpu)
def test_committed_table_equals_the_output_of_nccl(at: int):
    for release in RELEASES:
        nccl(release)
    kind = KINDS[at]
    with TABLE.open(newline="") as lines:
        kept = [row for row in csv.DictReader(lines) if (row["gpu"], row["link"]) == (kind.gpu, kind.link)]

    printed = [{column: str(row.get(column, "")) for column in kept[0]} for row in rows(kind)]

    assert sorted(printed, key=str) == sorted(kept, key=str)


@pytest.mark.parametrize("release", RELEASES[1:])  # the first release does not report its choice
@pytest.mark.parametrize("number", [0, 1], ids=["two hosts", "one host"])
def test_nccl_uses_the_algorithm_that_follows_from_its_table(number: int, release: str):
    nccl(release)
    machines, ranks = at_random.hosts(number)

    with Machines(machines) as planted:
        found = list(choices(planted, release, ranks // len(machines)))

    assert [choice.size_bytes for choice in found] == list(SIZES)
    assert [choice for choice in found if choice.ours != choice.nccls] == []
