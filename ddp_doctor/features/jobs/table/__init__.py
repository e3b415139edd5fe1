"""The causes of failed jobs, by code: JOB_CAUSES; and all signs in a job's output: SIGNS.

To add a cause, add a row with the next free code to the module of its subject. Add
tests/features/jobs/logs/samples/NAME.md with output in which it is named and output in which it is not. Add texts of
other programs about an existing cause as signs in its row.

Sources in addition to those of the rows. Machines: UCX src/uct/ib; Open MPI; libibverbs; aws-ofi-nccl; vLLM v1/worker;
ROCm ROCR-Runtime; CUDA's names of its errors; gloo transport/tcp/pair.cc; accelerate utils/launch.py; PBS, LSF;
NVIDIA/open-gpu-kernel-modules kernel_gsp.c. Jobs: torch 1.1 to 2.15; accelerate utils/operations.py; DeepSpeed
runtime/engine.py and comm/comm.py; Megatron-LM core/parallel_state.py and core/rerun_state_machine.py; Lightning;
Horovod common/controller.cc; Ray exceptions.py; Open MPI; glibc malloc; LSF, Slurm; NCCL src/include/checks.h
(NCCLCHECK); bash, dash, zsh, make, ninja, systemd, kubectl.
"""

from ddp_doctor.features.jobs.table import (
    code,
    ddp,
    gpu,
    gpu_access,
    hangs,
    host,
    launchers,
    nccl,
    network,
    pointers,
    rdma,
    software,
    starts,
    unproven,
)
from ddp_doctor.features.jobs.table.kinds import JobCause
from ddp_doctor.features.jobs.table.signs import Sign

_MODULES = (host, gpu, gpu_access, software, network, rdma, nccl, code, ddp, launchers, starts, hangs, unproven)
JOB_CAUSES: tuple[JobCause, ...] = tuple(
    cause._replace(code=key) for key, cause in sorted(row for module in _MODULES for row in module.CAUSES.items())
)
#: Each sign with its cause, or None if the sign only points.
SIGNS: dict[str, tuple[Sign, JobCause | None]] = {
    **{name: (sign._replace(id=name), cause) for cause in JOB_CAUSES for name, sign in cause.signs.items()},
    **{
        name: (sign._replace(id=name), None)
        for module in (pointers, gpu, gpu_access, network, rdma)
        for name, sign in module.SIGNS.items()
    },
}
#: Ids of signs in older recordings, with the current ids.
RENAMED = {"memory-not-registered-untold": "reg-mr-failed-without-errno"}
#: Causes in a job's code for which ``ddp-doctor lint`` has a similar finding in the script.
FOUND_BY_LINT = frozenset(
    (
        "backend-device-mismatch", "checkpoint-mismatch", "collective-mismatch", "cross-group-deadlock",
        "ddp-ready-twice", "ddp-unused-parameters", "device-mismatch", "duplicate-gpu", "invalid-device-ordinal",
        "pg-not-initialized", "rank0-only-collective", "stuck-outside-collective",
    )
)  # fmt: skip
_BY_NAME = {cause.name: cause for cause in JOB_CAUSES}


def cause_named(name: str) -> JobCause:
    """Return the cause of this class."""
    return _BY_NAME[name]
