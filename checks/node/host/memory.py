"""DD221 - DD223, DD225: too little shared memory, locked memory, open files, or memory at all."""

from collections.abc import Iterator

from ddp_doctor.checks.node.host.shortages import shortage_draft, shortages
from ddp_doctor.facts.node.host import Host
from ddp_doctor.knowledge import thresholds
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording, World
from ddp_doctor.model.rule import rule
from ddp_doctor.probing.host_limits import in_units
from ddp_doctor.remedies import host_limits
from ddp_doctor.remedies.host_limits import UNCHANGED
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.views.nccl_complaints import all_said


@rule("DD221", "shared-memory-too-small", Severity.WARNING, Host)
def shared_memory_too_small(recording: Recording) -> Iterator[Draft]:
    """Shared memory is full, or too small for NCCL or for data loaders.

    What it finds
        /dev/shm has less free space than one segment of NCCL (an error with several NCCL ranks on the node),
        than the segments of these ranks (a warning), or no more than Docker's 64 MiB (information).

    Why it matters
        NCCL fails to initialise, and the worker processes of data loaders die of a bus error.

    Remedy
        Docker: --shm-size or --ipc=host. Kubernetes: an emptyDir with medium: Memory at /dev/shm. Elsewhere:
        delete leftover segments, or remount it with a larger size.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    for short in shortages(recording, _shm, lambda fact: fact.shm_free_bytes, of_the_job=False):
        if all_said(recording, (node.node for node in short.nodes), "shm"):
            continue  # NCCL failed over it, which is a finding of its own
        fact, ranks = short.worst.fact, short.ranks
        free, total = fact.shm_free_bytes or 0, fact.shm_total_bytes or 0
        wanted = max(ranks * thresholds.NCCL_SHM_PER_RANK_BYTES, thresholds.DOCKER_SHM_BYTES)
        text, users = (
            f"{in_units(free)} of {in_units(total)} free",
            "NCCL" if _nccl(short.world, ranks) else "data loaders",
        )
        saw = Evidence(
            text=f"in /dev/shm {text}",
            value=free,
            unit="B",
            expected=wanted,
            expected_from=f"segments of {ranks} NCCL ranks; Docker's default",
        )
        title = f"Shared memory on {{who}} is too small for {users}: {text} in /dev/shm"
        remedy = host_limits.shared_memory(total, ranks, in_container=fact.in_container)
        detail = f"{in_units(wanted)} or more are wanted. NCCL fails at its start, worker processes by a bus error."
        yield shortage_draft(recording, short, title, saw, remedy, detail=detail)


def _nccl(world: World, ranks: int) -> bool:
    """Whether NCCL's ranks on one node share memory."""
    return world.backend == "nccl" and ranks > 1


def _shm(fact: Host, ranks: int, world: World) -> Severity | None:
    if fact.shm_free_bytes is None:
        return None
    if fact.shm_free_bytes < thresholds.NCCL_SHM_SEGMENT_BYTES:
        return Severity.ERROR if _nccl(world, ranks) else Severity.WARNING
    if _nccl(world, ranks) and fact.shm_free_bytes < ranks * thresholds.NCCL_SHM_PER_RANK_BYTES:
        return Severity.WARNING
    return Severity.INFO if fact.shm_free_bytes <= thresholds.DOCKER_SHM_BYTES else None


@rule("DD222", "locked-memory-too-low-for-rdma", Severity.ERROR, Host)
def locked_memory_too_low_for_rdma(recording: Recording) -> Iterator[Draft]:
    """RDMA devices are there, and too little memory may be locked to use them.

    What it finds
        RLIMIT_MEMLOCK under 64 MiB for NCCL ranks on a node with an active RDMA port that NCCL is not kept
        from. A warning where the job has one node only, and so may never use it.

    Why it matters
        NCCL's connections fail: "ibv_reg_mr failed with error Cannot allocate memory".

    Remedy
        Make it unlimited where the process has it from: --ulimit memlock=-1, slurmd, or limits.d.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    for short in shortages(recording, _memlock, lambda fact: fact.memlock_bytes):
        if all_said(recording, (node.node for node in short.nodes), "memlock"):
            continue
        fact = short.worst.fact
        allowed, devices = fact.memlock_bytes or 0, ", ".join(fact.rdma_devices)
        text, wanted = f"RLIMIT_MEMLOCK {in_units(allowed)} beside {devices}", thresholds.RDMA_MEMLOCK_BYTES
        saw = Evidence(
            text=text,
            value=allowed,
            unit="B",
            expected=wanted,
            expected_from="NCCL's user guide asks for unlimited",
        )
        title = f"Only {in_units(allowed)} of memory may be locked on {{who}}, too little for RDMA"
        remedy = host_limits.locked_memory(short.world.launcher, in_container=fact.in_container)
        detail = f"NCCL pins the buffers of every connection over {devices}, and fails where it may not."
        yield shortage_draft(recording, short, title, saw, remedy, detail=detail)


def _memlock(fact: Host, _ranks: int, world: World) -> Severity | None:
    unused = world.backend != "nccl" or not fact.rdma_devices or fact.rdma_unused_by is not None
    too_low = fact.memlock_bytes is not None and fact.memlock_bytes < thresholds.RDMA_MEMLOCK_BYTES
    if unused or fact.memlock_is_ignored or not too_low:
        return None
    return Severity.ERROR if world.nnodes > 1 else Severity.WARNING


@rule("DD225", "too-little-memory-for-ranks", Severity.WARNING, Host)
def too_little_memory_for_ranks(recording: Recording) -> Iterator[Draft]:
    """Less free memory than bare ranks take.

    What it finds
        MemAvailable, or what is free under the control group's limit, below 206 MiB for each rank.

    Why it matters
        The kernel kills a rank (exit code -9), and the others wait for it until their time-out.

    Remedy
        End what fills the memory, ask for more, or start fewer ranks.

    References
        https://docs.kernel.org/admin-guide/cgroup-v2.html#memory
    """
    for short in shortages(recording, _memory, lambda fact: fact.free_memory_bytes, of_the_job=False):
        free = short.worst.fact.free_memory_bytes or 0
        ranks, wanted = short.ranks, thresholds.memory(short.ranks)
        saw = Evidence(
            text=f"{in_units(free)} available",
            value=free,
            unit="B",
            expected=wanted,
            expected_from="measured: a bare rank takes 206 MiB",
        )
        title = f"{in_units(free)} of memory are free on {{who}}, too little for {ranks} ranks"
        detail = "The kernel will kill a rank, and the others will wait for it until their time-out."
        yield shortage_draft(recording, short, title, saw, _more_memory(ranks), detail=detail)


def _memory(fact: Host, ranks: int, _world: World) -> Severity | None:
    free = fact.free_memory_bytes
    return Severity.WARNING if free is not None and free < thresholds.memory(ranks) else None


def _more_memory(ranks: int) -> Remedy:
    """More memory, or fewer ranks."""
    return remedy(
        f"Give the job more memory, start fewer than {ranks} ranks, or end what else fills it",
        "ps -eo pid,user,rss,comm --sort=-rss | head",
        untried="the doctor cannot give itself more memory",
    )


@rule("DD223", "too-few-open-files", Severity.WARNING, Host)
def too_few_open_files(recording: Recording) -> Iterator[Draft]:
    """The limit of open files is too low for a world of this size.

    What it finds
        RLIMIT_NOFILE under 128 and two for each rank of the world.

    Why it matters
        Every connection, and every tensor that a data loader passes, is a file: "Too many open files".

    Remedy
        ulimit -n in the script that starts the job.

    References
        https://docs.pytorch.org/docs/stable/multiprocessing.html#sharing-strategies
    """
    for short in shortages(recording, _files, lambda fact: fact.open_files):
        allowed, wanted = short.worst.fact.open_files or 0, thresholds.open_files(short.world.world_size)
        saw = Evidence(
            text=f"RLIMIT_NOFILE {allowed}",
            value=allowed,
            unit="files",
            expected=wanted,
            expected_from="measured on ranks with gloo",
        )
        title = f"Only {allowed} files may be open on {{who}}, too few for {short.world.world_size} ranks"
        detail = "Each connection takes one; a rank that runs out fails with Too many open files."
        yield shortage_draft(recording, short, title, saw, _more_files(max(wanted, 4096)), detail=detail)


def _files(fact: Host, _ranks: int, world: World) -> Severity | None:
    few = fact.open_files is not None and fact.open_files < thresholds.open_files(world.world_size)
    return Severity.WARNING if few else None


def _more_files(wanted: int) -> Remedy:
    """More file descriptors, in the shell that starts the job."""
    return remedy(
        f"Raise the limit of open files to {wanted} or more before the job starts",
        f"ulimit -n {wanted}",
        scope="job",
        undo="start a new shell",
        untried=UNCHANGED,
    )
