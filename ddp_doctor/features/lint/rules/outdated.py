"""Rules on functions that torch calls deprecated.

with torch.cuda.amp.autocast():                                     since torch 2.4: torch.amp.autocast("cuda")
subprocess.run(["python", "-m", "torch.distributed.launch", ...])   since torch 1.10: torchrun
dist.distributed_c10d._set_pg_timeout(timeout)                      since torch 2.14: dist.set_timeout
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice

from ddp_doctor.features.lint.rule import Spot, always, lint_rule
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import Call
from ddp_doctor.model.choices import Consequence


@lint_rule("DDL113", "cuda-amp-deprecated", Consequence.KNOWN, concerns=always)
def cuda_amp_deprecated(script: Script) -> Iterator[Spot]:
    """The script uses torch.cuda.amp, which torch.amp replaces.

    Finds: The first call of `torch.cuda.amp.autocast` and of `torch.cuda.amp.GradScaler` in a script, and the import of
        `custom_fwd` and `custom_bwd` from torch.cuda.amp.
    Why: Both still work but have printed a warning on every rank since torch 2.4. A later release may remove them.
    Remedy: Use `torch.amp.autocast("cuda")` and `torch.amp.GradScaler("cuda")` in torch 2.3 and newer.
    See: https://pytorch.org/docs/stable/amp.html
    """
    if not script.is_distributed:
        return
    for name in ("autocast", "GradScaler"):
        for call in islice(script.named(f"torch.cuda.amp.{name}"), 1):
            yield Spot(call, f"torch.cuda.amp.{name} is deprecated", remedy=f'Use torch.amp.{name}("cuda", ...)')
    for node in script.tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "torch.cuda.amp":
            imported = {alias.name for alias in node.names}
            for name in [name for name in ("custom_fwd", "custom_bwd") if name in imported]:
                remedy = f'Use torch.amp.{name}(device_type="cuda")'
                yield Spot(node, f"torch.cuda.amp.{name} is deprecated", remedy=remedy)


_LAUNCHES = ("subprocess.", "os.system", "os.popen", "os.exec", "os.spawn", "torch.distributed.launch.")
_LAUNCHER = "torch.distributed.launch"


@lint_rule("DDL118", "old-launcher-called", Consequence.KNOWN, concerns=always)
def old_launcher_called(script: Script) -> Iterator[Spot]:
    """The script starts its processes with torch.distributed.launch, which torchrun replaces.

    Finds: A command of `subprocess` or `os.system` that runs `torch.distributed.launch`, or a direct call of that
        module.
    Why: The launcher warns on each start that it is deprecated. It passes `--local-rank` to scripts (with a hyphen
        since torch 2.0, with an underscore before), which scripts that read LOCAL_RANK do not expect.
    Remedy: Use `torchrun --nproc-per-node=8 train.py`, and read LOCAL_RANK from the environment in the script.
    See: https://pytorch.org/docs/stable/elastic/run.html#transitioning-from-torch-distributed-launch-to-torchrun
    """
    for call in script.calls:
        if call.name.startswith(_LAUNCHES) and (call.name.startswith(_LAUNCHER) or _names_launcher(call)):
            yield Spot(
                call,
                "torch.distributed.launch is deprecated",
                remedy="Start the processes with torchrun, and read LOCAL_RANK in the script",
            )


def _names_launcher(call: Call) -> bool:
    expressions = (source.node for source in call.sources() if isinstance(source.node, ast.expr))
    constants = (node.value for whole in expressions for node in ast.walk(whole) if isinstance(node, ast.Constant))
    return any(isinstance(constant, str) and _LAUNCHER in constant for constant in constants)


#: The public names of each, and the first torch release that has them. Source: torch/distributed/distributed_c10d.py of
#: torch 2.13 and 2.15. Both warn about the two collectives; 2.13 does not warn about _set_pg_timeout and has no
#: set_timeout.
_PRIVATE = {
    "_set_pg_timeout": (("set_timeout",), "set_timeout, available since torch 2.14"),
    "_all_gather_base": (
        ("all_gather_single", "all_gather_into_tensor"),
        "all_gather_single since torch 2.13, or all_gather_into_tensor before",
    ),
    "_reduce_scatter_base": (
        ("reduce_scatter_single", "reduce_scatter_tensor"),
        "reduce_scatter_single since torch 2.13, or reduce_scatter_tensor before",
    ),
}


@lint_rule("DDL119", "private-call-deprecated", Consequence.KNOWN, concerns=always)
def private_call_deprecated(script: Script) -> Iterator[Spot]:
    """The script calls a private function of torch.distributed that a public one replaces.

    Finds: Calls of `_set_pg_timeout`, `_all_gather_base` and `_reduce_scatter_base`. Not reported if the script also
        calls or checks for the public name, and so supports several releases of torch.
    Why: The two collectives warn on every rank that they are deprecated. `_set_pg_timeout` warns since torch 2.14,
        which replaces it with `torch.distributed.set_timeout`. torch 2.13 has no such function and does not warn. A
        later release may remove all three.
    Remedy: Use `torch.distributed.set_timeout(timeout, group)` with torch 2.14 and newer; with older releases, pass the
        timeout to init_process_group or new_group. Use `all_gather_single` and `reduce_scatter_single` with torch 2.13
        and newer. Their other names `all_gather_into_tensor` and `reduce_scatter_tensor` do the same: torch 2.13 warns
        about them, 2.15 does not.
    See: https://pytorch.org/docs/stable/distributed.html
        pytorch torch/distributed/distributed_c10d.py
    """
    for name, (public, instead) in _PRIVATE.items():
        calls = tuple(script.named(f"torch.distributed.{name}"))
        if not calls or any(
            replacement in script.texts or any(script.named(f"torch.distributed.{replacement}"))
            for replacement in public
        ):
            continue
        for call in calls:
            yield Spot(call, f"{name} is private and deprecated", remedy=f"Call torch.distributed.{instead}")
