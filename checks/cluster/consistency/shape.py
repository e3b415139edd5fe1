"""The shape of the world: nodes that bring other numbers of ranks or of GPUs than their peers."""

from collections.abc import Iterator, Mapping

from ddp_doctor.facts.cluster import ConsistencyFact
from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.facts.node.software import Software
from ddp_doctor.model.choices import Backend, Severity, Status
from ddp_doctor.model.finding import NOTHING_TO_UNDO, Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.wording import differences
from ddp_doctor.wording.differences import Split, split
from ddp_doctor.wording.findings import proved

#: The rules on GPUs that are missing or fail.
_LACKING_GPUS = ("DD301", "DD302", "DD303", "DD330")


def _ranks(recording: Recording) -> dict[int, int]:
    """How many ranks each node that reported brings."""
    world = recording.world
    met = (seen.node for seen in recording.facts(ConsistencyFact))
    return {} if world is None else {node: len(world.ranks_of(node)) for node in met}


def _gpus(recording: Recording) -> dict[int, int]:
    """How many GPUs each node shows the job; a node that has none says that none is there."""
    absent = (one for one in recording.of_check("gpus") if one.status is Status.ABSENT)
    return {one.node: 0 for one in absent} | {
        seen.node: len(seen.fact.visible)
        for seen in recording.facts(GpusFact)
        if seen.fact.nvml_error is None
    }


def _counted(counts: Mapping[int, int], what: str) -> Split[int] | None:
    def shown(count: int) -> str:
        return f"{count or 'no'} {what}{'' if count == 1 else 's'}"

    return split({node: (count, shown(count)) for node, count in counts.items()})


@rule(
    "DD552",
    "nodes-bring-different-numbers-of-ranks",
    Severity.WARNING,
    ConsistencyFact,
    explained_by=_LACKING_GPUS,
)
def different_ranks(recording: Recording) -> Iterator[Draft]:
    """Nodes that bring fewer or more ranks than the others.

    What it finds
        Different --nproc-per-node, where the nodes' numbers of GPUs do not explain it (then
        nodes-have-different-gpus does), nor a driver or a GPU that fails.

    Why it matters
        The job starts, and nobody notices that its world is smaller than meant: the batch is smaller, the
        learning rate no longer fits, and a sampler that expects the full world skips data.

    Remedy
        Start every node with the same command.

    References
        https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    ranks = _ranks(recording)
    parts = _counted(ranks, "rank")
    if parts is None or _explained_by_gpus(recording):
        return
    size = sum(ranks.values())
    yield proved(
        differences.odd_culprits(recording, parts),
        f"{_unlike(recording, parts)}: a world of {size}, which nobody notices",
        Evidence(text=differences.told(recording, parts), value=size, unit="ranks"),
        remedy("Start every node with the same --nproc-per-node", scope="job", undo=NOTHING_TO_UNDO),
        detail="torchrun takes any number of ranks from each node and counts them together.",
        nodes=_with_less(ranks),
    )


def _unlike(recording: Recording, parts: Split[int]) -> str:
    """ "node1 brings 1 rank where the other 3 nodes have 2 ranks", or every number with its nodes."""
    if parts.usual is None:
        return differences.told(recording, parts)
    have = "has" if parts.many == 1 else "have"
    return (
        f"{differences.hosts(recording, parts.few)} {'has' if len(parts.few) == 1 else 'have'}"
        f" {differences.odd_values(parts)}"
        f" where {differences.others(parts)} {have} {parts.usual}"
    )


def _explained_by_gpus(recording: Recording) -> bool:
    ranks, gpus = _counted(_ranks(recording), "rank"), _counted(_gpus(recording), "GPU")
    return ranks is not None and gpus is not None and ranks.parts == gpus.parts


@rule(
    "DD554",
    "nodes-have-different-gpus",
    Severity.WARNING,
    ConsistencyFact,
    GpusFact,
    explained_by=_LACKING_GPUS,
)
def different_gpus(recording: Recording) -> Iterator[Draft]:
    """Nodes that show the job fewer GPUs than the others, or none.

    What it finds
        Different numbers of visible GPUs. A warning where a node has none, or brings fewer ranks for it;
        information where the ranks are as many all the same. Silent where no torch here uses GPUs, with
        --backend gloo, and where a finding about missing
        or failing GPUs names the same nodes.

    Why it matters
        With --nproc-per-node auto the world is smaller than meant; with a node that has no GPU, NCCL does
        not start at all, and the doctor itself can only test gloo.

    Remedy
        Ask the scheduler for as many GPUs on each node, look for the missing one, or leave the node out.

    References
        https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    gpus = _gpus(recording)
    parts = _counted(gpus, "GPU")
    if parts is None or not _are_wanted(recording):
        return
    matters = min(gpus.values()) == 0 or _explained_by_gpus(recording)
    yield proved(
        differences.odd_culprits(recording, parts),
        _unlike(recording, parts),
        Evidence(text=differences.told(recording, parts)),
        remedy(
            "Ask the scheduler for as many GPUs on every node, or leave the odd one out",
            "nvidia-smi -L",
            "echo $CUDA_VISIBLE_DEVICES",
        ),
        detail="Ranks need a GPU each, and nodes that bring different numbers of them make an uneven world.",
        severity=Severity.WARNING if matters else Severity.INFO,
        nodes=_with_less(gpus),
    )


def _are_wanted(recording: Recording) -> bool:
    """Whether the job may use GPUs: gloo was not asked for, and some torch here was built for them."""
    builds = [seen.fact.torch_cuda or seen.fact.torch_hip for seen in recording.facts(Software)]
    return recording.options.backend is not Backend.GLOO and (not builds or any(builds))


def _with_less(counts: Mapping[int, int]) -> tuple[int, ...]:
    """The nodes with less than others have."""
    most = max(counts.values(), default=0)
    return tuple(node for node, count in counts.items() if count < most)
