"""What one rank's gradients were in each mode of DDP, as the probe writes it and the rules read it."""

from typing import ClassVar

from ddp_doctor.knowledge.ddp import gradient_code
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


class OffInMode(Frozen):
    """A gradient that is off after a step (counted from 1), and its bucket, None where DDP does not tell."""

    step: int
    bucket: int | None
    gradient: gradient_code.OffGradient


class Mode(Frozen):
    """What was seen of one mode on this rank.

    ``error`` is what DDP raised here and ``not_looked`` why the mode could not be tested, ``refused`` that torch
    itself has ruled it out for these ranks, so that no job can use it. ``unused`` are the
    parameters that the rank's branch leaves out, where ranks leave out different ones and DDP did not know
    to expect it: the backward, which would hang, was then not dared. ``not_views`` are the gradients that
    are no part of their bucket where they must be.
    """

    name: str
    tolerance: float = 0.0  # the relative error that the format allows
    off: tuple[OffInMode, ...] = ()
    error: str | None = None
    not_looked: str | None = None
    refused: bool = False
    unused: tuple[str, ...] | None = None
    not_views: tuple[str, ...] = ()


class GradientModes(Fact):
    """What one rank's gradients were in each mode."""

    KIND: ClassVar[str] = "gradient_modes/1"

    world_size: int
    parameters: int
    modes: tuple[Mode, ...]
