r"""How GPUs and NICs are wired: ``nvidia-smi topo -m``, which NCCL's choice of paths can be checked against.

            GPU0    GPU1    NIC0    NIC1    NIC2    CPU Affinity    NUMA Affinity   GPU NUMA ID
    GPU0     X      SYS     SYS     SYS     NODE    0-31,64-95      0               N/A
    GPU1    SYS      X      NODE    NODE    SYS     32-63,96-127    1               N/A
    …
    NIC Legend:

      NIC0: mlx5_2

DDP's gradients cross these paths at every step. Where NCCL copies directly between two GPUs (P2P) over
a path that the machine announces but does not carry, the first all-reduce spins for ever at 100 %
utilisation and nothing is logged; where an NVLink is down, every step waits for the slowest pair.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from pydantic import Field

from ddp_doctor.knowledge import link_codes as codes
from ddp_doctor.knowledge.nvlink_peers import Shortfall, shortfalls
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Confidence, Severity, Status, Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import Absent, Fact, Failed, Reading, TookTooLong
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording, Seen
from ddp_doctor.model.rule import rule
from ddp_doctor.parse import host_gpus
from ddp_doctor.parse.cpuinfo import cpu_vendor
from ddp_doctor.parse.nccl_log import NcclTransportFact
from ddp_doctor.parse.p2p_stalls import Stall, find_stalls, logs_by_node, nodes_nccl_ran_on
from ddp_doctor.parse.topo_matrix import TopologyError, TopologyMatrix, parse_matrices, parse_matrix
from ddp_doctor.phrases.nodes import by_cause, node_culprits, node_names
from ddp_doctor.phrases.p2p import DISABLE_P2P, REPAIR_PATH, UNSET_LEVEL, look_at_nvlinks, use_hca
from ddp_doctor.phrases.ranks import rank_list

#: A paste may be a whole log; only its beginning goes into the recording.
_KEPT_CHARACTERS = 200_000
_SETTINGS = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_IB_HCA")


class TopologyFact(TopologyMatrix, Fact):
    """One host's matrix, and what decides with it how far NCCL's P2P reaches.

    ``cpu_vendor`` is as /proc/cpuinfo says ("AuthenticAMD", "GenuineIntel", "ARM"), None where unknown;
    ``nccl_settings`` are the variables about P2P and HCAs that the job will inherit.
    """

    KIND: ClassVar[str] = "topology/1"

    cpu_vendor: str | None = None
    nccl_settings: dict[str, str] = Field(default_factory=dict)

    def p2p_limit(self, log: NcclTransportFact) -> tuple[str, str]:
        """How far NCCL lets GPUs talk directly here, and what says so."""
        level = log.p2p_level or self.nccl_settings.get("NCCL_P2P_LEVEL")
        return codes.p2p_limit(len(self.gpus), self.cpu_vendor, level)


def read_pasted(text: str) -> tuple[Reading, ...]:
    """A pasted or saved output as readings: one a matrix, or the one that says why there is none."""
    raw = text[:_KEPT_CHARACTERS]
    try:
        facts = [TopologyFact(**dict(matrix)) for matrix in parse_matrices(text)]
    except TopologyError as error:
        return (Reading(check="topology", status=Status.FAILED, reason=str(error), raw=raw),)
    return tuple(
        Reading(check="topology", status=Status.COLLECTED, node=host, fact=fact.recorded(), raw=raw)
        for host, fact in enumerate(facts)
    )


def probe(ctx: Context) -> TopologyFact:
    """Ask nvidia-smi for the matrix of this host."""
    result = ctx.run(["nvidia-smi", "topo", "-m"])
    if result.status == "missing":
        raise Absent("nvidia-smi is not installed here, so there is no NVIDIA driver to ask")
    raw = result.stdout + result.stderr
    ctx.keep(raw)
    if result.status == "timed_out":
        raise TookTooLong("nvidia-smi topo -m did not answer in time: the driver may hang")
    try:
        matrix = parse_matrix(raw)
    except TopologyError as error:
        said = next((line.strip()[:200] for line in raw.splitlines() if line.strip()), "nothing")
        if not _gpu_is_due(ctx):
            raise Absent(f"there is no NVIDIA GPU here; nvidia-smi says: {said}") from None
        raise Failed(f"nvidia-smi topo -m gave no topology ({error}); it says: {said}") from None
    settings = {name: ctx.env[name] for name in _SETTINGS if name in ctx.env}
    return TopologyFact(**dict(matrix), cpu_vendor=cpu_vendor(ctx), nccl_settings=settings)


def _gpu_is_due(ctx: Context) -> bool:
    """Whether this machine, or what a container was given of it, has a GPU that should answer."""
    found = host_gpus.pci_gpus(ctx)
    given = any(name[6:].isdecimal() for name in host_gpus.device_nodes(ctx))  # /dev/nvidia0
    if found is None or host_gpus.in_container(ctx):
        return given or found is None
    return given or any(not gpu.passed_through for gpu in found)


@rule("DD401", "p2p-stalls-between-gpus", Severity.ERROR, TopologyFact)
def p2p_stalls(recording: Recording) -> Iterator[Draft]:
    """Direct copies between two GPUs never end.

    What it finds
        All ranks of a node entered an all-reduce or a send, none left it, and NCCL's log says that the
        GPUs of two of them talk directly (``via P2P/…``) over PCIe or the link between the sockets.

    Why it matters
        The job hangs in its first all-reduce, at 100 % GPU utilisation and without a message. The
        machine announces peer access that it does not carry: mostly PCIe access control (ACS) or an
        IOMMU sends the traffic astray.

    Remedy
        Turn off ACS on the PCIe bridges, or the IOMMU, in the BIOS or on the kernel's command line.
        Until then NCCL_P2P_DISABLE=1 sends the traffic through host memory: slower, but it ends, and
        it is the proof that P2P was to blame. Where NCCL_P2P_LEVEL widened NCCL's own limit, unset it.

    References
        NCCL user guide, Troubleshooting, PCI Access Control Services (ACS)
        NCCL src/graph/paths.cc, ncclTopoCheckP2p: how far P2P goes
    """
    stalls = _stalls(recording)
    if not stalls:
        return
    hosts = [seen for seen in recording.facts(TopologyFact) if seen.node in {one.node for one in stalls}]
    fact = hosts[0].fact
    pairs = ", ".join(dict.fromkeys(f"{'-'.join(one.gpus)} ({one.via} over {one.code})" for one in stalls))
    yield Draft(
        title=f"GPUs on {_where(recording, hosts)} stall when NCCL copies directly between them: {pairs}",
        detail=(
            "Every rank entered the step and none left it, so no rank is late; NCCL's log says that these"
            " GPUs talk by P2P. The machine announces that path and does not carry it."
        ),
        confidence=Confidence.LIKELY if len(stalls) == 1 or stalls[0].isolated else Confidence.POSSIBLE,
        culprits=tuple(_culprit(recording, one.node, one.gpus, one.ranks) for one in stalls),
        evidence=tuple(_stall_evidence(stalls, fact)),
        remedies=(
            REPAIR_PATH,
            DISABLE_P2P,
            *([UNSET_LEVEL] if _widened(fact, stalls) else []),
            *(_hca(fact) if _nccl_chose_another(recording, fact, stalls[0].log) else []),
        ),
    )


def _widened(fact: TopologyFact, stalls: Sequence[Stall]) -> bool:
    """Whether P2P goes so far only because someone set NCCL_P2P_LEVEL."""
    limit, _ = codes.p2p_limit(len(fact.gpus), fact.cpu_vendor, None)
    return not all(codes.allowed(one.code, limit) for one in stalls)


def _stalls(recording: Recording) -> list[Stall]:
    matrices = {seen.node: seen.fact for seen in recording.facts(TopologyFact)}
    return recording.once("stalls over P2P", lambda: find_stalls(matrices, recording.trials))


def _where(recording: Recording, seen: Sequence[Seen[TopologyFact]]) -> str:
    if recording.world:
        return node_names(recording, seen)
    return "this host" if len(recording.readings) == 1 else f"host {seen[0].node + 1} of the text"


def _culprit(recording: Recording, node: int, gpus: Sequence[str], ranks: Sequence[int] = ()) -> Culprit:
    """One GPU, or a pair of GPUs of one node and, where known, their ranks."""
    host = recording.world.hostname(node) if recording.world else None
    number = int(gpus[0].removeprefix("GPU"))
    if len(gpus) == 1:
        return Culprit(kind="gpu", node=host, node_rank=node, gpu=number, name=gpus[0])
    one, two = ranks or (None, None)
    name = "-".join(gpus)
    return Culprit(
        kind="pair", node=host, node_rank=node, rank=one, gpu=number, peer_node=host, peer_rank=two, name=name
    )


def _stall_evidence(stalls: Sequence[Stall], fact: TopologyFact) -> Iterator[Evidence]:
    trial = stalls[0].trial
    check = trial.judged_check or ""
    text = f"{rank_list([rank for one in stalls for rank in one.ranks])} entered and did not leave"
    yield Evidence(check=check, text=text, value=trial.waited_s, unit="s")
    for one in stalls:
        yield Evidence(check=check, text=f"NCCL's log: ranks {one.ranks[0]} and {one.ranks[1]} via {one.via}")
        yield _path_evidence(one.gpus, one.code)
    limit, why = fact.p2p_limit(stalls[0].log)
    if all(codes.allowed(one.code, limit) for one in stalls):
        yield Evidence(check="topology", text=f"P2P is allowed up to {limit}: {why}")


def _path_evidence(gpus: tuple[str, str], code: str) -> Evidence:
    return Evidence(check="topology", text=f"{'-'.join(gpus)} is {code}: {codes.link_code(code).meaning}")


def _hca(fact: TopologyFact) -> list[Remedy]:
    """The candidate for NCCL_IB_HCA, where the matrix has one: bonded, else nearest to each GPU."""
    devices = fact.candidate_hcas()
    others = tuple(name for name in fact.hcas().values() if name not in devices)
    return [use_hca(devices, others, "; ".join(fact.nearest_in_words()))] if devices else []


def _nccl_chose_another(recording: Recording, fact: TopologyFact, log: NcclTransportFact) -> bool:
    """Whether there are several nodes and RoCE, and NCCL's log shows other HCAs than the candidate."""
    several = recording.world is not None and recording.world.nnodes > 1
    roce = any(hca.link_layer == "RoCE" for hca in log.hcas)
    return several and roce and not set(log.used_hcas()) <= set(fact.candidate_hcas())


@rule("DD402", "p2p-may-cross-sockets", Severity.WARNING, TopologyFact)
def p2p_may_cross_sockets(recording: Recording) -> Iterator[Draft]:
    """NCCL may copy directly between GPUs of different sockets.

    What it finds
        Two GPUs without NVLink whose path is SYS (SOC in old drivers), where NCCL allows P2P that far:
        NCCL_P2P_LEVEL says so, or there are at most two GPUs and the CPU is, or may be, AMD's. Silent
        where NCCL ran over these GPUs and ended, or where NCCL_P2P_DISABLE=1 is set.

    Why it matters
        NCCL's own limit is PXB, because the link between the sockets carries peer traffic badly: on
        some machines the first all-reduce hangs at 100 % utilisation. Most such machines work.

    Remedy
        None unless it hangs. Then NCCL_P2P_DISABLE=1 tells whether P2P is to blame, and ACS and IOMMU
        are what to repair. For several nodes, the bonded or nearest HCA is the one to try.

    References
        NCCL src/graph/paths.cc, ncclTopoCheckP2p; src/graph/topo.h, PATH_SYS
        NCCL user guide, environment variables NCCL_P2P_LEVEL and NCCL_IB_HCA
    """
    for (pairs, why, _), group in _crossing(recording).items():
        fact = group[0].fact
        names = ", ".join("-".join(pair) for pair in pairs)
        where = _where(recording, group)
        paths = [_path_evidence(pair, fact.links[pair[0]][pair[1]]) for pair in pairs]
        yield Draft(
            title=f"NCCL may copy directly between the sockets of {where} (P2P over SYS): {names}",
            detail=f"On some machines such a job hangs in its first all-reduce. P2P may reach so far: {why}.",
            confidence=Confidence.POSSIBLE,
            culprits=tuple(_culprit(recording, one.node, pair) for one in group for pair in pairs),
            evidence=(*paths, *(Evidence(check="topology", text=text) for text in fact.nearest_in_words())),
            remedies=(
                DISABLE_P2P.model_copy(
                    update={"summary": "If it hangs, send the traffic through host memory"}
                ),
                *([] if "NCCL_IB_HCA" in fact.nccl_settings else _hca(fact)),
            ),
        )


#: What makes two nodes one finding: the pairs, what allows P2P between them, and the advice.
_Cause = tuple[tuple[tuple[str, str], ...], str, tuple[str, ...]]


def _crossing(recording: Recording) -> dict[_Cause, list[Seen[TopologyFact]]]:
    groups: dict[_Cause, list[Seen[TopologyFact]]] = {}
    settled = nodes_nccl_ran_on(recording.trials) | {stall.node for stall in _stalls(recording)}
    unsettled = [seen for seen in recording.facts(TopologyFact) if seen.node not in settled]
    logs = logs_by_node(recording.trials) if unsettled else {}
    for seen in unsettled:
        fact, log = seen.fact, logs.get(seen.node, NcclTransportFact())
        pairs = tuple((one, two) for one, two, code in fact.gpu_pairs() if codes.crosses_sockets(code))
        limit, why = fact.p2p_limit(log)
        off = "1" in {log.p2p_disable, fact.nccl_settings.get("NCCL_P2P_DISABLE")}
        if pairs and limit == "SYS" and not off:
            groups.setdefault((pairs, why, fact.candidate_hcas()), []).append(seen)
    return groups


@rule("DD403", "nvlinks-missing", Severity.WARNING, TopologyFact)
def nvlinks_missing(recording: Recording) -> Iterator[Draft]:
    """A GPU has fewer NVLinks than its peers.

    What it finds
        Among GPUs that are wired alike (all behind NVSwitch, or bridged in pairs), one that the matrix
        gives a smaller NV number than the others. A GPU with none at all is an info only: it may be a
        display card.

    Why it matters
        Every step of an all-reduce waits for the slowest link, so all GPUs lose what one of them lacks.
        A link that is down is often the first sign of a failing one.

    Remedy
        Look at the links' state and errors, and at Xid 74 in the kernel log; reset the GPU, reseat the
        bridge, or hand the board to service.

    References
        NVIDIA Xid catalog, 74 and 144 to 150
        nvidia-smi nvlink -s and -e
    """
    for shorts, group in by_cause(recording.facts(TopologyFact), _shortfalls).items():
        for short in shorts:
            yield _shortfall_draft(recording, group, short)


def _shortfalls(fact: TopologyFact) -> tuple[Shortfall, ...] | None:
    pairs = {(one, two): codes.nvlinks(code) for one, two, code in fact.gpu_pairs()}
    return tuple(shortfalls(fact.gpus, pairs)) or None


def _shortfall_draft(recording: Recording, group: Sequence[Seen[TopologyFact]], short: Shortfall) -> Draft:
    names = " and ".join(short.gpus)
    have = f"share {short.links}" if len(short.gpus) > 1 else f"has {short.links or 'none'}"
    where = _where(recording, group)
    text, peers = f"NVLinks of {names}", "the other GPUs of the same matrix"
    evidence = Evidence(
        check="topology", text=text, value=short.links, expected=short.expected, expected_from=peers
    )
    return Draft(
        title=f"NVLinks are missing on {where}: {names} {have} where the others have {short.expected}",
        detail="All-reduce goes at the pace of the slowest link, so every GPU of the node loses by it.",
        confidence=Confidence.LIKELY if short.links else Confidence.POSSIBLE,
        severity=None if short.links else Severity.INFO,
        culprits=tuple(_culprit(recording, seen.node, [gpu]) for seen in group for gpu in short.gpus),
        evidence=(evidence,),
        remedies=(look_at_nvlinks(short.gpus),),
    )


@rule("DD404", "topology-partly-unclear", Severity.INFO, TopologyFact)
def topology_partly_unclear(recording: Recording) -> Iterator[Draft]:
    """Part of the matrix contradicts itself or was not taken over.

    What it finds
        Two rows that disagree about one pair, a NIC whose name in the legend is garbled, missing or no
        device name, a row that appears twice, a CPU list that no machine has.

    Why it matters
        Advice rests on this matrix. A pair whose rows disagree gets none, and a NIC without a proper
        name is never put into a setting.

    Remedy
        Rows disagree where one GPU has MIG enabled, which is in order. nvidia-smi garbles its own
        legend with 40 NICs and more. For anything else, paste the output again, whole.

    References
        nvidia-smi topo -m; nvidia-smi -q -d MIG
    """
    for warnings, group in by_cause(
        recording.facts(TopologyFact), lambda fact: fact.warnings or None
    ).items():
        yield Draft(
            title=f"Part of the GPU topology of {_where(recording, group)} is unclear: {warnings[0]}",
            detail="Nothing is concluded from the parts named here.",
            confidence=Confidence.PROVED,
            culprits=node_culprits(recording, group) if recording.world else (),
            evidence=tuple(Evidence(check="topology", text=text) for text in warnings),
        )


@rule("DD405", "topology-not-understood", Severity.WARNING)
def topology_not_understood(recording: Recording) -> Iterator[Draft]:
    """The pasted text is not a matrix that can be read with certainty.

    What it finds
        Text that holds no output of ``nvidia-smi topo -m``, or one that is cut off, interrupted,
        garbled, or of a format that is not known. The reason and the line are named.

    Why it matters
        Advice from a misread matrix would be worse than none, so nothing is guessed.

    Remedy
        Save the output with ``nvidia-smi topo -m > topo.txt`` instead of copying it from a window.

    References
        nvidia-smi topo --help
    """
    if recording.options.command != "topology":
        return  # a live nvidia-smi that fails is a reading without a fact, and the report says so
    for reading in recording.of_check("topology"):
        if reading.status is Status.FAILED:
            yield Draft(
                title=f"The topology was not understood: {reading.reason}",
                detail="Nothing is concluded from a matrix that may be misread.",
                confidence=Confidence.PROVED,
                remedies=(
                    Remedy(summary="Save the whole output", commands=("nvidia-smi topo -m > topo.txt",)),
                ),
            )


CHECK = Check(
    id="topology",
    title="Paths between GPUs and NICs",
    where=Where.NODE,
    probe=probe,
    facts=(TopologyFact,),
    rules=(
        p2p_stalls,
        p2p_may_cross_sockets,
        nvlinks_missing,
        topology_partly_unclear,
        topology_not_understood,
    ),
    cost_s=0.5,
    deadline_s=20.0,  # without persistence mode nvidia-smi first wakes every GPU
)
