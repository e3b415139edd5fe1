"""Causes that NCCL's own tools show: RAS (parse/job_log/ras.py notes whom it names), its diagnostics, nccl-tests."""

from ddp_doctor.knowledge.job_causes.kinds import (
    RAS_NOTE,
    JobCause,
    Sign,
    hint,
    in_code,
    nccl_proof,
    nccl_sign,
    on_node,
    proof,
    remedy,
    sick_gpu,
)

_RAS = "NCCL user guide, troubleshooting, RAS; src/ras/client_support.cc (NCCL 2.24 to 2.31)"
_NOTE = (RAS_NOTE,)

CAUSES = {
    "DDJ153": JobCause(
        name="rank-not-answering",
        title="A process of the job no longer answers NCCL's RAS[: that of rank {rank}][ on {node}]",
        restart="on other nodes",
        finds="A process that NCCL's RAS could not reach: dead after 60 seconds, unresponsive before.",
        why="The process has ended, is stopped, or its host or network is gone. The other ranks wait for it.",
        remedies=(remedy("Read that process's output and its host's kernel log first", "dmesg -T"),),
        next_check="ps -o pid,stat,wchan:20,cmd -p PID on that host; dmesg -T",
        references=(_RAS,),
        signs={
            "ras-dead": proof(_NOTE, r"on node (?P<node>\S{1,255}).*\[RAS: (?:rank (?P<rank>\d+) )?dead\]", tier="ras"),
            "ras-unresponsive": Sign(
                _NOTE, r"on node (?P<node>\S{1,255}).*\[RAS: (?:rank (?P<rank>\d+) )?unresponsive\]", tier="ras"
            ),
        },
    ),
    "DDJ154": JobCause(
        name="rank-behind",
        title="Rank {rank} has launched fewer collectives than the others: {launched} of {most}",
        finds="A rank behind the others in NCCL's counts of launched operations: the same in two answers of RAS, or in"
        " one beside a time-out.",
        why="The other ranks wait in an operation that this rank has not launched: it stands in its own code, is"
        " slow, or took another way. The counts are of launches; what is complete they do not tell.",
        remedies=(in_code("Look at what that rank does", "py-spy dump --pid PID"),),
        next_check="ncclras again after 10 seconds; py-spy dump --pid PID of that rank",
        references=(_RAS,),
        signs={
            "ras-stands-still": Sign(
                _NOTE, r"\[RAS: rank (?P<rank>\d+) stands still at (?P<launched>\d+) of (?P<most>\d+)", tier="ras"
            ),
            "ras-behind": hint(
                _NOTE,
                r"\[RAS: rank (?P<rank>\d+) behind at (?P<launched>\d+) of (?P<most>\d+)",
                tier="ras",
                beside=("watchdog-timeout", "nccl2-timeout"),
            ),
        },
    ),
    "DDJ155": sick_gpu(
        name="wrong-results",
        title="The results of nccl-tests are wrong: values out of bounds: {elements}",
        finds="A run of nccl-tests whose check of the results failed.",
        why="A GPU, a link, a driver or NCCL corrupts data without a message. Training on it is worth nothing.",
        remedies=(
            remedy(
                "Repeat it on half of the GPUs, and again on half of those, until one GPU or pair is left",
                "all_reduce_perf -b 8M -e 1G -f 2 -g 2 -c 1",
            ),
            on_node("Look for ECC and link errors of these GPUs", "nvidia-smi -q -d ECC", "nvidia-smi nvlink -e"),
        ),
        next_check="ddp-doctor run --only allreduce,p2p on the same nodes",
        references=("nccl-tests, src/util.cu",),
        signs={
            "out-of-bounds": proof(
                "# Out of bounds values :", r"# Out of bounds values : (?P<elements>[1-9]\d*) FAILED", tier="exception"
            )
        },
    ),
    "DDJ156": sick_gpu(
        name="p2p-test-failed",
        title="P2P from the GPU of rank {rank} to that of rank {peer_rank} moves wrong data, or none[, over {path}]",
        finds="A pair of GPUs between which NCCL's own diagnostics (NCCL_RUN_DIAGNOSTICS=1) failed.",
        why="They run before the job sends anything: the fault is of a GPU, the link, the driver or the settings of"
        " the system, and collectives hang or give wrong sums over it.",
        remedies=(
            on_node(
                "Look for errors of the links between them, for ACS and the IOMMU",
                "nvidia-smi nvlink -e",
                "lspci -vvv | grep -i acsctl",
            ),
        ),
        next_check="ddp-doctor run --only p2p on that node",
        references=("NCCL user guide, troubleshooting, diagnostics; src/diagnostics/p2p.cc (NCCL 2.31)",),
        signs={
            "diag-mismatch": nccl_proof(
                "NCCL DIAG [INFO] p2p: ",
                r"p2p: (?:write|read) mismatch srcRank=(?P<rank>\d+).*? dstRank=(?P<peer_rank>\d+)"
                r"(?:.*? path=(?P<path>\w+))?",
            ),
            "diag-failed": nccl_sign(
                "NCCL DIAG [INFO] p2p: ",
                r"p2p: (?:launch/check|peer-memory import|topology check) failed srcRank=(?P<rank>\d+).*?"
                r" dstRank=(?P<peer_rank>\d+)(?:.*? path=(?P<path>\w+))?",
            ),
        },
    ),
}
