"""Trials of remedies as a head may order them that is mistaken, of another release, or no head at all."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.checks.collectives import nccl_diagnostics
from ddp_doctor.engine.node_run.groups import run_own_group
from ddp_doctor.knowledge.deadlines import FIRST_NCCL_S
from ddp_doctor.model.finding import Reproducer, Setting
from ddp_doctor.model.recording import Node, Options, World
from ddp_doctor.model.trial import TrialRecord
from ddp_doctor.ranks.environment import Refused
from ddp_doctor.ranks.forkserver import ForkServer
from ddp_doctor.ranks.node_ranks import NodeRanks, Run

MEET = Reproducer(kind="meet")
MIB = 1 << 20


@pytest.fixture
def node_ranks(tmp_path: Path) -> Iterator[NodeRanks]:
    """Yield the ranks of a node that has not started any process; a test that reaches a fork fails."""
    world = World(nnodes=2, nproc_per_node=2, world_size=4, nodes=(Node(hostname="a"), Node(hostname="b")))
    server = ForkServer(tmp_path, {})
    yield NodeRanks(Run(Options(), {}, print, world, node=1), tmp_path, server, ("127.0.0.1", 1))
    assert list(tmp_path.iterdir()) == []


def ordered(**more: Any) -> TrialRecord:
    fields = {"trial": "t3", "ranks": (0, 1, 2, 3), "reproducer": MEET, "limit_s": 6.0}
    return TrialRecord(**{**fields, **more})


def exchange(*ranks: int) -> dict[str, Any]:
    return {"ranks": ranks, "reproducer": Reproducer(kind="exchange", ranks=ranks, size_bytes=MIB)}


def moves(size_bytes: int) -> dict[str, Any]:
    return {"reproducer": Reproducer(kind="all_reduce", size_bytes=size_bytes)}


@pytest.mark.parametrize(
    ("order", "why"),
    [
        *(({"limit_s": limit_s}, "time limit") for limit_s in (1e9, -1.0, 0.0, math.nan, math.inf)),
        ({"limit_s": None}, "time limit"),
        *(({"ranks": ranks}, "ranks") for ranks in ((), (0, 4), (-1, 0), (0, 0), tuple(range(100)))),
        *((moves(size), "bytes") for size in (10**15, 0, -1)),
        *((exchange(*ranks), "two ranks") for ranks in ((2,), (0, 1, 2))),
    ],
)
def test_invalid_trial_is_refused_with_a_sentence_before_it_starts(node_ranks, order, why):
    with pytest.raises(Refused, match=why):
        node_ranks.run_trial(ordered(**order), ())


@pytest.mark.parametrize(
    "order", [{"limit_s": 5.0}, {"settings": (Setting(name="NCCL_NET", value="IB"),), "limit_s": None}]
)
def test_limit_or_settings_of_a_trial_without_a_remedy_are_refused(node_ranks, order):
    with pytest.raises(Refused, match="does not try a fix"):
        node_ranks.run_trial(ordered(reproducer=None, **order), ())


@pytest.mark.parametrize("limit_s", [None, 0.0, FIRST_NCCL_S + 1, math.nan])
def test_separate_check_has_its_own_limit_and_no_other(node_ranks, limit_s):
    with pytest.raises(Refused, match="a time limit"):
        node_ranks.run_trial(ordered(reproducer=None, limit_s=limit_s), (nccl_diagnostics.CHECK,))


@pytest.mark.parametrize(
    ("groups", "more"),
    [(((1, 1),), {}), (((0,), (0, 1)), {}), (((1, 2),), {}), (((0, 1),), {"reproducer": None, "limit_s": None})],
)
def test_overlapping_or_invalid_groups_and_groups_without_a_remedy_are_refused(node_ranks, groups, more):
    group: Any = None  # refused before it is used
    with pytest.raises(Refused, match="do not match the nodes"):
        run_own_group(node_ranks, group, ordered(**more), groups)


@pytest.mark.parametrize("value", ["a\0b", "eth0\nLD_PRELOAD=/tmp/x.so", "\x1b[2J", "a" * 5000])
def test_a_value_that_no_setting_needs_is_refused(node_ranks, value):
    with pytest.raises(Refused, match="GLOO_SOCKET_IFNAME"):
        node_ranks.run_trial(ordered(settings=(Setting(name="GLOO_SOCKET_IFNAME", value=value),)), ())


@pytest.mark.parametrize("name", ["LD_PRELOAD", "NCCL_NET_PLUGIN", "PATH", "PET_LOCAL_ADDR\n", "\x1b[2J"])
def test_a_variable_that_no_trial_sets_is_refused_in_plain_words(node_ranks, name):
    with pytest.raises(Refused, match="tests must not set") as refused:
        node_ranks.run_trial(ordered(settings=(Setting(name=name, value="/tmp/x"),)), ())

    assert str(refused.value).isprintable()
