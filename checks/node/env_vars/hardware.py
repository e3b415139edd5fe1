"""What is known of a node that decides whether a setting costs anything there."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from ddp_doctor.facts.node.gpus import Gpu, GpusFact
from ddp_doctor.facts.node.rdma import RdmaFact
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.knowledge.topology.link_codes import DEFAULT_P2P_LIMIT, allowed, nvlinks
from ddp_doctor.knowledge.topology.nccl_paths import bridged
from ddp_doctor.knowledge.versions import release
from ddp_doctor.model.choices import Status
from ddp_doctor.model.recording import Recording

#: NVLink SHARP and LL128 over a NIC behind another GPU begin with Hopper (NCCL user guide, NCCL_NVLS_ENABLE).
_HOPPER = (9, 0)
#: LL128 begins with Volta (NCCL src/graph/tuning.cc).
_VOLTA = (7, 0)


@dataclass(frozen=True)
class Hardware:
    """One node; None is "nobody looked, or could not"."""

    gpus: int | None = None  # of the job
    nvlink: bool | None = None  # joins some of them
    nvls: bool | None = None  # NVSwitches that can reduce
    rdma: bool | None = None  # active ports that NCCL's own transport drives
    matrix: bool = False  # the paths are known, so that the rules about them judge
    ll128: bool | None = None  # NCCL would use LL128 by itself


def hardware_of(recording: Recording, node: int) -> Hardware:
    """What the node's readings tell."""
    topology = next(iter(recording.at(TopologyFact, node)), None)
    gpus = next(iter(recording.at(GpusFact, node)), None)
    rdma = next(iter(recording.at(RdmaFact, node)), None)
    cards = gpus.of_the_job() if gpus else ()
    job = _job(topology)
    count = len(cards) if gpus and not gpus.nvml_error else len(job) if topology else None
    absent = _absent(recording).get(node, frozenset())
    if count is None and "topology" in absent:
        count = 0
    joined = [nvlinks(topology.links[a][b]) > 0 for a, b in combinations(job, 2)] if topology else []
    known = topology is not None and topology.nvlink_told
    return Hardware(
        gpus=count,
        nvlink=any(joined) if known else None,
        nvls=_has_nvls(cards) if cards else None,
        rdma=bool(rdma.candidates()) if rdma else False if "rdma" in absent else None,
        matrix=topology is not None,
        ll128=_is_ll128_safe(recording, topology, cards) if topology and known and cards else None,
    )


def _absent(recording: Recording) -> Mapping[int, frozenset[str]]:
    """The checks that found nothing to look at, by node."""

    def find() -> dict[int, frozenset[str]]:
        found: dict[int, set[str]] = {}
        for reading in recording.readings:
            if reading.status is Status.ABSENT:
                found.setdefault(reading.node, set()).add(reading.check)
        return {at: frozenset(checks) for at, checks in found.items()}

    return recording.once("absent by node", find)


def _job(topology: TopologyFact | None) -> tuple[str, ...]:
    """The matrix's GPUs that are the job's."""
    if topology is None:
        return ()
    mine = topology.job_gpus if topology.job_gpus is not None else topology.gpus
    return tuple(gpu for gpu in mine if gpu in topology.links and gpu not in topology.mig_gpus)


def _capability(gpu: Gpu) -> tuple[int, ...]:
    return release(gpu.compute_capability or "")


def _has_nvls(cards: tuple[Gpu, ...]) -> bool:
    able = [gpu for gpu in cards if gpu.fabric_state == "completed" and _capability(gpu) >= _HOPPER]
    return len(able) > 1


def _is_ll128_safe(recording: Recording, topology: TopologyFact, cards: tuple[Gpu, ...]) -> bool | None:
    """Whether NCCL would take LL128 by itself (src/graph/tuning.cc); None where that cannot be told."""
    kinds = {_capability(gpu) for gpu in cards}
    if () in kinds:
        return None
    if min(kinds) < _VOLTA or (len(kinds) > 1 and min(kinds) < _HOPPER):
        return False
    job, links = _job(topology), topology.links
    far = [
        (a, b) for a, b in combinations(job, 2) if not nvlinks(links[a][b]) and not bridged(job, links, a, b)
    ]
    if far:
        return False
    if recording.world is None or recording.world.nnodes < 2:
        return True
    near = [any(allowed(links[gpu][nic], DEFAULT_P2P_LIMIT) for nic in topology.nics) for gpu in job]
    if not topology.nics:  # a plug-in may have devices of its own
        return None
    return any(near) if min(kinds) >= _HOPPER else all(near)
