"""DD750 - DD752, DD757 - DD759: a sampler of another rank, data set or shuffle; random numbers that differ or agree."""

from collections.abc import Iterator, Mapping

from ddp_doctor.checks.ddp.data_sharding.wording import (
    ONE_DATA_SET,
    ONE_SEED,
    RANK_OF_THE_GROUP,
    SEED_BY_RANK,
    WHICH_SAMPLER,
    Facts,
    by_rank,
    cases,
    differing,
    draft,
    parted,
)
from ddp_doctor.facts.ddp.data_sharding import DataSharding, Share, Stream
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.differences import Split, split
from ddp_doctor.wording.ranks import ranks_at


@rule("DD750", "sampler-of-another-rank", Severity.ERROR, DataSharding)
def sampler_of_another_rank(recording: Recording) -> Iterator[Draft]:
    """Finds: A DistributedSampler that was made for another rank or another number of ranks than the process group has.
        A rank number that is the rank's number on its own node (LOCAL_RANK) is told as such.
    Why: Two ranks train on one shard and nobody on another; with too many replicas a part of the data is never seen.
        The loss falls all the same.
    Remedy: Leave ``num_replicas`` and ``rank`` out: the sampler asks the process group.
    See: https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """
    facts = by_rank(recording)
    looked = ((rank, _misplaced(fact)) for rank, fact in facts.items())
    wrong = {rank: share for rank, share in looked if share is not None}
    if not wrong:
        return
    first, share = next(iter(wrong.items()))
    fact = facts[first]
    yield draft(
        recording,
        f"The sampler on {ranks_at(recording, wrong)} was made for another"
        f" {'number of ranks' if share.rank == fact.group_rank else 'rank'}: {'for example ' if len(wrong) > 1 else ''}"
        f"rank {fact.group_rank} of {fact.world_size} has that of rank {share.rank} of {share.replicas}",
        "DistributedSampler gives a rank the indices that belong to the rank and number of ranks it was made"
        " with." + _local(recording, wrong),
        sorted(wrong),
        Evidence(
            text=f"rank that the sampler of rank {first} was made for",
            value=share.rank,
            expected=fact.group_rank,
            expected_from="process group",
        ),
        RANK_OF_THE_GROUP,
        WHICH_SAMPLER,
    )


@rule("DD751", "data-set-lengths-differ", Severity.ERROR, DataSharding)
def data_set_lengths_differ(recording: Recording) -> Iterator[Draft]:
    """Finds: Ranks that share out one data set and do not agree on its length.
    Why: Each rank shuffles another list: shards overlap, samples are left out, and ranks whose share is shorter stop
        earlier, so that the others wait for ever.
    Remedy: Compare the files of the data set between the nodes: a copy is incomplete or of another version.
    See: https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """
    facts = by_rank(recording)
    parts = differing(facts, lambda share: share.data_length)
    if parts is None:
        return
    sets = len(cases(facts))
    yield draft(
        recording,
        f"Ranks disagree on the lengths of the doctor's {sets} data sets: {parted(recording, parts, ' samples')}",
        "DistributedSampler shuffles as many indices as the data set of its own rank has.",
        parts.few,
        Evidence(text="lengths of the data sets that ranks share out: " + parted(recording, parts)),
        ONE_DATA_SET,
        WHICH_SAMPLER,
    )


@rule("DD752", "sampler-seeds-differ", Severity.ERROR, DataSharding)
def sampler_seeds_differ(recording: Recording) -> Iterator[Draft]:
    """Finds: Samplers of one data set that shuffle with different seeds.
    Why: A shard is a part of one order that all ranks work out for themselves. With different orders the shards overlap
        and together leave samples out, more than a third of them with many ranks.
    Remedy: Give the sampler the same seed on all ranks. What is to differ between ranks (dropout, augmentations) has
        streams of its own.
    See: https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """
    parts = differing(by_rank(recording), lambda share: share.seed)
    if parts is None:
        return
    yield draft(
        recording,
        f"The ranks' samplers shuffle with different seeds: {parted(recording, parts)}",
        "Each rank works the whole order out for itself, from the seed and the epoch, and takes its part.",
        parts.few,
        Evidence(text="seeds of the samplers: " + parted(recording, parts)),
        ONE_SEED,
        WHICH_SAMPLER,
    )


def _misplaced(fact: DataSharding) -> Share | None:
    """The first share whose sampler belongs to another rank."""
    right = (fact.group_rank, fact.world_size)
    complete = (share for share in fact.shares if share.rank is not None and share.replicas is not None)
    return next((share for share in complete if (share.rank, share.replicas) != right), None)


def _local(recording: Recording, wrong: Mapping[int, Share]) -> str:
    world = recording.world
    if world is None or any(world.local_rank(rank) != share.rank for rank, share in wrong.items()):
        return ""
    return " It is the rank's number on its own node (LOCAL_RANK)."


#: torch seeds itself with 64 random bits; below this somebody chose (by chance once in four thousand million).
_CHOSEN_BELOW = 2**32


@rule("DD757", "one-seed-gives-different-numbers", Severity.ERROR, DataSharding)
def one_seed_gives_different_numbers(recording: Recording) -> Iterator[Draft]:
    """Finds: Ranks that draw different random numbers after the same seed. torch's own numbers decide on the order of
        the data; for those of Python's ``random`` and of numpy it is a warning.
    Why: DistributedSampler relies on it: each rank works out the whole order for itself. With another order on one
        rank, shards overlap and leave samples out.
    Remedy: Compare the versions of torch, Python and numpy between the ranks' nodes, and look for code that replaces
        ``torch.manual_seed``.
    See: https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    for source, drawn in _sources(by_rank(recording)).items():
        parts = _parts({rank: stream.common for rank, stream in drawn.items()})
        if parts is None:
            continue
        found = draft(
            recording,
            f"For the same seed {source} gives other random numbers on"
            f" {ranks_at(recording, parts.few or parts.groups[-1][1])} than on other ranks",
            "All ranks set the same seed and drew at once.",
            parts.few,
            Evidence(text=f"first numbers of {source}: " + "; ".join(value for value, _ in parts.groups[:4])),
            WHICH_SAMPLER,
        )
        torch = source.startswith("torch")
        yield found if torch else found.model_copy(update={"severity": Severity.WARNING})


@rule("DD758", "own-seeds-give-one-stream", Severity.WARNING, DataSharding)
def own_seeds_give_one_stream(recording: Recording) -> Iterator[Draft]:
    """Finds: Ranks that were each given a seed of their own and draw the same random numbers.
    Why: Dropout masks and augmentations are then the same on these ranks: less variety in each step than the batch size
        promises.
    Remedy: Look for code that replaces ``torch.manual_seed`` or seeds again with a fixed number.
    See: https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    for source, drawn in _sources(by_rank(recording)).items():
        ranks_by_numbers = grouped((stream.own, rank) for rank, stream in drawn.items())
        shared = sorted(rank for ranks in ranks_by_numbers.values() if len(ranks) > 1 for rank in ranks)
        if shared:
            yield draft(
                recording,
                f"For different seeds {source} gives {ranks_at(recording, shared)} the same random numbers",
                "Each rank set another seed before it drew.",
                [],
                Evidence(text=f"first numbers of {source} on rank {shared[0]}: {drawn[shared[0]].own}"),
                WHICH_SAMPLER,
                SEED_BY_RANK,
            )


@rule("DD759", "environment-seeds-all-ranks-alike", Severity.INFO, DataSharding)
def environment_seeds_all_ranks_alike(recording: Recording) -> Iterator[Draft]:
    """Finds: Before any code of the job ran, torch was seeded with one chosen number on all ranks, where Python runs a
        sitecustomize or usercustomize module at its start.
    Why: With DDP the seeds of ranks need not agree, for it broadcasts rank 0's weights; dropout masks and augmentations
        are then the same on all ranks.
    Remedy: If that is not meant, add the rank to the seed.
    See: https://docs.python.org/3/library/site.html
        https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    facts = by_rank(recording)
    seeds = {fact.torch_seed for fact in facts.values()}
    files = sorted({file for fact in facts.values() for file in fact.start_up_files})
    if len(facts) > 1 and len(seeds) == 1 and 0 <= min(seeds) < _CHOSEN_BELOW and files:
        found = draft(
            recording,
            f"torch is seeded with {min(seeds)} on every rank before your code runs: dropout and augmentations"
            " will not differ",
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
