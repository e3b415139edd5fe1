"""Rules on the GPU that a rank uses.

model = DDP(net.cuda(0), device_ids=[0])      all ranks on GPU 0: NCCL refuses, or one GPU does all the work
torch.cuda.set_device(dist.get_rank())        right on the first node, an invalid device on the second
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddp_doctor.features.lint import names, training
from ddp_doctor.features.lint.devices import (
    chooses_visible_gpus,
    device_ids,
    device_text,
    fixed_gpu,
    goes_to_gpu,
    has_one_rank,
    index_in,
    is_over_gloo,
    moves_before,
    starts_nccl,
    target_of,
)
from ddp_doctor.features.lint.ranks import chosen_ranks, is_surely_global, rank_kind
from ddp_doctor.features.lint.rule import Spot, always, lint_rule
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import Call, Value
from ddp_doctor.model.choices import Consequence, Severity
from ddp_doctor.wording.nodes import name_list

_LOCAL_RANK = 'local_rank = int(os.environ["LOCAL_RANK"])'
#: torch 2.15 takes the group's GPU from device_id, otherwise from LOCAL_RANK or the rank, never from set_device.
_OWN_GPU = (
    'device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))',
    "torch.cuda.set_device(device)",
    'torch.distributed.init_process_group("nccl", device_id=device)   # torch 2.3 and newer',
)
#: Functions of other files that may choose the GPU or start the group.
_MAY_SET_UP = re.compile(r"init|setup|set_up|dist|ddp|launch|prepare|device|gpu|cuda|slurm|spawn|runner", re.IGNORECASE)
_CHOOSE_GPU = (
    *(names.SET_DEVICE, "torch.cuda.device"),
    *("torch.accelerator.set_device_index", "torch.set_default_device"),
)


@lint_rule("DDL104", "gpu-hard-coded", Consequence.FAILS)
def gpu_hard_coded(script: Script) -> Iterator[Spot]:
    """Every rank uses the same GPU, because its number is hard-coded in the script.

    Finds: `torch.cuda.set_device(0)`, `device_ids=[0]`, or a model that is moved to `cuda:0` before it is wrapped. Not
        reported if the script mentions CUDA_VISIBLE_DEVICES, which may give each process its own GPU 0, if the call is
        under a condition, if the group has one rank, or if only one of several callers passes the number: `train(0, 1)`
        next to `mp.spawn(train, ...)`. Severity is warning if the group uses gloo, even as the default of an option.
    Why: torchrun starts one process per GPU, and all of them use the same one. NCCL refuses two ranks on one GPU
        ("Duplicate GPU detected"). torch 2.15 binds groups to the GPU of LOCAL_RANK and refuses the tensors
        ("ProcessGroupNCCL is bound to device cuda:1 but an operation was issued on cuda:0"). gloo accepts them, and one
        GPU does all the work.
    Remedy: Use the GPU of the process's local rank, `int(os.environ["LOCAL_RANK"])`, for set_device, and in torch 2.3
        and newer as `device_id` of init_process_group.
    See: https://pytorch.org/docs/stable/elastic/run.html
    """
    if chooses_visible_gpus(script) or has_one_rank(script):
        return
    for call in script.named(names.SET_DEVICE):
        yield from _hard_coded(script, call, call.argument(0, "device"), sure=not call.conditions)
    for wrap in script.wraps:
        ids = device_ids(wrap)
        if len(ids) == 1:
            sure = chosen_ranks(wrap.conditions) is None and not _is_of_one_caller(script, wrap, ids[0])
            yield from _hard_coded(script, wrap, ids[0], sure=sure)
        for move in moves_before(script, wrap):
            yield from _hard_coded(script, move, target_of(move), sure=not move.conditions)


def _is_of_one_caller(script: Script, wrap: Call, device: Value) -> bool:
    """Return True if another caller of the function may pass another GPU: ``mp.spawn`` next to ``train(0, 1)``."""
    if any(later.node is wrap.node and not any(map(fixed_gpu, device_ids(later))) for later in script.wraps):
        return True
    made = {id(source) for source in device.sources()}
    is_handed_over = any(
        id(given) in made for call in script.calls if call.local is not None for given in call.arguments
    )
    return is_handed_over and bool(wrap.conditions)


def _hard_coded(script: Script, call: Call, device: Value, *, sure: bool) -> Iterator[Spot]:
    gpu = fixed_gpu(device)
    if gpu is not None and sure:
        severity, gloo = _over_gloo(script)
        remedy = "Use the GPU with number LOCAL_RANK"
        yield Spot(call, f"Every rank uses {gpu}", gloo, remedy, write=_OWN_GPU, severity=severity)


@lint_rule("DDL105", "global-rank-as-device", Consequence.RISK)
def global_rank_as_device(script: Script) -> Iterator[Spot]:
    """The GPU is chosen by the global rank, which is not a valid GPU number after the first node.

    Finds: `dist.get_rank()`, or RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK or PMI_RANK from the environment, unchanged,
        as the device of `set_device`, `torch.device`, `.to`, `.cuda` or `device_ids`. Reported once, with the other
        lines. Not reported if the script starts its processes with mp.spawn.
    Why: On one node, rank and local rank are equal. On the second node of 8 GPUs, ranks start at 8, and CUDA has no
        device 8: "invalid device ordinal".
    Remedy: Use LOCAL_RANK, which torchrun sets, for devices, and RANK for everything that is done once. Under srun or
        mpirun, which do not set it, export LOCAL_RANK from SLURM_LOCALID or OMPI_COMM_WORLD_LOCAL_RANK: torch 2.15
        reads it to choose the GPU of the process group, unless you pass `device_id` to init_process_group.
    See: https://pytorch.org/docs/stable/elastic/run.html#environment-variables
    """
    if script.calls_any(names.SPAWN) or chooses_visible_gpus(script):
        return
    calls = [call for call, device in _device_arguments(script) if is_surely_global(index_in(device))]
    if calls:
        first = min(calls, key=lambda call: call.node.lineno)
        lines = [*map(str, sorted({call.node.lineno for call in calls} - {first.node.lineno}))]
        at = f"line{'s' * (len(lines) > 1)} {name_list(lines)}"
        yield Spot(
            first,
            "The GPU is chosen by the global rank: the second node has no GPU with that number",
            detail=f"The global rank also chooses it in {at}." if lines else "",
            remedy="Choose the GPU by LOCAL_RANK",
            write=(_LOCAL_RANK,),
        )


def _device_arguments(script: Script) -> Iterator[tuple[Call, Value]]:
    for call in script.named(names.SET_DEVICE, "torch.device"):
        device = call.argument(1, "index") or call.argument(0, "device")
        if call.name == "torch.device" or not any(made.name == "torch.device" for made in device.makers()):
            yield call, device
    for wrap in script.wraps:
        for device in device_ids(wrap):
            yield wrap, device
    for move in script.methods("to", "cuda"):
        device = target_of(move)
        if not any(isinstance(option, Call) and option.name == "torch.device" for option in device.alternatives()):
            yield move, device


@lint_rule("DDL106", "gpu-not-chosen", Consequence.FAILS)
def gpu_not_chosen(script: Script) -> Iterator[Spot]:
    """The model is moved to "cuda" without a choice of GPU.

    Finds: A model that is moved with `.cuda()` or `.to("cuda")` and wrapped, in a script that starts the process group
        without `torch.cuda.set_device`. Not reported if the script mentions CUDA_VISIBLE_DEVICES, or if it calls
        functions of other modules that may choose the GPU. Severity is warning if the group uses gloo, even as the
        default of an option.
    Why: "cuda" is the current device, which is GPU 0 in every process until `set_device` changes it. All ranks of a
        node use GPU 0. NCCL refuses this ("Duplicate GPU detected"), and torch 2.15 fails before NCCL does
        ("ProcessGroupNCCL is bound to device cuda:1 but an operation was issued on cuda:0"). gloo accepts it, and one
        GPU does all the work.
    Remedy: Call `torch.cuda.set_device(device)` with the GPU of LOCAL_RANK before anything else uses CUDA. In torch 2.3
        and newer, also pass it to the group: `init_process_group("nccl", device_id=device)`.
    See: https://pytorch.org/docs/stable/generated/torch.cuda.set_device.html
        https://pytorch.org/docs/stable/elastic/run.html#environment-variables
    """
    if not script.calls_any(names.INIT):
        return  # the GPU is chosen in the statement that starts the group
    if script.calls_any(*_CHOOSE_GPU) or any(script.methods("set_device")) or script.has_unknown_star:
        return
    if chooses_visible_gpus(script) or calls_what_may_set_up(script) or has_one_rank(script):
        return
    for wrap in script.wraps:
        for move in moves_before(script, wrap):
            target = target_of(move)
            if not target or device_text(target) == "cuda":
                severity, gloo = _over_gloo(script)
                yield Spot(
                    move,
                    "The model moves to the current GPU, which is GPU 0 in every process",
                    detail=f"This script never calls torch.cuda.set_device. {gloo}".rstrip(),
                    remedy="Call torch.cuda.set_device with LOCAL_RANK",
                    write=_OWN_GPU,
                    severity=severity,
                )


def _over_gloo(script: Script) -> tuple[Severity | None, str]:
    """Return the severity and the consequence of one GPU for all ranks over gloo, which differ from NCCL's."""
    if not is_over_gloo(script):
        return None, ""
    return Severity.WARNING, "gloo accepts several ranks on one GPU, so one GPU per node does all the work."


def calls_what_may_set_up(script: Script) -> bool:
    """Return True if an imported function is called whose name suggests that it sets up the GPU or the group."""
    return any(
        _MAY_SET_UP.search(call.name)
        for call in script.calls
        if call.name and "." in call.name and not call.name.startswith(("torch.", "os.", "argparse."))
    ) or any(made.name == "getattr" for call in script.calls for made in call.callee.makers() if not call.name)


@lint_rule("DDL180", "current-gpu-never-set", Consequence.KNOWN)
def current_gpu_never_set(script: Script) -> Iterator[Spot]:
    """Each rank uses its own GPU by number, but the current GPU stays GPU 0.

    Finds: A model that is wrapped with the GPU of its rank in `device_ids`, in a script that starts NCCL without
        `torch.cuda.set_device` and without `device_id`.
    Why: `barrier()`, object collectives, `"cuda"` and libraries use the current GPU. Each process creates a CUDA
        context of some hundred MB on GPU 0, and two ranks that both use it fail with "Duplicate GPU detected".
    Remedy: Call `torch.cuda.set_device(local_rank)` before init_process_group.
    See: https://github.com/pytorch/examples/pull/1142
        https://pytorch.org/docs/stable/generated/torch.cuda.set_device.html
    """
    groups = [group for group in script.named(names.INIT) if starts_nccl(script, group)]
    if not groups or any(not group.lacks(8, "device_id") for group in groups) or chooses_visible_gpus(script):
        return
    if script.calls_any(*_CHOOSE_GPU) or any(script.methods("set_device")) or calls_what_may_set_up(script):
        return
    if script.has_unknown_star or has_one_rank(script):
        return
    indices = (index_in(device) for wrap in script.wraps for device in device_ids(wrap))
    if any(rank_kind(index) in ("local_rank", "spawn_index") for index in indices):
        yield Spot(
            groups[0],
            "The current GPU is never set: barriers and object collectives use GPU 0 on every rank",
            remedy="Call torch.cuda.set_device with LOCAL_RANK first",
            write=_OWN_GPU,
        )


@lint_rule("DDL107", "gpu-chosen-late", Consequence.RISK)
def gpu_chosen_late(script: Script) -> Iterator[Spot]:
    """torch.cuda.set_device is called after CUDA was used.

    Finds: `torch.cuda.set_device` that runs after a tensor or a module was moved with `.cuda()` or `.to("cuda")`, or
        created with `device="cuda"`.
    Why: Everything before the call is on GPU 0 in every process. Each rank creates a CUDA context of some hundred MB on
        GPU 0, and its early tensors are on a different GPU than the model and the process group.
    Remedy: Call `torch.cuda.set_device(device)` first, right after reading LOCAL_RANK, and pass the same GPU to
        `init_process_group("nccl", device_id=device)` in torch 2.3 and newer.
    See: https://pytorch.org/docs/stable/generated/torch.cuda.set_device.html
    """
    if chooses_visible_gpus(script):
        return
    first_uses: dict[int, Call] = {}
    for call in script.calls:
        if call.root not in first_uses and _uses_current_gpu(call):
            first_uses[call.root] = call
    for call in script.named(names.SET_DEVICE):
        first = first_uses.get(call.root)
        if first is None or not first.precedes(call):
            continue
        if any(each.precedes(first) for each in script.named(names.SET_DEVICE)):
            continue  # the function runs again
        if first.conditions == call.conditions[: len(first.conditions)]:
            yield Spot(
                call,
                f"torch.cuda.set_device comes too late: line {first.node.lineno} has used the current GPU, GPU 0",
                remedy="Choose the GPU before any use of CUDA",
            )


def _uses_current_gpu(call: Call) -> bool:
    if call.method in ("cuda", "to"):
        target = target_of(call)
        return device_text(target) == "cuda" if target else call.method == "cuda"
    return call.name.startswith("torch.") and device_text(call.argument(None, "device")) == "cuda"


@lint_rule("DDL111", "device-ids-disagree", Consequence.FAILS)
def device_ids_disagree(script: Script) -> Iterator[Spot]:
    """The devices that DistributedDataParallel gets contradict each other.

    Finds: Several GPUs in `device_ids`, or a different GPU in `device_ids` than in `output_device` or than the GPU of
        the model, if the script contains these numbers.
    Why: One DDP process uses one GPU. torch refuses several device_ids, and parameters on a different device than
        device_ids.
    Remedy: Use `DDP(model.to(local_rank), device_ids=[local_rank])`. The default of output_device is the same GPU.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    for wrap in script.wraps:
        ids = device_ids(wrap)
        if len(ids) > 1 or _is_range(wrap.argument(1, "device_ids")):
            yield Spot(
                wrap,
                "device_ids has several GPUs, but a DDP process uses one",
                remedy="Start one process per GPU with torchrun, and pass the process's own GPU",
                write=(_LOCAL_RANK,),
            )
        elif ids:
            others = [("output_device", wrap.argument(2, "output_device"))]
            moves = moves_before(script, wrap)[:1]
            others += [(f".{move.method}() in line {move.node.lineno}", target_of(move)) for move in moves]
            for what, other in others:
                if _surely_differ(ids[0], other):
                    yield Spot(
                        wrap,
                        f"device_ids has {ids[0].text}, but {what} has {other.text}",
                        remedy="Use one GPU everywhere, with number LOCAL_RANK",
                        write=(_LOCAL_RANK,),
                    )


def _is_range(value: Value) -> bool:
    """Return True for ``range(n)`` or ``list(range(n))`` of more than one GPU."""
    for option in value.alternatives():
        if isinstance(option, Call) and option.name in ("range", "list") and len(option.args) == 1:
            inner = option.args[0]
            if option.name == "list":
                return _is_range(inner)
            return inner.constant != 1
    return False


def _surely_differ(index: Value, other: Value) -> bool:
    gpus = fixed_gpu(index), fixed_gpu(other)
    if all(gpus):
        return gpus[0] != gpus[1]
    return any(gpus) and rank_kind(index_in(other if gpus[0] else index)) == "local_rank"


@lint_rule("DDL116", "gloo-for-gpus", Consequence.COST)
def gloo_for_gpus(script: Script) -> Iterator[Spot]:
    """A model on GPUs is synchronized over gloo.

    Finds: `init_process_group("gloo")`, literally and without another backend, with a model that is moved to a GPU or
        wrapped with `device_ids`.
    Why: gloo reduces on the CPU: it copies every gradient to the host, sends it over TCP and copies it back. NCCL keeps
        data on the GPUs and uses NVLink, PCIe and RDMA.
    Remedy: Use `init_process_group("nccl")`.
    See: https://pytorch.org/docs/stable/distributed.html#which-backend-to-use
    """
    starts = list(script.named(names.INIT))
    backends = {call.argument(0, "backend").constant for call in starts}
    if has_one_rank(script) or backends != {"gloo"}:
        return
    for wrap in script.wraps:
        gpu = [move for move in moves_before(script, wrap) if not move.conditions and goes_to_gpu(move)]
        if device_ids(wrap) and not wrap.conditions:
            gpu.append(wrap)  # torch rejects device_ids for a model on the CPU
        if gpu:
            yield Spot(
                starts[0],
                f"gloo reduces gradients on the CPU, but line {gpu[0].node.lineno} moves the model to a GPU",
                remedy="Start the group with NCCL",
                write=('dist.init_process_group("nccl")',),
            )


_IN_WORKERS = ("__getitem__", "__getitems__", "__iter__")


@lint_rule("DDL190", "gpu-used-in-loader-worker", Consequence.FAILS, concerns=always)
def gpu_used_in_loader_worker(script: Script) -> Iterator[Spot]:
    """A data set uses the GPU in the worker processes of its loader.

    Finds: `.cuda()`, `.to("cuda")` or `device="cuda"` in `__getitem__` or `__iter__` of a class of the script whose
        DataLoader has `num_workers` above 0. Not reported if the script chooses how processes start
        (`multiprocessing_context`, `set_start_method`).
    Why: On Linux, the loader forks its workers. After the fork, CUDA cannot be used if the rank used it before:
        `RuntimeError: Cannot re-initialize CUDA in forked subprocess`.
    Remedy: Return tensors in host memory, and move the batch in the training loop.
    See: https://pytorch.org/docs/stable/notes/multiprocessing.html#cuda-in-multiprocessing
    """
    if script.uses("multiprocessing_context", "set_start_method"):
        return
    for loader in script.named(names.LOADER):
        workers = loader.argument(training.WORKERS, "num_workers").constant
        made = [made.local for made in loader.argument(0, "dataset").makers()]
        for cls in made if isinstance(workers, int) and workers > 0 else ():
            yield from _uses_of_gpus(cls) if isinstance(cls, ast.ClassDef) else ()


def _uses_of_gpus(dataset: ast.ClassDef) -> Iterator[Spot]:
    methods = (each for each in dataset.body if isinstance(each, ast.FunctionDef) and each.name in _IN_WORKERS)
    for call in (node for method in methods for node in ast.walk(method) if isinstance(node, ast.Call)):
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        given = [keyword.value for keyword in call.keywords if keyword.arg == "device"]
        given += call.args if method == "to" else []
        is_named = any(isinstance(each, ast.Constant) and str(each.value).startswith("cuda") for each in given)
        if is_named or method == "cuda":
            yield Spot(
                call,
                "This fails: workers of a DataLoader cannot use the GPU that their rank has used before",
                remedy="Return tensors in host memory, and move the batch in the training loop",
            )
            return
