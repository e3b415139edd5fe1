"""DD444-DD446: connections between the GPUs of a node that NCCL could not set up, as its log reports."""

from collections.abc import Iterator

from ddp_doctor.checks.node.topology.wording import REPAIR_FABRIC
from ddp_doctor.facts.node.host import Host
from ddp_doctor.model.choices import Confidence, Consequence
from ddp_doctor.model.finding import Draft, Setting
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies import nccl
from ddp_doctor.remedies.kinds import by_administrator
from ddp_doctor.remedies.nccl import ALLOW_NUMA, DISABLE_P2P, WITHOUT_NVLS
from ddp_doctor.views.failed_trials import rank_complaints
from ddp_doctor.wording.nccl_complaints import complained

WITHOUT_CUMEM_HOST = nccl.by_setting(
    "Let NCCL share host memory through /dev/shm, as it did before 2.24",
    Setting(name="NCCL_CUMEM_HOST_ENABLE", value="0", why="NCCL then needs no NUMA calls for its host memory"),
    cost="about 40 MiB of /dev/shm per rank, more with more channels",
)
REPAIR_IMEX = by_administrator(
    "See that the IMEX daemon is up on all nodes of the domain, and that the job has its channel",
    "nvidia-imex-ctl -N",
    "ls -l /dev/nvidia-caps-imex-channels",
    "systemctl status nvidia-imex",
    scope="cluster",
    cost="administrator access; restarting the daemon ends jobs that use it",
    references=("https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/",),
)
WITHOUT_MNNVL = nccl.by_setting(
    "Leave NVLink to the GPUs within each node until IMEX works",
    Setting(name="NCCL_MNNVL_ENABLE", value="0", why="NCCL then takes the network between nodes"),
    cost="many times slower: the network replaces NVLink between nodes",
)
WITHOUT_CUMEM = nccl.by_setting(
    "Let NCCL share GPU memory the older way (CUDA IPC)",
    Setting(name="NCCL_CUMEM_ENABLE", value="0", why="NCCL then imports no memory handles of CUDA's VMM"),
    cost="no NVLink SHARP and no registered user buffers; P2P stays in use",
    conflicts=("NCCL_NVLS_ENABLE",),
)


_LOOK_AT_SWITCHES = "Look at the fabric manager, whose release must be the driver's; after a restart reset the GPUs"


@rule("DD444", "nvlink-sharp-cannot-start", Consequence.FAILS)
def nvls_fails(recording: Recording) -> Iterator[Draft]:
    """NCCL failed to set up NVLink SHARP (NVLS).

    Finds: Reports failed trials in which NCCL logs that it could not bind multicast memory, or that a CUDA call of its
        NVLS transport failed.
    Why: The job does not start, although NVLink itself may work. Usually, the fabric manager was restarted while GPUs
        were in use, has another release than the driver, or gives a virtual machine or container no multicast.
    Remedy: Set NCCL_NVLS_ENABLE=0, so ordinary NVLink carries the all-reduce. Then check the fabric manager and reset
        the GPUs.
    See: NCCL src/transport/nvls.cc; NCCL user guide, environment variable NCCL_NVLS_ENABLE
        NVIDIA/nccl issue 1672; pytorch/pytorch pull request 177472
    """
    return complained(
        recording,
        rank_complaints(recording, "DD444"),
        "NCCL cannot set up NVLink SHARP (NVLS) on {who}",
        "NVLS adds up inside the NVSwitches. NVLink alone does the same work, somewhat slower.",
        WITHOUT_NVLS,
        REPAIR_FABRIC.model_copy(update={"summary": _LOOK_AT_SWITCHES}),
    )


@rule("DD445", "nvlink-between-nodes-cannot-start", Consequence.FAILS)
def mnnvl_fails(recording: Recording) -> Iterator[Draft]:
    """NVLink connects GPUs of several nodes (MNNVL), but NCCL cannot use it.

    Finds: Reports failed trials in which NCCL logs that MNNVL is available but not working.
    Why: The job does not start. NVIDIA's IMEX daemon shares memory between nodes. It must run on all nodes of the
        domain, and the job and its container need its channel devices.
    Remedy: Check the output of nvidia-imex-ctl, and /dev/nvidia-caps-imex-channels. Until then, NCCL_MNNVL_ENABLE=0
        limits NVLink to the GPUs within each node.
    See: NCCL src/mnnvl.cc; NVIDIA IMEX service guide; NCCL user guide, environment variable NCCL_MNNVL_ENABLE
    """
    return complained(
        recording,
        rank_complaints(recording, "DD445"),
        "NVLink between nodes (MNNVL) does not work on {who}",
        "The GPUs belong to one NVLink domain, and sharing memory across its nodes fails.",
        REPAIR_IMEX,
        WITHOUT_MNNVL,
    )


@rule("DD446", "nccl-cannot-share-gpu-memory", Consequence.FAILS)
def sharing_fails(recording: Recording) -> Iterator[Draft]:
    """A CUDA call failed while NCCL shared memory between the ranks of a node.

    Finds: Reports failed trials in which NCCL's P2P or shared memory transport reports a CUDA error ("Cuda failure
        217").
    Why: The job does not start. With shared memory, the usual cause is NCCL 2.24 or newer in a container or virtual
        machine without NUMA calls. With P2P, it is a pair of GPUs whose path CUDA does not share, or a container that
        hides one of them.
    Remedy: Shared memory: use --cap-add SYS_NICE, or NCCL_CUMEM_HOST_ENABLE=0. P2P: set NCCL_CUMEM_ENABLE=0, which
        shares memory in the older way, or NCCL_P2P_DISABLE=1 if that does not help.
    See: NCCL src/transport/p2p.cc and shm.cc; NCCL user guide, NCCL_CUMEM_ENABLE and NCCL_CUMEM_HOST_ENABLE
        NVIDIA/nccl issue 1838; ray-project/ray pull request 64109
    """
    group = rank_complaints(recording, "DD446")
    of_host_memory = [complaint for complaint in group if complaint.cause]
    contained = any(fact.in_container for each in of_host_memory[:1] for fact in recording.at(Host, each.node))
    yield from complained(
        recording,
        of_host_memory,
        "NCCL cannot share host memory between the ranks on {who}",
        "Since 2.24 NCCL takes host memory from CUDA, which needs NUMA calls that containers often lack.",
        WITHOUT_CUMEM_HOST,
        *([ALLOW_NUMA] if contained else []),
        confidence=Confidence.LIKELY,
    )
    yield from complained(
        recording,
        [complaint for complaint in group if not complaint.cause],
        "NCCL cannot share GPU memory between the ranks on {who}",
        "NCCL considers P2P between these GPUs possible, but CUDA refuses it.",
        WITHOUT_CUMEM,
        DISABLE_P2P,
        confidence=Confidence.LIKELY,
    )
