"""Which pairs are tested: of ranks in rounds of disjoint pairs, of nodes each with some neighbours."""

#: Up to this many nodes every pair is tested.
ALL_PAIRS = 64


def rounds(ranks: int) -> list[list[tuple[int, int]]]:
    """Rounds of disjoint pairs: every pair meets once, and no rank is in two pairs of a round.

    This is the circle method of round-robin tournaments: n-1 rounds for even n, n for odd. In an odd world one
    rank rests in each round.
    """
    seats = list(range(ranks if ranks % 2 == 0 else ranks + 1))
    count = len(seats)
    schedule = []
    for _ in range(count - 1):
        pairs = [(seats[i], seats[count - 1 - i]) for i in range(count // 2)]
        schedule.append([(min(a, b), max(a, b)) for a, b in pairs if max(a, b) < ranks])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return schedule


def neighbours(node: int, nnodes: int) -> list[int]:
    """The nodes that ``node`` dials, in order.

    Up to 64 nodes: all others, in the rounds of a tournament, so that at each moment every node has one
    partner. Beyond: those 1, 2, 4, ... places ahead and behind on a ring of all, 2 log2 N of them, so
    that every node is also dialled by as many, and the nodes stay connected when some are bad.
    """
    if nnodes <= ALL_PAIRS:
        pairs = (pair for pairs_of_round in rounds(nnodes) for pair in pairs_of_round if node in pair)
        return [low + high - node for low, high in pairs]
    steps = [1 << power for power in range((nnodes - 1).bit_length())]
    ring = ((node + sign * step) % nnodes for step in steps for sign in (1, -1))
    return [neighbour for neighbour in dict.fromkeys(ring) if neighbour != node]
