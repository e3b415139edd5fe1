"""Ranks in words and as culprits."""

import pytest

from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Fact, Reading
from ddp_doctor.model.recording import Node, Recording, World
from ddp_doctor.phrases.ranks import rank_culprits, ranks_in_words


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([3], "rank 3"),
        ([1, 3], "ranks 1 and 3"),
        ([0, 1, 3], "ranks 0, 1 and 3"),
        ([0, 1, 2, 3], "every rank"),
    ],
)
def test_ranks_read_as_a_person_would_say_them(ranks, words):
    assert ranks_in_words(ranks, 4) == words


def test_the_only_rank_of_a_world_is_named():
    assert ranks_in_words([0], 1) == "rank 0"


class _Seen(Fact):
    KIND = "seen/1"


def test_a_culprit_stands_on_the_node_that_read_it_else_where_its_rank_belongs():
    reading = Reading(check="seen", status=Status.COLLECTED, node=1, rank=0, fact=_Seen().recorded())
    world = World(nnodes=2, nproc_per_node=2, world_size=4, nodes=(Node(node_rank=1, hostname="gpu7"),))
    whole = Recording(world=world, readings=(reading,))
    culprits = rank_culprits(whole, _Seen, [0, 3, 1])
    assert [(one.rank, one.node, one.node_rank) for one in culprits] == [
        (0, "gpu7", 1),
        (3, "gpu7", 1),
        (1, "node rank 0", 0),
    ]


def test_without_a_world_a_culprit_has_no_host():
    culprit = rank_culprits(Recording(), _Seen, [2])[0]
    assert (culprit.rank, culprit.node, culprit.node_rank) == (2, None, None)
