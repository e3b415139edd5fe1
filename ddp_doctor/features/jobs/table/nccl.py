"""Causes in NCCL's settings, and in the output of its own tools.

Values that NCCL refuses; ranks whose settings or releases do not match; RAS (reading/ras.py notes the ranks that it
names); NCCL's diagnostics; nccl-tests.
"""

from ddp_doctor.features.jobs.table.kinds import JobCause, code_cause, host_cause, sick_gpu
from ddp_doctor.features.jobs.table.remedies import in_code, on_node, remedy, unset
from ddp_doctor.features.jobs.table.signs import HARMLESS_WARNINGS, NCCL_STATES, RAS_NOTE, nccl, proof, ras

_RAS = "NCCL user guide, troubleshooting, RAS; src/ras/client_support.cc (NCCL 2.24 to 2.31)"
_NOTE = (RAS_NOTE,)
_BEHIND = r"\[RAS: (?:rank (?P<rank>\d+)|(?P<several>[^\]]+?)) {} at (?P<launched>\d+) of (?P<most>\d+)"

CAUSES = {
    "DDJ157": host_cause(
        name="nccl-settings-differ",
        title="Ranks have different settings or releases of NCCL[: {bytes} bytes instead of {other_bytes}]",
        finds="While NCCL creates a communicator, a rank receives more data from a peer than expected, or takes"
        " the peer's memory for that of another transport.",
        why="The data that ranks exchange at this point depend on NCCL's release and on settings such as"
        " NCCL_MAX_NCHANNELS, NCCL_P2P_DISABLE and NCCL_NET, which must be equal on all ranks. The rank that reads"
        " first prints the error.",
        remedies=(
            remedy(
                "Use the same NCCL_* variables, nccl.conf and libnccl on all ranks",
                "ddp-doctor run --only env_vars,nccl,software,consistency",
            ),
        ),
        next_check="ddp-doctor run --nnodes N shows settings and releases that differ between nodes (DD551, DD236)",
        references=("NCCL 2.21.5, 2.27.5 and 2.32.3 on planted GPUs; src/bootstrap.cc, src/misc/shmutils.cc",),
        signs={
            "bootstrap-message-truncated": nccl.sign(
                "Message truncated : received",
                r"Message truncated : received (?P<bytes>\d+)(?:,\d+)? bytes instead of (?P<other_bytes>\d+)",
            ),
            "segment-without-a-name": nccl.sign("Error while attaching to shared memory segment /dev/shm/nccl- "),
            # values from another release are read at other places: "nroots 1 vs 16796938"
            "met-another-release": nccl.sign(
                "mismatch in info from procs", r"mismatch in info from procs, nranks (\d+) vs \1\b"
            ),
        },
    ),
    "DDJ159": code_cause(
        name="world-sizes-differ",
        title="Ranks have inconsistent numbers[: rank {rank} of a job of {world}]",
        finds="A rank starts NCCL's communicator with another number of ranks than the others, or with a rank"
        " number outside of it.",
        why="RANK and WORLD_SIZE come from the launcher or from a script that sets them. NCCL waits for a rank"
        " that does not exist, and only the rank outside of the world ends.",
        remedies=(
            remedy(
                "Start all nodes with the same --nnodes and --nproc-per-node, and let the"
                " launcher set RANK and WORLD_SIZE",
                "torchrun --nnodes 2 --nproc-per-node 8 --rdzv-endpoint=HOST:29500 train.py",
            ),
        ),
        next_check="env | grep -E 'RANK|WORLD_SIZE' in each rank",
        references=("NCCL 2.21.5, 2.27.5 and 2.32.3 on planted GPUs; src/init.cc, src/bootstrap.cc",),
        signs={
            "rank-beyond-world": nccl.proof(
                "Invalid rank requested", r"Invalid rank requested ?: (?P<rank>\d+)/(?P<world>\d+)"
            ),
            "world-sizes-differ": nccl.sign(  # the first rank does not know which of the two is wrong
                ("mismatch in info from procs", "mismatch in rank count from procs"),
                r"nranks (\d+) vs (?!\1\b)\d|mismatch in rank count from procs",
            ),
        },
    ),
    "DDJ158": host_cause(
        name="nccl-setting-refused",
        title="NCCL rejects a setting of {who}[: {setting}]",
        finds="NCCL_ALGO or NCCL_PROTO has a value that this NCCL does not know or that these GPUs do not support,"
        " or NCCL_GRAPH_FILE names a file that does not exist.",
        why="One unknown word invalidates the list. NCCL up to 2.21 ignores it silently; newer releases refuse to"
        " create the communicator, or fail in the first collective without a remaining algorithm.",
        remedies=(
            remedy(
                "Unset it, so that NCCL chooses",
                settings=(
                    unset("NCCL_ALGO", "NCCL chooses by size and topology"),
                    unset("NCCL_PROTO", "NCCL chooses by size and topology"),
                    unset("NCCL_GRAPH_FILE", "NCCL searches rings and trees itself"),
                ),
            ),
        ),
        next_check="ddp-doctor env; ddp-doctor run --only env_vars,process_group",
        references=(
            "NCCL 2.21.5, 2.27.5, 2.30.7 and 2.32.3 on planted GPUs",
            "NCCL src/graph/tuning.cc (parseList), src/enqueue.cc; from 2.32 on src/tuning/cost_model.cc",
        ),
        signs={
            "list-not-understood": nccl.proof(
                ("Unrecognized element token", "Unrecognized prefix token"),
                r"Unrecognized (?:element|prefix) token \"(?P<setting>[^\"\n]{1,60})\"",
            ),
            "graph-file-not-there": nccl.proof(
                "Could not open XML graph file", r"Could not open XML (?P<setting>graph file [^\s:]{1,200})"
            ),
            "no-algorithm-left": nccl.proof(
                (
                    "No algorithm/protocol available",
                    "no algorithm/protocol available",
                    "No algorithm/protocol nor symKernelId available for",
                ),
                r"[nN]o algorithm/protocol (?:nor symKernelId )?available"
                r"(?:[^\n]{0,160}?(?P<setting>NCCL_\w+ was set to [^\n.]{1,60}))?",
            ),
        },
    ),
    "DDJ200": JobCause(
        name=NCCL_STATES,
        title="NCCL reports[ on {who}]: {message}",
        finds="A warning of NCCL was returned as an error, or an exception has a text after “Last error:”, and no"
        " other cause is known.",
        why="NCCL prints the reason in this line. Later lines only report that the call failed.",
        remedies=(remedy("Follow the message; search for it in NCCL's issues and source"),),
        next_check="ddp-doctor run on the same nodes",
        references=("NCCL 2.18 to 2.32, src/debug.cc, src/include/checks.h; torch 2.15 c10d/NCCLUtils.cpp",),
        signs={
            "nccl-states": nccl.sign(
                "NCCL WARN ",
                rf"NCCL WARN (?P<message>(?!.{{0,200}}?(?:{HARMLESS_WARNINGS}))\S.{{1,400}})",
                beside=("nccl-error-returned", "nccl-error", "nccl-error-by-name"),
            ),
            "nccl-last-error": nccl.sign("Last error:", r"Last error:\s*\n?(?P<message>\S[^\n]{1,400})", lines=2),
        },
    ),
    "DDJ153": JobCause(
        name="rank-not-answering",
        title="A process of the job no longer responds to NCCL's RAS[: rank {rank}][ on {node}]",
        restart="on other nodes",
        finds="NCCL's RAS could not reach a process: it is reported as dead after 60 seconds, and as unresponsive"
        " before.",
        why="The process has ended, is stopped, or its host or network is gone. The other ranks wait for it.",
        remedies=(remedy("Read that process's output and its host's kernel log first", "dmesg -T"),),
        next_check="ps -o pid,stat,wchan:20,cmd -p PID on that host; dmesg -T",
        references=(_RAS,),
        signs={
            "ras-dead": ras.proof(_NOTE, r"on node (?P<node>\S{1,255}).*\[RAS: (?:rank (?P<rank>\d+) )?dead\]"),
            "ras-unresponsive": ras.sign(
                _NOTE, r"on node (?P<node>\S{1,255}).*\[RAS: (?:rank (?P<rank>\d+) )?unresponsive\]"
            ),
        },
    ),
    "DDJ154": JobCause(
        name="rank-behind",
        title="{ranks} launched fewer collectives than other ranks: {launched} of {most}",
        finds="A rank is behind the others in NCCL's counts of launched operations: in two answers of RAS, or in"
        " one answer and a timeout.",
        why="The other ranks wait in an operation that this rank has not launched. The rank is stuck in its own"
        " code, is slow, or took another branch. The counts show launches, not completed operations.",
        remedies=(in_code("Check what that rank does", "py-spy dump --pid PID"),),
        next_check="ncclras again after 10 seconds; py-spy dump --pid PID of that rank",
        references=(_RAS,),
        signs={
            "ras-stands-still": ras.sign(_NOTE, _BEHIND.format("stands still")),
            "ras-behind": ras.hint(_NOTE, _BEHIND.format("behind"), beside=("watchdog-timeout", "nccl2-timeout")),
        },
    ),
    "DDJ155": sick_gpu(
        name="wrong-results",
        title="nccl-tests results are wrong: {elements} values out of bounds",
        finds="The check of the results in a run of nccl-tests failed.",
        why="A GPU, a link, a driver or NCCL corrupts data without a message. The results of training on it are"
        " useless.",
        remedies=(
            remedy(
                "Repeat it on half of the GPUs, and halve again until one GPU or pair is left",
                "all_reduce_perf -b 8M -e 1G -f 2 -g 2 -c 1",
            ),
            on_node("Check these GPUs for ECC and link errors", "nvidia-smi -q -d ECC", "nvidia-smi nvlink -e"),
        ),
        next_check="ddp-doctor run --only allreduce,p2p on the same nodes",
        references=("nccl-tests, src/util.cu",),
        signs={
            "out-of-bounds": proof(
                "# Out of bounds values :", r"# Out of bounds values : (?P<elements>[1-9]\d*) FAILED"
            )
        },
    ),
    "DDJ156": sick_gpu(
        name="p2p-test-failed",
        title="P2P from rank {rank} to rank {peer_rank} moves wrong data or none[, over {path}]",
        finds="NCCL's own diagnostics (NCCL_RUN_DIAGNOSTICS=1) failed for a pair of GPUs.",
        why="The diagnostics run before the job sends any data, so the fault is in a GPU, the link, the driver or"
        " the system's settings. Collectives over this pair hang or compute wrong sums.",
        remedies=(
            on_node(
                "Check the links between them for errors, ACS and the IOMMU",
                "nvidia-smi nvlink -e",
                "lspci -vvv | grep -i acsctl",
            ),
        ),
        next_check="ddp-doctor run --only p2p on that node",
        references=("NCCL user guide, troubleshooting, diagnostics; src/diagnostics/p2p.cc (NCCL 2.31)",),
        signs={
            "diag-mismatch": nccl.proof(
                "NCCL DIAG [INFO] p2p: ",
                r"p2p: (?:write|read) mismatch srcRank=(?P<rank>\d+).*? dstRank=(?P<peer_rank>\d+)"
                r"(?:.*? path=(?P<path>\w+))?",
            ),
            "diag-failed": nccl.sign(
                "NCCL DIAG [INFO] p2p: ",
                r"p2p: (?:launch/check|peer-memory import|topology check) failed srcRank=(?P<rank>\d+).*?"
                r" dstRank=(?P<peer_rank>\d+)(?:.*? path=(?P<path>\w+))?",
            ),
        },
    ),
}
