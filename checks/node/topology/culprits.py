"""How the rules about paths name hosts, GPUs and pairs of GPUs."""

from collections.abc import Sequence
from typing import Any

from ddp_doctor.model.finding import Culprit
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.wording.nodes import node_names


def hosts_of(recording: Recording, seen: Sequence[FactAt[Any]]) -> str:
    """The hosts for a sentence; of a pasted text only their order is known."""
    if recording.world:
        return node_names(recording, seen)
    several = len({reading.node for reading in recording.readings}) > 1
    return f"host {seen[0].node + 1} of the text" if several else "this host"


def culprit(recording: Recording, node: int, gpus: Sequence[str], ranks: Sequence[int] = ()) -> Culprit:
    """One GPU, or a pair of GPUs of one node and, where known, their ranks."""
    host = recording.world.hostname(node) if recording.world else None
    number = int(gpus[0].removeprefix("GPU"))
    if len(gpus) == 1:
        return Culprit(kind="gpu", node=host, node_rank=node, gpu=number, name=gpus[0])
    one, two = ranks or (None, None)
    name = "-".join(gpus)
    return Culprit(
        kind="pair", node=host, node_rank=node, rank=one, gpu=number, peer_node=host, peer_rank=two, name=name
    )
