"""Rules on what torch calls deprecated.

with torch.cuda.amp.autocast():          since torch 2.4: torch.amp.autocast("cuda")
"""

from __future__ import annotations

from collections.abc import Iterator

from ddp_doctor.lint.rule import Spot, lint_rule
from ddp_doctor.lint.script import Script
from ddp_doctor.model.choices import Severity


def _distributed(script: Script) -> bool:
    return script.is_distributed


@lint_rule("DDL113", "cuda-amp-deprecated", Severity.INFO, concerns=_distributed)
def cuda_amp_deprecated(script: Script) -> Iterator[Spot]:
    """torch.cuda.amp is used, which torch.amp replaces.

    What it finds
        The first call of `torch.cuda.amp.autocast` and of `torch.cuda.amp.GradScaler` in a script.
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
