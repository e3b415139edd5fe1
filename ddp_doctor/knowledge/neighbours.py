"""Whom each node dials: everybody in a small run, a few on a ring in a large one."""

from ddp_doctor.knowledge.pairs import rounds

#: Up to this many nodes every pair is tested.
ALL_PAIRS = 64


def neighbours(node: int, nnodes: int) -> list[int]:
    """The nodes that ``node`` dials, in order.

    Up to 64 nodes: all others, in the rounds of a tournament, so that at each moment every node has one
    partner. Beyond: those 1, 2, 4, ... places ahead and behind on a ring of all, 2 log2 N of them, so
    that every node is also dialled by as many, and the nodes stay connected when some are bad.
    """
    if nnodes <= ALL_PAIRS:
        pairs = (pair for one in rounds(nnodes) for pair in one if node in pair)
        return [low + high - node for low, high in pairs]
    steps = [1 << power for power in range((nnodes - 1).bit_length())]
    ring = ((node + sign * step) % nnodes for step in steps for sign in (1, -1))
    return [other for other in dict.fromkeys(ring) if other != node]
