"""Settings: nodes whose shells hand their ranks different variables."""

from collections.abc import Iterator

from ddp_doctor.checks.agreement.differences import Difference, difference_draft, together
from ddp_doctor.checks.agreement.facts import AgreementFact
from ddp_doctor.checks.env_vars import EnvVars
from ddp_doctor.checks.host import Host
from ddp_doctor.checks.software import Software
from ddp_doctor.knowledge import agreement as known
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.phrases import agreement as words
from ddp_doctor.phrases.agreement import split
from ddp_doctor.phrases.nodes import in_words
from ddp_doctor.phrases.settings import shown


@rule("DD551", "nodes-have-different-settings", Severity.WARNING, AgreementFact, EnvVars)
def different_settings(recording: Recording) -> Iterator[Draft]:
    """Variables of NCCL, torch or gloo that are not set alike on all nodes.

    What it finds
        The nodes whose environment differs from most, with all variables that do. An error for those with
        which ranks hang or cannot connect (NCCL_ALGO, NCCL_PROTO, TORCH_DISTRIBUTED_DEBUG=DETAIL, …); information
        for those that this backend does not read, and for interface names that some nodes lack.
        A default counts as unset. Logs, files, and names of a node's own interfaces may differ.

    Why it matters
        torchrun hands each rank the environment of its own node's shell, and mpirun only what -x names: an
        export in one shell is enough. Ranks that follow different settings wait for each other.

    Remedy
        Set it in the job script, for all nodes, or unset it everywhere.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    for group in together(_settings(recording)):
        parts, names = group[0].split, in_words([one.name for one in group])
        few, many = words.hosts(recording, parts.few), words.others(parts)
        if parts.usual is None:
            are = "is" if len(group) == 1 else "are"
            title = f"{names} {are} not set alike: {words.told(recording, parts)}"
        elif len(group) == 1:
            has, have = _have(len(parts.few)), _have(parts.many)
            title = f"{few} {has} {words.odd_values(parts)} where {many} {have} {parts.usual}"
        else:
            title = f"{few} {'differs' if len(parts.few) == 1 else 'differ'} from {many} in {names}"
        detail = f"{group[0].name}: {group[0].effect}."
        yield difference_draft(recording, group, title, detail, _SAME_SETTINGS)


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


_SAME_SETTINGS = Remedy(
    summary="Set it alike for all nodes in the job script (mpirun: -x NAME), or unset it on all",
    cost="none: the ranks then do the same",
    undo="put the former lines back",
)


def _settings(recording: Recording) -> Iterator[Difference]:
    environments = {seen.node: seen.fact for seen in recording.facts(EnvVars)}
    names = sorted({name for fact in environments.values() for name in fact.variables})
    job = _job(recording)
    for name in names:
        told = {
            node: fact.variables.get(name) for node, fact in environments.items() if name not in fact.withheld
        }
        if len(set(told.values())) < 2:
            continue
        does = {node: known.effective(name, value) for node, value in told.items()}
        found = split({node: (does[node], _as_set(name, value)) for node, value in told.items()})
        at_stake = known.stake(name, frozenset(does.values()), job)
        if found is not None and at_stake is not None:
            yield Difference(name, found, _SEVERITY[at_stake.weight], at_stake.effect, at_stake.source)


_SEVERITY = {"fatal": Severity.ERROR, "matters": Severity.WARNING, "minor": Severity.INFO}


def _as_set(name: str, value: str | None) -> str:
    return f"{name} unset" if value is None else shown(name, value)


def _job(recording: Recording) -> known.Job:
    return known.Job(
        backend=recording.world.backend if recording.world else "",
        nccl_versions=frozenset(seen.fact.nccl_loaded or "" for seen in recording.facts(Software)) - {""},
        has_rdma=any(seen.fact.rdma_devices for seen in recording.facts(Host)),
    )
