"""Facts about torch.compile of the user's model on one rank: graphs, graph breaks, recompilations."""

from typing import ClassVar

from ddp_doctor.features.model.user_model.facts import Parting, Trouble
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


class GraphBreak(Frozen):
    """The place where a graph ends before the function does, and the first line of torch's reason."""

    reason: str
    where: str = ""  # the user's line: "/home/me/net.py:31"


class Compilation(Frozen):
    """A function that was compiled in a step."""

    function: str
    where: str  # its first line
    reason: str = ""  # the guard that failed, as torch reports it; empty at the first compilation


class CompiledStep(Frozen):
    """The work of torch.compile in the forward of one step."""

    step: int
    batch: str  # the tensors of the batch: "[0] float32 8x16"
    graphs: int = 0  # captured in this step; 0 if earlier graphs were reused
    breaks: tuple[GraphBreak, ...] = ()
    compiled: tuple[Compilation, ...] = ()
    parting: Parting | None = None  # from the graphs of most ranks; its calls are in the graph, or breaks


class CompiledFact(Fact):
    """The graphs captured from a rank's compiled forward in several steps. No code was generated from them."""

    KIND: ClassVar[str] = "compiled/1"

    model: str
    world_size: int
    by_factory: bool  # True: the factory compiles it; False: only --compile does
    steps: tuple[CompiledStep, ...] = ()
    ended: str = ""  # why there are fewer steps than planned
    trouble: Trouble | None = None  # failure of the forward in a step, which ends the steps of all ranks
    not_offered: tuple[str, ...] = ()  # what this torch does not report: "graph breaks", "recompilations"
