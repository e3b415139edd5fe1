"""Entries of torch's flight recorder for real collectives, read as the witness of a rank reads them."""

import json
from dataclasses import dataclass

import pytest

from ddp_doctor.model.trial import FlightEntry
from ddp_doctor.ranks.worker.torch_private import flight_entries
from tests.rank_harness import HarnessContext, Ranks
from tests.waiting import wait_until

pytestmark = [pytest.mark.ranks, pytest.mark.torches("the flight recorder")]


@dataclass(frozen=True)
class Recorded:
    """The entries that one rank read, and torch's full names; ``names`` is None without such a record."""

    recorder: str | None
    entries: list[FlightEntry]
    names: tuple[str, ...] | None


def two_collectives(ctx: HarnessContext) -> Recorded:
    import torch
    import torch.distributed as dist
    from torch._C import _distributed_c10d as c10d

    dist.all_reduce(torch.ones(8), group=ctx.group)
    dist.broadcast(torch.ones(2, 3), src=0, group=ctx.group)
    dump = getattr(c10d, "_dump_fr_trace_json", None)
    names = tuple(entry["profiling_name"] for entry in json.loads(dump())["entries"]) if dump else None
    # gloo's thread may retire an entry a moment after the caller has its result.
    wait_until(lambda: all(entry.retired for entry in flight_entries("gloo")[1]))
    assert flight_entries("nccl") == (None, [])  # gloo's entries are not in another backend's
    return Recorded(*flight_entries("gloo"), names)


@pytest.fixture(scope="module")
def recorded() -> list[Recorded]:
    with Ranks(2, preload=(__name__,)) as ranks:
        found = ranks.facts(two_collectives)
    if all(rank.names is None for rank in found):
        assert [rank.entries for rank in found] == [[], []]
        pytest.skip("this torch records no collective of gloo, so there are no entries, and no error")
    return found


def test_finished_collectives_are_listed_in_order_and_retired(recorded):
    for rank in recorded:
        first, second = rank.entries[-2:]
        assert (first.op, first.sizes, first.dtypes, first.retired) == ("all_reduce", ((8,),), ("Float",), True)
        assert (second.op, second.sizes, second.retired) == ("broadcast", ((2, 3),), True)
        assert second.seq == first.seq + 1


def test_entries_belong_to_the_backend_in_use(recorded):
    for rank in recorded:
        assert rank.names is not None
        assert rank.recorder == "gloo"
        assert rank.names[-2:] == ("gloo:all_reduce", "gloo:broadcast")
        assert [f"gloo:{entry.op}" for entry in rank.entries] == list(rank.names[-len(rank.entries) :])
