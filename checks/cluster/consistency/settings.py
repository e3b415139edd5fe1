"""Nodes, or ranks of one node, with different variables, or with different numbers of ranks or GPUs."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ddp_doctor.checks.cluster.consistency.versions import Difference, difference_draft, draft_of, together
from ddp_doctor.facts.cluster import ConsistencyFact, RankSettings
from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.facts.node.host import Host
from ddp_doctor.facts.node.software import Software
from ddp_doctor.model.choices import Backend, Consequence, Severity, Status
from ddp_doctor.model.finding import Draft, Evidence, Setting
from ddp_doctor.model.recording import Recording, once_a_recording
from ddp_doctor.model.rule import RanksDo, rule
from ddp_doctor.remedies.kinds import NO_TRIAL, remedy
from ddp_doctor.settings import agreement
from ddp_doctor.settings.values import effective
from ddp_doctor.settings.wording import shown
from ddp_doctor.views.failed_trials import what_did_not_fit
from ddp_doctor.views.forbidden_ways import settings_told
from ddp_doctor.views.software import is_for_cpus, nccl_backends
from ddp_doctor.wording import differences
from ddp_doctor.wording.differences import Place, Split, Who, split
from ddp_doctor.wording.findings import proved
from ddp_doctor.wording.nodes import hosts, name_list, node_culprit
from ddp_doctor.wording.ranks import capital


@rule("DD551", "nodes-have-different-settings", Consequence.RISK, ConsistencyFact, EnvVars)
def nodes_have_different_settings(recording: Recording) -> Iterator[Draft]:
    """Variables of NCCL, torch or gloo differ between nodes.

    Finds: Reports the nodes whose environment differs from the majority, with all variables that differ. Severity is
        error for variables that make ranks hang or fail to connect (NCCL_ALGO, NCCL_PROTO,
        TORCH_DISTRIBUTED_DEBUG=DETAIL, …), and for all variables that ranks must agree on if a rank received unexpected
        data from a peer. It is info for variables that this backend does not read, and for interface names that some
        nodes lack. A default value counts as unset. Logs, files, and names of a node's own interfaces may differ. If
        the ranks of one node already differ, ranks-have-different-settings reports it. If a setting keeps NCCL from
        using NVLink or RDMA, DD434 and DD436 report it.
    Why: torchrun gives each rank the environment of its own node's shell, and mpirun only the variables of -x, so an
        export in one shell is enough. Ranks with different settings wait for each other.
    Remedy: Set it in the job script, for all nodes, or unset it everywhere.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    environments = {node.node: node.fact for node in recording.facts(EnvVars)}
    names = {name for fact in environments.values() for name in fact.variables}
    job, found = _job(recording), list[Difference[int]]()
    for name in sorted(names.difference(_within_nodes(recording), settings_told(recording))):
        values = {node: fact.variables.get(name) for node, fact in environments.items() if name not in fact.withheld}
        found += _difference(name, values, job)
    for group in together(found):
        parts = group[0].split
        few, many = hosts(recording, parts.few), differences.others(parts)
        title = _title(group, few, many, differences.values_with_nodes(recording, parts))
        detail = f"{group[0].name}: {group[0].effect}."
        at_stake = [difference.name for difference in group if difference.severity is not Severity.INFO]
        taken_away = tuple(Setting(name=name, action="unset", why="ranks then do the same") for name in at_stake)
        unfitting = what_did_not_fit(recording) if at_stake else ()
        cure = _SAME_SETTINGS.model_copy(update={"settings": taken_away, "proof": NO_TRIAL} if unfitting else {})
        draft = difference_draft(recording, group, title, detail, cure)
        yield differences.made_ranks_fail(draft, unfitting) if unfitting else draft


@rule("DD555", "ranks-have-different-settings", Consequence.RISK, RankSettings)
def ranks_have_different_settings(recording: Recording) -> Iterator[Draft]:
    """Variables of NCCL, torch or gloo differ between the ranks of a node.

    Finds: Reports the ranks whose environment differs from the majority, with all variables that differ and the same
        severities as between nodes. This requires a launcher that starts ddp-doctor once per rank (torchrun, srun or
        mpirun with several tasks per node), and covers the ranks that reported in time. GPUs, CPUs, logs, files and
        names of NICs may differ, because each rank may have its own.
    Why: A wrapper script, srun --multi-prog or mpirun's colons set it between the launcher and the rank. Ranks with
        different settings wait for each other. ddp-doctor's own ranks all have their agent's environment, so a trial
        cannot show it.
    Remedy: Set it before the launcher starts, for all ranks, or remove it from the wrapper script that starts them.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    silent = sum(node.fact.local_size - len(node.fact.ranks) for node in recording.facts(RankSettings))
    job, found = _job(recording), list[Difference[Place]]()
    for name, values in _within_nodes(recording).items():  # all ranks of all nodes
        for difference in _difference(name, values, job, len(values) + silent, within_a_node=True):
            # Values that apply to a single host have no usual value.
            is_of_a_host = agreement.is_of_a_host(name) and len({node for node, _ in values}) > 1
            parts = replace(difference.split, usual=None) if is_of_a_host else difference.split
            found.append(replace(difference, split=parts))
    for group in together(found):
        parts = group[0].split
        few = differences.local_ranks(recording, parts.few)
        many = f"{parts.many} other ranks" if silent else f"the other {parts.many} ranks"
        title = capital(_title(group, few, many, differences.values_with_ranks(recording, parts)))
        detail = f"{group[0].name}: {group[0].effect}."
        if silent:
            detail += f" The settings of {silent} more rank{'s' if silent > 1 else ''} are unknown."
        culprits = differences.odd_ranks(recording, parts)
        in_words = partial(differences.values_with_ranks, recording)
        yield draft_of(group, title, detail, _SAME_FOR_RANKS, culprits, in_words, check="env_vars")


def _title(group: Sequence[Difference[Who]], few: str, many: str, values: str) -> str:
    parts, names = group[0].split, name_list([difference.name for difference in group])
    if len(group) == 1:  # the name is not repeated with each value
        if parts.usual is not None:
            values = f"{differences.odd_values(parts)} on {few}, but {parts.usual} on {many}"
        return f"{names} differs: {values.replace(f'{names}=', 'set to ').replace(f'{names} unset', 'unset')}"
    if parts.usual is None:
        return f"{names} differ: {values}"
    return f"{few} {'differs' if len(parts.few) == 1 else 'differ'} from {many} in {names}"


_same_for_all = partial(remedy, scope="job", undo="restore the previous lines")
_SAME_SETTINGS = _same_for_all("Set one value for all nodes in the job script (mpirun: -x NAME), or unset it on all")
_SAME_FOR_RANKS = _same_for_all(
    "Set it once before the launcher starts, or remove it from the wrapper script that starts the ranks"
)


@once_a_recording
def _within_nodes(recording: Recording) -> Mapping[str, Mapping[Place, str | None]]:
    """Return every rank's values of the variables that differ between the ranks of some node."""
    facts = recording.facts(RankSettings)
    names = {name for node in facts for environment in node.fact.ranks.values() for name in environment.variables}
    found: dict[str, Mapping[Place, str | None]] = {}
    for name in sorted(names):
        values = {
            (node.node, local): environment.variables.get(name)
            for node in facts
            for local, environment in node.fact.ranks.items()
            if name not in environment.withheld
        }
        does = defaultdict(set)
        for (node, _), value in values.items():
            does[node].add(effective(name, value))
        if any(len(values) > 1 for values in does.values()):
            found[name] = values
    return found


def _difference(
    name: str, values: Mapping[Who, str | None], job: agreement.Job, there_are: int = 0, *, within_a_node: bool = False
) -> Iterator[Difference[Who]]:
    """Yield the difference in one variable from its values, unless they are equal or may differ."""
    if len(set(values.values())) < 2:
        return
    does = {who: effective(name, value) for who, value in values.items()}
    words = {who: f"{name} unset" if value is None else shown(name, value) for who, value in values.items()}
    found = split({who: (does[who], words[who]) for who in values}, there_are)
    at_stake = agreement.difference(name, frozenset(does.values()), job, within_a_node=within_a_node)
    if found is not None and at_stake is not None:
        yield Difference(name, found, _SEVERITY[at_stake.weight], at_stake.effect, at_stake.source)


_SEVERITY = {"fatal": Severity.ERROR, "matters": Severity.WARNING, "minor": Severity.INFO}


def _job(recording: Recording) -> agreement.Job:
    world = recording.world
    backends = set(nccl_backends(recording).values())
    on_several = world is not None and max(world.nnodes, world.foreign_nodes) > 1
    return agreement.Job(
        backend=world.backend if world else "",
        nccl_backend=backends.pop() if len(backends) == 1 else None,
        nccl_versions=frozenset(node.fact.nccl_loaded or "" for node in recording.facts(Software)) - {""},
        has_rdma=on_several and any(node.fact.rdma_devices for node in recording.facts(Host)),
    )


#: The rules on GPUs that are missing or fail.
_LACKING_GPUS = ("DD301", "DD302", "DD303", "DD330")


def _ranks_by_node(recording: Recording) -> dict[int, int]:
    world = recording.world
    met = (node.node for node in recording.facts(ConsistencyFact))
    return {} if world is None else {node: len(world.ranks_of(node)) for node in met}


def _gpus_by_node(recording: Recording) -> dict[int, int]:
    """Return how many GPUs each node shows the job; 0 for nodes that report having none."""
    absent = (reading for reading in recording.of_check("gpus") if reading.status is Status.ABSENT)
    return {reading.node: 0 for reading in absent} | {
        node.node: len(node.fact.visible) for node in recording.facts(GpusFact) if node.fact.nvml_error is None
    }


def _counted(counts: Mapping[int, int], what: str) -> Split[int] | None:
    def shown(count: int) -> str:
        return f"{count or 'no'} {what}{'' if count == 1 else 's'}"

    return split({node: (count, shown(count)) for node, count in counts.items()})


@rule("DD552", "nodes-bring-different-numbers-of-ranks", Consequence.RISK, ConsistencyFact, explained_by=_LACKING_GPUS)
def nodes_bring_different_numbers_of_ranks(recording: Recording) -> Iterator[Draft]:
    """Nodes start fewer or more ranks than the others.

    Finds: Reports different --nproc-per-node, unless the nodes' numbers of GPUs (nodes-have-different-gpus) or a
        failing driver or GPU explain it.
    Why: The job starts without an error, but its world is smaller than intended: the batch is smaller, the learning
        rate no longer fits, and a sampler that expects the full world skips data.
    Remedy: Start every node with the same command.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    ranks = _ranks_by_node(recording)
    parts = _counted(ranks, "rank")
    if parts is None or _explained_by_gpus(recording):
        return
    size = sum(ranks.values())
    yield proved(
        differences.odd_culprits(recording, parts),
        f"Nodes start different numbers of ranks ({size} in total): {_unlike(recording, parts)}",
        Evidence(text=differences.values_with_nodes(recording, parts), value=size, unit="ranks"),
        remedy("Start every node with the same --nproc-per-node", scope="job"),
        detail="torchrun accepts any number of ranks per node without a warning.",
        nodes=_nodes_with_less(ranks),
    )


def _unlike(recording: Recording, parts: Split[int]) -> str:
    """Return ``node1 has 1 rank, but the other 3 nodes have 2 ranks each``, or every number with its nodes."""
    if parts.usual is None:
        return differences.values_with_nodes(recording, parts)
    have, each = ("has", "") if parts.many == 1 else ("have", " each")
    return (
        f"{hosts(recording, parts.few)} {'has' if len(parts.few) == 1 else 'have'}"
        f" {differences.odd_values(parts)}"
        f", but {differences.others(parts)} {have} {parts.usual}{each}"
    )


def _explained_by_gpus(recording: Recording) -> bool:
    ranks, gpus = _counted(_ranks_by_node(recording), "rank"), _counted(_gpus_by_node(recording), "GPU")
    return ranks is not None and gpus is not None and ranks.parts == gpus.parts


def _ranks_do_without_gpus(recording: Recording) -> RanksDo:
    """Return "stop" if NCCL was requested and a node has no GPU: only then ranks hang. Otherwise "run"."""
    lacks_all = 0 in _gpus_by_node(recording).values()
    return "stop" if lacks_all and recording.options.backend is Backend.NCCL else "run"


@rule(
    *("DD554", "nodes-have-different-gpus", Consequence.FAILS, ConsistencyFact, GpusFact),
    explained_by=_LACKING_GPUS,
    ranks=_ranks_do_without_gpus,
)
def nodes_have_different_gpus(recording: Recording) -> Iterator[Draft]:
    """Nodes show the job fewer GPUs than the others, or none.

    Finds: Reports different numbers of visible GPUs. Severity is error if a node has none or starts fewer ranks because
        of them, and info if all nodes start the same number of ranks. Not reported if no torch in the run supports
        GPUs, with --backend gloo, or if a finding about missing or failing GPUs names the same nodes.
    Why: With --nproc-per-node auto, the world is smaller than intended. If a node has no GPU, NCCL does not start at
        all, and ddp-doctor itself can only test gloo.
    Remedy: Request the same number of GPUs on every node, look for the missing GPU, or exclude the node.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    gpus = _gpus_by_node(recording)
    parts = _counted(gpus, "GPU")
    if parts is None or recording.options.backend is Backend.GLOO or is_for_cpus(recording):
        return
    without = tuple(node for node, count in gpus.items() if count == 0)
    yield proved(
        [node_culprit(recording, node) for node in without] if without else differences.odd_culprits(recording, parts),
        _unlike(recording, parts),
        Evidence(text=differences.values_with_nodes(recording, parts)),
        remedy(
            "Request the same number of GPUs on every node, or exclude the node that differs",
            "nvidia-smi -L",
            "echo $CUDA_VISIBLE_DEVICES",
        ),
        detail="Each rank needs a GPU, so different numbers of GPUs give an uneven number of ranks per node.",
        severity=Severity.ERROR if without or _explained_by_gpus(recording) else Severity.INFO,
        nodes=_nodes_with_less(gpus),
    )


def _nodes_with_less(counts: Mapping[int, int]) -> tuple[int, ...]:
    most = max(counts.values(), default=0)
    return tuple(node for node, count in counts.items() if count < most)
