"""Causes in NCCL's settings: values that it refuses, and ranks whose settings or releases do not fit each other."""

from ddp_doctor.knowledge.job_causes.kinds import code_cause, host_cause, nccl_proof, nccl_sign, remedy, unset

CAUSES = {
    "DDJ157": host_cause(
        name="nccl-settings-differ",
        title="Ranks met with different settings or releases of NCCL[: {bytes} bytes came for {other_bytes}]",
        finds="While NCCL's ranks make a communicator, one gets more from a peer than it has room for, or takes a"
        " peer's memory for that of another transport.",
        why="What ranks tell each other then depends on NCCL's release and on settings such as NCCL_MAX_NCHANNELS,"
        " NCCL_P2P_DISABLE and NCCL_NET: they must be equal on all ranks. Whoever reads first prints the error.",
        remedies=(
            remedy(
                "Give all ranks the same NCCL_* variables, the same nccl.conf and the same libnccl",
                "ddp-doctor run --only env_vars,nccl,software,consistency",
            ),
        ),
        next_check="ddp-doctor run --nnodes N: settings and releases in which nodes differ (DD551, DD236)",
        references=("NCCL 2.21.5, 2.27.5 and 2.32.3 on planted GPUs; src/bootstrap.cc, src/misc/shmutils.cc",),
        signs={
            "bootstrap-message-truncated": nccl_sign(
                "Message truncated : received",
                r"Message truncated : received (?P<bytes>\d+)(?:,\d+)? bytes instead of (?P<other_bytes>\d+)",
            ),
            "segment-without-a-name": nccl_sign("Error while attaching to shared memory segment /dev/shm/nccl- "),
            # what another release says of itself is read at other places: "nroots 1 vs 16796938"
            "met-another-release": nccl_sign(
                "mismatch in info from procs", r"mismatch in info from procs, nranks (\d+) vs \1\b"
            ),
        },
    ),
    "DDJ159": code_cause(
        name="world-sizes-differ",
        title="Ranks were started with numbers that do not go together[: rank {rank} of a job of {world}]",
        finds="A rank begins NCCL's communicator with another number of ranks than the others, or with a number beyond"
        " them.",
        why="RANK and WORLD_SIZE come from the launcher, or from a script that sets them itself. NCCL then waits for"
        " a rank that does not exist: nobody but the rank beyond the world ends.",
        remedies=(
            remedy(
                "Start all nodes with the same --nnodes and --nproc-per-node, and leave RANK and WORLD_SIZE to"
                " the launcher",
                "torchrun --nnodes 2 --nproc-per-node 8 --rdzv-endpoint=HOST:29500 train.py …",
            ),
        ),
        next_check="env | grep -E 'RANK|WORLD_SIZE' in each rank",
        references=("NCCL 2.21.5, 2.27.5 and 2.32.3 on planted GPUs; src/init.cc, src/bootstrap.cc",),
        signs={
            "rank-beyond-world": nccl_proof(
                "Invalid rank requested", r"Invalid rank requested ?: (?P<rank>\d+)/(?P<world>\d+)"
            ),
            "world-sizes-differ": nccl_sign(  # which of the two is wrong, the first rank does not know
                ("mismatch in info from procs", "mismatch in rank count from procs"),
                r"nranks (\d+) vs (?!\1\b)\d|mismatch in rank count from procs",
            ),
        },
    ),
    "DDJ158": host_cause(
        name="nccl-setting-refused",
        title="NCCL refuses the setting of {who}[: {setting}]",
        finds="NCCL_ALGO or NCCL_PROTO names what this NCCL does not know, or what cannot be had on these GPUs; or"
        " NCCL_GRAPH_FILE names a file that is not there.",
        why="One unknown word spoils the whole list. NCCL up to 2.21 passes over it in silence; newer ones refuse to"
        " make the communicator, or fail in the first collective that has no way left.",
        remedies=(
            remedy(
                "Leave the choice to NCCL",
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
            "list-not-understood": nccl_proof(
                ("Unrecognized element token", "Unrecognized prefix token"),
                r"Unrecognized (?:element|prefix) token \"(?P<setting>[^\"\n]{1,60})\"",
            ),
            "graph-file-not-there": nccl_proof(
                "Could not open XML graph file", r"Could not open XML (?P<setting>graph file [^\s:]{1,200})"
            ),
            "no-algorithm-left": nccl_proof(
                ("o algorithm/protocol available", "No algorithm/protocol nor symKernelId available for"),
                r"[nN]o algorithm/protocol (?:nor symKernelId )?available"
                r"(?:[^\n]{0,160}?(?P<setting>NCCL_\w+ was set to [^\n.]{1,60}))?",
            ),
        },
    ),
}
