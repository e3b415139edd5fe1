"""Rounds of disjoint pairs: every pair meets once, and no rank is in two pairs of a round."""


def rounds(ranks: int) -> list[list[tuple[int, int]]]:
    """The circle method of round-robin tournaments: n-1 rounds for even n, n for odd.

    In an odd world one rank rests in each round.
    """
    seats = list(range(ranks if ranks % 2 == 0 else ranks + 1))
    count = len(seats)
    schedule = []
    for _ in range(count - 1):
        pairs = [(seats[i], seats[count - 1 - i]) for i in range(count // 2)]
        schedule.append([(min(a, b), max(a, b)) for a, b in pairs if max(a, b) < ranks])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return schedule
