"""DD757, DD758, DD759: random numbers that differ where they must agree, or agree where they should differ."""

from collections.abc import Iterator

from ddp_doctor.checks.ddp.data_sharding.wording import SEED_BY_RANK, WHICH_SAMPLER, Facts, by_rank, draft
from ddp_doctor.facts.ddp.data_sharding import DataSharding, Stream
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.differences import Split, split
from ddp_doctor.wording.ranks import ranks_at

#: torch seeds itself with 64 random bits; below this somebody chose (by chance once in four thousand million).
_CHOSEN_BELOW = 2**32


@rule("DD757", "one-seed-gives-different-numbers", Severity.ERROR, DataSharding)
def one_seed_gives_different_numbers(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        Ranks that draw different random numbers after the same seed. torch's own numbers decide on the order
        of the data; for those of Python's ``random`` and of numpy it is a warning.

    Why it matters
        DistributedSampler relies on it: each rank works out the whole order for itself. With another order
        on one rank, shards overlap and leave samples out.

    Remedy
        Compare the versions of torch, Python and numpy between the ranks' nodes, and look for code that
        replaces ``torch.manual_seed``.

    References
        https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    for source, drawn in _sources(by_rank(recording)).items():
        parts = _parts({rank: stream.common for rank, stream in drawn.items()})
        if parts is None:
            continue
        found = draft(
            recording,
            f"The same seed gives other numbers of {source} on"
            f" {ranks_at(recording, parts.few or parts.groups[-1][1])}",
            "All ranks were given one seed, and drew at once.",
            parts.few,
            Evidence(text=f"first numbers of {source}: " + "; ".join(value for value, _ in parts.groups[:4])),
            WHICH_SAMPLER,
        )
        torch = source.startswith("torch")
        yield found if torch else found.model_copy(update={"severity": Severity.WARNING})


@rule("DD758", "own-seeds-give-one-stream", Severity.WARNING, DataSharding)
def own_seeds_give_one_stream(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        Ranks that were each given a seed of their own and draw the same random numbers.

    Why it matters
        Dropout masks and augmentations are then the same on these ranks: less variety in each step than the
        batch size promises.

    Remedy
        Look for code that replaces ``torch.manual_seed`` or seeds again with a fixed number.

    References
        https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    for source, drawn in _sources(by_rank(recording)).items():
        ranks_by_numbers: dict[tuple[int, ...], list[int]] = {}
        for rank, stream in drawn.items():
            ranks_by_numbers.setdefault(stream.own, []).append(rank)
        shared = sorted(rank for ranks in ranks_by_numbers.values() if len(ranks) > 1 for rank in ranks)
        if shared:
            yield draft(
                recording,
                f"Own seeds give {ranks_at(recording, shared)} the same numbers of {source}",
                "Each rank seeded with a number of its own before it drew.",
                [],
                Evidence(text=f"first numbers of {source} on rank {shared[0]}: {drawn[shared[0]].own}"),
                WHICH_SAMPLER,
                SEED_BY_RANK,
            )


@rule("DD759", "environment-seeds-all-ranks-alike", Severity.INFO, DataSharding)
def environment_seeds_all_ranks_alike(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        Before any code of the job ran, torch was seeded with one chosen number on all ranks, where Python
        runs a sitecustomize or usercustomize module at its start.

    Why it matters
        With DDP the seeds of ranks need not agree, for it broadcasts rank 0's weights; dropout masks and
        augmentations are then the same on all ranks.

    Remedy
        If that is not meant, add the rank to the seed.

    References
        https://docs.python.org/3/library/site.html
        https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    facts = by_rank(recording)
    seeds = {fact.torch_seed for fact in facts.values()}
    files = sorted({file for fact in facts.values() for file in fact.start_up_files})
    if len(facts) > 1 and len(seeds) == 1 and 0 <= min(seeds) < _CHOSEN_BELOW and files:
        found = draft(
            recording,
            f"torch comes seeded with {min(seeds)} on every rank: dropout and augmentations will not differ",
            "",
            [],
            Evidence(text="torch.initial_seed() on every rank", value=min(seeds)),
            SEED_BY_RANK,
        )
        yield found.model_copy(update={"detail": f"Python runs {', '.join(files[:4])} at its start."})


def _sources(facts: Facts) -> dict[str, dict[int, Stream]]:
    """The numbers of each rank, by source; a source that some ranks lack is compared among the others."""
    found: dict[str, dict[int, Stream]] = {}
    for rank, fact in facts.items():
        for stream in fact.streams:
            found.setdefault(stream.source, {})[rank] = stream
    return found


def _parts(values: dict[int, tuple[int, ...]]) -> Split[int] | None:
    return split({rank: (value, str(value)) for rank, value in values.items()})
