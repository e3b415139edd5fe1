"""DD753, DD759: samplers whose shares overlap or leave samples out, and ranks that the environment seeds alike."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddp_doctor.facts.ddp.gradients import DdpModes, Share
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.finding import NOTHING_TO_UNDO, Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import in_code, remedy
from ddp_doctor.wording.findings import NOBODY, likely
from ddp_doctor.wording.nodes import name_list
from ddp_doctor.wording.ranks import rank_culprits, ranks_at

_DOCS = "https://docs.pytorch.org/docs/stable/"
#: Samples of each rank: enough that no two epochs have the same order by chance.
_LEAST, _PER_RANK = 16, 4
_NAMED = 8  # indices that a sentence names
#: torch seeds itself with 64 random bits; below this somebody chose (by chance once in four thousand million).
_CHOSEN_BELOW = 2**32
_WHICH_SAMPLER = remedy(
    "Look for code that replaces torch's sampler or generators (sitecustomize, .pth files, a vendor's fork)",
    'python -c "import inspect, torch; from torch.utils.data import DistributedSampler as S; '
    'print(torch.__version__, inspect.getsourcefile(S))"',
    cost="None: it only prints where the code comes from",
    undo=NOTHING_TO_UNDO,
    untried="the doctor cannot tell beforehand what replaces it",
    references=(_DOCS + "data.html#torch.utils.data.distributed.DistributedSampler",),
)
_SEED_BY_RANK = in_code(
    "Add the rank to the seed of what is to differ between ranks: dropout and augmentations",
    "torch.manual_seed(seed + torch.distributed.get_rank())",
    cost="None: DDP broadcasts rank 0's weights, so that the ranks' seeds need not agree",
    references=(_DOCS + "notes/randomness.html",),
)


def shares(ctx: RankContext) -> tuple[Share, ...]:
    """This rank's shares of a data set that divides evenly and of one that does not, in two epochs."""
    import torch.distributed as dist
    from torch.utils.data.distributed import DistributedSampler

    even, found = max(_PER_RANK, -(-_LEAST // ctx.world_size)) * ctx.world_size, []
    for length, drop_last in ((even, False), (even + 1, False), (even + 1, True)):
        data: Any = range(length)  # a Dataset is anything with a length and items
        ranks, rank = dist.get_world_size(ctx.group), dist.get_rank(ctx.group)
        sampler: Any = DistributedSampler(data, num_replicas=ranks, rank=rank, drop_last=drop_last)
        for epoch in (0, 1):
            sampler.set_epoch(epoch)
            found.append(Share(data_length=length, drop_last=drop_last, epoch=epoch, indices=tuple(sampler)))
    return tuple(found)


def faults(held: Mapping[int, Sequence[int]], length: int, drop_last: bool) -> dict[str, list[int]]:
    """What is wrong with the shares of all ranks, by rank, and the ranks that it shows; empty where all is right.

    Without drop_last a sampler repeats as many indices as make the length a multiple of the ranks; with it, it leaves
    out as many as are over. Either is less than there are ranks, and all shares have one length.
    """
    taken = Counter(index for indices in held.values() for index in indices)
    most = max(len(indices) for indices in held.values())
    again = sorted(index for index, count in taken.items() if count > 1)
    missing = [index for index in range(length) if index not in taken]
    outside = sorted(index for index in taken if not 0 <= index < length)
    found = {}
    if outside:
        found[f"{_samples(outside)} beyond its end"] = [rank for rank in held if {*held[rank]} & {*outside}]
    if short := [rank for rank, indices in held.items() if len(indices) < most]:
        found[f"shares of fewer samples than {most}"] = short if 2 * len(short) < len(held) else []
    if sum(taken.values()) - len(taken) > (0 if drop_last else -length % len(held)):
        found[f"{_samples(again)} more than once"] = []
    if len(missing) > (length % len(held) if drop_last else 0):
        found[f"{_samples(missing)} on no rank"] = []
    return found


def _samples(indices: Sequence[int]) -> str:
    named, more = ", ".join(str(index) for index in indices[:_NAMED]), len(indices) - _NAMED
    return f"sample{'s' if len(indices) > 1 else ''} {named}" + (f" and {more} more" if more > 0 else "")


@rule("DD753", "shards-overlap-or-leave-out", Severity.ERROR, DdpModes)
def shards_overlap_or_leave_out(recording: Recording) -> Iterator[Draft]:
    """Finds: The ranks' shards, together, do not hold every index of a data set once, or differ in length. Indices that
        are repeated to make the shares equal (fewer than there are ranks), or left out with ``drop_last``, are right.
    Why: Samples that two ranks have count twice in every gradient, and what no rank has is never learnt from. A rank
        with a shorter share leaves the others waiting at the end of each epoch.
    Remedy: None of your own code runs in this check: look for code that replaces parts of torch. In a job's own code,
        give DistributedSampler the same data set and seed on all ranks, and call ``set_epoch`` on all.
    See: https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """
    facts = {rank.rank or 0: rank.fact for rank in recording.facts(DdpModes)}
    each = [fact.shares for fact in facts.values() if len(facts) == fact.world_size]
    for shares_of_all in zip(*each, strict=False):
        case = shares_of_all[0]
        held = {rank: share.indices for rank, share in zip(facts, shares_of_all, strict=True)}
        if found := faults(held, case.data_length, case.drop_last):
            blamed = sorted({rank for ranks in found.values() for rank in ranks})
            where = f"a data set of {case.data_length} samples in epoch {case.epoch}"
            yield likely(
                rank_culprits(recording, DdpModes, blamed),
                f"The ranks' shards do not cover {where} once: {name_list(list(found))}"
                + (f" ({ranks_at(recording, blamed)})" if blamed else ""),
                Evidence(text=f"of {where}: {name_list(list(found))}"),
                _WHICH_SAMPLER,
                detail=f"drop_last was {case.drop_last}. None of your own code took part.",
            )
            return


@rule("DD759", "environment-seeds-all-ranks-alike", Severity.INFO, DdpModes)
def environment_seeds_all_ranks_alike(recording: Recording) -> Iterator[Draft]:
    """Finds: Before any code of the job ran, torch was seeded with one chosen number on all ranks, where Python runs a
        sitecustomize or usercustomize module at its start.
    Why: With DDP the seeds of ranks need not agree, for it broadcasts rank 0's weights; dropout masks and augmentations
        are then the same on all ranks.
    Remedy: If that is not meant, add the rank to the seed.
    See: https://docs.python.org/3/library/site.html
        https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    facts = [rank.fact for rank in recording.facts(DdpModes)]
    seeds, files = {fact.torch_seed for fact in facts}, sorted({file for fact in facts for file in fact.start_up_files})
    if len(facts) > 1 and len(seeds) == 1 and 0 <= min(seeds) < _CHOSEN_BELOW and files:
        yield likely(
            NOBODY,
            f"torch is seeded with {min(seeds)} on every rank before your code runs: dropout and augmentations will not"
            " differ",
            Evidence(text="torch.initial_seed() on every rank", value=min(seeds)),
            _SEED_BY_RANK,
            detail=f"Python runs {', '.join(files[:4])} at its start.",
        )
