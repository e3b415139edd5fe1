"""What a release of NCCL or torch makes of a variable: whether it is read, by which class, and with which default."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ddp_doctor.knowledge.versions import BUNDLED_NCCL, OLDEST_TORCH, Version, release
from ddp_doctor.settings.table import Backend, Variable, variables

#: The newest releases that the table was read from.
NEWEST_TORCH = "torch 2.15"
RELEASES = f"NCCL 2.32.3 and {NEWEST_TORCH}"

StatusAt = Literal["read", "not yet", "no longer", "renamed"]
#: The names that the ranks and torch have for torch's classes behind "nccl" (views/software.py).
_CLASSES: Mapping[str | None, Backend] = {"nccl2": "nccl2", "nccl-legacy": "nccl-legacy", "nccl": "nccl-legacy"}


@dataclass(frozen=True)
class Installed:
    """The releases of a node and its class behind "nccl"; () and None where they are not known."""

    nccl: Version = ()
    torch: Version = ()
    backend: str | None = None  # as views/software.py says

    def of(self, variable: Variable) -> Version:
        """The release that decides whether the variable is read."""
        return self.nccl if variable.owner == "nccl" else self.torch

    def reads(self, name: str) -> bool:
        """Whether a variable of the table is read here for sure."""
        variable = variables()[name]
        at = self.of(variable) or _oldest(variable)
        return status_at(variable, at) == "read" and not is_of_another_backend(variable, self.backend)


def default_at(variable: Variable, at: Version) -> str | None:
    """The default in a release; None where it is unset, or that release does not read the variable."""
    if status_at(variable, at) in ("not yet", "no longer", "renamed"):
        return None
    defaults = [default for since, default in variable.history if release(since) <= at]
    return defaults[-1] if defaults else variable.default


def default_in_words(default: str | None) -> str | None:
    """The default for people: NCCL's -2 means that it chooses itself, -1 that the variable is as good as unset."""
    return {"-2": "automatic", "-1": None}.get(default or "", default)


def read_by(variable: Variable) -> str:
    """The releases that read it: "from 2.14.3", "2.3.5 to 2.20"; empty where all do."""
    if variable.last:
        return f"{variable.first} to {variable.last}" if variable.first else f"up to {variable.last}"
    return f"from {variable.first}" if variable.first else ""


def status_at(variable: Variable, at: Version) -> StatusAt:
    """Whether a release, NCCL's for NCCL's own variables and torch's for all others, reads the variable.

    A variable that another one replaced is "renamed" once the old name is no longer read.
    """
    if variable.first is not None and at < release(variable.first):
        return "not yet"
    if variable.last is not None and at[: len(release(variable.last))] > release(variable.last):
        return "renamed" if variable.replaced_by else "no longer"
    return "read"


def is_gone(variable: Variable) -> bool:
    """Whether no torch that the doctor supports, nor the NCCL that comes with it, reads the variable any more."""
    return variable.last is not None and release(variable.last) < _oldest(variable)


def _oldest(variable: Variable) -> Version:
    return min(BUNDLED_NCCL.values()) if variable.owner == "nccl" else OLDEST_TORCH


def is_of_another_backend(variable: Variable, backend: str | None) -> bool:
    """Whether the class behind "nccl" is known, and the variable is read by the other one alone."""
    return variable.backend is not None and _CLASSES.get(backend, variable.backend) != variable.backend
