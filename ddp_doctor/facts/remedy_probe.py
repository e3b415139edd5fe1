"""What a rank saw while a remedy was tried."""

from typing import ClassVar

from ddp_doctor.model.fact import Fact


class ShownFact(Fact):
    """What one rank saw in one trial; no rate where only the meeting was tried."""

    KIND: ClassVar[str] = "shown/1"

    bytes_per_s: float | None = None
    wrong: int = 0  # elements or bytes of a result
    unread: tuple[str, ...] = ()  # settings that NCCL's log does not show as read
