"""Remedies that are settings of NCCL: what they have in common."""

from ddp_doctor.model.finding import Remedy, Setting
from ddp_doctor.remedies.settings import NO_TRIAL

GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/"
ENV = GUIDE + "env.html"
TROUBLE = GUIDE + "troubleshooting.html"


def entry(name: str) -> str:
    """Where NCCL's user guide describes a variable."""
    return f"{ENV}#{name.lower().replace('_', '-')}"


def remedy(
    summary: str, *settings: Setting, cost: str, undo: str = "", conflicts: tuple[str, ...] = ()
) -> Remedy:
    """What these settings mend; a trial can prove it, and to unset what is set undoes it.

    ``conflicts`` are those that the tables of pairs do not know.
    """
    names = list(dict.fromkeys(setting.name for setting in settings))
    return Remedy(
        summary=summary,
        settings=settings,
        cost=cost,
        undo=undo or f"unset {' '.join(names)}",
        proof=NO_TRIAL,
        references=tuple(entry(name) for name in names),
        conflicts=conflicts,
    )
