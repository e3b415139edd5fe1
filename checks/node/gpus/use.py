"""DD305, DD306, DD320, DD323: GPUs in use by others or closed to ranks, and modes that cost time."""

from collections.abc import Iterator
from dataclasses import dataclass

from ddp_doctor.checks.node.gpus.condition import by_severity
from ddp_doctor.facts.node.gpus import Gpu, GpusFact
from ddp_doctor.knowledge import thresholds
from ddp_doctor.knowledge.gpu import nvml
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.views.gpus import Hits, hits_of
from ddp_doctor.wording.gpus import gpu_draft, process_list

FREE_MEMORY = by_operator(
    "Stop the processes on the GPU, or request other GPUs",
    "nvidia-smi --query-compute-apps=pid,name,used_memory,gpu_uuid --format=csv",
    "sudo fuser -v /dev/nvidia*",
    cost="the processes may belong to another user's job",
)


@rule("DD305", "gpu-memory-in-use", Consequence.RISK, GpusFact)
def gpu_memory_in_use(recording: Recording) -> Iterator[Draft]:
    """A GPU already has memory in use before the job starts.

    Finds: Reports a GPU with more than 1 GiB or 10% of its memory in use. Severity is error at 90% and info if only
        a desktop uses it. GPUs in MIG mode are skipped.
    Why: The job runs out of memory, or shares the GPU's time: every rank waits for the slowest one.
    Remedy: End leftover processes of earlier jobs, or use other GPUs. If no process holds the memory, reset the GPU
        to free it.
    See: NVML API reference, nvmlDeviceGetMemoryInfo and nvmlDeviceGetComputeRunningProcesses
    """
    facts = {node.node: node.fact for node in recording.facts(GpusFact)}
    for severity, hits in by_severity(recording, _memory).items():
        full = "nearly all " if severity is Severity.ERROR else ""
        holders = ((_holder(gpu, in_container=facts[node].in_container), (node, gpu)) for node, gpu in hits)
        for holder, those in grouped(holders).items():
            yield gpu_draft(
                recording,
                those,
                f"{full}memory is in use {holder.words}",
                _memory_evidence,
                holder.remedy,
                detail=f"Measured before ddp-doctor used the GPU. {holder.detail}",
                severity=severity,
                confidence=Confidence.PROVED if holder is _NAMED else Confidence.LIKELY,
            )


@dataclass(frozen=True)
class _Holder:
    """The process that holds the memory, if the driver shows it, and the fix."""

    words: str
    detail: str
    remedy: Remedy


_NAMED = _Holder("by other processes", "A pid may belong to another container.", FREE_MEMORY)
_HIDDEN = _Holder(
    "by a process outside of this container",
    "In a container, the driver lists only the container's own processes.",
    by_operator(
        "Find the process on the host; it may belong to a job in another container, or be left over from one",
        "nvidia-smi --query-compute-apps=pid,name,used_memory,gpu_uuid --format=csv   # on the host",
        "sudo fuser -v /dev/nvidia*   # on the host",
        cost="the processes may belong to another user's job",
    ),
)
_UNLISTED = _Holder("by other processes", "The driver lists no processes.", FREE_MEMORY)
_LEAKED = _Holder(
    "by a process that the driver does not list",
    "Most likely a killed job left it: a process that cannot exit, or memory without an owner.",
    by_operator(
        "End the processes that hold the GPU's device files (root sees all of them); if none"
        " is left or they do not exit, reset the GPU or reboot",
        "sudo fuser -v /dev/nvidia*",
        "ps -eo pid,ppid,user,stat,wchan:32,cmd | awk '$4 ~ /^[DZ]/'   # defunct (Z), or stuck in the kernel (D)",
        "sudo nvidia-smi --gpu-reset -i INDEX",
        cost="the processes may belong to another user's job; the reset ends every process on the GPU",
    ),
)


def _holder(gpu: Gpu, *, in_container: bool) -> _Holder:
    if gpu.processes:
        return _NAMED
    if "compute_processes" in gpu.unavailable:
        return _UNLISTED
    return _HIDDEN if in_container else _LEAKED


def _memory(gpu: Gpu) -> Severity | None:
    if not gpu.holds_foreign_data():
        return None
    if gpu.memory_of_others_bytes >= thresholds.GPU_MEMORY_FULL_SHARE * (gpu.memory_total_bytes or 0):
        return Severity.ERROR
    return Severity.INFO if gpu.processes and not gpu.computing() else Severity.WARNING


def _memory_evidence(gpu: Gpu) -> Evidence:
    used, total = gpu.memory_of_others_bytes / thresholds.GIB, (gpu.memory_total_bytes or 0) / thresholds.GIB
    return Evidence(
        text=f"{used:.1f} of {total:.1f} GiB in use, {_process_words(gpu)}",
        value=round(used, 3),
        unit="GiB",
        expected=thresholds.GPU_MEMORY_IN_USE_BYTES / thresholds.GIB,
        expected_from="an idle GPU uses a few MiB, a bare CUDA context less than 1 GiB",
    )


def _process_words(gpu: Gpu) -> str:
    if not gpu.processes:
        return "and the driver lists no process"
    return f"by {process_list(gpu.processes)}"


@rule("DD306", "gpu-compute-mode-refuses-ranks", Consequence.FAILS, GpusFact)
def gpu_compute_mode_refuses_ranks(recording: Recording) -> Iterator[Draft]:
    """No rank can open a CUDA context on a GPU of the job.

    Finds: Compute mode "prohibited"; or "exclusive process" while another process holds the GPU. Exclusive mode
        without such a process is fine, because DDP has one rank per GPU. So is an MPS server, which shares the GPU
        among its clients.
    Why: The rank dies with "CUDA-capable device(s) is/are busy or unavailable", or takes another rank's GPU.
    Remedy: Set the mode to default, or end the process that holds the GPU.
    See: NVML API reference, nvmlComputeMode_t; CUDA C++ Programming Guide, Compute Modes
    """
    for severity, hits in by_severity(recording, _mode).items():
        modes = dict.fromkeys((gpu.compute_mode or "").upper() for _, gpu in hits)
        yield gpu_draft(
            recording,
            hits,
            "its compute mode does not allow ranks to use it",
            lambda gpu: Evidence(text=_mode_words(gpu), expected_from="each rank needs one CUDA context"),
            by_operator(
                "Set the compute mode to default, or end the process that holds the GPU",
                "sudo nvidia-smi -i INDEX -c DEFAULT",
                cost="root access; several processes may share the GPU",
                undo=f"sudo nvidia-smi -i INDEX -c {' or '.join(modes)}",
            ),
            detail="Opening the GPU fails with cudaErrorDevicesUnavailable.",
            severity=severity,
            confidence=Confidence.PROVED if severity is Severity.ERROR else Confidence.POSSIBLE,
        )


def _mode(gpu: Gpu) -> Severity | None:
    if gpu.compute_mode == "prohibited":
        return Severity.ERROR
    holders = gpu.computing()
    if gpu.compute_mode not in ("exclusive_process", "exclusive_thread") or not holders:
        return None
    if any((process.name or "").startswith(nvml.MPS_SERVER) for process in holders):
        return None
    # A process in another PID namespace has no name here; it may be the MPS server.
    return Severity.ERROR if all(process.name for process in holders) else Severity.WARNING


def _mode_words(gpu: Gpu) -> str:
    mode = f"compute mode {(gpu.compute_mode or '').replace('_', ' ')}"
    return f"{mode}, held {_process_words(gpu)}" if gpu.computing() else mode


@rule("DD320", "persistence-mode-off", Consequence.KNOWN, GpusFact)
def persistence_mode_off(recording: Recording) -> Iterator[Draft]:
    """The driver shuts down GPUs when no process uses them.

    Finds: Persistence mode off on a GPU that no display or other process keeps awake.
    Why: The first process on the GPU waits some seconds per GPU for the driver to start it, and the driver forgets
        set clocks and limits between jobs.
    Remedy: Run nvidia-persistenced.
    See: NVIDIA Driver Persistence
    """
    hits = hits_of(
        recording, lambda gpu: gpu.persistence_mode is False and not gpu.display_active and not gpu.processes
    )
    if hits:
        yield gpu_draft(
            recording,
            hits,
            "persistence mode is off",
            lambda _: Evidence(text="persistence mode off", expected_from=nvml.PERSISTENCE_GUIDE),
            by_operator(
                "Run nvidia-persistenced, which keeps the GPUs initialized between processes",
                "sudo systemctl enable --now nvidia-persistenced",
                cost="root access; slightly more idle power",
                undo="sudo systemctl disable --now nvidia-persistenced",
                references=(nvml.PERSISTENCE_GUIDE,),
            ),
            detail="The first job after a pause waits a few seconds per GPU while the driver initializes it.",
        )


@rule("DD323", "gpu-without-peer-access", Consequence.KNOWN, GpusFact)
def gpu_without_peer_access(recording: Recording) -> Iterator[Draft]:
    """Virtualization or encryption keeps GPUs from reaching each other's memory.

    Finds: A virtual GPU (vGPU), or enabled confidential computing. An entire GPU passed through to a virtual
        machine is not reported.
    Why: There may be no peer-to-peer path: NCCL then copies through the host's memory, and with confidential
        computing it also encrypts the data.
    Remedy: No change is needed if this is intended; expect the rates of copies through the host.
    See: NVIDIA Virtual GPU Software User Guide; NVIDIA Confidential Computing deployment guides
    """
    virtual = hits_of(recording, lambda gpu: gpu.virtualization == "vgpu")
    if virtual:
        yield _draft(
            recording, virtual, "it is a virtual GPU (vGPU), which may not support direct copies (P2P)", "vGPU"
        )
    on = [node for node in recording.facts(GpusFact) if node.fact.confidential_compute]
    protected = [(node.node, gpu) for node in on for gpu in node.fact.of_the_job()]
    if protected:
        words = "confidential computing is on, which encrypts bus traffic"
        yield _draft(recording, protected, words, "confidential computing on")


def _draft(recording: Recording, hits: Hits, words: str, seen: str) -> Draft:
    return gpu_draft(
        recording,
        hits,
        words,
        lambda gpu: Evidence(text=f"{seen} ({gpu.name})", expected_from="direct copies between whole GPUs"),
        detail="NCCL then copies data through host memory, at a fraction of the rate.",
        severity=Severity.INFO,
    )
