"""The report: what ``--json`` writes. Schema version 1.0, published in docs/reference."""

from typing import Literal

from pydantic import Field

from ddp_doctor.model.base import Frozen, Json
from ddp_doctor.model.choices import CheckStatus, Verdict
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import World

REPORT_SCHEMA_VERSION = "1.0"


class Tool(Frozen):
    """Who wrote the report."""

    name: str = "ddp-doctor"
    version: str


class CheckResult(Frozen):
    """What became of one check over all nodes and ranks."""

    id: str
    title: str
    status: CheckStatus
    reason: str | None = None
    duration_s: float = 0.0


class Measurement(Frozen):
    """One number that was measured, with its unit and what it was measured of."""

    name: str
    value: float
    unit: str
    labels: dict[str, str | int | float] = Field(default_factory=dict)


class Report(Frozen):
    """The envelope that every diagnosing command writes."""

    schema_version: str = REPORT_SCHEMA_VERSION
    tool: Tool
    run_id: str
    started_at: str
    duration_s: float
    world: World | None = None
    verdict: Verdict
    exit_code: int
    summary: str
    checks: tuple[CheckResult, ...] = ()
    findings: tuple[Finding, ...] = ()
    measurements: tuple[Measurement, ...] = ()


class Overruled(Frozen):
    """A value that does not count, because another source of settings comes first."""

    value: str | None  # None: kept back, like a credential
    source: str


class SettingInForce(Frozen):
    """One variable: what it is set to, by what, and what that means."""

    name: str
    value: str | None  # None: kept back, like a credential
    source: str  # "environment", "FILE:LINE", "line N" of the text, or "torchrun"
    since: str | None = None  # who set it, as far as that is known
    overrides: tuple[Overruled, ...] = ()
    default: str | None = (
        None  # in the NCCL or torch that is here, else in the newest; None: unset; or "automatic"
    )
    meaning: str | None = None  # None: nobody knows the name
    status: Literal["read", "not yet", "no longer", "renamed", "deprecated", "read by nothing", "unknown"]
    note: str | None = None  # why the value is not judged


class EnvReport(Report):
    """What ``env --json`` writes: the envelope, and the settings in force."""

    nccl: str | None = None  # the release that would be loaded, of which status and defaults speak
    torch: str | None = None  # the release that is installed
    rocm: str | None = (
        None  # the ROCm that torch is built for: its RCCL reads NCCL's names, and nothing of them is judged
    )
    settings: tuple[SettingInForce, ...] = ()


class TopologyReport(Report):
    """What ``topology --json`` writes: the envelope, the first matrix, and what else there is."""

    topology: Json = None
    topologies: tuple[Json, ...] | None = None  # all matrices, where there are several
    p2p: tuple[Json, ...] | None = None  # tables of nvidia-smi topo -p2p, each with its host
    nvlinks: tuple[Json, ...] | None = None  # outputs of nvidia-smi nvlink -s
    rocm: tuple[Json, ...] | None = None  # outputs of rocm-smi --showtopo

    def absent(self) -> set[str]:
        """The keys that are left out because there is nothing under them."""
        optional = ("topologies", "p2p", "nvlinks", "rocm")
        return {name for name in optional if getattr(self, name) is None}
