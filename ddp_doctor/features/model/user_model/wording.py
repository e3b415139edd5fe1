"""Ranks, lines and names in the findings about the user's model."""

from collections.abc import Iterable, Sequence

from ddp_doctor.features.model.user_model.facts import Call, UserModel
from ddp_doctor.features.model.user_model.names import Names
from ddp_doctor.model.finding import Culprit, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.wording.nodes import and_more, name_list
from ddp_doctor.wording.ranks import rank_culprits, rank_of, ranks_at, short

#: Maximum number of names in a title.
_IN_A_TITLE = 4


def facts(recording: Recording) -> list[FactAt[UserModel]]:
    """Return the facts of all ranks, in the order of the ranks."""
    return sorted(recording.facts(UserModel), key=lambda ranks: ranks.rank or 0)


def on_ranks(recording: Recording, ranks: Iterable[FactAt[UserModel]]) -> str:
    """Return the ranks for a sentence: ``every rank``, ``rank 1``."""
    return ranks_at(recording, [rank_of(rank) for rank in ranks])


def culprits(recording: Recording, ranks: Sequence[FactAt[UserModel]]) -> tuple[Culprit, ...]:
    """Return the ranks as culprits; () if all are affected, because then no rank is the cause."""
    if not ranks or len(ranks) >= ranks[0].fact.world_size > 1:
        return ()
    return rank_culprits(recording, UserModel, [rank_of(rank) for rank in ranks])


def minority(recording: Recording, ranks: Sequence[FactAt[UserModel]]) -> tuple[Culprit, ...]:
    """Return the ranks as culprits if they are fewer than half, because otherwise the other ranks may be wrong."""
    return culprits(recording, ranks) if 2 * len(ranks) < ranks[0].fact.world_size else ()


def code(*names: str) -> tuple[Culprit, ...]:
    """Return lines or names of the user's code as culprits, without empty ones."""
    return tuple(Culprit(kind="file", name=name) for name in names if name)


def none_due(text: str, count: int, source: str | None = None) -> Evidence:
    """Return evidence with the count of something that should not exist."""
    return Evidence(text=text, value=float(count), expected=0.0, expected_from=source)


def named(text: str, some: Names) -> Evidence:
    """Return evidence with names and their count."""
    return Evidence(text=f"{text} {names(some)}", value=float(some.count))


def names(some: Names) -> str:
    """Return ``head.weight and head.bias``, ``head.weight, head.bias and 12 more``."""
    shown = some.names[:_IN_A_TITLE]
    left = some.count - len(shown)
    return ", ".join(shown) + and_more(left) if left > 0 else name_list(shown)


def at(where: str) -> str:
    """Return `` at net.py:31``, or ""."""
    return f" at {short(where)}" if where else ""


def calls(call: Call | None) -> str:
    """Return ``calls head at net.py:31``."""
    return f"calls {call.module}{at(call.where)}" if call is not None else "makes no further call"
