"""Causes in how the ranks are started, find each other and are ended from outside, and processes that crash."""

from ddp_doctor.features.jobs.table.kinds import JobCause, code_cause, network_cause, scheduler_cause, sick_host
from ddp_doctor.features.jobs.table.remedies import in_code, on_node, remedy, setting, unset
from ddp_doctor.features.jobs.table.signs import Sign, kernel, launcher, nccl, proof
from ddp_doctor.model.known_error import Page

LET_LAUNCHER_NUMBER = in_code(
    "Let each rank take its numbers from the launcher: no fixed --local_rank or rank=0, and no port of its own in"
    " init_process_group()"
)
CAUSES = {
    "DDJ180": scheduler_cause(
        name="sighup-terminal",
        title="The terminal of torchrun was closed, which ended the job",
        finds="torchrun received SIGHUP and passed it on to the ranks.",
        why="A terminal or ssh session that closes sends SIGHUP. torchrun handles the signal itself, so nohup does not"
        " help.",
        remedies=(
            remedy(
                "Start it without a terminal: in a batch job, in tmux, or detached",
                "tmux new -d 'torchrun train.py'",
                "setsid torchrun train.py </dev/null >job.log 2>&1 &",
            ),
            remedy("Make torchrun ignore the signal", "torchrun --signals-to-handle=SIGTERM,SIGINT train.py"),
        ),
        next_check="last, and sshd's log at that time",
        references=("torch 2.4 to 2.15, distributed/elastic/agent/server/api.py, multiprocessing/api.py",),
        signs={
            "launcher-sighup": launcher.proof(
                ("death signal, shutting down workers", "got signal: ", "closing signal SIGHUP"),
                r"(?:Received (?:1|(?:Signals\.)?SIGHUP)|Signals\.SIGHUP) death signal"
                r"|SignalException: Process (?:(?P<pid>\d+) )?got signal: 1$|closing signal (?:Signals\.)?SIGHUP",
            )
        },
    ),
    "DDJ181": code_cause(
        name="launch-env-missing",
        title="{who} has no launcher variables[: {variable} is not set]",
        finds="The script reads RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT or LOCAL_RANK, but the variable is not set.",
        why="torchrun sets these variables; python does not, and srun and mpirun set others.",
        remedies=(
            remedy("Start it with torchrun", "torchrun --nproc-per-node=gpu train.py"),
            remedy(
                "Set them from SLURM's variables with srun",
                "export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID",
            ),
        ),
        next_check="env | grep -E 'RANK|WORLD_SIZE|MASTER' in a rank",
        references=("torch 1.8 to 2.15, distributed/rendezvous.py",),
        found_by=("DD102", "DDL112", "DDL118"),
        signs={
            "variable-not-set": proof(
                (
                    "expected, but not set",
                    "KeyError: 'LOCAL_RANK'",
                    "KeyError: 'RANK'",
                    "KeyError: 'WORLD_SIZE'",
                    "KeyError: 'MASTER_",
                    "' in the torch environment",
                ),
                r"(?:nvironment variable |KeyError: '|Could not find ')(?P<variable>[A-Z_]+)"
                r"(?: expected, but not set|')",
            ),
            "variable-of-launcher-not-set": Sign(
                (
                    "KeyError: 'SLURM_",
                    "KeyError: 'OMPI_COMM_",
                    "KeyError: 'PMI_",
                    "KeyError: 'LOCAL_WORLD_SIZE'",
                    "KeyError: 'NODE_RANK'",
                    "KeyError: 'GROUP_RANK'",
                    "parameter missing",
                    ": unbound variable",
                ),
                r"KeyError: '(?P<variable>[A-Z_]+)'|rendezvous: (?:rank|world size|port number) parameter missing"
                r"|: (?:MASTER_(?:ADDR|PORT)|WORLD_SIZE|(?:LOCAL_|NODE_)?RANK|SLURM_\w+): unbound variable",
            ),
        },
    ),
    "DDJ182": JobCause(
        name="port-in-use",
        title="Port[ {port}] on {who} is in use by another program or a leftover job",
        domain="host",
        finds="The rank or the launcher that serves the rendezvous cannot listen on its port.",
        why="Two jobs on one host use the same port, a script sets another port under torchrun, or a process"
        " outlived its job. The other ranks fail to connect later.",
        remedies=(
            on_node("Stop the process that listens on the port, or choose another port", "ss -ltnp 'sport = :PORT'"),
            remedy(
                "Let the launcher choose a free port, or set another one",
                "torchrun --standalone train.py",
                "accelerate launch --main_process_port 0 train.py",
                "deepspeed --master_port $((20000 + RANDOM % 20000)) train.py",
            ),
            in_code("If the script names the port, let the launcher choose it: init_method='env://'"),
        ),
        next_check="ss -ltnp 'sport = :PORT' on that host",
        references=("torch 1.10 to 2.15, c10d/socket.cpp, TCPStoreLibUvBackend.cpp", "errno(3): EADDRINUSE"),
        instead_of=("rendezvous-port-conflict",),
        found_by=("DD514", "DDL162"),
        signs={
            "store-cannot-listen": launcher.proof(
                "The server socket has failed to",
                r"has failed to(?:.*?(?:port: |:)(?P<port>\d{2,5})\b(?=.*(?:EADDRINUSE|errno: 98))|.*errno: 98"
                r"|.*EADDRINUSE|[^:]*address\.\s*$)",
            ),
            "address-in-use": launcher.sign(
                "Address already in use",
                r"(?:\[Errno 98\]|(?:RuntimeError|DistNetworkError|OSError):) Address already in use",
            ),
            "port-of-another": launcher.proof(  # accelerate
                "but another process is utilizing it", r"on port \W?(?P<port>\d{1,5})"
            ),
            "cannot-bind": launcher.sign(
                ("Address already in use", "address already in use"),
                r"(?i)\b(?:bind|listen|ZMQError)\b[^\n]{0,120}address already in use"
                r"(?:[^\n]{0,80}?[\d\]]:(?P<port>\d{2,5})\b)?",
            ),
        },
    ),
    "DDJ183": JobCause(
        name="rendezvous-port-conflict",
        title="Another job uses the same rendezvous[: its server answered {who} at {peer}:{port}]",
        domain="scheduler",
        finds="A rank reached a server on the rendezvous port that does not speak the store's protocol.",
        why="Two jobs with the same default endpoint share a store and mix their keys, or a proxy or another"
        " service uses the port.",
        remedies=(
            remedy(
                "Use a different endpoint and id for every job",
                "torchrun --rdzv-endpoint=HOST:$((20000 + SLURM_JOB_ID % 20000)) --rdzv-id=$SLURM_JOB_ID train.py",
                "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))",
            ),
        ),
        next_check="ss -tnp 'sport = :PORT' on the endpoint's host shows peers of another job",
        references=("torch 2.4 to 2.15, c10d/TCPStore.cpp; distributed/elastic/rendezvous/dynamic_rendezvous.py",),
        signs={
            "foreign-store": launcher.sign(
                "Ping failed, invalid value returned from server",
                r"(?:to host (?P<peer>\S+):(?P<port>\d+) - .*)?Ping failed, invalid value"
                r"(?:.*, Got: (?P<got>\d{1,10})$)?",
            ),
            "rank-twice": nccl.hint(  # NCCL's bootstrap
                "ranks has already checked in"
            ),
        },
    ),
    "DDJ184": JobCause(
        name="rendezvous-host-mismatch",
        title="No node serves the rendezvous[ at {server}:{port}] for {who}",
        domain="scheduler",
        finds="Nodes cannot reach torchrun's rendezvous, and no node serves it.",
        why="torchrun serves the endpoint only on the host that it recognizes as its own. A name or address that the"
        " first node does not have (another interface, NAT, an alias) leaves all nodes as clients.",
        remedies=(
            remedy(
                "Use a name or address of the first node itself, or tell it that it is the host",
                "torchrun --rdzv-conf=is_host=1 train.py  # on the first node",
                "torchrun --rdzv-conf=is_host=0 train.py",
            ),
        ),
        next_check="ss -ltn on the first node while the job starts must list the endpoint's port",
        references=("torch 2.4 to 2.15, distributed/elastic/rendezvous/c10d_rendezvous_backend.py",),
        # The judge: it is likely if the address answers with “refused” (store-refused, pointers.py) and no other cause
        # is on the endpoint's host (port-in-use, an exception). With timeouts only, the network may also be the cause
        # (firewall-or-unreachable). With hostname-unresolvable for the same host, that is the cause.
        signs={
            # torchrun on other nodes prints the same after the node that served the rendezvous has exited
            "rendezvous-connection": launcher.hint(
                "RendezvousConnectionError: ", beside=("store-refused", "store-unreached")
            ),
            # each node then serves a separate rendezvous and waits for the others
            "endpoint-is-localhost": launcher.sign(
                "  rdzv_endpoint  ", r"rdzv_endpoint +: (?:localhost|127\.|\[::1\])", beside=("rendezvous-timeout",)
            ),
        },
    ),
    "DDJ185": network_cause(
        name="hostname-unresolvable",
        restart="unknown",
        title="{who} cannot resolve the host name[ {name}]",
        finds="The host name of the rendezvous, or of the node itself, cannot be resolved.",
        why="Neither /etc/hosts nor DNS knows it on that node. Right after pods start, names may be missing for a"
        " while.",
        remedies=(
            remedy("Use the address instead of the name", "torchrun --rdzv-endpoint=10.0.0.1:29400 train.py"),
            remedy("Add the name to /etc/hosts or DNS on every node", scope="cluster"),
            remedy("If the name ends with a number, such as node0:8, write the host list as its reader expects it"),
        ),
        next_check="getent ahosts NAME on the node that printed it",
        references=("torch 1.12 to 2.15, c10d/socket.cpp; getaddrinfo(3)",),
        # Healthy jobs print that the hostname of a *client* socket cannot be retrieved (err=-3), so it is not a sign.
        found_by=("DD510", "DD526"),
        signs={
            "name-not-resolved": launcher.sign(  # torch repeats it until the name resolves
                " cannot be retrieved (gai error: ",
                r"addresses of \(\[?(?P<name>[^,\]]+)\]?, \d+\) cannot be retrieved \(gai error: -[235]\b",
                beside=("exception", "exit-code", "store-unreached", "store-timeout", "last-line-of-exception"),
                page=Page(
                    "The host name of the rendezvous does not resolve; torch tries again until it does.",
                    ("DDJ185", "DD510", "DD526"),
                    "torch 1.12 to 2.15, c10d/socket.cpp",
                ),
            ),
            "gloo-name-not-resolved": proof(  # gloo looks up the address of the host's own name
                "rp != nullptr. Unable to find address for: ",
                r"rp != nullptr\. Unable to find address for: (?P<name>\S+)",
            ),
            "nccl-name-not-resolved": nccl.sign("error encountered when getting address info"),
            "gaierror": launcher.proof(("gaierror: [Errno -2]", "gaierror: [Errno -3]", "gaierror: [Errno -5]")),
            "ssh-name-not-resolved": launcher.proof(
                "ssh: Could not resolve hostname ", r"resolve hostname (?P<name>[^:\s]{1,255}(?::\d{1,5}(?=:))?)"
            ),
            "store-name-not-resolved": launcher.sign(  # torch up to 1.9
                ("Name or service not known", "Temporary failure in name resolution"),
                r"(?:RuntimeError|ValueError|DistNetworkError): (?:host not found: )?(?:Name or|Temporary failure)",
            ),
        },
    ),
    "DDJ186": network_cause(
        name="gloo-ifname-invalid",
        title="GLOO_SOCKET_IFNAME matches no interface of {who}[: {interface}]",
        finds="No interface has the name in GLOO_SOCKET_IFNAME.",
        why="gloo expects full names, separated by commas. It takes NCCL's “^lo” and prefixes literally.",
        remedies=(
            remedy(
                "Set an interface of that host, or let gloo choose",
                "ip -br addr",
                settings=(unset("GLOO_SOCKET_IFNAME"),),
            ),
        ),
        next_check="ip -br addr; echo $GLOO_SOCKET_IFNAME on that host",
        references=("gloo transport/tcp/device.cc; torch, c10d/ProcessGroupGloo.cpp",),
        found_by=("DD105", "DD521"),
        signs={
            "gloo-no-interface": proof(
                "Unable to find address for: ", r"^(?!.*rp != nullptr).*Unable to find address for: (?P<interface>\S+)"
            )
        },
    ),
    "DDJ187": network_cause(
        name="gloo-loopback-hostname",
        title="gloo uses an address of {who} that other nodes cannot reach[: {peer}]",
        finds="gloo connects to 127.x and is refused, or the host's name does not resolve to one of its addresses.",
        why="gloo announces the address that the host's name resolves to. On many systems, /etc/hosts contains"
        " 127.0.1.1 for it. The rank that prints the error is not the one with the wrong address.",
        remedies=(
            remedy(
                "Set the interface between the nodes",
                settings=(setting("GLOO_SOCKET_IFNAME", "eth0"),),
                undo="unset GLOO_SOCKET_IFNAME",
            ),
            on_node("Map each host's name to its network address in /etc/hosts"),
        ),
        next_check="getent hosts $(hostname) on every node",
        references=("gloo transport/tcp/pair.cc; torch, c10d/ProcessGroupGloo.cpp",),
        signs={
            "gloo-dials-loopback": launcher.sign(
                ("ERROR failed to connect", "connectFullMesh failed", "SO_ERROR: Connection refused", " connect [127."),
                r"(?:ERROR failed to connect.*|Connection refused, )remote=\[(?P<peer>127\.[\d.]+)\]"
                r"|\] connect \[(?P<at>127\.[\d.]+)\]:\d+: Connection refused",
            ),
            "gloo-no-own-address": launcher.sign(
                "Unable to resolve hostname to a (local) address",
                beside=(
                    "peer-gone",
                    "peer-refuses",
                    "peer-unreached",
                    "gloo-timeout",
                    "gloo-dials-loopback",
                    "store-timeout",
                ),
            ),
            "gloo-own-address-elsewhere": launcher.sign(
                "Unable to find interface for: ", r"Unable to find interface for: \[?(?P<peer>[\w.:]+)"
            ),
            "gloo-without-mesh": launcher.hint(  # ranks that never reached each other
                "connectFullMesh failed"
            ),
        },
    ),
    "DDJ192": JobCause(
        name="script-arguments",
        restart="no",
        title="The arguments[ of {script}] were rejected: {message}",
        finds="The training script or the launcher exits because an argument is missing or unknown.",
        why="Launchers, configurations and scripts are often changed independently of each other.",
        remedies=(
            remedy("Compare the arguments with SCRIPT --help"),
            remedy(
                "If an argument is a blank, remove the space behind a backslash at the end of a line of the command"
            ),
        ),
        next_check="python SCRIPT --help",
        references=("Python: argparse",),
        signs={
            "usage-error": proof(
                (
                    ": error: the following arguments are required",
                    ": error: unrecognized arguments",
                    ": error: argument ",
                ),
                r"(?:^|: )(?P<script>[\w.-]+(?: CLI tool)?): error: "
                r"(?P<message>(?:the following arguments are required|argument "
                r"|unrecognized arguments: (?!.*--local[-_]rank)).{0,200})",
            ),
            "script-is-blank": proof(": can't open file '", r"python[\d.]*: (?P<message>can't open file '\s*')"),
        },
    ),
    "DDJ193": JobCause(
        name="process-crashed",
        title="{who} crashed[ with {signal}][ ({process}, pid {pid})] in a native library, not in Python code",
        finds="A rank ended with a segmentation fault, a bus error, an illegal instruction or an abort.",
        why="The kernel ends a process that accesses memory it does not own. The native stack shows the library.",
        remedies=(
            remedy("Enable Python's stack trace for crashes", settings=(setting("PYTHONFAULTHANDLER", "1"),)),
            remedy("Look for packages built for another torch or CUDA", "python -m pip check"),
        ),
        next_check="run with PYTHONFAULTHANDLER=1 and ulimit -c unlimited, then coredumpctl gdb PID",
        references=("signal(7)", "Python: faulthandler", "Linux arch/x86/mm/fault.c (segfault at)"),
        # The judge also names it, only as possible, if a rank ended with signal 11, 7, 4 or 8 (pointers.py) and no
        # other cause explains that. Signal 6 is usually from a watchdog (terminated-by-watchdog) or gloo
        # (gloo-sizes-differ).
        signs={
            "fatal-python-error": Sign(
                "Fatal Python error: ", r"Fatal Python error: (?P<signal>(?!Aborted)[^\n]{1,60})", is_final=True
            ),
            "crash-handler": Sign(  # UCX's, absl's and MPI's handlers, before they print stacks
                ("Caught signal ", "*** SIG", "] Signal: "),
                r"(?:Caught signal (?:4|7|8|11) \(|\] Signal: )(?P<signal>(?:Segmentation|Bus|Illegal|Floating)[\w ]*)"
                r"|\*\*\* (?P<name>SIG(?:SEGV|BUS|ILL|FPE)) (?:received|\(@)",
                is_final=True,
            ),
            "kernel-segfault": kernel.sign(
                (" segfault at ", "traps: ", "general protection fault"),
                r"(?:traps: )?(?<![\w.-])(?P<process>[\w.-]{1,80})\[(?P<pid>\d{1,10})\]:? (?:segfault at|trap "
                r"|general protection)(?!.* in libnccl)",
            ),
            "heap-corrupted": Sign(  # glibc malloc/malloc.c, malloc_printerr
                (
                    *("free(): ", "malloc(): ", "realloc(): ", "malloc_consolidate(): ", "munmap_chunk(): "),
                    *("double free or corruption", "corrupted ", "*** stack smashing detected ***"),
                ),
                r"(?:^|: |\s)(?P<signal>(?:free|malloc|realloc|malloc_consolidate|munmap_chunk)\(\): (?:invalid|double"
                r"|corrupted|unaligned|mismatching|memory|unsorted|largebin|smallbin)[\w ]{1,60}"
                r"|double free or corruption|corrupted (?:size vs\. prev_size|double-linked list)"
                r"|\*\*\* stack smashing detected)",
            ),
        },
    ),
    "DDJ188": scheduler_cause(
        name="scheduler-time-limit",
        title="The scheduler ended the job at its time limit",
        finds="Slurm, PBS, LSF or Kubernetes reports that the job reached its time limit.",
        why="The job did not fail; closed connections and signals after that follow from it.",
        remedies=(
            remedy("Request more time", "sbatch --time=2-00:00:00 job.sbatch"),
            remedy(
                "Request a signal before the limit, and save a checkpoint on it",
                "sbatch --signal=B:USR1@300 --requeue job.sbatch",
            ),
        ),
        next_check="sacct -j JOB -o JobID,State,Elapsed,Timelimit",
        references=("Slurm src/slurmd/slurmstepd/req.c, src/slurmd/slurmd/req.c; Kubernetes activeDeadlineSeconds",),
        signs={
            "time-limit": kernel.proof(
                ("DUE TO TIME LIMIT", "TERM_RUNLIMIT", "job killed: walltime", "DeadlineExceeded"),
                r"DUE TO TIME LIMIT|TERM_RUNLIMIT|job killed: walltime|reason: ?DeadlineExceeded"
                r"|DeadlineExceeded.*active longer",
            ),
            "time-limit-of-cloud": kernel.proof("MaxRuntimeExceeded"),
        },
    ),
    "DDJ189": scheduler_cause(
        name="scheduler-preempted",
        title="The scheduler preempted or requeued the job",
        finds="Slurm, Kubernetes or the cloud provider reports that the job was preempted, requeued or evicted.",
        why="The job did not fail; closed connections and signals after that follow from it.",
        remedies=(
            remedy(
                "Save checkpoints often, and restart automatically", "sbatch --requeue --open-mode=append job.sbatch"
            ),
            remedy("Use a partition or a priority that is not preempted"),
        ),
        next_check="sacct -j JOB --duplicates -o JobID,State,End",
        references=("Slurm src/slurmd/slurmstepd/req.c; Kubernetes: eviction",),
        signs={
            "preempted": kernel.proof(
                (
                    "DUE TO PREEMPTION",
                    "DUE TO JOB REQUEUE",
                    "TERM_PREEMPT",
                    "The node was low on resource",
                    "Preempted by ",
                )
            ),
            "taken-by-cloud": kernel.sign(
                (" preempted", " evicted", "interruption notice", "TaintManagerEviction"),
                r"(?i)\b(?:instance|vm|node|machine|job|pod)(?: \S{1,100})? (?:was|has been|is being) (?:preempted"
                r"|evicted)|spot (?:instance )?interruption notice|TaintManagerEviction",
            ),
        },
    ),
    "DDJ190": scheduler_cause(
        name="scheduler-cancelled",
        title="The job was stopped from outside[ on {node}]: canceled, or a signal to its launcher",
        finds="Slurm prints CANCELLED without a reason, or the launcher received SIGTERM, SIGINT or SIGQUIT.",
        why="A person (scancel), the scheduler or the system ended the job. Later messages of the ranks are"
        " consequences.",
        remedies=(remedy("Ask the scheduler who stopped it", "sacct -j JOB -o JobID,State,End"),),
        next_check="sacct -j JOB -o JobID,State,End,Comment; kubectl describe pod POD",
        references=("Slurm src/slurmd/slurmstepd/req.c", "torch 2.4 to 2.15, distributed/elastic/agent/server/api.py"),
        # The judge does not name it along with scheduler-time-limit, scheduler-preempted or scheduler-node-failure.
        signs={
            "cancelled": launcher.proof(
                "CANCELLED AT ", r"\*\*\* JOB \S+ ON (?P<node>\S+) CANCELLED AT \S+ (?!DUE TO (?!JOB NOT ENDING))"
            ),
            "launcher-told-to-end": launcher.sign(
                ("death signal, shutting down workers", "got signal: ", "Main process received SIG"),
                r"Main process received SIGTERM"
                r"|Received (?:15|3|(?:Signals\.)?SIG(?:TERM|QUIT)) death signal|SignalException: Process "
                r"(?P<pid>\d+) got signal: (?:15|3)$",
            ),
            "driver-told-to-end": launcher.hint("*** SIGTERM received at"),  # Ray's; its workers also end this way
            "ended-by-owner": launcher.sign(
                (
                    "TERM_OWNER",
                    "TERM_FORCE_OWNER",
                    "TERM_ADMIN",
                    "has been revoked",
                    "srun: Force Terminated job",
                    "srun: forcing job termination",
                ),
                r"TERM_(?:FORCE_)?OWNER|TERM_ADMIN|Job allocation \d+ has been revoked|srun: Force Terminated job"
                r"|srun: forcing job termination",
            ),
        },
    ),
    "DDJ210": scheduler_cause(
        name="interrupted-by-user",
        title="The job was interrupted with Ctrl-C (SIGINT)",
        finds="The launcher or a rank received SIGINT.",
        why="A person or a script interrupted the job. It did not fail.",
        remedies=(remedy("Start it again"),),
        next_check="if it was ended because it made no progress: ddp-doctor attach during the next run",
        references=("torch 2.4 to 2.15, distributed/elastic/multiprocessing/api.py",),
        signs={
            "launcher-interrupted": launcher.sign(
                (
                    *(
                        "death signal, shutting down workers",
                        "got signal: ",
                        "srun: interrupt ",
                        "srun: sending Ctrl-C",
                    ),
                    "Main process received SIG",  # DeepSpeed's
                ),
                r"Received (?:2|(?:Signals\.)?SIGINT) death signal|SignalException: Process \d+ got signal: 2$"
                r"|^srun: (?:interrupt|sending Ctrl-C)|Main process received SIGINT",
            )
        },
    ),
    "DDJ191": sick_host(
        name="scheduler-node-failure",
        title="The job lost a node[: {node}]",
        finds="Slurm or Ray reports that a node no longer responds.",
        why="The node went down or lost its network. Ranks on other nodes only see that the connection is closed.",
        remedies=(
            remedy("Restart without that node", "sbatch --exclude=NODE --requeue job.sbatch"),
            remedy("Have the node inspected", "scontrol show node NODE", scope="cluster"),
        ),
        next_check="scontrol show node NODE | grep -E 'State|Reason'; journalctl -k -b -1 on it",
        references=("Slurm src/slurmd/slurmstepd/req.c, src/srun/libsrun/launch.c",),
        signs={
            "node-failure": kernel.proof(
                ("DUE TO NODE FAILURE", "srun: error: Node failure on"),
                r"DUE TO NODE FAILURE|Node failure on (?P<node>\S+)",
            ),
            "node-of-actor-died": launcher.sign(
                ("RayActorError: ", "ActorDiedError: ", "is dead because its node has died"),
                r"(?s)Error: .*?\n\s*ip: (?P<node>[\w.:-]+).*?its node has died|^[^\n]*its node has died",
                lines=12,
            ),
            "node-lost-by-ray": launcher.sign(
                "has been marked dead because the detector",
                r"(?:node name: (?P<node>\S+) )?has been marked dead because the detector",
            ),
        },
    ),
}
