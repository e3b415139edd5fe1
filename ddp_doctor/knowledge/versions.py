"""Versions of torch, NCCL, the driver and Python: compatible, bundled and broken releases."""

import re
from dataclasses import dataclass

from ddp_doctor.model.choices import Severity

Version = tuple[int, ...]

#: The oldest torch that ddp-doctor's own tests ran with (pyproject.toml).
OLDEST_TORCH: Version = (2, 4)

#: CUDA major version: the oldest Linux driver that runs all its minor versions.
#: docs.nvidia.com/deploy/cuda-compatibility, "minor version compatibility".
DRIVER_MINIMUM: dict[int, Version] = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580,)}
DRIVER_SOURCE = "docs.nvidia.com/deploy/cuda-compatibility, minor version compatibility"

#: The newest CUDA series of torch's wheel index that a driver's age allows, newest first: the minimum driver, the index
#: name. Indices: download.pytorch.org/whl, torch 2.6 to 2.13.
WHEEL_INDEX: tuple[tuple[Version, str], ...] = (((580,), "cu130"), ((525, 60, 13), "cu126"))

#: torch release: the NCCL in its CUDA wheels, according to pip's install logs of that release (and to the wheel's own
#: Requires-Dist, which a run compares with).
BUNDLED_NCCL: dict[Version, Version] = {
    (2, 4): (2, 20, 5),
    (2, 5): (2, 21, 5),
    (2, 6): (2, 21, 5),
    (2, 7): (2, 26, 2),
    (2, 8): (2, 27, 3),
    (2, 9): (2, 27, 5),
    (2, 10): (2, 27, 5),
    (2, 11): (2, 28, 9),
    (2, 12): (2, 29, 7),
    (2, 13): (2, 29, 7),
    (2, 14): (2, 30, 7),
    (2, 15): (2, 30, 7),
}

#: The first release that reads NCCL_RUN_DIAGNOSTICS and NCCL_RUN_RAS_DIAGNOSTICS (parameters of libnccl).
NCCL_DIAGNOSTICS: Version = (2, 31, 2)

#: Python version: the month its security support ends. devguide.python.org/versions (PEP 619, 664, 693,
#: 719, 745).
PYTHON_END_OF_LIFE: dict[Version, str] = {
    (3, 10): "2026-10",
    (3, 11): "2027-10",
    (3, 12): "2028-10",
    (3, 13): "2029-10",
    (3, 14): "2030-10",
}


@dataclass(frozen=True)
class NcclIssue:
    """A fault of NCCL releases since ``since`` and before ``before`` that can affect plain DDP jobs."""

    since: Version
    before: Version
    effect: str  # completes "NCCL 2.x on node0 …"
    source: str
    several_nodes: bool = False  # only if the job spans nodes
    machine: str | None = None  # only on this architecture, as in ``uname -m``
    torch_before: Version | None = None  # only below this torch release
    setting: tuple[str, str] | None = None  # avoids it without an upgrade

    def applies(self, nccl: Version, torch: Version, machine: str, nnodes: int) -> bool:
        """Return True if the fault can affect a job with these versions on this many nodes."""
        return (
            self.since <= nccl < self.before
            and (not self.several_nodes or nnodes > 1)
            and self.machine in (None, machine)
            and (self.torch_before is None or torch < self.torch_before)
        )


#: Only faults that hang a DDP job or corrupt its data in an ordinary setup. Faults of CUDA graphs, symmetric memory,
#: mixed GPU generations or MNNVL are omitted, because they would be reported for jobs without any of these.
NCCL_ISSUES: tuple[NcclIssue, ...] = (
    NcclIssue(
        since=(2, 0),
        before=(2, 18, 3),
        effect="can corrupt data with Tree/LL128 where each GPU has a NIC of its own",
        source="NVIDIA/nccl release notes of 2.18.3",
        several_nodes=True,
        setting=("NCCL_PROTO", "^LL128"),
    ),
    NcclIssue(
        since=(2, 17, 1),
        before=(2, 18, 1),
        effect="sometimes sends no FIN when it closes a socket, so that ranks hang at the end",
        source="github.com/pytorch/pytorch/issues/97843",
    ),
    NcclIssue(
        since=(2, 26),
        before=(2, 27),
        effect="hangs at random in the non-blocking mode that torch 2.7.0 chooses when "
        "init_process_group is given a device_id",
        source="github.com/pytorch/pytorch/issues/153960 (avoided in torch 2.7.1, pull request 154055)",
        torch_before=(2, 7, 1),
        setting=("TORCH_NCCL_USE_COMM_NONBLOCKING", "0"),
    ),
    NcclIssue(
        since=(2, 28),
        before=(2, 28, 9),
        effect="can hang at large scale because its main and proxy threads are not ordered",
        source="NVIDIA/nccl release notes of 2.28.9",
        several_nodes=True,
    ),
    NcclIssue(
        since=(2, 29, 2),
        before=(2, 29, 3),
        effect="can hang on Arm when it was built with gcc older than 10",
        source="NVIDIA/nccl release notes of 2.29.3, github.com/pytorch/pytorch/issues/174338",
        machine="aarch64",
    ),
)


def release(text: str) -> Version:
    """Return the leading numbers of a version without its suffixes, or () if there are none.

    "2.13.0+cpu" is (2, 13, 0), "2.6.0a0+ecf3bae40a.nv25.01" is (2, 6, 0), "535.129.03" is (535, 129, 3).
    """
    match = re.match(r"\s*v?(\d{1,9}(?:\.\d{1,9})*)", text, re.ASCII)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def dotted(version: Version) -> str:
    """Return a version as text."""
    return ".".join(str(part) for part in version)


@dataclass(frozen=True)
class TooOld:
    """A version that is too old, why it matters, the source, and the severity."""

    what: str
    why: str
    source: str
    severity: Severity


def too_old(python: str, torch: str | None, requires_python: str | None, today: str) -> TooOld | None:
    """Return the worst outdated version, or None; ``requires_python`` is torch's own, ``today`` an ISO date."""
    least = re.search(r">=\s*(\d+(?:\.\d+)*)", requires_python or "", re.ASCII)
    if least and release(python) < release(least[1]):
        why = f"torch {torch} requires {requires_python}"
        return TooOld(f"Python {python}", why, "torch's package metadata", Severity.ERROR)
    if torch and release(torch) < OLDEST_TORCH:
        why = f"the doctor was tested with {dotted(OLDEST_TORCH)} and newer"
        return TooOld(f"torch {torch}", why, "the doctor's own tests", Severity.INFO)
    end = PYTHON_END_OF_LIFE.get(release(python)[:2])
    if end is not None and today[:7] > end:
        why = f"its security support ended in {end}"
        return TooOld(f"Python {python}", why, "devguide.python.org/versions", Severity.INFO)
    return None


def nccl_mismatch(loaded: Version, needed: Version) -> Severity:
    """Return the severity of loading another NCCL than torch was built with.

    Minor releases add functions, which a torch built with them calls, so an older minor release lacks symbols. Newer
    releases keep the interface of libnccl.so.2.
    """
    if loaded > needed:
        return Severity.INFO
    return Severity.ERROR if loaded[:2] < needed[:2] else Severity.WARNING


def nccl_issues(nccl: Version, torch: Version, machine: str, nnodes: int) -> list[NcclIssue]:
    """Return the known faults that can affect a DDP job with these versions on this many nodes."""
    return [issue for issue in NCCL_ISSUES if issue.applies(nccl, torch, machine, nnodes)]


def least_driver(cuda: str) -> Version:
    """Return the oldest driver for a CUDA version such as "12.8", or () if unknown."""
    return DRIVER_MINIMUM.get(next(iter(release(cuda)), 0), ())


def wheel_index(driver: Version) -> str | None:
    """Return the newest CUDA series of torch's wheels that this driver runs, or None."""
    return next((name for least, name in WHEEL_INDEX if driver >= least), None)


def first_torch_with(nccl: Version) -> Version | None:
    """Return the oldest torch whose CUDA wheels bundle this NCCL or a newer one, or None."""
    return min((torch for torch, bundled in BUNDLED_NCCL.items() if bundled >= nccl), default=None)
