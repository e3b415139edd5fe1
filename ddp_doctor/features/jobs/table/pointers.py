"""Signs that are not causes themselves: which process ended and how, victims, timeouts, advice.

Sources: torch 2.4 to 2.15, c10d/ProcessGroupNCCL.cpp, nccl2/ProcessGroupNCCL.cpp, ProcessGroupGloo.cpp, TCPStore.cpp,
socket.cpp, TraceUtils.h, distributed_c10d.py, distributed/elastic/agent/server/api.py and multiprocessing; gloo
transport/tcp; Slurm src/srun/libsrun/launch.c; Open MPI help-orterun.txt; MPICH's hydra pmiserv_cb.c.
"""

from ddp_doctor.features.jobs.table.signs import (
    HARMLESS_WARNINGS,
    MONITORS,
    STACK_NOTE,
    Sign,
    context,
    launcher,
    nccl,
    pointer,
    victim,
    watchdog,
)
from ddp_doctor.knowledge import victims
from ddp_doctor.model.known_error import Page

#: The start of ProcessGroupNCCL's lines, with the number and the description of the group since torch 2.3.
_GROUP = r"(?:\[(?:PG (?:ID \d+ PG )?(?:GUID )?(?P<group>[^\]]*?) )?Rank (?P<group_rank>\d+)\] +)?"

_WAITED = Page(
    "This rank gave up waiting: look for the rank that never arrived, not for the one that printed this.",
    ("DD610", "DD611", "DD615", "DD616", "DD619", "DDL133", "DDL134"),
    "torch 2.15 c10d/ProcessGroupNCCL.cpp, c10d/nccl2; gloo transport/tcp",
    ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
)
_RENDEZVOUS = Page(
    "Not all nodes or ranks came to the rendezvous.",
    ("DD516", "DD501", "DD518"),
    "torch 2.15 c10d/TCPStore.cpp, distributed/elastic/rendezvous/api.py",
)
_TIME_OUTS = {
    # ProcessGroupNCCL of torch 1.8 to 2.15 (called nccl-legacy there). SeqNum since 1.13, NumelIn since 2.2. "[Rank N]"
    # may be a number within the group, so the process that printed the line counts.
    "watchdog-timeout": watchdog.pointer(
        "Watchdog caught collective operation timeout",
        _GROUP + r"Watchdog caught collective operation timeout:(?: WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType="
        r"(?P<op>\w+)(?:, TensorShape=\[(?P<shape>[\d, ]*)\])?(?:, NumelIn=(?P<numel>\d+), NumelOut="
        r"(?P<numel_out>\d+))?, Timeout\(ms\)=(?P<timeout_ms>\d+)\)(?: ran for (?P<ran_ms>\d+) milliseconds)?)?",
        page=_WAITED,
    ),
    "watchdog-last-work": watchdog.pointer(  # the progress of the group; texts of 2.3 and of 2.6
        ("detected by watchdog at work", "Timeout at NCCL work"),
        _GROUP
        + r"(?:(?:failure|Exception \(either an error or timeout\)) detected by watchdog at work(?: sequence id)?"
        r"|Timeout at NCCL work): (?P<work>\d+).*?last enqueued (?:NCCL )?work: (?P<enqueued>-?\d+)"
        r".*?last completed (?:NCCL )?work: (?P<completed>-?\d+)",
    ),
    # nccl2 of torch 2.15 prints neither number nor operation.
    "nccl2-timeout": watchdog.pointer(
        ("NCCL operation timed out", "Operation timed out after ", "due to timeout - "),
        r"(?:\[TC\]\[rank=(?P<group_rank>\d+)\]\[name=(?P<group>[^\]]*)\] .*)?(?:NCCL operation timed out"
        r"|Operation timed out after (?P<timeout_ms>\d+) ms|Aborting process on rank \d+ due to timeout)",
        page=_WAITED,
    ),
    "desync-report": watchdog.pointer(
        ("lagging/dead/mismatched ranks that caused the desync", "are the lagging ranks that caused this timeout"),
        r"(?s)caused the desync are:\s*(?P<report>.{1,600})|\[(?P<lagging>[\d, ]+)\] are the lagging ranks",
        lines=6,
    ),
    "gloo-timeout": watchdog.pointer(
        "Timed out waiting ",
        r"Timed out waiting (?P<timeout_ms>\d+)ms for (?P<direction>send|recv) operation",
        page=_WAITED,
    ),
    "monitored-barrier": watchdog.pointer(  # the only timeout that names the missing ranks
        "failed to pass monitoredBarrier in",
        r"Ranks? (?P<missing>\d[\d, ]*) failed to pass monitoredBarrier in (?P<timeout_ms>\d+) ms",
    ),
    "submitted-by-some-ranks": watchdog.pointer(  # Horovod, common/stall_inspector.cc
        "broadcasted by subset of ranks",
        r"(?s)subset of ranks(?:.*?(?:Stalled|Missing) ranks:\s*(?P<missing>\d+): \[)?",
        lines=6,
    ),
    "store-barrier": watchdog.pointer(
        "in store based barrier on rank",
        r"(?:store_based_barrier_key:(?P<number>\d+) \()?"
        r"world_size=(?P<world>\d+), (?:worker_count|num_workers_joined)=(?P<came>\d+), timeout=(?P<timeout>[^),]+)",
    ),
    "store-clients": watchdog.pointer(
        "seconds waiting for clients.",
        r"after (?P<timeout_s>\d+) seconds waiting for clients\. (?P<came>\d+)/(?P<world>\d+) clients joined",
        page=_RENDEZVOUS,
    ),
    "store-timeout": watchdog.pointer(  # with gloo, the key of a rank that has not stored its address yet
        ("wait timeout after ", "Timeout waiting for key: "),
        r"(?:missing ranks: (?P<missing>[\d, ]+\d), )?wait timeout after (?P<timeout_ms>\d+)ms(?:, keys: "
        r"(?P<keys>\S+?(?://cpu//\d+/(?P<not_joined>\d+))?)(?!\S))?|Timeout waiting for key: (?P<key>.{1,100})",
    ),
    "store-id-timeout": watchdog.pointer(  # NCCL's first message between ranks goes through the store, from rank 0
        "is setting up NCCL communicator and ",
        r"\[(?P<group_rank>\d+)\] is setting up NCCL communicator and retr\w+ ncclUniqueId from \[(?P<missing>\d+)\]"
        r"[^\n]{0,200}got error: (?:Socket Timeout|wait timeout)",
    ),
    "rendezvous-timeout": watchdog.pointer(  # not of a launcher that leaves a rendezvous
        "RendezvousTimeoutError", r"^(?!.*has failed to (?:send|shutdown)).*RendezvousTimeoutError", page=_RENDEZVOUS
    ),
    "store-unreached": pointer(
        ("The client socket has timed out after", "connect() timed out. Original timeout was "),
        r"timed out after (?P<timeout>\d+\w+) while trying to connect to \(?\[?(?P<host>[^,:\]]+)\]?(?:, |:)"
        r"(?P<port>\d+)|connect\(\) timed out",  # torch 1.9 to 1.11
        page=Page(
            "Nothing answers at the endpoint: a firewall, the wrong address, or a head that never started.",
            ("DD512", "DD513", "DD530", "DD531"),
            "torch 2.15 c10d/socket.cpp",
        ),
    ),
    "store-refused": pointer(
        "The client socket has failed to connect to",
        # 22, 97, 99: one of the host's addresses is of a kind that is not served. torch tries the next.
        r"failed to connect to \[?(?P<host>[^\]\s]+?)\]?:(?P<port>\d+) \(errno: (?P<errno>(?!(?:22|97|99)\b)\d+)",
    ),
    "watchdog-stuck": watchdog.pointer(
        ("watchdog got stuck for", "Could not acquire GIL within"),
        r"got stuck for (?P<seconds>\d+) ?seconds|(?P<gil>acquire GIL)",
    ),
}

_HIDDEN = "NCCL hides the cause: its own log has it."
_RESULTS = "torch 2.15 c10d/NCCLUtils.cpp, NCCL 2.30.7 src/init.cc (ncclGetErrorString)"
_EXCEPTIONS = (
    "RuntimeError", "ValueError", "TypeError", "AssertionError", "KeyError", "IndexError", "AttributeError",
    "ModuleNotFoundError", "DistBackendError", "DistNetworkError", "DistStoreError", "AcceleratorError", "OSError",
    "ImportError", "FileNotFoundError", "PermissionError", "NotImplementedError", "TimeoutError", "ConnectionError",
    "CalledProcessError", "NameError", "OutOfMemoryError",
)  # fmt: skip
_ENDS = {
    "nccl-error": nccl.pointer(  # a call of NCCL failed; its warnings show why
        (*victims.OF_ANYTHING, "NCCL error in: ", "Test NCCL failure"),
        page=Page(_HIDDEN, ("DD521", "DD237", "DD238", "DD531"), _RESULTS, ("NCCL_DEBUG", "NCCL_SOCKET_IFNAME")),
    ),
    "nccl-error-by-name": nccl.pointer(
        (
            "ncclInternalError: ",
            "ncclUnhandledCudaError",
            "ncclInvalidUsage: ",
            "ncclInvalidArgument: ",
            "unhandled cuda error",
        ),
        page=Page(_HIDDEN, ("DD446", "DD306", "DD304", "DD330", "DD605"), _RESULTS, ("NCCL_DEBUG",)),
    ),
    "command-killed": pointer(  # a shell's message on how a command ended; the shell may start it again
        " Killed  ", rf"(?:^|: +)\d+ (?P<killed>Killed)  (?!.*{MONITORS})"
    ),
    "core-dumped": pointer(
        "(core dumped)",
        r"(?P<signal>Segmentation fault|Bus error|Aborted|Illegal instruction|Floating point exception|Trace/breakpoint"
        r" trap)\s{1,20}\(core dumped\)",
    ),
    # A traceback without its beginning: output that was truncated, or only its end.
    "last-line-of-exception": pointer(
        tuple(f"{name}: " for name in _EXCEPTIONS),
        r"^(?:\[rank\d{1,7}\]: ?)?(?:[a-z_][\w.]{0,80}\.)?(?P<type>[A-Z]\w{1,40}Error): ",
    ),
    "exit-code": launcher.pointer(  # torchrun's agent, on the first failed rank of its node, and Composer's launcher
        ("failed (exitcode: ", " crashed with exit code ", " exited with code "),
        r"(?:failed \(exitcode: |[Rr]ank (?P<rank>\d{1,7})(?: \(PID \d{1,10}\))? (?:crashed|exited) with (?:exit )?"
        r"code (?!0\b))(?P<exit>-?\d+)(?:\) local_rank: (?P<local_rank>\d+)(?: \(pid: (?P<pid>\d+)\))?)?",
    ),
    "received-signal": launcher.pointer(
        ") received by PID",
        r"Signal (?P<number>\d+) \((?P<signal>\w+)\) received by PID(?: (?P<pid>\d+))?",
        page=Page(
            "A signal ended the rank: SIGKILL is the kernel's (out of memory), the scheduler's or a person's.",
            ("DD612", "DD225"),
            "torch 2.15 distributed/elastic/multiprocessing/api.py",
        ),
    ),
    "killed-by-launcher": launcher.pointer(  # torchrun's agent, 30 s after a SIGTERM that did nothing
        ", forcefully exiting via ", r"Unable to shutdown process (?P<pid>\d+) via"
    ),
    "spawned-process-ended": launcher.pointer(
        ("ProcessExitedException: ", "ProcessRaisedException: "),
        r"process (?P<local_rank>\d+) terminated with (?:exit code (?P<exit>\d+)|signal (?P<signal>\w+))"
        r"|ProcessRaisedException",
    ),
    "srun-exit": launcher.pointer(
        "srun: error: ",
        r"srun: error: (?P<host>[\w.-]+): tasks? (?P<tasks>[\d,\[\]-]+): (?:Exited with exit code (?P<exit>\d+)"
        r"|(?P<signal>Killed|Terminated|Segmentation fault|Aborted|Bus error|Illegal instruction))",
    ),
    "mpirun-exit": launcher.pointer(
        ("noticed that process rank", "KILLED BY SIGNAL: ", "=   EXIT CODE: ", "  Exit code:    "),
        r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>\S+) exited on signal (?P<number>\d+)"
        r"|KILLED BY SIGNAL: (?P<signal>\d+)|(?i:EXIT CODE): +(?P<exit>\d+)",
    ),
    "child-ended": launcher.pointer(  # Lightning's launcher, which then ends the others
        "] Child process with PID ", r"\[rank: (?P<rank>\d{1,7})\] Child process with PID \d+ terminated with code"
    ),
    "mpi-abort": launcher.pointer("MPI_ABORT was invoked on rank ", r"was invoked on rank (?P<rank>\d{1,7})"),
    "mpirun-did-not-start": launcher.pointer("mpirun was unable to "),
    "command-ended": launcher.pointer(  # from launchers that name no rank: DeepSpeed, accelerate
        ("exits with return code = ", "died with <Signals."),
        r"exits with return code = (?P<exit>-?[1-9]\d*)|died with <Signals\.(?P<signal>SIG[A-Z]+)",
    ),
    "interrupted": launcher.pointer("KeyboardInterrupt"),
    "called-abort": pointer("terminate called after throwing an instance of", r"an instance of '(?P<type>[^']+)'"),
    "service-says-failed": launcher.pointer(  # SageMaker, on the user's script
        ("ExecuteUserScriptError", "Training job failed"), r"ExecuteUserScriptError|\bFailed - Training job failed"
    ),
    "launcher-gave-up": launcher.pointer("errors.ChildFailedError"),
    "killed-by-code": launcher.pointer(
        ("exit code 137", "exit status 137", "exited with code 137", "terminated by signal 9", "signal: killed"),
        r"(?:code|status) (?P<exit>137)\b|by signal (?P<number>9)\b|signal: (?P<killed>killed)",
    ),
    "cuda-error": pointer(("CUDA error: ", "Test CUDA failure "), r"Error: CUDA error: |Test CUDA failure "),
    "cuda-error-of-watchdog": nccl.pointer("watchdog thread terminated with exception: CUDA error: "),
    "srun-did-not-start": launcher.pointer(
        (
            "Task launch for StepId=",
            "Application launch failed: ",
            "task_init() failed with rc=",
            "container start failed",
        )
    ),
    # A line of NCCL's source that an error has reached: a call of the program failed.
    "nccl-error-returned": nccl.pointer(
        ("group.cc:", "init.cc:", "transport.cc:", "enqueue.cc:"),
        r"NCCL INFO (?:(?!\S*(?:transport|plugin|graph|misc|ras)/)\S*/)?(?:group|init|enqueue|transport)\.cc:\d+"
        r" (?:\(\w+\) )?-> (?![07]\b)\d",
    ),
}

_HEALTHY = (  # NCCL's INFO while it connects or ends, store-refused's numbers, downloads, store-gone
    r"^(?!.*(?:\b[Rr]etrying\b|Connection closed by localRank|HTTPS?Connection|urlopen error|wandb"
    r"|failed on SocketImpl\(|\"should dump\" flag on TCPStore"
    r"|failed to connect to \S+(?: \(errno: (?:22|97|99)\b| \(system error: 10049\b|$)))"
)
#: Notices of Slurm, Ray and Kubernetes that a job waits for resources, and that it got them.
_WAITS = (
    "queued and waiting for resources", "Pending job allocation", "step creation temporarily disabled",
    "step creation still disabled", "Attempting to start training worker group", "cannot be scheduled",
    "No available node types can fulfill", "nodes are available: ", "insufficient resources",
)  # fmt: skip
_GOT_RESOURCES = (
    "has been allocated resources", "Granted job allocation", "Step created for", "step creation no longer",
    "Started training worker group", "Started distributed worker processes",
)  # fmt: skip
_VICTIMS = {
    "peer-gone": victim(
        victims.PEER_GONE,
        _HEALTHY,
        page=Page(
            "The other end of a connection is gone: look for the rank that failed first.",
            ("DD612", "DD613", "DD540", "DD566"),
            "gloo transport/tcp/pair.cc; torch 2.15 c10d/NCCLUtils.cpp; errno(3): ECONNRESET, EPIPE",
        ),
    ),
    "peer-refuses": victim(
        victims.PEER_REFUSES,
        _HEALTHY,
        page=Page(
            "The host is there, and nobody listens on the port.", ("DD511", "DD519", "DD520"), "errno ECONNREFUSED"
        ),
    ),
    "peer-unreached": victim(
        victims.PEER_UNREACHED,
        _HEALTHY,
        page=Page(
            "There is no way to the address, or a firewall says so.",
            ("DD513", "DD531", "DD522"),
            "errno(3): EHOSTUNREACH, ETIMEDOUT",
        ),
    ),
    "closing-signal": victim(
        ("closing signal SIGTERM", "closing signal SIGINT", "closing signal SIGKILL"),
        r"(?:Sending process (?P<pid>\d+) )?closing signal",
    ),
    "told-to-dump": victim("Observed flight recorder dump signal from another rank"),
    "dump-signal": victim(  # of the first group that a rank created; the number belongs to the printing rank
        (
            "Received a dump signal due to a collective timeout from",
            "Received a dump signal from ",  # torch 2.3 to 2.5
            "Received a global timeout from another rank",
            "Received a timeout signal from this local rank",
        ),
        _GROUP + r"Received a (?:dump signal|global timeout|timeout signal)(?: due to a collective timeout)? from +"
        r"(?:this local rank|another rank|rank (?P<by>\d+))"
        r"(?:.*?Last enqueued (?:\w+ )?work: (?P<enqueued>-?\d+), last completed (?:\w+ )?work: (?P<completed>-?\d+))?",
    ),
    "terminated-by-watchdog": victim(
        (
            "NCCL watchdog thread terminated with exception",  # before torch 2.2
            "Process group watchdog thread terminated with exception",
            "after attempting to dump debug info, due to",
            "we are taking the entire process down",
            "Some NCCL operations have failed or timed out",
        )
    ),
    "barrier-broken": victim("successfully reached monitoredBarrier, but received errors"),
    "teardown-abort": victim("terminate called without an active exception"),
    "abort-handler": victim("*** SIGABRT received at"),  # absl's, in Ray workers; NCCL's watchdog also ends this way
    "worker-terminated": victim("is killed by signal: Terminated"),
    # A step is also cancelled if one of its tasks fails (srun --kill-on-bad-exit); the job is not.
    "step-cancelled": victim(
        ("CANCELLED AT ", "srun: Job step aborted", "srun: Terminating"),
        r"\*\*\* STEP \S+ ON (?P<host>\S+) CANCELLED AT \S+ (?!DUE TO)|srun: (?:Job step aborted|Terminating)",
    ),
    "waits-in-store-barrier": context(
        "Waiting in store based barrier to initialize",
        r"Waiting in store based barrier.{0,120}\(world_size=(?P<world>\d+), worker_count=(?P<came>\d+)",
    ),
    # Waits of launchers before their ranks exist, and the ends of these waits (causes/starting.py).
    "member-came": context(  # Lightning
        ", MEMBER: ", r"GLOBAL_RANK: (?P<member>\d{1,7}), MEMBER: \d{1,7}/(?P<world>\d{1,7})"
    ),
    "members-complete": context("processes registered. Starting "),
    "in-rendezvous": context("Rendezvous'ing worker group", unless=("Rendezvous complete for workers",)),
    "store-tried-again": context(
        "TCP client failed to connect/validate to host ", r"to host (?P<at>\S{1,300}:\d{1,5}) - retrying"
    ),
    "waits-for-resources": launcher.context(
        _WAITS, unless=(*_GOT_RESOURCES, "srun: error: Unable to ", "salloc: error: Unable to ")
    ),
    # A node also prints it when its job ends successfully, after the node that served the rendezvous.
    "rendezvous-lost": victim(
        ("has failed to send a keep-alive heartbeat to the rendezvous", "has failed to shutdown the rendezvous"),
        r"(?:node '(?P<host>[\w.-]{1,255}?)_\d+_\d+' )?has failed to",
        beside=("closing-signal", "exception"),
    ),
    # A launcher of the same rendezvous has exited: on another node, or in an earlier job with the same ID.
    "rendezvous-closed": victim("RendezvousClosedError"),
    # torch's warnings about rank 0's store, also printed if rank 0 only exited before the others.
    "store-gone": victim(
        ("recvValue failed on SocketImpl(", "sendBytes failed on SocketImpl(", '"should dump" flag on TCPStore'),
        beside=("closing-signal", "exit-code", "exception", "nccl-error"),
    ),
    "ray-rank-gone": victim(
        " Error Snippet]:",
        r"(?s)\[Rank (?P<rank>\d{1,7}) Error Snippet\]:.{0,4000}?(?:health check failed|died|worker process)",
        lines=30,
    ),
    "ray-worker-gone": victim(
        (
            "The actor died unexpectedly before finishing this task",
            "Worker unexpectedly exits with a connection error code",
            "The actor is dead because its worker process has died",
            "A worker died or was killed while executing a task by an unexpected system error",
        ),
        r"(?s)(?:.{0,500}?(?:Worker IP address: (?P<host>\S{1,255})|before finishing this task)"
        r".{0,200}?\b(?:Worker PID|pid): (?P<pid>\d{1,10}))?",
        lines=5,
    ),
}

#: Signals that end a command, as shells name them. SIGTERM is omitted: it ends what is no longer needed.
_SIGNALS = (
    r"(?i:killed|segmentation fault|bus error|abort(?:ed)?|illegal (?:hardware )?instruction|floating point exception)"
)
#: Messages of a shell, make, a container or a service that a command failed.
_BAD_ENDS = (
    "Killed", "killed ", "Segmentation fault", "segmentation fault", "Bus error", "bus error", "Aborted", "abort ",
    "Illegal instruction", "illegal hardware instruction", "Floating point exception", "floating point exception",
    "make: *** ", "]: *** [", "+  Exit ", "build stopped: ", "exit code", "exit status", "exited with",
    "terminated with ", "Exit status ", "with error code", "code=exited", "code=killed", "code=dumped",
    "Failed with result",
)  # fmt: skip
_NO_EVIDENCE = {
    "advice": Sign(
        (
            "For debugging consider passing CUDA_LAUNCH_BLOCKING",
            "kernel errors might be asynchronously reported",
            "Compile with `TORCH_USE_CUDA_DSA`",
            "This is typically caused by",
            "NOTE: Redirects are currently not supported",
            "To enable traceback see: ",
        ),
        role="advice",
    ),
    "restarted": launcher.context("will restart worker group"),
    "launcher-summary": launcher.sign(
        ("ChildFailedError", "Root Cause (first observed failure)", "[0]: <NO_OTHER_FAILURES>"), role="advice"
    ),
    # Python's text before a traceback that ended nothing: from a destructor, or from its logging.
    "exception-ignored": context(
        ("Exception ignored in", "Exception ignored while", "--- Logging error ---"),
        r"^(?:Exception ignored|--- Logging)",
    ),
    # One answer of NCCL's RAS, as text. For ranks that are behind in two answers, see rank-behind.
    "ras-mismatch": context(
        "ranks have different ",
        r"ranks have different (?P<what>status|\w+ operation counts)[^\n]*"
        r"(?P<counts>(?:\n\s+(?:\d+ ranks have|Rank \d+ has) [^\n]+)*)",
        lines=4,
    ),
    "package-not-built": context(("error: subprocess-exited-with-error", "Failed building wheel for ")),
    "chooses-free-port": context(" --standalone", r"\b(?:torchrun|torch\.distributed\.\w+) .*--standalone\b"),
    # Added by reading/containers.py.
    "stack-of-process": context(STACK_NOTE, rf"^{STACK_NOTE}(?P<place>.+)"),
    # torch prints it when a process exits without destroying its groups.
    "groups-not-destroyed": context("destroy_process_group() was not called before program exit"),
    # Any complaint: a failure if the output ends with it.
    "complaint": context(
        ("NCCL WARN ", "Exception: "),
        rf"NCCL WARN (?!.*(?:{HARMLESS_WARNINGS}))"
        r"|^(?:\[rank\d{1,7}\]: ?)?[\w.]{1,80}Exception: ",
    ),
    # A message of a shell, make, a container or a service that a command failed: a failure if the output ends with it.
    # Monitors do not count, because they are ended with the job.
    "ended-badly": launcher.context(
        _BAD_ENDS,
        rf"^(?!.*{MONITORS})(?:(?:\S{{1,200}}: )?(?:line \d+: )?(?: *\d+ |\[\d+\][+-]? +)?{_SIGNALS}"
        r"(?: \(core dumped\))?(?:$|\s{2,}|\s+\S*(?:python|torchrun|srun))"
        r"|\[\d+\][+-]? +Exit [1-9]|g?make(?:\[\d+\])?: \*\*\* |ninja: build stopped"
        r"|(?i:.{0,300}?\b(?:error|failed|failure|exited|terminated|exit)\b.{0,300}?"
        r"\b(?:code|status)[\s:=]+(?:code )?-?[1-9]\d{0,9}\b)"
        r"|.{0,200}Main process exited, code=(?!exited, status=0)|.{0,200}Failed with result '(?!success))",
    ),
}

SIGNS = {
    # A block of lines of one process, read by reading/blocks.py: values type, message, where, frames, first_line.
    "exception": pointer("Traceback (most recent call last)"),
    **_TIME_OUTS,
    **_ENDS,
    **_VICTIMS,
    **_NO_EVIDENCE,
}
