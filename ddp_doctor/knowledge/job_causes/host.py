"""Causes in the host or its container: memory, disk, limits."""

from ddp_doctor.knowledge.job_causes.kinds import (
    Sign,
    hint,
    host_cause,
    in_code,
    kernel_proof,
    nccl_hint,
    nccl_sign,
    on_node,
    proof,
    remedy,
    setting,
)

CAUSES = {
    "DDJ106": host_cause(
        name="host-oom-kill",
        title="Memory ran out on {who}, and a process of the job was killed[: {process}][, pid {pid}]",
        finds="The kernel, the cgroup's limit, Slurm, Kubernetes or Ray says that it ended a process over memory.",
        why="A process that is killed leaves no word; its peers only see that the connection is closed.",
        remedies=(
            remedy("Ask the scheduler for more memory", "sbatch --mem=… or --mem-per-gpu=…"),
            in_code(
                "Use less: fewer DataLoader workers, a smaller prefetch_factor, no dataset copied into every"
                " rank, weights loaded with mmap=True"
            ),
        ),
        next_check="dmesg -T | grep -i -E 'oom|killed process' on the host; sacct -j JOB -o JobID,State,MaxRSS,ReqMem",
        references=(
            "Linux mm/oom_kill.c",
            "Slurm src/plugins/task/cgroup, src/slurmd/slurmstepd (oom-kill events)",
            "Kubernetes: container status OOMKilled",
            "Ray: ray.exceptions.OutOfMemoryError",
        ),
        # The judge: a rank that ended with signal 9 (pointers.py: exit-code, received-signal, srun-exit), or a worker
        # of a DataLoader that was "Killed", where nothing else explains it, is likely this, unproven.
        signs={
            "kernel-oom": kernel_proof(
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
            "slurm-oom": kernel_proof(
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
            "container-oom": kernel_proof("OOMKilled", r"\bOOMKilled\b(?!: false)"),
            "ray-oom": kernel_proof(("due to the node running low on memory", "killed due to memory pressure (OOM)")),
            "batch-system-oom": kernel_proof(
                ("TERM_MEMLIMIT", "PBS: job killed: mem", "PBS: job killed: vmem", "systemd-oomd"),
                r"TERM_MEMLIMIT|PBS: job killed: v?mem|systemd-oomd\S* Killed ",
            ),
        },
    ),
    "DDJ107": host_cause(
        name="disk-full",
        title="The disk that {who} wrote to is full[: {path}]",
        finds="A write ends with “No space left on device”, or the user's quota is used up.",
        why="Checkpoints, logs, caches of compiled kernels and temporary files all need room; the rank that writes"
        " stops and takes the job with it.",
        remedies=(
            on_node("Make room, or write elsewhere", "df -h", "df -i", "quota -s"),
            remedy(
                "Move what torch and Triton keep off a small home or /tmp",
                settings=(setting("TMPDIR", "/scratch/…"), setting("XDG_CACHE_HOME", "/scratch/…")),
            ),
        ),
        next_check="df -h and df -i of the folder that the checkpoint is written to, on the rank's host",
        references=("errno(3): ENOSPC, EDQUOT", "torch, caffe2/serialize/inline_container.cc"),
        signs={
            "no-space": proof(
                ("No space left on device", "Disk quota exceeded"),
                r"^(?!.*(?:shm|NCCL|/torch_|/psm_|fallocate)).*(?:No space left on device|Disk quota exceeded)"
                r"(?:: ['\"](?P<path>[^'\"]+))?",
            ),
            "checkpoint-cut-short": Sign(  # torch.save onto a full disk: libstdc++ does not tell the error number
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
        why="Sockets to peers, shared tensors of DataLoader workers and files of a dataset all count; many hosts allow"
        " 1024 a process.",
        remedies=(
            remedy(
                "Raise the limit where the ranks are started",
                "ulimit -n 1048576",
                "docker run --ulimit nofile=1048576 …",
                container=("--ulimit=nofile=1048576",),
            ),
            in_code("Hand tensors over by name: torch.multiprocessing.set_sharing_strategy('file_system')"),
        ),
        next_check="cat /proc/PID/limits and ls /proc/PID/fd | wc -l, of a running rank",
        references=("errno(3): EMFILE", "torch, torch/utils/data/dataloader.py"),
        found_by=("DD223",),
        signs={"too-many-files": proof(("Too many open files", "received 0 items of ancdata"))},
    ),
    "DDJ109": host_cause(
        name="host-out-of-memory",
        title="Not enough host memory on {who}[, at {raised_at}][: {bytes} bytes were asked for]",
        finds="An allocation of host memory failed in the rank itself.",
        why="A limit on the address space, or a request larger than all memory, fails at once; where the kernel"
        " promises more than it has, it kills the process later instead.",
        remedies=(
            remedy("Ask the scheduler for more memory", "sbatch --mem=…"),
            in_code("Load less at once: mmap=True, fewer workers, no copy in every rank"),
        ),
        next_check="free -h; ulimit -v; the cgroup's memory.max, on the rank's host",
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
        title="{who} may lock too little memory for RDMA (ulimit -l)",
        finds="Registering memory with an RDMA device fails for want of memory that may be locked.",
        why="RDMA needs its buffers locked in memory. Shells of ssh, Slurm, systemd and containers often allow 64"
        " kB to 8 MB.",
        remedies=(
            on_node(
                "Lift the limit where the job's processes get it from",
                "ulimit -l unlimited  # in the job's script",
                "LimitMEMLOCK=infinity  # in slurmd's systemd unit",
                "PropagateResourceLimitsExcept=MEMLOCK  # in slurm.conf",
                container=("--ulimit=memlock=-1",),
            ),
        ),
        next_check="srun bash -c 'ulimit -l' (or the same through mpirun, or in the container): it must say unlimited",
        references=("NCCL 2.3 to 2.30, src/misc/ibvwrap.cc", "libibverbs: Cannot allocate memory (ENOMEM)"),
        found_by=("DD238", "DD222"),
        signs={
            "memory-not-registered": nccl_sign(
                "Call to ibv_",
                r"Call to ibv_\w{1,40} failed(?: with error)?[ :]{1,3}Cannot allocate memory",
                # likely: some memory of GPUs cannot be registered either, without dma-buf
                run_code="DD238",
            ),
            # the first is printed by every program, whether it needs the memory or not
            "memlock-warning": nccl_sign(
                "RLIMIT_MEMLOCK is ",
                r"RLIMIT_MEMLOCK is \d+ bytes",
                beside=("nccl-error", "nccl-error-by-name", "verbs-call-failed", "peer-gone", "peer-unreached"),
            ),
            "reg-mr-failed-without-errno": nccl_hint(  # NCCL up to 2.19 does not tell why
                "Call to ibv_reg_mr", r"Call to ibv_reg_mr\w* failed\s*$"
            ),
            "memlock-of-others": nccl_sign(
                ("set max locked memory (ulimit -l)", "allocate some locked memory", "Unable to register memory"),
                r"set max locked memory \(ulimit -l\)|allocate some locked memory"
                r"|NET/OFI Unable to register memory[^\n]{0,100}Cannot allocate memory",
            ),
        },
    ),
}
