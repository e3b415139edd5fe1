"""A run, once the world of its ranks is known."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ddp_doctor.model.recording import Options, World


@dataclass(frozen=True)
class Run:
    """What is the same for all trials of a run, as one node takes part in it."""

    options: Options  # the head's on all nodes, but for the user's model, which is each node's own
    env: Mapping[str, str]  # the job's environment
    progress: Callable[[str], None]
    world: World
    node: int = 0  # node rank of this node
    until: float = float("inf")  # monotonic; no new trial starts later
