"""DD236: nodes whose nccl.conf files make NCCL behave differently."""

from collections.abc import Iterator

from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.facts.node.nccl import NcclFact
from ddp_doctor.facts.node.rdma import RdmaFact
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.settings import agreement
from ddp_doctor.settings.nccl_conf import files_read, set_by_files
from ddp_doctor.settings.table import Agreement
from ddp_doctor.settings.values import effective
from ddp_doctor.settings.wording import shown
from ddp_doctor.wording.findings import likely
from ddp_doctor.wording.nodes import host, of_nodes

_SEVERITY = {"fatal": Severity.ERROR, "matters": Severity.WARNING, "minor": Severity.INFO}
#: Where the nodes' values differ, the evidence shows no more of them.
_NODES_SHOWN = 8


@rule("DD236", "nccl-conf-differs-between-nodes", Severity.WARNING, NcclFact, EnvVars)
def nccl_conf_differs(recording: Recording) -> Iterator[Draft]:
    """A setting that nccl.conf gives to some nodes of a job and not, or otherwise, to others.

    What it finds
        What NCCL has for a variable, of the environment or else of its files, differs between nodes, and a file
        gave it to one of them. As grave as between environments: an error for NCCL_ALGO, NCCL_PROTO and what else
        hangs a job; names of a node's own devices may differ. Silent where DD436 tells what the setting forbids.

    Why it matters
        The ranks follow different settings though every environment is the same, so that a comparison of `env` finds
        nothing.

    Remedy
        Give all nodes the same file, or set the variable in the job script, which overrules the files.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    world = recording.world
    if world is None or world.nnodes < 2 or world.backend != "nccl":
        return
    environments = {seen.node: seen.fact for seen in recording.facts(EnvVars)}
    facts = [seen for seen in recording.facts(NcclFact) if seen.node in environments]
    in_files = {seen.node: set_by_files(files_read(recording, seen)) for seen in facts}
    names = {name for found in in_files.values() for name in found}
    for name in sorted(names - _forbids_rdma(recording)):
        has = {
            node: environments[node].variables.get(name, found.get(name, (None, ""))[0])
            for node, found in in_files.items()
        }
        from_file = [
            seen
            for seen in facts
            if name in in_files[seen.node] and name not in environments[seen.node].variables
        ]
        does = frozenset(effective(name, value) for value in has.values())
        if len(does) < 2 or not from_file:
            continue
        stake = agreement.difference(name, does, agreement.Job(backend=world.backend))
        if stake is not None:
            yield _draft(recording, name, has, from_file, stake)


def _forbids_rdma(recording: Recording) -> set[str]:
    """The settings that keep some node from RDMA ports that it has."""
    facts = (seen.fact for seen in recording.facts(RdmaFact) if seen.fact.candidates())
    return {(fact.unused_by or "").partition("=")[0] for fact in facts}


def _draft(
    recording: Recording,
    name: str,
    has: dict[int, str | None],
    from_file: list[FactAt[NcclFact]],
    stake: Agreement,
) -> Draft:
    told = [
        f"{host(recording, node)}: {f'{name} unset' if value is None else shown(name, value)}"
        for node, value in list(has.items())[:_NODES_SHOWN]
    ]
    return likely(
        of_nodes(recording, from_file),
        f"nccl.conf on {{who}} sets {name} otherwise than the other nodes have it",
        Evidence(text="; ".join(told), expected_from=stake.source),
        _SAME_FILE,
        detail=f"{name}: {stake.effect}.",
        severity=_SEVERITY[stake.weight],
    )


_SAME_FILE = remedy(
    "Give all nodes the same nccl.conf, or set the variable in the job script, which overrules it",
    cost="none: the ranks then do the same",
    undo="put the former file back",
    untried="the doctor changes no file",
)
