"""DD237-DD239: shared, locked or NUMA memory that NCCL requested and did not get, as its log reports."""

from collections.abc import Iterator, Sequence

from ddp_doctor.facts.node.host import Host
from ddp_doctor.model.choices import Confidence, Consequence
from ddp_doctor.model.finding import Draft, Evidence, Remedy, Setting
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies import hardware, nccl
from ddp_doctor.remedies.kinds import by_administrator
from ddp_doctor.remedies.nccl import ALLOW_NUMA
from ddp_doctor.views.failed_trials import RankComplaint, nodes_of, rank_complaints
from ddp_doctor.views.transports import log_of
from ddp_doctor.wording.findings import likely
from ddp_doctor.wording.nccl_complaints import complained
from ddp_doctor.wording.nodes import of_nodes

WITHOUT_SHM = nccl.by_setting(
    "Let NCCL do without shared memory until there is room",
    Setting(name="NCCL_SHM_DISABLE", value="1", why="NCCL then needs no room in /dev/shm"),
    cost="several times slower: GPUs of one node without P2P use the network",
)
_WITHOUT_PERMISSION = WITHOUT_SHM.model_copy(
    update={
        "summary": "Let NCCL work without shared memory until /dev/shm is writable",
        "settings": (Setting(name="NCCL_SHM_DISABLE", value="1", why="NCCL then does not use /dev/shm"),),
    }
)


@rule("DD237", "nccl-cannot-make-shared-memory", Consequence.FAILS)
def no_shared_memory(recording: Recording) -> Iterator[Draft]:
    """NCCL failed to create a segment of shared memory.

    Finds: A failed trial in which NCCL reports that it could not create or extend a segment in /dev/shm: no space
        left, or no permission.
    Why: The job does not start on this node. Docker gives 64 MiB, and one rank of NCCL takes about 10 for each
        peer.
    Remedy: Enlarge /dev/shm (--shm-size or --ipc=host), or allow writing to it. NCCL_SHM_DISABLE=1 is a workaround:
        shared memory traffic then goes through the network stack.
    See: NCCL user guide, Troubleshooting, Shared memory; NCCL src/misc/shmutils.cc
        NVIDIA/nccl issues 290 and 342
    """
    group = rank_complaints(recording, "DD237")
    denied = [complaint for complaint in group if complaint.cause == "shm-permission"]
    ranks = {complaint.rank for complaint in denied}  # NCCL's next line, without a reason, is about the same segment
    too_small = [complaint for complaint in group if complaint.rank not in ranks]
    for some, why, repair, otherwise in (
        (too_small, "no space left in", _larger(recording, too_small), WITHOUT_SHM),
        (denied, "no permission to write to", _ALLOW_SHM, _WITHOUT_PERMISSION),
    ):
        yield from complained(
            recording,
            some,
            f"NCCL could not create its shared memory on {{who}}: {why} /dev/shm",
            "The ranks of one node that copy through host memory need it, and fail where they connect.",
            repair,
            otherwise,
        )


def _larger(recording: Recording, group: Sequence[RankComplaint]) -> Remedy:
    node = nodes_of(group)[0] if group else 0
    fact = next(iter(recording.at(Host, node)), None)
    ranks = len(recording.world.ranks_of(node)) if recording.world else 1
    found = fact.shm_total_bytes or 0 if fact else 0
    return hardware.shared_memory(found, ranks, in_container=fact is not None and fact.in_container)


_ALLOW_SHM = by_administrator(
    "Let all users write to /dev/shm, and start all ranks of the node as one user",
    "ls -ld /dev/shm",
    "sudo chmod 1777 /dev/shm",
    undo="restore the mode that `ls -ld` showed",
    references=(hardware.NCCL_GUIDE,),
)


@rule("DD238", "nccl-cannot-lock-memory", Consequence.FAILS)
def no_locked_memory(recording: Recording) -> Iterator[Draft]:
    """NCCL failed to lock memory for RDMA.

    Finds: A failed trial in which NCCL reports that libibverbs could not allocate: "Call to ibv_reg_mr … failed
        with error Cannot allocate memory", or the same for ibv_create_cq and similar calls.
    Why: Every connection over RDMA pins its buffers: the job ends when its ranks connect, or runs over TCP.
    Remedy: Allow unlimited locked memory at the source of the limit: --ulimit memlock=-1, slurmd, or limits.d.
    See: NCCL user guide, Troubleshooting, InfiniBand; NCCL src/misc/ibvwrap.cc
    """
    group = rank_complaints(recording, "DD238")
    in_container = any(fact.in_container for node in nodes_of(group)[:1] for fact in recording.at(Host, node))
    return complained(
        recording,
        group,
        "NCCL could not lock memory for RDMA on {who}",
        "The limit of locked memory (ulimit -l) that the ranks have is the usual cause.",
        hardware.locked_memory(recording.launcher, in_container=in_container),
        confidence=Confidence.LIKELY,
    )


@rule("DD239", "host-memory-not-placed-near-gpus", Consequence.KNOWN, Host)
def no_numa_calls(recording: Recording) -> Iterator[Draft]:
    """A container may not place memory on NUMA nodes, so NCCL uses /dev/shm.

    Finds: In a container, NCCL's log reports that CUDA's host memory (cuMem) does not work and that it uses
        /dev/shm.
    Why: It works. Memory may then be on the far socket, and /dev/shm must have room for it.
    Remedy: Add --cap-add SYS_NICE, which Docker omits by default.
    See: NCCL src/misc/cudawrap.cc, ncclCuMemHostEnable; NCCL user guide, Troubleshooting, cuMem host allocations
    """
    nodes = [
        node for node in recording.facts(Host) if node.fact.in_container and log_of(recording, node.node).no_cumem_host
    ]
    if nodes:
        yield likely(
            of_nodes(recording, nodes),
            "The container on {who} blocks NUMA calls, so NCCL uses /dev/shm in place of CUDA's host memory",
            Evidence(text="NCCL's log: cuMem host allocations do not appear to be working"),
            ALLOW_NUMA,
            detail="NCCL still works, maybe slower. Docker blocks these calls by default.",
        )
