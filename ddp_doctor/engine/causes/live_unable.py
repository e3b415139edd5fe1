"""Ranks of a job that runs which cannot run themselves: stopped, held, in the kernel, or gone."""

from collections import defaultdict
from collections.abc import Iterator

from ddp_doctor.engine.causes.judged import Judged
from ddp_doctor.engine.causes.live_named import CAUSES, Named
from ddp_doctor.model.choices import Confidence
from ddp_doctor.views.live_ranks import Doing
from ddp_doctor.wording.live_ranks import verb, waits_text
from ddp_doctor.wording.ranks import rank_list

_WELL = "exit 0"


def cannot_run(seen: Named) -> Iterator[Judged]:
    """Ranks that are stopped, held, frozen, or in the kernel, by what keeps them."""
    by_reason: dict[tuple[str, str], list[Doing]] = defaultdict(list)
    for one in seen.ranks:
        if one.kind in ("stopped", "kernel"):
            by_reason[one.kind, one.words].append(one)
    for (kind, words), ranks in by_reason.items():
        if kind == "stopped":
            yield seen.found("rank-stopped", Confidence.PROVED, ranks, ranks, how=words)
        else:
            yield seen.found("rank-in-kernel", Confidence.LIKELY, ranks, ranks, channel=words)


def gone(seen: Named) -> Iterator[Judged]:
    """Ranks that ended, by their zombies, or that the launcher must have started and are not here."""
    ended: dict[str, list[int]] = defaultdict(list)
    for one in seen.ranks:
        if one.kind == "gone":
            ended[one.words].append(one.rank)
    ended[""] += seen.job.missing
    others = [one.rank for one in seen.able]
    for how, ranks in ended.items():
        if not ranks or (how in ("", _WELL) and any(one.moves for one in seen.able)):
            continue
        values = {
            "is": verb(ranks, "are"),
            "how": f"ended by {how}" if how.startswith("SIG") else "ended without an error" * (how == _WELL) or how,
            "others": f"{rank_list(others)} {verb(others, 'are')}" if others else "",
        }
        confidence = Confidence.LIKELY if how in ("", _WELL) else Confidence.PROVED
        culprits = seen.culprits(ranks) if how != _WELL else ()
        lines = tuple(seen.lines([*(one for one in seen.ranks if one.rank in ranks), *seen.waiting]))
        detail = waits_text(seen.waiting)
        yield Judged(CAUSES["rank-gone"], confidence, lines, culprits, rank_list(ranks), detail, values)
