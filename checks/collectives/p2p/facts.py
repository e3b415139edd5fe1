"""What one rank saw of its peers, as the probe writes it and the rules read it."""

from collections.abc import Iterable


def common_end(pairs: Iterable[tuple[int, int]]) -> int | None:
    """The one rank that takes part in all of these pairs, where it has more than one peer in them."""
    each = [frozenset(pair) for pair in pairs]
    shared = frozenset.intersection(*each) if len(set(each)) > 1 else frozenset()
    return next(iter(shared), None)
