"""Causes in the shared memory of a host or container: /dev/shm, and memory that NCCL shares by CUDA."""

from ddp_doctor.knowledge.job_causes.kinds import (
    NCCL_WARN,
    JobCause,
    Sign,
    host_cause,
    in_code,
    launcher_hint,
    nccl_hint,
    nccl_proof,
    nccl_sign,
    on_node,
    proof,
    remedy,
    setting,
)

_MORE_SHARED_MEMORY = remedy(
    "Give the container more shared memory; in Kubernetes mount an emptyDir with medium: Memory on /dev/shm",
    "docker run --shm-size=8g …",
    container=("--shm-size=8g",),
)

CAUSES = {
    "DDJ101": host_cause(
        name="shm-too-small",
        title="/dev/shm of {who} is too small for NCCL[: no room for {size} more bytes]",
        finds="NCCL cannot make or extend a segment in /dev/shm, because there is no space left on it.",
        why="Ranks of one node that have no P2P between their GPUs exchange data through /dev/shm. A container gets"
        " 64 MB of it unless it is asked for more.",
        remedies=(
            _MORE_SHARED_MEMORY,
            remedy(
                "Let NCCL do without it",
                settings=(setting("NCCL_SHM_DISABLE", "1"),),
                cost="ranks of one node that have no P2P then talk over the network, which is slow",
                undo="unset NCCL_SHM_DISABLE",
            ),
        ),
        next_check="df -h /dev/shm; ls -lh /dev/shm, in the container of the job",
        references=("NCCL 2.3 to 2.30, src/include/shm.h, src/misc/shmutils.cc, src/os/linux.cc (wording by version)",),
        found_by=("DD237", "DD221"),
        signs={
            "shm-no-space": nccl_proof(
                ("shared memory segment", "Error: failed to extend", "Error: failed to create shared memory file"),
                r"(?:shared memory (?:segment|file)|failed to extend)(?:.*?(?:\(size | to )(?P<size>\d+))?"
                r".*No space left on device",
                run_code="DD237",
            ),
            "shm-posix-fallocate": nccl_proof(
                ("Call to posix_fallocate failed", "Call to fallocate failed", "Unable to allocate shared memory ("),
                r"No space left on device",
                run_code="DD237",
            ),
            "shm-not-made": nccl_sign(  # NCCL 2.4 to 2.21: without the error number
                ("while creating shared memory segment", "Error: failed to extend"),
                r"(?:creating shared memory segment \S+ \(size (?P<size>\d+)\)|failed to extend \S+ to (?P<bytes>\d+)"
                r" bytes)(?!.*error:)",
                run_code="DD237",
            ),
        },
    ),
    "DDJ102": host_cause(
        name="shm-too-small-dataloader",
        title="/dev/shm of {who} is too small for the batches of the DataLoader's workers",
        finds="A worker process of a DataLoader cannot write its batch to /dev/shm, or dies of a bus error while it"
        " does.",
        why="Workers hand their batches over in shared memory. A container gets 64 MB of it unless it is asked for"
        " more; a write to a page that does not fit ends the worker with SIGBUS.",
        remedies=(
            _MORE_SHARED_MEMORY,
            in_code("Use fewer workers, or a smaller prefetch_factor"),
            in_code("Hand tensors over in files: torch.multiprocessing.set_sharing_strategy('file_system')"),
        ),
        next_check="df -h /dev/shm, in the container of the job, while its loaders run",
        references=("torch 2.4 to 2.15, torch/csrc/DataLoader.cpp, aten/src/ATen/MapAllocator.cpp",),
        found_by=("DD221",),
        signs={
            "dataloader-bus-error": proof(
                ("is killed by signal: Bus error", "might be caused by insufficient shared memory (shm)"),
                r"DataLoader worker \(pid (?P<pid>\d+)\) is killed by signal: Bus error|insufficient shared memory",
            ),
            # a shell's word; memory that is mapped from a file that was cut ends so as well
            "bare-bus-error": launcher_hint("Bus error", r"Bus error\s{1,20}\(core dumped\)"),
            "torch-shm-no-space": proof(
                ("</torch_", "shared memory(shm)", "'/dev/shm/", "'/psm_", "'/torch_"),
                r"^(?=.*(?:</torch_|shared memory\(shm\)|'/dev/shm/|'/psm_|'/torch_))"
                r".*(?:No space left on device|Cannot allocate memory)",
            ),
            "torch-file-not-written": Sign("unable to write to file </torch_", r"</torch_[^>]*>\s*$"),
        },
    ),
    "DDJ103": host_cause(
        name="shm-permission",
        title="/dev/shm of {who} may not be written by the job's user",
        finds="NCCL or torch may not make a file in /dev/shm, or may not open the one that another rank made.",
        why="Ranks of one node hand data over in files in /dev/shm, which every rank must be allowed to make and open.",
        remedies=(
            on_node("Make it writable for all, as it is by default", "chmod 1777 /dev/shm"),
            remedy("Start all ranks of a node as one user"),
        ),
        next_check="ls -ld /dev/shm; id, as the job's user in its container",
        references=("NCCL 2.3 to 2.30, src/misc/shmutils.cc, src/os/linux.cc; torch, aten/src/ATen/MapAllocator.cpp",),
        found_by=("DD237",),
        signs={
            "shm-denied": nccl_proof(
                ("shared memory segment", "shared memory file", "shared memory object", "/dev/shm/nccl-"),
                r"(?:shared memory|/dev/shm/nccl-).*(?:Permission denied|Operation not permitted)",
                run_code="DD237",
            ),
            "shm-open-denied": nccl_proof(
                ("Call to shm_open failed", "shm_open failed to open"), r"Permission denied", run_code="DD237"
            ),
            "semaphore-not-made": Sign(  # Python's locks are files there, too
                "_multiprocessing.SemLock(",
                r"(?s)SemLock\(.*?(?:PermissionError|FileNotFoundError|\[Errno 38\])",
                lines=4,
            ),
        },
    ),
    "DDJ104": JobCause(
        name="shm-cumem-numa",
        title="A rank of {who} cannot open the shared memory that another rank of the node made[: {segment}]",
        domain="host",
        finds="NCCL opens a segment that another rank of the node made, and it is not there.",
        why="The two ranks disagree on how they share memory: a NUMA node without memory, containers with a /dev/shm of"
        " their own, systemd's RemoveIPC, or an error of NCCL 2.22 and 2.23. The output does not tell which.",
        remedies=(
            remedy(
                "Share host memory by files alone",
                settings=(setting("NCCL_CUMEM_HOST_ENABLE", "0"),),
                undo="unset NCCL_CUMEM_HOST_ENABLE",
            ),
            remedy(
                "Give the containers of one node one /dev/shm", "docker run --ipc=host …", container=("--ipc=host",)
            ),
            on_node("Keep systemd from removing it: RemoveIPC=no in /etc/systemd/logind.conf"),
        ),
        next_check="numactl --hardware: a node of 0 MB; and NCCL_CUMEM_HOST_ENABLE=0 in a short run",
        references=("NCCL 2.23 to 2.30, src/transport/shm.cc, src/misc/shmutils.cc",),
        signs={
            "shm-not-there": nccl_hint(
                "while attaching to shared memory segment",
                r"attaching to shared memory segment (?P<segment>\S+) (?:.*No such file|\(size \d+\),?\s*$)",
            )
        },
    ),
    "DDJ105": host_cause(
        name="cumem-host-unsupported",
        title="NCCL cannot share host memory between the GPUs of {who} by cuMem",
        finds="NCCL's shared-memory transport fails in CUDA's virtual memory calls with error 217, peer access not"
        " supported.",
        why="Since NCCL 2.24 ranks of one node share host memory through cuMem where the driver offers it; on GPUs"
        " without P2P access to each other it may fail.",
        remedies=(
            remedy(
                "Share host memory by files in /dev/shm",
                settings=(setting("NCCL_CUMEM_HOST_ENABLE", "0"),),
                undo="unset NCCL_CUMEM_HOST_ENABLE",
            ),
            remedy("Use a newer NCCL"),
        ),
        next_check="NCCL_CUMEM_HOST_ENABLE=0 in a short run",
        references=("NCCL 2.24 to 2.30, src/transport/shm.cc",),
        found_by=("DD446", "DD323", "DD411"),
        signs={
            "shm-cuda-217": nccl_proof(
                ("Cuda failure 217", "peer access is not supported between these two devices"),
                r"transport/shm\.cc:\d+ .*Cuda failure (?:217|'peer access)",
                run_code="DD446",
            ),
            "shm-cuda-failed": nccl_hint(
                "transport/shm.cc:", rf"transport/shm\.cc{NCCL_WARN}Cuda failure (?!217|'peer access)", run_code="DD446"
            ),
        },
    ),
}
