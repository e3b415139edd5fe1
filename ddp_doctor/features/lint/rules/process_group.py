"""Rules on the arguments of a process group: the number of ranks, its own rank and GPU, and the address of rank 0.

dist.init_process_group("nccl", rank=int(os.environ["RANK"]), world_size=torch.cuda.device_count())   one node's GPUs
DistributedSampler(data, num_replicas=world_size, rank=local_rank)     every node reads the same shards
os.environ["MASTER_PORT"] = "12355"                                    torchrun listens on another one
torch.cuda.set_device(local_rank + 4)              the tensors are on GPU LOCAL_RANK + 4
dist.init_process_group("nccl")                    torch 2.15: the group is on GPU LOCAL_RANK
dist.init_process_group("nccl", device_id=device)  the group is where device says
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from ddp_doctor.features.lint import names, training
from ddp_doctor.features.lint.chance import is_drawn, is_seeded_alike
from ddp_doctor.features.lint.devices import (
    chooses_visible_gpus,
    device_ids,
    fixed_gpu,
    has_one_rank,
    index_in,
    is_device_count,
    starts_nccl,
)
from ddp_doctor.features.lint.ranks import GLOBAL_RANKS, SPAWN_INDEX, chosen_ranks, environment, rank_kind
from ddp_doctor.features.lint.rule import Spot, lint_rule
from ddp_doctor.features.lint.rules.start_up import settings
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import NOTHING, Call, Value, written
from ddp_doctor.model.choices import Consequence, Severity

_OF_ONE_NODE = frozenset(("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE"))
_OF_TORCHRUN = frozenset(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
_ENDPOINT = ("MASTER_ADDR", "MASTER_PORT")
#: If the script reads or sets one of these, something other than torchrun starts the ranks, or the script starts them.
_OTHER_LAUNCHERS = ("SLURM_", "OMPI_", "PMI_", "MPI_", "AZ_", "AZUREML_", "SM_", "JSM_", "LSB_", "PBS_")
_STARTERS = ("spawn", "start_processes", "Process", "Popen", "launch", "notebook_launcher")


@lint_rule("DDL160", "gpus-of-one-node-as-world-size", Consequence.RISK)
def gpus_of_one_node_as_world_size(script: Script) -> Iterator[Spot]:
    """The number of GPUs of one node is used as the world size.

    Finds: `torch.cuda.device_count()` as `world_size` of init_process_group or as `num_replicas` of a
        DistributedSampler, if the rank in the same call is the global rank (RANK, SLURM_PROCID, get_rank()).
    Why: On one node with all its GPUs, the two numbers are equal. On two nodes, the ranks of the second node are not
        smaller than the size. The group waits until its timeout, and the sampler refuses the rank or each node trains
        on all data. If each SLURM task sees one GPU, the size is 1 on every rank, and each trains alone.
    Remedy: Omit both arguments of init_process_group under torchrun. Otherwise, use WORLD_SIZE, SLURM_NTASKS or
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
                "The world size is the number of this node's GPUs, but the rank counts over the entire job",
                detail="This works on a single node with one rank per GPU. On several nodes, ranks exceed that size.",
                remedy="Use the size of the job: torchrun's WORLD_SIZE, or torch.distributed.get_world_size()",
            )


@lint_rule("DDL161", "local-rank-as-rank-of-the-job", Consequence.RISK)
def local_rank_as_rank_of_the_job(script: Script) -> Iterator[Spot]:
    """LOCAL_RANK is used instead of the global rank.

    Finds: LOCAL_RANK as `rank` of a DistributedSampler or of init_process_group, even if the script reads RANK when
        LOCAL_RANK is not set. Not reported if the rank is computed: `node_rank * n + local_rank`. Severity is info for
        a DistributedSampler that gets the local rank and `torch.cuda.device_count()`, in a job whose size comes from
        the launcher.
    Why: On one node, both are the same number. On two nodes, each number occurs twice. The sampler gives both nodes the
        same half of the data, and the other half is never used, without an error. The process group waits for ranks
        that never arrive.
    Remedy: Omit `rank`: DistributedSampler gets it from the process group, init_process_group from the environment.
        Otherwise, use RANK.
    See: https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
        https://pytorch.org/docs/stable/elastic/run.html#environment-variables
    """
    groups = list(script.named(names.INIT))
    from_launcher = all(group.lacks(3, "world_size") and group.lacks(4, "rank") for group in groups)
    reported = list[Call]()
    for call, size, rank in _worlds_and_ranks(script):
        rank = _under_torchrun(rank)  # noqa: PLW2901 - one of several ranks
        if GLOBAL_RANKS & environment(rank) or any(map(call.place.excludes, (each.place for each in reported))):
            continue
        what = "DistributedSampler" if call.name == names.SAMPLER else "init_process_group"
        if is_device_count(size):
            if call.name == names.SAMPLER and from_launcher and rank_kind(rank) == "local_rank":
                yield Spot(
                    call,
                    "DistributedSampler splits the data among the GPUs of one node only",
                    detail="This works on one node. On several nodes, every node trains on all data.",
                    remedy="Remove num_replicas and rank: both come from the process group",
                    severity=Severity.INFO,
                )
        elif "LOCAL_RANK" in environment(rank) and not (_OF_ONE_NODE & environment(size) or _is_computed(rank)):
            reported.append(call)
            yield Spot(
                call,
                f"{what} gets LOCAL_RANK as rank, but needs the rank in the entire job",
                detail="This works on one node. On several nodes, each number occurs once per node.",
                remedy="Remove rank, or use RANK",
            )


def _is_computed(rank: Value) -> bool:
    """Return True for ``node_rank * n + local_rank``, which is not the local rank itself."""
    sums = (source for source in rank.sources() if isinstance(source.node, ast.BinOp | ast.AugAssign))
    return any("LOCAL_RANK" in environment(each) for each in sums)


def _under_torchrun(rank: Value) -> Value:
    """Return the alternative of a rank whose conditions all test variables of torchrun, or the rank itself."""
    options = [option for option in rank.alternatives() if isinstance(option, Call)]
    tests = [{(each.test, each.holds) for each in option.conditions} for option in options]
    shared = set[tuple[Value, bool]]().union(*tests).intersection(*tests)
    taken = (each for each, asked in zip(options, tests, strict=True) if all(_is_set(*one) for one in asked - shared))
    return next(taken, rank) if len(options) > 1 else rank


def _is_set(test: Value, holds: bool) -> bool:
    """Return True for ``"LOCAL_RANK" in os.environ`` and ``os.environ.get("RANK") is not None``."""
    if not isinstance(test.node, ast.Compare) or len(test.parts) != 2:
        return holds and bool(environment(test) & _OF_TORCHRUN)
    is_asked = test.parts[0].constant in _OF_TORCHRUN and test.parts[1].name == "os.environ"
    is_asked |= test.parts[1].is_none and bool(environment(test) & _OF_TORCHRUN)
    return is_asked and isinstance(test.node.ops[0], ast.In | ast.IsNot) is holds


@lint_rule("DDL162", "torchrun-endpoint-overwritten", Consequence.FAILS)
def torchrun_endpoint_overwritten(script: Script) -> Iterator[Spot]:
    """A script that torchrun starts overwrites MASTER_ADDR or MASTER_PORT.

    Finds: `os.environ["MASTER_PORT"] = "12355"`, executed unconditionally before an init_process_group that reads the
        endpoint from the environment, in a script that reads LOCAL_RANK or RANK from the environment. Not reported for
        scripts that start their ranks themselves or support another launcher.
    Why: Under torchrun, the agent already runs the store, on a port that it chose and exported. Every rank, including
        rank 0, is only a client of this store. With the script's own port, all ranks wait until the timeout for a store
        that does not exist (seen with torch 2.13 and 2.15: two ranks, `The client socket has timed out`). With
        `localhost` as MASTER_ADDR, this happens to all nodes except the first. A different port in
        `init_method="tcp://..."` fails in the same way with torch 2.13. In torch 2.15, torchrun's store counts only for
        the exported MASTER_ADDR and MASTER_PORT, so rank 0 opens a store on that port.
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
                f"{assignment.name} is overwritten: ranks no longer find torchrun's store",
                remedy=f'Delete the line, or use os.environ.setdefault("{assignment.name}", ...)',
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


#: Names of functions that select a free port.
_FREE_PORT = re.compile(r"(free|open|unused|available|random)_?\w*port|getsockname", re.IGNORECASE)
_SHARES = re.compile(r"bcast|broadcast|gather|scatter|store|kvstore|read", re.IGNORECASE)


@lint_rule("DDL178", "port-drawn-by-each-rank", Consequence.HANGS)
def port_drawn_by_each_rank(script: Script) -> Iterator[Spot]:
    """Each rank chooses its own rendezvous port.

    Finds: A free port (`getsockname()`, `find_free_port()`) or a random number without a common seed, as MASTER_PORT or
        in `init_method="tcp://..."`, in a script whose ranks are started from outside: it reads the rank from the
        environment. Not reported before `mp.spawn`, under a condition on the rank or on MASTER_PORT, or if the port
        goes through a broadcast.
    Why: Each rank has a different port, so no two ranks meet: all wait in init_process_group until the timeout.
    Remedy: Use the port of the launcher: torchrun sets MASTER_PORT. Under srun, compute it from SLURM_JOB_ID.
    See: https://pytorch.org/docs/stable/distributed.html#environment-variable-initialization
    """
    if not script.texts & {*GLOBAL_RANKS, "LOCAL_RANK"} or _sets(script, "RANK") or has_one_rank(script):
        return
    if any((call.name or call.method).rpartition(".")[2] in _STARTERS for call in script.calls):
        return
    sinks = [(each.node, each.value, each.place) for each in script.assignments if each.name == "MASTER_PORT"]
    sinks += [(call.node, call.argument(1, "init_method"), call.place) for call in script.named(names.INIT)]
    for at, value, place in sinks:
        drawn = [part for part in value.sources() if isinstance(part, Call) and _draws_a_port(script, part)]
        shared = any(_SHARES.search(f"{part.name}.{part.method}") for part in value.calls())
        if not drawn or shared or chosen_ranks(place.conditions) is not None or place.in_handler:
            continue
        if not any("MASTER_PORT" in each.test.text or "environ" in each.test.text for each in place.conditions):
            yield Spot(
                at,
                "Each rank draws a port for itself: no two ranks meet",
                remedy="Use a port that all ranks know: MASTER_PORT of torchrun, or one computed from the job's id",
                write=('port = 20000 + int(os.environ["SLURM_JOB_ID"]) % 10000',),
            )


def _draws_a_port(script: Script, call: Call) -> bool:
    if _FREE_PORT.search(call.method or call.name.rpartition(".")[2]):
        return True
    return is_drawn(call) and not rank_kind(call) and not is_seeded_alike(script, call)


#: Variables of SLURM and MPI for the rank on the node; torch reads none of them.
_LOCAL_RANKS = frozenset(
    ("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK")
)
#: Kinds of values that are an offset. A product is not: ``node * 8 + local_rank`` is a rank, which DDL105 reports.
_OFFSETS = ("attribute", "parameter", "element", "free", "name", "call")
#: The operand that leaves a rank unchanged.
_NEUTRAL: Mapping[type[ast.operator], int] = {ast.Add: 0, ast.Sub: 0, ast.Mult: 1, ast.FloorDiv: 1}
_REFUSAL = "ProcessGroupNCCL is bound to device cuda:0 but an operation was issued on cuda:1"

#: Why the GPU of a process differs from the group's: surely, or depending on a value that the script does not show.
Way = Literal["surely", "by what is not known", "by the launcher", "by the processes of a node"]
_WHY: Mapping[Way, str] = {
    "surely": "torch.cuda.set_device does not change that, and the first operation fails",
    "by what is not known": "This works if both numbers are equal. Otherwise, the first operation fails",
    "by the launcher": (
        "This works if ranks are numbered node by node, with one rank per visible GPU."
        " Otherwise, the first operation fails"
    ),
    "by the processes of a node": (
        "This works if each node runs one process per visible GPU. Otherwise, the first operation fails"
    ),
}


class _Choice(NamedTuple):
    """A call that chooses the GPU of this process: its value, and the text in the script."""

    call: Call
    device: Value
    text: str


@lint_rule("DDL117", "group-on-another-gpu", Consequence.RISK)
def group_on_another_gpu(script: Script) -> Iterator[Spot]:
    """torch 2.15 binds the process group to a different GPU than the script uses.

    Finds: `init_process_group` of NCCL without `device_id`, if `torch.cuda.set_device` (or `device_ids` of DDP, without
        set_device) uses a different GPU than the rank's: an offset (`local_rank + 4`), another order, or a GPU other
        than 0 in a group of one rank. Severity is info if it depends on how the script is started: a list
        (`gpus[local_rank]`) or an offset that comes from outside, SLURM_LOCALID and similar variables if nothing reads
        or sets LOCAL_RANK, or mp.spawn processes on several nodes that may not be one per GPU. Not reported if the
        script mentions CUDA_VISIBLE_DEVICES, sets LOCAL_RANK, or requests the older class of NCCL groups.
    Why: torch 2.15 chooses the group's GPU in init_process_group: `device_id` if set, otherwise LOCAL_RANK modulo the
        number of GPUs, otherwise the rank modulo that number. It ignores `torch.cuda.set_device`. The first operation
        on another GPU fails: "ProcessGroupNCCL is bound to device cuda:0 but an operation was issued on cuda:1". torch
        2.13 uses the GPU of the tensors, and the same script works.
    Remedy: Pass the GPU to both in torch 2.3 and newer: `torch.cuda.set_device(device)` and
        `init_process_group("nccl", device_id=device)`. If each process has its own GPU, use LOCAL_RANK.
    See: https://pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group
        pytorch torch/distributed/distributed_c10d.py _nccl2_device
    """
    if chooses_visible_gpus(script) or any(setting.name == "LOCAL_RANK" for setting in settings(script)):
        return
    for group in script.named(names.INIT):
        if not starts_nccl(script, group) or not group.lacks(8, "device_id"):
            continue
        choices = list(_choices(script))
        near = [choice for choice in choices if choice.call.root == group.root]
        for choice in near or choices:
            way = _difference(script, group, choice)
            if way is not None:
                yield _spot(script, group, choice, way)
                break


def _choices(script: Script) -> Iterator[_Choice]:
    """Yield the calls that choose the GPU: set_device calls, or DDP calls if there are none."""
    calls = list(script.named(names.SET_DEVICE))
    for call in calls:
        if device := call.argument(0, "device"):
            node = _argument(call, 0, "device")
            yield _Choice(call, device, written(node) if node else device.text)
    for wrap in script.wraps if not calls else ():
        for device in device_ids(wrap)[:1]:
            node = _argument(wrap, 1, "device_ids")
            yield _Choice(
                wrap, device, written(node.elts[0]) if isinstance(node, ast.List | ast.Tuple) else device.text
            )


def _argument(call: Call, position: int, name: str) -> ast.expr | None:
    """Return an argument as written in the call, not the origin of its value, or None if ``**options`` contains it."""
    given = call.node.args[position : position + 1]
    return next((keyword.value for keyword in call.node.keywords if keyword.arg == name), given[0] if given else None)


def _spot(script: Script, group: Call, choice: _Choice, way: Way) -> Spot:
    by = "LOCAL_RANK" if "LOCAL_RANK" in script.texts else "rank % device_count"
    line, text = choice.call.node.lineno, choice.text
    but = f"but line {line} uses {text}" if way == "surely" else f"which may differ from {text} in line {line}"
    is_index = index_in(choice.device) is choice.device
    return Spot(
        group,
        f"torch 2.15 binds this group to GPU number {by}, {but}",
        detail=f"{_WHY[way]}: {_REFUSAL}.",
        remedy="Pass the same GPU to init_process_group as device_id (torch 2.3 and newer)",
        write=(
            f'device = torch.device("cuda", {text})' if is_index else f"device = torch.device({text})",
            "torch.cuda.set_device(device)",
            'torch.distributed.init_process_group("nccl", device_id=device)',
        ),
        severity=None if way == "surely" else Severity.INFO,
    )


def _difference(script: Script, group: Call, choice: _Choice) -> Way | None:
    """Return how the process's GPU differs from torch 2.15's choice, or None if both are or may be the same."""
    exported = (
        assignment.value
        for assignment in script.assignments
        if assignment.name == "RANK" and assignment.owner.reference == "os.environ"
    )
    rank = group.argument(4, "rank") or next(exported, NOTHING)
    if gpu := fixed_gpu(choice.device):
        return _of_one_rank(script, gpu, rank)
    index = index_in(choice.device)
    if rank and _bare(rank).text == _bare(index).text:
        return None
    ways = [_way(script, option, rank) for option in index.alternatives() if option.kind != "constant"]
    return ways[0] if ways and all(ways) else None


def _of_one_rank(script: Script, gpu: str, rank: Value) -> Way | None:
    """Compare a fixed GPU of a single rank; DDL104 reports it if there are more ranks."""
    if not has_one_rank(script) or "LOCAL_RANK" in script.texts:
        return None
    if gpu != "cuda:0":
        return "surely"
    return None if not rank or rank.constant == 0 else "by the processes of a node"


def _way(script: Script, value: Value, rank: Value) -> Way | None:
    index = _bare(value)
    way = _computed(index) or _looked_up(index)
    if way is not None:
        return way
    if environment(index) & _LOCAL_RANKS and "LOCAL_RANK" not in script.texts:
        return "by the launcher"
    is_of_several_nodes = index.name == SPAWN_INDEX and index in rank.sources()
    spawns = script.named(names.SPAWN, "torch.multiprocessing.start_processes")
    if not is_of_several_nodes or all(is_device_count(spawn.argument(2, "nprocs")) for spawn in spawns):
        return None
    return "by the processes of a node"


def _bare(value: Value) -> Value:
    """Return a number without ``int()``, ``str()`` and local functions around it."""
    for _ in range(6):
        if not isinstance(value, Call):
            break
        if value.name in ("int", "str") and value.args:
            value = value.args[0]
        elif value.returned:
            value = value.returned
    return value


def _computed(index: Value) -> Way | None:
    """Return how a computation changes a rank: ``local_rank + 4``, ``(rank + 1) % n``; None for ``rank % n`` itself."""
    operator, left, right = training.operation(index)
    if isinstance(operator, ast.Mod):
        return _computed(_bare(left))
    kinds = rank_kind(left), rank_kind(right)
    kind, other = (kinds[0], right) if kinds[0] else (kinds[1], left)
    if operator is None or kind is None or all(kinds) or type(operator) not in _NEUTRAL:
        return None
    if isinstance(operator, ast.Sub) and not kinds[0]:
        return "surely"  # counted from the last GPU
    if kind == "rank" and not isinstance(operator, ast.Add):
        return None  # ``rank - 8`` and ``rank // nodes`` may compute the rank on the node
    return _by(other, _NEUTRAL[type(operator)])


def _by(number: Value, neutral: int) -> Way | None:
    """Return how a number changes a rank; ``neutral`` leaves the rank unchanged."""
    bare = _bare(number)
    if isinstance(bare.constant, int):
        return None if bare.constant == neutral else "surely"
    return "by what is not known" if bare.kind in _OFFSETS and not is_device_count(bare) else None


def _looked_up(index: Value) -> Way | None:
    """Return how ``gpus[local_rank]`` changes a rank; None for a list that counts from 0."""
    if index.kind != "element" or len(index.parts) != 2 or rank_kind(index.parts[1]) is None:
        return None
    gpus = index.parts[0]
    if gpus.kind == "tuple":
        numbers = [fixed_gpu(gpu) for gpu in gpus.parts]
        if None not in numbers:
            return None if numbers == [f"cuda:{number}" for number in range(len(numbers))] else "surely"
    is_counted = any(source.name == "range" or is_device_count(source) for source in gpus.calls())
    return None if is_counted else "by what is not known"
