"""Rules on what a script tells a process group: how many ranks there are, which one it is, where the first one is.

dist.init_process_group("nccl", rank=int(os.environ["RANK"]), world_size=torch.cuda.device_count())   one node's GPUs
DistributedSampler(data, num_replicas=world_size, rank=local_rank)     every node reads the same shards
os.environ["MASTER_PORT"] = "12355"                                    torchrun listens on another one
"""

from __future__ import annotations

from collections.abc import Iterator

from ddp_doctor.lint import names
from ddp_doctor.lint.devices import is_device_count
from ddp_doctor.lint.ranks import GLOBAL_RANKS, environment
from ddp_doctor.lint.rule import Spot, lint_rule
from ddp_doctor.lint.script import Script
from ddp_doctor.lint.values import Call, Value
from ddp_doctor.model.choices import Severity

_OF_ONE_NODE = frozenset(("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE"))
_ENDPOINT = ("MASTER_ADDR", "MASTER_PORT")
#: If one of these is read or set, something other than torchrun starts the ranks, or the script starts them itself.
_OTHER_LAUNCHERS = ("SLURM_", "OMPI_", "PMI_", "MPI_", "AZ_", "AZUREML_", "SM_", "JSM_", "LSB_", "PBS_")
_STARTERS = ("spawn", "start_processes", "Process", "Popen", "launch", "notebook_launcher")


@lint_rule("DDL160", "gpus-of-one-node-as-world-size", Severity.WARNING)
def gpus_of_one_node_as_world_size(script: Script) -> Iterator[Spot]:
    """The number of GPUs of one node is given as the size of the whole world.

    Finds: `torch.cuda.device_count()` as `world_size` of init_process_group or as `num_replicas` of a
        DistributedSampler, where the rank beside it is that of the whole job (RANK, SLURM_PROCID, get_rank()).
    Why: On one node with all its GPUs the two numbers agree. On two nodes the ranks of the second one are at least as
        large as the size: the group waits until its time-out, and the sampler refuses the rank or each node trains on
        all data. Where each task of SLURM sees one GPU, the size is 1 on every rank and they train alone.
    Remedy: Leave both arguments out of init_process_group under torchrun; else take WORLD_SIZE, SLURM_NTASKS or
        get_world_size().
    See: https://pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group
        https://pytorch.org/docs/stable/elastic/run.html#environment-variables
    """
    if _sets(script, "RANK"):
        return
    for call, size, rank in _worlds_and_ranks(script):
        asks_the_group = any(source.name == "torch.distributed.get_rank" for source in rank.calls())
        if is_device_count(size) and (asks_the_group or GLOBAL_RANKS & environment(rank)):
            yield Spot(
                call,
                "The world size is the number of this node's GPUs, but the rank counts over the whole job",
                detail="Right on a single node with one rank per GPU; on several nodes ranks reach beyond that size.",
                remedy="Take the size of the job: WORLD_SIZE of torchrun, or torch.distributed.get_world_size()",
            )


@lint_rule("DDL161", "local-rank-as-rank-of-the-job", Severity.WARNING)
def local_rank_as_rank_of_the_job(script: Script) -> Iterator[Spot]:
    """LOCAL_RANK is given where the rank in the whole job belongs.

    Finds: LOCAL_RANK as `rank` of a DistributedSampler or of init_process_group.
    Why: On one node both are the same number. On two nodes each number occurs twice: the sampler gives both nodes the
        same half of the data, so that the other half is never trained on and nothing says so; the process group waits
        for ranks that never come.
    Remedy: Leave `rank` out: DistributedSampler asks the process group, init_process_group the environment. Else use
        RANK.
    See: https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
        https://pytorch.org/docs/stable/elastic/run.html#environment-variables
    """
    for call, size, rank in _worlds_and_ranks(script):
        if "LOCAL_RANK" not in environment(rank) or GLOBAL_RANKS & environment(rank):
            continue
        if is_device_count(size) or _OF_ONE_NODE & environment(size):
            continue  # shares within each node, on purpose
        what = "DistributedSampler" if call.name == names.SAMPLER else "init_process_group"
        yield Spot(
            call,
            f"{what} is given LOCAL_RANK as rank, but needs the rank in the whole job",
            detail="Right on one node; on several nodes each number occurs once on every node.",
            remedy="Leave rank out, or take RANK",
        )


@lint_rule("DDL162", "torchrun-endpoint-overwritten", Severity.ERROR)
def torchrun_endpoint_overwritten(script: Script) -> Iterator[Spot]:
    """MASTER_ADDR or MASTER_PORT is overwritten in a script that torchrun starts.

    Finds: `os.environ["MASTER_PORT"] = "12355"`, always run, in a script that takes LOCAL_RANK or RANK from the
        environment, before an init_process_group that reads the endpoint from there. Scripts that start their ranks
        themselves, or that know another launcher, are left alone.
    Why: Under torchrun the agent has the store open already, on a port that it chose and exported, and every rank, rank
        0 too, is only a client of it. With the script's own port all ranks wait for a store that nobody opens, until
        the time-out (seen with torch 2.13 and 2.15: two ranks, `The client socket has timed out`). With `localhost` as
        MASTER_ADDR that happens to all nodes but the first. A port of its own in `init_method="tcp://..."` fails in the
        same way with torch 2.13; in torch 2.15, where torchrun's store counts for the exported MASTER_ADDR and
        MASTER_PORT alone, rank 0 opens a store there.
    Remedy: Delete the assignment, or use `os.environ.setdefault`.
    See: https://pytorch.org/docs/stable/elastic/run.html#environment-variables
        pytorch torch/distributed/rendezvous.py _create_c10d_store, _agent_store_serves (TORCHELASTIC_USE_AGENT_STORE)
    """
    overwritten = [
        assignment
        for assignment in script.assignments
        if assignment.name in _ENDPOINT
        and assignment.owner.name == "os.environ"
        and assignment.value.kind == "constant"
        and not assignment.place.conditions
        and not assignment.place.in_handler
    ]
    groups = [
        group
        for group in script.named(names.INIT)
        if group.lacks(5, "store")
        and (group.lacks(1, "init_method") or group.argument(1, "init_method").constant == "env://")
    ]
    if not overwritten or not groups or not _is_started_by_torchrun(script):
        return
    for assignment in overwritten:
        if any(assignment.root == call.root and assignment.order < call.order for call in groups):
            yield Spot(
                assignment.node,
                f"{assignment.name} is overwritten: the ranks no longer find the store that torchrun opened",
                remedy=f'Delete the line, or write os.environ.setdefault("{assignment.name}", ...)',
            )


def _worlds_and_ranks(script: Script) -> Iterator[tuple[Call, Value, Value]]:
    for call in script.named(names.INIT):
        yield call, call.argument(3, "world_size"), call.argument(4, "rank")
    for call in script.named(names.SAMPLER):
        yield call, call.argument(1, "num_replicas"), call.argument(2, "rank")


def _sets(script: Script, *variables: str) -> bool:
    return any(
        assignment.name in variables and assignment.owner.name == "os.environ" for assignment in script.assignments
    )


def _is_started_by_torchrun(script: Script) -> bool:
    if _sets(script, "RANK", "LOCAL_RANK", "WORLD_SIZE"):
        return False
    if any((call.name or call.method).rpartition(".")[2] in _STARTERS for call in script.calls):
        return False
    return bool(script.texts & {"RANK", "LOCAL_RANK"}) and not any(
        text.startswith(_OTHER_LAUNCHERS) for text in script.texts
    )
