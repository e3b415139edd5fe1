"""A failure whose cause the output does not show, and fixes that would show it the next time."""

from ddp_doctor.features.jobs.table.kinds import JobCause
from ddp_doctor.features.jobs.table.remedies import in_code, remedy

#: The code of a failure without a known cause.
NOT_PROVEN = "DDJ198"
#: Classes of jobs whose output does not show a failure.
NOT_FAILED = ("job-starting", "end-not-shown")
#: The class of jobs that failed and then finished.
RECOVERED = "failed-then-finished"

_EVERY_RANK = (
    "torchrun --log-dir=/shared/logs --tee 3 train.py",
    "srun --label --output=job-%j.out python train.py",
    "mpirun --tag-output python train.py",
)
#: Fixes that show more of the next failure: of a timed-out collective, of NCCL, of a start, of a process that exits.
RECORD_NCCL = remedy(
    "Restart with recording for the next failure: torch's flight recorder writes"
    " each rank's state when a collective times out, and NCCL writes its warnings",
    "export TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
    "export TORCH_NCCL_DUMP_ON_TIMEOUT=1 NCCL_DEBUG=WARN",
    cost="a few percent of speed",
)
RECORD_GLOO = remedy(
    "Restart with recording for the next failure: torch compares the ranks' calls over gloo",
    "export TORCH_DISTRIBUTED_DEBUG=DETAIL",
    *_EVERY_RANK,
    cost="slower collectives",
)
SHOW_WARNINGS = remedy("Restart with NCCL's warnings, which state the cause", "export NCCL_DEBUG=WARN")
START_ALL = remedy(
    "Start the launcher on every node, with the same MASTER_ADDR and MASTER_PORT, and open that port between the nodes"
)
CREATE_GROUPS = in_code(
    "Call new_group() for every group on all ranks and in the same order, and raise its timeout if ranks come late"
)
GET_RESOURCES = remedy(
    "Request fewer nodes, CPUs or GPUs, or wait until other jobs free them", "squeue --start", "ray status"
)
KEEP_OUTPUT = remedy(
    "Restart with the output of every rank in a file, and stack traces of crashes",
    *_EVERY_RANK,
    "export PYTHONFAULTHANDLER=1",
)

CAUSES = {
    NOT_PROVEN: JobCause(
        name="job-failed-cause-not-proven",
        title="{what}: the cause is unknown",
        finds="Ranks died, were ended or timed out, and neither the output nor a dump shows what happened before.",
        why="The ranks that waited print a timeout, and the remaining ranks print a closed connection. Neither"
        " message names the rank, the GPU or the link at fault.",
        # causes/unproven.py chooses those that fit the output.
        remedies=(RECORD_NCCL, RECORD_GLOO, SHOW_WARNINGS, START_ALL, CREATE_GROUPS, KEEP_OUTPUT),
        next_check="ddp-doctor logs with the output of all ranks",
        references=(
            "torch 2.15 c10d/FlightRecorder.hpp; TORCH_NCCL_TRACE_BUFFER_SIZE is its older name",
            "NCCL 2.30.7 src/debug.cc",
        ),
    ),
    "DDJ139": JobCause(
        name="job-starting",
        title="The job was still starting, or hangs during start: {what}",
        finds="Most flight-recorder dumps contain no collective, or NCCL communicators were started but never"
        " completed, and no line shows that the job failed.",
        why="Ranks of a large job import, connect and compile for minutes when it starts. A single missing rank"
        " makes all others wait.",
        remedies=(remedy("Read its output again after a few minutes, to see which ranks make no progress"),),
        next_check="py-spy dump --pid PID of a missing rank; ddp-doctor logs again after a few minutes",
        references=("NCCL 2.18 to 2.30, src/init.cc (Init START, Init COMPLETE)", "torch 2.15 c10d/FlightRecorder.hpp"),
    ),
    "DDJ211": JobCause(
        name=RECOVERED,
        title="The job failed {times}, then finished",
        finds="The last line about the end of the run reports success, and everything that failed comes before it.",
        why="A launcher, a loop or the scheduler started the job again, and the last attempt finished.",
        remedies=(remedy("Check the causes of the failed attempts before the next run"),),
        next_check="ddp-doctor logs with the output of one earlier attempt",
        references=("torch 2.15 distributed/elastic/agent/server/api.py (max_restarts)",),
    ),
    "DDJ209": JobCause(
        name="failed-at-teardown",
        title="Training finished, and the job failed while its processes exited",
        domain="code",
        finds="Everything that failed, such as a crash, a hang or a broken connection, follows the line that"
        " reports success.",
        why="Processes that exit without destroy_process_group() destroy NCCL's communicators in different orders, and"
        " a rank may wait for another one that is gone.",
        remedies=(in_code("Call torch.distributed.destroy_process_group() on every rank before it exits"),),
        next_check="check that the last checkpoint is complete",
        references=("torch 2.15 c10d/ProcessGroupNCCL.cpp",),
    ),
    "DDJ194": JobCause(
        name="end-not-shown",
        title="The end of the job is unknown: {why}",
        finds="A file of the job is truncated or damaged, or nccl-tests started but printed no results, and no"
        " line shows that the job failed.",
        why="The error may be in the missing part, or the job may hang.",
        remedies=(remedy("Read the entire output of all ranks"),),
        next_check="ddp-doctor logs with the entire output",
        references=("nccl-tests, src/common.cu",),
    ),
}
