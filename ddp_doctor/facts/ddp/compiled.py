"""How torch.compile takes the user's own model on one rank: the graphs it captures, where it breaks them, and when."""

from typing import ClassVar

from ddp_doctor.facts.ddp.user_model import Parting, Trouble
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


class GraphBreak(Frozen):
    """Where a graph ends before the function does, the first line of torch's reason for it."""

    reason: str
    where: str = ""  # the user's line: "/home/me/net.py:31"


class Compilation(Frozen):
    """A function that was compiled in a step."""

    function: str
    where: str  # its first line
    reason: str = ""  # the guard that failed, in torch's words; nothing where the function was not compiled before


class CompiledStep(Frozen):
    """What the forward of one step made torch.compile do."""

    step: int
    batch: str  # the tensors of the batch: "[0] float32 8x16"
    graphs: int = 0  # captured in this step; none where those of an earlier one were used
    breaks: tuple[GraphBreak, ...] = ()
    compiled: tuple[Compilation, ...] = ()
    parting: Parting | None = None  # from the graphs of most ranks; its calls are those of the graph or breaks in it


class CompiledFact(Fact):
    """The graphs that a rank's compiled forward gave in several steps. No code was made of them."""

    KIND: ClassVar[str] = "compiled/1"

    model: str
    world_size: int
    by_factory: bool  # whether the factory compiles it, or --compile alone
    steps: tuple[CompiledStep, ...] = ()
    ended: str = ""  # why there are fewer steps than are looked at
    trouble: Trouble | None = None  # how the forward of a step failed, which ends all ranks' steps
    not_offered: tuple[str, ...] = ()  # what this torch does not tell: "graph breaks", "recompilations"
