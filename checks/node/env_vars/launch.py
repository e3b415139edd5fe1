"""DD101-DD104, DD108: launch variables that are left over, incomplete, contradict each other, or mislead torch."""

from collections.abc import Iterable, Iterator

from ddp_doctor.checks.node.env_vars import environment
from ddp_doctor.checks.node.env_vars.in_force import InForce, say
from ddp_doctor.facts.env_vars import EnvVars
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.phrases.settings import one_per_cause
from ddp_doctor.views.nccl_backend import nccl_backends
from ddp_doctor.views.software import of_the_job


@rule("DD101", "leftover-launch-variables", Severity.WARNING, EnvVars)
def leftover_launch_variables(recording: Recording) -> Iterable[Draft]:
    """Variables of a launcher in a process that no launcher started.

    What it finds
        RANK, LOCAL_RANK, WORLD_SIZE and their like. Information only where they describe a world of one.

    Why it matters
        A script started by hand believes them and fails, or waits for ranks that nobody starts. torchrun gives
        its workers values of its own; srun and mpirun pass leftovers on to every task.

    Remedy
        Unset them, unless you start each rank by hand or with another launcher.

    References
        torch/distributed/rendezvous.py, _env_rendezvous_handler
    """
    return one_per_cause(recording, EnvVars, environment.leftovers)


@rule("DD102", "launch-variables-inconsistent", Severity.WARNING, EnvVars)
def launch_variables_inconsistent(recording: Recording) -> Iterable[Draft]:
    """Launch variables that are set in part, or that cannot be true together.

    What it finds
        RANK without WORLD_SIZE, MASTER_ADDR or MASTER_PORT; a rank outside its world; text for a number; an
        impossible port or address; a loopback MASTER_ADDR in a job of several nodes; a RANK that is not the
        task's own. An error where init_process_group("env://") must fail.

    Why it matters
        The rank fails at once, or waits for the store until its time-out, and its peers wait with it.

    Remedy
        Let torchrun set them, or set all of them for each task from the launcher's own variables.

    References
        https://pytorch.org/docs/stable/distributed.html#environment-variable-initialization
    """
    return one_per_cause(recording, EnvVars, environment.inconsistencies)


@rule("DD103", "local-rank-beyond-visible-gpus", Severity.WARNING, EnvVars)
def local_rank_beyond_visible_gpus(recording: Recording) -> Iterable[Draft]:
    """More ranks on the node than CUDA_VISIBLE_DEVICES shows GPUs.

    What it finds
        A LOCAL_RANK or LOCAL_WORLD_SIZE above its length; an empty list (the CPU) and one GPU per task pass.

    Why it matters
        torch.cuda.set_device(LOCAL_RANK) fails with "invalid device ordinal", or ranks share a GPU.

    Remedy
        Start one rank per visible GPU, or list more; with one GPU per task use device 0.

    References
        https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#env-vars
    """
    return one_per_cause(recording, EnvVars, environment.too_few_gpus)


@rule("DD104", "torchrun-options-left-behind", Severity.WARNING, EnvVars)
def torchrun_options_left_behind(recording: Recording) -> Iterable[Draft]:
    """PET_* variables in a plain shell, which torchrun takes for options.

    What it finds
        PET_NNODES, PET_RDZV_ENDPOINT and the like outside a batch job, a pod and a launcher's world.

    Why it matters
        Unless the command line says otherwise, torchrun waits for their nodes or meets at their endpoint.

    Remedy
        Unset them, or put the options on the command line.

    References
        torch/distributed/argparse_util.py
    """
    return one_per_cause(recording, EnvVars, environment.torchrun_options)


@rule("DD108", "group-takes-another-gpu-than-the-rank", Severity.WARNING, EnvVars)
def group_takes_another_gpu(recording: Recording) -> Iterable[Draft]:
    """The NCCL group of a rank would take another GPU than the one that its place on the node means.

    What it finds
        Ranks that srun or mpirun started, on a torch whose "nccl" is the backend nccl2, where LOCAL_RANK, or without
        it the rank in the whole job, modulo the number of visible GPUs is not the rank's number on its node. Silent
        under torchrun, which sets LOCAL_RANK, and where each task sees one GPU.

    Why it matters
        nccl2 (torch 2.15 and newer) connects inside init_process_group and does not look at torch.cuda.set_device().
        A script that chooses its GPU by SLURM_LOCALID alone then fails with "ProcessGroupNCCL is bound to device cuda:1
        but an operation was issued on cuda:0", or with "Duplicate GPU detected".

    Remedy
        Pass device_id to init_process_group, or set LOCAL_RANK from the launcher's own number.

    References
        torch 2.15 torch/distributed/distributed_c10d.py, _nccl2_device
    """
    backends = nccl_backends(recording)
    by_local_rank = {seen.node for seen in of_the_job(recording) if seen.fact.torch_nccl2_takes_local_rank}

    def tell(node: InForce) -> Iterator[Draft]:
        at = node.seen.node
        if node.backend == "nccl" and backends.get(at) == "nccl2" and at in by_local_rank:
            yield from environment.another_gpu(node.seen.fact, node.hardware.gpus)

    return say(recording, tell)
