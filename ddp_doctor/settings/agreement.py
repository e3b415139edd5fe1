"""The variables of NCCL, torch and gloo that must be equal on all ranks of a job.

    NCCL_ALGO=Tree on one node, unset on the others     the ranks take different ways through one collective
    NCCL_SOCKET_IFNAME=ens3 here, eth0 there            correct if the interfaces have these names
    NCCL_DEBUG=INFO on one node                         harmless
    NCCL_IB_HCA=mlx5_0 here, mlx5_4 on another rank     correct if each GPU has its own NIC

The rows of the table give the effect of a difference. Variables without such a row should be equal on all ranks.
Tested with two ranks over gloo (torch 2.13) and the variable set on one of them: both waited until the timeout, or the
rank with the variable aborted and the other rank waited.
"""

from dataclasses import dataclass

from ddp_doctor.knowledge.versions import release
from ddp_doctor.settings.names import is_unknown
from ddp_doctor.settings.releases import is_of_another_backend
from ddp_doctor.settings.table import Agreement, Variable, variables

_MATTERS = "ranks of one job should have equal settings: each must do what its peers expect"
_MINOR = "nothing that ranks must agree on, though seldom meant"
_FORGOTTEN = "it may be unset by mistake"
_OWNERS = ("nccl", "torch", "gloo")


@dataclass(frozen=True)
class Job:
    """The backend of a job and its releases, which decide how much a difference matters."""

    backend: str
    nccl_backend: str | None = None  # torch's class behind "nccl", if all nodes have the same one
    nccl_versions: frozenset[str] = frozenset()
    has_rdma: bool = False  # RDMA is available, with ranks on several nodes that could use it


def is_compared(name: str) -> bool:
    """Return True if different values of this variable on ranks may matter."""
    variable = variables().get(name)
    if variable is None:
        return is_unknown(name)
    return variable.owner in _OWNERS and (variable.may_differ != "yes" or bool(variable.agreements))


def is_of_a_host(name: str) -> bool:
    """Return True if a value of this variable is valid only on its own host."""
    variable = variables().get(name)
    return variable is not None and bool(variable.may_differ) and all(row.within_a_node for row in variable.agreements)


def difference(name: str, values: frozenset[str | None], job: Job, *, within_a_node: bool = False) -> Agreement | None:
    """Return the effect of these (effective) values of a variable, or None if the difference does not matter.

    ``within_a_node`` is True if the ranks of one node differ, rather than the nodes.
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
