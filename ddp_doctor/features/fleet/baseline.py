"""The baseline: measurements of healthy runs on some hardware, in the format of ``fleet --write-baseline``."""

from typing import Annotated

from pydantic import ConfigDict, Field

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.report import Tool

BASELINE_SCHEMA_VERSION = "1.0"
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class BaselineValue(Frozen):
    """One measurement over all healthy runs."""

    model_config = ConfigDict(strict=True)

    name: str  # as in a report: allreduce_busbw
    unit: str  # of the three values
    labels: dict[str, str | int | float]  # of what, in any run: the number of bytes, not the node
    median: _Positive  # of all values
    mad: _Share  # median absolute deviation of all values
    worst: _Positive  # of all values, the slowest
    values: Annotated[int, Field(ge=1)]  # how many there are
    runs: Annotated[int, Field(ge=1)]  # in how many runs


class Baseline(Frozen):
    """The measurements of healthy runs, with hosts, settings and hardware."""

    schema_version: str  # of this document
    tool: Tool  # who wrote it
    made_at: str  # RFC 3339
    runs: Annotated[int, Field(ge=1)]  # healthy ones of this hardware
    hosts: tuple[str, ...]  # hosts of these runs
    #: Versions and settings; null if they differ between runs. Empty if written by an older release.
    traits: dict[str, str | None] = Field(default_factory=dict)
    settings_known: bool = False  # whether a variable that is not among them was set in no run
    hardware: dict[str, str]  # GPUs, ports, number of nodes and ranks: a run that differs is not compared
    baseline: Annotated[tuple[BaselineValue, ...], Field(min_length=1)]  # by name and labels
