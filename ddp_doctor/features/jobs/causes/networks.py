"""Causes in the NCCL output of all ranks together: differing settings, and P2P paths that may not move data."""

from collections.abc import Iterator, Sequence

from ddp_doctor.facts.node.nccl_log import NcclTransportFact
from ddp_doctor.features.jobs.causes.evidence import Output, Suspect, lines
from ddp_doctor.features.jobs.causes.judged import Judged
from ddp_doctor.features.jobs.causes.time_outs import collective_reached, is_first, waited
from ddp_doctor.features.jobs.causes.whose import places, rank_culprit
from ddp_doctor.features.jobs.table import SIGNS, cause_named
from ddp_doctor.features.jobs.views.job_waits import waits
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.settings.agreement import is_compared
from ddp_doctor.wording.nodes import name_list
from ddp_doctor.wording.ranks import capital

#: Maximum evidence lines of one cause.
_MOST_LINES = 8
#: The command that shows whether P2P moves data, and the state of the IOMMU and ACS.
_PROOF = "ddp-doctor run --only topology,p2p"


def suspects(recording: Recording, output: Output) -> Iterator[Suspect]:
    """Yield ranks whose network, number of ranks, release or settings of NCCL differ from those of most ranks."""
    logs = [(at.rank, at.fact) for at in recording.facts(NcclTransportFact)]
    networks = [(log.network, rank) for rank, log in logs if rank is not None and log.network is not None]
    yield from _differing(output, "net-transport-mismatch", "NCCL uses {}", networks)
    inits = [init for _, log in logs for init in log.inits]
    for comm_id in dict.fromkeys(init.comm_id for init in inits):
        sizes = [(str(init.ranks), init.rank) for init in inits if init.comm_id == comm_id]
        yield from _differing(output, "world-sizes-differ", "NCCL was told of {} ranks", sizes)
    if not any(init.complete for init in inits):
        releases = [(log.version, init.rank) for _, log in logs if log.version is not None for init in log.inits[:1]]
        yield from _differing(output, "nccl-settings-differ", "NCCL is {}", releases)
    if any(SIGNS[sign.sign][1] is cause_named("nccl-settings-differ") for sign in output.fact.signs):
        for name in dict.fromkeys(name for _, log in logs for name in log.settings if is_compared(name)):
            settings = [(log.settings.get(name, "not set"), init.rank) for _, log in logs for init in log.inits[:1]]
            yield from _differing(output, "nccl-settings-differ", f"{name} is {{}}", settings)


def _differing(output: Output, name: str, statement: str, values: Sequence[tuple[str, int]]) -> Iterator[Suspect]:
    cause, ranks_of = cause_named(name), grouped(values)
    if len(ranks_of) < 2:
        return
    usual, *others = sorted(ranks_of, key=lambda value: -len(ranks_of[value]))
    fewer = sorted({rank for value in others for rank in ranks_of[value]})
    last = (output.rank(rank).last for rank in fewer)
    judged = Judged(
        cause,
        Confidence.LIKELY,
        lines(sign for sign in output.fact.signs if SIGNS[sign.sign][1] is cause)[:_MOST_LINES]
        or tuple(line for line in last if line is not None),
        tuple(rank_culprit(output, rank) for rank in fewer) if 2 * len(fewer) < len(values) else (),
        places(output, fewer),
        detail=f"{statement.format(' and '.join(others))} on {places(output, fewer)}, and {usual} on the others.",
    )
    yield Suspect(cause, "nccl", Confidence.LIKELY, judged=judged)


def is_over_roce(recording: Recording, suspect: Suspect) -> bool:
    """Return True if all devices that the signs name, or otherwise all that NCCL listed, use RoCE."""
    layers = {hca.name: hca.link_layer for at in recording.facts(NcclTransportFact) for hca in at.fact.hcas}
    named = [layers[name] for sign in suspect.signs if (name := sign.values.get("device")) in layers]
    return {*(named or layers.values())} == {"RoCE"}


def p2p_hang(recording: Recording, output: Output) -> tuple[Judged, ...]:
    """Return a cause if all ranks wait in one of the first collectives and NCCL connected their GPUs only by P2P."""
    cause, number = cause_named("iommu-p2p-hang"), collective_reached(output)
    logs = [at.fact for at in recording.facts(NcclTransportFact)]
    paths = [path for log in logs for path in log.transports]
    if not is_first(number) or {path.kind for path in paths} != {"P2P"}:
        return ()
    those = [wait for of_group in waits(output.fact).values() for wait in of_group.values()]
    came = [wait for wait in those if (wait.seq or wait.enqueued or 0) >= number]
    apart = len({wait.seq for wait in those} - {None}) > 1 or len(came) < len(those)
    if apart or not set(output.ranks) <= {wait.rank for wait in came}:
        return ()
    over = name_list(sorted({"/".join(path.via.split("/")[:2]) for path in paths}))
    rings = "all rings are connected" if any("all rings" in log.connected for log in logs) else "GPUs are connected"
    hosts = name_list(sorted({log.host for log in logs if log.host})) or "the node"
    title = f"Data between the GPUs of {hosts} may not arrive over {over}: collective {number} hung, and {rings}"
    detail = (
        f"{capital(waited(output))} NCCL reports that {rings}, over {over}. An IOMMU that translates addresses, or ACS"
        f" on PCIe bridges, can prevent such transfers. `{_PROOF}` on the same GPUs reports both settings, and whether"
        " data arrives over P2P."
    )
    shown = tuple(sign.where for wait in came for sign in wait.signs[:1])
    named = cause._replace(title=title)
    next_check = f"{_PROOF} on the same GPUs; NCCL_P2P_DISABLE=1 with the same job"
    return (Judged(named, Confidence.POSSIBLE, shown, (), hosts, detail, next_check=next_check),)
