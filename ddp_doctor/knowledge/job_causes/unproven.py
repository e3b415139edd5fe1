"""A failure of which the output does not say the cause, and what would say it the next time."""

from ddp_doctor.knowledge.job_causes.kinds import JobCause
from ddp_doctor.model.finding import Remedy

CAUSES = (
    JobCause(
        code="DDJ198",
        name="job-failed-cause-not-proven",
        title="{what}, and nothing shows why",
        domain="unknown",
        restart="unknown",
        finds="Ranks died, were ended or timed out, and nothing in the output or in dumps says what came before.",
        why="A time-out is printed by those who waited, a closed connection by those who are left: neither names the"
        " rank, the GPU or the link at fault.",
        remedies=(
            Remedy(
                summary="Start it again so that the next failure is recorded: torch's flight recorder writes what each"
                " rank was in when a collective times out, and NCCL its warnings",
                commands=(
                    "export TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
                    "export TORCH_NCCL_DUMP_ON_TIMEOUT=1 NCCL_DEBUG=WARN",
                ),
                cost="some per cent of speed",
            ),
        ),
        next_check="py-spy dump --pid PID of the ranks that hang, and ddp-doctor logs over the output of all ranks",
        references=(
            "torch 2.15 c10d/FlightRecorder.hpp; TORCH_NCCL_TRACE_BUFFER_SIZE is its older name",
            "NCCL 2.30.7 src/debug.cc",
        ),
        signs=(),
    ),
)
