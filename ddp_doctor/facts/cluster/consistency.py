"""What one node hands in for the comparison, beside what other checks read of it."""

from typing import ClassVar

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


class ConsistencyFact(Fact):
    """What of one node only the roll call, and the doctor itself, can tell."""

    KIND: ClassVar[str] = "consistency/1"

    tool_version: str  # ddp-doctor's own
    clock_offset_s: float | None = None  # this node's clock less the head's; None where it was not measured


class Settings(Frozen):
    """Of one process's environment, the variables that ranks must have in common."""

    variables: dict[str, str]
    withheld: tuple[str, ...] = ()  # set, but like a credential, or too long for a setting


class RankSettings(Fact):
    """What the ranks of one node were started with, where a launcher started the doctor once per rank.

    The agent's own rank is one of them; of the other ranks those that reported in time. Rank N's are ``ranks[N]``,
    by the launcher's local rank.
    """

    KIND: ClassVar[str] = "rank_settings/1"

    local_size: int  # how many ranks the launcher started on this node
    ranks: dict[int, Settings]
