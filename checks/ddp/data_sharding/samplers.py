"""DD750, DD751, DD752: a sampler of another rank, another data set or another shuffle."""

from collections.abc import Iterator, Mapping

from ddp_doctor.checks.ddp.data_sharding.wording import (
    ONE_DATA_SET,
    ONE_SEED,
    RANK_OF_THE_GROUP,
    WHICH_SAMPLER,
    by_rank,
    differing,
    draft,
    parted,
)
from ddp_doctor.facts.ddp.data_sharding import DataSharding, Share
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.ranks import ranks_at


@rule("DD750", "sampler-of-another-rank", Severity.ERROR, DataSharding)
def sampler_of_another_rank(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        A DistributedSampler that was made for another rank or another number of ranks than the process
        group has. A rank number that is the rank's number on its own node (LOCAL_RANK) is told as such.

    Why it matters
        Two ranks train on one shard and nobody on another; with too many replicas a part of the data is
        never seen. The loss falls all the same.

    Remedy
        Leave ``num_replicas`` and ``rank`` out: the sampler asks the process group.

    References
        https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
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
        f"The sampler on {ranks_at(recording, wrong)} is another rank's:"
        f" rank {share.rank} of {share.replicas} instead of rank {fact.group_rank} of {fact.world_size}"
        + (" (on the first of them)" if len(wrong) > 1 else ""),
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
    """
    What it finds
        Ranks that share out one data set and do not agree on its length.

    Why it matters
        Each rank shuffles another list: shards overlap, samples are left out, and ranks whose share is
        shorter stop earlier, so that the others wait for ever.

    Remedy
        Compare the files of the data set between the nodes: a copy is incomplete or of another version.

    References
        https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """
    parts = differing(by_rank(recording), lambda share: share.data_length)
    if parts is None:
        return
    yield draft(
        recording,
        f"The ranks' data sets differ in length: {parted(recording, parts)}",
        "DistributedSampler shuffles as many indices as the data set of its own rank has.",
        parts.few,
        Evidence(text="lengths of the data sets that ranks share out: " + parted(recording, parts)),
        ONE_DATA_SET,
        WHICH_SAMPLER,
    )


@rule("DD752", "sampler-seeds-differ", Severity.ERROR, DataSharding)
def sampler_seeds_differ(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        Samplers of one data set that shuffle with different seeds.

    Why it matters
        A shard is a part of one order that all ranks work out for themselves. With different orders the
        shards overlap and together leave samples out, more than a third of them with many ranks.

    Remedy
        Give the sampler the same seed on all ranks. What is to differ between ranks (dropout,
        augmentations) has streams of its own.

    References
        https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
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
