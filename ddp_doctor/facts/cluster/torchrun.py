"""How ranks came up that the real torchrun started."""

from typing import ClassVar

from ddp_doctor.model.fact import Fact


class TorchrunFact(Fact):
    """One rank as torchrun started it."""

    KIND: ClassVar[str] = "torchrun/1"

    exported: dict[str, str]
    arrived_after_s: float  # from the start of torchrun until this rank's own code ran
    init_s: float  # init_process_group over env://
    all_reduce_right: bool
