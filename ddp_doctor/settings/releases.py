"""How releases of NCCL and torch treat a variable: whether they read it, which class reads it, and its default."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ddp_doctor.knowledge.versions import BUNDLED_NCCL, OLDEST_TORCH, Version, release
from ddp_doctor.settings.table import Backend, Variable, variables

#: The newest releases that the table was read from.
NEWEST_TORCH = "torch 2.15"
RELEASES = f"NCCL 2.32.3 and {NEWEST_TORCH}"

StatusAt = Literal["read", "not yet", "no longer", "renamed"]
#: The backend of the table for each name of a class behind "nccl" (views/software.py).
_CLASSES: Mapping[str | None, Backend] = {"nccl2": "nccl2", "nccl-legacy": "nccl-legacy", "nccl": "nccl-legacy"}


@dataclass(frozen=True)
class Installed:
    """The releases of a node and its class behind "nccl"; () and None if unknown."""

    nccl: Version = ()
    torch: Version = ()
    backend: str | None = None  # as in views/software.py

    def of(self, variable: Variable) -> Version:
        """Return the release that decides whether the variable is read."""
        return self.nccl if variable.owner == "nccl" else self.torch

    def reads(self, name: str) -> bool:
        """Return True if these releases certainly read a variable of the table."""
        variable = variables()[name]
        at = self.of(variable) or _oldest(variable)
        return status_at(variable, at) == "read" and not is_of_another_backend(variable, self.backend)


def default_at(variable: Variable, at: Version) -> str | None:
    """Return the default in a release, or None if unset or if the release does not read the variable."""
    if status_at(variable, at) in ("not yet", "no longer", "renamed"):
        return None
    defaults = [default for since, default in variable.history if release(since) <= at]
    return defaults[-1] if defaults else variable.default


def default_in_words(default: str | None) -> str | None:
    """Format the default as text: NCCL's -2 means automatic, -1 means unset."""
    return {"-2": "automatic", "-1": None}.get(default or "", default)


def read_by(variable: Variable) -> str:
    """Return the releases that read it: "from 2.14.3", "2.3.5 to 2.20"; empty if all do."""
    if variable.last:
        return f"{variable.first} to {variable.last}" if variable.first else f"up to {variable.last}"
    return f"from {variable.first}" if variable.first else ""


def status_at(variable: Variable, at: Version) -> StatusAt:
    """Return whether a release reads the variable: of NCCL for NCCL's own variables, otherwise of torch.

    A variable that another one replaced is "renamed" once the old name is no longer read.
    """
    if variable.first is not None and at < release(variable.first):
        return "not yet"
    if variable.last is not None and at[: len(release(variable.last))] > release(variable.last):
        return "renamed" if variable.replaced_by else "no longer"
    return "read"


def is_gone(variable: Variable) -> bool:
    """Return True if neither a supported torch nor the NCCL that it includes still reads the variable."""
    return variable.last is not None and release(variable.last) < _oldest(variable)


def _oldest(variable: Variable) -> Version:
    return min(BUNDLED_NCCL.values()) if variable.owner == "nccl" else OLDEST_TORCH


def is_of_another_backend(variable: Variable, backend: str | None) -> bool:
    """Return True if the class behind "nccl" is known, and only the other class reads the variable."""
    return variable.backend is not None and _CLASSES.get(backend, variable.backend) != variable.backend
