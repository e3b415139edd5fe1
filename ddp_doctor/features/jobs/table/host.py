"""Causes in the host or its container: memory, /dev/shm, disk, limits, and memory that NCCL shares by CUDA."""

from ddp_doctor.features.jobs.table.kinds import JobCause, host_cause
from ddp_doctor.features.jobs.table.remedies import in_code, on_node, remedy, setting
from ddp_doctor.features.jobs.table.signs import NCCL_WARN, Sign, hint, kernel, launcher, nccl, proof

_MORE_SHARED_MEMORY = remedy(
    "Enlarge the container's shared memory; in Kubernetes, mount an emptyDir with medium: Memory on /dev/shm",
    "docker run --shm-size=8g IMAGE",
    container=("--shm-size=8g",),
)

CAUSES = {
    "DDJ101": host_cause(
        name="shm-too-small",
        title="/dev/shm of {who} is too small for NCCL[: no room for {size} more bytes]",
        finds="NCCL cannot make or extend a segment in /dev/shm, because there is no space left on it.",
        why="Ranks of one node whose GPUs have no P2P exchange data through /dev/shm. A container gets 64 MB of it"
        " by default.",
        remedies=(
            _MORE_SHARED_MEMORY,
            remedy(
                "Disable NCCL's shared memory (workaround)",
                settings=(setting("NCCL_SHM_DISABLE", "1"),),
                cost="slow network traffic between ranks of one node without P2P",
                undo="unset NCCL_SHM_DISABLE",
            ),
        ),
        next_check="df -h /dev/shm; ls -lh /dev/shm in the job's container",
        references=("NCCL 2.3 to 2.30, src/include/shm.h, src/misc/shmutils.cc, src/os/linux.cc (wording by version)",),
        found_by=("DD237", "DD221"),
        signs={
            "shm-no-space": nccl.proof(
                ("shared memory segment", "Error: failed to extend", "Error: failed to create shared memory file"),
                r"(?:shared memory (?:segment|file)|failed to extend)(?:.*?(?:\(size | to )(?P<size>\d+))?"
                r".*No space left on device",
                run_code="DD237",
            ),
            "shm-posix-fallocate": nccl.proof(
                ("Call to posix_fallocate failed", "Call to fallocate failed", "Unable to allocate shared memory ("),
                r"No space left on device",
                run_code="DD237",
            ),
            "shm-not-made": nccl.sign(  # NCCL 2.4 to 2.21: without the error number
                ("while creating shared memory segment", "Error: failed to extend"),
                r"(?:creating shared memory segment \S+ \(size (?P<size>\d+)\)|failed to extend \S+ to (?P<bytes>\d+)"
                r" bytes)(?!.*error:)",
                run_code="DD237",
            ),
        },
    ),
    "DDJ102": host_cause(
        name="shm-too-small-dataloader",
        title="/dev/shm of {who} is too small for the batches of DataLoader workers",
        finds="A worker process of a DataLoader cannot write its batch to /dev/shm, or dies with a bus error while"
        " writing it.",
        why="Workers pass their batches on in shared memory. A container gets 64 MB of it by default, and writing"
        " to a page that does not fit kills the worker with SIGBUS.",
        remedies=(
            _MORE_SHARED_MEMORY,
            in_code("Use fewer workers, or a smaller prefetch_factor"),
            in_code("Pass tensors in files: torch.multiprocessing.set_sharing_strategy('file_system')"),
        ),
        next_check="df -h /dev/shm in the job's container while its loaders run",
        references=("torch 2.4 to 2.15, torch/csrc/DataLoader.cpp, aten/src/ATen/MapAllocator.cpp",),
        found_by=("DD221",),
        signs={
            "dataloader-bus-error": proof(
                ("is killed by signal: Bus error", "might be caused by insufficient shared memory (shm)"),
                r"DataLoader worker \(pid (?P<pid>\d+)\) is killed by signal: Bus error|insufficient shared memory",
            ),
            "torch-shm-no-space": proof(
                ("</torch_", "shared memory(shm)", "'/dev/shm/", "'/psm_", "'/torch_"),
                r"^(?=.*(?:</torch_|shared memory\(shm\)|'/dev/shm/|'/psm_|'/torch_))"
                r".*(?:No space left on device|Cannot allocate memory)",
            ),
            "torch-file-not-written": Sign("unable to write to file </torch_", r"</torch_[^>]*>\s*$"),
        },
    ),
    "DDJ226": host_cause(
        name="bus-error",
        title="A process of {who} ended with SIGBUS: most often /dev/shm is full",
        finds="A process ends with a bus error, and no line shows what it wrote or read.",
        why="Writing to a page of /dev/shm that does not fit ends a process with SIGBUS: batches of DataLoader workers,"
        " or NCCL's buffers between ranks of a host. A mapped file that another process shortens does the same.",
        remedies=(_MORE_SHARED_MEMORY, remedy("Do not replace data files or checkpoints while ranks read them")),
        next_check="df -h /dev/shm in the job's container while it runs, and dmesg -T on the host",
        references=("signal(7); mmap(2)", "torch 2.15 distributed/elastic/multiprocessing/api.py"),
        found_by=("DD221", "DD237"),
        # The judge also names it if a rank ended with signal 7 (pointers.py) and no other cause explains that.
        signs={"bare-bus-error": launcher.hint("Bus error", r"Bus error\s{1,20}\(core dumped\)")},
    ),
    "DDJ103": host_cause(
        name="shm-permission",
        title="/dev/shm of {who} is not writable by the job's user",
        finds="NCCL or torch is not allowed to create a file in /dev/shm or to open a file that another rank created.",
        why="Ranks of one node exchange data in files in /dev/shm, so every rank must be allowed to create and"
        " open them.",
        remedies=(
            on_node("Make it writable for all users, as by default", "chmod 1777 /dev/shm"),
            remedy("Start all ranks of a node as one user"),
        ),
        next_check="ls -ld /dev/shm; id as the job's user in its container",
        references=("NCCL 2.3 to 2.30, src/misc/shmutils.cc, src/os/linux.cc; torch, aten/src/ATen/MapAllocator.cpp",),
        found_by=("DD237",),
        signs={
            "shm-denied": nccl.proof(
                ("shared memory segment", "shared memory file", "shared memory object", "/dev/shm/nccl-"),
                r"(?:shared memory|/dev/shm/nccl-).*(?:Permission denied|Operation not permitted)",
                run_code="DD237",
            ),
            "shm-open-denied": nccl.proof(
                ("Call to shm_open failed", "shm_open failed to open"), r"Permission denied", run_code="DD237"
            ),
            "semaphore-not-made": Sign(  # Python's locks are files in /dev/shm
                "_multiprocessing.SemLock(",
                r"(?s)SemLock\(.*?(?:PermissionError|FileNotFoundError|\[Errno 38\])",
                lines=4,
            ),
        },
    ),
    "DDJ104": JobCause(
        name="shm-cumem-numa",
        title="A rank of {who} cannot open shared memory of another rank of the node[: {segment}]",
        domain="host",
        finds="NCCL tries to open a shared-memory segment that another rank of the node created, but the segment"
        " does not exist.",
        why="The two ranks use different methods to share memory. Possible reasons are a NUMA node without memory,"
        " containers with separate /dev/shm, systemd's RemoveIPC, and an error in NCCL 2.22 and 2.23. The output"
        " does not show which one applies.",
        remedies=(
            remedy(
                "Share host memory only by files",
                settings=(setting("NCCL_CUMEM_HOST_ENABLE", "0"),),
                undo="unset NCCL_CUMEM_HOST_ENABLE",
            ),
            remedy(
                "Use one /dev/shm for all containers of a node",
                "docker run --ipc=host IMAGE",
                container=("--ipc=host",),
            ),
            on_node("Keep systemd from removing it: RemoveIPC=no in /etc/systemd/logind.conf"),
        ),
        next_check="numactl --hardware for a node of 0 MB; a short run with NCCL_CUMEM_HOST_ENABLE=0",
        references=("NCCL 2.23 to 2.30, src/transport/shm.cc, src/misc/shmutils.cc",),
        signs={
            "shm-not-there": nccl.hint(
                "while attaching to shared memory segment",
                r"attaching to shared memory segment (?P<segment>\S+) (?:.*No such file|\(size \d+\),?\s*$)",
            )
        },
    ),
    "DDJ105": host_cause(
        name="cumem-host-unsupported",
        title="NCCL cannot share host memory between GPUs of {who} with cuMem",
        finds="NCCL's shared-memory transport fails in CUDA's virtual memory calls with error 217, peer access not"
        " supported.",
        why="Since NCCL 2.24, ranks of one node share host memory through cuMem if the driver supports it. On GPUs"
        " without P2P access to each other, this may fail.",
        remedies=(
            remedy(
                "Share host memory by files in /dev/shm",
                settings=(setting("NCCL_CUMEM_HOST_ENABLE", "0"),),
                undo="unset NCCL_CUMEM_HOST_ENABLE",
            ),
            remedy("Use a newer NCCL"),
        ),
        next_check="a short run with NCCL_CUMEM_HOST_ENABLE=0",
        references=("NCCL 2.24 to 2.30, src/transport/shm.cc",),
        found_by=("DD446", "DD323", "DD411"),
        signs={
            "shm-cuda-217": nccl.proof(
                ("Cuda failure 217", "peer access is not supported between these two devices"),
                r"transport/shm\.cc:\d+ .*Cuda failure (?:217|'peer access)",
                run_code="DD446",
            ),
            "shm-cuda-failed": nccl.hint(
                "transport/shm.cc:", rf"transport/shm\.cc{NCCL_WARN}Cuda failure (?!217|'peer access)", run_code="DD446"
            ),
        },
    ),
    "DDJ106": host_cause(
        name="host-oom-kill",
        title="[Host memory ran out on {who}, and a process of the job was killed][{killed} was killed by SIGKILL]"
        "[: {process}][, pid {pid}]",
        finds="The kernel, the cgroup's limit, Slurm, Kubernetes or Ray reports that it ended a process over"
        " memory, or a launcher reports that an unknown sender killed a process with SIGKILL.",
        why="A killed process prints nothing. Its peers only see that the connection is closed.",
        remedies=(
            remedy("Request more memory from the scheduler", "sbatch --mem=64G job.sbatch"),
            in_code(
                "Use less memory: fewer DataLoader workers, a smaller prefetch_factor, no"
                " dataset copy in every rank, weights loaded with mmap=True"
            ),
        ),
        next_check="dmesg -T | grep -i -E 'oom|killed process' on the host; sacct -j JOB -o JobID,State,MaxRSS,ReqMem",
        references=(
            "Linux mm/oom_kill.c",
            "Slurm src/plugins/task/cgroup, src/slurmd/slurmstepd (oom-kill events)",
            "Kubernetes: container status OOMKilled",
            "Ray: ray.exceptions.OutOfMemoryError",
        ),
        # The judge names it as likely, not proved, if a rank ended with signal 9 (pointers.py: exit-code,
        # received-signal, srun-exit) or a DataLoader worker was "Killed", and no other cause explains that.
        signs={
            "kernel-oom": kernel.proof(
                (
                    "Out of memory: Kill",
                    "Memory cgroup out of memory",
                    "invoked oom-killer",
                    "oom-kill:constraint=",
                    "oom_reaper: reaped process",
                ),
                r"(?:Kill(?:ed)?|reaped) process (?P<pid>\d+) \((?P<process>[^)]*)\)(?:.* anon-rss:(?P<anon_kb>\d+)kB)?"
                r"|invoked oom-killer|oom-kill:constraint",
            ),
            "slurm-oom": kernel.proof(
                (
                    "oom-kill event",
                    "oom_kill event",
                    "Exceeded job memory limit",
                    "Exceeded step memory limit",
                    "exceeded memory limit (",
                    ": Out Of Memory",
                ),
                r"[Dd]etected [1-9]\d* oom[-_]kill event|[Ee]xceeded (?:job |step )?memory limit"
                r"|srun: error: (?P<host>\S+): tasks? (?P<tasks>[\d,\[\]-]+): Out Of Memory",
            ),
            "container-oom": kernel.proof("OOMKilled", r"\bOOMKilled\b(?!: false)"),
            "ray-oom": kernel.proof(
                (
                    "due to the node running low on memory",
                    "killed due to memory pressure (OOM)",
                    "exceeds the memory usage threshold of ",
                ),
                r"(?:low on memory|\(OOM\)|^Memory on the node \()(?=(?:.{0,200}?IP: (?P<host>[\w.:-]+))?)",
            ),
            "batch-system-oom": kernel.proof(
                ("TERM_MEMLIMIT", "PBS: job killed: mem", "PBS: job killed: vmem", "systemd-oomd"),
                r"TERM_MEMLIMIT|PBS: job killed: v?mem|systemd-oomd\S* Killed ",
            ),
        },
    ),
    "DDJ107": host_cause(
        name="disk-full",
        title="Disk of {who} is full[: {path}]",
        finds="A write fails with “No space left on device”.",
        why="Checkpoints, logs, caches of compiled kernels and temporary files all need space. The rank that"
        " writes stops, and the job ends with it.",
        remedies=(
            on_node("Free space, or write to another disk", "df -h", "df -i"),
            remedy(
                "Move the caches of torch and Triton from a small home or /tmp",
                settings=(setting("TMPDIR", "/scratch/tmp"), setting("XDG_CACHE_HOME", "/scratch/tmp")),
            ),
        ),
        next_check="df -h and df -i of the checkpoint directory on the rank's host",
        references=("errno(3): ENOSPC", "torch, caffe2/serialize/inline_container.cc"),
        signs={
            "no-space": proof(
                "No space left on device",
                r"^(?!.*(?:shm|NCCL|/torch_|/psm_|fallocate|joblib)).*No space left on device"
                r"(?:: ['\"](?P<path>[^'\"]+))?",
            ),
            "checkpoint-cut-short": Sign(  # torch.save onto a full disk: libstdc++ does not report the error number
                ("PytorchStreamWriter failed writing", ". unexpected pos "),
                r"PytorchStreamWriter failed writing|inline_container\.cc:\d+\] \. unexpected pos \d+ vs \d+",
            ),
            "no-temporary-directory": hint("No usable temporary directory found in"),
        },
    ),
    "DDJ108": host_cause(
        name="too-many-open-files",
        title="Too many open files on {who}: the limit (ulimit -n) is too low",
        finds="A call ends with “Too many open files”.",
        why="Sockets to peers, shared tensors of DataLoader workers and files of a dataset all count. Many hosts"
        " allow 1024 per process.",
        remedies=(
            remedy(
                "Raise the limit in the launcher of the ranks",
                "ulimit -n 1048576",
                "docker run --ulimit nofile=1048576 IMAGE",
                container=("--ulimit=nofile=1048576",),
            ),
            in_code("Pass tensors by name: torch.multiprocessing.set_sharing_strategy('file_system')"),
        ),
        next_check="cat /proc/PID/limits and ls /proc/PID/fd | wc -l of a running rank",
        references=("errno(3): EMFILE", "torch, torch/utils/data/dataloader.py"),
        found_by=("DD223",),
        signs={"too-many-files": proof(("Too many open files", "received 0 items of ancdata"))},
    ),
    "DDJ109": host_cause(
        name="host-out-of-memory",
        title="Host memory allocation failed on {who}[ at {raised_at}][: {size} requested]",
        finds="An allocation of host memory failed in the rank itself.",
        why="An allocation fails immediately if it exceeds a limit on the address space or all of the memory. If"
        " the kernel promises more memory than it has, it kills the process later instead.",
        remedies=(
            remedy("Request more memory from the scheduler", "sbatch --mem=64G job.sbatch"),
            remedy("If the address space is limited, remove the limit", "ulimit -v unlimited"),
            in_code("Load less at a time: mmap=True, fewer workers, no copy in every rank"),
        ),
        next_check="free -h; ulimit -v; the cgroup's memory.max on the rank's host",
        references=("torch, c10/core/impl/alloc_cpu.cpp", "Python: MemoryError"),
        signs={
            "cpu-allocator": proof(
                ("DefaultCPUAllocator: ", "you tried to allocate"),
                r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)(?:.*you tried to allocate "
                r"(?P<bytes>\d+) bytes)?",
            ),
            "memory-error": Sign("MemoryError", r"(?:^|\s|\._?(?:Array)?)MemoryError(?:: |$)"),
            "no-memory-for-process": proof("[Errno 12] Cannot allocate memory", r"Error: \[Errno 12\]"),
            "bad-alloc": Sign("std::bad_alloc"),
        },
    ),
    "DDJ150": host_cause(
        name="memlock-limit",
        title="Locked memory limit (ulimit -l) of {who} is too low for RDMA",
        finds="Registering memory with an RDMA device fails because too little memory may be locked.",
        why="RDMA locks its buffers in memory. Shells started by ssh, Slurm, systemd and containers often allow"
        " only 64 kB to 8 MB.",
        remedies=(
            on_node(
                "Raise the limit at its source for the job's processes",
                "ulimit -l unlimited  # in the job's script",
                "LimitMEMLOCK=infinity  # in slurmd's systemd unit",
                "PropagateResourceLimitsExcept=MEMLOCK  # in slurm.conf",
                container=("--ulimit=memlock=-1",),
            ),
        ),
        next_check="srun bash -c 'ulimit -l' (or the same with mpirun, or in the container) must print unlimited",
        references=("NCCL 2.3 to 2.30, src/misc/ibvwrap.cc", "libibverbs: Cannot allocate memory (ENOMEM)"),
        found_by=("DD238", "DD222"),
        signs={
            "memory-not-registered": nccl.sign(
                "Call to ibv_",
                r"Call to ibv_\w{1,40} failed(?: with error)?[ :]{1,3}Cannot allocate memory",
                # only likely: without dma-buf, some GPU memory cannot be registered either
                run_code="DD238",
            ),
            # every program prints it, whether it needs the memory or not
            "memlock-warning": nccl.sign(
                "RLIMIT_MEMLOCK is ",
                r"RLIMIT_MEMLOCK is \d+ bytes",
                beside=("nccl-error", "nccl-error-by-name", "verbs-call-failed", "peer-gone", "peer-unreached"),
            ),
            "reg-mr-failed-without-errno": nccl.hint(  # NCCL up to 2.19 does not print the reason
                "Call to ibv_reg_mr", r"Call to ibv_reg_mr\w* failed\s*$"
            ),
            "memlock-of-others": nccl.sign(
                ("set max locked memory (ulimit -l)", "allocate some locked memory", "Unable to register memory"),
                r"set max locked memory \(ulimit -l\)|allocate some locked memory"
                r"|NET/OFI Unable to register memory[^\n]{0,100}Cannot allocate memory",
            ),
        },
    ),
}
