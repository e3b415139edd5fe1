"""What one node hands in for the comparison, beside what other checks read of it."""

from typing import ClassVar

from ddp_doctor.model.fact import Fact


class AgreementFact(Fact):
    """What of one node only the roll call, and the doctor itself, can tell."""

    KIND: ClassVar[str] = "agreement/1"

    tool_version: str  # ddp-doctor's own
    clock_offset_s: float | None = None  # this node's clock less the head's; None where it was not measured
