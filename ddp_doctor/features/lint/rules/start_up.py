"""Rules on how a job starts and ends: the process group, the launcher, the settings.

model = DDP(net)                                  no process group was started
os.environ["NCCL_SOCKET_NTHREADS"] = "4"          after the group has started: nobody reads it any more
random.py beside train.py                         `import random` means that file, in the script and in torch
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path

from ddp_doctor.features.lint import names
from ddp_doctor.features.lint.devices import starts_nccl
from ddp_doctor.features.lint.expressions import Assignment, is_launch
from ddp_doctor.features.lint.rule import Spot, always, lint_rule
from ddp_doctor.features.lint.rules.devices import calls_what_may_set_up
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.siblings import import_torch, is_imported_folder
from ddp_doctor.features.lint.values import NOTHING, Call, Place, Value
from ddp_doctor.knowledge.import_path import LATE, TORCH, hidden_modules
from ddp_doctor.model.choices import Consequence, Severity

#: Other calls that start a process group.
_STARTS = (names.INIT, "torch.distributed.device_mesh.init_device_mesh", "torch.distributed.init_device_mesh")
_MAY_END = re.compile(r"clean|destroy|tear|final|shut|exit|close|stop|end", re.IGNORECASE)
#: Variables that torch reads when the group starts, and that NCCL and gloo read then or at the first collective.
_READ_AT_START = (
    "NCCL_",
    "TORCH_NCCL_",
    "GLOO_",
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
    "TORCH_DISTRIBUTED_DEBUG",
)


#: Only names of these families can be misspelled or removed.
_FAMILIES = ("NCCL_", "TORCH", "GLOO_", "PET_")
_PARSE = ("parse_args", "parse_known_args")
_TIMEOUT = "the group's timeout: init_process_group(timeout=timedelta(minutes=30))"


@lint_rule("DDL108", "process-group-missing", Consequence.FAILS)
def process_group_missing(script: Script) -> Iterator[Spot]:
    """A script wraps a model without starting a process group.

    Finds: DistributedDataParallel in code that runs when the script is started, if the script never calls
        `init_process_group`. Not reported if the script calls a function of another module that may start the group, or
        in modules whose functions others call.
    Why: "Default process group has not been initialized": DDP broadcasts over the group while it wraps.
    Remedy: Call `torch.distributed.init_process_group("nccl")` first, and start the script with torchrun.
    See: https://pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group
    """
    if script.calls_any(*_STARTS) or any(script.methods("init_process_group")) or script.has_unknown_star:
        return
    if calls_what_may_set_up(script):
        return
    for wrap in script.wraps:
        if wrap.root == 0 and wrap.lacks(names.SHARED_BY_DDP, "process_group", "device_mesh"):
            yield Spot(
                wrap,
                "The model is wrapped in DDP, but this script starts no process group",
                remedy="Call init_process_group before wrapping the model",
                write=('torch.distributed.init_process_group("nccl")',),
            )


@lint_rule("DDL189", "master-address-missing", Consequence.RISK, concerns=always)
def master_address_missing(script: Script) -> Iterator[Spot]:
    """A script starts its own processes and does not set their address.

    Finds: `init_process_group(rank=...)` without `init_method` and without a store, in a function that the script
        starts with `torch.multiprocessing.spawn` or in a `Process`, if the script never mentions MASTER_ADDR. Not
        reported if the rank is computed, as on several nodes, if the script reads LOCAL_RANK, which torchrun sets, or
        if it uses other files that may set the address.
    Why: Without `init_method`, the ranks read MASTER_ADDR and MASTER_PORT from the environment. torchrun sets both, but
        `spawn` does not: `ValueError: environment variable MASTER_ADDR expected, but not set`.
    Remedy: Set both before the first process starts, or start the script with torchrun instead.
    See: https://pytorch.org/docs/stable/distributed.html#environment-variable-initialization
    """
    if (
        "MASTER_ADDR" in script.source
        or "LOCAL_RANK" in script.source
        or script.has_unknown_star
        or calls_what_may_set_up(script)
    ):
        return
    for call in script.named(names.INIT):
        method = call.given(1, "init_method")
        is_by_environment = not method or method.constant == "env://"
        is_number_of_process = call.given(4, "rank").kind in ("parameter", "loop")  # computed on several nodes
        if call.place.launch and is_number_of_process and is_by_environment and call.lacks(None, "store"):
            yield Spot(
                call,
                "This fails unless MASTER_ADDR and MASTER_PORT are set outside of the script",
                remedy="Set both before the processes start",
                write=('os.environ["MASTER_ADDR"] = "localhost"', 'os.environ["MASTER_PORT"] = "29500"'),
            )


@lint_rule("DDL109", "process-group-after-wrapping", Consequence.FAILS)
def process_group_after_wrapping(script: Script) -> Iterator[Spot]:
    """The process group is started after the model was wrapped, or after a collective.

    Finds: `init_process_group` that runs after DistributedDataParallel or a collective such as `barrier`, without an
        earlier one. Not reported for a collective if a library or another module may have started the group.
    Why: "Default process group has not been initialized": DDP broadcasts over the group while it wraps, and collectives
        use it. The script ends with this error on all ranks.
    Remedy: Call `init_process_group` before wrapping the model and before all collectives.
    See: https://pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group
    """
    starts = list(script.named(*_STARTS))
    for call, start in islice(before_the_group(script).items(), 1):
        name, line = call.name.rpartition(".")[2], start.node.lineno
        yield Spot(
            call,
            f"This {name} fails: the process group starts later, in line {line}",
            remedy=f"Call init_process_group before this {name}",
        )
    for wrap in script.wraps:
        late = [start for start in starts if wrap.precedes(start)]
        if late and len(late) == len(starts):
            yield Spot(
                late[0],
                f"The process group starts after line {wrap.node.lineno} wrapped the model",
                remedy="Start the group before wrapping the model",
            )


@lru_cache(maxsize=1)  # two rules ask
def before_the_group(script: Script) -> Mapping[Call, Call]:
    """Return the collectives that surely run before the first process group starts, and the call that starts it."""
    starts = list(script.named(*_STARTS))
    if script.libraries or script.has_unknown_star or calls_what_may_set_up(script) or not starts:
        return {}
    asked = {(each.test, each.holds) for each in starts[0].place.conditions}
    if any("initialized" in test.text for test, _ in asked):  # something else may have started the group
        return {}
    return {
        call: starts[0]
        for call in script.named(*(f"torch.distributed.{name}" for name in names.COLLECTIVES))
        if all(map(call.precedes, starts)) and not (call.place.guards or call.place.in_handler)
        if all((each.test, each.holds) in asked for each in call.place.conditions)
    }


@lint_rule("DDL110", "process-group-left-open", Consequence.KNOWN)
def process_group_left_open(script: Script) -> Iterator[Spot]:
    """The process group is never destroyed.

    Finds: A script that starts a process group and wraps a model, but does not call `destroy_process_group`.
    Why: At exit, NCCL's threads still run while Python shuts down: torch warns that resources may leak, and a late rank
        can hang or die.
    Remedy: Call `torch.distributed.destroy_process_group()` at the end.
    See: https://pytorch.org/docs/stable/distributed.html#shutdown
    """
    starts = list(script.named(names.INIT))
    ends = script.calls_any(names.DESTROY) or script.uses("destroy_process_group")
    from_elsewhere = any(
        _MAY_END.search(call.name.rpartition(".")[2])
        for call in script.calls
        if "." in call.name and not call.name.startswith("torch.")
    )
    if starts and script.wraps and not ends and not from_elsewhere and starts[0].root == 0:
        yield Spot(
            starts[0],
            "This process group is never destroyed",
            remedy="End the script with torch.distributed.destroy_process_group()",
        )


@lint_rule("DDL112", "local-rank-as-argument", Consequence.RISK)
def local_rank_as_argument(script: Script) -> Iterator[Spot]:
    """The script expects --local_rank from its launcher, but torchrun does not pass it.

    Finds: An argument `--local_rank` or `--local-rank` of argparse whose value is used (`args.local_rank`), in a script
        that never reads LOCAL_RANK. Not reported if the script only accepts the argument for an old launcher and does
        not use it, or if it sets `args.local_rank` itself before it uses it, for example in a worker of mp.spawn, or by
        a function of another module.
    Why: torchrun sets the local rank in the environment and passes no argument. Every rank uses the default, so all
        ranks take the same GPU or behave like a job with one rank. torch.distributed.launch, which passes the argument,
        is deprecated and writes it with a hyphen since torch 2.0.
    Remedy: Read `int(os.environ["LOCAL_RANK"])` as the default of the argument, or instead of it.
    See: https://pytorch.org/docs/stable/distributed.html#launch-utility
        https://pytorch.org/docs/stable/elastic/run.html#transitioning-from-torch-distributed-launch-to-torchrun
    """
    for call in script.methods("add_argument"):
        is_local_rank = any(argument.constant in ("--local_rank", "--local-rank") for argument in call.args)
        if not is_local_rank or script.uses("LOCAL_RANK"):
            continue
        if _uses_argument(script, "local_rank"):
            yield Spot(
                call,
                "The script expects the local rank as an argument, but torchrun does not pass it",
                remedy="Read it from the environment",
                write=('local_rank = int(os.environ["LOCAL_RANK"])',),
            )


def _uses_argument(script: Script, name: str) -> bool:
    """Return False if nothing reads ``args.NAME``, or only after the script has set it."""
    attributes = (node for node in script.nodes if isinstance(node, ast.Attribute) and node.attr == name)
    first = min((node.lineno for node in attributes if isinstance(node.ctx, ast.Load)), default=0)
    setters = (each for each in script.assignments if each.name == name and getattr(each.node, "lineno", 0) <= first)
    if not first or any(_is_set_for_the_group(script, each) for each in setters):
        return False
    starts = [call.place for call in script.calls if is_launch(call)]
    if not any(each.name == name and _is_set_on_all_ranks(script, each, starts) for each in script.assignments):
        return True
    elsewhere = [call for call in script.calls if not any(map(call.place.excludes, starts))]
    waiting = [part for call in elsewhere for part in (*call.parts, *(each.test for each in call.conditions))]
    waiting += [each.value for each in script.assignments if not any(map(each.place.excludes, starts))]
    seen = set[Value]()
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        if value.attribute == name and any(made.method in _PARSE for made in value.owner.calls()):
            return True
        seen.add(value)
        waiting += value.parts
    return False


def _is_set_for_the_group(script: Script, at: Assignment) -> bool:
    """Return True for ``size, args.local_rank = start_slurm(...)`` at every place that needs the group."""
    made = at.value.owner if at.value.kind == "element" else at.value
    if not isinstance(made, Call) or at.place.in_handler or not ("." in made.name or made.callee.kind == "free"):
        return False
    users = (*script.wraps, *script.named(names.INIT))
    asked = {each.test.text for each in at.place.conditions}
    return bool(users) and all(asked <= {each.test.text for each in user.place.conditions} for user in users)


def _is_set_on_all_ranks(script: Script, at: Assignment, starts: Sequence[Place]) -> bool:
    """Return True if ``args.local_rank`` gets a new value, at least at every place that starts processes."""
    if not isinstance(at.target, ast.Attribute) or at.owner in script.instances or at.value.kind == "constant":
        return False
    if any(source.attribute == at.name for source in at.value.sources()):
        return False
    asked = {each.test for each in at.place.conditions if not (each.always or each.early)}
    return not asked or any(asked <= {each.test for each in start.conditions} for start in starts)


@lint_rule("DDL114", "setting-read-by-nothing", Consequence.NO_EFFECT, concerns=always)
def setting_read_by_nothing(script: Script) -> Iterator[Spot]:
    """The script sets an environment variable that neither NCCL nor torch reads.

    Finds: `os.environ["NAME"] = ...` with a name that looks like NCCL's, torch's or gloo's but that no release reads,
        because it never existed, is misspelled or was removed. Severity is info for an old name that torch still reads.
    Why: The setting has no effect, although its author expects one: a timeout never expires, or a log is never written.
    Remedy: Use a name that is read, or remove the line.
    See: ddp-doctor explain NCCL_DEBUG, and likewise for every other variable
    """
    for setting in settings(script):
        if not setting.name.upper().startswith(_FAMILIES):
            continue  # the table takes as long to read as several scripts
        what, instead, severity = _problem_of_name(setting.name)
        if what:
            yield Spot(setting.node, what, remedy=f"Set {instead}" if instead else "Remove it", severity=severity)


def _problem_of_name(name: str) -> tuple[str, str | None, Severity | None]:
    """Return the fault of a name or "", the correct name, and a severity if it differs from the rule's."""
    from ddp_doctor.settings.names import is_unknown, nearest
    from ddp_doctor.settings.releases import is_gone
    from ddp_doctor.settings.table import never_read, variables

    if never := never_read().get(name):
        return f"{name} has no effect; the name suggests {never.meant}", never.instead, None
    known = variables().get(name)
    if known is None:
        meant = nearest(name) if is_unknown(name) else None
        if meant is None and "TIMEOUT" in name and is_unknown(name):
            return f"{name} has no effect: no known library reads it, so no timeout changes", _TIMEOUT, None
        return f"{name} has no effect: typo for {meant}" if meant else "", meant, None
    if is_gone(known):
        return f"{name} has no effect: removed after NCCL {known.last}", known.replaced_by, None
    if known.status == "deprecated" and known.replaced_by:
        return f"{name} is the old name of {known.replaced_by}", known.replaced_by, Severity.INFO
    return "", None, None


def settings(script: Script) -> Iterator[Assignment]:
    """Yield the variables that the script sets in its environment, including by calls."""
    for assignment in script.assignments:
        if assignment.name and assignment.owner.reference == "os.environ":
            yield assignment
    for call in script.named("os.environ.setdefault", "os.putenv"):
        for name in call.args[:1]:
            yield from _set_by(call, name.node)
    for call in script.named("os.environ.update"):
        keys = (argument.node.keys for argument in call.args[:1] if isinstance(argument.node, ast.Dict))
        yield from _set_by(call, *next(keys, []), *call.keywords)


def _set_by(call: Call, *keys: object) -> Iterator[Assignment]:
    for key in keys:
        name = key.value if isinstance(key, ast.Constant) else key
        if isinstance(name, str):
            yield Assignment(call.node, call.node, name, call.receiver, NOTHING, call.place, call.order, call.root)


@lint_rule("DDL115", "setting-too-late", Consequence.RISK)
def setting_too_late(script: Script) -> Iterator[Spot]:
    """An environment variable is set after it has been read.

    Finds: `os.environ["NCCL_..."] = ...`, or TORCH_NCCL_*, GLOO_*, MASTER_ADDR and similar variables, after a process
        group was started and a model wrapped in it; CUDA_VISIBLE_DEVICES after CUDA was used. NCCL_* between the start
        of the group and the wrapping is a warning with `device_id`, otherwise info.
    Why: torch reads its settings when the group starts, NCCL when its first communicator is created, and CUDA at its
        first call. Later changes have no effect. init_process_group creates NCCL's first communicator if it has a
        `device_id`, and always in torch 2.15. Otherwise, torch 2.13 creates it at the first collective.
    Remedy: Set it earlier, preferably outside the script, where it applies to all processes.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    for setting in settings(script):
        if reader := _read_before(script, setting):
            may_come_later = reader.name == names.INIT and _is_read_by_nccl(setting) and reader.lacks(8, "device_id")
            line = reader.node.lineno
            yield Spot(
                setting.node,
                f"This setting of {setting.name} has no effect in torch 2.15: NCCL has already read it in line {line}"
                if may_come_later
                else f"This setting of {setting.name} has no effect: line {line} has already read it",
                remedy=f"Set it before line {line}",
                severity=Severity.INFO if may_come_later else None,
            )


def _read_before(script: Script, setting: Assignment) -> Call | None:
    """Return the call that has already read the variable, or None if that is not certain."""
    if setting.name == "CUDA_VISIBLE_DEVICES":
        readers = [*script.named(names.SET_DEVICE), *(call for call in script.methods("cuda") if not call.args)]
    elif _is_read_by_nccl(setting):  # when its first communicator is made, by the group itself or by DDP
        groups = [group for group in script.named(names.INIT) if starts_nccl(script, group)]
        readers = [*script.wraps, *sorted(groups, key=lambda group: group.lacks(8, "device_id"))]
    elif setting.name.startswith(_READ_AT_START):
        readers = list(script.named(names.INIT))
    else:
        return None
    conditions = setting.place.conditions
    earlier = (call for call in readers if call.root == setting.root and call.order < setting.order)
    earlier = (call for call in earlier if call.place.launch is setting.place.launch)  # a process reads its own
    earlier = (call for call in earlier if not call.place.excludes(setting.place))
    return next((call for call in earlier if call.conditions == conditions[: len(call.conditions)]), None)


def _is_read_by_nccl(setting: Assignment) -> bool:
    from ddp_doctor.settings.table import variables

    if not setting.name.startswith("NCCL_"):
        return False
    known = variables().get(setting.name)
    return known is None or known.owner != "torch"


def _trains(script: Script) -> bool:
    return script.is_distributed or bool(script.libraries)


@lint_rule("DDL170", "module-hidden-by-a-file", Consequence.FAILS, concerns=_trains)
def module_hidden_by_a_file(script: Script) -> Iterator[Spot]:
    """A file next to the script has the name of a module that torch needs, and is imported instead of it.

    Finds: A `torch.py`, `random.py`, `logging.py` or another file or package with the name of torch, or of a Python
        module without which torch cannot be imported, in the directory of a script that imports torch, directly or
        through a file next to it. The script itself may be that file. Severity is warning for modules that only
        torch.compile needs. Reported once per directory. Not reported in packages, or in directories that a file in or
        above them imports as a package.
    Why: `torchrun train.py` and `python train.py` search the script's directory first. All ranks fail at their first
        import of torch: "cannot import name 'Random' from 'random'", "'torch' is not a package".
    Remedy: Rename the file, and delete its compiled copy in `__pycache__`.
    See: https://docs.python.org/3/library/sys_path_init.html
    """
    beside = script.names_beside()
    if Path(script.path).name not in beside or "__init__.py" in beside:
        return
    hidden = hidden_modules(beside, script.names_beside)
    if not hidden or not import_torch(script) or is_imported_folder(script):
        return
    for module, file in hidden.items():
        whose = TORCH if module == TORCH else f"Python's own {module}"
        what = "torch.compile" if module in LATE else "torch"
        yield Spot(
            _import_of(script, module),
            f"{file} in this directory shadows {whose}: {what} cannot be imported",
            remedy=f"Rename {file}",
            cost="every import of that file must change",
            severity=Severity.WARNING if module in LATE else None,
        )


def _import_of(script: Script, module: str) -> ast.AST:
    """Return the statement that imports a module, or the first import."""
    imports = [node for node in script.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in imports:
        named = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        if any(name.partition(".")[0] == module for name in named):
            return node
    return imports[0] if imports else script.tree
