"""Other words for causes in code and jobs: of older releases, frameworks, launchers and schedulers.

Sources: torch 1.1 to 2.15; accelerate utils/operations.py; DeepSpeed runtime/engine.py and comm/comm.py; Megatron-LM
core/parallel_state.py and core/rerun_state_machine.py; Lightning; Horovod common/controller.cc; Ray exceptions.py; Open
MPI; glibc malloc; LSF, Slurm; NCCL src/include/checks.h (NCCLCHECK); bash, dash, zsh, make, ninja, systemd, kubectl.
"""

from ddp_doctor.knowledge.job_causes.kinds import MONITORS, Sign, kernel_sign, launcher_sign, nccl_sign
from ddp_doctor.model.choices import Confidence

#: How shells name the signals that end a command, but SIGTERM, which ends what is no longer needed.
_SIGNALS = (
    r"(?i:killed|segmentation fault|bus error|abort(?:ed)?|illegal (?:hardware )?instruction"
    r"|floating point exception)"
)
#: Signs of no cause of their own.
SIGNS = (
    # Python's words in front of a traceback that ended nothing: of a destructor, of its logging.
    Sign(
        "exception-ignored",
        ("Exception ignored in", "Exception ignored while", "--- Logging error ---"),
        r"^(?:Exception ignored|--- Logging)",
        role="context",
    ),
    # A complaint, of whatever: a failure where the output ends with it.
    Sign(
        "complaint",
        ("NCCL WARN ", "Exception: "),
        r"NCCL WARN (?!.*(?:libibverbs|real path|Plugin|Only EFA|falling back"
        r"|lib wrapper not initialized|requires GDRCopy))"  # NCCL 2.32 where libibverbs is missing
        r"|^(?:\[rank\d{1,7}\]: ?)?[\w.]{1,80}Exception: ",
        role="context",
    ),
    # How a shell, make, a container or a service says that a command failed: a failure where the output ends with it.
    # A monitor of the job is ended when the job is.
    launcher_sign(
        "ended-badly",
        (
            "Killed",
            "killed ",
            "Segmentation fault",
            "segmentation fault",
            "Bus error",
            "bus error",
            "Aborted",
            "abort ",
            "Illegal instruction",
            "illegal hardware instruction",
            "Floating point exception",
            "floating point exception",
            "make: *** ",
            "]: *** [",
            "+  Exit ",
            "build stopped: ",
            "exit code",
            "exit status",
            "exited with",
            "terminated with ",
            "Exit status ",
            "with error code",
            "code=exited",
            "code=killed",
            "code=dumped",
            "Failed with result",
        ),
        rf"^(?!.*{MONITORS})(?:(?:\S{{1,200}}: )?(?:line \d+: )?(?: *\d+ |\[\d+\][+-]? +)?{_SIGNALS}"
        r"(?: \(core dumped\))?(?:$|\s{2,}|\s+\S*(?:python|torchrun|srun))"
        r"|\[\d+\][+-]? +Exit [1-9]|g?make(?:\[\d+\])?: \*\*\* |ninja: build stopped"
        r"|(?i:.{0,300}?\b(?:error|failed|failure|exited|terminated|exit)\b.{0,300}?"
        r"\b(?:code|status)[\s:=]+(?:code )?-?[1-9]\d{0,9}\b)"
        r"|.{0,200}Main process exited, code=(?!exited, status=0)|.{0,200}Failed with result '(?!success))",
        role="context",
    ),
    launcher_sign("launcher-gave-up", ("errors.ChildFailedError",), role="pointer"),
    launcher_sign(
        "killed-by-code",
        ("exit code 137", "exit status 137", "exited with code 137", "terminated by signal 9", "signal: killed"),
        r"(?:code|status) (?P<exit>137)\b|by signal (?P<number>9)\b|signal: (?P<killed>killed)",
        role="pointer",
    ),
    Sign(
        "cuda-error", ("CUDA error: ", "Test CUDA failure "), r"Error: CUDA error: |Test CUDA failure ", role="pointer"
    ),
    # The line of NCCL's source to which an error came up: a call of the program failed.
    nccl_sign(
        "nccl-error-returned",
        ("NCCL INFO group.cc:", "NCCL INFO transport.cc:", "NCCL INFO enqueue.cc:"),
        r"NCCL INFO \w+\.cc:\d+ -> [12456]\b",
        role="pointer",
    ),
    # A node also says it when its job ends well, after the node that served the rendezvous.
    Sign(
        "rendezvous-lost",
        ("has failed to send a keep-alive heartbeat to the rendezvous",),
        role="victim",
        beside=("closing-signal",),
    ),
    # torch's warnings of rank 0's store, also where rank 0 has only ended before the others.
    Sign(
        "store-gone",
        ("recvValue failed on SocketImpl(", "sendBytes failed on SocketImpl(", '"should dump" flag on TCPStore'),
        role="victim",
        beside=("closing-signal", "exit-code", "exception", "nccl-error"),
    ),
    Sign(
        "ray-worker-gone",
        (
            "The actor died unexpectedly before finishing this task",
            "Worker unexpectedly exits with a connection error code",
            "The actor is dead because its worker process has died",
            "A worker died or was killed while executing a task by an unexpected system error",
        ),
        role="victim",
    ),
)

_CODE = {
    "device-mismatch": (
        Sign(
            "devices-in-other-words",
            (
                "Expected object of device type",
                "Expected object of backend ",
                "to have the same device as",
                "must be on the same device",
                "arguments are located on different GPUs",
                "cannot be accessed from Triton (cpu tensor?)",
                "device type for generator but found",
                "indices should be either on ",
            ),
            r"Error: (?:[^\n]{0,200}Expected object of (?:device type|backend) (?P<found>\w+ but got (?:device type "
            r"|backend )?\w+)|[^\n]{0,200}(?:the same device|different GPUs|cpu tensor|for generator but found))",
            confidence=Confidence.PROVED,
        ),
    ),
    "import-failed": (
        Sign(
            "interpreter-lacks-module",
            (": No module named ",),
            r"python[\d.]*: No module named (?P<missing>[\w.]+)",
            confidence=Confidence.PROVED,
        ),
        Sign(
            "library-of-other-build",
            ("undefined symbol: ", "' not found (required by "),
            r"ImportError: (?P<missing>(?!\S*libnccl)[^\s:]+): (?:undefined symbol: (?!p?nccl)"
            r"|version `(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+' not found)",
            confidence=Confidence.PROVED,
        ),
        Sign(
            "command-not-found",
            (": command not found", "error: execve(): "),
            r"(?:^|: )(?P<missing>torchrun|python[\d.]*|deepspeed|accelerate|mpirun|horovodrun): command not found"
            r"|error: execve\(\): (?P<command>\S+): No such file",
        ),
    ),
    "pg-not-initialized": (
        Sign(
            "group-of-framework-missing",
            ("group is not initialized", "DeepSpeed backend not set"),
            r"Error: (?:[\w -]{1,60} parallel group is not initialized|DeepSpeed backend not set)",
        ),
    ),
    "ddp-no-grad-params": (
        Sign(  # torch up to 1.2
            "no-tensors-for-buckets",
            ("tensors.size() > 0 INTERNAL ASSERT FAILED",),
            r"reducer\.cpp",
            confidence=Confidence.PROVED,
        ),
    ),
    "ddp-buffer-inplace": (
        Sign(  # broken into lines, as in reports
            "buffer-changed-in-lines",
            ("needed for gradient computation has been",),
            r"(?s)has been(?!\s+modified by an inplace operation: \[)\s+modified\s+by\s+an\s+inplace\s+operation:\s+"
            r"\[(?P<tensor>torch\.[\w.]+\s\[\d+\])\]",
            lines=4,
        ),
    ),
    "collective-mismatch": (
        Sign(  # a line that was cut before the second rank
            "fingerprint-of-one",
            ("Detected mismatch between collectives on ranks",),
            r"between collectives on ranks(?!.*\bbut Rank)",
            confidence=Confidence.PROVED,
        ),
        nccl_sign("mismatch-of-old-nccl", ("Mismatched collective detected",)),  # NCCL 2.4 to 2.6
        Sign(  # Horovod, DeepSpeed, accelerate
            "mismatch-of-frameworks",
            (
                "Mismatched data types: One rank",
                "Mismatched MPI operations",
                "tensor shapes: One rank sent",
                "disagreement between rank0 and rank",
                "due to shape mismatches. All shapes",
                "due to inadequate shapes. All shapes",
            ),
        ),
    ),
    "checkpoint-mismatch": (
        Sign(
            "checkpoint-of-other-job",
            (
                "The checkpoint being loaded used a DP world size",
                "Missing key in checkpoint state_dict:",
                "Size mismatch between saved",
            ),
            confidence=Confidence.PROVED,
        ),
    ),
    "corrupt-data": (
        Sign(
            "archive-cut",
            ("ended before the end-of-stream marker was reached", "BadGzipFile: ", "pickle data was truncated"),
            r"(?P<reason>ended before the end-of-stream marker|BadGzipFile: [^\n]{0,80}|pickle data was truncated)",
        ),
    ),
    "loss-not-finite": (
        Sign(
            "guard-of-framework",
            (
                "found NaN in local forward",
                "found Inf in local",
                "returned nan values in its ",
                "for gradients from `parameters` is non-finite",
                "The loss returned in `training_step` is ",
            ),
            r"found (?:NaN in local forward|Inf in local)|Backward\w*' returned nan values in its|is non-finite"
            r"|`training_step` is (?:nan|inf)",
            confidence=Confidence.PROVED,
        ),
    ),
    "process-crashed": (
        Sign(  # glibc
            "heap-corrupted",
            (
                "free(): invalid",
                "double free or corruption",
                "malloc(): ",
                "munmap_chunk(): invalid",
                "corrupted size vs. prev_size",
                "*** stack smashing detected ***",
            ),
            r"(?:^|: |\s)(?P<signal>free\(\): invalid \w+|double free or corruption|malloc\(\): \w+[\w ]{0,40}"
            r"|munmap_chunk\(\): invalid \w+|corrupted size vs\. prev_size|\*\*\* stack smashing detected)",
        ),
    ),
}
_SCHEDULERS = {
    "scheduler-time-limit": (
        kernel_sign("time-limit-of-cloud", ("MaxRuntimeExceeded",), confidence=Confidence.PROVED),
    ),
    "scheduler-preempted": (
        kernel_sign(
            "taken-by-cloud",
            (" preempted", " evicted", "interruption notice", "TaintManagerEviction"),
            r"(?i)\b(?:instance|vm|node|machine|job|pod)(?: \S{1,100})? (?:was|has been|is being) (?:preempted|evicted)"
            r"|spot (?:instance )?interruption notice|TaintManagerEviction",
        ),
    ),
    "scheduler-cancelled": (
        launcher_sign(
            "ended-by-owner",
            ("TERM_OWNER", "TERM_FORCE_OWNER", "TERM_ADMIN", "has been revoked", "srun: Force Terminated job"),
            r"TERM_(?:FORCE_)?OWNER|TERM_ADMIN|Job allocation \d+ has been revoked|srun: Force Terminated job",
        ),
    ),
    "scheduler-node-failure": (
        launcher_sign(
            "node-lost-by-mpirun",
            ("has lost communication with a remote daemon",),
            r"(?s)lost communication with a remote daemon(?:.*?Remote daemon:\s+\S+ on node (?P<node>\S+))?",
            lines=8,
        ),
        launcher_sign(
            "node-lost-by-ray",
            ("has been marked dead because the detector",),
            r"(?:node name: (?P<node>\S+) )?has been marked dead because the detector",
        ),
    ),
}
#: More signs of causes, by the causes' names.
MORE: dict[str, tuple[Sign, ...]] = {**_CODE, **_SCHEDULERS}
