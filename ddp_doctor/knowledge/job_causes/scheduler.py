"""Jobs that the scheduler, a person or the loss of a node ended."""

from ddp_doctor.knowledge.job_causes.kinds import scheduler_cause, sick_host
from ddp_doctor.knowledge.job_causes.remedies import remedy
from ddp_doctor.knowledge.job_causes.signs import kernel, launcher

CAUSES = {
    "DDJ188": scheduler_cause(
        name="scheduler-time-limit",
        title="The scheduler ended the job at its time limit",
        finds="Slurm, PBS, LSF or Kubernetes says that the time of the job was up.",
        why="The job did not fail; closed connections and signals after that follow from it.",
        remedies=(
            remedy("Ask for more time", "sbatch --time=2-00:00:00 …"),
            remedy(
                "Have a signal sent before the limit, and save a checkpoint on it",
                "sbatch --signal=B:USR1@300 --requeue …",
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
        title="The scheduler took the nodes away for another job",
        finds="Slurm, Kubernetes or the cloud says that the job was preempted or evicted.",
        why="The job did not fail; closed connections and signals after that follow from it.",
        remedies=(
            remedy("Save checkpoints often, and start again by itself", "sbatch --requeue --open-mode=append …"),
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
        title="The job was stopped from outside[ on {node}]: cancelled, or ended by a signal to its launcher",
        finds="Slurm says CANCELLED without a reason, or the launcher got SIGTERM, SIGINT or SIGQUIT.",
        why="A person (scancel), the scheduler or the system ended it. What the ranks print after that follows from"
        " it.",
        remedies=(remedy("Ask the scheduler who did it", "sacct -j JOB -o JobID,State,End"),),
        next_check="sacct -j JOB -o JobID,State,End,Comment; kubectl describe pod POD",
        references=("Slurm src/slurmd/slurmstepd/req.c", "torch 2.4 to 2.15, distributed/elastic/agent/server/api.py"),
        # The judge: not named where scheduler-time-limit, scheduler-preempted or scheduler-node-failure is.
        signs={
            "cancelled": launcher.proof(
                "CANCELLED AT ", r"\*\*\* JOB \S+ ON (?P<node>\S+) CANCELLED AT \S+ (?!DUE TO (?!JOB NOT ENDING))"
            ),
            "launcher-told-to-end": launcher.sign(
                ("death signal, shutting down workers", "got signal: "),
                r"Received (?:15|2|3|(?:Signals\.)?SIG(?:TERM|INT|QUIT)) death signal|SignalException: Process "
                r"(?P<pid>\d+) got signal: (?:15|2|3)$",
            ),
            "ended-by-owner": launcher.sign(
                ("TERM_OWNER", "TERM_FORCE_OWNER", "TERM_ADMIN", "has been revoked", "srun: Force Terminated job"),
                r"TERM_(?:FORCE_)?OWNER|TERM_ADMIN|Job allocation \d+ has been revoked|srun: Force Terminated job",
            ),
        },
    ),
    "DDJ191": sick_host(
        name="scheduler-node-failure",
        title="The scheduler lost a node of the job[: {node}]",
        finds="Slurm, Ray or mpirun says that a node no longer answered.",
        why="The node went down or lost its network; the ranks elsewhere only see that the connection is closed.",
        remedies=(
            remedy("Start again without it", "sbatch --exclude=NODE --requeue …"),
            remedy("Have the node looked at", "scontrol show node NODE", scope="cluster"),
        ),
        next_check="scontrol show node NODE | grep -E 'State|Reason'; journalctl -k -b -1 on it",
        references=("Slurm src/slurmd/slurmstepd/req.c, src/srun/libsrun/launch.c",),
        signs={
            "node-failure": kernel.proof(
                ("DUE TO NODE FAILURE", "srun: error: Node failure on"),
                r"DUE TO NODE FAILURE|Node failure on (?P<node>\S+)",
            ),
            "node-lost-by-mpirun": launcher.sign(
                "has lost communication with a remote daemon",
                r"(?s)lost communication with a remote daemon(?:.*?Remote daemon:\s+\S+ on node (?P<node>\S+))?",
                lines=8,
            ),
            "node-lost-by-ray": launcher.sign(
                "has been marked dead because the detector",
                r"(?:node name: (?P<node>\S+) )?has been marked dead because the detector",
            ),
        },
    ),
}
