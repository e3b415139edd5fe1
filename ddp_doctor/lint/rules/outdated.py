"""Rules on what torch calls deprecated.

with torch.cuda.amp.autocast():                                     since torch 2.4: torch.amp.autocast("cuda")
subprocess.run(["python", "-m", "torch.distributed.launch", ...])   since torch 1.10: torchrun
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddp_doctor.lint.rule import Spot, always, lint_rule
from ddp_doctor.lint.script import Script
from ddp_doctor.lint.values import Call
from ddp_doctor.model.choices import Severity


def _distributed(script: Script) -> bool:
    return script.is_distributed


@lint_rule("DDL113", "cuda-amp-deprecated", Severity.INFO, concerns=_distributed)
def cuda_amp_deprecated(script: Script) -> Iterator[Spot]:
    """torch.cuda.amp is used, which torch.amp replaces.

    What it finds
        The first call of `torch.cuda.amp.autocast` and of `torch.cuda.amp.GradScaler` in a script, and the import of
        `custom_fwd` and `custom_bwd` from there.
    Why it matters
        Both do the same as before and warn since torch 2.4, on every rank; a later release may drop them.
    Remedy
        `torch.amp.autocast("cuda")` and `torch.amp.GradScaler("cuda")`, from torch 2.3 on.
    References
        https://pytorch.org/docs/stable/amp.html
    """
    for name in ("autocast", "GradScaler"):
        call = next(script.named(f"torch.cuda.amp.{name}"), None)
        if call is not None:
            yield Spot(
                call,
                f"torch.cuda.amp.{name} is deprecated",
                remedy=f'Write torch.amp.{name}("cuda", ...)',
            )
    for node in script.tree.body:
        if not (isinstance(node, ast.ImportFrom) and node.module == "torch.cuda.amp"):
            continue
        for name in ("custom_fwd", "custom_bwd"):
            if any(one.name == name for one in node.names):
                yield Spot(
                    node,
                    f"torch.cuda.amp.{name} is deprecated",
                    remedy=f'Write torch.amp.{name}(device_type="cuda")',
                )


_LAUNCHES = ("subprocess.", "os.system", "os.popen", "os.exec", "os.spawn", "torch.distributed.launch.")
_LAUNCHER = "torch.distributed.launch"


@lint_rule("DDL118", "old-launcher-called", Severity.INFO, concerns=always)
def old_launcher_called(script: Script) -> Iterator[Spot]:
    """The script starts its processes with torch.distributed.launch, which torchrun replaces.

    What it finds
        A command of `subprocess` or `os.system` that runs `torch.distributed.launch`, or a call of that module itself.
    Why it matters
        The launcher warns on each start that it is deprecated, and hands `--local-rank` to scripts (with a hyphen since
        torch 2.0, with an underscore before) that those which read LOCAL_RANK do not expect.
    Remedy
        `torchrun --nproc-per-node=8 train.py`, and LOCAL_RANK of the environment in the script.
    References
        https://pytorch.org/docs/stable/elastic/run.html#transitioning-from-torch-distributed-launch-to-torchrun
    """
    for call in script.calls:
        if call.name.startswith(_LAUNCHES) and (call.name.startswith(_LAUNCHER) or _names_launcher(call)):
            yield Spot(
                call,
                "torch.distributed.launch is deprecated",
                remedy="Start the processes with torchrun, and read LOCAL_RANK in the script",
            )


def _names_launcher(call: Call) -> bool:
    return any(
        isinstance(node, ast.Constant) and isinstance(node.value, str) and _LAUNCHER in node.value
        for one in call.sources()
        for node in (ast.walk(one.node) if isinstance(one.node, ast.expr) else ())
    )
