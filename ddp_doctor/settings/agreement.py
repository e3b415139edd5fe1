"""What the ranks of one job must have in common: variables of NCCL, torch and gloo.

    NCCL_ALGO=Tree on one node, unset on the others     the ranks take different ways through one collective
    NCCL_SOCKET_IFNAME=ens3 here, eth0 there            right, where the interfaces are named so
    NCCL_DEBUG=INFO on one node                         nobody's business
    NCCL_IB_HCA=mlx5_0 here, mlx5_4 on another rank     right, where each GPU has a NIC of its own

The rows of the table say what a difference does; where none does, ranks are meant to have equal settings.
Tried: two ranks on gloo, torch 2.13, the variable set for one of them; both waited until the time-out,
or the rank with the variable aborted and the other one waited.
"""

from dataclasses import dataclass

from ddp_doctor.knowledge.versions import release
from ddp_doctor.settings.names import is_unknown
from ddp_doctor.settings.releases import is_of_another_backend
from ddp_doctor.settings.table import Agreement, Variable, variables

_MATTERS = "ranks of one job are meant to have equal settings: what one of them does, its peers must expect"
_MINOR = "nothing that ranks must agree on, though seldom meant"
_FORGOTTEN = "it may have been forgotten where it is unset"
_OWNERS = ("nccl", "torch", "gloo")


@dataclass(frozen=True)
class Job:
    """What decides how much a difference matters: the backend, and what it runs on."""

    backend: str
    nccl_backend: str | None = None  # torch's class behind "nccl", where all nodes have the same
    nccl_versions: frozenset[str] = frozenset()
    has_rdma: bool = False  # and ranks that could use it, on several nodes


def is_compared(name: str) -> bool:
    """Whether it may be anybody's business that ranks have different values of this variable."""
    variable = variables().get(name)
    if variable is None:
        return is_unknown(name)
    return variable.owner in _OWNERS and (variable.may_differ != "yes" or bool(variable.agreements))


def is_of_a_host(name: str) -> bool:
    """Whether a value of this variable means nothing on another host."""
    variable = variables().get(name)
    return variable is not None and bool(variable.may_differ) and all(row.within_a_node for row in variable.agreements)


def difference(name: str, values: frozenset[str | None], job: Job, *, within_a_node: bool = False) -> Agreement | None:
    """What it does that a variable has these (effective) values; None where that does not matter.

    ``within_a_node`` where ranks of one node have different values, not nodes.
    """
    variable = variables().get(name)
    if not is_compared(name):
        return None
    if variable is None:
        return Agreement(name, "minor", _MINOR, "a plug-in may read it")
    if variable.may_differ == "in names":
        return Agreement(name, "minor", _FORGOTTEN, variable.source) if None in values else None
    found = next((row for row in variable.agreements if _applies(row, values, job, within_a_node)), None)
    if found is None:
        if variable.may_differ:
            return None
        found = Agreement(name, "matters", _MATTERS, variable.source)
    if _is_read_by_group(variable, job):
        return found
    reader = (job.nccl_backend if job.backend == "nccl" else None) or job.backend
    return Agreement(name, "minor", f"{reader} does not read it", variable.source)


def _applies(row: Agreement, values: frozenset[str | None], job: Job, within_a_node: bool) -> bool:
    return (
        (within_a_node or not row.within_a_node)
        and (not row.among or row.among in {(value or "").upper() for value in values})
        and (row.before is None or any(release(version) < row.before for version in job.nccl_versions))
        and (not row.needs or job.has_rdma)
    )


def _is_read_by_group(variable: Variable, job: Job) -> bool:
    other_backend = {"gloo": "nccl", "nccl": "gloo"}.get(job.backend)
    return other_backend is None or (
        variable.owner != other_backend
        and (variable.read_when or "").lower() != f"{other_backend} process group"
        and not is_of_another_backend(variable, job.nccl_backend)
    )
